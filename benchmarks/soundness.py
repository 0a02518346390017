"""Is a verifier ever wrong? Thousands of queries made to fool it, whose answers are known in exact arithmetic.

    python benchmarks/soundness.py [--queries 10000] [--seed 0] [--in-process]
    python benchmarks/soundness.py --command "python -m another.tool" --keep DIR --json results.json

Each network is asked about in one process, with several images and perturbations:

    COMMAND verify MODEL FILE.npz@0 FILE.npz@1 ... -p PERTURBATION ... --strength Z --json --quiet

and every other time `COMMAND profile ... --max-strength Z`. The answer is one JSON object a line, images first. What is
true is decided by soundness_suite/truth.py, which needs numpy and onnx and nothing of the tool. The exit code is 1 if
anything is wrong. docs/soundness.md says more.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from soundness_suite.asking import Suite, Tally, command, in_process, made

COLUMNS = {
    "queries": "queries",
    "truly safe": "truly_safe",
    "safe": "safe",
    "unsafe": "unsafe",
    "undecided": "undecided",
    "errors": "errors",
    "WRONG SAFE": "wrong_safe",
    "wrong unsafe": "wrong_unsafe",
    "only in float32": "only_in_float32",
    "wrong critical": "wrong_critical",
    "by > 1e-9": "wrong_critical_far",
    "wrong certified": "wrong_certified",
    "wrong profile": "wrong_profile",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--command", default="shakeproof", help="the tool, as words of a command line")
    parser.add_argument("--in-process", action="store_true", help="call shakeproof's command here: no start-up")
    parser.add_argument("--options", default="--threads 1 --timeout 20", help="more options for the tool")
    parser.add_argument("--ask", choices=["verify", "profile", "both"], default="both", help="which of its commands")
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--network", type=int, help="ask about this one network of the seed only")
    parser.add_argument("--keep", type=Path, help="keep the files of networks with a wrong answer in this folder")
    parser.add_argument("--json", type=Path, help="write all counts and all wrong answers to this file")
    return parser.parse_args()


def table(tallies: Mapping[str, Tally]) -> str:
    """The counts of each family, and of all, as a Markdown table."""
    rows = [["family", *COLUMNS]]
    for name, tally in (*tallies.items(), ("all", sum(tallies.values(), Tally()))):
        rows.append([name, *(str(getattr(tally, field)) for field in COLUMNS.values())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| "
        + " | ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in rows
    ]
    ruler = "|" + "|".join("-" * (w + 1) + ("-" if i == 0 else ":") for i, w in enumerate(widths)) + "|"
    return "\n".join([lines[0], ruler, *lines[1:]])


def main() -> int:
    options = arguments()
    tool = in_process() if options.in_process else command(options.command)
    tallies: dict[str, Tally] = defaultdict(Tally)
    wrong: list[dict[str, Any]] = []
    started, number, done = time.perf_counter(), options.network or 0, 0
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(tool, Path(folder), options.options.split(), options.ask)
        while done < options.queries and options.network in (None, number):
            name, case = made(options.seed, number)
            tally, found = suite.run(name, case, number)
            tallies[name] += tally
            wrong += found
            done += tally.queries
            if tally.wrong:
                kept = keep(options.keep, Path(folder), f"{name}-{options.seed}-{number}")
                print(f"\r{name}: wrong answers about network {number} of seed {options.seed}{kept}", file=sys.stderr)
            show_progress(done, options.queries, time.perf_counter() - started)
            number += 1
    total = sum(tallies.values(), Tally())
    print(table(dict(sorted(tallies.items()))))
    reasons = sum((tally.reasons for tally in tallies.values()), Counter())
    print(
        "\nundecided or failed because of:", *(f"  {n:6}  {reason}" for reason, n in reasons.most_common(8)), sep="\n"
    )
    print(f"{number} networks, seed {options.seed}, {time.perf_counter() - started:.0f} s")
    if options.json:
        report = {"families": {n: t.counts() for n, t in tallies.items()}, "all": total.counts(), "wrong": wrong}
        options.json.write_text(json.dumps({"seed": options.seed, "command": options.command, **report}, indent=1))
    print(f"decided where the margin exceeds 1e-6 of the scores: {total.tellable_decided} of {total.tellable}")
    print(
        f"wrong unsafe: {total.wrong_unsafe}, unsafe in float32 but safe in real arithmetic: {total.only_in_float32},"
        f" wrong critical: {total.wrong_critical} (by > 1e-9: {total.wrong_critical_far}),"
        f" wrong certified: {total.wrong_certified}, wrong profile: {total.wrong_profile}, errors: {total.errors}"
    )
    print(f"wrong safe: {total.wrong_safe} of {total.queries}, undecided: {total.undecided}")
    return int(total.wrong > 0)


def keep(where: Path | None, folder: Path, name: str) -> str:
    """Copy a network's files; says so."""
    if where is None:
        return ""
    shutil.copytree(folder, where / name, dirs_exist_ok=True)
    return f", kept in {where / name}"


def show_progress(done: int, count: int, seconds: float) -> None:
    print(
        f"\r{done:,} of {count:,} queries, {seconds:.0f} s ",
        end="" if done < count else "\n",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
