"""Reads an ONNX model into a graph, or finds every reason why it cannot be one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import onnx

from shakeproof.errors import InputError, UnsupportedNetworkError
from shakeproof.model.builder import LARGEST_VALUE, Builder, Unsupported, Value
from shakeproof.model.graph import Graph
from shakeproof.model.onnx_constants import KNOWN_OF_CONSTANTS, ROUNDED, Constant, folded, is_computed, stated
from shakeproof.model.onnx_model import STANDARD_DOMAINS, Shape, image_input, inlined, needed, plain, text_of, word_of
from shakeproof.model.onnx_rules import IRRELEVANT, OPERATORS, TAKES_ROUNDED, softmax_axes
from shakeproof.model.operands import Attributes, Call

# How the names of domains begin whose operators are ONNX's or onnxruntime's.
RUNTIME_DOMAINS = ("ai.onnx", "com.microsoft", "com.ms.")
MALFORMED = (ArithmeticError, AttributeError, IndexError, MemoryError, TypeError, ValueError, RuntimeError)
# What networks are that have operators of certain kinds, and what to do.
QUANTISED = "is quantised, and quantised networks are not analysed; export the float network that it was made from"
OPTIMISED = "was optimised by onnxruntime, into operators of its own; use the original file"
# What to do where a constant would have to be rounded.
FOLD = (
    "let onnxruntime write a file that states its weights: o = SessionOptions(); o.graph_optimization_level ="
    " GraphOptimizationLevel.ORT_ENABLE_BASIC; o.optimized_model_filepath = 'folded.onnx';"
    " InferenceSession('model.onnx', o)"
)
MOST_LISTED = 8


@dataclass(frozen=True)
class UnsupportedNode:
    """A node of a model that cannot be analysed, and why; `operator` has its namespace unless it is the usual one."""

    operator: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.node}): {self.reason}"


@dataclass(frozen=True, eq=False)
class Reading:
    """What came of a model: its graph, or the problems that stand in the way.

    `operators` counts the nodes that see the image, by operator. `dropped` names a final Softmax or LogSoftmax that
    the graph leaves out: it does not change which class wins. `output_shape` is the output's before it was flattened.
    `notes` are what the user should know. `is_double`: the input is in float64.
    """

    graph: Graph | None
    operators: Mapping[str, int]
    problems: tuple[UnsupportedNode, ...]
    dropped: str | None
    output_shape: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    is_double: bool = False

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


def read(model: onnx.ModelProto, name: str, picture: Shape | None = None) -> Reading:
    """The graph of a complete model with one output, or every reason why there is none.

    `picture` (channels, height, width) decides where the input leaves its size open.
    """
    reader = _OnnxReader(model, name, picture)
    for node in reader.nodes:
        reader.take(node)
    return reader.finish()


class _OnnxReader:
    """The values known so far, and the problems met."""

    def __init__(self, model: onnx.ModelProto, name: str, picture: Shape | None) -> None:
        self.name = name
        self.opset = _opset(model, name)
        self.image = image_input(model, name, picture)
        if prod(self.image.shape) > LARGEST_VALUE:
            raise InputError(f"{name}: an input of {prod(self.image.shape)} numbers is too large to analyse")
        graph = plain(inlined(model, name)).graph
        self.output, self.nodes = graph.output[0].name, needed(graph)
        self.builder = Builder(self.image.shape)
        self.known: dict[str, Value | Constant | None] = {tensor.name: stated(tensor) for tensor in graph.initializer}
        self.known |= {self.image.name: self.builder.input, "": None}
        self.reads = {i for node in self.nodes for i in node.input} - {""} | {self.output}
        self.operators: Counter[str] = Counter()
        self.problems = _redefinitions(model)
        self.dropped: str | None = None

    def take(self, node: onnx.NodeProto) -> None:
        """Read one node; what it needs has been read, or has failed."""
        word = word_of(node)
        if any(i not in self.known for i in node.input):  # behind a node that already failed
            self.operators[word] += 1
            if word not in OPERATORS and word not in KNOWN_OF_CONSTANTS:
                self._refuse(node, "not supported")
            return
        self.builder.origin = f"{word} ({_name(node)})"
        try:
            sees_image = any(isinstance(self.known[i], Value) for i in node.input)
            results = self._built(node) if sees_image else self._folded(node)
        except Unsupported as problem:
            self._refuse(node, str(problem))
        except KeyError as attribute:
            self._refuse(node, f"the attribute {attribute} is missing")
        except MALFORMED as error:
            self._refuse(node, f"malformed ({' '.join(str(error).split())})")
        else:
            self.known.update((name, result) for name, result in zip(node.output, results, strict=False) if name)

    def finish(self) -> Reading:
        graph = None
        output_shape: tuple[int, ...] = ()
        if not self.problems:
            final = self.known.get(self.output)
            if not isinstance(final, Value):
                raise UnsupportedNetworkError(f"{self.name}: the output {self.output!r} does not depend on the input")
            try:
                graph, output_shape = self.builder.finish(final), tuple(final.shape)
            except Unsupported as problem:
                self.problems.append(UnsupportedNode("output", self.output, str(problem)))
        notes = () if self.image.note is None else (self.image.note,)
        problems = tuple(self.problems)
        return Reading(graph, self.operators, problems, self.dropped, output_shape, notes, self.image.is_double)

    def _refuse(self, node: onnx.NodeProto, reason: str) -> None:
        self.problems.append(UnsupportedNode(word_of(node), _name(node), reason))

    def _folded(self, node: onnx.NodeProto) -> list[Constant]:
        """What a node gives that reads constants only."""
        if node.domain not in STANDARD_DOMAINS:
            raise Unsupported("not supported")
        inputs = [constant for constant in map(self.known.get, node.input) if not isinstance(constant, Value)]
        results = folded(node, inputs, self.opset)
        if is_computed(node, [constant.array for constant in inputs if constant is not None]):
            self.builder.note_computed()
        return results

    def _built(self, node: onnx.NodeProto) -> list[Value | Constant]:
        """What a node that the image flows into gives."""
        word, inputs = word_of(node), [self.known[i] for i in node.input]
        self.operators[word] += 1
        rule = OPERATORS.get(word)
        if rule is None:
            raise Unsupported("not supported")
        attributes = Attributes({a.name: onnx.helper.get_attribute_value(a) for a in node.attribute})
        roundings = max(i.roundings or 0 if isinstance(i, Constant) else 0 for i in inputs)
        if roundings and word not in TAKES_ROUNDED:
            raise Unsupported(f"reads a constant that was rounded: {ROUNDED}")
        operands = tuple(i.array if isinstance(i, Constant) else i for i in inputs)
        call = Call(self.builder, self.opset, operands, attributes, len(node.output), roundings)
        final_softmax = word in ("Softmax", "LogSoftmax") and node.output[0] == self.output and _ranks_all(call)
        result = call.value() if final_softmax else rule(call)
        results = result if isinstance(result, tuple) else (result,)
        ignored = attributes.unread - IRRELEVANT.get(word, frozenset())
        if ignored:
            raise Unsupported(f"with the attribute {', '.join(sorted(ignored))}")
        if any(name in self.reads for name in node.output[len(results) :]):
            raise Unsupported("an output other than the first is used")
        self.dropped = word if final_softmax else self.dropped
        return [made if isinstance(made, Value) else Constant(made) for made in results]


def _redefinitions(model: onnx.ModelProto) -> list[UnsupportedNode]:
    """The functions of a model that stand in for operators that runtimes have: these run their own, or the model's."""
    reason = "the model defines this operator of ONNX or onnxruntime anew"
    own = [f for f in model.functions if not f.domain or text_of(f.domain).startswith(RUNTIME_DOMAINS)]
    return [UnsupportedNode(text_of(f.name), "function", reason) for f in own]


def _opset(model: onnx.ModelProto, name: str) -> int:
    versions: set[int] = {o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS} or {1}
    if len(versions) > 1:
        raise InputError(f"{name}: the network names several versions of ONNX's operators: {sorted(versions)}")
    return versions.pop()


def _name(node: onnx.NodeProto) -> str:
    return text_of(node.name or node.output[0])


def _ranks_all(call: Call) -> bool:
    """Whether a softmax is over all entries, so that it does not change their order."""
    shape = call.value().shape
    return prod(shape[axis] for axis in softmax_axes(call)) == prod(shape)
