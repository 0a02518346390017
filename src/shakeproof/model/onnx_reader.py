"""Reads an ONNX model into a graph, or finds every reason why it cannot be one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from math import inf, prod

import numpy as np
import onnx

import shakeproof.model.onnx_layers as layers
import shakeproof.model.onnx_rules as rules
import shakeproof.operators as ops
from shakeproof.errors import InputError, UnsupportedNetworkError
from shakeproof.graph import Graph
from shakeproof.model.builder import Attributes, Builder, Call, Value, concat
from shakeproof.model.onnx_constants import KNOWN_OF_CONSTANTS, ROUNDED, Constant, folded, is_computed, stated
from shakeproof.model.onnx_model import (
    LARGEST_VALUE,
    STANDARD_DOMAINS,
    Array,
    Shape,
    Unsupported,
    image_input,
    inlined,
    needed,
    plain,
    text_of,
    word_of,
)
from shakeproof.model.rewriting import simplify
from shakeproof.question import OutputPart, output_part

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
# How to do without an operator that chooses among boxes.
BEFORE_SUPPRESSION = (
    "export the detector without it, or cut the file in front of it: onnx.utils.extract_model('detector.onnx',"
    " 'cut.onnx', ['INPUT'], ['SCORES', 'BOXES'])"
)
MOST_LISTED = 8

# What each ONNX operator means, as one of ours, entry by entry.
FUNCTIONS = (
    *(ops.Abs, ops.Ceil, ops.Erf, ops.Exp, ops.Floor, ops.HardSwish, ops.Log, ops.Mish, ops.Relu, ops.Round),
    *(ops.Sigmoid, ops.Sign, ops.Softplus, ops.Tanh),
)


def elementwise(function: ops.Operator, call: Call) -> Value:
    return call.value().elementwise(function)


# A rule gives a node's output, or a tuple of them; the Shape of a value is a constant.
OPERATORS: Mapping[str, Callable[[Call], Value | tuple[Value, ...] | Array]] = {
    **{kind.__name__: partial(elementwise, kind()) for kind in FUNCTIONS},
    "Add": lambda call: rules.add(*call.two()),
    "AveragePool": layers.average_pool,
    "BatchNormalization": layers.batch_norm,
    "Cast": rules.cast,
    "Celu": rules.celu,
    "Clip": lambda call: call.value().clip(call.number("min", 1, -inf), call.number("max", 2, inf)),
    "Concat": lambda call: concat(call.operands(), call.attributes["axis"]),
    "Conv": layers.conv,
    "ConvTranspose": layers.conv_transpose,
    "DepthToSpace": layers.depth_to_space,
    "Div": lambda call: rules.divide(*call.two(), call.roundings),
    "Dropout": rules.dropout,
    "Einsum": rules.einsum,
    "Elu": rules.elu,
    "Equal": rules.equal,
    "Expand": lambda call: call.value().broadcast(tuple(call.constant(1).tolist())),
    "Flatten": layers.flatten,
    "Gather": lambda call: call.value().gather(call.attributes.get("axis", 0), call.indices()),
    "GatherElements": layers.gather_elements,
    "GatherND": layers.gather_nd,
    "Gelu": rules.gelu,
    "Gemm": rules.gemm,
    "GlobalAveragePool": lambda call: call.value().mean(range(2, len(call.value().shape)), keep=True),
    "GlobalMaxPool": lambda call: layers.on_picture(call, call.value().shape[2:], Value.max_pool),
    "Greater": lambda call: rules.larger(*call.two()),
    "GreaterOrEqual": lambda call: rules.larger(*call.two(), or_equal=True),
    "GroupNormalization": layers.group_norm,
    "HardSigmoid": lambda call: call.value().scale(call.single("alpha", 0.2), call.single("beta", 0.5)).clip(0.0, 1.0),
    "Identity": Call.value,
    "InstanceNormalization": lambda call: layers.normalised_groups(
        call, call.value().shape[1], call.tensor(1), call.tensor(2)
    ),
    "IsNaN": lambda call: np.asarray(call.value().no_numbers.isnan()),
    "LayerNormalization": layers.layer_norm,
    "LeakyRelu": lambda call: call.value().leaky_relu(call.single("alpha", 0.01)),
    "Less": lambda call: rules.larger(*call.two()[::-1]),
    "LessOrEqual": lambda call: rules.larger(*call.two()[::-1], or_equal=True),
    "LogSoftmax": rules.log_softmax,
    "LpNormalization": rules.lp_norm,
    "MatMul": lambda call: rules.matmul(*call.two()),
    "Max": partial(rules.variadic, rules.maximum),
    "MaxPool": layers.max_pool,
    "Min": partial(rules.variadic, rules.minimum),
    "Mul": lambda call: rules.multiply(*call.two(), call.roundings),
    "Neg": lambda call: call.value().scale(-1.0),
    "Not": lambda call: call.value().scale(-1.0, 1.0),
    "PRelu": lambda call: call.value().leaky_relu(call.tensor(1)),
    "Pad": layers.pad,
    "Pow": rules.pow_,
    "Reciprocal": lambda call: rules.power(call.value(), -1.0),
    "ReduceL1": partial(rules.reduce, rules.norm1),
    "ReduceL2": partial(rules.reduce, rules.norm2),
    "ReduceLogSum": partial(rules.reduce, rules.log_sum),
    "ReduceLogSumExp": partial(rules.reduce, rules.log_sum_exp),
    "ReduceMax": partial(rules.reduce, rules.largest),
    "ReduceMean": partial(rules.reduce, Value.mean),
    "ReduceMin": partial(rules.reduce, rules.smallest),
    "ReduceSum": partial(rules.reduce, rules.total),
    "ReduceSumSquare": partial(rules.reduce, lambda x, axes, keep: rules.total(rules.power(x, 2.0), axes, keep)),
    "Reshape": layers.reshape,
    "Resize": layers.resize,
    "ScatterElements": layers.scatter_elements,
    "ScatterND": layers.scatter_nd,
    "Selu": lambda call: rules.elu(call, 1.6732632423543772).scale(call.single("gamma", 1.0507009873554805)),
    "Shape": layers.shape,
    "Slice": layers.cut,
    "Softmax": rules.softmax,
    "SpaceToDepth": layers.space_to_depth,
    "Split": layers.split,
    "Sqrt": lambda call: rules.power(call.value(), 0.5),
    "Squeeze": layers.squeeze,
    "Sub": lambda call: rules.add(*call.two(), -1),
    "Sum": partial(rules.variadic, rules.add),
    "Tile": layers.tile,
    "Transpose": lambda call: call.value().permute(call.attributes.get("perm", range(len(call.value().shape))[::-1])),
    "Unsqueeze": layers.unsqueeze,
    "Upsample": layers.resize,
    "Where": rules.where,
}
# Attributes that change nothing here: about training, about outputs that are refused, about types that are refused.
IRRELEVANT: Mapping[str, frozenset[str]] = {
    "BatchNormalization": frozenset(("momentum",)),
    "Cast": frozenset(("saturate", "round_mode")),
    "Dropout": frozenset(("ratio", "seed")),
    "MaxPool": frozenset(("storage_order",)),
    "Resize": frozenset(("extrapolation_value",)),  # of tf_crop_and_resize, which is refused
}
SOFTMAXES = frozenset(("LogSoftmax", "Softmax"))
# What may read a constant that was rounded.
TAKES_ROUNDED = frozenset(("Div", "Mul"))


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
    the graph leaves out: it does not change which class wins. `parts` are the outputs, before they were flattened.
    `notes` are what the user should know. `is_double`: the input is in float64.
    """

    graph: Graph | None
    operators: Mapping[str, int]
    problems: tuple[UnsupportedNode, ...]
    dropped: str | None
    parts: tuple[OutputPart, ...] = ()
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
    """The graph of a complete model with all its outputs, or every reason why there is none.

    `picture` (channels, height, width) decides where the input leaves its size open.
    """
    opset, image = _opset(model, name), image_input(model, name, picture)
    if prod(image.shape) > LARGEST_VALUE:
        raise InputError(f"{name}: an input of {prod(image.shape)} numbers is too large to analyse")
    proto = plain(inlined(model, name)).graph
    nodes, outputs, builder = needed(proto), [output.name for output in proto.output], Builder(image.shape)
    used = {i for node in nodes for i in node.input} - {""} | {*outputs}
    known: dict[str, Value | Constant | None] = {tensor.name: stated(tensor) for tensor in proto.initializer}
    known |= {image.name: builder.value(0), "": None}
    operators, problems = Counter[str](), _redefinitions(model)
    dropped: str | None = None
    for node in nodes:
        word, place = word_of(node), text_of(node.name or node.output[0])
        if any(i not in known for i in node.input):  # behind a node that already failed
            operators[word] += 1
            if word not in OPERATORS and word not in KNOWN_OF_CONSTANTS:
                problems.append(UnsupportedNode(word, place, _not_supported(word)))
            continue
        builder.origin, inputs = f"{word} ({place})", [known[i] for i in node.input]
        try:
            if any(isinstance(i, Value) for i in inputs):
                operators[word] += 1
                results = _computed(node, inputs, builder, opset, used, outputs)
                dropped = word if word in SOFTMAXES and results[0] is inputs[0] else dropped
            else:
                results = _folded(node, inputs, builder, opset)
            known.update((name, result) for name, result in zip(node.output, results, strict=False) if name)
        except Unsupported as problem:
            problems.append(UnsupportedNode(word, place, str(problem)))
        except KeyError as attribute:
            problems.append(UnsupportedNode(word, place, f"the attribute {attribute} is missing"))
        except MALFORMED as error:
            problems.append(UnsupportedNode(word, place, f"malformed ({' '.join(str(error).split())})"))
    graph: Graph | None = None
    parts: tuple[OutputPart, ...] = ()
    if not problems:
        values = {output: known.get(output) for output in outputs}
        computed = {output: value for output, value in values.items() if isinstance(value, Value)}
        for output in outputs:
            if output not in computed:
                raise UnsupportedNetworkError(f"{name}: the output {output!r} does not depend on the input")
        try:
            graph = _simplified(builder.graph([*computed.values()]))
            parts = tuple(output_part(output, value.shape) for output, value in computed.items())
        except Unsupported as problem:
            problems.append(UnsupportedNode("output", ", ".join(outputs), str(problem)))
    notes = () if image.note is None else (image.note,)
    return Reading(graph, operators, tuple(problems), dropped, parts, notes, image.is_double)


