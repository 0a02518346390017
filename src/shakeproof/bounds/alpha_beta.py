"""alpha-beta-CROWN: backward bounds over a box of many inputs, with slopes that may be chosen and neurons that split.

Each row bounds one linear combination from below, on a part of the box that is told apart by what some neurons' inputs
lie between. Two things are free, and any choice is sound. *alpha*, the slope of the line below a neuron that bends at 0
(alpha-CROWN, Xu et al. 2021). And *beta*, a share of a neuron's input that is taken out of the plane: for any beta b,

    sum(c x) = sum(c x) - b x_j + b x_j >= sum(c x) - b x_j + (b low_j if b > 0 else b high_j),

so a plane may trade what it says of a neuron for what the neuron's range says. Betas are the Lagrange multipliers of
the constraints that splitting makes (beta-CROWN, Wang et al. 2021), here of either sign.

The derivatives need no tape: at the corner of the box where the plane is lowest, walk forward along the lines that the
plane was made of. That gives what each neuron's input is there, and so how the bound changes with alpha and beta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from shakeproof.bounds.crown import pulled_back
from shakeproof.budget import Budget
from shakeproof.graph import Graph
from shakeproof.operators import Affine, Elementwise, Range, Relaxation, TwoLines
from shakeproof.rounding import planes_share

# Steps: of an alpha, in units of what it may be; of a beta, in units of its row's coefficients; and how they shrink.
ALPHA_STEP, BETA_STEP, DECAY = 0.25, 1.0, 0.96
MEAN, SPREAD = 0.9, 0.999
# Parts that have reached what was wanted are left out as soon as they are this share of all.
WORTH_LEAVING_OUT = 0.3


@dataclass(frozen=True, eq=False)
class Bend:
    """The neurons of one elementwise node that are not straight on the box, `place` (n) among all it has.

    `within` is what its inputs lie between, (1, *shape); `tilts` (n) which slopes the line below may have, if any may.
    """

    node: int
    place: Tensor
    within: Range
    tilts: tuple[Tensor, Tensor] | None

    def to(self, dtype: torch.dtype) -> Bend:
        tilts = None if self.tilts is None else (self.tilts[0].to(dtype), self.tilts[1].to(dtype))
        return replace(self, within=Range(*(end.to(dtype) for end in self.within)), tilts=tilts)


def bend_of(graph: Graph, index: int, within: Range) -> Bend | None:
    """The node's neurons that are not straight within a range (1, *shape), if it has any."""
    operator = graph.nodes[index].operator
    if not isinstance(operator, Elementwise):
        return None
    place = operator.split_at(within).flatten().isfinite().nonzero().squeeze(1)
    if not len(place):
        return None
    tilts = operator.tilts
    if tilts is None:
        return Bend(index, place, within, None)
    least, greatest = (t.to(within.low).expand(within.low.shape).flatten()[place] for t in tilts)
    return Bend(index, place, within, (least, greatest))


@dataclass(frozen=True, eq=False)
class Parts:
    """For each part and bending neuron (rows, n): what its input lies between, and its alpha and beta."""

    low: Tensor
    high: Tensor
    alpha: Tensor
    beta: Tensor

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, chosen: Tensor | slice) -> Parts:
        return Parts(self.low[chosen], self.high[chosen], self.alpha[chosen], self.beta[chosen])

    @staticmethod
    def joined(parts: Sequence[Parts]) -> Parts:
        return Parts(*(torch.cat([getattr(p, name) for p in parts]) for name in ("low", "high", "alpha", "beta")))


@dataclass(frozen=True, eq=False)
class WithBeta(Relaxation):
    """An elementwise function between two lines, and beta times some inputs taken out and bounded by their ranges."""

    lines: TwoLines
    place: Tensor
    low: Tensor
    high: Tensor
    beta: Tensor

    def points(self, *values: Tensor) -> Tensor:
        return self.lines.points(*values)

    def spread(self, *radii: Tensor) -> Tensor:
        return self.lines.spread(*radii)

    def pull(self, coefficients: Tensor, cell: Tensor | slice) -> tuple[tuple[Tensor, ...], Tensor]:
        (pulled,), constant = self.lines.pull(coefficients, cell)
        flat = pulled.reshape(len(pulled), -1)
        flat[:, self.place] -= self.beta
        least = self.beta.clamp(min=0) * self.low + self.beta.clamp(max=0) * self.high
        return (flat.view(pulled.shape),), constant + least.sum(1)

    def attained(self, coefficients: Tensor, *values: Tensor) -> Tensor:
        return self.lines.attained(coefficients, *values)


