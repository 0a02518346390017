"""A model once more, by its format's own implementation: what tells a misreading from float32's rounding.

onnxruntime computes in float32, and of a network whose numbers cancel that leaves few digits, or none. ONNX's reference
implementation computes the same model in float64, and in float32 in its own order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Scores (n, classes) of inputs (n, *input_shape), whatever their type; NaN where they cannot be computed.
Scores = Callable[[NDArray[Any]], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Twin:
    """A model in float64, and where that tells something in float32: one image at a time."""

    exact: Scores
    rounded: Scores | None = None


def onnx_twin(data: bytes) -> Twin:
    """A serialised model; made when it is first asked for, which is seldom."""

    @cache
    def made(wide: bool) -> Scores:
        import onnx

        model = onnx.load_from_string(data)
        return evaluator(in_float64(model) if wide else model)

    return Twin(_or_nothing(lambda x: made(True)(x)), _or_nothing(lambda x: made(False)(x)))


def _or_nothing(scores: Scores) -> Scores:
    """The same, which knows nothing (NaN) of what the implementation fails to compute."""

    def found(x: NDArray[Any]) -> NDArray[np.float64]:
        try:
            return scores(x)
        except Exception:  # whatever an implementation raises that lacks an operator
            return np.full((len(x), 1), np.nan)

    return found


def reference_runtime(data: bytes) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """ONNX's reference implementation of a float64 network, in place of a runtime that has no kernels for it."""
    import onnx

    scores = evaluator(onnx.load_from_string(data))
    return lambda x: scores(x.astype(np.float64)).astype(np.float32)


def evaluator(model: Any) -> Scores:
    """ONNX's reference implementation of a model with one input and one output."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    from shakeproof.network.onnx_learning import plain
    from shakeproof.network.onnx_model import inlined, needed

    model = plain(inlined(model, "model"))
    nodes = needed(model.graph)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    weights = {tensor.name for tensor in model.graph.initializer}
    (name,) = (value.name for value in model.graph.input if value.name not in weights)

    class BatchNormalization(OpRun):
        """As runtimes have it; before opset 14 the reference takes it for training."""

        def _run(self, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float, **_: Any) -> Any:
            scale, bias, mean, variance = (v.reshape(-1, *(1,) * (x.ndim - 2)) for v in (scale, bias, mean, variance))
            return (scale * (x - mean) / np.sqrt(variance + epsilon) + bias,)

    class HardSwish(OpRun):
        """As it is defined; the reference takes the sixth in float32."""

        def _run(self, x: Any) -> Any:
            return (x * np.clip(x / 6 + 0.5, 0, 1).astype(x.dtype),)

    reference = ReferenceEvaluator(model, new_ops=[BatchNormalization, HardSwish])

    def scores(x: NDArray[Any]) -> NDArray[np.float64]:
        with np.errstate(all="ignore"):
            outputs: list[Any] = [reference.run(None, {name: row}) for row in x]
        return np.asarray([np.ravel(found) for (found,) in outputs], dtype=np.float64)

    return scores


def in_float64(model: Any) -> Any:
    """The model with all its float32 numbers in float64."""
    from onnx import TensorProto, helper, numpy_helper

    def widened(tensor: Any) -> Any:
        wide = tensor.data_type == TensorProto.FLOAT
        return (
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name) if wide else tensor
        )

    for tensor in model.graph.initializer:
        tensor.CopyFrom(widened(tensor))
    for function in (model.graph, *model.functions):
        for node in function.node:
            for attribute in node.attribute:
                if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                    attribute.i = TensorProto.DOUBLE
                elif attribute.HasField("t"):
                    attribute.t.CopyFrom(widened(attribute.t))
                elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                    array = np.array(helper.get_attribute_value(attribute), dtype=np.float64)
                    attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))
            if node.op_type == "ConstantOfShape" and not node.attribute:
                node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
    return model
