"""Every operator against onnxruntime, and against every rule it has to keep, each with negative controls."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import model
from onnx import helper
from tampering import tampered
from torch import Tensor

from shakeproof.model.builder import Unsupported, _check_size
from shakeproof.model.onnx_reader import read
from shakeproof.operators import (
    Abs,
    AveragePool,
    Ceil,
    Clip,
    Combine,
    Concat,
    Conv,
    Elu,
    Erf,
    Exp,
    Floor,
    Gelu,
    GeluTanh,
    HardSwish,
    LeakyRelu,
    Linear,
    Log,
    MatMul,
    MaxPool,
    Mean,
    Mish,
    Multiply,
    Normalise,
    Operator,
    Pad,
    Pairs,
    Positive,
    Power,
    Range,
    Ranked,
    Relu,
    Resample,
    Reshape,
    Round,
    Scale,
    Sigmoid,
    Sign,
    Silu,
    SlidingWindow,
    Softmax,
    Softplus,
    Tanh,
    Transpose,
)
from shakeproof.operators.pictures import envelope_breaks, unrolled
from shakeproof.testing import check_operator

random = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return random.normal(size=shape).astype(np.float32)


def node(kind, *inputs, **attributes):
    return helper.make_node(kind, ["x", *inputs], ["y"], **attributes)


PICTURE = (1, 4, 7, 6)
# name: (node, weights, input shape, opset)
ONE_NODE = {
    "conv": (node("Conv", "w", "b", kernel_shape=[3, 3]), {"w": weight(5, 4, 3, 3), "b": weight(5)}, PICTURE, 13),
    "conv strides pads": (
        node("Conv", "w", strides=[2, 1], pads=[1, 0, 2, 1]), {"w": weight(5, 4, 3, 2)}, PICTURE, 13),
    "conv dilations": (node("Conv", "w", dilations=[2, 2], pads=[2, 2, 2, 2]), {"w": weight(3, 4, 3, 3)}, PICTURE, 13),
    "conv groups": (node("Conv", "w", "b", group=2), {"w": weight(6, 2, 2, 2), "b": weight(6)}, PICTURE, 13),
    "conv depthwise": (node("Conv", "w", group=4), {"w": weight(4, 1, 3, 3)}, PICTURE, 13),
    "conv same upper": (
        node("Conv", "w", auto_pad="SAME_UPPER", strides=[2, 2]), {"w": weight(3, 4, 4, 3)}, PICTURE, 13),
    "conv same lower": (node("Conv", "w", auto_pad="SAME_LOWER"), {"w": weight(3, 4, 2, 2)}, PICTURE, 13),
    "conv 1d": (node("Conv", "w", strides=[2], pads=[1, 0]), {"w": weight(3, 4, 3)}, (1, 4, 9), 13),
    "conv transpose": (node("ConvTranspose", "w", "b"), {"w": weight(4, 3, 3, 2), "b": weight(3)}, PICTURE, 13),
    "conv transpose strides": (
        node("ConvTranspose", "w", "b", strides=[2, 3], pads=[1, 0, 2, 1], output_padding=[1, 2], kernel_shape=[3, 4]),
        {"w": weight(4, 2, 3, 4), "b": weight(2)}, PICTURE, 13),
    "conv transpose of blocks": (node("ConvTranspose", "w", strides=[2, 2]), {"w": weight(4, 2, 2, 2)}, PICTURE, 13),
    "conv transpose with gaps": (node("ConvTranspose", "w", strides=[3, 3]), {"w": weight(4, 2, 2, 1)}, PICTURE, 13),
    "conv transpose dilations": (
        node("ConvTranspose", "w", dilations=[2, 3], strides=[1, 2], pads=[3, 3, 0, 1]), {"w": weight(4, 2, 3, 3)},
        PICTURE, 13),
    "conv transpose groups": (
        node("ConvTranspose", "w", "b", group=2, strides=[2, 1]), {"w": weight(4, 3, 3, 3), "b": weight(6)},
        PICTURE, 13),
    "conv transpose depthwise": (
        node("ConvTranspose", "w", group=4, strides=[2, 2], pads=[1] * 4), {"w": weight(4, 1, 4, 4)}, PICTURE, 13),
    "conv transpose crops much": (
        node("ConvTranspose", "w", strides=[2, 2], pads=[5, 4, 6, 0]), {"w": weight(4, 2, 3, 3)}, PICTURE, 13),
    "conv transpose same upper": (
        node("ConvTranspose", "w", auto_pad="SAME_UPPER", strides=[2, 2]), {"w": weight(4, 2, 3, 3)}, PICTURE, 13),
    "conv transpose same lower": (
        node("ConvTranspose", "w", auto_pad="SAME_LOWER", strides=[2, 2]), {"w": weight(4, 2, 3, 3)}, PICTURE, 13),
    "conv transpose valid": (
        node("ConvTranspose", "w", auto_pad="VALID", strides=[2, 2]), {"w": weight(4, 2, 3, 3)}, PICTURE, 13),
    "conv transpose output shape": (
        node("ConvTranspose", "w", output_shape=[14, 10], strides=[2, 2]), {"w": weight(4, 2, 3, 3)}, PICTURE, 13),
    "conv transpose output shape upper": (
        node("ConvTranspose", "w", output_shape=[14, 10], strides=[2, 2], auto_pad="SAME_UPPER"),
        {"w": weight(4, 2, 3, 3)}, PICTURE, 13),
    "conv transpose 1d": (
        node("ConvTranspose", "w", "b", strides=[2], pads=[1, 0]), {"w": weight(4, 3, 3), "b": weight(3)}, (1, 4, 9),
        13),
    "gemm": (node("Gemm", "w", "b", alpha=0.5, beta=2.0, transB=1), {"w": weight(3, 6), "b": weight(3)}, (1, 6), 13),
    "gemm no bias": (node("Gemm", "w"), {"w": weight(6, 3)}, (1, 6), 13),
    "matmul": (node("MatMul", "w"), {"w": weight(6, 3)}, PICTURE, 13),
    "matmul left": (helper.make_node("MatMul", ["w", "x"], ["y"]), {"w": weight(5, 7)}, PICTURE, 13),
    "add": (node("Add", "w"), {"w": weight(4, 1, 1)}, PICTURE, 13),
    "sub": (node("Sub", "w"), {"w": weight(6)}, PICTURE, 13),
    "sub from": (helper.make_node("Sub", ["w", "x"], ["y"]), {"w": weight(4, 1, 1)}, PICTURE, 13),
    "mul": (node("Mul", "w"), {"w": weight(1, 4, 7, 1)}, PICTURE, 13),
    "div": (node("Div", "w"), {"w": weight(4, 1, 1)}, PICTURE, 13),
    "neg": (node("Neg"), {}, PICTURE, 13),
    "add itself": (node("Add", "x"), {}, PICTURE, 13),
    "concat": (node("Concat", "x", axis=1), {}, PICTURE, 13),
    "concat last": (node("Concat", "x", axis=-1), {}, PICTURE, 13),
    "batch norm": (
        node("BatchNormalization", "s", "b", "m", "v", epsilon=1e-3),
        {"s": weight(4), "b": weight(4), "m": weight(4), "v": np.abs(weight(4)) + 0.1}, PICTURE, 13),
    "relu": (node("Relu"), {}, PICTURE, 13),
    "leaky relu": (node("LeakyRelu", alpha=0.2), {}, PICTURE, 13),
    "prelu": (node("PRelu", "w"), {"w": weight(4, 1, 1)}, PICTURE, 13),
    "clip": (node("Clip", "a", "b"), {"a": np.float32(-0.3), "b": np.float32(0.4)}, PICTURE, 13),
    "clip below": (node("Clip", "a"), {"a": np.float32(-0.3)}, PICTURE, 13),
    "clip attributes": (node("Clip", min=-0.2, max=0.6), {}, PICTURE, 9),
    "hard sigmoid": (node("HardSigmoid"), {}, PICTURE, 13),
    "abs": (node("Abs"), {}, PICTURE, 13),
    "sign": (node("Sign"), {}, PICTURE, 13),
    "round": (node("Round"), {}, PICTURE, 13),
    "floor": (node("Floor"), {}, PICTURE, 13),
    "ceil": (node("Ceil"), {}, PICTURE, 13),
    "max pool": (node("MaxPool", kernel_shape=[2, 3], strides=[2, 2]), {}, PICTURE, 13),
    "max pool pads": (node("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), {}, PICTURE, 13),
    "max pool ceil": (node("MaxPool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), {}, (1, 2, 7, 5), 13),
    "max pool dilations": (node("MaxPool", kernel_shape=[2, 2], dilations=[2, 2]), {}, PICTURE, 13),
    "max pool 1d": (node("MaxPool", kernel_shape=[3], strides=[2]), {}, (1, 2, 9), 13),
    "average pool": (node("AveragePool", kernel_shape=[2, 2], strides=[2, 2]), {}, PICTURE, 13),
    "average pool pads": (node("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), {}, PICTURE, 13),
    "average pool counted": (
        node("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1), {}, PICTURE, 13),
    "average pool ceil": (node("AveragePool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), {}, (1, 2, 7, 5), 19),
    "global average pool": (node("GlobalAveragePool"), {}, PICTURE, 13),
    "global max pool": (node("GlobalMaxPool"), {}, PICTURE, 13),
    "reduce mean": (node("ReduceMean", axes=[2, -1], keepdims=0), {}, PICTURE, 13),
    "reduce mean input": (node("ReduceMean", "a", keepdims=1), {"a": np.array([1])}, PICTURE, 18),
    "reduce mean all": (node("ReduceMean", keepdims=0), {}, PICTURE, 13),
    "pad": (node("Pad", "p", "v"), {"p": np.array([0, 0, 1, 2, 0, 1, 0, 3]), "v": np.float32(0.7)}, PICTURE, 13),
    "pad reflect": (node("Pad", "p", mode="reflect"), {"p": np.array([0, 0, 1, 2, 0, 0, 2, 3])}, PICTURE, 13),
    "pad edge": (node("Pad", "p", mode="edge"), {"p": np.array([0, 0, 1, 2, 0, 0, 2, 3])}, PICTURE, 13),
    "pad crops": (node("Pad", "p"), {"p": np.array([0, 0, -1, 2, 0, 0, 2, -3])}, PICTURE, 13),
    "pad attributes": (node("Pad", pads=[0, 0, 1, 0, 0, 0, 0, 1], value=0.5), {}, PICTURE, 9),
    "flatten": (node("Flatten"), {}, PICTURE, 13),
    "flatten axis": (node("Flatten", axis=-1), {}, PICTURE, 13),
    "reshape": (node("Reshape", "s"), {"s": np.array([0, 2, -1, 3])}, PICTURE, 13),
    "transpose": (node("Transpose", perm=[0, 2, 3, 1]), {}, PICTURE, 13),
    "transpose all": (node("Transpose"), {}, PICTURE, 13),
    "squeeze": (node("Squeeze", "a"), {"a": np.array([0])}, PICTURE, 13),
    "squeeze attribute": (node("Squeeze", axes=[0]), {}, PICTURE, 11),
    "unsqueeze": (node("Unsqueeze", "a"), {"a": np.array([0, -1])}, PICTURE, 13),
    "identity": (node("Identity"), {}, PICTURE, 13),
    "dropout": (node("Dropout"), {}, PICTURE, 13),
    "cast": (node("Cast", to=1), {}, PICTURE, 13),
    "sum": (node("Sum", "x", "x"), {}, PICTURE, 13),
    "sum of constants too": (helper.make_node("Sum", ["w", "x", "v"], ["y"]), {"w": weight(6), "v": weight(4, 1, 1)},
                             PICTURE, 13),
    "sigmoid": (node("Sigmoid"), {}, PICTURE, 13),
    "tanh": (node("Tanh"), {}, PICTURE, 13),
    "softplus": (node("Softplus"), {}, PICTURE, 13),
    "erf": (node("Erf"), {}, PICTURE, 13),
    "exp": (node("Exp"), {}, PICTURE, 13),
    "gelu": (node("Gelu"), {}, PICTURE, 20),
    "gelu tanh": (node("Gelu", approximate="tanh"), {}, PICTURE, 20),
    "hard swish": (node("HardSwish"), {}, PICTURE, 14),
    "square": (node("Pow", "p"), {"p": np.float32(2)}, PICTURE, 13),
    "cube": (node("Pow", "p"), {"p": np.array([3], np.int64)}, PICTURE, 13),
    "squares that widen": (node("Pow", "p"), {"p": np.full((3, 1), 2, np.float32)}, (1, 4), 13),
    "power 1": (node("Pow", "p"), {"p": np.float32(1)}, PICTURE, 13),
    "power 0": (node("Pow", "p"), {"p": np.float32(0)}, PICTURE, 13),
    "mul itself": (node("Mul", "x"), {}, PICTURE, 13),
    "mul widens": (node("Mul", "w"), {"w": weight(2, 4, 3)}, (1, 4, 1), 13),
    "add widens": (node("Add", "w"), {"w": weight(5, 6)}, (1, 1, 6), 13),
    "add widens rank": (node("Add", "w"), {"w": weight(3, 2, 1, 6)}, (1, 6), 13),
    "matmul itself": (node("MatMul", "x"), {}, (1, 3, 5, 5), 13),
    "matmul stack": (node("MatMul", "w"), {"w": weight(4, 6, 3)}, PICTURE, 13),
    "matmul stack of one": (node("MatMul", "w"), {"w": weight(1, 1, 6, 3)}, PICTURE, 13),
    "matmul widening stack": (node("MatMul", "w"), {"w": weight(2, 1, 6, 3)}, PICTURE, 13),
    "matmul stack of higher rank": (node("MatMul", "w"), {"w": weight(2, 3, 6, 4)}, (1, 6), 13),
    "matmul left stack": (helper.make_node("MatMul", ["w", "x"], ["y"]), {"w": weight(2, 4, 5, 7)}, PICTURE, 13),
    "matmul vector": (node("MatMul", "w"), {"w": weight(6)}, PICTURE, 13),
    "matmul left vector": (helper.make_node("MatMul", ["w", "x"], ["y"]), {"w": weight(7)}, PICTURE, 13),
    "gemm transposed": (node("Gemm", "w", transA=1), {"w": weight(1, 3)}, (1, 6), 13),
    "gemm left": (helper.make_node("Gemm", ["w", "x"], ["y"], transB=1, alpha=0.3), {"w": weight(2, 6)}, (1, 6), 13),
    "softmax": (node("Softmax"), {}, PICTURE, 13),
    "softmax axis": (node("Softmax", axis=1), {}, PICTURE, 13),
    "softmax flattened": (node("Softmax", axis=2), {}, PICTURE, 11),
    "softmax flattened by default": (node("Softmax"), {}, PICTURE, 9),
    "softmax old last": (node("Softmax", axis=-1), {}, PICTURE, 11),
    "layer norm": (node("LayerNormalization", "s", "b"), {"s": weight(6), "b": weight(6)}, PICTURE, 17),
    "layer norm axis": (node("LayerNormalization", "s", axis=2, epsilon=0.1), {"s": weight(7, 6)}, PICTURE, 17),
    "reduce sum": (node("ReduceSum", "a", keepdims=0), {"a": np.array([1, -1])}, PICTURE, 13),
    "reduce sum attribute": (node("ReduceSum", axes=[2]), {}, PICTURE, 11),
    "reduce sum all": (node("ReduceSum"), {}, (1, 3, 4), 13),
    "reduce sum of nothing": (node("ReduceSum", noop_with_empty_axes=1), {}, PICTURE, 13),
    "reduce L1 of nothing": (node("ReduceL1", noop_with_empty_axes=1), {}, PICTURE, 18),
    "reduce L2 of nothing": (node("ReduceL2", noop_with_empty_axes=1), {}, PICTURE, 18),
    "reduce squares of nothing": (node("ReduceSumSquare", noop_with_empty_axes=1), {}, PICTURE, 18),
    "slice attributes": (node("Slice", starts=[1, -4], ends=[3, 100], axes=[1, 3]), {}, PICTURE, 9),
    "slice attributes without axes": (node("Slice", starts=[0, 1], ends=[1, -1]), {}, PICTURE, 9),
    "slice": (
        node("Slice", "s", "e", "a", "t"),
        {"s": np.array([-1, 1]), "e": np.array([-100, 2**62]), "a": np.array([2, -1]), "t": np.array([-2, 3])},
        PICTURE, 13),
    "slice without axes": (node("Slice", "s", "e"), {"s": np.array([0, 3]), "e": np.array([1, 4])}, PICTURE, 13),
    "slice of nothing": (node("Slice", "s", "e", "a"), {"s": np.array([0]), "e": np.array([9]), "a": np.array([1])},
                         PICTURE, 13),
    "gather one": (node("Gather", "i", axis=1), {"i": np.array(2)}, PICTURE, 13),
    "gather some": (node("Gather", "i", axis=-1), {"i": np.array([4, -1, 0, 0])}, PICTURE, 13),
    "gather a table": (node("Gather", "i", axis=2), {"i": np.array([[3, -7, 1], [0, 0, 6]])}, PICTURE, 13),
    "gather by default": (node("Gather", "i"), {"i": np.array([0, 0])}, PICTURE, 13),
    "expand": (node("Expand", "s"), {"s": np.array([3, 1])}, (1, 4, 1, 6), 13),
    "expand rank": (node("Expand", "s"), {"s": np.array([2, 1, 4, 1])}, (1, 4, 6), 13),
    "expand nothing": (node("Expand", "s"), {"s": np.array([1])}, PICTURE, 13),
    "elu": (node("Elu", alpha=0.7), {}, PICTURE, 13),
    "elu of a negative alpha": (node("Elu", alpha=-0.7), {}, PICTURE, 13),
    "elu without alpha": (node("Elu", alpha=0.0), {}, PICTURE, 13),
    "selu": (node("Selu"), {}, PICTURE, 13),
    "selu otherwise": (node("Selu", alpha=0.9, gamma=2.0), {}, PICTURE, 13),
    "celu": (node("Celu", alpha=0.3), {}, PICTURE, 13),
    "mish": (node("Mish"), {}, PICTURE, 18),
    "hard sigmoid otherwise": (node("HardSigmoid", alpha=0.4, beta=0.1), {}, PICTURE, 13),
    "group norm": (
        node("GroupNormalization", "s", "b", num_groups=2), {"s": weight(4), "b": weight(4)}, PICTURE, 21),
    "group norm by group": (
        node("GroupNormalization", "s", "b", num_groups=2, epsilon=0.1), {"s": weight(2), "b": weight(2)}, PICTURE, 18),
    "instance norm": (node("InstanceNormalization", "s", "b"), {"s": weight(4), "b": weight(4)}, PICTURE, 13),
    "instance norm 1d": (
        node("InstanceNormalization", "s", "b", epsilon=0.1), {"s": weight(3), "b": weight(3)}, (1, 3, 8), 13),
    "lp norm": (node("LpNormalization", axis=1), {}, PICTURE, 13),
    "lp norm 1": (node("LpNormalization", p=1), {}, PICTURE, 13),
    "max of a number": (node("Max", "w"), {"w": np.float32(0.3)}, PICTURE, 13),
    "max of constants": (node("Max", "w", "v"), {"w": weight(6), "v": weight(3, 4, 1, 1)}, PICTURE, 13),
    "max that widens": (node("Max", "w"), {"w": np.full((5, 6), 0.2, np.float32)}, (1, 1, 6), 13),
    "max of one": (node("Max"), {}, PICTURE, 13),
    "min of a number": (helper.make_node("Min", ["w", "x"], ["y"]), {"w": np.float32(0.3)}, PICTURE, 13),
    "min of constants": (node("Min", "w"), {"w": weight(4, 1, 1)}, PICTURE, 13),
    "reduce max": (node("ReduceMax", axes=[2, -1], keepdims=0), {}, PICTURE, 13),
    "reduce max of channels": (node("ReduceMax", "a"), {"a": np.array([1])}, PICTURE, 18),
    "reduce max all": (node("ReduceMax", keepdims=0), {}, PICTURE, 13),
    "reduce min": (node("ReduceMin", "a"), {"a": np.array([-1])}, PICTURE, 18),
    "reduce l1": (node("ReduceL1", "a"), {"a": np.array([1, 2])}, PICTURE, 18),
    "reduce l2": (node("ReduceL2", axes=[1, 2], keepdims=0), {}, PICTURE, 13),
    "reduce sum square": (node("ReduceSumSquare", axes=[3]), {}, PICTURE, 13),
    "reduce log sum exp": (node("ReduceLogSumExp", axes=[1]), {}, PICTURE, 13),
    "einsum": (node("Einsum", "w", equation="bchw,cd->bdhw"), {"w": weight(4, 3)}, PICTURE, 13),
    "einsum left": (
        helper.make_node("Einsum", ["w", "x"], ["y"], equation="hk, bchw -> wkcb"), {"w": weight(7, 5)}, PICTURE, 13),
    "einsum with itself": (node("Einsum", "x", equation="bchw,bcgw->bchg"), {}, PICTURE, 13),
    "einsum of stacks": (node("Einsum", "w", equation="bchw,cwd->bchd"), {"w": weight(4, 6, 2)}, PICTURE, 13),
    "einsum without a sum": (node("Einsum", "w", equation="bchw,c->bhwc"), {"w": weight(4)}, PICTURE, 13),
    "einsum outer": (node("Einsum", "w", equation="bchw,d->bdhwc"), {"w": weight(2)}, PICTURE, 13),
    "einsum of two axes": (node("Einsum", "w", equation="bchw,hwd->bcd"), {"w": weight(7, 6, 3)}, PICTURE, 13),
    "einsum sums alone": (node("Einsum", "w", equation="bchw,ce->bh"), {"w": weight(4, 3)}, PICTURE, 13),
    "einsum of the rest": (node("Einsum", "w", equation="...w,wd->...d"), {"w": weight(6, 2)}, PICTURE, 13),
    "einsum implicit": (node("Einsum", "w", equation="bchw,wa"), {"w": weight(6, 2)}, PICTURE, 13),
    "einsum of one": (node("Einsum", equation="bchw->wb"), {}, PICTURE, 13),
    "depth to space": (node("DepthToSpace", blocksize=2), {}, (1, 8, 3, 2), 13),
    "depth to space by channel": (node("DepthToSpace", blocksize=2, mode="CRD"), {}, (1, 8, 3, 2), 13),
    "space to depth": (node("SpaceToDepth", blocksize=2), {}, (1, 3, 4, 6), 13),
    "tile": (node("Tile", "r"), {"r": np.array([1, 2, 1, 3])}, PICTURE, 13),
    "where": (
        helper.make_node("Where", ["c", "x", "w"], ["y"]), {"c": weight(7, 1) > 0, "w": weight(6)}, PICTURE, 13),
    "where reversed": (
        helper.make_node("Where", ["c", "w", "x"], ["y"]), {"c": weight(3, 1, 7, 6) > 0, "w": weight(6)}, PICTURE, 13),
    "gather elements": (
        node("GatherElements", "i", axis=2), {"i": np.array([[[[0, -1, 3], [5, 2, -7]]]])}, (1, 4, 7, 6), 13),
    "gather nd": (node("GatherND", "i"), {"i": np.array([[0, 1, -1], [0, 3, 2]])}, PICTURE, 13),
    "scatter elements": (
        node("ScatterElements", "i", "u", axis=-1), {"i": np.array([[[1, -1], [0, 3]]]), "u": weight(1, 2, 2)},
        (1, 2, 6), 13),
    "scatter nd": (node("ScatterND", "i", "u"), {"i": np.array([[0, 3], [0, 1]]), "u": weight(2, 7, 6)}, PICTURE, 13),
    "scatter nd into a constant": (
        helper.make_node("ScatterND", ["w", "i", "x"], ["y"]), {"w": weight(5, 6), "i": np.array([[2]])}, (1, 6), 13),
    "concat constant after": (node("Concat", "w", axis=1), {"w": weight(1, 2, 7, 6)}, PICTURE, 13),
    "concat constant before": (
        helper.make_node("Concat", ["w", "x"], ["y"], axis=-2), {"w": weight(1, 1, 6)}, (1, 16, 6), 13),
    "concat constants between": (
        helper.make_node("Concat", ["w", "x", "v", "x"], ["y"], axis=1), {"w": weight(1, 1, 6), "v": weight(1, 2, 6)},
        (1, 3, 6), 13),
}  # fmt: skip


def step(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs.split(), output.split(), **attributes)


POSITIVE = (step("Abs", "x", "a"), step("Add", "a half", "p"))
HALF = {"half": np.float32(0.5)}
ATTENTION = (
    step("Transpose", "x", "t", perm=[0, 1, 3, 2]),
    step("MatMul", "x t", "scores"),
    step("Softmax", "scores", "shares"),
    step("MatMul", "shares x", "y"),
)


def resized(mode, coordinates, *, sizes=None, scales=None, shape=PICTURE, opset=19, **attributes):
    """A Resize to some sizes, or by some scales."""
    inputs = ("", "", "sizes") if sizes else ("", "scales")
    weights = {"sizes": np.array(sizes)} if sizes else {"scales": np.array(scales, np.float32)}
    made = node("Resize", *inputs, mode=mode, coordinate_transformation_mode=coordinates, **attributes)
    return made, weights, shape, opset


TWICE, THRICE = [1, 1, 2, 2], [1, 1, 3, 1.5]
ONE_NODE |= {
    f"resize {mode} {coordinates} {'x'.join(map(str, given))}": resized(mode, coordinates, **{key: given})
    for mode in ("nearest", "linear", "cubic")
    for coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
    for key, given in (("scales", TWICE), ("scales", THRICE), ("sizes", [1, 4, 5, 9]), ("scales", [1, 1, 0.6, 0.4]))
}
ONE_NODE |= {
    f"resize nearest {rounding}": resized("nearest", coordinates, sizes=[1, 4, 11, 3], nearest_mode=rounding)
    for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    for coordinates in ("half_pixel", "asymmetric")
}
ONE_NODE |= {
    "resize axes": resized("linear", "half_pixel", sizes=[9, 8], axes=[2, 3]),
    "resize with a value for outside": resized("linear", "half_pixel", scales=TWICE, extrapolation_value=7.0),
    "resize of opset 10": (
        helper.make_node("Resize", ["x", "s"], ["y"], mode="linear"), {"s": np.array(TWICE, np.float32)}, PICTURE, 10),
    "upsample": (
        helper.make_node("Upsample", ["x", "s"], ["y"]), {"s": np.array([1, 1, 2, 3], np.float32)}, PICTURE, 9),
    "upsample attribute": (helper.make_node("Upsample", ["x"], ["y"], scales=[1.0, 1.0, 2.0, 1.5]), {}, PICTURE, 8),
    "upsample linear": (
        helper.make_node("Upsample", ["x", "s"], ["y"], mode="linear"), {"s": np.array([1, 1, 2, 2], np.float32)},
        PICTURE, 9),
}  # fmt: skip
HIDDEN = np.where(np.tri(5, dtype=bool), 0, -np.inf).astype(np.float32)
NOTHING = np.full((5, 5), -np.inf, np.float32)
NOTHING[1:, 2:] = 0
# name: (nodes, weights, input shape, opset)
SEVERAL_NODES = {
    "attention": (ATTENTION, {}, (1, 2, 5, 3), 13),
    "attention on a convolution": (
        (step("Conv", "x w", "c"), step("Transpose", "c", "t", perm=[0, 1, 3, 2]), step("MatMul", "c t", "m"),
         step("Softmax", "m", "s", axis=1), step("MatMul", "s c", "y")), {"w": weight(3, 4, 2, 2)}, PICTURE, 13),
    "softmax of a convolution": (
        (step("Conv", "x w", "c"), step("Softmax", "c", "y", axis=1)), {"w": weight(3, 4, 2, 2)}, PICTURE, 13),
    "cuts of a convolution": (
        (step("Conv", "x w", "c"), step("Gather", "c i", "g", axis=1), step("Transpose", "g", "t", perm=[0, 2, 3, 1]),
         step("Slice", "t s e a", "y")),
        {"w": weight(3, 4, 2, 2), "i": np.array([2, 0]), "s": np.array([1]), "e": np.array([5]), "a": np.array([2])},
        PICTURE, 13),
    "matmul of other ranks": (
        (step("Squeeze", "x axis", "a"), step("Transpose", "x", "b", perm=[0, 1, 3, 2]), step("MatMul", "a b", "c"),
         step("MatMul", "b a", "d"), step("ReduceSum", "d", "e"), step("Add", "c e", "y")),
        {"axis": np.array([0])}, PICTURE, 13),
    "matmul that repeats a batch": (
        (step("ReduceMean", "x", "m", axes=[1]), step("Transpose", "m", "t", perm=[0, 1, 3, 2]),
         step("MatMul", "x t", "y")), {}, PICTURE, 13),
    "matmul of vectors": (
        (step("Reshape", "x flat", "v"), step("Tanh", "v", "u"), step("MatMul", "u v", "y")),
        {"flat": np.array([-1])}, (1, 6), 13),
    "matmul with vectors": (
        (step("Slice", "x zero one axis", "s"), step("Reshape", "s flat", "v"), step("MatMul", "x v", "a"),
         step("MatMul", "v x", "b"), step("Add", "a b", "y")),
        {"zero": np.array([0]), "one": np.array([1]), "axis": np.array([1]), "flat": np.array([-1])}, (1, 5, 5), 13),
    "gemm of computed values": (
        (step("Tanh", "x", "t"), step("Gemm", "x t x", "y", alpha=0.5, beta=-2.0, transB=1)), {}, (1, 1), 13),
    "max of two": ((step("Tanh", "x", "t"), step("Max", "x t", "y")), {}, PICTURE, 13),
    "max of several": (
        (step("Conv", "x w", "c"), step("Neg", "x", "n"), step("Max", "x v c n", "y")),
        {"w": weight(4, 4, 1, 1), "v": weight(6)}, PICTURE, 13),
    "min of two that widen": (
        (step("ReduceMean", "x", "m", axes=[1]), step("Min", "m x", "y")), {}, PICTURE, 13),
    "reduce max of a convolution": (
        (step("Conv", "x w", "c"), step("ReduceMax", "c", "y", axes=[2, 3])), {"w": weight(3, 4, 2, 2)}, PICTURE, 13),
    "where of two": (
        (step("Tanh", "x", "t"), step("Where", "c x t", "y")), {"c": weight(4, 1, 6) > 0}, PICTURE, 13),
    "log": ((*POSITIVE, step("Log", "p", "y")), HALF, PICTURE, 13),
    "reduce log sum": ((*POSITIVE, step("ReduceLogSum", "p", "y", axes=[1])), HALF, PICTURE, 13),
    "log softmax in the midst": ((step("LogSoftmax", "x", "l", axis=1), step("Mul", "l half", "y")), HALF, PICTURE, 13),
    "causal attention": (
        (*ATTENTION[:2], step("Add", "scores m", "masked"), step("Softmax", "masked", "shares"), ATTENTION[3]),
        {"m": HIDDEN}, (1, 2, 5, 3), 13),
    "attention with a mask that is moved": (
        (*ATTENTION[:2], step("Where", "m scores low", "masked"), step("Reshape", "masked s", "r"),
         step("Mul", "r half", "h"), step("Softmax", "h", "shares"), step("MatMul", "shares v", "y")),
        {"m": HIDDEN == 0, "low": np.float32(-np.inf), "s": np.array([2, 5, 5]), "v": weight(5, 2), **HALF},
        (1, 2, 5, 3), 13),
    "attention with a guard": (
        (*ATTENTION[:2], step("Add", "scores m", "masked"), step("Softmax", "masked", "s"), step("IsNaN", "s", "n"),
         step("Where", "n zero s", "shares"), ATTENTION[3]),
        {"m": NOTHING, "zero": np.float32(0)}, (1, 2, 5, 3), 13),
    "attention with a guard before": (
        (*ATTENTION[:2], step("Add", "scores m", "masked"), step("Equal", "masked low", "e"), step("Not", "e", "seen"),
         step("Cast", "seen", "number", to=1), step("ReduceMax", "number axis", "any"),
         step("Cast", "any", "some", to=9), step("Softmax", "masked", "s"), step("Where", "some s zero", "shares"),
         ATTENTION[3]),
        {"m": NOTHING, "zero": np.float32(0), "low": np.float32(-np.inf), "axis": np.array([-1])}, (1, 2, 5, 3), 18),
    "einsum of computed values": (
        (step("Tanh", "x", "t"), step("Einsum", "x t", "y", equation="bchw,bdhw->bcd")), {}, PICTURE, 13),
    "einsum of a convolution": (
        (step("Conv", "x w", "c"), step("Einsum", "c x", "y", equation="bchw,bdhv->bwcdv")), {"w": weight(3, 4, 1, 1)},
        PICTURE, 13),
    "resize of a convolution": (
        (step("Conv", "x w", "c"), step("Resize", "c _ s", "y", mode="linear")),
        {"w": weight(3, 4, 2, 2), "s": np.array([1, 1, 2, 0.7], np.float32), "_": np.zeros(0, np.float32)},
        PICTURE, 13),
    "mul of two": ((step("Tanh", "x", "t"), step("Mul", "t x", "y")), {}, PICTURE, 13),
    "mul of two layouts": (
        (step("Conv", "x w", "c"), step("Transpose", "x", "t", perm=[0, 1, 3, 2]), step("Mul", "c t", "y")),
        {"w": weight(4, 4, 1, 1)}, (1, 4, 5, 5), 13),
    "mul by a gate": (
        (step("Conv", "x w", "c"), step("GlobalAveragePool", "c", "m"), step("Sigmoid", "m", "g"),
         step("Reshape", "g shape", "r"), step("Mul", "r c", "y")),
        {"w": weight(4, 4, 1, 1), "shape": np.array([4, 1, 1])}, PICTURE, 13),
    "silu": ((step("Sigmoid", "x", "g"), step("Mul", "x g", "y")), {}, PICTURE, 13),
    "silu reversed": ((step("Sigmoid", "x", "g"), step("Mul", "g x", "y")), {}, PICTURE, 13),
    "gelu in parts": (
        (step("Div", "x root", "r"), step("Erf", "r", "e"), step("Add", "e one", "f"), step("Mul", "x f", "g"),
         step("Mul", "g half", "y")), {"root": np.float32(2**0.5), "one": np.float32(1), **HALF}, PICTURE, 13),
    "sqrt": ((*POSITIVE, step("Sqrt", "p", "y")), HALF, PICTURE, 13),
    "reciprocal": ((*POSITIVE, step("Reciprocal", "p", "y")), HALF, PICTURE, 13),
    "other powers": ((*POSITIVE, step("Pow", "p e", "y")), {"e": np.float32(-1.3), **HALF}, PICTURE, 13),
    "div of two": ((*POSITIVE, step("Div", "x p", "y")), HALF, PICTURE, 13),
    "div of a constant": ((*POSITIVE, step("Div", "w p", "y")), {"w": weight(4, 1, 1), **HALF}, PICTURE, 13),
    "softmax in parts": (
        (step("Exp", "x", "e"), step("ReduceSum", "e axis", "s"), step("Div", "e s", "y")), {"axis": np.array([1])},
        PICTURE, 13),
    "layer norm in parts": (
        (step("ReduceMean", "x", "m", axes=[-1]), step("Sub", "x m", "d"), step("Pow", "d two", "q"),
         step("ReduceMean", "q", "v", axes=[-1]), step("Add", "v tiny", "w"), step("Sqrt", "w", "s"),
         step("Div", "d s", "y")), {"two": np.float32(2), "tiny": np.float32(1e-5)}, PICTURE, 13),
    "split": (
        (step("Split", "x", "a b", axis=1), step("Tanh", "a", "t"), step("Mul", "t b", "y")), {}, PICTURE, 13),
    "split attribute": (
        (step("Split", "x", "a b", axis=-1, split=[1, 5]), step("Mul", "b a", "y")), {}, PICTURE, 11),
    "split input": (
        (step("Split", "x s", "a b c", axis=2), step("Add", "b c", "d"), step("Concat", "d a", "y", axis=2)),
        {"s": np.array([1, 3, 3])}, PICTURE, 13),
    "split unevenly": (
        (step("Split", "x", "a b", axis=2, num_outputs=2), step("Concat", "b a", "y", axis=2)), {}, PICTURE, 18),
    "concat constants and values": (
        (step("Conv", "x k", "c"), step("Concat", "w c v x", "y", axis=1)),
        {"k": weight(2, 4, 1, 1), "w": weight(1, 1, 7, 6), "v": weight(1, 3, 7, 6)}, PICTURE, 13),
    "scaled and read twice": (
        (step("MatMul", "x w", "l"), step("Mul", "l half", "s"), step("Mul", "l s", "m"), step("Add", "m s", "y")),
        {"w": weight(6, 3), **HALF}, PICTURE, 13),
}  # fmt: skip
TABLE = {**{name: ((one,), *rest) for name, (one, *rest) in ONE_NODE.items()}, **SEVERAL_NODES}


def outputs(name: str, x: np.ndarray, **changed: np.ndarray) -> np.ndarray:
    """What our graph computes for some nodes, flat; doubled, so that even one number is a network's output."""
    nodes, weights, shape, opset = TABLE[name]
    *before, last = nodes
    inner = helper.make_node(last.op_type, list(last.input), ["z"])
    inner.attribute.extend(last.attribute)
    flat = helper.make_node("Reshape", ["z", "end"], ["f"])
    twice = helper.make_node("Concat", ["f", "f"], ["y"], axis=1)
    constants = {**weights, **changed, "end": np.array([1, -1])}
    reading = read(model([*before, inner, flat, twice], shape, constants, opset=opset), name)
    assert reading.graph is not None, reading.problems
    rows = reading.graph.run(torch.from_numpy(np.stack([x, 2 * x])).double())
    return rows[0, : rows.shape[1] // 2].numpy()


def reference(name: str, x: np.ndarray) -> np.ndarray:
    nodes, weights, shape, opset = TABLE[name]
    data = model(nodes, shape, weights, opset=opset).SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0].reshape(-1)


