"""Branch and bound: the one loop, and the tree of cuts that it leaves.

The loop takes open parts, bounds them, closes what is proved and splits the rest. A cut says that a coordinate (a
strength, an input, a neuron's input) is at most some number on one part, and at least that number on the other. What a
part is follows from the cuts on the way to it, and from nothing else; so a tree whose leaves are all proved leaves
nothing of the domain out. Checking that takes time in proportion to the parts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.budget import STEP_SECONDS, Budget, OutOfTimeError, now

Batch = TypeVar("Batch")


class Strategy(ABC, Generic[Batch]):
    """What the parts are, how they are bounded, and how they are split."""

    @abstractmethod
    def open_parts(self) -> int:
        """How many parts are open."""

    @abstractmethod
    def is_decided(self) -> bool:
        """Whether the search is decided, even with open parts."""

    @abstractmethod
    def most_at_once(self) -> int:
        """How many parts fit into memory, and into one round."""

    @abstractmethod
    def take(self, count: int) -> Batch:
        """The most urgent open parts, `count` at most; they are no longer open."""

    @abstractmethod
    def bound(self, parts: Batch) -> Batch:
        """Bound parts, close those that are proved, and return the rest of the others."""

    @abstractmethod
    def split(self, parts: Batch) -> None:
        """Cut parts in two, and open the halves."""

    @abstractmethod
    def share_settled(self) -> float:
        """Which share of the domain is settled."""


def branch_and_bound(strategy: Strategy[Batch], budget: Budget) -> bool:
    """Search until nothing is open or the question is decided; False if the time was up before that."""
    seconds_a_part = 0.0
    while strategy.open_parts() and not strategy.is_decided():
        if budget.is_late(seconds_a_part):
            return False
        count = strategy.most_at_once()
        if budget.is_timed:
            within = min(STEP_SECONDS, max(0.0, budget.seconds_left))
            count = max(1, min(count, int(within / seconds_a_part))) if seconds_a_part else 1
        count = min(count, strategy.open_parts())
        started = now()
        try:
            strategy.split(strategy.bound(strategy.take(count)))
        except OutOfTimeError:  # what was taken is not proved
            return False
        seconds_a_part = (now() - started) / count
        budget.progress(strategy.share_settled())
    return True


# -- the tree ----------------------------------------------------------------------------------------------------------

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Tree:
    """Parts, numbered; all arrays (parts). The first ones are roots, the whole domain each.

    `coordinate` was cut `at` some number to make a part of its `parent` (-1: a root), and it is `above` the cut, or
    below. `bound` is what was proved of the part: by how much its claim holds, at least; NaN if nothing was.
    """

    root: Numbers
    parent: Numbers
    coordinate: Numbers
    at: NDArray[np.float64]
    above: NDArray[np.bool_]
    bound: NDArray[np.float64]
    depth: Numbers

    @staticmethod
    def planted(roots: int) -> Tree:
        """A tree of roots alone, nothing proved."""
        none = np.full(roots, np.nan)
        nothing = np.full(roots, -1)
        return Tree(np.arange(roots), nothing, nothing, none, np.zeros(roots, bool), none.copy(), np.zeros(roots, int))

    def __len__(self) -> int:
        return len(self.parent)

    def split(self, parts: Numbers, coordinate: Numbers, at: NDArray[np.float64]) -> tuple[Tree, Numbers]:
        """Cut each part in two; the new parts are first all those below, then all those above."""
        count = len(parts)
        grown = Tree(
            root=np.concatenate([self.root, self.root[parts], self.root[parts]]),
            parent=np.concatenate([self.parent, parts, parts]),
            coordinate=np.concatenate([self.coordinate, coordinate, coordinate]),
            at=np.concatenate([self.at, at, at]),
            above=np.concatenate([self.above, np.zeros(count, bool), np.ones(count, bool)]),
            bound=np.concatenate([self.bound, np.full(2 * count, np.nan)]),
            depth=np.concatenate([self.depth, self.depth[parts] + 1, self.depth[parts] + 1]),
        )
        return grown, np.arange(len(self), len(grown))

    def proved(self, parts: Numbers, bound: NDArray[np.float64]) -> Tree:
        """The tree with what was proved of some parts."""
        noted = self.bound.copy()
        noted[parts] = bound
        return replace(self, bound=noted)

    @property
    def is_proved(self) -> NDArray[np.bool_]:
        """Of which parts something was proved: what is not positive or not finite proves nothing."""
        return np.isfinite(self.bound) & (self.bound > 0)

    def ranges(self, parts: Numbers, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """What the coordinates lie between on each part, (rows, n), of what they do on the whole domain, (1, n)."""
        lows, highs = low.repeat(len(parts), 1), high.repeat(len(parts), 1)
        row, part = np.arange(len(parts)), parts
        while len(part):
            inner = self.parent[part] >= 0
            row, part = row[inner], part[inner]
            for ends, mine, narrower in (
                (lows, self.above[part], torch.maximum),
                (highs, ~self.above[part], torch.minimum),
            ):
                where = (
                    torch.from_numpy(row[mine]).to(ends.device),
                    torch.from_numpy(self.coordinate[part[mine]]).to(ends.device),
                )
                ends[where] = narrower(ends[where], torch.from_numpy(self.at[part[mine]]).to(ends))
            part = self.parent[part]
        return lows, highs

    def boxes(self, low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
        """What the few coordinates lie between on every part: (parts, low and high, n), from (n) on the whole domain.

        It takes time in proportion to the parts, however deep the tree is.
        """
        boxes = np.empty((len(self), 2, len(low)))
        boxes[self.parent < 0] = np.stack([low, high])
        order = np.argsort(self.depth, kind="stable")
        starts = np.searchsorted(self.depth[order], np.arange(1, self.depth.max(initial=0) + 2))
        for first, last in pairwise(starts):
            level = order[first:last]
            boxes[level] = boxes[self.parent[level]]
            for is_low, narrower in ((True, np.maximum), (False, np.minimum)):
                side = level[self.above[level] == is_low]
                place = side, 0 if is_low else 1, self.coordinate[side]
                boxes[place] = narrower(boxes[place], self.at[side])
        return boxes

    def holding(self, points: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which parts hold one of the points (rows, n) of the domain, ends included; from the root down."""
        below, above = (np.full(len(self), -1) for _ in range(2))
        for children, side in ((below, ~self.above), (above, self.above)):
            chosen = np.flatnonzero((self.parent >= 0) & side)
            children[self.parent[chosen]] = chosen
        held = np.zeros(len(self), bool)
        row, part = (column.ravel() for column in np.meshgrid(np.arange(len(points)), np.flatnonzero(self.parent < 0)))
        while len(part):
            held[part] = True
            inner = below[part] >= 0
            row, part = row[inner], part[inner]
            one, other = below[part], above[part]
            at, place = self.at[one], points[row, self.coordinate[one]]
            left, right = place <= at, place >= at
            row, part = np.concatenate([row[left], row[right]]), np.concatenate([one[left], other[right]])
        return held

    def least(self) -> NDArray[np.float64]:
        """By how much each root's claim is proved to hold on the whole domain; -inf where it is not.

        A part's bound is its own, or the smaller of its two halves', if these are the two sides of one cut of it.
        """
        least = np.where(self.is_proved, self.bound, -math.inf)
        order = np.argsort(self.depth, kind="stable")
        starts = np.searchsorted(self.depth[order], np.arange(self.depth.max(initial=0) + 2))
        for depth in range(len(starts) - 2, 0, -1):
            level = order[starts[depth] : starts[depth + 1]]
            parents = self.parent[level]
            by_parent = np.argsort(parents, kind="stable")
            level, parents = level[by_parent], parents[by_parent]
            whole, first, count = np.unique(parents, return_index=True, return_counts=True)
            two = count == 2
            one, other = level[first[two]], level[first[two] + 1]
            meet = (self.at[one] == self.at[other]) & (self.coordinate[one] == self.coordinate[other])
            meet &= self.above[one] != self.above[other]
            meet &= (self.root[one] == self.root[whole[two]]) & (self.root[other] == self.root[whole[two]])
            both = np.where(meet, np.minimum(least[one], least[other]), -math.inf)
            least[whole[two]] = np.maximum(least[whole[two]], both)
        return least[self.parent < 0]

    def is_complete(self) -> bool:
        """Whether every root's claim is proved on the whole domain."""
        least = self.least()
        return len(least) > 0 and bool((np.isfinite(least) & (least > 0)).all())

    def share_proved(self) -> float:
        """The proved share of the domain, each cut counted as cutting in half."""
        return float((0.5 ** self.depth[self.is_proved]).sum() / max(1, (self.parent < 0).sum()))
