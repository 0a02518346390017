"""Ask a tool about a case, and compare its answers with the truth."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .families import FAMILIES, Case
from .truth import Curve, Truth

IRRATIONAL = 1e-12  # how close to a tie, beside the scores, a truth may be if its kernel is irrational
TELLABLE = 1e-6  # a margin that any tool should tell from zero, beside the scores
Answer = dict[str, Any]
Tool = Callable[[Sequence[str]], tuple[str, str]]  # arguments -> what it printed, what it complained


@dataclass(frozen=True)
class Asked:
    """A query: what a tool needs to know, and what is true."""

    image: int
    perturbation: str
    label: int
    truth: Truth


@dataclass
class Tally:
    """How a tool did. A wrong answer contradicts the real network; `only_in_float32` do so, but were replayed."""

    queries: int = 0
    truly_safe: int = 0
    safe: int = 0
    unsafe: int = 0
    undecided: int = 0
    errors: int = 0
    wrong_safe: int = 0
    wrong_unsafe: int = 0
    only_in_float32: int = 0
    wrong_critical: int = 0
    wrong_critical_far: int = 0
    wrong_certified: int = 0
    wrong_profile: int = 0
    tellable: int = 0
    tellable_decided: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def counts(self) -> dict[str, Any]:
        return {**vars(self), "reasons": dict(self.reasons)}

    @property
    def wrong(self) -> int:
        return self.wrong_safe + self.wrong_unsafe + self.wrong_critical + self.wrong_certified + self.wrong_profile


def made(seed: int, number: int) -> tuple[str, Case]:
    """Case `number` of a seed: the families take turns."""
    name = list(FAMILIES)[number % len(FAMILIES)]
    return name, FAMILIES[name](np.random.default_rng([seed, number]))


def labelled(case: Case) -> tuple[list[int], list[Curve]]:
    """A label for each image, and the exact curve of each query, images first."""
    curves = [Curve(case.model, path) for path in case.scene.paths]
    labels = []
    for first in range(0, len(curves), len(case.scene.perturbations)):
        scores = curves[first].scores(Fraction(0))
        winner = scores.index(max(scores))
        holds = case.label is not None and scores[case.label] == scores[winner]
        labels.append(case.label if holds and case.label is not None else winner)
    return labels, curves


class Suite:
    """Cases as files in a folder, asked one network at a time."""

    def __init__(self, tool: Tool, folder: Path, options: Sequence[str] = (), ask: str = "both") -> None:
        self.tool, self.folder, self.options, self.how = tool, folder, list(options), ask

    def run(self, name: str, case: Case, number: int) -> tuple[Tally, list[dict[str, Any]]]:
        """Ask everything about one network: the count of answers, and what was wrong."""
        labels, curves = labelled(case)
        model, archive = self.written(case, labels)
        how = ("verify", "profile")[number // len(FAMILIES) % 2] if self.how == "both" else self.how
        arguments = [how, str(model), *(f"{archive}@{i}" for i in range(len(labels)))]
        for text in case.scene.perturbations:
            arguments += ["-p", text]
        reach = "--strength" if how == "verify" else "--max-strength"
        out, complaint = self.tool([*arguments, reach, repr(case.scene.strength), "--json", "--quiet", *self.options])
        answers = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        texts = case.scene.perturbations
        asked = [(image, text) for image in range(len(labels)) for text in texts]
        tally, wrong = Tally(), list[dict[str, Any]]()
        if len(answers) != len(asked):
            reason = complaint.replace(str(model), model.name).strip()[-240:] or "no answer"
            answers = [{"status": "error", "reason": reason}] * len(asked)
        for (image, text), curve, answer in zip(asked, curves, answers, strict=True):
            query = Asked(image, text, labels[image], curve.truth(labels[image]))
            if case.irrational and query.truth.relative < IRRATIONAL:
                continue
            one = judged(query, curve, answer, Fraction(IRRATIONAL) if case.irrational else Fraction(0))
            tally += one
            if one.wrong or one.errors:
                wrong.append({"family": name, "network": number, **told(query), "answer": answer})
        return tally, wrong

    def written(self, case: Case, labels: Sequence[int]) -> tuple[Path, Path]:
        self.folder.mkdir(parents=True, exist_ok=True)
        model, archive = self.folder / "network.onnx", self.folder / "images.npz"
        onnx.save(case.model, model)
        np.savez(archive, x=np.stack(case.scene.images), y=np.array(labels))
        return model, archive


def told(query: Asked) -> dict[str, Any]:
    truth = query.truth
    return {
        "image": query.image,
        "perturbation": query.perturbation,
        "label": query.label,
        "margin": float(truth.margin),
        "critical": None if truth.critical is None else float(truth.critical),
        "scale": float(truth.scale),
    }


def judged(query: Asked, curve: Curve, answer: Answer, slack: Fraction = Fraction(0)) -> Tally:
    """What one answer is worth; the truth is known up to a share `slack` of the scores."""
    truth, status = query.truth, answer["status"]
    lost = status in ("unsafe", "misclassified")
    replayed = lost and bool((answer.get("counterexample") or {}).get("replayed"))
    contradicts = (lost and truth.safe) or (status == "misclassified" and truth.wins_at_zero)
    believed = status != "error" and not (contradicts and replayed)  # what float32 does has other critical strengths
    tellable = truth.relative > TELLABLE
    return Tally(
        queries=1,
        truly_safe=int(truth.safe),
        safe=int(status == "safe"),
        unsafe=int(lost),
        undecided=int(status == "undecided"),
        errors=int(status == "error"),
        wrong_safe=int(status == "safe" and not truth.safe),
        wrong_unsafe=int(contradicts and not replayed),
        only_in_float32=int(contradicts and replayed),
        wrong_critical=int(believed and not bracket_holds(answer, truth, Fraction(0))),
        wrong_critical_far=int(believed and not bracket_holds(answer, truth, Fraction(1, 10**9))),
        wrong_certified=int(certified_too_far(answer, truth)),
        wrong_profile=int(status != "error" and not profile_holds(answer, curve, slack)),
        tellable=int(tellable),
        tellable_decided=int(tellable and (status == "safe" or lost)),
        reasons=Counter([without_numbers(answer.get("reason"))] if status in ("undecided", "error") else []),
    )


def without_numbers(reason: object) -> str:
    """So that reasons of one kind are counted as one."""
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "_", str(reason))


def bracket_holds(answer: Answer, truth: Truth, slack: Fraction) -> bool:
    """Whether the label first loses in [lo, hi], give or take; that it never does, only a safe answer says."""
    bracket = answer.get("critical_strength")
    if bracket is None:
        return True
    low, high = map(Fraction, bracket)
    return truth.critical is not None and low - slack <= truth.critical <= high + slack


def certified_too_far(answer: Answer, truth: Truth) -> bool:
    """The label must win on all of [0, certified]; 0 says nothing."""
    certified = Fraction(answer.get("certified_strength") or 0)
    return certified > 0 and truth.critical is not None and certified >= truth.critical


def profile_holds(answer: Answer, curve: Curve, slack: Fraction) -> bool:
    """On each interval that is claimed to be proved, its class leads all others.

    Along a path with an irrational kernel the truth is known up to a share of the scores.
    """

    def leads(scores: list[Fraction], winner: int, ties: bool) -> bool:
        rival = max(score for number, score in enumerate(scores) if number != winner)
        lead = scores[winner] - rival + slack * max(map(abs, scores))
        return lead >= 0 if ties or slack else lead > 0

    for interval in answer.get("profile") or []:
        if interval.get("proved", True):
            ends = (min(Fraction(interval[side]), curve.cuts[-1]) for side in ("from", "to"))
            for ties, rows in enumerate(curve.between(*ends)):
                if not all(leads(scores, interval["class"], bool(ties)) for scores in rows):
                    return False
    return True


def command(words: str) -> Tool:
    """A tool that is a command, one process for each network."""

    def tool(arguments: Sequence[str]) -> tuple[str, str]:
        done = subprocess.run([*shlex.split(words), *arguments], capture_output=True, text=True, check=False)
        return done.stdout, done.stderr

    return tool


def in_process() -> Tool:
    """The package's own command, called here: the same code without the seconds that it takes to start."""
    from shakeproof.cli import main

    def tool(arguments: Sequence[str]) -> tuple[str, str]:
        out, complaint, before = io.StringIO(), io.StringIO(), sys.argv
        sys.argv = ["shakeproof", *arguments]
        try:
            with redirect_stdout(out), redirect_stderr(complaint):
                main()
        except SystemExit:
            pass
        finally:
            sys.argv = before
        return out.getvalue(), complaint.getvalue()

    return tool
