"""The method for everything that cannot be enumerated: bounds and splitting, for paths of any network and for boxes.

Strengths are split, and up to a few inputs that vary; of many inputs, the neurons are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.bounds import Boxes, enclose, lowest_leads
from shakeproof.budget import Budget, OutOfTimeError, now
from shakeproof.errors import InputError, NotFiniteError
from shakeproof.graph import Graph
from shakeproof.model import Comparison, Network, Stated, stated, with_claims, without_max_pools
from shakeproof.operators import Softmax
from shakeproof.proof.brackets import CLEARLY
from shakeproof.proof.evidence import BoundedCells, BoundedTree, Counterexample, Proof
from shakeproof.proof.replay import compared, fails, places, replayed_at
from shakeproof.proof.result import Result
from shakeproof.proof.verdict import Evidence
from shakeproof.question import InputBox, InputKernels, InputPath, Obligation, Query, wins
from shakeproof.search import (
    AnyFailure,
    BoxProblem,
    FirstFailure,
    Goal,
    Map,
    PathProblem,
    SplitCells,
    split_activations,
    split_inputs,
)
from shakeproof.settings import Settings

# Up to so many inputs that vary, splitting them is quicker than splitting neurons.
FEW_INPUTS = 8
# So many points at which something fails are looked at again, to take the worst.
MOST_FAILURES = 64
# A map of the square has so many boxes to a side; there is no picture of more dimensions.
MAP_SIDE = 128


@torch.inference_mode()
def answer_by_splitting(
    network: Network, query: Query, settings: Settings, progress: Callable[[float], None]
) -> Result:
    """Answer one query."""
    started = now()
    search = _Search(network, query, settings, Budget.starting(settings.timeout, settings.memory, progress))
    at_start, about = search.start().unsqueeze(0), query.obligations[0].property
    meant = search.meant(query.obligations[0])
    scores = meant.graph.to(search.device).run(at_start).cpu().numpy()
    finite = bool(np.isfinite(scores).all())
    predicted = int(scores.argmax()) if finite else None
    start = float(meant.about.margin(scores)[0]) if query.perturbation is not None else None
    if finite and (start is None or start > 0):
        evidence = search.evidence(start)
    else:
        fails = bool(about.fails(network.reference(at_start.cpu().float().numpy()))[0])
        evidence = Evidence(len(query.obligations), (), None, None, start, finite, settings.arithmetic, fails)
    progress(1.0)
    return Result(network.name, network.identity, query, evidence, predicted, now() - started)


class _Search:
    """One query on its way to its evidence."""

    def __init__(self, network: Network, query: Query, settings: Settings, budget: Budget) -> None:
        self.network, self.query, self.settings, self.budget = network, query, settings, budget
        self.device = torch.device(settings.device)

    def meant(self, obligation: Obligation) -> Stated:
        """The graph that a property is about, and the property of its scores."""
        if isinstance(obligation.inputs, InputPath):
            return stated(self.network, obligation.property)
        return Stated(_graph_of(self.network, self.query), obligation.property)

    def proving(self, graph: Graph) -> Graph:
        """The graph as proofs are about it."""
        graph = graph.to(self.device)
        return graph.in_float32() if self.settings.arithmetic == "float32" else graph

    def start(self) -> Tensor:
        """The image itself, or the middle of the first box, as an input."""
        inputs, image = self.query.obligations[0].inputs, self.query.image
        if isinstance(inputs, InputPath):
            return inputs.start.to(self.device)
        if isinstance(inputs, InputKernels):
            return inputs.path.clipped(inputs.path.base).to(self.device)
        if self.query.perturbation is None or image is None or inputs.layout is None:
            return inputs.middle.to(self.device)
        return inputs.layout.to_input(image.pixels).to(self.device)

    def evidence(self, start: float | None) -> Evidence:
        """Work on one obligation after another, until one fails or the time is up."""
        count = len(self.query.obligations)
        comparisons: list[Comparison] = []
        proofs: list[Proof] = []
        counterexample, finite = None, True
        for number, obligation in enumerate(self.query.obligations):
            budget = self.budget.part(number / count, (number + 1) / count)
            comparisons += compared(self.network, [(obligation, places(obligation))], budget)
            try:
                proof, counterexample = self.searched(obligation, budget)
            except NotFiniteError:
                finite = False
                break
            proofs += [] if proof is None else [proof]
            if proof is None or counterexample is not None or not proof.is_finished:
                break
            comparisons += self.at_lowest(obligation, proof)
        # one box's comparison does not speak for another's, for which there was no time
        asked = all(len(comparison.margin) for comparison in comparisons)
        comparison = Comparison.joined(comparisons) if asked else None
        return Evidence(count, tuple(proofs), counterexample, comparison, start, finite, self.settings.arithmetic)

    def at_lowest(self, obligation: Obligation, proof: Proof) -> list[Comparison]:
        """Compare runtime and network on the cell of a path with the smallest proved bound."""
        if not isinstance(proof, BoundedCells) or not isinstance(obligation.inputs, InputPath) or not proof.holds:
            return []
        safe = proof.cells.safe
        lowest = proof.cells.boxes(safe[[proof.cells.tree.bound[safe].argmin()]])
        return compared(self.network, [(obligation, torch.from_numpy(lowest.mean(1)))], Budget())

    def searched(self, obligation: Obligation, budget: Budget) -> tuple[Proof | None, Counterexample | None]:
        """The proof of an obligation, if there is one, and a counterexample, if there is one."""
        inputs, about = obligation.inputs, obligation.property
        if not isinstance(inputs, InputBox):
            return self.along_path(obligation, inputs, budget)
        if any(not len(case.constants) for case in about.cases):  # no row to meet: any input will do
            return None, self.counterexample(obligation, inputs.float32[0])
        box = inputs.to(self.device)
        meant = self.proving(self.meant(obligation).graph)
        graph = with_claims(meant, *(torch.from_numpy(part).to(self.device) for part in about.claims))
        if len(box.varying) <= FEW_INPUTS:
            return self.by_inputs(obligation, box, graph, budget)
        problem = BoxProblem(without_max_pools(graph), box, lambda x: fails(self.network, obligation, x))
        tree = split_activations(problem, budget)
        x = tree.unconfirmed if tree.counterexample is None else tree.counterexample
        return BoundedTree(tree, about), None if x is None else self.counterexample(obligation, x)

    def along_path(
        self, obligation: Obligation, inputs: InputPath | InputKernels, budget: Budget
    ) -> tuple[Proof, Counterexample | None]:
        """Split the strengths, or the shares of kernels."""
        meant = self.meant(obligation)
        graph = self.proving(meant.graph_of_cases)
        claims = wins(meant.label, graph.classes).claims[0][:, 0]
        total = inputs.total if isinstance(inputs, InputKernels) else None
        ends = inputs.end if isinstance(inputs, InputPath) else [inputs.total] * inputs.path.parameters
        end = torch.tensor(ends, dtype=torch.float64, device=self.device)
        problem = PathProblem(
            graph=inputs.within(graph).to(self.device),
            path=inputs.path.to(self.device),
            claims=torch.from_numpy(claims).to(self.device),
            low=torch.zeros_like(end),
            high=end,
            replay=lambda z: fails(self.network, obligation, z),
            total=total,
        )
        cells = split_inputs(problem, self.goal(inputs), budget)
        failing = cells.replayed if len(cells.replayed) else _lowest(cells, problem)
        about = obligation.property
        return BoundedCells(cells, about, meant.label), self.worst(
            obligation, problem, meant.label, torch.from_numpy(failing)
        )

    def goal(self, inputs: InputPath | InputKernels) -> Goal:
        if isinstance(inputs, InputKernels):
            return AnyFailure()
        if inputs.path.parameters == 1:
            return FirstFailure(self.settings.tolerance)
        maps = inputs.path.parameters == 2 and not self.settings.stop_early
        return Map(1 / MAP_SIDE) if maps else AnyFailure()

    def worst(self, obligation: Obligation, problem: PathProblem, label: int, z: Tensor) -> Counterexample | None:
        """Of strengths (n, m) at which a claim fails, the one at which it does so most clearly; of one strength, the
        first at which it does so clearly.
        """
        if not len(z):
            return None
        z = z[:MOST_FAILURES]
        scores = problem.graph.run(problem.path.at(z.to(self.device)))
        margin = (scores @ problem.claims.t()).amin(1)
        clear = (margin <= -CLEARLY * scores.abs().amax()).nonzero().squeeze(1).cpu()
        place = int(margin.argmin())
        if z.shape[1] == 1 and len(clear):
            place = int(clear[z[clear, 0].argmin()])
        worst, at_worst = z[place], scores[place].clone()
        counterexample = self.counterexample(obligation, worst)
        if counterexample.replayed or self.settings.arithmetic != "real":
            return counterexample
        at_worst[label] = -torch.inf
        point = Boxes(worst.unsqueeze(0).to(self.device), worst.unsqueeze(0).to(self.device))
        inputs = problem.path.at(point.points)
        rival, led = (torch.tensor([c], device=self.device) for c in (int(at_worst.argmax()), label))
        closing = self.budget.closing
        try:
            enclosed = enclose(problem.graph, inputs, point, problem.path.error.unsqueeze(0), closing)
            return replace(
                counterexample, proved=bool(lowest_leads(problem.graph, enclosed, rival, led, closing)[0] > 0)
            )
        except OutOfTimeError:
            return counterexample

    def by_inputs(
        self, obligation: Obligation, box: InputBox, graph: Graph, budget: Budget
    ) -> tuple[Proof, Counterexample | None]:
        """Split the few inputs that vary: they are the parameters of a path."""
        path, low, high = box.as_path()
        claims = torch.eye(graph.classes, dtype=low.dtype, device=self.device)
        problem = PathProblem(
            graph, path, claims, low, high, lambda z: fails(self.network, obligation, path.at(z.to(self.device)))
        )
        cells = split_inputs(problem, AnyFailure(), budget)
        failing = cells.replayed if len(cells.replayed) else _lowest(cells, problem)
        if not len(failing):
            return BoundedCells(cells, obligation.property), None
        x = path.at(torch.from_numpy(failing[:1]).to(self.device))[0]
        return BoundedCells(cells, obligation.property), self.counterexample(obligation, x)

    def counterexample(self, obligation: Obligation, at: Tensor) -> Counterexample:
        return replayed_at(self.network, self.meant(obligation), obligation, at.cpu())


def _lowest(cells: SplitCells, problem: PathProblem) -> NDArray[np.float64]:
    """Of the points at which a claim fails, those at which it does so most clearly."""
    margin = (cells.scores @ problem.claims.t().cpu().numpy()).min(1)
    order = np.argsort(margin, kind="stable")[:MOST_FAILURES]
    lowest: NDArray[np.float64] = cells.points[order[margin[order] < 0]]
    return lowest


def _graph_of(network: Network, query: Query) -> Graph:
    """The graph that the properties are about: with the final softmax, unless only the order of outputs matters."""
    if network.dropped is None or all(obligation.property.compares_only for obligation in query.obligations):
        return network.graph
    if network.dropped != "Softmax":
        raise InputError(f"{query.name}: is about outputs of a {network.dropped}, which can only be compared here")
    return network.graph.then(Softmax(0))
