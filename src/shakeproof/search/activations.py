"""Activation splitting: branch and bound over boxes of many inputs.

Each claim is one output of the network, and must be positive on the whole box. A part of the box on which a claim is
not proved is split by what one neuron's input lies between, below or above the bend of its function; both halves
inherit slopes and shares, and are bounded again. Parts are taken from the top of a stack, so few are open at any time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.bounds import Rows, ascend, enclose_box, rows_within
from shakeproof.errors import ShakeproofError
from shakeproof.network.graph import Graph
from shakeproof.rounding import OF_SCORES, OF_VALUES
from shakeproof.search.descent import descend, float32_box, starts
from shakeproof.search.leaves import PENALTIES, solved
from shakeproof.search.split import ContradictionError, Limits
from shakeproof.search.tree import Tree

# Steps of ascent for a claim on the whole box, and for a part of it.
ROOT_STEPS, PART_STEPS = 100, 20
# How many parts are bounded at once, and how many neurons are tried before one is chosen to split a part.
MOST_PARTS, TRIED = 256, 8
# First with little effort, then with more: from how many places to attack each claim, how many steps from there, and
# whether to optimise the bounds of every neuron. For how long an attack may go on, and for what share of the time left.
EFFORTS = ((2, 10, False), (24, 40, True))
ATTACK_SECONDS, ATTACK_SHARE = 20.0, 0.3
# While splitting, how many of the corners where claims are lowest are followed down, and how many steps.
FOLLOWED, FOLLOWED_STEPS = 16, 10
LARGEST_REPLAY = 16


@dataclass(frozen=True, eq=False)
class BoxProblem:
    """Are all outputs of a network positive for inputs from low to high, (*input_shape)?

    `replay` says of inputs (n, *input_shape), float32 numbers, whether the reference runtime agrees that one is not.
    """

    graph: Graph
    low: Tensor
    high: Tensor
    replay: Callable[[Tensor], NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class BoxOutcome:
    """What a search found.

    `proved` says that all claims hold, by at least `bound`. `witness` (*input_shape) is where the runtime saw one fail;
    `unconfirmed` where only the float64 network did.
    """

    proved: bool
    bound: float
    witness: Tensor | None
    unconfirmed: Tensor | None
    timed_out: bool
    parts: int


def split_activations(problem: BoxProblem, limits: Limits) -> BoxOutcome:
    """Search until every part is settled, a counterexample is found, or the time is up."""
    return _Search(problem, limits).run()


@dataclass(frozen=True, eq=False)
class _Stack:
    """Open parts, their slopes and shares (rows, n) in float32."""

    part: NDArray[np.int64]
    slope: Tensor
    share: Tensor

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, chosen: slice | NDArray[np.bool_]) -> _Stack:
        return _Stack(self.part[chosen], self.slope[chosen], self.share[chosen])

    def with_top(self, more: _Stack) -> _Stack:
        return _Stack(
            np.concatenate([self.part, more.part]),
            torch.cat([self.slope, more.slope]),
            torch.cat([self.share, more.share]),
        )


class _Search:
    """The state of one search."""

    def __init__(self, problem: BoxProblem, limits: Limits) -> None:
        self.problem, self.limits = problem, limits
        self.narrow = problem.graph.to(torch.float32)
        self.box = float32_box(problem.low, problem.high)
        self.claims = problem.graph.classes
        self.most_rows = rows_within(problem.graph, limits.memory / 2)
        self.witness: Tensor | None = None
        self.unconfirmed: Tensor | None = None
        self.least = math.inf
        self.stuck = False
        self.seconds_a_part = 0.0

    def run(self) -> BoxOutcome:
        for places, steps, optimise in EFFORTS:
            self.attack_from(places * self.claims, steps)
            if self.witness is not None:
                return self.outcome(False, 0)
            stack = self.started(optimise)
            if not len(stack) or self.witness is not None:
                break
        while len(stack) and self.witness is None and not self.is_late():
            count = self.count(stack)
            taken, stack = stack[len(stack) - count :], stack[: len(stack) - count]
            started = time.perf_counter()
            stack = stack.with_top(self.bounded(self.halves(taken), PART_STEPS))
            self.seconds_a_part = (time.perf_counter() - started) / max(1, len(taken))
            self.limits.progress(self.tree.share_proved())
        return self.outcome(len(stack) == 0, len(self.tree))

    def started(self, optimise: bool) -> _Stack:
        """Bound every claim on the whole box; those that stay open."""
        low, high, limits = self.problem.low, self.problem.high, self.limits
        self.root = enclose_box(self.problem.graph, low, high, limits.deadline, limits.memory / 2, optimise)
        outputs = torch.maximum(*(end.abs().max() for end in self.root.outputs))
        self.guard = OF_SCORES * float(outputs) + OF_VALUES * self.root.largest
        self.tree, self.least = Tree(self.claims), math.inf
        start = self.root.searching.start()
        stack = _Stack(np.arange(0), start.slope[:0], start.share[:0])
        for first in range(0, self.claims, self.most_rows):
            claims = np.arange(first, min(first + self.most_rows, self.claims))
            whole = _Stack(claims, start.slope.repeat(len(claims), 1), start.share.repeat(len(claims), 1))
            stack = stack.with_top(whole if self.is_late() else self.bounded(whole, ROOT_STEPS))
        return stack

    def is_late(self) -> bool:
        return time.perf_counter() + self.seconds_a_part > self.limits.deadline

    def count(self, stack: _Stack) -> int:
        """How many parts to take: what memory and the clock allow."""
        a_part = 2 * stack.slope.element_size() * max(1, stack.slope.shape[1])
        free = max(0.0, self.limits.memory / 2 - len(stack) * a_part)
        fitting = int(min(self.most_rows / 2, free / (2 * a_part)))
        if self.limits.deadline < math.inf and self.seconds_a_part:
            left = self.limits.deadline - time.perf_counter()
            fitting = min(fitting, int(left / self.seconds_a_part))
        return max(1, min(len(stack), MOST_PARTS, fitting))

    def outcome(self, finished: bool, parts: int) -> BoxOutcome:
        proved = finished and not self.stuck and self.witness is None and self.tree.is_complete() and self.least > 0
        if proved and self.unconfirmed is not None:
            raise ContradictionError("an evaluation contradicts a proof: this is a bug in shakeproof, please report it")
        late = not proved and self.witness is None and self.is_late()
        return BoxOutcome(proved, self.least, self.witness, self.unconfirmed, late, parts)

    # -- looking for counterexamples --------------------------------------------------------------------------------

    def attack_from(self, places: int, steps: int) -> None:
        """Descend from random places, for each claim in turn."""
        now = time.perf_counter()
        until = min(now + ATTACK_SECONDS, now + ATTACK_SHARE * (self.limits.deadline - now))
        for start in range(0, places, self.most_rows):
            if self.witness is not None or time.perf_counter() > until:
                return
            x = starts(self.box, min(self.most_rows, places - start), seed=start)
            self.attack(x, (start + torch.arange(len(x), device=x.device)) % self.claims, steps, until)

    def attack(self, x: Tensor, claim: Tensor, steps: int, until: float) -> None:
        """Descend from these places (rows, *input_shape), each to where its claim (rows) fails."""
        for failing in descend(self.narrow, self.box, x, claim, steps, until):
            self.tested(failing)
            if self.witness is not None:
                return

    def tested(self, x: Tensor) -> None:
        """Look at float32 inputs of the box: where a claim fails in float64, ask the runtime."""
        margin = self.margins(x)
        failing = (margin <= 0).nonzero().squeeze(1)
        if not len(failing):
            return
        failing = failing[margin[failing].argsort()[:LARGEST_REPLAY]]
        agreed = torch.from_numpy(self.problem.replay(x[failing]))
        if bool(agreed.any()):
            self.witness = x[failing[agreed]][0]
        else:
            self.unconfirmed = x[failing[0]]

    def margins(self, x: Tensor) -> Tensor:
        """The least claim (n) in float64; an input without a float32 number in its range is put back into it."""
        scores = self.problem.graph.run(torch.clamp(x.double(), self.problem.low, self.problem.high))
        if not bool(scores.isfinite().all()):
            raise ShakeproofError("the network's outputs are not finite somewhere in the box; check its weights")
        return scores.amin(1)

    # -- bounding -----------------------------------------------------------------------------------------------------

    def bounded(self, open_parts: _Stack, steps: int) -> _Stack:
        """Improve the bounds of parts, note what they prove in float64, and return the parts that stay open."""
        if not len(open_parts):
            return open_parts
        rows = self.rows(open_parts, torch.float32)
        coefficients = self.coefficients(open_parts.part)
        wanted = torch.full((len(open_parts),), 2 * self.guard, dtype=torch.float64)
        better, _ = ascend(self.root.searching, coefficients.float(), rows, steps, wanted, self.limits.deadline)
        exact = self.rows(replace(open_parts, slope=better.slope, share=better.share), torch.float64)
        lines = self.root.proving.on(exact)
        found = lines.lowest(lines.relaxations(exact.slope, exact.share), coefficients)
        left = ~self.proves(found.value, open_parts.part)
        still_open = torch.from_numpy(left).to(found.value.device)
        if left.any():
            corners = torch.clamp(found.corner[still_open].float(), self.box.low, self.box.high)
            self.tested(corners)
            worst = found.value[still_open].argsort()[:FOLLOWED]
            if self.witness is None:
                own = coefficients[still_open][worst].argmax(1)
                self.attack(corners[worst], own, FOLLOWED_STEPS, self.limits.deadline)
        return _Stack(open_parts.part[left], better.slope[still_open], better.share[still_open])

    def rows(self, stack: _Stack, dtype: torch.dtype) -> Rows:
        """The parts' rows; what their neurons lie between is what the tree says."""
        start = self.root.proving.start()
        low, high = self.tree.ranges(stack.part, start.low, start.high)
        return Rows(low.to(dtype), high.to(dtype), stack.slope.to(dtype), stack.share.to(dtype))

    def coefficients(self, parts: NDArray[np.int64]) -> Tensor:
        claim = torch.from_numpy(self.tree.claim[parts]).to(self.problem.low.device)
        return torch.nn.functional.one_hot(claim, self.claims).double()

    # -- splitting ----------------------------------------------------------------------------------------------------

    def halves(self, stack: _Stack) -> _Stack:
        """Each part split in two by the neuron that promises most."""
        neuron, at = self.chosen(stack)
        able = np.isfinite(at)
        if not able.all():
            self.finish(stack[~able])
            stack, neuron, at = stack[able], neuron[able], at[able]
        made = self.tree.split(stack.part, neuron, at)
        return _Stack(made, stack.slope.repeat(2, 1), stack.share.repeat(2, 1))

    def finish(self, stack: _Stack) -> None:
        """Settle parts on which there is nothing left to split: a linear program knows whether a claim holds."""
        rows, coefficients = self.rows(stack, torch.float64), self.coefficients(stack.part)
        for number, part in enumerate(stack.part):
            settled = False
            for penalty in PENALTIES:
                found = solved(self.root.proving, rows[number : number + 1], coefficients[number : number + 1], penalty)
                if found is None or self.is_late():
                    break
                row, x = found
                lines = self.root.proving.on(row)
                bound = lines.lowest(lines.relaxations(row.slope, row.share), coefficients[number : number + 1]).value
                settled = self.proves(bound, np.array([part]))[0]
                if settled:
                    break
                self.tested(torch.clamp(x.float(), self.box.low, self.box.high))
            self.stuck |= not settled

    def proves(self, bound: Tensor, parts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which bounds, in float64, prove their parts; those are noted as proved."""
        proved: NDArray[np.bool_] = ((bound > self.guard) & bound.isfinite()).cpu().numpy()
        self.tree.proved[parts[proved]] = True
        self.least = min(self.least, float(bound[torch.from_numpy(proved)].min())) if proved.any() else self.least
        return proved

    def chosen(self, stack: _Stack) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """For each part, the neuron to split and where; NaN if there is none."""
        searching = self.root.searching
        rows = self.rows(stack, torch.float32)
        coefficients = self.coefficients(stack.part).float()
        lines = searching.on(rows)
        relaxations = lines.relaxations(rows.slope, rows.share)
        found = lines.lowest(relaxations, coefficients)
        score = lines.losses(found, relaxations, lines.walked(relaxations, found))
        exact = self.rows(stack, torch.float64)
        at = self.root.proving.split_at(exact)
        score = torch.where(at.isnan(), -torch.inf, score)
        count = min(TRIED, score.shape[1])
        if not count:
            return np.zeros(len(stack), int), np.full(len(stack), np.nan)
        tried = score.topk(count, 1).indices
        if count > 1:
            tried = self.best(stack, rows, coefficients, tried, at)
        neuron = tried[:, 0]
        return neuron.cpu().numpy(), at.gather(1, neuron.unsqueeze(1)).squeeze(1).cpu().numpy()

    def best(self, stack: _Stack, rows: Rows, coefficients: Tensor, tried: Tensor, at: Tensor) -> Tensor:
        """Of the tried neurons (rows, k), the one whose worse half has the best bound without ascent: (rows, 1)."""
        searching = self.root.searching
        worse = []
        for neuron in tried.unbind(1):
            column = neuron.unsqueeze(1)
            cut = at.gather(1, column).float()
            halves = Rows.joined(
                [
                    replace(rows, high=rows.high.scatter(1, column, cut)),
                    replace(rows, low=rows.low.scatter(1, column, cut)),
                ]
            )
            lines = searching.on(halves)
            found = lines.lowest(lines.relaxations(halves.slope, halves.share), coefficients.repeat(2, 1))
            below, above = found.value.chunk(2)
            gain = torch.minimum(below, above) + 0.1 * torch.maximum(below, above).clamp(max=0)
            worse.append(torch.where(cut.squeeze(1).isnan(), -torch.inf, gain))
        return tried.gather(1, torch.stack(worse, 1).argmax(1, keepdim=True))
