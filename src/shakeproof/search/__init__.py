"""Branch and bound: split what the bounds cannot settle, until everything is, or a counterexample is found."""

from shakeproof.search.activations import BoxOutcome, BoxProblem, split_activations
from shakeproof.search.cover import covers
from shakeproof.search.split import Limits, Outcome, Problem, split_inputs

__all__ = [
    "BoxOutcome",
    "BoxProblem",
    "Limits",
    "Outcome",
    "Problem",
    "covers",
    "split_activations",
    "split_inputs",
]
