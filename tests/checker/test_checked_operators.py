"""Every operator: what is enclosed holds the truth in float64, and in float32 whatever onnxruntime makes of it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from certificates import bounds, question
from models import model
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from shakeproof import checker
from shakeproof.checker import enclosure, operators

RANDOM = np.random.default_rng(3)


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def node(kind: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, ["a", *inputs], ["b"], **attributes)


def whole(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


SLICE = (whole(-1, 1), whole(-9, 5), whole(2, 3), whole(-2, 3))
# name: the node from a to b, its constants, opset. a is a picture of 2 x 6 x 6 random numbers about 0.
CASES: dict[str, tuple[onnx.NodeProto, dict[str, np.ndarray], int]] = {
    "abs": (node("Abs"), {}, 13),
    "add": (node("Add", "w"), {"w": numbers(2, 1, 1)}, 13),
    "add-both": (node("Add", "a"), {}, 13),
    "average-pool": (node("AveragePool", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]), {}, 13),
    "average-pool-counted": (node("AveragePool", kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1), {}, 13),
    "average-pool-ceil": (node("AveragePool", kernel_shape=[4, 4], strides=[3, 3], ceil_mode=1), {}, 13),
    "batch-norm": (
        node("BatchNormalization", "s", "o", "m", "v"),
        {"s": numbers(2), "o": numbers(2), "m": numbers(2), "v": numbers(2) ** 2 + 1},
        15,
    ),
    "clip": (node("Clip", "l", "h"), {"l": np.float32(-0.3), "h": np.float32(0.4)}, 13),
    "clip-old": (node("Clip", min=-0.2, max=0.3), {}, 9),
    "clip-high": (node("Clip", "", "h"), {"h": np.float32(0.1)}, 13),
    "concat": (node("Concat", "a", axis=1), {}, 13),
    "conv": (node("Conv", "w", "o", pads=[1, 0, 1, 2], strides=[2, 1]), {"w": numbers(3, 2, 3, 3), "o": numbers(3)}, 9),
    "conv-dilated": (node("Conv", "w", dilations=[2, 1], strides=[2, 2]), {"w": numbers(4, 2, 2, 3)}, 13),
    "conv-groups": (node("Conv", "w", group=2, pads=[1] * 4), {"w": numbers(4, 1, 3, 3)}, 13),
    "conv-valid": (node("Conv", "w", auto_pad="VALID", strides=[2, 2]), {"w": numbers(3, 2, 3, 3)}, 13),
    "conv-transpose": (
        node("ConvTranspose", "w", "o", strides=[2, 3], pads=[1, 0, 0, 2], output_padding=[1, 0]),
        {"w": numbers(2, 3, 3, 2), "o": numbers(3)},
        13,
    ),
    "conv-transpose-groups": (node("ConvTranspose", "w", group=2, dilations=[2, 1]), {"w": numbers(2, 2, 2, 3)}, 13),
    "conv-transpose-gaps": (node("ConvTranspose", "w", strides=[3, 2]), {"w": numbers(2, 1, 1, 2)}, 13),
    "div": (node("Div", "w"), {"w": numbers(2, 6, 6) + 3}, 13),
    "dropout": (node("Dropout"), {}, 13),
    "expand": (node("Expand", "w"), {"w": whole(3, 2, 6, 6)}, 13),
    "flatten": (node("Flatten", axis=2), {}, 13),
    "gather": (node("Gather", "w", axis=2), {"w": whole(0, 3, 3, -1)}, 13),
    "global-average": (node("GlobalAveragePool"), {}, 13),
    "global-max": (node("GlobalMaxPool"), {}, 13),
    "hard-sigmoid": (node("HardSigmoid", alpha=0.7), {}, 13),
    "hard-sigmoid-default": (node("HardSigmoid"), {}, 13),
    "identity": (node("Identity"), {}, 13),
    "leaky-relu": (node("LeakyRelu", alpha=0.3), {}, 13),
    "leaky-relu-default": (node("LeakyRelu"), {}, 13),
    "matmul": (node("MatMul", "w"), {"w": numbers(6, 4)}, 13),
    "max-pool": (node("MaxPool", kernel_shape=[2, 2], strides=[2, 2]), {}, 13),
    "max-pool-padded": (node("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), {}, 13),
    "max-pool-ceil": (node("MaxPool", kernel_shape=[4, 3], strides=[3, 3], ceil_mode=1), {}, 13),
    "max-pool-beyond": (node("MaxPool", kernel_shape=[2, 2], strides=[7, 7], pads=[1] * 4, ceil_mode=1), {}, 13),
    "max-pool-dilated": (node("MaxPool", kernel_shape=[2, 2], dilations=[2, 3]), {}, 13),
    "mul": (node("Mul", "w"), {"w": numbers(1, 2, 1, 6)}, 13),
    "neg": (node("Neg"), {}, 13),
    "pad": (node("Pad", "w", "v"), {"w": whole(0, 0, 1, 2, 0, 1, 0, 1), "v": np.float32(0)}, 13),
    "pad-old": (node("Pad", pads=[0, 0, 1, 2, 0, 1, 0, 1]), {}, 9),
    "prelu": (node("PRelu", "w"), {"w": np.array([-0.5, 1.7], dtype=np.float32).reshape(2, 1, 1)}, 13),
    "reduce-mean": (node("ReduceMean", axes=[1, -1], keepdims=0), {}, 13),
    "reduce-sum": (node("ReduceSum", "w"), {"w": whole(2)}, 13),
    "relu": (node("Relu"), {}, 13),
    "reshape": (node("Reshape", "w"), {"w": whole(0, 3, -1)}, 13),
    "slice": (node("Slice", "l", "h", "i", "t"), dict(zip("lhit", SLICE, strict=True)), 13),
    "slice-old": (node("Slice", starts=[1], ends=[99], axes=[3]), {}, 9),
    "squeeze": (node("Squeeze", "w"), {"w": whole(0)}, 13),
    "sub": (helper.make_node("Sub", ["w", "a"], ["b"]), {"w": numbers(1, 2, 6, 1)}, 13),
    "sum": (node("Sum", "w"), {"w": numbers(6)}, 13),
    "transpose": (node("Transpose", perm=[0, 3, 1, 2]), {}, 13),
    "unsqueeze": (node("Unsqueeze", "w"), {"w": whole(0, 3)}, 13),
}  # fmt: skip


def built(
    middle: list[onnx.NodeProto], weights: dict[str, np.ndarray], opset: int, wide: bool = False, mixed: bool = True
):
    """x - a mix of pixels - a - the nodes - b - y. The mix makes entries that bend, cross and overtake each other."""
    mix = np.random.default_rng(1).normal(size=(2, 1, 3, 3)).astype(np.float32) - np.float32(0.1)
    given = {"mix": mix, **weights} if mixed else weights
    given = {
        name: w.astype(np.float64) if wide and np.asarray(w).dtype == np.float32 else w for name, w in given.items()
    }
    first = (
        helper.make_node("Conv", ["x", "mix"], ["a"], pads=[1] * 4)
        if mixed
        else helper.make_node("Identity", ["x"], ["a"])
    )
    last = helper.make_node("Flatten", ["b"], ["y"], axis=0)
    return model([first, *middle, last], (1, 1, 6, 6), given, opset=opset)


def without_groups(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray]) -> tuple[Any, Any]:
    """The same ConvTranspose with zeros between its groups: ONNX's reference evaluator fails on groups."""
    if nodes[0].op_type != "ConvTranspose":
        return nodes, weights
    options = {a.name: helper.get_attribute_value(a) for a in nodes[0].attribute}
    groups, parts = options.pop("group", 1), weights["w"]
    inputs, outputs = parts.shape[:2]
    dense = np.zeros((inputs, groups, outputs, *parts.shape[2:]), np.float32)
    for channel in range(inputs):
        dense[channel, channel * groups // inputs] = parts[channel]
    wide = dense.reshape(inputs, groups * outputs, *parts.shape[2:])
    return [node("ConvTranspose", *nodes[0].input[1:], **options)], weights | {"w": wide}


def path(pixels: np.ndarray, z: float) -> np.ndarray:
    """x(z) of a 3 x 3 box blur, reflected at the edges, in float64."""
    padded = np.pad(pixels, ((0, 0), (1, 1), (1, 1)), mode="reflect")
    mean = sum(padded[:, i : i + 6, j : j + 6] for i in range(3) for j in range(3)) / 9
    return (1 - z) * pixels + z * mean


def contained(
    middle: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    opset: int = 13,
    seed: int = 0,
    tolerance: float = 1e-12,
) -> float:
    """Check enclosures of points and boxes; gives how wide a box's was, over how far the scores moved."""
    pixels = np.random.default_rng(seed).normal(size=(1, 6, 6)) / 2
    narrow, wide = built(middle, weights, opset), built(*without_groups(middle, weights), opset, wide=True)
    runtime = onnxruntime.InferenceSession(narrow.SerializeToString(), providers=["CPUExecutionProvider"])
    truth = ReferenceEvaluator(wide)
    real = question(narrow, pixels, "box-blur:size=3")
    covered = all(made.op_type in operators.IN_FLOAT32 for made in middle)
    if not covered:
        with pytest.raises(checker.Unknown, match="in float32: no standard says"):
            question(narrow, pixels, "box-blur:size=3", arithmetic="float32")
    single = question(narrow, pixels, "box-blur:size=3", arithmetic="float32") if covered else real
    ratio = 0.0
    for low, high in ((0.0, 0.0), (0.3, 0.3), (0.2, 0.21), (0.1, 0.9)):
        below, above = bounds(real, [low], [high])
        under, over = bounds(single, [low], [high])
        assert (under <= below).all()
        assert (over >= above).all()
        found = []
        for z in np.random.default_rng(1).uniform(low, high, 6):
            x = path(pixels, z)[None]
            exact = truth.run(None, {"x": x})[0].ravel()
            found.append(exact)
            assert (exact >= below - 1e-12).all(), "the truth is below its bound"
            assert (exact <= above + 1e-12).all(), "the truth is above its bound"
            theirs = runtime.run(None, {"x": x.astype(np.float32)})[0].ravel()
            assert not covered or (theirs >= under).all(), "onnxruntime is below the bound for float32"
            assert not covered or (theirs <= over).all(), "onnxruntime is above the bound for float32"
        if low == high:
            assert (above - below).max() < 1e-11
            assert (over - under).max() < 2e-3
        else:
            ratio = max(ratio, float((above - below).max() / np.ptp(found, axis=0).max()))
    return ratio


@pytest.mark.parametrize("name", CASES)
def test_enclosures_hold_the_truth_and_onnxruntime(name):
    operator, weights, opset = CASES[name]
    for seed in range(3):
        contained([operator], weights, opset, seed)


@pytest.mark.parametrize("name", CASES)
def test_norms_alone_hold_them_too(name, monkeypatch):
    """Radii are thrown away at every product, so that the error's 2-norm, and the operator's, is all there is."""
    monkeypatch.setattr(enclosure, "USELESS", -1.0)
    operator, weights, opset = CASES[name]
    contained([operator], weights, opset)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("MaxPool", {"kernel_shape": [3, 3], "pads": [1] * 4}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4}),
        ("ReduceSum", {"axes": [1, 2]}),
        ("Gather", {"axis": 2}),
        ("LeakyRelu", {"alpha": -2.0}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_an_error_grows_by_no_more_than_its_norm_says(kind, options):
    """An error of length 1, wherever it is, moves what an operator makes by no more than the bound of its length."""
    more = [np.array([0, 3, 3, 3])] if kind == "Gather" else []

    def made(centre: np.ndarray, radius: float) -> enclosure.Tube:
        lines = np.stack([centre, 0 * centre])[:, None]
        x = enclosure.Tube(lines, np.full_like(lines[0], radius), np.full(1, radius), False)
        with np.errstate(all="ignore"):
            result: enclosure.Tube = operators.RULES[kind](x, *more, **options)
        return result

    random = np.random.default_rng(0)
    for centre in (np.zeros((1, 2, 6, 6)), random.normal(size=(1, 2, 6, 6))):
        before, grown = made(centre, 1.0), 0.0
        for place in range(72):
            error = np.eye(72)[place].reshape(centre.shape) + 0.1 * random.normal(size=centre.shape)
            error *= random.choice([-1, 1]) / np.linalg.norm(error)
            grown = max(grown, float(np.linalg.norm(made(centre + error, 0.0).lines[0] - before.lines[0])))
        assert grown <= before.norm[0]
        assert before.norm[0] <= 4 * grown


def test_enclosures_in_one_dimension():
    to_signal = helper.make_node("Reshape", ["a", "shape"], ["s"])
    shape = {"shape": whole(1, 4, 18)}
    for operator, weights in (
        (helper.make_node("Conv", ["s", "w"], ["b"], pads=[1, 2], strides=[2], dilations=[2]), {"w": numbers(3, 4, 3)}),
        (helper.make_node("MaxPool", ["s"], ["b"], kernel_shape=[3], strides=[2], pads=[0, 1]), {}),
        (helper.make_node("AveragePool", ["s"], ["b"], kernel_shape=[3], strides=[2]), {}),
    ):
        contained([to_signal, operator], shape | weights)


def test_casts():
    """What the reference implementation of ONNX cannot do in float64: twice the same network, in other words."""
    cast, same = (built([n], {}, 13) for n in (node("Cast", to=TensorProto.FLOAT), node("Identity")))
    pixels = np.random.default_rng(0).normal(size=(1, 6, 6))
    ours, others = (bounds(question(m, pixels, "box-blur:size=3"), [0.1], [0.9]) for m in (cast, same))
    assert np.abs(np.subtract(ours, others)).max() < 1e-14


def test_values_side_by_side():
    other = helper.make_node("Relu", ["a"], ["c"])
    contained([other, helper.make_node("Concat", ["c", "a", "c"], ["b"], axis=2)], {})


def test_several_operators_at_once():
    """Splits, products, a batch norm behind a convolution."""
    norms = {"s": numbers(3), "o": numbers(3), "m": numbers(3), "v": numbers(3) ** 2 + 1}
    batch_norm = helper.make_node("BatchNormalization", ["c", *"somv"], ["b"], epsilon=1e-3)
    conv = helper.make_node("Conv", ["a", "w", "d"], ["c"], pads=[1] * 4)
    contained([conv, batch_norm], norms | {"w": numbers(3, 2, 3, 3), "d": numbers(3)}, 15)
    halves = helper.make_node("Split", ["a"], ["l", "r"], axis=3)
    contained([halves, helper.make_node("Sub", ["l", "r"], ["b"])], {})
    thirds = helper.make_node("Split", ["a", "sizes"], ["l", "r"], axis=3)
    contained([thirds, helper.make_node("MatMul", ["r", "w"], ["b"])], {"sizes": whole(2, 4), "w": numbers(4, 6)})
    flat = helper.make_node("Flatten", ["a"], ["f"])
    gemm = helper.make_node("Gemm", ["f", "w", "o"], ["b"], transB=1, alpha=1.0, beta=1.0)
    contained([flat, gemm], {"w": numbers(5, 72), "o": numbers(5)})
    gemm = helper.make_node("Gemm", ["f", "w"], ["b"], alpha=0.7)
    with pytest.raises(checker.Unknown, match="factors"):
        contained([flat, gemm], {"w": numbers(72, 5)})


def test_shapes_that_exporters_compute():
    nodes = [
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Constant", [], ["two"], value_int=2),
        helper.make_node("Mul", ["n", "two"], ["m"]),
        helper.make_node("Unsqueeze", ["m", "zero1"], ["u"]),
        helper.make_node("Concat", ["u", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["a", "shape"], ["b"]),
    ]
    contained(nodes, {"zero": np.array(0), "zero1": whole(0), "rest": whole(-1)})


@pytest.mark.parametrize("name", ["relu", "max-pool", "clip", "leaky-relu", "abs", "conv"])
def test_boxes_are_enclosed_tightly(name):
    """Wider than what was met at a few points, but not by much: one bend costs about half of it."""
    operator, weights, opset = CASES[name]
    assert contained([operator], weights, opset) < 2.5


def test_two_strengths():
    nodes = [helper.make_node("Relu", ["a"], ["b"])]
    pixels = np.random.default_rng(0).normal(size=(1, 6, 6)) / 2
    asked = question(built(nodes, {}, 13), pixels, "box-blur:size=3+brightness:max=0.3")
    truth = ReferenceEvaluator(built(nodes, {}, 13, wide=True))
    below, above = bounds(asked, [0.1, 0.2], [0.6, 0.9])
    for first, second in np.random.default_rng(0).uniform([0.1, 0.2], [0.6, 0.9], (20, 2)):
        found = truth.run(None, {"x": (path(pixels, first) + 0.3 * second)[None]})[0].ravel()
        assert (found >= below - 1e-12).all()
        assert (found <= above + 1e-12).all()


def test_clip_and_normalisation_come_in_this_order():
    pixels = np.random.default_rng(0).uniform(size=(1, 6, 6))
    plain = built([helper.make_node("Identity", ["a"], ["b"])], {}, 13)
    wide = ReferenceEvaluator(built([helper.make_node("Identity", ["a"], ["b"])], {}, 13, wide=True))
    asked = question(plain, pixels, "brightness:max=0.5,clip=0.1..0.9", mean=[0.4], std=[0.3])
    below, above = bounds(asked, [0.5], [0.5])
    x = (np.clip(pixels + 0.25, 0.1, 0.9) - 0.4) / 0.3
    found = wide.run(None, {"x": x[None]})[0].ravel()
    assert np.abs(found - below).max() < 1e-12
    assert np.abs(found - above).max() < 1e-12


def test_channels_last():
    pixels = np.random.default_rng(0).uniform(size=(3, 5, 6))
    data = model([helper.make_node("Flatten", ["x"], ["y"])], (1, 5, 6, 3))
    below, above = bounds(question(data, pixels, "identity", channels_last=True), [0.3], [0.3])
    assert np.abs(below - pixels.transpose(1, 2, 0).ravel()).max() < 1e-14
    assert (below <= pixels.transpose(1, 2, 0).ravel()).all()
    assert (above >= pixels.transpose(1, 2, 0).ravel()).all()
    with pytest.raises(checker.Refused, match="channels last"):
        question(data, pixels, "identity")


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_all_unknown_operators_are_named_at_once():
    nodes = [helper.make_node("Sigmoid", ["a"], ["c"]), helper.make_node("Erf", ["c"], ["b"])]
    with pytest.raises(checker.Unknown, match="Erf, Sigmoid"):
        question(built(nodes, {}, 13), np.zeros((1, 6, 6)), "identity")


@pytest.mark.parametrize(
    ("operator", "weights"),
    [
        (helper.make_node("Mul", ["a", "a"], ["b"]), {}),
        (helper.make_node("MatMul", ["a", "a"], ["b"]), {}),
        (helper.make_node("Div", ["w", "a"], ["b"]), {"w": numbers(1)}),
        (helper.make_node("Cast", ["a"], ["b"], to=TensorProto.FLOAT16), {}),
        (helper.make_node("Softmax", ["a"], ["b"]), {}),
        (node("Pad", "w", "v"), {"w": whole(0, 0, 1, 1, 0, 0, 1, 1), "v": np.float32(-np.inf)}),
        (node("Pad", "w", "v"), {"w": whole(0, 0, 1, 1, 0, 0, 1, 1), "v": np.float32(0.7)}),
        (node("Sum", "a", "a"), {}),
        (helper.make_node("MatMul", ["w", "a"], ["b"]), {"w": numbers(6, 6)}),
        (node("Conv", "w", auto_pad="SAME_UPPER"), {"w": numbers(3, 2, 2, 2)}),
        (node("ConvTranspose", "w", auto_pad="SAME_UPPER"), {"w": numbers(2, 3, 2, 2)}),
        (node("ConvTranspose", "w", output_shape=[7, 6]), {"w": numbers(2, 3, 2, 2)}),
        (node("ConvTranspose", "w", pads=[4, 0, 4, 0]), {"w": numbers(2, 3, 2, 2)}),
        (node("ConvTranspose", "w", strides=[10**9] * 2), {"w": numbers(2, 3, 2, 2)}),
        (helper.make_node("Relu", ["a"], ["b"], domain="com.example"), {}),
        (helper.make_node("Relu", ["a"], ["b"], colour=3), {}),
        (node("Add", "a", sign=-1), {}),
        (node("ReduceSum", mean=1), {}),
        (node("Conv", "w", norms=1), {"w": numbers(3, 2, 2, 2)}),
        (helper.make_node("MaxPool", ["a"], ["b", "where"], kernel_shape=[2, 2]), {}),
        (node("Concat", "w", axis=1), {"w": numbers(1, 1, 6, 6)}),
        (node("Conv", "w", auto_pad="SAME_LOWER"), {"w": numbers(3, 2, 2, 2)}),
        (node("Conv", "w", auto_pad="SAME_UPPER", dilations=[2, 2]), {"w": numbers(3, 2, 2, 2)}),
        (node("Pad", "w", mode="reflect"), {"w": whole(0, 0, 2, 1, 0, 0, 3, 1)}),
        (node("Pad", "w", mode="edge"), {"w": whole(0, 0, 2, 1, 0, 0, 3, 1)}),
        (node("Pad", "w"), {"w": whole(0, 0, -1, 2, 0, 0, 1, -2)}),
        (node("Pad", "w", "", "i"), {"w": whole(1, 1), "i": whole(3)}),
        (node("AveragePool", kernel_shape=[4, 4], strides=[3, 3], ceil_mode=1, count_include_pad=1), {}),
        (node("Dropout", "r", "t"), {"r": np.float32(0.5), "t": np.array(True)}),
        (node("Split", axis=3, num_outputs=4), {}),
        (node("ReduceSum", noop_with_empty_axes=1), {}),
        (node("Div", "w"), {"w": np.float32([0.0])}),
        (helper.make_node("Relu", ["a", "w"], ["b"]), {"w": numbers(1)}),
        (helper.make_node("Constant", [], ["b"], value_floats=[1.0]), {}),
        (node("Slice", "s", "e", "i", "t"), {"s": whole(-99), "e": whole(-999), "i": whole(2), "t": whole(-1)}),
    ],
    ids=["square", "product", "division", "half", "softmax", "infinite", "filled", "three", "left", "same",
         "transposed-same", "transposed-shape", "transposed-crop", "transposed-wide",
         "domain", "attribute", "sign", "mean", "norms", "indices", "constant",
         "same-lower", "same-dilated", "reflect", "edge", "crop", "axes", "partial", "training", "parts", "no-op",
         "zero", "input", "floats", "backwards"],
)  # fmt: skip
def test_what_has_no_rule_is_unknown(operator, weights):
    nodes = [operator]
    if len(operator.output) > 1:
        nodes += [helper.make_node("Cast", ["where"], ["unused"], to=TensorProto.FLOAT)]
    with pytest.raises(checker.Unknown):
        question(built(nodes, weights, 13), np.zeros((1, 6, 6)), "identity")


def test_an_attribute_that_is_none_of_the_operators():
    """A name that a rule's helpers have is not the operator's."""
    for operator in (
        node("Conv", "w", fill=5),
        node("Conv", "w", weights=3),
        node("MaxPool", kernel_shape=[2, 2], fill=1),
    ):
        weights = {"w": numbers(3, 2, 2, 2)} if operator.op_type == "Conv" else {}
        with pytest.raises((checker.Refused, *checker.MALFORMED)):
            question(built([operator], weights, 13), np.zeros((1, 6, 6)), "identity")


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("shape", [(6, 6), (1, 6, 6), (2, 3, 6)])
def test_products_of_other_shapes_are_unknown_or_right(left, shape):
    """A value of one dimension, or a stack of matrices, must not be mixed up with the leaves."""
    weight = numbers(*shape)
    inputs = ["w", "f"] if left else ["f", "w"]
    for size in (whole(6), whole(1, 6), whole(6, 1), whole(6, 6)):
        cut = [helper.make_node("Slice", ["a", "zero", "end", "axes"], ["s"])]
        count = int(np.prod(size))
        ends = {"zero": whole(0, 0, 0), "end": whole(1, count // 6 or 1, 6), "axes": whole(1, 2, 3)}
        nodes = [*cut, helper.make_node("Reshape", ["s", "size"], ["f"]), helper.make_node("MatMul", inputs, ["b"])]
        data = built(nodes, {"w": weight, "size": size, **ends}, 13)
        pixels = np.random.default_rng(0).normal(size=(1, 6, 6))
        try:
            runtime = onnxruntime.InferenceSession(data.SerializeToString(), providers=["CPUExecutionProvider"])
            theirs = runtime.run(None, {"x": pixels[None].astype(np.float32)})[0].ravel()
        except Exception:  # not a product at all
            with pytest.raises(checker.Refused):
                question(data, pixels, "identity")
            continue
        try:
            asked = question(data, pixels, "identity", arithmetic="float32")
        except checker.Unknown:
            assert left or len(shape) > 2
            continue
        below, above = bounds(asked, [0.0], [0.0])
        assert ((below <= theirs) & (theirs <= above)).all()
        low, high = np.zeros((6, 1)), np.linspace(0, 1, 6)[:, None]
        together = asked.margins(low, high, 0)
        alone = [asked.margins(a[None], b[None], 0)[0] for a, b in zip(low, high, strict=True)]
        assert np.allclose(together, alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div"])
def test_constants_are_computed_exactly_or_not_at_all(kind):
    """Whole numbers as onnxruntime does it; anything that would have to be rounded is refused."""
    nodes = [
        helper.make_node(kind, ["v", "w"], ["c"]),
        helper.make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["a", "d"], ["b"]),
    ]
    pixels = np.zeros((1, 6, 6))
    data = built(nodes, {"v": whole(7, 8, 9, 6, 5, 0), "w": whole(2, 3, 9, 7, 1, 4)}, 13)
    runtime = onnxruntime.InferenceSession(data.SerializeToString(), providers=["CPUExecutionProvider"])
    theirs = runtime.run(None, {"x": pixels[None].astype(np.float32)})[0].ravel()
    below, above = bounds(question(data, pixels, "identity"), [0.0], [0.0])
    assert np.abs(theirs - (below + above) / 2).max() < 1e-6
    for first, second in ((whole(2**40), whole(2**40)), (whole(-7), np.float32(2))):
        with pytest.raises(checker.Unknown, match="whole"):
            question(built(nodes, {"v": first, "w": second}, 13), pixels, "identity")
    with pytest.raises(checker.Unknown, match="float64 would round"):
        question(built(nodes, {"v": np.float64([1 / 3]), "w": np.float64([0.0007])}, 13), pixels, "identity")
    if kind == "Div":
        for second in (-2, 0):
            with pytest.raises(checker.Unknown, match="whole"):
                question(built(nodes, {"v": whole(7), "w": whole(second)}, 13), pixels, "identity")


@pytest.mark.parametrize(
    ("constant", "weights"),
    [
        (helper.make_node("Relu", ["v"], ["c"]), {"v": numbers(6)}),
        (helper.make_node("Cast", ["v"], ["c"], to=TensorProto.FLOAT), {"v": np.array([0.1])}),
        (helper.make_node("Sqrt", ["v"], ["c"]), {"v": numbers(6) ** 2}),
    ],
    ids=["relu", "cast", "root"],
)
def test_constants_that_are_not_computed(constant, weights):
    with pytest.raises(checker.Unknown):
        question(built([constant, node("Add", "c")], weights, 13), np.zeros((1, 6, 6)), "identity")


@pytest.mark.parametrize(
    "constant",
    [
        helper.make_node("Reshape", ["v", "s"], ["c"]),
        helper.make_node("Transpose", ["u"], ["c"], perm=[1, 0]),
        helper.make_node("Unsqueeze", ["p", "z"], ["c"]),
        helper.make_node("Gather", ["u", "p"], ["c"], axis=0),
        helper.make_node("Slice", ["v", "z", "e"], ["c"]),
        helper.make_node("Concat", ["v", "v"], ["c"], axis=0),
        helper.make_node("Expand", ["z", "s"], ["c"]),
        helper.make_node("Neg", ["p"], ["c"]),
        helper.make_node("Pad", ["v", "p"], ["c"]),
    ],
    ids=lambda made: made.op_type,
)
def test_constants_that_are_moved(constant):
    """As onnxruntime does it: two entries of the constant are factors of the two channels."""
    weights = {"v": numbers(6), "u": numbers(4, 2), "p": whole(1, 0), "z": whole(0), "e": whole(3), "s": whole(3, 2)}
    nodes = [
        constant,
        helper.make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["d"], ["f"], axis=0),
        helper.make_node("Slice", ["f", "z", "two", "one"], ["g"]),
        helper.make_node("Reshape", ["g", "shape"], ["h"]),
        helper.make_node("Mul", ["a", "h"], ["b"]),
    ]
    weights |= {"two": whole(2), "one": whole(1), "shape": whole(1, 2, 1, 1)}
    pixels, data = np.random.default_rng(0).normal(size=(1, 6, 6)), built(nodes, weights, 13)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it would complain of constants that this case does not use
    runtime = onnxruntime.InferenceSession(data.SerializeToString(), options, providers=["CPUExecutionProvider"])
    theirs = runtime.run(None, {"x": pixels[None].astype(np.float32)})[0].ravel()
    below, above = bounds(question(data, pixels, "identity", arithmetic="float32"), [0.0], [0.0])
    assert (below <= theirs).all()
    assert (theirs <= above).all()
    assert (above - below).max() < 1e-4


def test_a_softmax_over_all_scores_is_left_out():
    for kind in ("Softmax", "LogSoftmax"):
        asked = question(
            model([helper.make_node("Flatten", ["x"], ["f"]), helper.make_node(kind, ["f"], ["y"])], (1, 1, 2, 2)),
            np.array([[[0.1, 0.9], [0.3, 0.2]]]),
            "identity",
        )
        assert asked.margins([[0.0]], [[1.0]], 1)[0] == pytest.approx(0.6)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8])
def test_weights_of_other_types(dtype):
    weight = np.array([[1, -2], [0.5, 3], [1, 1], [0, 2]]).astype(dtype)
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["f", "wide"], ["y"]),
    ]
    pixels = np.array([[[0.1, 0.9], [0.3, 0.2]]])
    below, above = bounds(question(model(nodes, (1, 1, 2, 2), {"w": weight}), pixels, "identity"), [0.0], [0.0])
    assert np.abs((below + above) / 2 - pixels.ravel() @ weight.astype(float)).max() < 1e-12


