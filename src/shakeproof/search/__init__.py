"""Branch and bound: split what the bounds cannot settle, until everything is, or a counterexample is found."""

from shakeproof.search.cover import covers
from shakeproof.search.split import Limits, Outcome, Problem, split_inputs

__all__ = ["Limits", "Outcome", "Problem", "covers", "split_inputs"]
