"""Reads an ONNX model into a graph, or finds every reason why it cannot be one."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from shakeproof.errors import InputError, UnsupportedNetworkError
from shakeproof.network.build import LARGEST_VALUE, Builder, Unsupported, Value
from shakeproof.network.onnx_call import FLOATS, Array, Attributes, Call
from shakeproof.network.onnx_learning import plain
from shakeproof.network.onnx_model import STANDARD_DOMAINS, Shape, image_input, inlined, needed, text_of, word_of
from shakeproof.network.onnx_rules import CONSTANT_OPERATORS, IRRELEVANT, MOVES, OPERATORS, softmax_axes
from shakeproof.network.reading import Reading, UnsupportedNode

MALFORMED = (ArithmeticError, AttributeError, IndexError, MemoryError, TypeError, ValueError, RuntimeError)
SIXTEEN_BITS = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Constants with so few entries may be the sizes of others.
FEW_ENTRIES = 64


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
            if word not in OPERATORS and word not in CONSTANT_OPERATORS:
                self._refuse(node, "not supported")
            return
        inputs = tuple(self.known[i] for i in node.input)
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
        self.problems.append(UnsupportedNode(word_of(node), node.name or node.output[0], reason))

    def _folded(self, node: onnx.NodeProto, inputs: tuple[Value | Array | None, ...]) -> list[Array]:
        if node.domain not in STANDARD_DOMAINS:
            raise Unsupported("not supported")
        self._keep_halves(node)
        made = _evaluate(node, inputs, self.opset)
        computed = any(array.dtype.kind == "f" for array in made) and node.op_type not in MOVES
        self.builder.is_exact &= not computed
        return made

    def _keep_halves(self, node: onnx.NodeProto) -> None:
        """Weights of 16 bits may be moved and widened, all of which is exact; whatever is computed from them rounds."""
        target = next((attribute.i for attribute in node.attribute if attribute.name == "to"), None)
        if node.op_type == "Cast" and target in SIXTEEN_BITS:
            self.halves.update(node.output)
        elif self.halves.intersection(node.input) and not (node.op_type == "Cast" and target in FLOATS):
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
        call = Call(self.builder, self.opset, inputs, attributes, len(node.output))
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
        return _widen(numpy_helper.to_array(tensor))
    except (KeyError, TypeError, ValueError, MemoryError) as error:
        why = f"{tensor.data_type} is no type of ONNX's" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"the weight {tensor.name!r} cannot be read: {why}") from error


def _widen(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" or array.dtype.name == "bfloat16" else array


def _evaluate(node: onnx.NodeProto, inputs: tuple[Value | Array | None, ...], opset: int) -> list[Array]:
    """A node that depends on constants only, by ONNX's own reference implementation, floats in float64."""
    from onnx.reference import ReferenceEvaluator  # most networks have no such node

    if node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial"):
        raise Unsupported("random numbers")
    if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
        raise Unsupported("a graph within the graph")
    arrays = {n: i for n, i in zip(node.input, inputs, strict=True) if isinstance(i, np.ndarray)}
    infos = {n: onnx.helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in (*arrays, *node.output)}
    graph = onnx.helper.make_graph([node], "constant", [infos[n] for n in arrays], [infos[n] for n in node.output])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    _check_size(node, arrays, opset)
    try:
        computed = ReferenceEvaluator(model).run(None, arrays)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
        raise Unsupported(
            f"cannot be computed ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        ) from error
    return [_widen(np.asarray(array)) for array in computed]


def _check_size(node: onnx.NodeProto, arrays: dict[str, Array], opset: int) -> None:
    """Refuse what a few numbers in a file would make larger than any network needs, before it is made."""
    types = {n: onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for n, array in arrays.items()}
    inputs = [onnx.helper.make_tensor_value_info(n, types[n], array.shape) for n, array in arrays.items()]
    outputs = [onnx.helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in node.output]
    sizes = [numpy_helper.from_array(array, n) for n, array in arrays.items() if array.size <= FEW_ENTRIES]
    graph = onnx.helper.make_graph([node], "sizes", inputs, outputs, sizes)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        sized = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise Unsupported(f"malformed ({str(error).splitlines()[0]})") from error
    for made in sized.graph.output:
        entries = prod(dim.dim_value for dim in made.type.tensor_type.shape.dim if dim.HasField("dim_value"))
        if entries > LARGEST_VALUE:
            raise Unsupported(f"a constant of {entries} entries")


def _ranks_all(call: Call) -> bool:
    """Whether a softmax is over all entries, so that it does not change their order."""
    shape = call.value().shape
    return prod(shape[axis] for axis in softmax_axes(call)) == prod(shape)