# -- the rule, in exact numbers ----------------------------------------------------------------------------------------


def exact_dense(layers: list[tuple[np.ndarray, np.ndarray]], x: list[Fraction]) -> list[Fraction]:
    for index, (weight, bias) in enumerate(layers):
        x = [
            sum((Fraction(float(w)) * v for w, v in zip(row, x, strict=True)), Fraction(float(b)))
            for row, b in zip(weight, bias, strict=True)
        ]
        x = [max(v, Fraction(0)) for v in x] if index < len(layers) - 1 else x
    return x


def dense_model(layers: list[tuple[np.ndarray, np.ndarray]], shape: tuple[int, ...]) -> onnx.ModelProto:
    nodes, weights, name = [helper.make_node("Flatten", ["x"], ["v0"])], {}, "v0"
    for index, (weight, bias) in enumerate(layers):
        last = index == len(layers) - 1
        weights |= {f"w{index}": weight, f"o{index}": bias}
        out = "y" if last else f"h{index}"
        nodes.append(helper.make_node("Gemm", [name, f"w{index}", f"o{index}"], [out], transB=1))
        if not last:
            name = f"v{index + 1}"
            nodes.append(helper.make_node("Relu", [out], [name]))
    return model(nodes, shape, weights)


def amplifying(layers: int = 6) -> list[tuple[np.ndarray, np.ndarray]]:
    """What float64 rounds away at first is all that counts in the end: in float64, class 0 leads by 1 everywhere."""
    stack = [(np.array([[0.0] * 4, [2.0**-55] * 4]), np.array([3.0, 3.0])), (np.array([[-1.0, 1.0]]), np.zeros(1))]
    stack += [(np.array([[1024.0]]), np.zeros(1))] * layers
    return [*stack, (np.array([[-1.0], [0.0]]), np.array([1.0, 0.0]))]


