"""Enclosures with something a little wrong."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from shakeproof.operators import Cells, Range, Relaxation


def without_lower_part(found: Range, share: float) -> Range:
    return Range(found.low + share * (found.high - found.low), found.high)


@dataclass(frozen=True, eq=False)
class Wrapped(Relaxation):
    """Another enclosure; those derived from it change one thing."""

    inner: Relaxation

    def points(self, *values: Tensor) -> Tensor:
        return self.inner.points(*values)

    def spread(self, *radii: Tensor) -> Tensor:
        return self.inner.spread(*radii)

    def pull(self, coefficients: Tensor, cell: Cells) -> tuple[tuple[Tensor, ...], Tensor]:
        return self.inner.pull(coefficients, cell)

    def attained(self, coefficients: Tensor, *values: Tensor) -> Tensor:
        return self.inner.attained(coefficients, *values)

    def image(self, *ranges: Range) -> Range | None:
        return self.inner.image(*ranges)


class OtherPoints(Wrapped):
    """An affine function that is off."""

    def points(self, *values: Tensor) -> Tensor:
        found = self.inner.points(*values)
        return found + 0.05 * (found.abs() + 1)


class SmallSpread(Wrapped):
    """Half the spread: what a radius for a width would be."""

    def spread(self, *radii: Tensor) -> Tensor:
        return self.inner.spread(*radii) / 2


class SmallImage(Wrapped):
    """An image without its lower part."""

    def image(self, *ranges: Range) -> Range | None:
        found = self.inner.image(*ranges)
        if found is not None:
            return without_lower_part(found, 0.4)
        middle = self.inner.points(*(given.centre.unsqueeze(0) for given in ranges))[0]
        return Range(middle, middle)


class HighPlane(Wrapped):
    """A plane that is too high, and attained consistently."""

    def pull(self, coefficients: Tensor, cell: Cells) -> tuple[tuple[Tensor, ...], Tensor]:
        pulled, constant = self.inner.pull(coefficients, cell)
        return pulled, constant + 0.3 * coefficients.abs().flatten(1).sum(1)

    def attained(self, coefficients: Tensor, *values: Tensor) -> Tensor:
        return self.inner.attained(coefficients, *values) + 0.3 * coefficients.sign()


class OtherSlopes(Wrapped):
    """A plane that does not go through what is attained."""

    def pull(self, coefficients: Tensor, cell: Cells) -> tuple[tuple[Tensor, ...], Tensor]:
        pulled, constant = self.inner.pull(coefficients, cell)
        return tuple(1.01 * part + 0.01 for part in pulled), constant


class OtherAttained(Wrapped):
    """Attained values that are not on the plane."""

    def attained(self, coefficients: Tensor, *values: Tensor) -> Tensor:
        return 1.01 * self.inner.attained(coefficients, *values) + 0.01


class LostCoefficients(Wrapped):
    """A plane made in place."""

    def pull(self, coefficients: Tensor, cell: Cells) -> tuple[tuple[Tensor, ...], Tensor]:
        found = self.inner.pull(coefficients, cell)
        coefficients.mul_(1.01)
        return found


class OtherCells(Wrapped):
    """Answers in the order of the cells instead of the rows."""

    def pull(self, coefficients: Tensor, cell: Cells) -> tuple[tuple[Tensor, ...], Tensor]:
        pulled, constant = self.inner.pull(coefficients, cell)
        return tuple(part[cell] for part in pulled), constant[cell]
