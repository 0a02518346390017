"""The reader and the checker have rules of their own for constants and for float32: they must decide alike."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from certificates import question
from models import model
from onnx import TensorProto, helper
from test_checked_operators import CASES, built

from shakeproof import checker
from shakeproof.analysis import arithmetics
from shakeproof.checker import constants, operators
from shakeproof.model import onnx_constants
from shakeproof.model.onnx_reader import read

Exact = np.ndarray[Any, Any]  # of fractions


def fractions(array: np.ndarray) -> Exact:
    return np.array([Fraction(float(entry)) for entry in array.ravel()], dtype=object).reshape(array.shape)


class Expression:
    """Random nodes on constants of one type, two to the four entries that are added to a picture; and their truth."""

    def __init__(self, seed: int) -> None:
        self.random, self.nodes, self.weights = np.random.default_rng(seed), [], {}
        self.is_double = self.random.random() < 0.3
        self.values: dict[str, tuple[Exact, bool]] = {}  # and whether it was computed
        for name in ("p", "q"):
            self.weights[name] = self.numbers()
            self.values[name] = fractions(self.weights[name]), False
        self.kinds: list[str] = []
        self.rounding_casts = 0
        for _ in range(int(self.random.integers(1, 5))):
            self.grow()
        self.last = list(self.values)[-1]
        if self.is_double:
            self.cast(self.last, TensorProto.FLOAT)
            self.last = list(self.values)[-1]
        self.truth = self.values[self.last][0]

    def numbers(self) -> np.ndarray:
        """Few digits, many digits, or sizes far apart."""
        made = self.random.normal(size=4)
        kind = self.random.integers(3)
        if kind == 0:
            made = np.round(8 * made) / 8 + (np.abs(made) < 0.01)
        elif kind == 1:
            made = made * 2.0 ** self.random.integers(-40, 40, 4)
        made = np.where(made == 0, 1.0, made)
        return made if self.is_double else made.astype(np.float32)

    def grow(self) -> None:
        first, second = list(self.values)[-1], str(self.random.choice(list(self.values)))  # no node is in vain
        (x, left), (y, right) = self.values[first], self.values[second]
        computed = left or right
        kind = str(self.random.choice(["Add", "Sub", "Mul", "Div", "Sum", "Neg", "Gather", "Slice", "Concat", "Cast"]))
        if kind == "Cast":
            self.cast(first, TensorProto.DOUBLE if self.is_double else TensorProto.FLOAT)
        elif kind == "Neg":
            self.put(kind, [first], -x, left)
        elif kind == "Gather":
            self.weights["i"] = np.array([3, 1, 0, -1])
            self.put(kind, [first, "i"], x[[3, 1, 0, -1]], left)
        elif kind == "Slice":
            self.weights |= {"s": np.array([-1]), "e": np.array([-9]), "a": np.array([0]), "t": np.array([-1])}
            self.put(kind, [first, "s", "e", "a", "t"], x[::-1], left)
        elif kind == "Concat":
            self.put("Concat", [first, second], np.concatenate([x, y]), computed, axis=0)
            self.weights |= {"z": np.array([2]), "n": np.array([6])}
            joined = self.values.pop(self.name)[0]
            self.put("Slice", [self.name, "z", "n"], joined[2:6], computed)
        elif kind == "Div" and any(entry == 0 for entry in y):
            return
        else:
            rule = {"Add": np.add, "Sum": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[kind]
            self.put(kind, [first, second], rule(x, y), True)

    def cast(self, name: str, to: int) -> None:
        """A number of the file is rounded; a computed one is not."""
        exact, computed = self.values[name]
        dtype = np.float32 if to == TensorProto.FLOAT else np.float64
        with np.errstate(over="ignore"):
            rounded = np.array([float(entry) for entry in exact]).astype(dtype)
        self.rounding_casts += not np.isfinite(rounded).all() or bool((fractions(rounded) != exact).any())
        self.put("Cast", [name], exact if computed else fractions(rounded), computed, to=to)

    def put(self, kind: str, inputs: list[str], value: Exact, computed: bool, **attributes: Any) -> None:
        self.name = f"c{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [self.name], **attributes))
        self.values[self.name] = value, computed
        self.kinds.append(kind)

    @property
    def proto(self) -> onnx.ModelProto:
        rest = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Add", ["f", self.last], ["y"])]
        return model([*self.nodes, *rest], (1, 1, 2, 2), self.weights)


def by_reader(proto: onnx.ModelProto) -> np.ndarray | None:
    """The constant that is added, or None if the file is refused."""
    import torch

    graph = read(proto, "net").graph
    return None if graph is None else graph.run(torch.zeros(1, *graph.input_shape, dtype=torch.float64))[0].numpy()


def by_checker(proto: onnx.ModelProto) -> np.ndarray | None:
    try:
        scores = question(proto, np.zeros((1, 2, 2)), "identity").scores(np.zeros((1, 1)), np.zeros((1, 1)))
    except checker.Unknown:
        return None
    return np.asarray(scores.lines[0, 0].ravel())


def disagreements(seeds: range) -> tuple[list[str], int, int]:
    """What is wrong, and how many were accepted, and refused, by both."""
    wrong, accepted, refused = list[str](), 0, 0
    for seed in seeds:
        expression = Expression(seed)
        ours, theirs = by_reader(expression.proto), by_checker(expression.proto)
        for who, found in (("reader", ours), ("checker", theirs)):
            if found is not None and not (fractions(found) == expression.truth).all():
                wrong.append(f"{seed}: the {who} computes {expression.kinds} otherwise")
        if theirs is not None and ours is None:
            wrong.append(f"{seed}: the checker accepts {expression.kinds}")
        if ours is not None and theirs is None and not expression.rounding_casts:
            wrong.append(f"{seed}: the checker refuses {expression.kinds}")
        accepted += ours is not None and theirs is not None
        refused += ours is None and theirs is None
    return wrong, accepted, refused


def test_constants_are_the_same_numbers_or_refused():
    wrong, accepted, refused = disagreements(range(600))
    assert wrong == []
    assert accepted > 150
    assert refused > 100


@pytest.mark.parametrize("broken", ["reader", "checker"])
def test_a_rule_that_rounds_is_noticed(broken, monkeypatch):
    """A negative control: either rule without its check of exactness."""
    if broken == "reader":
        added = onnx_constants.added
        loose = onnx_constants._of(lambda x, y: (added(x, y)[0], np.ones((), bool)), 2)
        monkeypatch.setattr(onnx_constants, "ARITHMETIC", {**onnx_constants.ARITHMETIC, "Add": loose})
    else:
        monkeypatch.setattr(constants, "RULES", {**constants.RULES, "Add": lambda x, y: x + y})
    assert disagreements(range(200))[0]


WHOLE = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": lambda x, y: np.asarray([int(Fraction(int(a), int(b))) for a, b in zip(x, y, strict=True)]),
}


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_whole_numbers_are_the_runtimes_or_refused(kind, dtype):
    """In their own width, where onnxruntime has the operator for it; overflow is refused."""
    random, limit = np.random.default_rng(0), np.iinfo(dtype).max
    for size in (10, limit):
        given = {n: random.integers(max(-size, -limit), size, 4).astype(dtype) for n in "pq"}
        given["q"][given["q"] == 0] = 1
        nodes = [
            helper.make_node(kind, ["p", "q"], ["c"]),
            helper.make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT),
            helper.make_node("Flatten", ["x"], ["f"]),
            helper.make_node("Add", ["f", "d"], ["y"]),
        ]
        proto = model(nodes, (1, 1, 2, 2), given, opset=14)
        exact = WHOLE[kind](*(w.astype(object) for w in given.values()))
        fits = all(np.iinfo(dtype).min <= int(entry) <= limit for entry in exact)
        ours, theirs = by_reader(proto), by_checker(proto)
        assert (ours is not None) == fits
        if ours is not None:
            rounded = np.array([np.float32(int(entry)) for entry in exact])
            assert (ours == rounded).all()
            try:
                runtime = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
            except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
                continue  # not for such short numbers
            assert (runtime.run(None, {"x": np.zeros((1, 1, 2, 2), np.float32)})[0] == rounded).all()
        assert theirs is None or (ours is not None and (theirs == ours).all())


# -- float32 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CASES, "softmax", "computed constant"])
def test_float32_covers_the_same_operators(name):
    """What the prover refuses to speak of, the checker refuses, and the other way round."""
    if name == "softmax":
        nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Softmax", ["f"], ["y"])]
        proto = model(nodes, (1, 1, 6, 6))
    elif name == "computed constant":
        weights = {"p": np.float32([0.5]), "q": np.float32([0.25])}
        nodes = [helper.make_node("Add", ["p", "q"], ["w"]), helper.make_node("Mul", ["a", "w"], ["b"])]
        proto = built(nodes, weights, 13)
    else:
        operator, weights, opset = CASES[name]
        proto = built([operator], weights, opset)
    reading = read(proto, "net")
    assert reading.graph is not None
    covered = "float32" in arithmetics(reading.graph, reading.dropped)
    pixels = np.random.default_rng(0).normal(size=(1, 6, 6))
    assert question(proto, pixels, "identity")
    if covered:
        assert question(proto, pixels, "identity", arithmetic="float32")
        return
    assert name in ("batch-norm", "softmax", "computed constant")
    with pytest.raises(checker.Unknown, match="in float32: no standard says how runtimes round it"):
        question(proto, pixels, "identity", arithmetic="float32")


def test_the_allow_list_names_rules():
    assert set(operators.RULES) > operators.IN_FLOAT32