def accepts_cancellation() -> bool:
    pixels = np.full((1, 2, 2), 0.25)
    network = amplifying()
    scores = exact_dense(network, [Fraction(1, 4)] * 4)
    assert scores[0] < scores[1], "the label loses"
    asked = question(dense_model(network, (1, 1, 2, 2)), pixels, "brightness:max=0.5")
    return bool(asked.margins([[0.0]], [[0.0]], 0)[0] > 0)


def accepts_a_spike() -> bool:
    """Margin |z - 0.5| - 0.05 by two ReLUs: the label loses in the middle of the only leaf."""
    first = (np.array([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]]), np.array([-0.5, 0.5]))
    last = (np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([0.0, 0.05]))
    asked = question(dense_model([first, last], (1, 1, 2, 2)), np.zeros((1, 2, 2)), "brightness:max=1")
    return bool(asked.margins([[0.0]], [[1.0]], 0)[0] > 0)


def accepts_an_overtaking() -> bool:
    """Class 1 is the larger of z and 1 - z, class 0 is 0.9: it loses at both ends, and max pooling must see it."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "o"], ["c"]),
        helper.make_node("Reshape", ["c", "square"], ["s"]),
        helper.make_node("MaxPool", ["s"], ["m"], kernel_shape=[1, 2]),
        helper.make_node("Reshape", ["m", "flat"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "p"], ["y"], transB=1),
    ]
    weights = {
        "w": np.array([1.0, -1.0]).reshape(2, 1, 1, 1),
        "o": np.array([0.0, 1.0]),
        "square": whole(1, 1, 1, 2),
        "flat": whole(1, 1),
        "v": np.array([[0.0], [1.0]]),
        "p": np.array([0.9, 0.0]),
    }
    asked = question(model(nodes, (1, 1, 1, 1), weights), np.zeros((1, 1, 1)), "brightness:max=1")
    return bool(asked.margins([[0.0]], [[1.0]], 0)[0] > 0)


CHORD, HIGHEST = enclosure._chord, enclosure.highest


@pytest.mark.parametrize("accepts", [accepts_cancellation, accepts_a_spike, accepts_an_overtaking])
def test_false_claims_are_not_proved(accepts):
    assert not accepts()


def test_rounding_that_is_left_out_is_noticed(monkeypatch):
    monkeypatch.setattr(enclosure, "gamma", lambda terms, unit: 0.0)
    assert accepts_cancellation()


def test_a_bend_that_is_left_out_is_noticed(monkeypatch):
    monkeypatch.setattr(
        enclosure, "_chord", lambda *given: (CHORD(*given)[0], CHORD(*given)[1] * 0 + 0.5, CHORD(*given)[2] * 0)
    )
    assert accepts_a_spike()


def test_a_rival_in_a_window_that_is_left_out_is_noticed(monkeypatch):
    def only_the_best(*given: Any) -> enclosure.Tube:
        made = HIGHEST(*given)
        return enclosure.Tube(made.lines - made.radius[None], made.radius * 0, made.norm * 0, made.float32)

    monkeypatch.setattr(enclosure, "highest", only_the_best)
    assert accepts_an_overtaking()


def test_a_module_from_torch_is_enclosed_too(tmp_path):
    """Not node by node: as torch's own exporter writes it, and in both arithmetics."""
    import torch
    from models import random_module

    module = random_module(0)
    file = tmp_path / "net.onnx"
    torch.onnx.export(module, torch.zeros(1, 1, 8, 8), file, dynamo=False, training=torch.onnx.TrainingMode.EVAL)
    loaded = onnx.load(file)
    pixels = np.random.default_rng(0).uniform(size=(1, 8, 8))
    runtime = onnxruntime.InferenceSession(loaded.SerializeToString(), providers=["CPUExecutionProvider"])
    theirs = runtime.run(None, {loaded.graph.input[0].name: pixels[None].astype(np.float32)})[0].ravel()
    truth = module.double()(torch.from_numpy(pixels[None])).detach().numpy().ravel()
    below, above = bounds(question(loaded, pixels, "identity"), [0.0], [0.0])
    assert (truth >= below - 1e-6).all()  # exporting rounds the weights of a folded batch norm to float32
    assert (truth <= above + 1e-6).all()
    below, above = bounds(question(loaded, pixels, "identity", arithmetic="float32"), [0.0], [0.0])
    assert (theirs >= below).all()
    assert (theirs <= above).all()
    assert (above - below).max() < 1e-2


