"""What other work on the cores costs: some profiles on a quiet and on a busy machine, however threads wait.

    python benchmarks/busy.py [--loops 6] [--rounds 3]

Starts its own busy loops, and ends them. Times are medians of what the command itself says, without its start; the
ratios compare settings that took turns in one run. The machine is quiet only if nothing else runs on it: see the load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from shakeproof import demo

# What OpenMP libraries do if nobody says anything, as numbers that win over what the command says.
SPINNING = {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}
# How threads are asked for, and what the environment says of their waiting.
SETTINGS = {
    "two threads that spin (the libraries' own)": (("--threads", "2"), SPINNING),
    "two threads that sleep (the command's)": (("--threads", "2"), {}),
    "one thread": (("--threads", "1"), {}),
}
# A busy loop that does not outlive its parent.
LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
QUERIES = ("-p", "box-blur:size=7", "-p", "motion-blur:size=11,angle=45")


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that do nothing but keep the cores busy."""
    started = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def seconds(words: tuple[str, ...], environment: dict[str, str]) -> float:
    """What the command says that its queries took."""
    images = [str(path) for path, _ in demo.images()[:1]]
    command = [sys.executable, "-m", "shakeproof", "profile", str(demo.MODEL), *images, *QUERIES, "--json"]
    kept = {
        key: value for key, value in os.environ.items() if key not in (*SPINNING, "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
    }
    done = subprocess.run([*command, *words], env=kept | environment, capture_output=True, text=True, check=False)
    return sum(json.loads(line)["seconds"] for line in done.stdout.splitlines())


@click.command()
@click.option("--loops", default=6, show_default=True, help="Busy loops beside the command.")
@click.option("--rounds", default=3, show_default=True, help="How often every setting has its turn.")
def main(loops: int, rounds: int) -> None:
    """Compare settings of threads on a quiet and on a busy machine."""
    console = Console(width=120)
    console.print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    times: dict[tuple[str, int], list[float]] = {}
    for around in (0, loops):
        with busy(around):
            for _ in range(rounds):
                for name, setting in SETTINGS.items():
                    times.setdefault((name, around), []).append(seconds(*setting))
    found = {key: median(values) for key, values in times.items()}
    table = Table("threads", "quiet, s", f"{loops} loops, s", "busy / quiet", "busy, against one thread")
    for name in SETTINGS:
        quiet, loaded = found[name, 0], found[name, loops]
        alone = found["one thread", loops]
        table.add_row(name, f"{quiet:.2f}", f"{loaded:.2f}", f"{loaded / quiet:.1f}", f"{loaded / alone:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