@pytest.mark.parametrize("name", TABLE)
def test_nodes_like_onnxruntime(name):
    x = random.normal(size=TABLE[name][2]).astype(np.float32)
    ours, theirs = outputs(name, x), reference(name, x)
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 1e-5 * max(1.0, np.abs(theirs).max())


@pytest.mark.parametrize(("name", "key"), [("conv", "w"), ("layer norm", "s"), ("concat constants between", "v")])
def test_the_comparison_notices_a_wrong_weight(name, key):
    x = random.normal(size=TABLE[name][2]).astype(np.float32)
    wrong = outputs(name, x, **{key: TABLE[name][1][key] * np.float32(1.001)})
    assert np.abs(wrong - reference(name, x)).max() > 1e-5 * max(1.0, np.abs(wrong).max())


generator = torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


CHANNELS_LAST = (1, 4, 5, 2)
NARROW, WIDE, POSITIVE_NUMBERS = (-4.0, 4.0), (-12.0, 12.0), (0.05, 12.0)
convolution = Conv(normal(1, 3, 18), normal(3), SlidingWindow((3, 3), (2, 1), pads=(1, 0, 1, 1)))
few = Conv(normal(1, 2, 18), normal(2), SlidingWindow((3, 3), pads=(1, 1, 1, 1)))
MASK = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]], dtype=torch.float64)
# name: operator, shapes of its inputs, where its inputs are
OPERATORS: dict[str, tuple[Operator, list[tuple[int, ...]], tuple[float, float]]] = {
    "linear": (Linear(normal(3, 4), normal(3)), [(2, 4)], NARROW),
    "scale": (Scale(normal(4), normal(2, 4)), [(2, 4)], NARROW),
    "sum": (Combine(1), [(2, 4), (1, 4)], NARROW),
    "difference": (Combine(-1), [(2, 1), (2, 4)], NARROW),
    "mean": (Mean((0, 2)), [(2, 3, 4)], NARROW),
    "conv": (convolution, [CHANNELS_LAST], NARROW),
    "conv groups": (Conv(normal(2, 3, 4), normal(6), SlidingWindow((2, 2), dilations=(2, 1))), [CHANNELS_LAST], NARROW),
    "unrolled conv": (unrolled(few, torch.Size((1, 2, 2, 2))), [(1, 2, 2, 2)], NARROW),
    "average pool": (
        AveragePool(SlidingWindow((2, 2), (2, 2)), normal(2, 2, 1).abs() + 1), [CHANNELS_LAST], NARROW),
    "resample": (Resample(1, ((0, 0, 3, 2), (1, 0, 1, 3)), normal(2, 4)), [(2, 4, 3)], NARROW),
    "reshape": (Reshape((8, 5)), [CHANNELS_LAST], NARROW),
    "transpose": (Transpose((2, 0, 1)), [(2, 3, 4)], NARROW),
    "concat": (Concat(0), [(2, 3), (1, 3)], NARROW),
    "pad": (Pad(((0, 1), (-1, 2, 0, 0, -1)), 0.7), [(2, 3)], NARROW),
    "relu": (Relu(), [(2, 6)], WIDE),
    "leaky relu": (LeakyRelu(torch.tensor(0.2, dtype=torch.float64)), [(2, 6)], WIDE),
    "steep relu": (LeakyRelu(normal(6)), [(2, 6)], WIDE),
    "clip": (Clip(-0.5, 0.8), [(2, 6)], WIDE),
    "half clip": (Clip(-float("inf"), 0.3), [(2, 6)], WIDE),
    "abs": (Abs(), [(2, 6)], WIDE),
    "sign": (Sign(), [(2, 6)], WIDE),
    "round": (Round(), [(2, 6)], WIDE),
    "floor": (Floor(), [(2, 6)], WIDE),
    "ceil": (Ceil(), [(2, 6)], WIDE),
    "positive": (Positive(False), [(2, 6)], WIDE),
    "not negative": (Positive(True), [(2, 6)], WIDE),
    "max pool": (MaxPool(SlidingWindow((2, 2), (2, 2))), [CHANNELS_LAST], NARROW),
    "max pool overlapping": (MaxPool(SlidingWindow((3, 2), (1, 2), pads=(1, 1, 1, 0))), [CHANNELS_LAST], NARROW),
    "max pool padded": (MaxPool(SlidingWindow((3, 3), (2, 2), pads=(1, 1, 1, 1))), [CHANNELS_LAST], NARROW),
    "max pool of a relu": (MaxPool(SlidingWindow((2, 2), (1, 1)), floor=0.0), [CHANNELS_LAST], NARROW),
    "pairs": (
        Pairs(normal(7, 2), torch.tensor([[0, 1], [1, 3], [4, 2], [2, 0], [3, 0], [0, 4], [1, 2]]), normal(7)),
        [(5,)], NARROW),
    "least": (Ranked(1), [(2, 5)], NARROW),
    "greatest": (Ranked(5), [(2, 5)], NARROW),
    "third of six": (Ranked(3), [(2, 6)], NARROW),
    "last but one": (Ranked(8), [(9,)], NARROW),
    "sigmoid": (Sigmoid(), [(2, 6)], WIDE),
    "tanh": (Tanh(), [(2, 6)], WIDE),
    "erf": (Erf(), [(2, 6)], WIDE),
    "softplus": (Softplus(), [(2, 6)], WIDE),
    "gelu": (Gelu(), [(2, 6)], WIDE),
    "gelu tanh": (GeluTanh(), [(2, 6)], WIDE),
    "silu": (Silu(), [(2, 6)], WIDE),
    "hard swish": (HardSwish(), [(2, 6)], WIDE),
    "elu": (Elu(1.0), [(2, 6)], WIDE),
    "steep elu": (Elu(1.7), [(2, 6)], NARROW),
    "falling elu": (Elu(-0.6), [(2, 6)], NARROW),
    "mish": (Mish(), [(2, 6)], WIDE),
    "exp": (Exp(), [(2, 6)], WIDE),
    "log": (Log(), [(2, 6)], POSITIVE_NUMBERS),
    "square": (Power(2.0), [(2, 6)], WIDE),
    "cube": (Power(3.0), [(2, 6)], WIDE),
    "square root": (Power(0.5), [(2, 6)], POSITIVE_NUMBERS),
    "reciprocal": (Power(-1.0), [(2, 6)], POSITIVE_NUMBERS),
    "reciprocal of negatives": (Power(-1.0), [(2, 6)], (-12.0, -0.05)),
    "product": (Multiply(), [(2, 3), (2, 1)], NARROW),
    "matrix product": (MatMul(), [(2, 3, 4), (1, 4, 2)], NARROW),
    "normalisation": (Normalise((1,), 1e-5), [(2, 5)], NARROW),
    "normalisation of two axes": (Normalise((0, 2), 0.1), [(2, 3, 4)], WIDE),
    "softmax": (Softmax(1), [(2, 5)], NARROW),
    "wide softmax": (Softmax(0), [(4, 2)], WIDE),
    "masked softmax": (Softmax(1, MASK), [(2, 5)], NARROW),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=10)
