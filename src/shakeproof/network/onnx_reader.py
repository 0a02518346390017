"""Reads an ONNX model into a graph, or finds every reason why it cannot be one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from shakeproof.errors import InputError, UnsupportedNetworkError
from shakeproof.network.build import Builder, Unsupported, Value
from shakeproof.network.onnx_call import Array, Attributes, Call
from shakeproof.network.onnx_rules import CONSTANT_OPERATORS, FLOATS, IRRELEVANT, MOVES, OPERATORS, softmax_axes
from shakeproof.network.reading import Reading, UnsupportedNode

STANDARD_DOMAINS = ("", "ai.onnx")
MALFORMED = (ArithmeticError, AttributeError, IndexError, TypeError, ValueError, RuntimeError)


def read(model: onnx.ModelProto, name: str) -> Reading:
    """The model's graph, or every reason why there is none."""
    _check_weights(model, name)
    reader = _OnnxReader(model, name)
    for node in model.graph.node:
        reader.take(node)
    return reader.finish()


class _OnnxReader:
    """The values known so far, and the problems met."""

    def __init__(self, model: onnx.ModelProto, name: str) -> None:
        self.name = name
        self.opset = _opset(model, name)
        self.output = model.graph.output[0].name if model.graph.output else ""
        model_input, shape = _input(model, name)
        self.builder = Builder(shape)
        self.known: dict[str, Value | Array | None] = {
            tensor.name: _widen(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer
        }
        self.known[model_input] = self.builder.input
        self.known[""] = None
        self.reads = {i for node in model.graph.node for i in node.input} | {o.name for o in model.graph.output}
        self.reads.discard("")
        self.operators: Counter[str] = Counter()
        self.problems = _redefinitions(model)
        self.dropped: str | None = None

    def take(self, node: onnx.NodeProto) -> None:
        """Read one node; what it needs has been read, or has failed."""
        word = _word(node)
        if any(i not in self.known for i in node.input):  # behind a node that already failed
            self.operators[word] += 1
            if word not in OPERATORS and word not in CONSTANT_OPERATORS:
                self._refuse(node, "")
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
                raise InputError(f"{self.name}: the output {self.output!r} does not depend on the input")
            try:
                graph, output_shape = self.builder.finish(final), tuple(final.shape)
            except Unsupported as problem:
                self.problems.append(UnsupportedNode("output", self.output, str(problem)))
        return Reading(graph, self.operators, tuple(self.problems), self.dropped, output_shape)

    def _refuse(self, node: onnx.NodeProto, reason: str) -> None:
        self.problems.append(UnsupportedNode(_word(node), node.name or node.output[0], reason))

    def _folded(self, node: onnx.NodeProto, inputs: tuple[Value | Array | None, ...]) -> list[Array]:
        if node.domain not in STANDARD_DOMAINS:
            raise Unsupported("not supported")
        made = _evaluate(node, inputs, self.opset)
        computed = any(array.dtype.kind == "f" for array in made) and node.op_type not in MOVES
        self.builder.is_exact &= not computed
        return made

    def _made(
        self, node: onnx.NodeProto, inputs: tuple[Value | Array | None, ...]
    ) -> tuple[Value, ...] | tuple[Value | Array]:
        """What a node that the image flows into gives."""
        word = _word(node)
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


def _word(node: onnx.NodeProto) -> str:
    """An operator's name; with its domain unless it is one of ONNX's own, so that no rule is found for it."""
    return node.op_type if node.domain in STANDARD_DOMAINS else f"{node.domain}::{node.op_type}"


def _redefinitions(model: onnx.ModelProto) -> list[UnsupportedNode]:
    """The functions of a model that stand in for operators of ONNX itself."""
    reason = "the model defines this operator of ONNX anew"
    return [UnsupportedNode(f.name, "function", reason) for f in model.functions if f.domain in STANDARD_DOMAINS]


def _check_weights(model: onnx.ModelProto, name: str) -> None:
    sparse = len(model.graph.sparse_initializer)
    if sparse:
        raise UnsupportedNetworkError(
            f"{name}: {sparse} weights are stored as sparse tensors, which is not supported; convert them to dense ones"
        )


def _opset(model: onnx.ModelProto, name: str) -> int:
    versions: set[int] = {o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS} or {1}
    if len(versions) > 1:
        raise InputError(f"{name}: the network names several versions of ONNX's operators: {sorted(versions)}")
    return versions.pop()


def _input(model: onnx.ModelProto, name: str) -> tuple[str, tuple[int, ...]]:
    """The one input that is not a weight, and its shape for one image."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in weights]
    if len(inputs) != 1 or not model.graph.output:
        raise InputError(
            f"{name}: the network has {len(inputs)} inputs; shakeproof needs one image in, class scores out"
        )
    if inputs[0].type.tensor_type.elem_type not in FLOATS:
        raise InputError(f"{name}: the input is not float32 or float64; export the network for one of them")
    dims = list(inputs[0].type.tensor_type.shape.dim)
    shape = [d.dim_value if d.HasField("dim_value") else 0 for d in dims]
    if shape and len(shape) > 1 and shape[0] <= 0:
        shape[0] = 1
    if not shape or min(shape) <= 0:
        raise InputError(f"{name}: the input's shape {_dims(dims)} is not fixed; export it with a fixed image size")
    if len(shape) > 1 and shape[0] != 1 and len(shape) in (2, 4):
        raise InputError(
            f"{name}: the input's batch size is {shape[0]}; export the network with batch size 1 or dynamic"
        )
    return inputs[0].name, tuple(shape)


def _dims(dims: Sequence[Any]) -> str:
    return "[" + ", ".join(d.dim_param or str(d.dim_value) for d in dims) + "]"


def _widen(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _evaluate(node: onnx.NodeProto, inputs: tuple[Value | Array | None, ...], opset: int) -> list[Array]:
    """A node that depends on constants only, by ONNX's own reference implementation, floats in float64."""
    if node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial"):
        raise Unsupported("random numbers")
    present = [i for i in node.input if i]
    arrays = {n: i for n, i in zip(node.input, inputs, strict=True) if isinstance(i, np.ndarray)}
    anything = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.UNDEFINED, None) for n in present]
    results = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.UNDEFINED, None) for n in node.output]
    graph = onnx.helper.make_graph([node], "constant", anything, results)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        computed = ReferenceEvaluator(model).run(None, arrays)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
        raise Unsupported(
            f"cannot be computed ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        ) from error
    return [_widen(np.asarray(array)) for array in computed]


def _ranks_all(call: Call) -> bool:
    """Whether a softmax is over all entries, so that it does not change their order."""
    shape = call.value().shape
    return prod(shape[axis] for axis in softmax_axes(call)) == prod(shape)
