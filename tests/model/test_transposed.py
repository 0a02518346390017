"""Transposed convolutions in whole networks: as onnxruntime runs them, in fractions, and in certificates."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import model
from onnx import helper

import shakeproof as sp
from shakeproof import checker
from shakeproof.certificate import certificate
from shakeproof.errors import UnsupportedNetworkError
from shakeproof.model.onnx_reader import read


@st.composite
def transposed(draw: st.DrawFn) -> onnx.ModelProto:
    """One ConvTranspose with small whole numbers, in one or two dimensions, with any options."""
    axes, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))

    def each(low: int, high: int, count: int = axes) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    kernel, strides = each(1, 4), each(1, 4)
    options = {"group": group, "strides": strides, "dilations": each(1, 3)}
    options["output_padding"] = [draw(st.integers(0, stride - 1)) for stride in strides]
    match draw(st.sampled_from(["pads", "auto_pad", "output_shape"])):
        case "pads":
            options["pads"] = each(0, 3, 2 * axes)
        case "auto_pad":
            options["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
        case "output_shape":
            options["output_shape"] = each(1, 12)
            options["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "NOTSET"]))
    channels, sides, random = group * draw(st.integers(1, 2)), each(1, 5), np.random.default_rng(draw(st.integers(0)))
    weights = {"w": random.integers(-4, 5, (channels, 2, *kernel)), "b": random.integers(-4, 5, 2 * group)}
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **options)
    return model([node], (1, channels, *sides), {name: w.astype(np.float32) for name, w in weights.items()})


@given(proto=transposed(), seed=st.integers(0, 2**32))
@settings(max_examples=200)
def test_whole_numbers_are_as_onnxruntime_has_them(proto, seed):
    """Nothing is rounded, so they are equal; what the two would run otherwise is refused."""
    reading = read(proto, "net.onnx")
    if reading.graph is None:
        assert "pads=" in reading.refusal or "which onnxruntime does its own way" in reading.refusal
        return
    x = np.random.default_rng(seed).integers(-4, 5, reading.graph.input_shape).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    runtime = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    try:
        theirs = runtime.run(None, {"x": x})[0]
    except onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument:
        return  # it does not run such paddings of dilated kernels
    ours = reading.graph.run(torch.from_numpy(x)[None].double()).numpy()
    assert reading.parts[0].shape == theirs.shape[theirs.ndim > 1 == theirs.shape[0] :]
    assert (ours.ravel() == theirs.ravel()).all()


def upsampling(seed: int) -> onnx.ModelProto:
    """Convolve and halve the picture, double it again by a transposed convolution, add the two, and classify."""
    random = np.random.default_rng(seed)
    shapes = {"down": (3, 1, 3, 3), "up": (3, 1, 4, 4), "bias": (1,), "last": (36, 3)}
    weights = {name: (random.normal(size=shape) / 2).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "down"], ["a"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("ConvTranspose", ["b", "up", "bias"], ["c"], strides=[2, 2], pads=[1] * 4),
        helper.make_node("Add", ["c", "x"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "last"], ["y"]),
    ]
    return model(nodes, (1, 1, 6, 6), weights)


def fractions(numbers: np.ndarray) -> np.ndarray:
    return np.vectorize(Fraction, otypes=[object])(numbers.astype(float))


def blurred(pixels: np.ndarray, z: Fraction) -> np.ndarray:
    """A picture's 3 x 3 box blur with zeros around it, in fractions."""
    exact = fractions(pixels)
    padded = np.pad(exact, 1, constant_values=Fraction(0))
    mean = sum(padded[i : i + 6, j : j + 6] for i in range(3) for j in range(3)) * Fraction(1, 9)
    return exact * (1 - z) + mean * z


def scores_in_fractions(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """The network above, by the definitions of its operators."""
    down, up, bias, last = (fractions(onnx.numpy_helper.to_array(t)) for t in proto.graph.initializer)
    padded = np.pad(x, 1, constant_values=Fraction(0))
    small = np.array(
        [
            [[(down[c, 0] * padded[2 * i : 2 * i + 3, 2 * j : 2 * j + 3]).sum() for j in range(3)] for i in range(3)]
            for c in range(3)
        ]
    ).clip(Fraction(0))
    large = np.full((8, 8), bias[0])
    for c, i, j in product(range(3), repeat=3):
        large[2 * i : 2 * i + 4, 2 * j : 2 * j + 4] += up[c, 0] * small[c, i, j]
    return ((large[1:-1, 1:-1] + x).clip(Fraction(0)).reshape(1, -1) @ last)[0]


@pytest.mark.parametrize("seed", range(8))
def test_critical_strengths_are_those_in_fractions(seed, tmp_path):
    proto, pixels = upsampling(seed), np.random.default_rng(seed).uniform(size=(1, 6, 6))
    (tmp_path / "net.onnx").write_bytes(proto.SerializeToString())
    network = sp.load(tmp_path / "net.onnx")
    result = sp.profile(network, pixels, "box-blur:size=3,padding=zeros")
    for interval in result.profile:
        middle = (interval.start + interval.end) / 2
        for z in (interval.start + 1e-9, middle, interval.end - 1e-9):
            if interval.start < z < interval.end:
                scores = scores_in_fractions(proto, blurred(pixels[0], Fraction(z)))
                assert int(np.argmax(scores)) == interval.winner
    assert result.profile[-1].end == 1.0


def test_certificates_are_checked_and_tampered_weights_refused(tmp_path):
    proto, pixels = upsampling(0), np.random.default_rng(0).uniform(size=(1, 6, 6))
    (tmp_path / "net.onnx").write_bytes(proto.SerializeToString())
    network = sp.load(tmp_path / "net.onnx")
    result = sp.verify(network, pixels, "box-blur:size=3,padding=zeros", 0.05)
    assert result.status == "safe"
    made = certificate(network, result)
    assert checker.check(made, proto.SerializeToString()).accepted
    proto.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.zeros((3, 1, 4, 4), np.float32), "up"))
    assert not checker.check(made, proto.SerializeToString()).accepted


def test_negative_padding_is_refused(tmp_path):
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], pads=[-1, 0, 0, 0])
    (tmp_path / "net.onnx").write_bytes(
        model([node], (1, 1, 4, 4), {"w": np.ones((1, 1, 3, 3), np.float32)}).SerializeToString()
    )
    with pytest.raises(UnsupportedNetworkError, match="pads="):
        sp.load(tmp_path / "net.onnx")
