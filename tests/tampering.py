"""Negative controls: an operator with one rule broken a little, for each rule it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from shakeproof.operators import (
    Affine,
    Breaks,
    Cells,
    Elementwise,
    Entries,
    Jumping,
    Operator,
    PiecewiseLinear,
    Range,
    Relaxation,
    Smooth,
)
from shakeproof.testing import rules
from shakeproof.testing.rules import Check

# -- enclosures with something a little wrong --------------------------------------------------------------------------


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


# -- operators with one rule broken ------------------------------------------------------------------------------------

# Makes of what a method returned, and of what it was given, what a broken one would return.
Alteration = Callable[..., Any]


@dataclass(frozen=True)
class Tampering:
    """A way to break a rule of operators of some kind: what one of their methods returns is altered."""

    broken: Check
    kind: type[object]
    method: str
    alter: Alteration


def tampered(operator: Operator) -> Iterator[tuple[str, Operator]]:
    """Versions of an operator that break one rule a little (and others that follow from it), each with its name.

    A rule may be broken in several ways. What an operator has not (tilts, say) is not broken.
    """
    for tampering in TAMPERINGS:
        if isinstance(operator, tampering.kind) and getattr(operator, tampering.method) is not None:
            broken = altered(operator, tampering.method, tampering.alter)
            yield tampering.broken.__name__.replace("_", " "), broken


def altered(operator: Operator, method: str, alter: Alteration) -> Operator:
    """The same operator, of a class with one method (or property) altered."""
    kind = type(operator)
    own = getattr(kind, method)

    def of_method(self: Operator, *given: Any) -> Any:
        return alter(own(self, *given), *given)

    def of_property(self: Operator) -> Any:
        return alter(own.__get__(self))

    replaced = of_method if callable(own) else property(of_property)
    broken: Operator = object.__new__(type(f"Tampered{kind.__name__}", (kind,), {method: replaced}))
    cached = {name for name in vars(operator) if isinstance(getattr(kind, name, None), cached_property)}
    vars(broken).update({name: value for name, value in vars(operator).items() if name not in cached})
    return broken


def _scaled(found: Tensor, *given: Any) -> Tensor:
    return 1.01 * found


def _scaled_apply(found: Operator, *given: Any) -> Operator:
    return altered(found, "apply", _scaled)


def _spoiling(out: Tensor, *inputs: Tensor) -> Tensor:
    inputs[0].mul_(1.01)
    return out


def _lower_part_lost(share: float) -> Alteration:
    return lambda found, *given: without_lower_part(found, share)


def _last_negated(parts: tuple[Tensor, ...], *given: Any) -> tuple[Tensor, ...]:
    return *parts[:-1], -parts[-1]


def _other_entries(found: Entries | None, given: Entries, *where: Any) -> Entries:
    if found is not None:
        return found._replace(value=1.01 * found.value)
    first = torch.zeros(len(given.value), 1, dtype=torch.int64)
    return Entries(first, torch.full_like(first, 1000, dtype=torch.float64))


def _first_lost(found: Breaks, *given: Any) -> Breaks:
    return Breaks(*(column[1:] for column in found[:3]))


def _on_a_row(found: Breaks, *given: Any) -> Breaks:
    return found._replace(fraction=found.fraction.floor())


def _across_lines(found: Breaks, x: Tensor, joined: Tensor) -> Breaks:
    apart = (~joined).nonzero().flatten()
    half = torch.full_like(apart, 0.5, dtype=x.dtype)
    return Breaks(*(torch.cat(columns) for columns in zip(found[:3], (apart, half, half), strict=True)))


def _shorter(found: float, *given: Any) -> float:
    return found / 16


def _flat(found: Breaks, *given: Any) -> Breaks:
    return found._replace(height=found.height / 8)


def _wrapping(kind: type[Wrapped]) -> Alteration:
    return lambda found, *ranges: kind(found)


def _other_alone(found: Relaxation, *ranges: Range) -> Relaxation:
    return HighPlane(found) if len(ranges[0].low) == 1 else found


def _mixing_rows(out: Tensor, *inputs: Tensor) -> Tensor:
    return out + 0.01 * out.mean(0)


def _mixing_entries(out: Tensor, *inputs: Tensor) -> Tensor:
    return out + 0.01 * out.mean(-1, keepdim=True)


def _never_split(found: Tensor, *given: Any) -> Tensor:
    return torch.full_like(found, torch.nan)


def _split_at_an_end(found: Tensor, within: Range) -> Tensor:
    return torch.where(found.isnan(), found, within.low)


def _wavy(found: Tensor, x: Tensor) -> Tensor:
    return found + 0.1 * (1 + found.abs().amax()) * (5 * x).sin()


ENCLOSURES: tuple[tuple[Check, type[Wrapped]], ...] = (
    (rules.points_and_spread_enclose_outputs, OtherPoints),
    (rules.points_and_spread_enclose_outputs, SmallSpread),
    (rules.image_contains_outputs, SmallImage),
    (rules.pull_is_a_lower_bound, HighPlane),
    (rules.attained_is_where_pull_has_equality, OtherSlopes),
    (rules.attained_is_where_pull_has_equality, OtherAttained),
    (rules.pull_leaves_its_coefficients_as_they_are, LostCoefficients),
    (rules.pull_takes_the_cell_of_each_row, OtherCells),
)

METHODS: tuple[tuple[Check, type[object], str, Alteration], ...] = (
    (rules.apply_treats_each_row_alone, Operator, "apply", _mixing_rows),
    (rules.apply_leaves_its_inputs_as_they_are, Operator, "apply", _spoiling),
    (rules.workspace_is_a_number_of_bytes, Operator, "workspace", lambda found, *shapes: -1),
    (rules.one_cell_serves_all_rows, Operator, "relaxed", _other_alone),
    (rules.to_float32_keeps_the_operator, Operator, "to", _scaled_apply),
    (rules.apply_is_affine, Affine, "apply", lambda out, *inputs: out + 0.01 * out * out),
    (rules.magnitude_has_the_absolute_coefficients, Affine, "magnitude", _scaled_apply),
    (rules.adjoint_is_the_transpose, Affine, "adjoint", _last_negated),
    (rules.adjoint_is_the_transpose, Affine, "adjoint", lambda parts, *given: tuple(map(_scaled, parts))),
    (rules.of_entries_is_apply_on_single_entries, Affine, "of_entries", _other_entries),
    (rules.breaks_are_inside_joined_segments, PiecewiseLinear, "breaks", _on_a_row),
    (rules.breaks_are_inside_joined_segments, PiecewiseLinear, "breaks", _across_lines),
    (rules.breaks_are_complete, PiecewiseLinear, "breaks", _first_lost),
    (rules.breaks_bend_no_more_than_they_say, PiecewiseLinear, "breaks", _flat),
    (rules.differences_are_stretched_no_more_than_is_said, PiecewiseLinear, "lipschitz", _shorter),
    (rules.apply_treats_each_entry_alone, Elementwise, "apply", _mixing_entries),
    (rules.strays_contains_the_distance_from_lines, Elementwise, "strays", _lower_part_lost(0.1)),
    (rules.image_contains_the_function, Elementwise, "image", _lower_part_lost(0.01)),
    (rules.split_at_is_inside_or_the_function_is_straight, Elementwise, "split_at", _never_split),
    (rules.split_at_is_inside_or_the_function_is_straight, Elementwise, "split_at", _split_at_an_end),
    (rules.tilts_are_slopes_of_lines_below, Elementwise, "tilts", lambda found: (found[0], found[1] + 0.01)),
    (rules.tilts_are_slopes_of_lines_below, Elementwise, "tilts", lambda found: (found[0] - 0.01, found[1])),
    (rules.relaxed_is_between_two_lines, Elementwise, "relaxed", _wrapping(Wrapped)),
    (
        rules.curvature_is_the_second_derivative,
        Smooth,
        "curvature",
        lambda found, x: found + 1e-3 * (1 + found.abs()),
    ),
    (rules.curvature_is_monotone_between_turns, Smooth, "curvature", _wavy),
    (rules.values_are_whole_and_never_fall, Jumping, "apply", lambda found, x: -found),
    (rules.values_are_whole_and_never_fall, Jumping, "apply", lambda found, x: found + 0.5),
    (rules.leaves_is_where_a_value_is_left, Jumping, "leaves", lambda found, value: found + 0.01),
    (rules.leaves_is_where_a_value_is_left, Jumping, "leaves", lambda found, value: found - 0.01),
)

TAMPERINGS = (
    *(Tampering(rule, Operator, "relaxed", _wrapping(kind)) for rule, kind in ENCLOSURES),
    *(Tampering(*row) for row in METHODS),
)
