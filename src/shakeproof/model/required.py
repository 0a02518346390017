"""The graph that is analysed for a property: one class wins in it exactly where the property holds.

Class 0 of it scores 0, and every other class is a case of the property, whose score is the case's margin turned round.
So the lead of class 0 is the property's margin, and whatever proves which class wins proves properties. Of a property
that is itself that a label wins, the graph is the network's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal, localcontext
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

import shakeproof.operators as ops
from shakeproof.errors import InputError
from shakeproof.graph import Graph, Node, cached_per_graph
from shakeproof.model.network import Network
from shakeproof.question import Case, Property

# Logarithms have so many digits before they are rounded outwards.
DIGITS = 60


class Stated(NamedTuple):
    """A graph, and a property of its scores that holds exactly where what was asked holds of the network's outputs."""

    graph: Graph
    about: Property

    @property
    def label(self) -> int:
        """The class of `graph_of_cases` that wins where the property holds."""
        return self.about.label if self.about.is_label and self.about.label is not None else 0

    @property
    def graph_of_cases(self) -> Graph:
        return self.graph if self.about.is_label else with_cases(self.graph, self.about)


def stated(network: Network, about: Property) -> Stated:
    """Before what squashes scores, if the property says the same of these: then the network may be piecewise linear.

    An order of outputs is one of scores. An output of a sigmoid, or of a softmax of two classes, is above a number
    where a score, or a difference, is above its logit, which is rounded so that the property is not weaker.
    """
    if about.is_label:
        return Stated(network.graph, about)
    unsquashed, with_softmax = _variants(network.graph)
    squashes = "Sigmoid" if unsquashed and network.dropped is None else network.dropped
    if squashes is None:
        return Stated(network.graph, about)
    before = unsquashed if unsquashed and squashes == "Sigmoid" else network.graph
    if about.compares_only:
        return Stated(before, about)
    pairs = squashes == "Softmax" and about.outputs == 2
    cases = [_before_squashing(case, pairs) for case in about.cases] if squashes == "Sigmoid" or pairs else [None]
    moved = tuple(case for case in cases if case is not None)
    if len(moved) == len(about.cases):
        properties = _moved(before)
        if about not in properties:
            properties[about] = Property(about.outputs, moved)
        return Stated(before, properties[about])
    if squashes == "LogSoftmax":
        raise InputError(
            f"{network.name}: gives logarithms of a softmax, of which only the order is analysed; export it without"
            " them, and ask about the scores"
        )
    return Stated(with_softmax if squashes == "Softmax" else network.graph, about)


@cached_per_graph
def _moved(graph: Graph) -> WeakKeyDictionary[Property, Property]:
    """Properties of what a graph's scores are squashed to, and the same of the scores: one object each time."""
    return WeakKeyDictionary()


@cached_per_graph
def _variants(graph: Graph) -> tuple[Graph | None, Graph]:
    """The graph without the sigmoid that makes its outputs, if one does, and with a softmax behind it."""
    place, nodes = len(graph.nodes) - 1, list(graph.nodes)
    while place > 0 and isinstance(nodes[place].operator, ops.Reshape) and nodes[place].inputs == (place,):
        place -= 1
    sigmoid, unsquashed = nodes[place], None
    if isinstance(sigmoid.operator, ops.Sigmoid):
        nodes[place] = replace(sigmoid, operator=ops.Reshape(tuple(sigmoid.shape)))
        unsquashed = replace(graph, nodes=tuple(nodes))
    return unsquashed, graph.then(ops.Softmax(0))


def _before_squashing(case: Case, pairs: bool) -> Case | None:
    """The case of scores instead of probabilities; None if there is no such case."""
    rows, constants = [], []
    for row, constant in zip(case.coefficients, case.constants.tolist(), strict=True):
        places = np.flatnonzero(row)
        if constant == 0 and len(places) == 2 and row.sum() == 0:
            rows.append(row)
            constants.append(0.0)
            continue
        if len(places) != 1 or abs(row[places[0]]) != 1 or not 0 < (share := -constant * row[places[0]]) < 1:
            return None
        sign = float(row[places[0]])
        rows.append(row - np.roll(row, 1) if pairs else row)
        constants.append(-sign * logit(share, up=sign < 0))
    return replace(case, coefficients=np.array(rows), constants=np.array(constants))


