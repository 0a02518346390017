"""Einstein's summation of one operand or two, as permutations, a product and a sum."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from shakeproof.network.build import Builder, Unsupported, Value
from shakeproof.network.compose import Operand, matmul, multiply, reshaped, total
from shakeproof.network.onnx_constants import summed
from shakeproof.network.reading import ROUNDED

# Names for the axes that an equation leaves to "...": no letter that it may use itself.
REST = "0123456789"


def einsum(b: Builder, equation: str, operands: Sequence[Operand]) -> Value:
    """`equation` as numpy.einsum takes it, for operands none of which has an axis twice."""
    inputs, output = _axes(equation, [len(x.shape) for x in operands])
    if len(operands) > 2 or any(len(set(axes)) < len(axes) for axes in (*inputs, output)):
        raise Unsupported(f"the equation {equation}")
    kept = [set(output).union(*(other for other in inputs if other is not axes)) for axes in inputs]
    summed = [_without(b, x, axes, keep) for x, axes, keep in zip(operands, inputs, kept, strict=True)]
    if len(summed) == 1:
        ((x, axes),) = summed
        assert isinstance(x, Value)
        return b.transpose(x, [axes.index(axis) for axis in output])
    (first, own), (second, others) = summed
    return _product(b, first, own, second, others, output)


def _product(b: Builder, first: Operand, own: str, second: Operand, others: str, output: str) -> Value:
    """A matrix product for each entry of the axes that both have and keep; a plain one where nothing is summed."""
    both = [axis for axis in own if axis in others]
    batch, summed = [axis for axis in both if axis in output], [axis for axis in both if axis not in output]
    rows, columns = [axis for axis in own if axis not in both], [axis for axis in others if axis not in both]
    sizes = _sizes((first, own), (second, others))
    if not summed:
        return multiply(b, _aligned(b, first, own, output), _aligned(b, second, others, output))
    left = _matrices(b, _arranged(b, first, own, [*batch, *rows, *summed]), sizes, (batch, rows, summed))
    right = _matrices(b, _arranged(b, second, others, [*batch, *summed, *columns]), sizes, (batch, summed, columns))
    found = [*batch, *rows, *columns]
    made = b.reshape(matmul(b, left, right), [sizes[axis] for axis in found])
    return b.transpose(made, [found.index(axis) for axis in output])


def _axes(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The axes of each operand and of the output, a letter or digit each."""
    given, arrow, output = equation.replace(" ", "").partition("->")
    words = given.split(",")
    if len(words) != len(ranks):
        raise Unsupported(f"the equation {equation} for {len(ranks)} operands")
    left = [rank - len(word.replace("...", "")) for word, rank in zip(words, ranks, strict=True)]
    widest = max((rank for word, rank in zip(words, left, strict=True) if "..." in word), default=0)
    if widest > len(REST) or any(rank != 0 and "..." not in word for word, rank in zip(words, left, strict=True)):
        raise Unsupported(f"the equation {equation} for operands of {list(ranks)} axes")
    inputs = [word.replace("...", REST[widest - rank : widest]) for word, rank in zip(words, left, strict=True)]
    if not arrow:  # what appears once, in the order of the alphabet
        once = sorted(axis for axis in set("".join(inputs)) - set(REST) if "".join(inputs).count(axis) == 1)
        return inputs, REST[:widest] + "".join(once)
    return inputs, output.replace("...", REST[:widest])


def _without(b: Builder, x: Operand, axes: str, kept: set[str]) -> tuple[Operand, str]:
    """An operand summed over the axes that nothing else has; of a constant, exactly."""
    alone = [place for place, axis in enumerate(axes) if axis not in kept]
    if alone:
        x = _constant_sum(b, x, alone) if isinstance(x, Tensor) else total(b, x, alone, keep=False)
    return x, "".join(axis for axis in axes if axis in kept)


def _constant_sum(b: Builder, x: Tensor, axes: Sequence[int]) -> Tensor:
    b.note_computed()
    sums, is_exact = summed(x.numpy(), axes)
    if not bool(is_exact.all()):
        raise Unsupported(ROUNDED)
    return torch.from_numpy(np.asarray(sums))


def _sizes(*operands: tuple[Operand, str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for x, axes in operands:
        for size, axis in zip(x.shape, axes, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise Unsupported(f"axis {axis} of length {size} and {sizes[axis]}")
    return sizes


def _arranged(b: Builder, x: Operand, axes: str, order: Sequence[str]) -> Operand:
    places = [axes.index(axis) for axis in order]
    return x.permute(places) if isinstance(x, Tensor) else b.transpose(x, places)


def _aligned(b: Builder, x: Operand, axes: str, output: str) -> Operand:
    """With an axis of length 1 for each of the output's that it has not."""
    arranged = _arranged(b, x, axes, [axis for axis in output if axis in axes])
    sizes = iter(arranged.shape)
    return reshaped(b, arranged, tuple(next(sizes) if axis in axes else 1 for axis in output))


def _matrices(b: Builder, x: Operand, sizes: dict[str, int], groups: Sequence[Sequence[str]]) -> Operand:
    batch, *sides = (prod(sizes[axis] for axis in group) for group in groups)
    shape = tuple(sides) if batch == 1 else (batch, *sides)
    return reshaped(b, x, shape)
