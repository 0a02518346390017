"""Changed models, asked of the checker and of onnxruntime (more of them: benchmarks/fuzz_checker.py).

A checker that reads models in another way again, as it once did, is noticed.
"""

from __future__ import annotations

import types
from collections import Counter
from pathlib import Path

import pytest
from fuzzing.differential import answer, answers, model_and_pixels

from shakeproof.checker import operators, question, wire

COUNT = 400
# What a line of the checker is, what it was or might be by mistake, and a model that shows it, by its seed.
# A seed is found by `first_contradiction` below, if the models change.
MISTAKES = {
    "unknown fields are skipped": (
        wire,
        (
            ('.get(key >> 3, ("", ""))', '.get(key >> 3, ("skipped", "bytes", "*"))'),
            ("wire == WIRE.get(kind, 2) or", "name == 'skipped' or wire == WIRE.get(kind, 2) or"),
        ),
        0,
    ),
    "any wire type": (wire, (("fits = wire == WIRE.get(kind, 2) or", "fits = wire in (0, 2) or"),), 0),
    "the first of two": (wire, (("require(several or name not in found", "require(True"),), 0),
    "two constants of one name": (wire, (("and len(constants) == len(tensors)", ""),), 0),
    "entries twice": (wire, (('held in (["raw_data"], [own])', "True"),), 0),
    "allowzero is ignored": (operators, (("size or (0 if allowzero else x.shape[i])", "size or x.shape[i]"),), 0),
    "whole numbers without a width": (
        operators,
        (
            ("require((made == made.astype(kind)).all()", "require(True"),
            ("return made.astype(kind)", "return made"),
        ),
        0,
    ),
    "any flag": (operators, (("read[name] in (0, 1) for name", "True for name"),), 0),
    "shapes that are stated wrongly": (operators, (("require(right, f", "require(True, f"),), 0),
}  # fmt: skip


def break_the_checker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, changes, _ = MISTAKES[name]
    source = Path(module.__file__ or "").read_text()
    for right, wrong in changes:
        assert source.count(right) == 1, right
        source = source.replace(right, wrong)
    broken = types.ModuleType("broken")
    exec(compile(source, "broken", "exec"), broken.__dict__)
    if module is wire:
        for shared in ("Refused", "Unknown", "require"):
            setattr(broken, shared, getattr(wire, shared))
        monkeypatch.setattr(question, "read_model", broken.read_model)
    else:
        monkeypatch.setattr(question, "Program", broken.Program)


@pytest.fixture(autouse=True)
def _programs_anew():
    question._program.cache_clear()
    yield
    question._program.cache_clear()


def first_contradiction(seeds: range) -> int | None:
    return next((seed for seed, found in answers(seeds) if found.contradiction), None)


def test_the_checker_reads_models_as_onnxruntime_does():
    found = answers(range(COUNT))
    assert [(seed, own.contradiction) for seed, own in found if own.contradiction] == []
    counts = Counter((own.checker, own.runtime) for _, own in found)
    assert counts["answered", "ran"] > COUNT / 5  # narrow enclosures: these would show a difference
    assert sum(count for (checked, _), count in counts.items() if checked == "refused") > COUNT / 5


@pytest.mark.parametrize("name", MISTAKES)
def test_a_checker_that_reads_otherwise_is_noticed(name, monkeypatch):
    seed = MISTAKES[name][-1]
    assert not answer(*model_and_pixels(seed)).contradiction
    question._program.cache_clear()
    break_the_checker(name, monkeypatch)
    assert answer(*model_and_pixels(seed)).contradiction
