"""What checking a proof's coverage costs: seconds a leaf, for trees of more and more cuts.

    python benchmarks/coverage.py [--most 200000]

A search keeps every cut it makes, and SAFE needs a tree of which every leaf was proved. The check must take time in
proportion to the leaves, whatever the number of strengths or neurons.
"""

from __future__ import annotations

import time

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from shakeproof.search import Tree


def grown(leaves: int, coordinates: int, seed: int = 0) -> Tree:
    """A tree of random halvings with so many leaves, all proved."""
    random = np.random.default_rng(seed)
    tree, ends = Tree.planted(1), np.zeros(1, dtype=np.int64)
    low, high = np.zeros((1, coordinates)), np.ones((1, coordinates))
    while len(ends) < leaves:
        count = min(len(ends), leaves - len(ends), 4096)
        chosen = random.permutation(len(ends))[:count]
        axis = random.integers(coordinates, size=count)
        at = (low[chosen, axis] + high[chosen, axis]) / 2
        tree, made = tree.split(ends[chosen], axis, at)
        lows, highs = (np.concatenate([end[chosen], end[chosen]]) for end in (low, high))
        highs[np.arange(count), axis], lows[count + np.arange(count), axis] = at, at
        kept = np.setdiff1d(np.arange(len(ends)), chosen)
        ends, low, high = (np.concatenate(p) for p in ((ends[kept], made), (low[kept], lows), (high[kept], highs)))
    return tree.proved(ends, np.ones(len(ends)))


@click.command()
@click.option("--most", default=200_000, help="Leaves of the largest tree.")
def main(most: int) -> None:
    """Coverage of random trees, in one run."""
    table = Table(title="checking that a tree of cuts is complete")
    for heading in ("coordinates", "leaves", "depth", "complete", "check ms", "us a leaf", "what the leaves are, ms"):
        table.add_column(heading, justify="right")
    for coordinates in (1, 2, 8, 1000):
        for leaves in (most // 100, most // 10, most):
            tree = grown(leaves, coordinates)
            started = time.perf_counter()
            complete = tree.is_complete()
            checked = time.perf_counter()
            some = np.flatnonzero(tree.bound > 0)[: most // 10]
            unit = torch.zeros(1, coordinates), torch.ones(1, coordinates)
            tree.ranges(some, *unit)
            ranged = time.perf_counter() - checked
            spent = checked - started
            table.add_row(
                str(coordinates),
                f"{leaves:,}",
                str(tree.depth.max()),
                str(complete),
                f"{1e3 * spent:.1f}",
                f"{1e6 * spent / leaves:.2f}",
                f"{1e3 * ranged:.1f}",
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
