"""Norms of layers are proved bounds: never below the truth, and close to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shakeproof import linalg
from shakeproof.operators import Affine, AveragePool, Combine, Conv, Linear, Mean, Scale, SlidingWindow, operator_norms


def dense(operator: Affine, shape: tuple[int, ...]) -> Tensor:
    """The operator as a matrix, (inputs, outputs)."""
    units = torch.eye(int(np.prod(shape)), dtype=torch.float64).view(-1, *shape)
    return (operator.apply(units) - operator.apply(torch.zeros(1, *shape, dtype=torch.float64))).flatten(1)


def norms(operator: Affine, shape: tuple[int, ...]) -> tuple[float, float]:
    matrix = dense(operator, shape)
    return float(torch.linalg.matrix_norm(matrix, 2)), float(torch.linalg.matrix_norm(matrix.abs(), 2))


@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    dilations=st.sampled_from([(1, 1), (1, 1), (2, 1), (2, 2)]),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    groups=st.sampled_from([1, 1, 2, 4]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60)
def test_convolutions_stretch_no_more_than_is_said(kernel, strides, dilations, pads, groups, seed):
    random = torch.Generator().manual_seed(seed)
    shape = (1, 8, 7, 4)
    weight = torch.randn(
        groups, 8 // groups, kernel[0] * kernel[1] * 4 // groups, dtype=torch.float64, generator=random
    )
    weight = weight * 10.0 ** torch.randint(-3, 3, (groups, 8 // groups, 1), generator=random)
    conv = Conv(weight, torch.ones(8, dtype=torch.float64), SlidingWindow(kernel, strides, dilations, pads))
    if min(conv.window.output_size(8, 7)) < 1:
        return
    ((signed, absolute),) = operator_norms(conv, [torch.Size(shape)])
    true, truly_absolute = norms(conv, shape)
    assert true <= signed <= 1.001 * max(absolute, true)
    assert truly_absolute <= absolute <= 1.05 * truly_absolute
    if strides == dilations == (1, 1) and min(pads) >= 1:
        assert signed <= 1.35 * true


@pytest.mark.parametrize("shape", [(3, 40), (40, 3), (20, 20), (1, 7), (7, 1)])
def test_matrices_stretch_no_more_than_is_said(shape):
    random = torch.Generator().manual_seed(0)
    linear = Linear(torch.randn(shape, dtype=torch.float64, generator=random), torch.zeros(shape[0]).double())
    ((signed, _),) = operator_norms(linear, [torch.Size(shape[1:])])
    true = float(torch.linalg.matrix_norm(linear.weight, 2))
    assert true <= signed <= 1.03 * true


def test_the_power_iteration_is_not_trusted(monkeypatch):
    """A guess far too low is refused by the factorisation, and raised until it is not."""
    for guess in (1e-3, 8.99):
        monkeypatch.setattr(linalg, "_largest_eigenvalue", lambda gram, guess=guess: guess)
        linear = Linear(torch.diag(torch.tensor([3.0, 1.0, 0.5])).double(), torch.zeros(3).double())
        ((signed, _),) = operator_norms(linear, [torch.Size([3])])
        assert signed >= 3


@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        (Mean((1, 2)), [(1, 4, 4, 3)]),
        (Scale(torch.tensor([2.0, -3.0]).double(), torch.ones(2).double()), [(5, 2)]),
        (AveragePool(SlidingWindow((2, 2), (1, 1)), torch.full((3, 3, 1), 4.0).double()), [(1, 4, 4, 2)]),
        (Combine(-1), [(3,), (3,)]),
    ],
)
def test_simple_operators(operator, shapes):
    for place, (signed, absolute) in enumerate(operator_norms(operator, [torch.Size(shape) for shape in shapes])):
        units = torch.eye(int(np.prod(shapes[place])), dtype=torch.float64).view(-1, *shapes[place])
        others = [torch.zeros(len(units), *shape, dtype=torch.float64) for shape in shapes]
        zero = operator.apply(*(other[:1] for other in others))
        matrix = (operator.apply(*(units if i == place else o for i, o in enumerate(others))) - zero).flatten(1)
        true = float(torch.linalg.matrix_norm(matrix, 2))
        assert true <= signed <= absolute * 1.001
        assert signed <= 1.1 * true + 1e-9


@pytest.mark.parametrize("size", [2.0**-560, 2.0**560, float("nan")])
def test_nothing_is_said_of_what_cannot_be_squared(size):
    linear = Linear(torch.full((2, 2), size, dtype=torch.float64), torch.zeros(2).double())
    assert operator_norms(linear, [torch.Size([2])]) == ((float("inf"), float("inf")),)
