"""How a box was taken apart by splitting neurons, and whether all of its parts are proved."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Tree:
    """Parts of the box, numbered. The first ones are the whole box, one for each claim; a split makes two of one part.

    What a part is follows from the tree alone: the splits on the way to it say between which numbers neurons' inputs
    lie. Proofs are about these ranges, so a tree whose leaves are all proved leaves nothing of the box out.
    """

    def __init__(self, claims: int) -> None:
        self.claim = np.arange(claims)
        self.parent = np.full(claims, -1)
        self.neuron = np.full(claims, -1)  # that was split to make this part
        self.at = np.full(claims, np.nan)
        self.above = np.zeros(claims, bool)  # whether this is the part above the split
        self.proved = np.zeros(claims, bool)
        self.depth = np.zeros(claims, int)

    def __len__(self) -> int:
        return len(self.parent)

    def split(self, parts: NDArray[np.int64], neuron: NDArray[np.int64], at: NDArray[np.float64]) -> NDArray[np.int64]:
        """Split each part in two, where its neuron's input is at some number; returns all below, then all above."""
        first = len(self)
        self.parent = np.concatenate([self.parent, parts, parts])
        self.neuron = np.concatenate([self.neuron, neuron, neuron])
        self.at = np.concatenate([self.at, at, at])
        self.above = np.concatenate([self.above, np.zeros(len(parts), bool), np.ones(len(parts), bool)])
        self.claim = np.concatenate([self.claim, self.claim[parts], self.claim[parts]])
        self.proved = np.concatenate([self.proved, np.zeros(2 * len(parts), bool)])
        self.depth = np.concatenate([self.depth, self.depth[parts] + 1, self.depth[parts] + 1])
        return np.arange(first, len(self))

    def ranges(self, parts: NDArray[np.int64], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """What the neurons' inputs lie between on each part, (rows, n), of what they do on the box, (1, n)."""
        lows, highs = low.repeat(len(parts), 1), high.repeat(len(parts), 1)
        row, part = np.arange(len(parts)), parts
        while len(part):
            inner = self.parent[part] >= 0
            row, part = row[inner], part[inner]
            for ends, mine, narrower in (
                (lows, self.above[part], torch.maximum),
                (highs, ~self.above[part], torch.minimum),
            ):
                where = torch.from_numpy(row[mine]), torch.from_numpy(self.neuron[part[mine]])
                ends[where] = narrower(ends[where], torch.from_numpy(self.at[part[mine]]).to(ends))
            part = self.parent[part]
        return lows, highs

    def is_complete(self) -> bool:
        """Whether every claim is proved on the whole box: a part is if it was proved itself, or both its halves are."""
        settled = self.proved.copy()
        halves: dict[int, list[int]] = {}
        for number in range(len(self) - 1, -1, -1):  # halves come after what they are halves of
            below_above = halves.pop(number, [])
            if not settled[number] and len(below_above) == 2:
                one, other = below_above
                meet = self.at[one] == self.at[other] and self.neuron[one] == self.neuron[other]
                settled[number] = settled[one] and settled[other] and meet and self.above[one] != self.above[other]
            if self.parent[number] >= 0:
                halves.setdefault(int(self.parent[number]), []).append(number)
        return bool(settled[self.parent < 0].all())

    def share_proved(self) -> float:
        """The proved share of the box, each split counted as cutting in half."""
        return float((0.5 ** self.depth[self.proved]).sum() / max(1, (self.parent < 0).sum()))
