"""Input splitting: one branch-and-bound loop over boxes of the parameter space.

Each round takes the most urgent open boxes as one batch, evaluates the network in them to look for a counterexample,
bounds every claim from below by planes, and closes what those prove: whole boxes, or slabs cut off from them. What is
left of a box goes on, halved if it did not shrink enough. Neighbours meet at the same floating-point number, so the
closed boxes leave no gap between them; whoever builds a verdict checks that with `covers`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.bounds import Boxes, Enclosed, Path, Planes, cells_within, enclose, planes_below
from shakeproof.errors import ShakeproofError
from shakeproof.exact.curve import CoverageError
from shakeproof.network.graph import Graph

# Into how many parts each axis is cut before anything is known, by the number of parameters; 1 if there are more.
FIRST_PARTS = {1: 8, 2: 3, 3: 2}
# A batch this long, in seconds, keeps a clock, and so few rows do before their cost is known; more cells than these
# gain nothing from larger products.
BATCH_SECONDS, FIRST_ROWS, MOST_CELLS = 0.4, 2, 1024
# A slab is worth cutting off if it is this share of its box, and a box that kept more than this of its size is halved.
WORTH_CUTTING, SHRUNK = 0.05, 0.6
# Boxes narrower than this share of the domain are left alone: rounding is all that could still decide them.
NARROWEST = 1e-10
# How many points of its first open box a search along one axis looks at, and how many are replayed at a time.
PROBES = 8
FLOAT_BYTES = 8


class ContradictionError(ShakeproofError):
    """The network was evaluated inside a box that was proved safe, and a claim failed: never a verdict."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Do all claims hold, claims @ scores > 0, for every z in the box from low to high (m)?

    Claims (k, classes). `replay` says of points (n, m) whether the reference runtime agrees that a claim fails there.
    """

    graph: Graph
    path: Path
    claims: Tensor
    low: Tensor
    high: Tensor
    replay: Callable[[Tensor], NDArray[np.bool_]]


@dataclass(frozen=True)
class Limits:
    """When to stop. `tolerance` is how closely the first failure along one axis is pinned down.

    With `any_failure`, the first counterexample will do. With a `resolution`, the search maps the domain: it goes on
    after counterexamples, and leaves alone boxes whose sides are below that share of the domain's.
    """

    deadline: float = math.inf
    memory: float = 2.0 * 2**30
    tolerance: float = 1e-4
    any_failure: bool = False
    resolution: float | None = None
    progress: Callable[[float], None] = field(default=lambda fraction: None)


@dataclass(frozen=True, eq=False)
class Leaves:
    """Boxes, low and high (n, m), and the bound (n) that was proved on each."""

    low: Tensor
    high: Tensor
    bound: Tensor

    @staticmethod
    def joined(parts: list[Leaves], like: Tensor) -> Leaves:
        none = Leaves(like.new_empty(0, len(like)), like.new_empty(0, len(like)), like.new_empty(0))
        low, high, bound = zip(*((leaf.low, leaf.high, leaf.bound) for leaf in (none, *parts)), strict=True)
        return Leaves(torch.cat(low), torch.cat(high), torch.cat(bound))

    def where(self, mask: Tensor) -> Leaves:
        return Leaves(self.low[mask], self.high[mask], self.bound[mask])

    def __len__(self) -> int:
        return len(self.low)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a search found: boxes proved safe, proved violated, and left open; and where it looked.

    `points` (n, m) and `scores` (n, classes) are evaluations; at `replayed` points the runtime failed a claim too.
    """

    safe: Leaves
    violated: Leaves
    open: Leaves
    points: Tensor
    scores: Tensor
    replayed: Tensor
    timed_out: bool
    cells: int


def split_inputs(problem: Problem, limits: Limits) -> Outcome:
    """Search until every box is settled, a counterexample ends the search, or the time is up."""
    return _Search(problem, limits).run()