@dataclass(frozen=True, eq=False)
class Lowest:
    """A plane's least value on the box (rows), the corner where it is, and the coefficients that nodes were given."""

    value: Tensor
    corner: Tensor
    coefficients: dict[int, Tensor]


@dataclass(frozen=True, eq=False)
class AlphaBetaCrown:
    """A network on one box of inputs, (1, *input_shape): all that backward bounds from value `top` need.

    With the `noise` of the inputs and of each node, (nodes + 1, 1), bounds allow for rounding; searching needs none.
    """

    graph: Graph
    box: Range
    relaxations: Sequence[Relaxation]
    bends: tuple[Bend, ...]
    top: int
    noise: Tensor | None = None

    @property
    def slices(self) -> list[slice]:
        """Where each bend's neurons are among all."""
        ends = torch.tensor([0, *(len(bend.place) for bend in self.bends)]).cumsum(0).tolist()
        return [slice(start, end) for start, end in pairwise(ends)]

    def to(self, dtype: torch.dtype, ranges: Sequence[Sequence[Range]]) -> AlphaBetaCrown:
        """The same in another precision; `ranges` are those of each node's inputs."""
        graph = self.graph.to(dtype)
        relaxations = [
            node.operator.itself([graph.shape(i) for i in node.inputs])
            if isinstance(node.operator, Affine)
            else node.operator.relaxed(*(Range(*(end.to(dtype) for end in r)) for r in inputs))
            for node, inputs in zip(graph.nodes[: len(self.relaxations)], ranges, strict=True)
        ]
        box = Range(*(end.to(dtype) for end in self.box))
        return AlphaBetaCrown(graph, box, relaxations, tuple(bend.to(dtype) for bend in self.bends), self.top)

    def start(self) -> Parts:
        """One part: the whole box, alpha as it is without ascent, no beta."""
        low, high, slope = (
            [self.box.low.new_empty(1, 0)],
            [self.box.low.new_empty(1, 0)],
            [self.box.low.new_empty(1, 0)],
        )
        for bend in self.bends:
            low.append(bend.within.low.flatten(1)[:, bend.place])
            high.append(bend.within.high.flatten(1)[:, bend.place])
            lines = self.relaxations[bend.node]
            assert isinstance(lines, TwoLines)
            slope.append(lines.below[0].flatten(1)[:, bend.place])
        lows = torch.cat(low, 1)
        return Parts(lows, torch.cat(high, 1), torch.cat(slope, 1), torch.zeros_like(lows))

    def split_at(self, parts: Parts) -> Tensor:
        """Where each neuron's range would be cut in two, (rows, n); NaN where its function is straight."""
        places = [
            operator.split_at(Range(parts.low[:, place], parts.high[:, place]))
            for bend, place in zip(self.bends, self.slices, strict=True)
            if isinstance(operator := self.graph.nodes[bend.node].operator, Elementwise)
        ]
        return torch.cat([parts.low[:, :0], *places], 1)

    def on(self, rows: Parts) -> PartLines:
        """The lines around each neuron on each row's part of the box."""
        of_bends = []
        for bend, part in zip(self.bends, self.slices, strict=True):
            operator = self.graph.nodes[bend.node].operator
            low, high = (end.flatten(1).expand(len(rows), -1).clone() for end in bend.within)
            low[:, bend.place], high[:, bend.place] = rows.low[:, part], rows.high[:, part]
            shape = (len(rows), *bend.within.low.shape[1:])
            within = Range(low.view(shape), high.view(shape))
            lines = operator.relaxed(within)
            assert isinstance(lines, TwoLines)
            assert isinstance(operator, Elementwise)
            free = operator.split_at(Range(rows.low[:, part], rows.high[:, part])).isfinite()
            if bend.tilts is not None and lines.below[1] is not None:  # a free line goes through the origin
                offset = lines.below[1].clone().flatten(1)
                offset[:, bend.place] = torch.where(free, 0.0, offset[:, bend.place])
                lines = replace(lines, below=(lines.below[0], offset.view(shape)))
            of_bends.append((lines, free))
        return PartLines(self, rows.low, rows.high, of_bends)


