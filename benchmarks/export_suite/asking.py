"""Asks the command about a file, and the file's own runtime at many strengths; do they agree?"""

from __future__ import annotations

import csv
import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from soundness_suite.asking import in_process

from .runtime import PERTURBATION, blurred, runtime

SAMPLES = 301
NEAR = 1e-6  # strengths this close to a flip, and leads this small beside the scores, are rounding's to decide
GRACE = 60.0  # seconds beyond the timeout, for start and loading, after which a process is ended
# What no method can analyse, and must say so in a line.
REFUSED = ("int8_qdq", "optimised", "boosted_trees")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str
    exporter: str
    loads: bool
    method: str
    status: str
    critical: float | None
    certified: float
    pieces: int
    seconds: float
    agree: int
    sampled: int
    said: str

    @property
    def contradicted(self) -> bool:
        return self.agree < self.sampled

    @property
    def decided(self) -> bool:
        return self.status in ("safe", "unsafe", "misclassified")

    @property
    def expected(self) -> bool:
        """Whether it is as good as can be: decided, or a refusal where that is the right answer."""
        return self.decided or (not self.loads and self.model in REFUSED)

    def line(self) -> str:
        found = f"{self.method:<6} {self.status:<9}" if self.loads else f"{'refused':<16}"
        agreement = f"{self.agree}/{self.sampled}" if self.sampled else "-"
        wrong = "  CONTRADICTED" if self.contradicted else ""
        return f"{self.model:<18} {self.exporter:<19} {found} {self.seconds:6.1f} s {agreement:>8}  {self.said}{wrong}"


def rows(folder: Path, only: str, timeout: float) -> Iterator[Row]:
    import shakeproof.analysis
    import shakeproof.cli  # noqa: F401  imported once, here; every question is then a fork of this process

    for path in sorted(folder.glob("*@*.onnx")):
        if only in path.name and path.with_suffix(".npy").exists():
            model, exporter = path.stem.split("@")
            yield asked(path, model, exporter, timeout)


def asked(path: Path, model: str, exporter: str, timeout: float) -> Row:
    """One file's row: the answer from a process of its own, which is ended if it hangs."""
    started = time.perf_counter()
    answer, complaint = in_child(path, timeout)
    seconds = time.perf_counter() - started
    if answer is None:
        return Row(model, exporter, False, "", "", None, 0.0, 0, seconds, 0, 0, complaint.strip())
    agree, sampled = agreement(path, answer)
    critical = answer["critical_strength"]
    return Row(
        *(model, exporter, True, answer["method"], answer["status"], critical and critical[1]),
        *(answer["certified_strength"], answer["pieces"], seconds, agree, sampled, answer["reason"] or ""),
    )


def in_child(path: Path, timeout: float) -> tuple[dict[str, Any] | None, str]:
    """The command's answer in a forked process: (JSON, complaint)."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=ask, args=(theirs, path, timeout))
    child.start()
    theirs.close()
    try:
        out, complaint = ours.recv() if ours.poll(timeout + GRACE) else ("", f"no answer in {timeout + GRACE:g} s")
    except EOFError:
        out, complaint = "", "the process died"
    child.kill()
    child.join()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return (json.loads(lines[0]) if lines else None), complaint.replace(f"{path}: ", "").replace("shakeproof: ", "")


def ask(connection: Connection, path: Path, timeout: float) -> None:
    options = ["--json", "--quiet", "--threads", "1", "--timeout", str(timeout)]
    connection.send(in_process()(["profile", str(path), str(path.with_suffix(".npy")), "-p", PERTURBATION, *options]))


def agreement(path: Path, answer: dict[str, Any]) -> tuple[int, int]:
    """At how many of the sampled strengths the runtime's class is the answer's, and how many the answer speaks of."""
    model, picture = runtime(path), np.load(path.with_suffix(".npy"))
    agree = sampled = 0
    for z in np.random.default_rng(0).uniform(0, answer["strength"], SAMPLES):
        claimed = claim(answer, float(z))
        if claimed is None:
            continue
        winner, lead = model.winner(blurred(picture, float(z)))
        if lead > NEAR:
            agree, sampled = agree + (winner == claimed), sampled + 1
    return agree, sampled


def claim(answer: dict[str, Any], z: float) -> int | None:
    """The class that an answer gives at a strength; None where it says nothing, or next to a flip."""
    for part in answer["profile"] or ():
        if part["from"] + NEAR < z < part["to"] - NEAR:
            return int(part["class"])
    return int(answer["label"]) if z < answer["certified_strength"] - NEAR else None


def summary(found: Sequence[Row]) -> str:
    compared = sum(row.sampled > 0 for row in found)
    return (
        f"{len(found)} exports by {len({row.exporter for row in found})} exporters:"
        f" {sum(row.loads for row in found)} load, {sum(row.decided for row in found)} are decided,"
        f" {sum(not row.loads and row.expected for row in found)} refused as they should be;"
        f" {compared - sum(row.contradicted for row in found)} of {compared} agree with their runtime"
        f" ({sum(row.sampled for row in found):,} samples); {sum(row.seconds for row in found):.0f} s"
    )


def read_csv(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return [
            Row(
                *(row["model"], row["exporter"], row["loads"] == "True", row["method"], row["status"]),
                float(row["critical"]) if row["critical"] else None,
                *(float(row["certified"]), int(row["pieces"]), float(row["seconds"])),
                *(int(row["agree"]), int(row["sampled"]), row["said"]),
            )
            for row in csv.DictReader(file)
        ]


def write_csv(path: Path, found: Sequence[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, asdict(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in found)
