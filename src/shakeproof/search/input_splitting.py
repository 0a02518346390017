"""Input splitting: the parts are boxes of strengths, or of the few inputs that vary.

Each round takes the most urgent open boxes as one batch, evaluates the network in them to look for a counterexample,
bounds every claim from below by planes, and closes what those prove: whole boxes, or slabs cut off from them. What is
left of a box goes on, halved if it did not shrink enough. Every cut is kept, so what was covered can be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.bounds import Boxes, Enclosed, Planes, Shares, cells_within, enclose, planes_below
from shakeproof.budget import Budget
from shakeproof.errors import NotFiniteError, ProofError
from shakeproof.graph import Graph
from shakeproof.question import Path
from shakeproof.search.attack import towards_corner
from shakeproof.search.loop import Numbers, Strategy, Tree, branch_and_bound

# Into how many parts each axis is cut before anything is known, by the number of parameters; 1 if there are more.
FIRST_PARTS = {1: 8, 2: 3, 3: 2}
# So few rows are pulled back before their cost is known; more cells than these gain nothing from larger products.
FIRST_ROWS, MOST_CELLS = 2, 1024
# A slab is worth cutting off if it is this share of its box, and a box that kept more than this of its size is halved.
WORTH_CUTTING, SHRUNK = 0.05, 0.6
# Boxes narrower than this share of the domain are left alone, and so are small ones, by volume, in the middle of which
# no claim exceeds what rounding might explain: nothing could still decide them.
NARROWEST, SMALL = 1e-10, 1e-3
# How many points of its first open box a search along one axis looks at, and how many are replayed at a time.
PROBES = 8
FLOAT_BYTES = 8
# By how much everything holds where there is nothing.
NOTHING = 1e30
# How far an attack goes on from the corners of a simplex.
ATTACK_STEPS = 20
# Points are so far inside of a total that rounding does not put them outside.
INSIDE = 1 - 1e-9


@dataclass(frozen=True)
class AnyFailure:
    """Prove that nothing fails, or find one failure, wherever it is."""


@dataclass(frozen=True)
class FirstFailure:
    """Along one strength: pin down the smallest one at which something fails, this closely."""

    tolerance: float


@dataclass(frozen=True)
class Map:
    """Find out what holds and what fails everywhere, down to parts of this share of each side of the domain."""

    resolution: float


Goal = AnyFailure | FirstFailure | Map


@dataclass(frozen=True, eq=False)
class PathProblem:
    """Do all claims hold, claims @ scores > 0, for every z in the box from low to high (m)?

    Claims (k, classes). `replay` says of points (n, m) whether the reference runtime agrees that a claim fails there.
    With a `total`, only points whose coordinates (none below 0) sum to at most that are meant.
    """

    graph: Graph
    path: Path
    claims: Tensor
    low: Tensor
    high: Tensor
    replay: Callable[[Tensor], NDArray[np.bool_]]
    total: float | None = None

    def cells(self, low: Tensor, high: Tensor) -> Boxes | Shares:
        """The part of boxes (n, m) that belongs to the domain."""
        return Boxes(low, high) if self.total is None else Shares(low, high, self.total)

    def middle(self, low: Tensor, high: Tensor) -> Tensor:
        """A point (n, m) in what of each box belongs to the domain."""
        if self.total is None:
            return (low + high) / 2
        side = high - low
        part = (INSIDE * self.total - low.sum(1)) / side.sum(1).clamp(min=1e-300)
        return low + side * part.clamp(0, 0.5).unsqueeze(1)

    @property
    def corners(self) -> Tensor:
        """The corners of the domain (n, m)."""
        if self.total is None:
            return torch.cartesian_prod(*torch.stack([self.low, self.high], 1)).view(-1, len(self.low))
        return torch.cat([self.low.unsqueeze(0), self.low.new_full((len(self.low),), self.total).diag()])


@dataclass(frozen=True, eq=False)
class SplitCells:
    """The result of input splitting: how the domain from low to high (m) was cut, and what was proved.

    `tree` has the boxes on which all claims are proved, with their bounds; on the `violated` parts one claim provably
    fails. `points` (n, m) and `scores` (n, classes) are evaluations; at `replayed` points (k, m) the runtime fails too.
    `doubtful`: somewhere a claim holds by no more than rounding might explain. With a `total`, what was proved of a box
    is about what of it sums to that at most.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    tree: Tree
    violated: Numbers
    points: NDArray[np.float64]
    scores: NDArray[np.float64]
    replayed: NDArray[np.float64]
    finished: bool
    bounded: int
    doubtful: bool
    total: float | None = None

    def boxes(self, parts: Numbers) -> NDArray[np.float64]:
        """What parts are: (n, low and high, m)."""
        return self._boxes[parts]

    @cached_property
    def _boxes(self) -> NDArray[np.float64]:
        return self.tree.boxes(self.low, self.high)

    @property
    def safe(self) -> Numbers:
        return np.flatnonzero(self.tree.is_proved)

    @property
    def open(self) -> Numbers:
        """The parts that were not cut, and of which nothing is proved."""
        left = np.ones(len(self.tree), bool)
        left[self.tree.parent[self.tree.parent >= 0]] = False
        left[self.safe] = left[self.violated] = False
        return np.flatnonzero(left)