def _not_supported(word: str) -> str:
    """Why an operator without a rule is refused, and how to do without it."""
    return "not supported" + (f"; {BEFORE_SUPPRESSION}" if word == "NonMaxSuppression" else "")


def _folded(
    node: onnx.NodeProto, inputs: Sequence[Value | Constant | None], builder: Builder, opset: int
) -> Sequence[Value | Constant]:
    """What a node gives that reads constants only."""
    if node.domain not in STANDARD_DOMAINS:
        raise Unsupported("not supported")
    constants = [constant for constant in inputs if not isinstance(constant, Value)]
    results = folded(node, constants, opset)
    if is_computed(node, [constant.array for constant in constants if constant is not None]):
        builder.note_computed()
    return results


def _computed(
    node: onnx.NodeProto,
    inputs: Sequence[Value | Constant | None],
    builder: Builder,
    opset: int,
    used: Set[str],
    outputs: Sequence[str],
) -> Sequence[Value | Constant]:
    """What a node gives that the image flows into: what it reads if it is a softmax at the end that ranks all scores.

    `used` are the values that some node reads, or outputs.
    """
    word = word_of(node)
    rule = OPERATORS.get(word)
    if rule is None:
        raise Unsupported(_not_supported(word))
    attributes = Attributes({a.name: onnx.helper.get_attribute_value(a) for a in node.attribute})
    roundings = max(i.roundings or 0 if isinstance(i, Constant) else 0 for i in inputs)
    if roundings and word not in TAKES_ROUNDED:
        raise Unsupported(f"reads a constant that was rounded: {ROUNDED}")
    operands = tuple(i.array if isinstance(i, Constant) else i for i in inputs)
    call = Call(builder, opset, operands, attributes, len(node.output), roundings)
    is_left_out = word in SOFTMAXES and [node.output[0]] == outputs and _ranks_all(call)
    result = call.value() if is_left_out else rule(call)
    results = result if isinstance(result, tuple) else (result,)
    ignored = attributes.unread - IRRELEVANT.get(word, frozenset())
    if ignored:
        raise Unsupported(f"with the attribute {', '.join(sorted(ignored))}")
    if not used.isdisjoint(node.output[len(results) :]):
        raise Unsupported("an output other than the first is used")
    return [one if isinstance(one, Value) else Constant(one) for one in results]


def _ranks_all(call: Call) -> bool:
    """Whether a softmax is over all entries, so that it does not change their order."""
    shape = call.value().shape
    return prod(shape[axis] for axis in rules.softmax_axes(call)) == prod(shape)


def _simplified(graph: Graph) -> Graph:
    graph = simplify(graph)
    if any(isinstance(n.operator, ops.Pad) and abs(n.operator.value) == inf for n in graph.nodes):
        raise Unsupported("padding with an infinite value, other than for max pooling")
    return graph


def _redefinitions(model: onnx.ModelProto) -> list[UnsupportedNode]:
    """The functions of a model that stand in for operators that runtimes have: these run their own, or the model's."""
    reason = "the model defines this operator of ONNX or onnxruntime anew"
    functions = [f for f in model.functions if not f.domain or text_of(f.domain).startswith(RUNTIME_DOMAINS)]
    return [UnsupportedNode(text_of(f.name), "function", reason) for f in functions]


def _opset(model: onnx.ModelProto, name: str) -> int:
    versions: set[int] = {o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS} or {1}
    if len(versions) > 1:
        raise InputError(f"{name}: the network names several versions of ONNX's operators: {sorted(versions)}")
    return versions.pop()