@dataclass(frozen=True, eq=False)
class PartLines:
    """The lines around each bending neuron, for parts with their own ranges; left to choose are alpha and beta.

    `of_bends` has, for each bend, the lines and where (rows, n) the one below may be crown. One row's may serve many.
    """

    crown: AlphaBetaCrown
    low: Tensor
    high: Tensor
    of_bends: Sequence[tuple[TwoLines, Tensor]]

    def __getitem__(self, chosen: Tensor) -> PartLines:
        of_bends = [(lines.of(chosen), free[chosen]) for lines, free in self.of_bends]
        return PartLines(self.crown, self.low[chosen], self.high[chosen], of_bends)

    def relaxations(self, alpha: Tensor, beta: Tensor) -> list[Relaxation]:
        """Every node's, with these alphas and betas (rows, n)."""
        crown = self.crown
        relaxations = list(crown.relaxations)
        for bend, part, (lines, free) in zip(crown.bends, crown.slices, self.of_bends, strict=True):
            if bend.tilts is not None:
                below = lines.below[0].expand(len(alpha), *lines.below[0].shape[1:]).clone()
                flat = below.flatten(1)
                flat[:, bend.place] = torch.where(free, alpha[:, part].clamp(*bend.tilts), flat[:, bend.place])
                lines = replace(lines, below=(below, lines.below[1]))
            relaxations[bend.node] = WithBeta(lines, bend.place, self.low[:, part], self.high[:, part], beta[:, part])
        return relaxations

    def lowest(self, relaxations: Sequence[Relaxation], coefficients: Tensor) -> Lowest:
        """The least value of the planes below sum(coefficients * top)."""
        crown = self.crown
        at_nodes: dict[int, Tensor] = {}
        graph, top, noise = crown.graph, crown.top, crown.noise
        pulled, offset = pulled_back(graph, relaxations, top, coefficients, slice(None), noise, at_nodes)
        corner = torch.where(pulled > 0, crown.box.low, crown.box.high)
        value = offset + (pulled * corner).flatten(1).sum(1)
        if noise is not None:
            value = value - self._noise_of_betas(relaxations)
        return Lowest(torch.where(value.isnan(), -torch.inf, value), corner, at_nodes)

    def _noise_of_betas(self, relaxations: Sequence[Relaxation]) -> Tensor:
        """What rounding may have done to the sums of beta times an end of a range."""
        total = self.low.new_zeros(1)
        for relaxation in relaxations:
            if isinstance(relaxation, WithBeta):
                sizes = torch.maximum(relaxation.low.abs(), relaxation.high.abs())
                total = total + 2 * planes_share(sizes.shape[1:]) * (relaxation.beta.abs() * sizes).sum(1)
        return total

    def walked(self, relaxations: Sequence[Relaxation], lowest: Lowest) -> list[Tensor | None]:
        """Each value where the planes are lowest, along the lines they were made of."""
        graph, top = self.crown.graph, self.crown.top
        values: list[Tensor | None] = [lowest.corner, *([None] * top)]
        for index in range(top):
            if index in lowest.coefficients:
                inputs = [values[i] for i in graph.nodes[index].inputs]
                values[index + 1] = relaxations[index].attained(lowest.coefficients[index], *inputs)  # type: ignore[arg-type]
        return values

    def derivatives(
        self, lowest: Lowest, values: Sequence[Tensor | None], beta: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """How each bound changes with each alpha and beta, and the size of the row's coefficients there."""
        crown = self.crown
        by_alpha, by_beta, size = torch.zeros_like(beta), torch.zeros_like(beta), torch.zeros_like(beta)
        for bend, part, (_, free) in zip(crown.bends, crown.slices, self.of_bends, strict=True):
            coefficients, value = lowest.coefficients.get(bend.node), values[crown.graph.nodes[bend.node].inputs[0]]
            if coefficients is None or value is None:
                continue
            there = value.flatten(1)[:, bend.place]
            below = coefficients.flatten(1)[:, bend.place].clamp(min=0)
            if bend.tilts is not None:
                by_alpha[:, part] = torch.where(free, below * there, 0.0)
            low, high, betas = self.low[:, part], self.high[:, part], beta[:, part]
            nearest = torch.where(betas > 0, low, torch.where(betas < 0, high, there.clamp(low, high)))
            by_beta[:, part] = nearest - there
            size[:, part] = coefficients.flatten(1).abs().mean(1, keepdim=True)
        return by_alpha, by_beta, size

    def losses(self, lowest: Lowest, relaxations: Sequence[Relaxation], values: Sequence[Tensor | None]) -> Tensor:
        """What the distance of each neuron's line from its function costs the bound at the corner: (rows, n)."""
        crown = self.crown
        cost = torch.zeros(len(lowest.value), self.low.shape[1], dtype=self.low.dtype, device=self.low.device)
        for bend, part in zip(crown.bends, crown.slices, strict=True):
            coefficients, value = lowest.coefficients.get(bend.node), values[crown.graph.nodes[bend.node].inputs[0]]
            line = values[bend.node + 1]
            if coefficients is None or value is None or line is None:
                continue
            gap = coefficients * (crown.graph.nodes[bend.node].operator.apply(value) - line)
            cost[:, part] = gap.flatten(1)[:, bend.place].abs()
        return cost


def ascend(
    crown: AlphaBetaCrown, coefficients: Tensor, parts: Parts, steps: int, wanted: Tensor, budget: Budget
) -> Parts:
    """Parts with the best alphas and betas found, in the precision of `crown`.

    Ends for parts whose bound exceeds what is wanted, (rows). One part's ranges may serve all coefficients.
    """
    count, lines, allowed = len(coefficients), crown.on(parts), _Allowed.of(crown, parts)
    alpha, beta = parts.alpha.expand(count, -1), parts.beta.expand(count, -1)
    best, best_alpha, best_beta = coefficients.new_full((count,), -torch.inf), alpha.clone(), beta.clone()
    active = torch.arange(count, device=alpha.device)
    by_alpha, by_beta = _Moments.none(alpha), _Moments.none(beta)
    for step in range(1, steps + 1):
        relaxations = lines.relaxations(alpha, beta)
        lowest = lines.lowest(relaxations, coefficients)
        better = lowest.value > best[active]
        best[active[better]] = lowest.value[better]
        best_alpha[active[better]], best_beta[active[better]] = alpha[better], beta[better]
        done = best[active] > wanted[active]
        if step == steps or bool(done.all()) or budget.is_late():
            break
        of_alpha, of_beta, size = lines.derivatives(lowest, lines.walked(relaxations, lowest), beta)
        rate = DECAY ** (step - 1)
        by_alpha, by_beta = by_alpha.after(of_alpha), by_beta.after(of_beta)
        alpha = allowed.alphas(alpha, rate * ALPHA_STEP * by_alpha.direction(step))
        beta = allowed.betas(beta + rate * BETA_STEP * size * by_beta.direction(step))
        if float(done.double().mean()) > WORTH_LEAVING_OUT:
            kept = ~done
            active, alpha, beta, coefficients = active[kept], alpha[kept], beta[kept], coefficients[kept]
            by_alpha, by_beta = by_alpha[kept], by_beta[kept]
            if len(parts) == count:
                lines, allowed = lines[kept], allowed[kept]
    return replace(parts, alpha=best_alpha, beta=best_beta)


@dataclass(frozen=True, eq=False)
class _Allowed:
    """What alphas (n) and betas (rows, n) may be: a beta has the sign of a cut, and is 0 where nothing was cut."""

    least: Tensor
    greatest: Tensor
    cut_below: Tensor
    cut_above: Tensor

    @staticmethod
    def of(crown: AlphaBetaCrown, parts: Parts) -> _Allowed:
        whole = crown.start()
        none = [bend.within.low.new_zeros(len(bend.place)) for bend in crown.bends]
        tilts = [bend.tilts or (zero, zero) for bend, zero in zip(crown.bends, none, strict=True)]
        least, greatest = (torch.cat([whole.low.new_empty(0), *(tilt[end] for tilt in tilts)]) for end in (0, 1))
        return _Allowed(least, greatest, parts.low > whole.low, parts.high < whole.high)

    def __getitem__(self, chosen: Tensor) -> _Allowed:
        return replace(self, cut_below=self.cut_below[chosen], cut_above=self.cut_above[chosen])

    def alphas(self, alpha: Tensor, move: Tensor) -> Tensor:
        moved = torch.addcmul(alpha, self.greatest - self.least, move)
        return torch.minimum(torch.maximum(moved, self.least), self.greatest)

    def betas(self, beta: Tensor) -> Tensor:
        beta = torch.where(self.cut_above, beta, beta.clamp(min=0))
        return torch.where(self.cut_below, beta, beta.clamp(max=0))


@dataclass(frozen=True, eq=False)
class _Moments:
    """Adam's running means of gradients and their squares."""

    mean: Tensor
    spread: Tensor

    @staticmethod
    def none(like: Tensor) -> _Moments:
        return _Moments(torch.zeros_like(like), torch.zeros_like(like))

    def after(self, gradient: Tensor) -> _Moments:
        spread = torch.addcmul(self.spread * SPREAD, gradient, gradient, value=1 - SPREAD)
        return _Moments(self.mean.lerp(gradient, 1 - MEAN), spread)

    def direction(self, step: int) -> Tensor:
        return (self.mean / (1 - MEAN**step)) / ((self.spread / (1 - SPREAD**step)).sqrt() + 1e-12)

    def __getitem__(self, chosen: Tensor) -> _Moments:
        return _Moments(self.mean[chosen], self.spread[chosen])
