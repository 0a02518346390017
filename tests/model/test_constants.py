"""Constants that a file computes are the numbers that it means, or the file is refused by the node's name."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import model
from onnx import TensorProto, helper, numpy_helper

import shakeproof as sp
from shakeproof.errors import UnsupportedNetworkError
from shakeproof.model import onnx_constants
from shakeproof.model.onnx_reader import FOLD, Reading, read
from shakeproof.operators import Linear, Scale

THIRD, TENTH = np.float64([1 / 3]), np.float64([0.1])


def used(*nodes: onnx.NodeProto, by: str = "Add", opset: int = 13, **weights: np.ndarray) -> onnx.ModelProto:
    """A network that adds a constant `c`, or multiplies by it."""
    flat = helper.make_node("Flatten", ["x"], ["f"])
    return model([*nodes, flat, helper.make_node(by, ["f", "c"], ["y"])], (1, 1, 1, 2), weights, opset=opset)


def reading(*nodes: onnx.NodeProto, by: str = "Add", opset: int = 13, **weights: np.ndarray) -> Reading:
    return read(used(*nodes, by=by, opset=opset, **weights), "net")


def constant(found: Reading) -> list[float]:
    """What is added to an input of zeros."""
    assert found.graph is not None, found.refusal
    return found.graph.run(torch.zeros(1, 1, 1, 1, 2, dtype=torch.float64))[0].tolist()


# -- floats ------------------------------------------------------------------------------------------------------------

# By operator: inputs whose result is exact, and it; and inputs whose result float64 would have to round.
ARITHMETIC = {
    "Add": (([0.5], [2.0**-40]), 0.5 + 2.0**-40, ([1.0], [2.0**-60])),
    "Sub": (([0.5], [0.375]), 0.125, ([1.0], [1e-20])),
    "Sum": (([0.5], [0.25], [4.0]), 4.75, ([1.0], [2.0**-60], [-1.0])),
    "Mul": (([0.1], [4.0]), 0.4, (TENTH, TENTH)),
    "Div": (([0.3], [4.0]), 0.075, ([1.0], [3.0])),
    "Sqrt": (([6.25],), 2.5, ([2.0],)),
    "Reciprocal": (([0.125],), 8.0, ([3.0],)),
    "Pow": (([1.5], [2.0]), 2.25, (TENTH, [2.0])),
}


@pytest.mark.parametrize("kind", ARITHMETIC)
def test_an_exact_result_is_taken_and_another_refused_by_name(kind):
    exact, result, rounded = ARITHMETIC[kind]
    for inputs, accepted in ((exact, True), (rounded, False)):
        weights = {f"w{place}": np.asarray(entries, np.float64) for place, entries in enumerate(inputs)}
        found = reading(
            helper.make_node(kind, list(weights), ["d"], name="culprit"),
            helper.make_node("Cast", ["d"], ["c"], to=TensorProto.FLOAT),
            **weights,
        )
        if accepted:
            assert constant(found) == [result] * 2
        else:
            assert found.graph is None
            assert kind in found.refusal or "Add (y)" in found.refusal  # who computes it, or who reads it
            assert "float64 would have to round a constant" in found.refusal
            assert found.refusal.endswith(FOLD)
            assert "\n" not in found.refusal


@pytest.mark.parametrize("kind", ["Exp", "Erf", "Log", "Tanh", "Sigmoid", "Softmax", "ReduceMean", "MatMul", "CumSum"])
def test_what_is_never_exact_is_refused_by_name(kind):
    """Also if it could be, as 0 in a sum: nothing here looks."""
    weights = {"p": np.float32([[0.5, 0.25]])}
    if kind in ("MatMul", "CumSum"):
        weights["q"] = np.float32([[1.0, 0.0], [0.0, 1.0]]) if kind == "MatMul" else np.array(0)
    found = reading(helper.make_node(kind, list(weights), ["c"], name="culprit"), **weights)
    assert found.graph is None
    assert f"{kind} (culprit): float64 would have to round" in found.refusal


numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.builds(lambda whole, shift: whole * 2.0**shift, st.integers(-(2**26), 2**26), st.integers(-1060, 900)),
    st.builds(lambda whole, shift: whole * 2.0**shift, st.integers(-(2**53), 2**53), st.integers(-40, 40)),
)


@given(numbers, numbers)
@settings(max_examples=300)
def test_exactness_is_what_fractions_say(x, y):
    """Never exact where it is not; and where it is, exact, unless digits are lost below float64's normal numbers."""
    first, second = np.array([x]), np.array([y])
    rules = {"added": Fraction(x) + Fraction(y), "multiplied": Fraction(x) * Fraction(y)}
    if y:
        rules["divided"] = Fraction(x) / Fraction(y)
    with np.errstate(all="ignore"):
        for name, truth in rules.items():
            made, is_exact = getattr(onnx_constants, name)(first, second)
            is_right = bool(np.isfinite(made[0])) and Fraction(float(made[0])) == truth
            assert not is_exact[0] or is_right, name
            is_normal = all(size == 0 or 2.0**-900 < abs(size) < 2.0**900 for size in (truth, x, y))
            assert is_exact[0] or not (is_right and is_normal), name
        made, is_exact = onnx_constants.root(np.abs(first))
        assert not is_exact[0] or Fraction(float(made[0])) ** 2 == abs(Fraction(x))


