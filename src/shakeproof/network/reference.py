"""ONNX's reference implementation, in place of a runtime: onnxruntime has no kernels for some float64 networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Scores (n, classes) of inputs (n, *input_shape), whatever their type.
Scores = Callable[[NDArray[Any]], NDArray[np.float64]]


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
