"""Branch and bound: split what the bounds cannot settle, until everything is, or a counterexample is found."""

from shakeproof.search.activation_splitting import BoxProblem, SplitBox, split_activations
from shakeproof.search.attack import descend
from shakeproof.search.input_splitting import (
    AnyFailure,
    FirstFailure,
    Goal,
    Map,
    PathProblem,
    SplitCells,
    split_inputs,
)
from shakeproof.search.loop import Tree
