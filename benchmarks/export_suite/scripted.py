"""A file written in onnxscript, whose functions are Python's and become ONNX's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from .by_hand import CLASSES, PICTURE, filters


def functions(path: Path) -> None:
    import numpy as np
    import onnx
    from onnx.numpy_helper import from_array
    from onnxscript import FLOAT, script, values
    from onnxscript import opset18 as op

    first, second = from_array(filters(4, 432, 24)), from_array(filters(5, 24, CLASSES) * 4)
    shift = from_array(np.full(24, 0.1, np.float32))

    @script(values.Opset("local", 1), default_opset=op)
    def dense(x, weight, bias):
        return op.Relu(op.Add(op.MatMul(x, weight), bias))

    @script(default_opset=op)
    def network(image):
        hidden = dense(op.Flatten(image), op.Constant(value=first), op.Constant(value=shift))
        return op.MatMul(hidden, op.Constant(value=second))

    onnx.save(network.to_model_proto(input_types=[FLOAT[PICTURE]], output_types=[FLOAT[1, CLASSES]]), path)


def makers() -> Iterator[tuple[str, str, Callable[[Path], None]]]:
    yield "functions", "onnxscript", functions