def split_inputs(problem: PathProblem, goal: Goal, budget: Budget) -> SplitCells:
    """Search until every box is settled, a counterexample ends the search, or the time is up."""
    strategy = InputSplitting(problem, goal, budget)
    finished = branch_and_bound(strategy, budget)
    return strategy.evidence(finished)


@dataclass(frozen=True, eq=False)
class Leaves:
    """Parts of the tree: their boxes, low and high (n, m), the bound (n) that was found on each, and along which axis
    (n) each is to be cut in two; -1 if it is not.
    """

    part: Numbers
    low: Tensor
    high: Tensor
    bound: Tensor
    axis: Tensor

    @staticmethod
    def fresh(part: Numbers, low: Tensor, high: Tensor, bound: Tensor) -> Leaves:
        return Leaves(part, low, high, bound, torch.full((len(part),), -1, device=low.device))

    @staticmethod
    def joined(parts: Sequence[Leaves]) -> Leaves:
        tensors = ("low", "high", "bound", "axis")
        return Leaves(
            np.concatenate([p.part for p in parts]), *(torch.cat([getattr(p, name) for p in parts]) for name in tensors)
        )

    def where(self, mask: Tensor) -> Leaves:
        return Leaves(self.part[mask.cpu().numpy()], self.low[mask], self.high[mask], self.bound[mask], self.axis[mask])

    def __len__(self) -> int:
        return len(self.part)