def test_operators_keep_their_rules(name, seed):
    operator, shapes, within = OPERATORS[name]
    check_operator(operator, shapes, within=within, seed=seed, trials=2)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_broken_rule_is_noticed(name):
    operator, shapes, within = OPERATORS[name]
    for rule, broken in tampered(operator):
        with pytest.raises(AssertionError, match=f"{rule}: violated"):
            check_operator(broken, shapes, within=within, only=rule)


def test_every_operator_is_checked():
    def concrete(kind: type) -> set[type]:
        own = {sub for sub in kind.__subclasses__() if sub.__module__.startswith("shakeproof.operators")}
        below = {k for sub in own for k in concrete(sub)}
        return below if kind.__abstractmethods__ else below | {kind}

    assert concrete(Operator) == {type(operator) for operator, _, _ in OPERATORS.values()}


def test_beside_a_mask_nothing_is_known_of_what_is_as_low():
    """What a mask hides is only as good as minus infinity beside numbers of a usual size."""
    for size, known in ((1e3, True), (1e25, False)):
        ends = Range(torch.full((1, 2, 5), -size).double(), torch.full((1, 2, 5), size).double())
        relaxation = Softmax(1, MASK).relaxed(ends)
        assert bool(relaxation.spread(ends.radius)[:, 0].isfinite().all()) == known
        assert bool(Softmax(1).relaxed(ends).spread(ends.radius).isfinite().all())