@given(st.integers(1, 2**26))
@settings(max_examples=200)
def test_roots_of_squares_are_exact_and_others_are_not(whole):
    for square in (whole * whole, whole):
        _, is_exact = onnx_constants.root(np.array([float(square)]))
        assert is_exact[0] == (isqrt(square) ** 2 == square)


def test_weights_that_float64_makes_others_of(tmp_path):
    """(A + c) - c is A; float64 makes something else of it, and the label wins by that."""
    factor, large = np.float32([-0.8]), np.float32([2.0**30])
    gap = float(factor[0]) + 2.0**30 - 2.0**30 - float(factor[0])
    assert gap > 0
    nodes = [
        helper.make_node("Add", ["A", "large"], ["sum"], name="culprit"),
        helper.make_node("Sub", ["sum", "large"], ["w"]),
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Slice", ["f", "from", "to", "axis"], ["p"]),
        helper.make_node("Mul", ["p", "w"], ["pw"]),
        helper.make_node("Concat", ["pw", "p"], ["both"], axis=1),
        helper.make_node("Gemm", ["both", "W", "b"], ["y"], transB=1),
    ]
    scale = 2.0**20
    weights = {
        "A": factor,
        "large": large,
        "from": np.array([4]),
        "to": np.array([5]),
        "axis": np.array([1]),
        "W": np.float32([[scale, -scale * factor[0]], [0, 0]]),
        "b": np.float32([-gap * scale / 2, 0]),
    }
    onnx.save(model(nodes, (1, 1, 3, 3), weights), tmp_path / "net.onnx")
    with pytest.raises(UnsupportedNetworkError, match=r"Add \(culprit\): float64 would have to round"):
        sp.load(tmp_path / "net.onnx")


def test_the_hint_helps(tmp_path, monkeypatch):
    """The lines in the message make a file of the same network that states its weights."""
    nodes = [
        helper.make_node("Exp", ["s"], ["e"]),
        helper.make_node("Div", ["w", "e"], ["v"]),
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]
    weights = {"s": np.float32(0.3), "w": np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)}
    monkeypatch.chdir(tmp_path)
    onnx.save(model(nodes, (1, 1, 2, 2), weights), "model.onnx")
    with pytest.raises(UnsupportedNetworkError) as refused:
        sp.load("model.onnx")
    assert FOLD in str(refused.value)
    exec(
        FOLD.split("states its weights: ")[1], {name: getattr(onnxruntime, name) for name in dir(onnxruntime)}
    )  # as a user would
    network = sp.load("folded.onnx")
    x = np.random.default_rng(1).random((5, 1, 2, 2), np.float32)
    runtime = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    theirs = np.concatenate([runtime.run(None, {"x": entry[None]})[0] for entry in x])
    ours = network.scores(torch.from_numpy(x[:, None]).double()).numpy()
    assert ours == pytest.approx(theirs, rel=1e-5)


