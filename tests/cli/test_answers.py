"""Answers as they come: what is printed when, what happens to bad images among good ones, and Ctrl-C."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress

import pytest
from processes import HANGING, interruptible
from warm import complaint, run

from shakeproof import demo

MODEL = str(demo.MODEL)
IMAGES = {path.stem: str(path) for path, _ in demo.images()}
STOP, WARNING = IMAGES["stop.1"], IMAGES["warning.1"]
COMMAND = [sys.executable, "-m", "shakeproof"]
# Some seconds a query, by splitting: one a sweep.
SLOW = "box-blur:size=9+brightness:max=0.2"


def test_a_bad_image_among_good_ones_is_reported_and_the_rest_go_on(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    words = ("profile", MODEL, STOP, "gone.png", WARNING, "broken.png", "-p", "box-blur:size=3", "-p", "sharpen:size=3")
    done = run(*words, "--json", cwd=tmp_path)
    assert done.returncode == 2
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["image"] for row in rows] == [STOP, STOP, WARNING, WARNING]
    first, second = done.stderr.splitlines()
    assert first.startswith("shakeproof: gone.png: cannot read the image")
    assert second.startswith("shakeproof: broken.png: cannot read the image")
    assert "gone.png" in complaint(*words, "--strict", cwd=tmp_path)
    assert done.stdout.count("\n") == 4


def test_a_bad_query_among_good_ones_is_reported_too(tmp_path):
    words = ("-p", "box-blur:size=3", "--strength", "0.1", "-o", tmp_path, "--format", "perturbed")
    assert run("export", MODEL, STOP, *words).returncode == 0
    good = tmp_path / "perturbed.vnnlib"
    (tmp_path / "bad.vnnlib").write_text(good.read_text()[:-30])
    done = run("verify", MODEL, tmp_path / "bad.vnnlib", good, "--json")
    assert done.returncode == 2
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["safe"]
    assert done.stderr.startswith(f"shakeproof: {tmp_path}/bad.vnnlib: ")
    assert done.stderr.count("\n") == 1


def test_a_kernel_that_fits_no_picture_is_one_mistake():
    assert "too large" in complaint("profile", MODEL, STOP, WARNING, "-p", "box-blur:size=65")


def test_files_are_numbered_by_query(tmp_path):
    words = ("profile", MODEL, "gone.png", STOP, WARNING, "-p", "box-blur:size=9", "-p", "identity")
    run(*words, "--counterexample", "c.png", "--quiet", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["c-5.png"]  # of the third image, the first perturbation


@pytest.fixture
def slow_run():
    """A run whose second query takes long; stopped if the test has not."""
    words = ["profile", MODEL, STOP, "-p", "box-blur:size=9", "-p", SLOW, "-p", "sharpen:size=3", "--json"]
    process = interruptible([*COMMAND, *words, "--threads", "1", "--tolerance", "1e-9", "--timeout", "600"])
    yield process
    process.kill()
    process.wait()


def test_answers_come_one_by_one_and_an_interrupt_says_what_is_missing(slow_run):
    first = json.loads(slow_run.stdout.readline())
    assert (first["perturbation"], first["status"]) == ("box-blur:size=9", "safe")
    assert slow_run.poll() is None
    slow_run.send_signal(signal.SIGINT)
    rest, errors = slow_run.communicate(timeout=HANGING)
    assert slow_run.returncode == 130
    assert rest == ""
    assert errors == (f"shakeproof: interrupted; 1 of 3 answered; next: {STOP} {SLOW}\n")


def test_rows_of_the_demo_come_as_they_are_known(tmp_path):
    words = [*COMMAND, "demo", "--output", str(tmp_path / "report.html")]
    with interruptible(words) as process:
        assert any(line.startswith("keep-right.1 ") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=HANGING)
    assert (process.returncode, errors.strip()) == (130, "")
    assert "wrote" not in rest
    assert rest.count("yield.1") < 2
    assert not (tmp_path / "report.html").exists()


def in_a_terminal(words: list[str], columns: int) -> str:
    """All that the command writes to a terminal of so many columns."""
    child, terminal = pty.fork()
    if not child:
        os.environ["TERM"] = "xterm"
        os.execv(COMMAND[0], [*COMMAND, *words])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    written = b""
    with suppress(OSError):  # the end, on Linux
        while some := os.read(terminal, 4096):
            written += some
    os.waitpid(child, 0)
    return written.decode()


def test_in_a_terminal_the_bar_moves_within_a_query_and_rows_fit():
    written = in_a_terminal(["profile", MODEL, WARNING, "-p", SLOW, "--threads", "1"], 80)
    shares = {int(share) for share in re.findall(r"(\d+)%", written.partition("unsafe")[0])}
    assert len(shares - {0, 100}) > 1
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written)
    lines = [line.rpartition("\r")[2] for line in plain.replace("\r\n", "\n").split("\n")]
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(f"  {SLOW}  unsafe") for line in lines)


@pytest.mark.parametrize(("given", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_told_otherwise(given, policy):
    """As the OpenMP library itself says when torch loads it."""
    if not sys.platform.startswith("linux"):
        pytest.skip("which OpenMP library torch brings, and what it says, is another matter elsewhere")
    kept = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    words = ["profile", MODEL, STOP, "-p", "identity", "--quiet"]
    done = subprocess.run(
        [*COMMAND, *words],
        env=kept | given | {"OMP_DISPLAY_ENV": "true"},
        capture_output=True,
        text=True,
        timeout=HANGING,
        check=False,
    )
    assert done.returncode == 0
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr


def test_as_many_threads_as_nobody_has():
    words = ("profile", MODEL, STOP, "-p", "identity", "--threads")
    assert "123456789012" in complaint(*words, "123456789012")
    assert "range" in complaint(*words, "0")


def test_a_certificate_that_takes_too_long_costs_no_answer(tmp_path):
    words = (
        "verify",
        MODEL,
        WARNING,
        "-p",
        "box-blur:size=3",
        "--strength",
        "0.2",
        "--certificate",
        "a.cert",
        "--json",
    )
    late = run(*words, "--certificate-timeout", "0.001", cwd=tmp_path)
    assert (late.returncode, json.loads(late.stdout)["status"]) == (0, "safe")
    assert late.stderr.startswith("no certificate:")
    assert not (tmp_path / "a.cert").exists()
    assert run(*words, "--certificate-timeout", "60", cwd=tmp_path).returncode == 0
    assert (tmp_path / "a.cert").exists()
