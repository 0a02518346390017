"""What a reader makes of a model, whatever it was written in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shakeproof.errors import InputError
from shakeproof.question import ClassNames

if TYPE_CHECKING:
    from shakeproof.model.graph import Graph


@dataclass(frozen=True)
class UnsupportedNode:
    """A node of a model that cannot be analysed, and why; `operator` has its namespace unless it is the usual one."""

    operator: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.node}): {self.reason}"


# What networks are that have operators of certain kinds, and what to do.
QUANTISED = "is quantised, and quantised networks are not analysed; export the float network that it was made from"
# Reasons that hold this say that constants are to be computed by somebody else, and the hint says how.
ROUNDED = "float64 would have to round a constant that the file computes"
FOLD = (
    "let onnxruntime write a file that states its weights: o = SessionOptions(); o.graph_optimization_level ="
    " GraphOptimizationLevel.ORT_ENABLE_BASIC; o.optimized_model_filepath = 'folded.onnx';"
    " InferenceSession('model.onnx', o)"
)
OPTIMISED = "was optimised by onnxruntime, into operators of its own; use the original file"
MOST_LISTED = 8


@dataclass(frozen=True, eq=False)
class Reading:
    """What came of a model: its graph, or the problems that stand in the way.

    `operators` counts the nodes that see the image, by operator. `dropped` names a final Softmax or LogSoftmax that
    the graph leaves out: it does not change which class wins. `output_shape` is the output's before it was flattened.
    `notes` are what the user should know; `is_double` whether the input is in float64; `class_names` what the model's
    metadata call its classes. `ranks_only`: the model's own output has other values, in the same order.
    """

    graph: Graph | None
    operators: Mapping[str, int]
    problems: tuple[UnsupportedNode, ...]
    dropped: str | None
    output_shape: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    is_double: bool = False
    class_names: ClassNames = field(default_factory=ClassNames)
    ranks_only: bool = False

    @property
    def refusal(self) -> str:
        """Why there is no graph, in one line."""
        words = [problem.operator for problem in self.problems]
        listed = ", ".join(dict.fromkeys(words))
        if any("Quantize" in word or "QLinear" in word or word.endswith("Integer") for word in words):
            return f"{QUANTISED} ({listed})"
        if any(word.startswith("com.microsoft") for word in words):
            return f"{OPTIMISED} ({listed})"
        reasons = "; ".join(map(str, self.problems[:MOST_LISTED]))
        more = f"; and {len(words) - MOST_LISTED} more ({listed})" if len(words) > MOST_LISTED else ""
        hint = f"; {FOLD}" if any(ROUNDED in problem.reason for problem in self.problems) else ""
        return f"{len(words)} operators cannot be analysed: {reasons}{more}{hint}"


# What outputs with class scores are called; the first of these that is there is meant.
USUAL_NAMES = ("logits", "scores", "probabilities", "output_probability", "output")


def chosen_output(shapes: Mapping[str, Sequence[int | str]], wanted: str | None, name: str) -> str:
    """The output that was asked for, or that alone can hold class scores, by its name or by its shape."""
    listed = ", ".join(f"{output} [{', '.join(map(str, s))}]" if s else output for output, s in shapes.items())
    if wanted is not None:
        if wanted not in shapes:
            raise InputError(f"{name}: has no output {wanted!r}; its outputs are {listed}", option="output_name")
        return wanted
    rows = [output for output, shape in shapes.items() if len(shape) == 2 and shape[1] not in (1, "1")]
    for choice in (list(shapes), [output for output in USUAL_NAMES if output in shapes][:1], rows):
        if len(choice) == 1:
            return choice[0]
    raise InputError(
        f"{name}: has {len(shapes)} outputs, {listed}; say which one holds the class scores", option="output_name"
    )