class _Search:
    """The state of one search."""

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self.problem, self.limits = problem, limits
        self.size = torch.where(problem.high > problem.low, problem.high - problem.low, 1.0)
        self.open = _first_boxes(problem.low, problem.high)
        self.aside: list[Leaves] = []
        self.safe: list[Leaves] = []
        self.violated: list[Leaves] = []
        self.points: list[Tensor] = []
        self.scores: list[Tensor] = []
        self.replayed = problem.low.new_empty(0, len(problem.low))
        self.cells = 0
        self.seconds_a_cell = 0.0

    @property
    def along_one_axis(self) -> bool:
        limits = self.limits
        return self.problem.path.parameters == 1 and limits.resolution is None and not limits.any_failure

    def run(self) -> Outcome:
        timed_out = False
        corners = torch.cartesian_prod(*torch.stack([self.problem.low, self.problem.high], 1)).view(-1, len(self.size))
        self.replay_losing(corners, self.evaluated(corners))
        while len(self.open) and not self.is_decided():
            if time.perf_counter() + self.seconds_a_cell > self.limits.deadline:
                timed_out = True
                break
            started = time.perf_counter()
            batch = self.take()
            self.work(batch)
            self.cells += len(batch)
            self.seconds_a_cell = (time.perf_counter() - started) / len(batch)
            self.limits.progress(self.settled())
        outcome = Outcome(
            safe=Leaves.joined(self.safe, self.problem.low),
            violated=Leaves.joined(self.violated, self.problem.low),
            open=Leaves.joined([*self.aside, self.open], self.problem.low),
            points=torch.cat(self.points) if self.points else self.problem.low.new_empty(0, len(self.problem.low)),
            scores=torch.cat(self.scores) if self.scores else self.problem.low.new_empty(0, self.problem.graph.classes),
            replayed=self.replayed,
            timed_out=timed_out,
            cells=self.cells,
        )
        _check(self.problem, outcome)
        return outcome

    def is_decided(self, *more: Leaves) -> bool:
        """Whether what was found answers the question, with `more` boxes open besides the listed ones."""
        if not len(self.replayed) or self.limits.resolution is not None:
            return False
        if not self.along_one_axis:
            return True
        first = min(
            float(leaves.low.min()) for leaves in (self.open, *self.aside, *self.violated, *more) if len(leaves)
        )
        return float(self.replayed.min()) - first <= self.limits.tolerance

    def settled(self) -> float:
        """Which share of the domain's volume is settled."""
        whole = [*self.safe, *self.violated, *self.aside]
        return min(1.0, sum(float(((leaf.high - leaf.low) / self.size).prod(1).sum()) for leaf in whole))

    def take(self) -> Leaves:
        """The most urgent boxes, as many as memory and the clock allow: those with the worst bounds."""
        fitting = cells_within(self.problem.graph, self.limits.memory / 2, self.problem.path.parameters)
        count = min(MOST_CELLS, fitting)
        if self.seconds_a_cell and self.limits.deadline < math.inf:
            count = max(1, min(count, int(BATCH_SECONDS / self.seconds_a_cell)))
        elif self.limits.deadline < math.inf:
            count = 1
        order = (self.open.low[:, 0] if self.along_one_axis and len(self.replayed) else self.open.bound).argsort()
        taken = torch.zeros(len(self.open), dtype=torch.bool, device=order.device)
        taken[order[:count]] = True
        batch = self.open.where(taken)
        self.open = self.open.where(~taken)
        return batch

    def work(self, batch: Leaves) -> None:
        """Look for counterexamples in these boxes and settle what can be settled of them."""
        batch, scores = self.explored(batch)
        if not len(batch) or self.is_decided(batch):
            self.open = Leaves.joined([self.open, batch], self.problem.low)
            return
        found = self.bounded(batch)
        guard = found.enclosed.guard
        proved = (found.bound > guard) & found.bound.isfinite()
        self.safe.append(Leaves(batch.low, batch.high, found.bound).where(proved))
        losing = (scores @ self.problem.claims.t()).amin(1) < 0
        if self.limits.resolution is not None or not len(self.replayed):  # else losses are no news
            proved |= self.proved_violated(batch, found.enclosed, scores, guard, losing & ~proved)
        rest = self.trimmed(Leaves(batch.low, batch.high, found.bound), found, guard, ~proved)
        self.push(rest, batch, found, ~proved, losing)

    # -- looking for counterexamples -----------------------------------------------------------------------------

    def explored(self, batch: Leaves) -> tuple[Leaves, Tensor]:
        """Evaluate the centres, replay what loses; what is left of the batch, and the scores at its centres."""
        points = (batch.low + batch.high) / 2
        if self.along_one_axis:
            first = int(batch.low[:, 0].argmin())
            steps = torch.linspace(0, 1, PROBES + 2, dtype=points.dtype, device=points.device)[1:-1].unsqueeze(1)
            points = torch.cat([points, batch.low[first] + steps * (batch.high[first] - batch.low[first])])
        scores = self.evaluated(points)
        self.replay_losing(points, scores)
        scores = scores[: len(batch)]
        if self.along_one_axis and len(self.replayed):  # what comes after a counterexample no longer matters
            nearest = self.replayed.min()
            before = batch.low[:, 0] < nearest
            batch, scores = batch.where(before), scores[before]
            batch = Leaves(batch.low, batch.high.clamp(max=nearest), batch.bound)
            kept = self.open.where(self.open.low[:, 0] < nearest)
            self.open = Leaves(kept.low, kept.high.clamp(max=nearest), kept.bound)
        return batch, scores

    def evaluated(self, points: Tensor) -> Tensor:
        graph, path = self.problem.graph, self.problem.path
        step = cells_within(graph, self.limits.memory / 2, path.parameters)
        scores = torch.cat([graph.run(path.at(some)) for some in points.split(step)])
        if not bool(scores.isfinite().all()):
            raise CoverageError(
                "the network's scores are not finite at some strengths; check its weights, mean and std"
            )
        self.points.append(points)
        self.scores.append(scores)
        return scores

    def replay_losing(self, points: Tensor, scores: Tensor) -> None:
        margin = (scores @ self.problem.claims.t()).amin(1)
        losing = (margin < 0).nonzero().squeeze(1)
        if self.along_one_axis and len(self.replayed):
            losing = losing[points[losing, 0] < self.replayed.min()]
        if not len(losing):
            return
        chosen = losing[margin[losing].argsort()[:PROBES]]
        if self.along_one_axis:
            chosen = torch.cat([chosen, losing[points[losing, 0].argsort()[:PROBES]]]).unique()
        agreed = torch.from_numpy(self.problem.replay(points[chosen]))
        self.replayed = torch.cat([self.replayed, points[chosen[agreed.to(chosen.device)]]])

    # -- bounding -------------------------------------------------------------------------------------------------

    def bounded(self, batch: Leaves) -> _Bounds:
        """The least value of any claim on each box: forward where that suffices, backward for the other claims."""
        graph, path, claims = self.problem.graph, self.problem.path, self.problem.claims
        boxes = Boxes(batch.low, batch.high)
        enclosed = enclose(graph, path.at(boxes.points), boxes)
        points, radius = enclosed.scores.points @ claims.t(), enclosed.scores.radius @ claims.abs().t()
        least, greatest = boxes.extremes(points, radius)
        least = torch.where(least.isnan(), -torch.inf, least)
        cell, claim = (~(least > enclosed.guard.unsqueeze(1))).nonzero(as_tuple=True)
        planes = self.planes(enclosed, claims[claim], cell)
        lowest = planes.lowest(batch.low[cell], batch.high[cell])
        lowest = torch.where(lowest.isnan(), -torch.inf, lowest)
        settled = least.clone()
        settled[cell, claim] = torch.inf
        least[cell, claim] = torch.maximum(least[cell, claim], lowest)
        return _Bounds(least.amin(1), settled.amin(1), greatest.amin(1), enclosed, planes, cell)

    def planes(self, enclosed: Enclosed, coefficients: Tensor, cell: Tensor) -> Planes:
        """Planes below the claims with these coefficients; none (NaN) for those that the clock leaves no time for."""
        graph, parameters = self.problem.graph, self.problem.path.parameters
        widest = max(node.shape.numel() for node in graph.nodes)
        fitting = max(1, int(self.limits.memory / 4 / (6 * FLOAT_BYTES * widest)))
        offset = coefficients.new_full((len(cell),), torch.nan)
        gradient = coefficients.new_full((len(cell), parameters), torch.nan)
        start, step = 0, fitting if self.limits.deadline == math.inf else min(fitting, FIRST_ROWS)
        while start < len(cell) and (started := time.perf_counter()) < self.limits.deadline:
            part = slice(start, start + step)
            found = planes_below(graph, enclosed, coefficients[part], cell[part])
            offset[part], gradient[part] = found.offset, found.gradient
            start += step
            if self.limits.deadline < math.inf:
                spent = max(time.perf_counter() - started, 1e-9)
                step = max(1, min(fitting, int(step * BATCH_SECONDS / spent)))
        return Planes(offset, gradient)

    def proved_violated(
        self, batch: Leaves, enclosed: Enclosed, scores: Tensor, guard: Tensor, losing: Tensor
    ) -> Tensor:
        """Which of the losing boxes provably fail on all of them the claim that is worst at the centre."""
        worst = (scores @ self.problem.claims.t()).argmin(1)
        cell = losing.nonzero().squeeze(1)
        planes = self.planes(enclosed, -self.problem.claims[worst[cell]], cell)
        lowest = planes.lowest(batch.low[cell], batch.high[cell])
        proved = torch.zeros_like(losing)
        proved[cell] = (lowest > guard[cell]) & lowest.isfinite()
        bound = torch.zeros_like(guard)
        bound[cell] = lowest
        self.violated.append(Leaves(batch.low, batch.high, bound).where(proved))
        return proved

    # -- cutting ----------------------------------------------------------------------------------------------------

    def trimmed(self, batch: Leaves, found: _Bounds, guard: Tensor, undecided: Tensor) -> Leaves:
        """The undecided boxes without the slabs on which the planes prove every claim; those are closed as safe."""
        low, high = batch.low.clone(), batch.high.clone()
        planes, cell = found.planes, found.cell
        gradient = planes.gradient
        for axis in range(low.shape[1]):
            # On the part that is left, some plane is low: gradient * z <= room. Its hull over all planes is kept.
            others = torch.minimum(gradient * low[cell], gradient * high[cell])
            others[:, axis] = 0
            room = guard[cell] - planes.offset - others.sum(1)
            edge = room / gradient[:, axis]
            start = torch.where(gradient[:, axis] < 0, edge, -torch.inf)
            end = torch.where(gradient[:, axis] > 0, edge, torch.inf)
            unknown = ~(planes.offset.isfinite() & gradient.isfinite().all(1))
            start, end = torch.where(unknown, -torch.inf, start), torch.where(unknown, torch.inf, end)
            beyond = ~unknown & (planes.lowest(low[cell], high[cell]) > guard[cell])  # nothing of it is low
            start, end = torch.where(beyond, torch.inf, start), torch.where(beyond, -torch.inf, end)
            side = high[:, axis] - low[:, axis]
            first = torch.full_like(side, torch.inf).scatter_reduce(0, cell, start, "amin") - 1e-6 * side
            last = torch.full_like(side, -torch.inf).scatter_reduce(0, cell, end, "amax") + 1e-6 * side
            for edges, is_start in ((first, True), (last, False)):
                slab_low, slab_high = low.clone(), high.clone()
                if is_start:
                    worth = undecided & (edges - low[:, axis] > WORTH_CUTTING * side) & (edges < high[:, axis])
                    slab_high[:, axis] = torch.where(worth, edges, high[:, axis])
                else:
                    worth = undecided & (high[:, axis] - edges > WORTH_CUTTING * side) & (edges > low[:, axis])
                    slab_low[:, axis] = torch.where(worth, edges, low[:, axis])
                lowest = planes.lowest(slab_low[cell], slab_high[cell])
                lowest = torch.where(lowest.isnan(), -torch.inf, lowest)
                bound = found.settled.scatter_reduce(0, cell, lowest, "amin")
                cut = worth & (bound > guard) & bound.isfinite()
                self.safe.append(Leaves(slab_low, slab_high, bound).where(cut))
                if is_start:
                    low[:, axis] = torch.where(cut, edges, low[:, axis])
                else:
                    high[:, axis] = torch.where(cut, edges, high[:, axis])
        return Leaves(low, high, batch.bound)

    def push(self, rest: Leaves, batch: Leaves, found: _Bounds, undecided: Tensor, losing: Tensor) -> None:
        """Put what is left of the undecided boxes back, halved unless it shrank, or aside if it is too small."""
        side = rest.high - rest.low
        before = batch.high - batch.low
        shrunk = torch.where(before > 0, side / before, 1.0).prod(1) < SHRUNK
        narrow = ((side / self.size) <= (self.limits.resolution or NARROWEST)).all(1)
        narrow |= ~losing & (found.best <= found.enclosed.guard)  # no part of it can be told from rounding
        if self.along_one_axis:  # a loss too shallow for the runtime: no need to know it closer than the tolerance
            narrow |= losing & (side[:, 0] <= self.limits.tolerance)
        self.aside.append(rest.where(undecided & narrow))
        self.open = Leaves.joined([self.open, rest.where(undecided & ~narrow & shrunk)], self.problem.low)
        halved = undecided & ~narrow & ~shrunk
        steepness = torch.stack(
            [
                g.new_zeros(len(side)).scatter_reduce(0, found.cell, g.abs(), "amax")
                for g in found.planes.gradient.unbind(1)
            ],
            1,
        )
        steepness = torch.where(steepness.isfinite(), steepness, 0.0)
        influence = side * (steepness + 0.1 * steepness.amax(1, keepdim=True) + 1e-300)
        axis = influence.argmax(1, keepdim=True)
        middle = ((rest.low + rest.high) / 2).gather(1, axis)
        left = Leaves(rest.low, rest.high.scatter(1, axis, middle), rest.bound)
        right = Leaves(rest.low.scatter(1, axis, middle), rest.high, rest.bound)
        self.open = Leaves.joined([self.open, left.where(halved), right.where(halved)], self.problem.low)


