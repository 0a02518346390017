"""Certified norms are at least the true ones, by a dense matrix of the whole operator, and not much more."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from models import model
from onnx import helper

from shakeproof.checker import spectral


def matrix_norms(matrix: np.ndarray) -> tuple[float, float]:
    """A product is a convolution without a kernel."""
    return spectral.convolution_norms(matrix[None], [], [], [])


def unrolled(weight: np.ndarray, side: int, strides: tuple[int, int], dilations: tuple[int, int], pads: list[int]):
    """The matrix of a convolution, by onnxruntime on every unit picture; `weight` (groups, out, in, h, w)."""
    groups, outputs, inputs, *kernel = weight.shape
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=strides, dilations=dilations, pads=pads, group=groups)
    shape = ("n", groups * inputs, side, side)
    data = model([node], shape, {"w": weight.reshape(groups * outputs, inputs, *kernel).astype(np.float32)})
    runtime = onnxruntime.InferenceSession(data.SerializeToString(), providers=["CPUExecutionProvider"])
    units = np.eye(groups * inputs * side * side, dtype=np.float32).reshape(-1, *shape[1:])
    return runtime.run(None, {"x": units})[0].reshape(len(units), -1).astype(float).T


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 1)])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 4)])
def test_convolutions(groups, strides, dilations, kernel):
    random = np.random.default_rng(groups)
    weight = random.normal(size=(groups, 6 // groups + 1, 4 // groups, *kernel)).astype(np.float32).astype(float)
    reach = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    for pads in ([0] * 4, [*reach, *reach], [1, 0, 0, 2]):
        true = unrolled(weight, 9, strides, dilations, pads)
        sigma, absolute = spectral.convolution_norms(weight, strides, dilations, (9, 9))
        norm, size = (np.linalg.norm(matrix, 2) for matrix in (true, np.abs(true)))
        assert sigma >= norm * (1 - 1e-6)  # the matrix was made in float32
        assert absolute >= size * (1 - 1e-6)
        if strides == (1, 1) and pads == [*reach, *reach] and groups == 1:
            assert sigma <= 1.1 * norm


def test_a_coarse_bound_where_the_sharp_one_costs_too_much(monkeypatch):
    monkeypatch.setattr(spectral, "MOST_WORK", 0)
    weight = np.random.default_rng(0).normal(size=(1, 3, 2, 3, 3))
    true = unrolled(weight, 7, (2, 1), (1, 1), [1] * 4)
    sigma, absolute = spectral.convolution_norms(weight, (2, 1), (1, 1), (7, 7))
    assert sigma >= np.linalg.norm(true, 2)
    assert absolute >= np.linalg.norm(np.abs(true), 2)
    matrix = np.random.default_rng(0).normal(size=(20, 30))
    assert matrix_norms(matrix)[0] >= np.linalg.norm(matrix, 2)


@pytest.mark.parametrize("shape", [(1, 1), (5, 40), (40, 5), (64, 64)])
@pytest.mark.parametrize("rank", [1, None])
def test_matrices(shape, rank):
    for seed in range(5):
        random = np.random.default_rng(seed)
        matrix = random.normal(size=shape) * 10.0 ** random.uniform(-30, 30)
        if rank:
            matrix = matrix[:, :1] * matrix[:1]
        sigma, absolute = matrix_norms(matrix)
        assert np.linalg.norm(matrix, 2) * (1 - 1e-14) <= sigma <= 1.1 * np.linalg.norm(matrix, 2)
        assert absolute >= np.linalg.norm(np.abs(matrix), 2) * (1 - 1e-14)


def test_nearly_equal_singular_values_and_zeros():
    """Where power iteration is slow to see the largest one, or has nothing to see."""
    for diagonal in (np.ones(50), np.r_[1.05, np.ones(49)], np.zeros(4), np.array([np.nan, 1.0])):
        sigma, _ = matrix_norms(np.diag(diagonal))
        assert not sigma < diagonal.max()


def test_a_guess_is_not_believed(monkeypatch):
    """Power iteration may say what it likes: Cholesky decides."""
    monkeypatch.setattr(spectral, "_estimate", lambda gram: 1e-6)
    matrix = np.random.default_rng(0).normal(size=(20, 30))
    assert matrix_norms(matrix)[0] >= np.linalg.norm(matrix, 2)
