"""Convolution kernels that are affine in some strengths, in exact fractions: K(z) = sum_i A_i z_i + B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class ParameterisedKernel:
    """K(z) = sum_i A_i z_i + B: `coefficients` holds the A_i (m >= 1 of them), `bias` is B; all h x w."""

    coefficients: tuple[Matrix, ...]
    bias: Matrix

    def __post_init__(self) -> None:
        shapes = {(len(matrix), *map(len, matrix)) for matrix in (*self.coefficients, self.bias)}
        if not self.coefficients or len(shapes) != 1:
            raise ValueError("a parameterised kernel needs at least one coefficient matrix, all of the bias's shape")

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.bias), len(self.bias[0])

    @property
    def parameters(self) -> int:
        """The number m of strengths."""
        return len(self.coefficients)

    def at(self, *strengths: Fraction | float) -> Matrix:
        """The kernel matrix K(z) for given strengths z_1, ..., z_m, exactly."""
        if len(strengths) != self.parameters:
            raise ValueError(f"this kernel takes {self.parameters} strengths, not {len(strengths)}")
        exact = [Fraction(z) for z in strengths]
        height, width = self.shape
        return tuple(
            tuple(
                sum((a[i][j] * z for a, z in zip(self.coefficients, exact, strict=True)), self.bias[i][j])
                for j in range(width)
            )
            for i in range(height)
        )


def absolute(matrix: Matrix) -> Matrix:
    """The matrix of the entries' absolute values."""
    return tuple(tuple(map(abs, row)) for row in matrix)


def combined(changes: Sequence[Matrix]) -> ParameterisedKernel:
    """I + sum_i z_i C_i for changes C_i of any sizes, all odd or all even, with their centres on each other."""
    height, width = max(map(len, changes)), max(len(change[0]) for change in changes)
    return ParameterisedKernel(
        tuple(_widened(change, height, width) for change in changes), identity_matrix(height, width)
    )


def _widened(matrix: Matrix, height: int, width: int) -> Matrix:
    """The matrix with as many zeros on either side as it takes."""
    above, left = (height - len(matrix)) // 2, (width - len(matrix[0])) // 2
    if (len(matrix) + 2 * above, len(matrix[0]) + 2 * left) != (height, width):
        raise ValueError("matrices of odd and even sizes have no common centre")
    empty, beside = ((Fraction(0),) * width,) * above, (Fraction(0),) * left
    return (*empty, *((*beside, *row, *beside) for row in matrix), *empty)


def identity_matrix(height: int, width: int) -> Matrix:
    """The kernel that leaves an image as it is; an even side has no centre and averages its two middle entries.

    An even square kernel is therefore a 2 x 2 box blur (1/4 each), the paper's even identity.
    """
    return tuple(tuple(v * h for h in _middle(width)) for v in _middle(height))


def _middle(size: int) -> Sequence[Fraction]:
    centre = [size // 2] if size % 2 else [size // 2 - 1, size // 2]
    return [Fraction(1, len(centre)) if i in centre else Fraction(0) for i in range(size)]