@dataclass(frozen=True, eq=False)
class _Bounds:
    """What the bounds say of a batch: each box's least claim, the least of those that the way forward settled, how
    large the least may be at best, and planes below the claims that are not settled.
    """

    bound: Tensor
    settled: Tensor
    best: Tensor
    enclosed: Enclosed
    planes: Planes
    cell: Tensor


def _first_boxes(low: Tensor, high: Tensor) -> Leaves:
    """The domain as a grid of a few boxes."""
    parts = FIRST_PARTS.get(len(low), 1)
    shares = torch.arange(parts + 1, dtype=low.dtype, device=low.device).unsqueeze(1) / parts
    edges = low * (1 - shares) + high * shares  # exact at both ends
    axes = [list(range(parts)) if high[axis] > low[axis] else [0] for axis in range(len(low))]
    numbers = torch.cartesian_prod(*(torch.tensor(a, device=low.device) for a in axes)).view(-1, len(low))
    first = edges.gather(0, numbers)
    last = torch.where(high > low, edges.gather(0, numbers + 1), high)
    return Leaves(first, last, torch.full((len(first),), -torch.inf, dtype=low.dtype, device=low.device))


def _check(problem: Problem, outcome: Outcome) -> None:
    """No point at which a claim was seen to fail may lie in a box that was proved safe, nor the reverse."""
    margin = (outcome.scores @ problem.claims.t()).amin(1)
    for leaves, contradicts in ((outcome.safe, margin <= 0), (outcome.violated, margin > 0)):
        points = outcome.points[contradicts]
        for some in points.split(1024):
            inside = (some.unsqueeze(1) >= leaves.low) & (some.unsqueeze(1) <= leaves.high)
            if bool(inside.all(2).any()):
                raise ContradictionError(
                    "an evaluation contradicts a proof: this is a bug in shakeproof, please report it"
                )
