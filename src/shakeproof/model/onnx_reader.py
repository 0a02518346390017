"""Reads an ONNX model into a graph, or finds every reason why it cannot be one."""

from __future__ import annotations

from collections import Counter
from math import prod

import onnx
from onnx import TensorProto, numpy_helper

from shakeproof.errors import InputError, UnsupportedNetworkError
from shakeproof.model.build import LARGEST_VALUE, Builder, Unsupported, Value
from shakeproof.model.onnx_constants import (
    KNOWN_OF_CONSTANTS,
    MOVES,
    SIXTEEN_BITS,
    Array,
    Attributes,
    Call,
    evaluated,
    is_computed,
    is_sixteen_bits,
    widened,
)
from shakeproof.model.onnx_model import STANDARD_DOMAINS, Shape, image_input, inlined, needed, plain, text_of, word_of
from shakeproof.model.onnx_rules import IRRELEVANT, OPERATORS, TAKES_ROUNDED, softmax_axes
from shakeproof.model.reading import ROUNDED, Reading, UnsupportedNode

MALFORMED = (ArithmeticError, AttributeError, IndexError, MemoryError, TypeError, ValueError, RuntimeError)


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
        self.known: dict[str, Value | Array | None] = {tensor.name: _constant(tensor) for tensor in graph.initializer}
        self.known[self.image.name] = self.builder.input
        self.known[""] = None
        # By name, of constants that were computed from others: how often they were rounded.
        self.roundings: dict[str, int] = {}
        self.halves = {tensor.name for tensor in graph.initializer if tensor.data_type in SIXTEEN_BITS}
        self.reads = {i for node in self.nodes for i in node.input} | {self.output}
        self.reads.discard("")
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
        inputs = tuple(self.known[i] for i in node.input)
        self.builder.origin = f"{word} ({_name(node)})"
        try:
            made = self._made(node, inputs) if any(isinstance(i, Value) for i in inputs) else self._folded(node, inputs)
        except Unsupported as problem:
            self._refuse(node, str(problem))
        except KeyError as attribute:
            self._refuse(node, f"the attribute {attribute} is missing")
        except MALFORMED as error:
            self._refuse(node, f"malformed ({' '.join(str(error).split())})")
        else:
            self.known.update((name, value) for name, value in zip(node.output, made, strict=False) if name)

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

    def _folded(self, node: onnx.NodeProto, inputs: tuple[Value | Array | None, ...]) -> list[Array]:
        """What a node gives that reads constants only."""
        if node.domain not in STANDARD_DOMAINS:
            raise Unsupported("not supported")
        constants = [given for given in inputs if not isinstance(given, Value)]
        self._keep_halves(node)
        made, roundings = evaluated(node, constants, [self.roundings.get(i) for i in node.input], self.opset)
        if is_computed(node, constants):
            self.builder.note_computed()
        if roundings is not None:
            self.roundings.update(dict.fromkeys(node.output, roundings))
        if any(map(is_sixteen_bits, made)):
            self.halves.update(node.output)
        return [widened(array) for array in made]

    def _keep_halves(self, node: onnx.NodeProto) -> None:
        """Weights of 16 bits may be moved and widened, all of which is exact; whatever is computed from them rounds."""
        if self.halves.intersection(node.input) and node.op_type != "Cast":
            if node.op_type not in MOVES:
                raise Unsupported("computed in 16 bits, which rounds; export the network in float32")
            self.halves.update(node.output)

    def _made(
        self, node: onnx.NodeProto, inputs: tuple[Value | Array | None, ...]
    ) -> tuple[Value, ...] | tuple[Value | Array]:
        """What a node that the image flows into gives."""
        word = word_of(node)
        self.operators[word] += 1
        rule = OPERATORS.get(word)
        if rule is None:
            raise Unsupported("not supported")
        attributes = Attributes({a.name: onnx.helper.get_attribute_value(a) for a in node.attribute})
        roundings = max(self.roundings.get(i, 0) for i in node.input)
        if roundings and word not in TAKES_ROUNDED:
            raise Unsupported(f"reads a constant that was rounded: {ROUNDED}")
        call = Call(self.builder, self.opset, inputs, attributes, len(node.output), roundings)
        final_softmax = word in ("Softmax", "LogSoftmax") and node.output[0] == self.output and _ranks_all(call)
        result = call.value() if final_softmax else rule(call)
        made = result if isinstance(result, tuple) else (result,)
        ignored = attributes.unread - IRRELEVANT.get(word, frozenset())
        if ignored:
            raise Unsupported(f"with the attribute {', '.join(sorted(ignored))}")
        if any(name in self.reads for name in node.output[len(made) :]):
            raise Unsupported("an output other than the first is used")
        self.dropped = word if final_softmax else self.dropped
        return made


def _redefinitions(model: onnx.ModelProto) -> list[UnsupportedNode]:
    """The functions of a model that stand in for operators of ONNX itself."""
    reason = "the model defines this operator of ONNX anew"
    own = [f for f in model.functions if f.domain in STANDARD_DOMAINS]
    return [UnsupportedNode(text_of(f.name), "function", reason) for f in own]


def _opset(model: onnx.ModelProto, name: str) -> int:
    versions: set[int] = {o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS} or {1}
    if len(versions) > 1:
        raise InputError(f"{name}: the network names several versions of ONNX's operators: {sorted(versions)}")
    return versions.pop()


def _constant(tensor: TensorProto) -> Array:
    try:
        array = numpy_helper.to_array(tensor)
        if array.dtype.name.startswith(("float8", "float4")):
            raise ValueError(f"it has numbers of {array.dtype.name}; export the network in float32")
        return widened(array)
    except (KeyError, TypeError, ValueError, MemoryError) as error:
        why = f"{tensor.data_type} is no type of ONNX's" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"the weight {tensor.name!r} cannot be read: {why}") from error


def _name(node: onnx.NodeProto) -> str:
    return text_of(node.name or node.output[0])


def _ranks_all(call: Call) -> bool:
    """Whether a softmax is over all entries, so that it does not change their order."""
    shape = call.value().shape
    return prod(shape[axis] for axis in softmax_axes(call)) == prod(shape)