# -- constants that were rounded, and how often ------------------------------------------------------------------------


def attention_scale(**weights: np.ndarray) -> list[onnx.NodeProto]:
    """sqrt(1 / sqrt(d)), as torch's older exporter writes it into attention."""
    return [
        helper.make_node("Cast", ["d"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Sqrt", ["float"], ["root"]),
        helper.make_node("Div", ["one", "root"], ["inverse"]),
        helper.make_node("Cast", ["inverse"], ["same"], to=TensorProto.FLOAT),
        helper.make_node("Sqrt", ["same"], ["c"]),
    ]


def test_a_rounded_factor_keeps_its_count():
    weights = {"d": np.array([8]), "one": np.float32([1])}
    graph = reading(*attention_scale(), by="Mul", **weights).graph
    (scale,) = [node.operator for node in graph.nodes if isinstance(node.operator, Scale)]
    assert scale.roundings == 3
    exact = 8.0**-0.25
    assert abs(float(scale.factor) - exact) < 3 * 2.0**-53 * exact
    # a cast to float32, as of computed values, rounds nothing
    assert float(scale.factor) != float(np.float32(exact))


def test_a_rounded_divisor_is_rounded_once_more():
    graph = reading(*attention_scale(), by="Div", d=np.array([8]), one=np.float32([1])).graph
    (scale,) = [node.operator for node in graph.nodes if isinstance(node.operator, Scale)]
    assert scale.roundings == 4


@pytest.mark.parametrize("by", ["Add", "Sub", "Pow", "Concat", "PRelu"])
def test_a_rounded_constant_is_a_factor_or_nothing(by):
    found = reading(*attention_scale(), by=by, d=np.array([8]), one=np.float32([1]))
    assert f"{by} (y): reads a constant that was rounded" in found.refusal


def test_rounded_constants_are_not_compared_or_added():
    for kind in ("Less", "Max", "Floor", "Add"):
        more = [helper.make_node(kind, ["c"] if kind == "Floor" else ["c", "one"], ["d2"], name="culprit")]
        found = reading(*attention_scale(), *more, by="Mul", d=np.array([8]), one=np.float32([1]))
        assert found.graph is not None  # nothing needs it
        last = helper.make_node("Mul", ["root", "d2"], ["e"])
        proto = used(*attention_scale(), *more, last, by="Mul", d=np.array([8]), one=np.float32([1]))
        proto.graph.node[-1].input[1] = "e"
        assert f"{kind} (culprit)" in read(proto, "net").refusal


# -- whole numbers, casts, 16 bits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("Div", [-7, 2], -3),  # towards zero
        ("Mod", [-7, 2], 1),  # with the divisor's sign
        ("Mul", [2**31, 2**31], 2**62),
        ("Mul", [2**32, 2**32], None),
        ("Add", [2**63 - 1, 1], None),
        ("Neg", [-(2**63)], None),
        ("Abs", [-(2**63)], None),
        ("Div", [1, 0], None),
        ("Mod", [1, 0], None),
        ("ReduceProd", [[2**20, 2**20]], 2**40),
        ("ReduceProd", [[2**40, 2**40]], None),
        ("ReduceSum", [[2**52, 2**52]], None),
    ],
)
def test_whole_numbers_are_exact_or_refused(kind, given, expected):
    weights = {f"w{place}": np.asarray(entry, np.int64).reshape(-1) for place, entry in enumerate(given)}
    found = reading(
        helper.make_node(kind, list(weights), ["whole"], name="culprit"),
        helper.make_node("Cast", ["whole"], ["c"], to=TensorProto.FLOAT),
        **weights,
    )
    if expected is None:
        assert f"{kind} (culprit)" in found.refusal
    else:
        assert constant(found) == [expected] * 2