def exactly_normalised(numbers: list[float], epsilon: float) -> list[Decimal]:
    """In fifty digits."""
    with localcontext(prec=50):
        x = [Decimal(number) for number in numbers]
        centred = [number - sum(x) / len(x) for number in x]
        root = (sum(number**2 for number in centred) / len(x) + Decimal(epsilon)).sqrt()
        return [number / root for number in centred]


@pytest.mark.parametrize("middle", [0.0, 1e3, 1e6, 1e9, 1e12])
@pytest.mark.parametrize("width", [0.0, 1e-9, 1e-3])
def test_rounding_is_in_a_normalisations_enclosure(middle, width):
    """Around a mean that is much larger than what it leaves, next to nothing of a computed value may be true."""
    operator, x = Normalise((0,), 1e-5), middle + normal(4, 8)
    relaxation = operator.relaxed(Range(x - width, x + width))
    spread = relaxation.spread(torch.zeros_like(x))
    image = relaxation.image()
    for sample in (x, x + width * (2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1)):
        points = relaxation.points(sample.unsqueeze(0))[0]
        for row in range(len(x)):
            truth = exactly_normalised(sample[row].tolist(), 1e-5)
            for place, true in enumerate(truth):
                beside = abs(Decimal(float(points[row, place])) - true)
                assert beside <= Decimal(float(spread[row, place]))
                assert Decimal(float(image.low[row, place])) <= true <= Decimal(float(image.high[row, place]))