class InputSplitting(Strategy[Leaves]):
    """The state of one search."""

    def __init__(self, problem: PathProblem, goal: Goal, budget: Budget) -> None:
        self.problem, self.goal, self.budget = problem, goal, budget
        self.size = torch.where(problem.high > problem.low, problem.high - problem.low, 1.0)
        self.fitting = cells_within(problem.graph, budget, problem.path.parameters)
        self.tree = Tree.planted(1)
        self.safe: list[Leaves] = []
        self.violated: list[Leaves] = []
        self.aside: list[Leaves] = []
        self.points: list[Tensor] = []
        self.scores: list[Tensor] = []
        self.replayed = problem.low.new_empty(0, len(problem.low))
        self.cells = 0
        self.doubtful = False
        self.open = self.first_boxes()
        corners = problem.corners
        scores = self.evaluated(corners)
        self.replay_losing(corners, scores)
        if problem.total is not None:
            self.attack(corners, scores, problem.total)

    @cached_property
    def grain(self) -> float:
        """What rounding may do to a claim, in the middle of the domain."""
        middle = ((self.problem.low + self.problem.high) / 2).unsqueeze(0)
        graph, path, point = self.problem.graph, self.problem.path, Boxes(middle, middle)
        scores = enclose(graph, path.at(point.points), point, path.error.unsqueeze(0), self.budget).scores
        return float((scores.radius @ self.problem.claims.abs().t()).max())

    @property
    def none(self) -> Leaves:
        low = self.problem.low
        nothing = low.new_empty(0, len(low))
        return Leaves.fresh(np.empty(0, dtype=np.int64), nothing, nothing, low.new_empty(0))

    def first_boxes(self) -> Leaves:
        """The domain as a grid of a few boxes."""
        low, high = self.problem.low, self.problem.high
        count = FIRST_PARTS.get(len(low), 1)
        unknown = low.new_full((1,), -torch.inf)
        boxes = Leaves.fresh(np.zeros(1, dtype=np.int64), low.unsqueeze(0), high.unsqueeze(0), unknown)
        for axis in range(len(low)):
            cut = self.none
            for part in range(1, count) if high[axis] > low[axis] else ():
                edge = low[axis] * (1 - part / count) + high[axis] * (part / count)
                below, boxes = self.cut(boxes, torch.full_like(boxes.axis, axis), edge.expand(len(boxes)))
                cut = Leaves.joined([cut, below])
            boxes = Leaves.joined([cut, boxes])
        return boxes

    # -- what the loop asks for ---------------------------------------------------------------------------------------

    def open_parts(self) -> int:
        return len(self.open)

    def is_decided(self, *more: Leaves) -> bool:
        """Whether the search is decided, with `more` boxes open besides the listed ones."""
        if not len(self.replayed) or isinstance(self.goal, Map):
            return False
        if not isinstance(self.goal, FirstFailure):
            return True
        first = min(
            float(leaves.low.min()) for leaves in (self.open, *self.aside, *self.violated, *more) if len(leaves)
        )
        return float(self.replayed.min()) - first <= self.goal.tolerance

    def most_at_once(self) -> int:
        return min(MOST_CELLS, self.fitting)

    def take(self, count: int) -> Leaves:
        """Those with the worst bounds; along one axis, once a failure is known, those that come first."""
        first = isinstance(self.goal, FirstFailure) and len(self.replayed)
        order = (self.open.low[:, 0] if first else self.open.bound).argsort()
        taken = torch.zeros(len(self.open), dtype=torch.bool, device=order.device)
        taken[order[:count]] = True
        batch = self.open.where(taken)
        self.open = self.open.where(~taken)
        self.cells += len(batch)
        return batch

    def bound(self, parts: Leaves) -> Leaves:
        """Look for counterexamples in these boxes and settle what can be settled of them."""
        parts = self.without_empty(parts)
        if not len(parts):
            return self.none
        batch, scores = self.explored(parts)
        if not len(batch) or self.is_decided(batch):
            self.open = Leaves.joined([self.open, batch])
            return self.none
        bounds = self.bounded(batch)
        settled = (bounds.bound > 0) & bounds.bound.isfinite()
        self.close(replace(batch, bound=bounds.bound).where(settled))
        losing = (scores @ self.problem.claims.t()).amin(1) < 0
        if isinstance(self.goal, Map) or not len(self.replayed):  # else losses are no news
            settled |= self.proved_violated(batch, bounds.enclosed, scores, losing & ~settled)
        rest = self.trimmed(replace(batch, bound=bounds.bound), bounds, ~settled)
        return self.left(rest, batch, bounds, ~settled, scores)

    def without_empty(self, parts: Leaves) -> Leaves:
        """The boxes in which there is something of the domain; in the others, everything holds."""
        cells = self.problem.cells(parts.low, parts.high)
        if not isinstance(cells, Shares):
            return parts
        self.close(replace(parts, bound=torch.full_like(parts.bound, NOTHING)).where(cells.is_empty))
        return parts.where(~cells.is_empty)

    def split(self, parts: Leaves) -> None:
        halved = parts.where(parts.axis >= 0)
        middle = ((halved.low + halved.high) / 2).gather(1, halved.axis.unsqueeze(1)).squeeze(1)
        self.open = Leaves.joined([self.open, parts.where(parts.axis < 0), *self.cut(halved, halved.axis, middle)])

    def share_settled(self) -> float:
        """By volume."""
        whole = [*self.safe, *self.violated, *self.aside]
        return min(1.0, sum(float(((leaf.high - leaf.low) / self.size).prod(1).sum()) for leaf in whole))

    def evidence(self, finished: bool) -> SplitCells:
        """The checked result: proofs cover the tree's boxes, and no evaluation contradicts one."""
        empty = self.problem.low.new_empty(0, len(self.problem.low))
        scores = torch.cat([empty.new_empty(0, self.problem.graph.classes), *self.scores])
        violated = Leaves.joined([self.none, *self.violated])
        cells = SplitCells(
            low=self.problem.low.cpu().numpy(),
            high=self.problem.high.cpu().numpy(),
            tree=self.tree,
            violated=violated.part,
            points=torch.cat([empty, *self.points]).cpu().numpy(),
            scores=scores.cpu().numpy(),
            replayed=self.replayed.cpu().numpy(),
            finished=finished,
            bounded=self.cells,
            doubtful=self.doubtful,
            total=self.problem.total,
        )
        margin = (scores @ self.problem.claims.t()).amin(1)
        for leaves, contradicts in ((Leaves.joined([self.none, *self.safe]), margin <= 0), (violated, margin > 0)):
            boxes = torch.stack([leaves.low, leaves.high], 1).cpu().numpy()
            if not np.array_equal(boxes, cells.boxes(leaves.part)):
                raise ProofError("a bound was worked out for another box than the one it is noted for")
            if len(leaves) and self.tree.holding(cells.points[contradicts.cpu().numpy()])[leaves.part].any():
                raise ProofError("an evaluation contradicts a proof")
        return cells

    # -- looking for counterexamples -----------------------------------------------------------------------------

    def explored(self, batch: Leaves) -> tuple[Leaves, Tensor]:
        """Evaluate the centres, replay what loses; what is left of the batch, and the scores at its centres."""
        points = self.problem.middle(batch.low, batch.high)
        along = isinstance(self.goal, FirstFailure)
        if along:
            first = int(batch.low[:, 0].argmin())
            steps = torch.linspace(0, 1, PROBES + 2, dtype=points.dtype, device=points.device)[1:-1].unsqueeze(1)
            points = torch.cat([points, batch.low[first] + steps * (batch.high[first] - batch.low[first])])
        scores = self.evaluated(points)
        self.replay_losing(points, scores)
        scores = scores[: len(batch)]
        if along and len(self.replayed):  # what comes after a counterexample no longer matters
            nearest = self.replayed.min()
            self.open = self.before(self.open, nearest)
            scores = scores[batch.low[:, 0] < nearest]
            batch = self.before(batch, nearest)
        return batch, scores

    def attack(self, w: Tensor, scores: Tensor, total: float) -> None:
        """Go from the corners of a simplex to where the claim that is lowest at each falls further."""
        graph, path, claims = self.problem.graph, self.problem.path, self.problem.claims
        for step in range(1, ATTACK_STEPS + 1):
            if self.is_decided() or self.budget.is_late():
                return
            lowest = claims[(scores @ claims.t()).argmin(1)]
            moved = [
                towards_corner(graph, path, total, w[part], lowest[part], step)
                for part in self.budget.closing.all_slices(len(w), self.fitting)
            ]
            w = INSIDE * torch.cat(moved)
            scores = self.evaluated(w)
            self.replay_losing(w, scores)

    def before(self, leaves: Leaves, nearest: Tensor) -> Leaves:
        """What is left of boxes along one axis below a number, in their order."""
        leaves = leaves.where(leaves.low[:, 0] < nearest)
        beyond = leaves.high[:, 0] > nearest
        if not bool(beyond.any()):
            return leaves
        reaching = leaves.where(beyond)
        below, _ = self.cut(reaching, torch.zeros_like(reaching.axis), nearest.expand(len(reaching)))
        part, high = leaves.part.copy(), leaves.high.clone()
        part[beyond.cpu().numpy()], high[beyond] = below.part, below.high
        return replace(leaves, part=part, high=high)

    def evaluated(self, points: Tensor) -> Tensor:
        graph, path = self.problem.graph, self.problem.path
        fitting = self.budget.closing.all_slices(len(points), self.fitting)
        scores = torch.cat([graph.run(path.at(points[chosen])) for chosen in fitting])
        if not bool(scores.isfinite().all()):
            raise NotFiniteError("the network's scores are not finite somewhere; check its weights, mean and std")
        self.points.append(points)
        self.scores.append(scores)
        return scores

    def replay_losing(self, points: Tensor, scores: Tensor) -> None:
        along = isinstance(self.goal, FirstFailure)
        margin = (scores @ self.problem.claims.t()).amin(1)
        losing = (margin < 0).nonzero().squeeze(1)
        if along and len(self.replayed):
            losing = losing[points[losing, 0] < self.replayed.min()]
        if not len(losing):
            return
        chosen = losing[margin[losing].argsort()[:PROBES]]
        if along:
            chosen = torch.cat([chosen, losing[points[losing, 0].argsort()[:PROBES]]]).unique()
        agreed = torch.from_numpy(self.problem.replay(points[chosen]))
        self.replayed = torch.cat([self.replayed, points[chosen[agreed.to(chosen.device)]]])

    # -- bounding -------------------------------------------------------------------------------------------------

    def bounded(self, batch: Leaves) -> _Bounds:
        """The least value of any claim on each box: forward where that suffices, backward for the other claims."""
        graph, path, claims = self.problem.graph, self.problem.path, self.problem.claims
        boxes = self.problem.cells(batch.low, batch.high)
        error = path.error.expand(len(batch), *path.error.shape)
        enclosed = enclose(graph, path.at(boxes.points), boxes, error, self.budget)
        points, radius = enclosed.scores.points @ claims.t(), enclosed.scores.radius @ claims.abs().t()
        least = boxes.extremes(points, radius).low
        least = torch.where(least.isnan(), -torch.inf, least)
        cell, claim = (~(least > 0)).nonzero(as_tuple=True)
        planes = self.planes(enclosed, claims[claim], cell)
        lowest = boxes[cell].lowest(planes.offset, planes.gradient)
        lowest = torch.where(lowest.isnan(), -torch.inf, lowest)
        settled = least.clone()
        settled[cell, claim] = torch.inf
        least[cell, claim] = torch.maximum(least[cell, claim], lowest)
        return _Bounds(least.amin(1), settled.amin(1), enclosed, planes, cell)

    def planes(self, enclosed: Enclosed, coefficients: Tensor, cell: Tensor) -> Planes:
        """Planes below the claims with these coefficients; none (NaN) for those that the clock leaves no time for."""
        graph, parameters = self.problem.graph, self.problem.path.parameters
        widest = max(node.shape.numel() for node in graph.nodes)
        fitting = self.budget.fitting(6 * FLOAT_BYTES * widest, "pulling bounds back", share=0.25)
        offset = coefficients.new_full((len(cell),), torch.nan)
        gradient = coefficients.new_full((len(cell), parameters), torch.nan)
        for part in self.budget.slices(len(cell), fitting, FIRST_ROWS):
            below = planes_below(graph, enclosed, coefficients[part], cell[part], self.budget)
            offset[part], gradient[part] = below.offset, below.gradient
        return Planes(offset, gradient)

    def proved_violated(self, batch: Leaves, enclosed: Enclosed, scores: Tensor, losing: Tensor) -> Tensor:
        """Which of the losing boxes provably fail on all of them the claim that is worst at the centre."""
        worst = (scores @ self.problem.claims.t()).argmin(1)
        cell = losing.nonzero().squeeze(1)
        planes = self.planes(enclosed, -self.problem.claims[worst[cell]], cell)
        lowest = planes.lowest(batch.low[cell], batch.high[cell])
        proved = torch.zeros_like(losing)
        proved[cell] = (lowest > 0) & lowest.isfinite()
        self.violated.append(batch.where(proved))
        return proved

    # -- cutting ----------------------------------------------------------------------------------------------------

    def cut(self, leaves: Leaves, axis: Tensor, at: Tensor) -> tuple[Leaves, Leaves]:
        """Each box cut in two along its axis (n) at a number (n): what is below, and what is above."""
        if not len(leaves):
            return leaves, leaves
        self.tree, halves = self.tree.split(leaves.part, axis.cpu().numpy(), at.cpu().numpy())
        column = axis.unsqueeze(1)
        below, above = np.split(halves, 2)
        return (
            Leaves.fresh(below, leaves.low, leaves.high.scatter(1, column, at.unsqueeze(1)), leaves.bound),
            Leaves.fresh(above, leaves.low.scatter(1, column, at.unsqueeze(1)), leaves.high, leaves.bound),
        )

    def close(self, leaves: Leaves) -> None:
        """Record the proved bounds of boxes."""
        if len(leaves):
            self.tree = self.tree.proved(leaves.part, leaves.bound.cpu().numpy())
            self.safe.append(leaves)

    def trimmed(self, batch: Leaves, bounds: _Bounds, undecided: Tensor) -> Leaves:
        """The undecided boxes without the slabs on which the planes prove every claim; those are closed as safe."""
        planes, cell = bounds.planes, bounds.cell
        gradient = planes.gradient
        for axis in range(batch.low.shape[1]):
            low, high = batch.low, batch.high
            # On the part that is left, some plane is low: gradient * z <= room. Its hull over all planes is kept.
            others = torch.minimum(gradient * low[cell], gradient * high[cell])
            others[:, axis] = 0
            edge = -(planes.offset + others.sum(1)) / gradient[:, axis]
            start = torch.where(gradient[:, axis] < 0, edge, -torch.inf)
            end = torch.where(gradient[:, axis] > 0, edge, torch.inf)
            unknown = ~(planes.offset.isfinite() & gradient.isfinite().all(1))
            start, end = torch.where(unknown, -torch.inf, start), torch.where(unknown, torch.inf, end)
            beyond = ~unknown & (planes.lowest(low[cell], high[cell]) > 0)  # nothing of it is low
            start, end = torch.where(beyond, torch.inf, start), torch.where(beyond, -torch.inf, end)
            side = high[:, axis] - low[:, axis]
            first = torch.full_like(side, torch.inf).scatter_reduce(0, cell, start, "amin") - 1e-6 * side
            last = torch.full_like(side, -torch.inf).scatter_reduce(0, cell, end, "amax") + 1e-6 * side
            worth = undecided & (first - low[:, axis] > WORTH_CUTTING * side) & (first < high[:, axis])
            batch = self.without_slab(batch, bounds, axis, first, worth, below=True)
            worth = undecided & (high[:, axis] - last > WORTH_CUTTING * side) & (last > batch.low[:, axis])
            batch = self.without_slab(batch, bounds, axis, last, worth, below=False)
        return batch

    def without_slab(
        self, batch: Leaves, bounds: _Bounds, axis: int, edge: Tensor, worth: Tensor, below: bool
    ) -> Leaves:
        """The boxes without the slab below (or above) an edge (n), where that is worth it and proves every claim."""
        low, high = batch.low.clone(), batch.high.clone()
        changed = high if below else low
        changed[:, axis] = torch.where(worth, edge, changed[:, axis])
        lowest = bounds.planes.lowest(low[bounds.cell], high[bounds.cell])
        lowest = torch.where(lowest.isnan(), -torch.inf, lowest)
        bound = bounds.settled.scatter_reduce(0, bounds.cell, lowest, "amin")
        proved = worth & (bound > 0) & bound.isfinite()
        if not bool(proved.any()):
            return batch
        cut = batch.where(proved)
        sides = self.cut(cut, torch.full_like(cut.axis, axis), edge[proved])
        slab, rest = sides if below else sides[::-1]
        self.close(replace(slab, bound=bound[proved]))
        part, low, high = batch.part.copy(), batch.low.clone(), batch.high.clone()
        part[proved.cpu().numpy()], low[proved], high[proved] = rest.part, rest.low, rest.high
        return replace(batch, part=part, low=low, high=high)

    def left(self, rest: Leaves, batch: Leaves, bounds: _Bounds, undecided: Tensor, scores: Tensor) -> Leaves:
        """What is to be split of the undecided boxes, and along which axis; what is too small is put aside."""
        side, before = rest.high - rest.low, batch.high - batch.low
        shrunk = torch.where(before > 0, side / before, 1.0).prod(1) < SHRUNK
        finest = self.goal.resolution if isinstance(self.goal, Map) else NARROWEST
        widest = (side / self.size).amax(1)
        margin = (scores @ self.problem.claims.t()).amin(1)
        volume = torch.where(self.problem.high > self.problem.low, side / self.size, 1.0).prod(1)
        doubtful = undecided & (volume <= SMALL) & (margin >= 0)
        if bool(doubtful.any()):
            doubtful &= margin <= self.grain
        self.doubtful |= bool(doubtful.any())
        narrow = (widest <= finest) | doubtful
        if isinstance(self.goal, FirstFailure):  # a loss too shallow for the runtime need not be known any closer
            narrow |= (margin < 0) & (side[:, 0] <= self.goal.tolerance)
        self.aside.append(rest.where(undecided & narrow))
        steepness = torch.stack(
            [
                g.new_zeros(len(side)).scatter_reduce(0, bounds.cell, g.abs(), "amax")
                for g in bounds.planes.gradient.unbind(1)
            ],
            1,
        )
        steepness = torch.where(steepness.isfinite(), steepness, 0.0)
        influence = side * (steepness + 0.1 * steepness.amax(1, keepdim=True) + 1e-300)
        return replace(rest, axis=torch.where(shrunk, -1, influence.argmax(1))).where(undecided & ~narrow)


@dataclass(frozen=True, eq=False)
class _Bounds:
    """What the bounds say of a batch: each box's least claim, the least of those that the way forward settled, and
    planes below the claims that are not settled.
    """

    bound: Tensor
    settled: Tensor
    enclosed: Enclosed
    planes: Planes
    cell: Tensor