def test_a_cast_rounds_the_numbers_of_a_file():
    def cast(value: object, dtype: type, *to: int) -> Reading:
        names = ["v", *(f"d{place}" for place in range(len(to) - 1)), "c"]
        nodes = [
            helper.make_node("Cast", [names[k]], [names[k + 1]], name=f"cast{k}", to=kind) for k, kind in enumerate(to)
        ]
        return reading(*nodes, v=np.asarray([value], dtype))

    single, half, whole = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32
    assert constant(cast(0.1, np.float64, single)) == [float(np.float32(0.1))] * 2
    assert constant(cast(2**24 + 1, np.int64, single)) == [2.0**24] * 2
    assert constant(cast(-2.7, np.float32, whole, single)) == [-2.0] * 2
    assert constant(cast(0.5, np.float32, half, single)) == [0.5] * 2
    for refused in (
        cast(0.1, np.float32, half, single),
        cast(2.0**31, np.float32, whole, single),
        cast(np.inf, np.float32, whole, single),
        cast(2**40, np.int64, whole, single),
        cast(0.5, np.float32, TensorProto.FLOAT8E5M2, single),
        cast(1000.0, np.float32, TensorProto.FLOAT8E4M3FN, single),
    ):
        assert "Cast (cast0)" in refused.refusal


def test_levels_that_float32_would_round_are_refused():
    def dequantised(level: int) -> Reading:
        node = helper.make_node("DequantizeLinear", ["q", "s"], ["c"], name="culprit")
        return reading(node, q=np.array([level], np.int32), s=np.float32(0.5), opset=21)

    assert constant(dequantised(2**24)) == [2.0**23] * 2
    assert "DequantizeLinear (culprit): whole numbers" in dequantised(2**24 + 1).refusal


def test_constants_of_16_bits_in_a_node_are_seen():
    held = numpy_helper.from_array(np.float16([0.1, 0.2]))
    nodes = [
        helper.make_node("Constant", [], ["h"], value=held),
        helper.make_node("Mul", ["h", "h"], ["s"], name="culprit"),
        helper.make_node("Cast", ["s"], ["c"], to=TensorProto.FLOAT),
    ]
    assert "Mul (culprit): computed in 16 bits" in reading(*nodes).refusal


def test_what_moves_entries_may_not_add_them_up():
    nodes = helper.make_node("ScatterElements", ["v", "i", "v"], ["c"], name="culprit", reduction="add")
    found = reading(nodes, v=np.float32([0.1, 0.2]), i=np.array([0, 0]), opset=18)
    assert "ScatterElements (culprit)" in found.refusal


def test_what_chooses_one_of_two_values_does_not_calculate():
    """ONNX's reference adds their difference: of 2^60 and 0.3 it makes 0."""
    found = reading(
        helper.make_node("OneHot", ["i", "depth", "values"], ["c"]),
        i=np.int64(1),
        depth=np.int64(2),
        values=np.float32([2.0**60, 0.3]),
    )
    assert constant(found) == [2.0**60, float(np.float32(0.3))]


def test_a_slice_of_nothing_backwards_is_refused():
    """From before the first entry, onnxruntime takes that entry, and ONNX's reference none."""
    weights = {"s": np.int64([-9]), "e": np.int64([-(2**62)]), "a": np.int64([0]), "t": np.int64([-1])}
    entries = np.float32([3.0, 4.0])
    nodes = [
        helper.make_node("Slice", ["w", *weights], ["first"]),
        helper.make_node("Concat", ["first", "w"], ["both"], axis=0),
        helper.make_node("Gather", ["both", "two"], ["c"]),
    ]
    given = {"w": entries, **weights, "two": np.int64([0, 1])}
    shown = onnxruntime.InferenceSession(used(*nodes, **given).SerializeToString())
    assert shown.run(None, {"x": np.zeros((1, 1, 1, 2), np.float32)})[0].tolist() == [[3.0, 3.0]]
    assert "backwards" in reading(*nodes, **given).refusal
    flat, cut = helper.make_node("Flatten", ["x"], ["f"], axis=3), helper.make_node("Slice", ["f", *weights], ["c"])
    late = model([flat, cut, helper.make_node("Add", ["f", "c"], ["y"])], (1, 1, 1, 2), weights)
    assert "backwards" in read(late, "net").refusal