def logit(share: float, up: bool) -> float:
    """log(share / (1 - share)), rounded up or down."""
    with localcontext() as context:
        context.prec = DIGITS
        exact = (Decimal(share) / (1 - Decimal(share))).ln()
    nearest = float(exact)
    return math.nextafter(nearest, math.inf if up else -math.inf) if exact else 0.0


# -- cases as classes --------------------------------------------------------------------------------------------------


def with_cases(graph: Graph, about: Property) -> Graph:
    """The network with a class that scores 0, and one for each case, whose score is the case's margin turned round.

    The same graph each time, so that what is kept for it is kept.
    """
    graphs = _with_cases(graph)
    if about not in graphs:
        graphs[about] = _built(graph, about)
    return graphs[about]


@cached_per_graph
def _with_cases(graph: Graph) -> WeakKeyDictionary[Property, Graph]:
    return WeakKeyDictionary()


def _built(graph: Graph, about: Property) -> Graph:
    nodes = list(graph.nodes)

    def add(operator: ops.Operator, *inputs: int, shape: Sequence[int]) -> int:
        nodes.append(Node(operator, inputs, torch.Size(shape)))
        return len(nodes)

    scores = len(nodes)
    if len(graph.shape(scores)) != 1:
        scores = add(ops.Reshape((graph.classes,)), scores, shape=(graph.classes,))
    parts = []
    for shape, cases in _alike(about.cases).items():
        groups, rows, count = shape
        operator = _linear(cases, groups, rows, graph.device)
        value = add(operator, scores, shape=(len(operator.bias),))
        if rows > 1:  # a group is met by its largest row,
            value = add(ops.Reshape((len(cases) * groups, rows)), value, shape=(len(cases) * groups, rows))
            value = add(ops.Ranked(rows), value, shape=(len(cases) * groups, 1))
        if groups > 1:  # and a case by as many groups as count
            value = add(ops.Reshape((len(cases), groups)), value, shape=(len(cases), groups))
            value = add(ops.Ranked(groups - count + 1), value, shape=(len(cases), 1))
        if rows > 1 or groups > 1:
            value = add(ops.Reshape((len(cases),)), value, shape=(len(cases),))
        parts.append(value)
    count = len(about.cases)
    every = add(ops.Concat(0), *parts, shape=(count,)) if len(parts) > 1 else parts[0]
    add(ops.Pad(((-1, *range(count)),), 0.0), every, shape=(count + 1,))
    return replace(graph, nodes=tuple(nodes))


def _alike(cases: Sequence[Case]) -> dict[tuple[int, int, int], list[Case]]:
    """By how many groups they have, of how many rows at most, and how many of the groups count."""
    alike: dict[tuple[int, int, int], list[Case]] = {}
    for case in cases:
        starts, count = case.groups
        rows = int(np.diff(np.append(starts, len(case.constants))).max())
        alike.setdefault((len(starts), rows, count), []).append(case)
    return alike


def _linear(cases: Sequence[Case], groups: int, rows: int, device: torch.device) -> ops.Linear | ops.Pairs:
    """The rows of all cases, one group after another; groups with fewer rows than others repeat their own.

    Rows of up to two outputs each are not written as a matrix.
    """
    weights, constants = [], []
    for case in cases:
        ends = np.append(case.groups[0], len(case.constants))
        chosen = np.concatenate([np.resize(np.arange(a, b), rows) for a, b in pairwise(ends)])
        weights.append(case.coefficients[chosen])
        constants.append(case.constants[chosen])
    weight, bias = (torch.from_numpy(np.concatenate(part)).to(device) for part in (weights, constants))
    if weight.shape[1] < 2 or int((weight != 0).sum(1).max()) > 2:
        return ops.Linear(weight, bias)
    places = weight.abs().topk(2, dim=1).indices
    return ops.Pairs(weight.gather(1, places), places, bias)
