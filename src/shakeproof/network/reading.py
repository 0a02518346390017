"""What a reader makes of a model, whatever it was written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shakeproof.network.graph import Graph


@dataclass(frozen=True)
class UnsupportedNode:
    """A node of a model that cannot be analysed, and why; `operator` has its namespace unless it is the usual one."""

    operator: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.node}): {self.reason}" if self.reason else f"{self.operator} ({self.node})"


@dataclass(frozen=True, eq=False)
class Reading:
    """What came of a model: its graph, or the problems that stand in the way.

    `operators` counts the nodes that see the image, by operator. `dropped` names a final Softmax or LogSoftmax that
    the graph leaves out: it does not change which class wins. `output_shape` is the output's before it was flattened.
    """

    graph: Graph | None
    operators: Mapping[str, int]
    problems: tuple[UnsupportedNode, ...]
    dropped: str | None
    output_shape: tuple[int, ...] = ()