@given(seed=st.integers(0, 10**6), chords=st.integers(2, 7))
def test_envelope_breaks_are_where_the_leader_changes(seed, chords):
    generator = np.random.default_rng(seed)
    left, right = generator.integers(-4, 5, (2, 3, chords)).astype(float)
    found = envelope_breaks(torch.from_numpy(left), torch.from_numpy(right))
    for group in range(3):
        cuts = np.sort(found.fraction[found.segment == group].numpy())
        ends = np.unique(np.concatenate([[0.0, 1.0], cuts]))
        middle = (ends[1:] + ends[:-1]) / 2
        height = lambda t, g=group: (left[g] + np.outer(t, right[g] - left[g])).max(1)  # noqa: E731
        assert np.abs(height(middle) - (height(ends[1:]) + height(ends[:-1])) / 2).max() < 1e-12


def test_envelope_without_strict_changes_is_empty():
    flat = torch.ones(2, 4, dtype=torch.float64)
    assert not len(envelope_breaks(flat, flat).segment)
    assert not len(envelope_breaks(flat[:0], flat[:0]).segment)


def test_no_rows_make_no_rows():
    assert Linear(torch.zeros(64, 512).double(), torch.zeros(64).double()).apply(
        torch.empty(0, 3, 512).double()
    ).shape == (0, 3, 64)
    assert Linear(torch.zeros(3, 4).double(), torch.zeros(3).double()).apply(torch.empty(0, 4).double()).shape == (0, 3)
    with pytest.raises(Unsupported, match="400000000 entries"):
        _check_size(Linear(torch.zeros(4, 1).double(), torch.zeros(4).double()), [torch.Size((10**8, 1))])


@pytest.mark.parametrize("rows", [1, 32, 33, 200])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.74, 0.76, 1.0])
def test_inputs_that_are_0_in_all_rows_are_left_out_and_nothing_else(rows, share):
    random = torch.Generator().manual_seed(0)
    weight = torch.randint(-9, 9, (80, 500), generator=random).double()
    x = torch.randint(-9, 9, (rows, 500), generator=random).double()
    x[:, int(500 * share) :] = 0
    x[-1, 499] = 3.0  # in the last row alone
    linear = Linear(weight, torch.arange(80).double())
    assert torch.equal(linear.apply(x), x @ weight.t() + linear.bias)
    x[0, 0] = torch.nan
    assert bool(linear.apply(x)[0].isnan().all())


def test_a_weight_that_makes_something_of_0_is_not_left_out():
    weight = torch.zeros(80, 500).double()
    weight[3, 7] = torch.inf
    product = Linear(weight, torch.zeros(80).double()).apply(torch.zeros(2, 500).double())
    assert bool(product[:, 3].isnan().all())
