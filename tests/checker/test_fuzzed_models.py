"""Changed models, asked of the checker and of onnxruntime (more of them: benchmarks/fuzz_checker.py).

A checker that reads models in another way again, as it once did, is noticed.
"""

from __future__ import annotations

import types
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from fuzzing.differential import answer, answers, model_and_pixels
from fuzzing.wire_changes import Field, parsed, written
from models import model
from onnx import helper

from shakeproof.checker import operators, question, wire

COUNT = 400


def product(*more: Field, transposed: int = 1) -> tuple[bytes, np.ndarray]:
    """A product with a matrix that is no mirror image of itself, and more fields in its last attribute, transB."""
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Gemm", ["f", "w"], ["y"], transB=transposed)]
    data = model(nodes, (1, 1, 1, 2), {"w": np.array([[0, 3], [0, 0]], np.float32)}).SerializeToString()
    tree = parsed(data, onnx.ModelProto.DESCRIPTOR)
    graph = next(field for field in tree if field.number == 7)
    attribute = [field for field in graph.value if field.number == 1][-1].value[-1].value
    attribute[:] = [field for field in attribute if field.number != 3 or not more] + [*more]
    return written(tree), np.array([1.0, 0.25]).reshape(1, 1, 2)


def flagged() -> tuple[bytes, np.ndarray]:
    """The first size of an array without entries is 2 or 0; a flag says so that is neither 0 nor 1."""
    nodes = [
        helper.make_node("Reshape", ["e", "s"], ["r"], allowzero=2),
        helper.make_node("Shape", ["r"], ["n"]),
        helper.make_node("Gather", ["n", "first"], ["i"]),
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gather", ["f", "i"], ["y"], axis=1),
    ]
    weights = {"e": np.zeros((2, 0), np.float32), "s": np.array([0, 0]), "first": np.array([0])}
    return model(nodes, (1, 1, 1, 3), weights, opset=14).SerializeToString(), np.arange(3.0).reshape(1, 1, 3)


# What a line of the checker is, what it was or might be by mistake, and a model that shows it: a seed of the fuzzer's
# (`first_contradiction` finds another if its models change), or one made for it.
MISTAKES = {
    "unknown fields are skipped": (
        wire,
        (
            ('.get(key >> 3, ("", ""))', '.get(key >> 3, ("skipped", "bytes", "*"))'),
            ("wire == WIRE.get(kind, 2) or", "name == 'skipped' or wire == WIRE.get(kind, 2) or"),
        ),
        2369,
    ),
    "any wire type": (
        wire,
        (("fits = wire == WIRE.get(kind, 2) or", "fits = wire in (0, 2) or"),),
        product(Field(3, 2, b"\1")),
    ),
    "the first of two": (
        wire,
        (("require(several or name not in fields", "require(True"),),
        product(Field(3, 0, 1), Field(3, 0, 0)),
    ),
    "two constants of one name": (wire, (("and len(constants) == len(tensors)", ""),), 3718),
    "entries twice": (wire, (('held in (["raw_data"], [field])', "True"),), 232),
    "allowzero is ignored": (operators, (("size or (0 if allowzero else x.shape[i])", "size or x.shape[i]"),), 55),
    "whole numbers without a width": (
        operators,
        (
            ("require((result == result.astype(kind)).all()", "require(True"),
            ("return result.astype(kind)", "return result"),
        ),
        72,
    ),
    "any flag": (operators, (("read[name] in (0, 1) for name", "True for name"),), flagged()),
    "shapes that are stated wrongly": (operators, (("require(right, f", "require(True, f"),), 569),
}


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
    shown = MISTAKES[name][-1]
    data, pixels = model_and_pixels(shown) if isinstance(shown, int) else shown
    assert not answer(data, pixels).contradiction
    question._program.cache_clear()
    break_the_checker(name, monkeypatch)
    assert answer(data, pixels).contradiction


def test_models_made_for_it_are_plain_without_it():
    assert answer(*product()).runtime == answer(*product(transposed=0)).runtime == "ran"
