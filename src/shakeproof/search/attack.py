"""PGD: projected gradient descent to a counterexample, from many places of a box at once, in float32.

A. Madry, A. Makelov, L. Schmidt, D. Tsipras, A. Vladu: Towards Deep Learning Models Resistant to Adversarial Attacks.
ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from shakeproof.bounds import pulled_back
from shakeproof.budget import Budget
from shakeproof.graph import Graph
from shakeproof.operators import Range
from shakeproof.question import Path

# Steps are shares of the box's sides, from the first to the last.
FIRST_STEP, LAST_STEP = 0.25, 0.01


def descend(graph: Graph, box: Range, x: Tensor, claim: Tensor, steps: int, budget: Budget) -> Iterator[Tensor]:
    """Points (n, *input_shape) at which a claim fails, as they are found on the way down from x (rows, *input_shape).

    Each row minimises its own claim (rows), one of the network's outputs. Graph and box are float32.
    """
    coefficients = torch.nn.functional.one_hot(claim, graph.classes).to(x.dtype)
    side = box.high - box.low
    for step in range(steps + 1):
        scores, gradient = gradients_at(graph, x, coefficients)
        failing = (scores <= 0).any(1)
        if bool(failing.any()):
            yield x[failing]
        if step == steps or budget.is_late():
            return
        size = FIRST_STEP * (LAST_STEP / FIRST_STEP) ** (step / max(1, steps - 1))
        x = torch.clamp(x - size * side * gradient.sign(), box.low, box.high)


def towards_corner(graph: Graph, path: Path, total: float, w: Tensor, coefficients: Tensor, step: int) -> Tensor:
    """Shares (rows, m) of a simplex, a step on from w to the corner where a function of the scores falls most.

    M. Frank, P. Wolfe: An algorithm for quadratic programming. Naval Research Logistics Quarterly 3, 1956.
    """
    _, gradient = gradients_at(graph, path.at(w), coefficients)
    slopes = gradient.flatten(1) @ path.slopes.flatten(1).t()
    least, axis = slopes.min(1)
    corner = torch.zeros_like(w).scatter_(1, axis.unsqueeze(1), (total * (least < 0).to(w)).unsqueeze(1))
    return w + 2 / (step + 2) * (corner - w)


def gradients_at(graph: Graph, x: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (rows, classes) at inputs (rows, *input_shape), and the gradients of sum(coefficients * scores) there.

    They are planes on cells next to nothing. Where a function bends within one, a line of its bounds is its derivative.
    """
    values = [x, *graph.values(x)]
    relaxations = [node.operator.relaxed(*(_next_to(values[i]) for i in node.inputs)) for node in graph.nodes]
    return values[-1], pulled_back(graph, relaxations, len(graph.nodes), coefficients, slice(None))[0]


def _next_to(value: Tensor) -> Range:
    reach = 1e-4 * (1 + value.abs())
    return Range(value - reach, value + reach)