def test_names_that_stand_for_two_values():
    """An output that takes a constant's name, the input's, another output's, or none, would be read as the other."""
    for name in ("mix", "x", "a", ""):
        nodes = [helper.make_node("Neg", ["a"], [name]), helper.make_node("Relu", ["a"], ["b"])]
        with pytest.raises(checker.Refused):
            question(built(nodes, {}, 13), np.zeros((1, 6, 6)), "identity")


def test_scores_that_are_not_finite_prove_nothing():
    """Weights beyond float64's range in a sum, NaN, infinity; and in float32 what only float32 cannot hold."""
    for value, arithmetic in (
        (1e308, "real"),
        (np.nan, "real"),
        (np.inf, "real"),
        (-np.inf, "real"),
        (1e35, "float32"),
        (2.0**50, "float32"),  # a weight that vanishes when a factor is folded into it may have been multiplied with it
    ):
        weight = np.zeros((2, 4))
        weight[0] = value
        nodes = [
            helper.make_node("Flatten", ["x"], ["f"]),
            helper.make_node("Gemm", ["f", "w"], ["g"], transB=1),
            helper.make_node("Gemm", ["g", "v"], ["y"], transB=1),
        ]
        data = model(nodes, (1, 1, 2, 2), {"w": weight, "v": np.eye(2) * 1e3})
        asked = question(data, np.ones((1, 2, 2)), "identity", arithmetic=arithmetic)
        assert not asked.margins([[0.0]], [[1.0]], 0)[0] > 0
        assert not asked.margins([[0.0]], [[0.0]], 0, over=1)[0] > 0


@pytest.mark.parametrize("factors", [[2.0**-75], [2.0**-40] * 2, [2.0**-40, 2.0**40, 2.0**-40]])
def test_factors_by_which_float32_may_lose_a_value_are_not_covered(factors):
    """Runtimes fold them into one another, or into weights, which may vanish."""
    nodes = [helper.make_node("Flatten", ["x"], ["v0"])]
    nodes += [helper.make_node("Mul", [f"v{place}", f"f{place}"], [f"v{place + 1}"]) for place in range(len(factors))]
    nodes.append(helper.make_node("Gemm", [f"v{len(factors)}", "w"], ["y"], transB=1))
    weights = {f"f{place}": np.float32([factor]) for place, factor in enumerate(factors)}
    data = model(nodes, (1, 1, 2, 2), {**weights, "w": np.eye(2, 4, dtype=np.float32)})
    bounds(question(data, np.ones((1, 2, 2)), "identity"), [0.0], [0.0])
    with pytest.raises(checker.Unknown, match="factors so small"):
        bounds(question(data, np.ones((1, 2, 2)), "identity", arithmetic="float32"), [0.0], [0.0])
