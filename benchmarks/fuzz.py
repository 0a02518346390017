"""Does any input crash the command? Thousands of broken files, folders and command lines, the same for the same seed.

    python benchmarks/fuzz.py [--count 10000] [--seed 0] [--only png,words] [--minutes 5] [--keep DIR]

Each input is run by the real command in a process of its own, forked from one that has done the imports. It must end
within 10 s of a processor's time and 4 GiB, with exit code 0, 1, 2 or 3; refuse in one line of ours; show no traceback
and no internal error; leave its inputs as they were, and write outputs whole or not at all. The exit code is 1 if one
does not, and `--keep` keeps such inputs with their commands. The kinds of input are those of tests/fuzzing.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from fuzzing import KINDS, LIMITS, Case, broken, broken_promises
from rich.console import Console
from rich.progress import track
from rich.table import Table

SECONDS, GIB = LIMITS


class Tally:
    """What became of the inputs of a kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds = self.gib = 0.0

    def add(self, code: int, seconds: float, gib: float, problems: list[str]) -> None:
        hangs = seconds > SECONDS or "exit code -14" in "".join(problems)
        self.counts["inputs"] += 1
        self.counts["refused" if code == 2 else "answered"] += not problems
        self.counts["internal errors"] += any(p.startswith(("an internal error", "a traceback")) for p in problems)
        self.counts["hangs"] += hangs
        self.counts["too much memory"] += gib > GIB or any(p.startswith("memory") for p in problems)
        self.counts["failures"] += bool(problems)
        self.seconds, self.gib = max(self.seconds, seconds), max(self.gib, gib)


COLUMNS = ("inputs", "refused", "answered", "internal errors", "hangs", "too much memory", "failures")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; each kind goes on from there")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no input after so long")
    parser.add_argument("--only", help="kinds, with commas between them", default=",".join(KINDS))
    parser.add_argument("--keep", type=Path, help="keep inputs that fail, with their commands, in this folder")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    kinds, tallies, start = given.only.split(","), defaultdict[str, Tally](Tally), time.monotonic()
    for number in track(range(given.count), "breaking"):
        if time.monotonic() - start > 60 * given.minutes:
            break
        kind, seed = kinds[number % len(kinds)], given.seed + number // len(kinds)
        case = broken(kind, seed)
        with tempfile.TemporaryDirectory() as folder:
            done = case.run(Path(folder))
            problems = broken_promises(case, done, Path(folder))
        tallies[kind].add(done.returncode, done.seconds, done.gib, problems)
        if problems:
            print(f"{kind} {seed} ({case.how}): {'; '.join(problems)}".encode(errors="replace").decode(), flush=True)
            if given.keep:
                keep(case, given.keep / f"{kind.replace(' ', '-')}-{seed}")
    show(tallies, time.monotonic() - start)
    return int(any(tally.counts["failures"] for tally in tallies.values()))


def keep(case: Case, folder: Path) -> None:
    """The files of a case, and the command to run among them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    case.write(folder)
    (folder / "command.sh").write_text(f"shakeproof {shlex.join(case.words)}\n", errors="surrogateescape")


def show(tallies: dict[str, Tally], seconds: float) -> None:
    table = Table("kind", *COLUMNS, "longest s", "most GiB", title=f"{seconds:.0f} s, load {os.getloadavg()[0]:.1f}")
    total = Tally()
    for kind, tally in [*tallies.items(), ("all", total)]:
        table.add_row(kind, *(str(tally.counts[name]) for name in COLUMNS), f"{tally.seconds:.1f}", f"{tally.gib:.2f}")
        total.counts += tally.counts
        total.seconds, total.gib = max(total.seconds, tally.seconds), max(total.gib, tally.gib)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    sys.exit(main())
