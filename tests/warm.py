"""Runs the command in real processes without waiting for its imports: each is forked from one that has done them."""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

IMPORTED = "matplotlib.figure numpy onnx onnxruntime rich.progress scipy.optimize shakeproof.analysis shakeproof.cli"
# A busy machine makes runs take so many times longer than their share of it.
WAITING = 10


class Finished(subprocess.CompletedProcess[str]):
    """A run that has ended: what it printed, and what it took."""

    def __init__(self, words: list[str], code: int, out: str, err: str, seconds: float, gib: float) -> None:
        super().__init__(words, code, out, err)
        self.seconds, self.gib = seconds, gib


class WarmCommand:
    """One process that has imported everything and computed nothing; it forks for each run."""

    def __init__(self) -> None:
        # pytest loads readline, which sets COLUMNS behind Python's back: not for the command, which heeds it
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )

    def run(self, *words: str | Path, cwd: Path | None = None, limits: tuple[int, int] | None = None) -> Finished:
        """With `limits`, a run that takes so many seconds of a processor is killed, and so is one that waits for ever;
        and so many GiB more are all that it gets.
        """
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            given = [*map(str, words)]
            request = {"words": given, "cwd": str(cwd or Path.cwd()), "out": str(out), "err": str(err)}
            request["limits"] = limits
            self.server.stdin.write(json.dumps(request) + "\n")
            self.server.stdin.flush()
            code, *taken = json.loads(self.server.stdout.readline())
            return Finished(given, code, _text(out), _text(err), *taken)

    def close(self) -> None:
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait(timeout=600)


@cache
def command() -> WarmCommand:
    started = WarmCommand()
    atexit.register(started.close)
    return started


def _text(path: Path) -> str:
    return path.read_text(errors="backslashreplace")


def run(*words: str | Path, cwd: Path | None = None, limits: tuple[int, int] | None = None) -> Finished:
    """The command's exit code, and what it printed."""
    return command().run(*words, cwd=cwd, limits=limits)


def complaint(*words: str | Path, cwd: Path | None = None) -> str:
    """The one line on stderr of a run that must fail with exit code 2."""
    done = run(*words, cwd=cwd)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("shakeproof: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def serve() -> None:
    for module in IMPORTED.split():
        __import__(module)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            become(request)
        _, status, taken = os.wait4(child, 0)
        seconds, gib = taken.ru_utime + taken.ru_stime, taken.ru_maxrss / 2**20
        print(json.dumps([os.waitstatus_to_exitcode(status), seconds, gib]), flush=True)


def become(request: dict) -> None:
    """Be the command: its words, its folder, its files in place of the terminal."""
    from shakeproof.cli import main

    os.chdir(request["cwd"])
    for path, number in ((request["out"], 1), (request["err"], 2)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), number)
    sys.argv = ["shakeproof", *request["words"]]
    if request["limits"] is not None:
        seconds, gib = request["limits"]
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        signal.alarm(WAITING * seconds)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (gib << 30),) * 2)
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
    os._exit(0)


if __name__ == "__main__":
    serve()
