"""Reads an ONNX model into a graph, or finds every reason why it cannot be one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from shakeproof.errors import InputError
from shakeproof.network.build import Builder, Unsupported, Value
from shakeproof.network.graph import Graph
from shakeproof.network.onnx_call import Array, Call
from shakeproof.network.onnx_rules import CONSTANT_OPERATORS, FLOATS, OPERATORS, softmax_axes


@dataclass(frozen=True)
class Problem:
    """An ONNX node that cannot be analysed, and why."""

    operator: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.node}): {self.reason}" if self.reason else f"{self.operator} ({self.node})"


@dataclass(frozen=True)
class Reading:
    """What came of a model: its graph, or the problems that stand in the way.

    `dropped` names a final Softmax or LogSoftmax that the graph leaves out: it does not change which class wins.
    `output_shape` is the output's before it was flattened.
    """

    graph: Graph | None
    operators: Mapping[str, int]
    problems: tuple[Problem, ...]
    dropped: str | None
    output_shape: tuple[int, ...] = ()


def read(model: onnx.ModelProto, name: str) -> Reading:
    """The model's graph, or every reason why there is none."""
    model_input, shape = _input(model, name)
    builder = Builder(shape)
    known: dict[str, Value | Array | None] = {
        tensor.name: _widen(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer
    }
    known[model_input] = builder.input
    known[""] = None
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
    reads = {i for node in model.graph.node for i in node.input} | {o.name for o in model.graph.output}
    reads.discard("")
    operators: dict[str, int] = {}
    problems: list[Problem] = []
    output = model.graph.output[0].name
    dropped = None
    for node in model.graph.node:
        if any(i not in known for i in node.input):  # behind a node that already failed
            operators[node.op_type] = operators.get(node.op_type, 0) + 1
            if node.op_type not in OPERATORS and node.op_type not in CONSTANT_OPERATORS:
                problems.append(Problem(node.op_type, node.name or node.output[0], ""))
            continue
        inputs = tuple(known[i] for i in node.input)
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        try:
            if not any(isinstance(i, Value) for i in inputs):
                computed = zip(node.output, _evaluate(node, inputs, opset), strict=False)
                known.update((name, constant) for name, constant in computed if name)
                continue
            operators[node.op_type] = operators.get(node.op_type, 0) + 1
            call = Call(builder, opset, inputs, attributes, len(node.output))
            if node.op_type in ("Softmax", "LogSoftmax") and node.output[0] == output and _ranks_all(call):
                known[output] = call.value()
                dropped = node.op_type
                continue
            rule = OPERATORS.get(node.op_type)
            if rule is None or node.domain not in ("", "ai.onnx"):
                raise Unsupported("not supported")
            result = rule(call)
            made = result if isinstance(result, tuple) else (result,)
            if any(name in reads for name in node.output[len(made) :]):
                raise Unsupported("an output other than the first is used")
            known.update((name, value) for name, value in zip(node.output, made, strict=False) if name)
        except Unsupported as problem:
            problems.append(Problem(node.op_type, node.name or node.output[0], str(problem)))
        except KeyError as attribute:
            problems.append(Problem(node.op_type, node.name or node.output[0], f"the attribute {attribute} is missing"))
        except (
            ArithmeticError,
            AttributeError,
            IndexError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:  # what a malformed node runs into
            reason = f"malformed ({' '.join(str(error).split())})"
            problems.append(Problem(node.op_type, node.name or node.output[0], reason))
    graph = None
    output_shape: tuple[int, ...] = ()
    if not problems:
        final = known.get(output)
        if not isinstance(final, Value):
            raise InputError(f"{name}: the output {output!r} does not depend on the input")
        try:
            graph, output_shape = builder.finish(final), tuple(final.shape)
        except Unsupported as problem:
            problems.append(Problem("output", output, str(problem)))
    return Reading(graph, operators, tuple(problems), dropped, output_shape)


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