@pytest.mark.parametrize(("start", "end", "sizes"), [(0, -4, []), (-9, 2, [2, 3]), (1, 9, [3, 4])])
def test_ends_beyond_the_axes_of_a_shape(start, end, sizes):
    nodes = [
        helper.make_node("Shape", ["w"], ["s"], start=start, end=end),
        helper.make_node("Concat", ["s", "more"], ["joined"], axis=0),
        helper.make_node("Gather", ["joined", "two"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["c"], to=TensorProto.FLOAT),
    ]
    given = {"w": np.zeros((2, 3, 4), np.float32), "more": np.int64([7, 8]), "two": np.int64([0, 1])}
    ours = constant(reading(*nodes, opset=15, **given))
    shown = onnxruntime.InferenceSession(used(*nodes, opset=15, **given).SerializeToString())
    assert ours == shown.run(None, {"x": np.zeros((1, 1, 1, 2), np.float32)})[0][0].tolist() == [*sizes, 7, 8][:2]


def test_a_constant_has_one_value():
    """Of two, onnxruntime takes the first, and ONNX's reference one kind before the other."""
    node = helper.make_node("Constant", [], ["c"], value_float=1.0)
    node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.float32(0.0))))
    shown = onnxruntime.InferenceSession(used(node).SerializeToString())
    assert shown.run(None, {"x": np.zeros((1, 1, 1, 2), np.float32)})[0].tolist() == [[1.0, 1.0]]
    assert "Constant (c): 2 values" in reading(node).refusal


def test_einsum_sums_a_constant_exactly_or_not_at_all():
    flat = helper.make_node("Flatten", ["x"], ["f"])
    summed = helper.make_node("Einsum", ["f", "w"], ["y"], equation="bi,ij->bi", name="culprit")
    exact, rounded = np.float32([[0.5, 0.25], [1, 2]]), np.float32([[1, 2.0**-60], [1, 1]])
    assert read(model([flat, summed], (1, 1, 1, 2), {"w": exact}), "net").graph is not None
    assert "Einsum (culprit)" in read(model([flat, summed], (1, 1, 1, 2), {"w": rounded}), "net").refusal


def test_einsum_of_two_operands_with_the_same_axes():
    """Neither may be summed on its own: the sum of products is no product of sums."""
    flat = helper.make_node("Reshape", ["x", "four"], ["f"])
    product = helper.make_node("Einsum", ["f", "w"], ["y"], equation="i,i->")
    weights = {"four": np.array([4]), "w": np.float32([1, 2, 3, 4])}
    graph = read(model([flat, product], (1, 4), weights), "net").graph
    assert graph is not None
    assert graph.run(torch.tensor([[1.0, 1.0, 1.0, 2.0]]).double()).tolist() == [[14.0]]


# -- what is folded into weights ---------------------------------------------------------------------------------------


def test_weights_that_would_vanish_are_not_folded():
    """2^-1060 times 2^-20 is 0 in float64, whatever it is multiplied by later."""
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("MatMul", ["f", "tiny"], ["a"]),
        helper.make_node("Mul", ["a", "small"], ["y"]),
    ]
    weights = {"tiny": np.full((2, 2), 2.0**-1060), "small": np.float64(2.0**-20)}
    proto = model(nodes, (1, 1, 1, 2), weights)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    graph = read(proto, "net").graph
    assert any(isinstance(node.operator, Linear) and bool((node.operator.weight != 0).all()) for node in graph.nodes)
    x = torch.full((1, 1, 1, 1, 2), 2.0**1000, dtype=torch.float64)
    assert graph.run(x)[0].tolist() == [2.0**-79] * 2


@pytest.mark.parametrize("divisor", [0.0, 1e-310])
def test_a_divisor_without_an_inverse_is_refused(divisor):
    found = reading(by="Div", c=np.float64([divisor]))
    assert "Div (y): a factor that is computed, and infinite or too small" in found.refusal
