"""Activation splitting: parts of a box of many inputs, defined by ranges of neurons' inputs.

Each claim is one output of the network, and must be positive on the whole box. A part of the box on which a claim is
not proved is split by one neuron's input, below or above the bend of its function; both halves inherit alphas and
betas, and are bounded again. Parts are taken from the top of a stack, so few are open at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.bounds import AlphaBetaCrown, BoxBounds, Parts, ascend, enclose_box, pulled_back, rows_within
from shakeproof.budget import UNLIMITED, Budget
from shakeproof.errors import NotFiniteError, ProofError
from shakeproof.graph import Graph
from shakeproof.operators import Range
from shakeproof.question import InputBox
from shakeproof.search.attack import descend
from shakeproof.search.loop import Numbers, Strategy, Tree, branch_and_bound

# Steps of ascent for a claim on the whole box, and for a part of it.
ROOT_STEPS, PART_STEPS = 100, 20
# How many parts are bounded at once, and how many neurons are tried before one is chosen to split a part.
MOST_PARTS, TRIED = 512, 8
# First with little effort, then with more: from how many places to attack each claim, how many steps from there, and
# whether to optimise the bounds of every neuron. For how long an attack may go on, and for what share of the time left.
EFFORTS = ((2, 10, False), (24, 40, True))
ATTACK_SECONDS, ATTACK_SHARE = 20.0, 0.3
# While splitting, how many of the corners where claims are lowest are followed down, and how many steps.
FOLLOWED, FOLLOWED_STEPS = 16, 10
LARGEST_REPLAY = 16
# What a linear program's constraint may cost, in units of the claim's largest change over the box: enough to show that
# a part is empty.
PENALTIES = (1e2, 1e5)


@dataclass(frozen=True, eq=False)
class BoxProblem:
    """Are all outputs of a network positive on a box of inputs?

    `replay` says of inputs (n, *input_shape), float32 numbers, whether the reference runtime agrees that one is not.
    """

    graph: Graph
    box: InputBox
    replay: Callable[[Tensor], NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class SplitBox:
    """The result of activation splitting: how neurons were cut, and what was proved about each part.

    Each root of the `tree` is one claim on the whole box, its coordinates are the bending neurons of `bounds`. A
    `counterexample` (*input_shape) is where the runtime saw a claim fail, `unconfirmed` where only the float64 network
    did. There are no `bounds` if an attack ended the search.
    """

    tree: Tree
    bounds: BoxBounds | None
    counterexample: Tensor | None
    unconfirmed: Tensor | None
    finished: bool


def split_activations(problem: BoxProblem, budget: Budget) -> SplitBox:
    """Search until every part is settled, a counterexample is found, or the time is up."""
    strategy = ActivationSplitting(problem, budget)
    finished = branch_and_bound(strategy, budget)
    return strategy.evidence(finished)


def _lowest(crown: AlphaBetaCrown, parts: Parts, coefficients: Tensor) -> NDArray[np.float64]:
    lines = crown.on(parts)
    return lines.lowest(lines.relaxations(parts.alpha, parts.beta), coefficients).value.cpu().numpy()


@dataclass(frozen=True, eq=False)
class Stack:
    """Open parts, their alphas and betas (rows, n) in float32."""

    part: Numbers
    alpha: Tensor
    beta: Tensor

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, chosen: slice | NDArray[np.bool_]) -> Stack:
        return Stack(self.part[chosen], self.alpha[chosen], self.beta[chosen])

    def with_top(self, more: Stack) -> Stack:
        return Stack(
            np.concatenate([self.part, more.part]),
            torch.cat([self.alpha, more.alpha]),
            torch.cat([self.beta, more.beta]),
        )


class ActivationSplitting(Strategy[Stack]):
    """The state of one search."""

    def __init__(self, problem: BoxProblem, budget: Budget) -> None:
        self.problem, self.budget = problem, budget
        self.narrow = problem.graph.to(torch.float32)
        self.claims = problem.graph.classes
        self.most_rows = rows_within(problem.graph, budget)
        self.counterexample: Tensor | None = None
        self.unconfirmed: Tensor | None = None
        self.bounds: BoxBounds | None = None
        self.tree = Tree.planted(self.claims)
        self.steps = ROOT_STEPS
        nothing = problem.box.low.new_empty(0, 0, dtype=torch.float32)
        self.open = Stack(np.empty(0, dtype=np.int64), nothing, nothing)
        for places, steps, optimise in EFFORTS:
            self.attack_from(places * self.claims, steps)
            if self.counterexample is not None:
                return
            rest = self.rooted(optimise)
            if not len(rest) or self.counterexample is not None:
                break
        self.steps = PART_STEPS
        if budget.is_late():
            self.open = rest
        else:
            self.split(rest)

    def rooted(self, optimise: bool) -> Stack:
        """Bound every claim on the whole box; those that stay open."""
        box = self.problem.box
        self.bounds = enclose_box(self.problem.graph, box.low, box.high, self.budget, optimise)
        self.tree = Tree.planted(self.claims)
        start = self.bounds.searching.start()
        rest = Stack(np.empty(0, dtype=np.int64), start.alpha[:0], start.beta[:0])
        self.open = rest
        for first in range(0, self.claims, self.most_rows):
            claims = np.arange(first, min(first + self.most_rows, self.claims))
            whole = Stack(claims, start.alpha.repeat(len(claims), 1), start.beta.repeat(len(claims), 1))
            rest = rest.with_top(whole if self.budget.is_late() else self.bound(whole))
        return rest

    # -- what the loop asks for ---------------------------------------------------------------------------------------

    def open_parts(self) -> int:
        return len(self.open)

    def is_decided(self) -> bool:
        return self.counterexample is not None

    def most_at_once(self) -> int:
        """How many parts memory allows, beside those that wait."""
        a_part = 2 * self.open.alpha.element_size() * max(1, self.open.alpha.shape[1])
        free = max(0.0, self.budget.memory / 2 - len(self.open) * a_part)
        return max(1, min(MOST_PARTS, self.most_rows, int(free / a_part)))

    def take(self, count: int) -> Stack:
        top, self.open = self.open[len(self.open) - count :], self.open[: len(self.open) - count]
        return top

    def bound(self, parts: Stack) -> Stack:
        """Improve the bounds of parts, note what they prove in float64, and return the parts that stay open."""
        assert self.bounds is not None
        if not len(parts):
            return parts
        coefficients = self.coefficients(parts.part)
        wanted = torch.zeros(len(parts), dtype=torch.float64, device=coefficients.device)
        rows = self.ranged(parts, torch.float32)
        better = ascend(self.bounds.searching, coefficients.float(), rows, self.steps, wanted, self.budget)
        exact = self.ranged(Stack(parts.part, better.alpha, better.beta), torch.float64)
        lines = self.bounds.proving.on(exact)
        lowest = lines.lowest(lines.relaxations(exact.alpha, exact.beta), coefficients)
        left = ~self.proves(lowest.value.cpu().numpy(), parts.part)
        still_open = torch.from_numpy(left).to(lowest.value.device)
        if left.any():
            self.follow(lowest.corner[still_open], lowest.value[still_open], coefficients[still_open])
        return Stack(parts.part[left], better.alpha[still_open], better.beta[still_open])

    def split(self, parts: Stack) -> None:
        """Each part split in two by the neuron that promises most."""
        if not len(parts) or self.counterexample is not None:
            self.open = self.open.with_top(parts)
            return
        neuron, at = self.chosen(parts)
        able = np.isfinite(at)
        if not able.all():
            self.finish(parts[~able])
            parts, neuron, at = parts[able], neuron[able], at[able]
        self.tree, halves = self.tree.split(parts.part, neuron, at)
        self.open = self.open.with_top(Stack(halves, parts.alpha.repeat(2, 1), parts.beta.repeat(2, 1)))

    def share_settled(self) -> float:
        return self.tree.share_proved()

    def evidence(self, finished: bool) -> SplitBox:
        if self.unconfirmed is not None and self.tree.is_complete():
            raise ProofError("an evaluation contradicts a proof")
        return SplitBox(self.tree, self.bounds, self.counterexample, self.unconfirmed, finished)

    # -- looking for counterexamples --------------------------------------------------------------------------------

    def attack_from(self, places: int, steps: int) -> None:
        """Descend from random places, for each claim in turn."""
        budget = self.budget.shortened(ATTACK_SHARE, ATTACK_SECONDS)
        for start in range(0, places, self.most_rows):
            if self.counterexample is not None or budget.is_late():
                return
            x = self.problem.box.samples(min(self.most_rows, places - start), seed=start)
            self.attack(x, (start + torch.arange(len(x), device=x.device)) % self.claims, steps, budget)

    def attack(self, x: Tensor, claim: Tensor, steps: int, budget: Budget) -> None:
        """Descend from these places (rows, *input_shape), each to where its claim (rows) fails."""
        for failing in descend(self.narrow, Range(*self.problem.box.float32), x, claim, steps, budget):
            self.test(failing)
            if self.counterexample is not None:
                return

    def follow(self, corners: Tensor, bound: Tensor, coefficients: Tensor) -> None:
        """Look at the corners where claims are lowest, and descend from the worst of them."""
        corners = torch.clamp(corners.float(), *self.problem.box.float32)
        self.test(corners)
        worst = bound.argsort()[:FOLLOWED]
        if self.counterexample is None:
            self.attack(corners[worst], coefficients[worst].argmax(1), FOLLOWED_STEPS, self.budget)

    def test(self, x: Tensor) -> None:
        """Look at float32 inputs of the box: where a claim fails in float64, ask the runtime."""
        margin = self.margins(x)
        failing = (margin <= 0).nonzero().squeeze(1)
        if not len(failing):
            return
        failing = failing[margin[failing].argsort()[:LARGEST_REPLAY]]
        agreed = torch.from_numpy(self.problem.replay(x[failing])).to(failing.device)
        if bool(agreed.any()):
            self.counterexample = x[failing[agreed]][0]
        else:
            self.unconfirmed = x[failing[0]]

    def margins(self, x: Tensor) -> Tensor:
        """The least claim (n) in float64; an input without a float32 number in its range is put back into it."""
        scores = self.problem.graph.run(torch.clamp(x.double(), self.problem.box.low, self.problem.box.high))
        if not bool(scores.isfinite().all()):
            raise NotFiniteError("the network's outputs are not finite somewhere in the box; check its weights")
        return scores.amin(1)

    # -- bounding -----------------------------------------------------------------------------------------------------

    def ranged(self, stack: Stack, dtype: torch.dtype) -> Parts:
        """The parts; what their neurons lie between is what the tree says."""
        assert self.bounds is not None
        start = self.bounds.proving.start()
        low, high = self.tree.ranges(stack.part, start.low, start.high)
        return Parts(low.to(dtype), high.to(dtype), stack.alpha.to(dtype), stack.beta.to(dtype))

    def coefficients(self, parts: Numbers) -> Tensor:
        claim = torch.from_numpy(self.tree.root[parts]).to(self.problem.box.low.device)
        return torch.nn.functional.one_hot(claim, self.claims).double()

    def proves(self, bound: NDArray[np.float64], part: Numbers) -> NDArray[np.bool_]:
        """Which bounds, in float64, prove their parts; the tree notes those."""
        proved: NDArray[np.bool_] = (bound > 0) & np.isfinite(bound)
        if proved.any():
            self.tree = self.tree.proved(part[proved], bound[proved])
        return proved

    # -- splitting ----------------------------------------------------------------------------------------------------

    def finish(self, stack: Stack) -> None:
        """Settle parts on which there is nothing left to split: a linear program knows whether a claim holds."""
        assert self.bounds is not None
        crown = self.bounds.proving
        rows, coefficients = self.ranged(stack, torch.float64), self.coefficients(stack.part)
        for number in range(len(stack)):
            if self.budget.is_late():
                self.open = self.open.with_top(stack[number:])
                return
            for penalty in PENALTIES:
                one = slice(number, number + 1)
                solution = solved(crown, rows[one], coefficients[one], penalty, self.budget)
                if solution is None or self.budget.is_late():
                    break
                part, x = solution
                if self.proves(_lowest(crown, part, coefficients[one]), stack.part[one])[0]:
                    break
                self.test(torch.clamp(x.float(), *self.problem.box.float32))

    def chosen(self, stack: Stack) -> tuple[Numbers, NDArray[np.float64]]:
        """For each part, the neuron to split and where; NaN if there is none."""
        assert self.bounds is not None
        parts = self.ranged(stack, torch.float32)
        coefficients = self.coefficients(stack.part).float()
        lines = self.bounds.searching.on(parts)
        relaxations = lines.relaxations(parts.alpha, parts.beta)
        lowest = lines.lowest(relaxations, coefficients)
        score = lines.losses(lowest, relaxations, lines.walked(relaxations, lowest))
        at = self.bounds.proving.split_at(self.ranged(stack, torch.float64))
        score = torch.where(at.isnan(), -torch.inf, score)
        count = min(TRIED, score.shape[1])
        if not count:
            return np.zeros(len(stack), dtype=np.int64), np.full(len(stack), np.nan)
        tried = score.topk(count, 1).indices
        if count > 1:
            tried = self.best(parts, coefficients, tried, at)
        neuron = tried[:, 0]
        return neuron.cpu().numpy(), at.gather(1, neuron.unsqueeze(1)).squeeze(1).cpu().numpy()

    def best(self, parts: Parts, coefficients: Tensor, tried: Tensor, at: Tensor) -> Tensor:
        """Of the tried neurons (rows, k), the one whose worse half has the best bound without ascent: (rows, 1)."""
        assert self.bounds is not None
        worse: list[Tensor] = []
        for neuron in tried.unbind(1):
            if worse and self.budget.is_late():
                break
            column = neuron.unsqueeze(1)
            cut = at.gather(1, column).float()
            below = replace(parts, high=parts.high.scatter(1, column, cut))
            above = replace(parts, low=parts.low.scatter(1, column, cut))
            halves = Parts.joined([below, above])
            lines = self.bounds.searching.on(halves)
            lowest = lines.lowest(lines.relaxations(halves.alpha, halves.beta), coefficients.repeat(2, 1))
            one, other = lowest.value.chunk(2)
            gain = torch.minimum(one, other) + 0.1 * torch.maximum(one, other).clamp(max=0)
            worse.append(torch.where(cut.squeeze(1).isnan(), -torch.inf, gain))
        return tried.gather(1, torch.stack(worse, 1).argmax(1, keepdim=True))


def solved(
    crown: AlphaBetaCrown, part: Parts, coefficients: Tensor, penalty: float, budget: Budget = UNLIMITED
) -> tuple[Parts, Tensor] | None:
    """A part on which every neuron is straight, with the best betas, and the input at which the claim is least; None if
    the solver fails, or the time is up.

    There the best betas are the duals of a linear program. Ascent comes close to them; only a solver gets there. Nobody
    trusts its answer: the bound is computed again from the betas, and any betas are sound.

    minimise claim(x) + penalty * t for x in the box, where every cut range holds up to t >= 0. The dual of a range is
    the neuron's beta. With t, the program has a solution even if the part is empty; its bound is then as large as the
    penalty allows.
    """
    from scipy.optimize import linprog  # half a second, which few queries need

    root, lines = crown.start(), crown.on(part)
    relaxations = lines.relaxations(part.alpha, torch.zeros_like(part.beta))
    claim, _ = pulled_back(crown.graph, relaxations, crown.top, coefficients, slice(None))
    low, high = (end.flatten().cpu().numpy() for end in crown.box)
    objective = claim.flatten().cpu().numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        change = float(np.abs(objective) @ (high - low)) or 1.0
    sides, limits, places = [], [], []
    for bend, place in zip(crown.bends, crown.slices, strict=True):
        value = crown.graph.nodes[bend.node].inputs[0]
        for sign, cut, ends in ((1, part.low > root.low, part.low), (-1, part.high < root.high, part.high)):
            neuron = cut[0, place].nonzero().squeeze(1)
            if not len(neuron):
                continue
            units = claim.new_zeros(len(neuron), crown.graph.shape(value).numel())
            units.scatter_(1, bend.place[neuron].unsqueeze(1), 1.0)
            slopes, offset = pulled_back(
                crown.graph, relaxations, value, units.view(-1, *crown.graph.shape(value)), slice(None)
            )
            # sign * (slopes . x + offset) + t >= sign * end, as the solver wants it
            sides.append(np.hstack([-sign * slopes.flatten(1).cpu().numpy(), np.full((len(neuron), 1), -1.0)]))
            limits.append(sign * (offset - ends[0, place][neuron]).cpu().numpy())
            places.append((sign, place.start + neuron))
    if not sides:
        return None
    goal, matrix, limit = np.append(objective, penalty * change), np.concatenate(sides), np.concatenate(limits)
    if not all(np.isfinite(numbers).all() for numbers in (goal, matrix, limit)):
        return None
    solution = linprog(
        goal,
        A_ub=matrix,
        b_ub=limit,
        bounds=[*zip(low, high, strict=True), (0, None)],
        method="highs",
        options={"time_limit": max(0.0, budget.seconds_left)},
    )
    if solution.status != 0:
        return None
    beta, start = torch.zeros_like(part.beta), 0
    for sign, neuron in places:
        dual = -solution.ineqlin.marginals[start : start + len(neuron)]
        beta[0, neuron] += sign * torch.from_numpy(np.maximum(dual, 0)).to(beta)
        start += len(neuron)
    return replace(part, beta=beta), torch.from_numpy(solution.x[:-1]).to(claim).view(1, *crown.box.low.shape[1:])
