"""What a file's own runtime makes of a picture, and of the same picture blurred: nothing here is shakeproof's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
UNKNOWN_SIDES = (18, 14)  # of pictures whose height and width a file leaves open
PERTURBATION, SIZE = "box-blur:size=3", 3


def blurred(picture: Array, strength: float) -> Array:
    """(1 - z) x + z box(x) of a picture (channels, height, width), mirrored at its edges."""
    around = np.pad(picture.astype(np.float64), ((0, 0), (SIZE // 2,) * 2, (SIZE // 2,) * 2), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(around, (SIZE, SIZE), axis=(1, 2))
    return ((1 - strength) * picture + strength * windows.mean((3, 4))).astype(np.float32)


@dataclass(frozen=True)
class Runtime:
    """A model as it is deployed: the shape of its pictures, and how one is run."""

    picture: tuple[int, int, int]
    run: Callable[[Array], list[Any]]

    def winner(self, picture: Array) -> tuple[int, float]:
        """The class of a picture, and its lead beside the largest score."""
        scores = scores_of(self.run(picture))
        if scores is None:
            return int(np.asarray(self.run(picture)[0]).reshape(-1)[0]), math.inf
        best = int(scores.argmax())
        lead = scores[best] - np.delete(scores, best).max()
        return best, float(lead / max(np.abs(scores).max(), 1e-30))


def scores_of(outputs: list[Any]) -> Array | None:
    """One score a class; None if there is only the label."""
    for output in outputs:
        if isinstance(output, list) and output and isinstance(output[0], dict):  # ZipMap's
            return np.array([output[0][key] for key in sorted(output[0])])
        array = np.asarray(output)
        if array.dtype.kind == "f" and array.ndim <= 2 and array.size > 1:
            return array.reshape(-1).astype(np.float64)
    return None


def runtime(path: Path) -> Runtime:
    name, dtype, shape, run = _session(path)
    if len(shape) == 2:
        side = math.isqrt(shape[1])
        return Runtime((1, side, side), lambda x: run(None, {name: x.reshape(1, -1).astype(dtype)}))
    last = shape[3] in (1, 3)
    channels, *sides = (shape[3], *shape[1:3]) if last else shape[1:]
    height, width = (s if isinstance(s, int) else unknown for s, unknown in zip(sides, UNKNOWN_SIDES, strict=True))
    order = (1, 2, 0) if last else (0, 1, 2)
    return Runtime((channels, height, width), lambda x: run(None, {name: x.transpose(order)[None].astype(dtype)}))


def _session(path: Path) -> tuple[str, type[np.floating[Any]], list[Any], Callable[..., list[Any]]]:
    """The input's name, type and shape, and how to run the model; in onnx's own evaluator if onnxruntime cannot."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:  # it has no convolution in float64
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(str(path))
        dimensions = evaluator.input_types[0].tensor_type.shape.dim
        return evaluator.input_names[0], np.float64, [d.dim_value for d in dimensions], evaluator.run
    wanted = session.get_inputs()[0]
    return wanted.name, np.float64 if wanted.type == "tensor(double)" else np.float32, wanted.shape, session.run
