"""Questions and certificates made by hand, without the prover."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

import shakeproof as sp
from shakeproof import checker


def parts_of(perturbation: sp.Perturbation) -> list[dict[str, Any]]:
    """The header's `parts`, by the prover's own kernels: the checker has others."""

    def text(matrix: Sequence[Sequence[Any]]) -> list[list[str]]:
        return [[str(entry) for entry in row] for row in matrix]

    return [
        {"padding": part.padding, "start": text(part.effect.bias), "change": text(part.effect.coefficients[0])}
        if hasattr(part.effect, "bias")
        else {"gain": str(part.effect.gain), "offset": str(part.effect.offset)}
        for part in perturbation.parts
    ]


def header(model: bytes, pixels: np.ndarray, text: str, classes: int, label: int = 0, **more: Any) -> dict[str, Any]:
    perturbation = sp.parse(text)
    parts = parts_of(perturbation)
    made = {
        "tool": "shakeproof test",
        "model": {"name": "net.onnx", "sha256": hashlib.sha256(model).hexdigest()},
        "image": {
            "name": "image.npy",
            "sha256": hashlib.sha256(np.asarray(pixels, "<f8").tobytes()).hexdigest(),
            "file_sha256": None,
            "shape": list(pixels.shape),
        },
        "channels_last": False,
        "perturbation": text,
        "parts": parts,
        "clip": None if perturbation.clip is None else list(perturbation.clip),
        "mean": None,
        "std": None,
        "label": label,
        "classes": classes,
        "strength": [1.0] * len(parts),
        "arithmetic": "real",
        "claim": "safe",
        "intervals": [],
        "witness": None,
    }
    return made | more


def question(model: onnx.ModelProto, pixels: np.ndarray, text: str, classes: int, **more: Any) -> checker.Question:
    data = model.SerializeToString()
    return checker.Question.of(header(data, pixels, text, classes, **more), pixels, data)


def bounds(asked: checker.Question, low: Sequence[float], high: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """What every score lies between on one box."""
    scores = asked._scores(np.array([low], dtype=float), np.array([high], dtype=float))
    reach = np.abs(scores.lines[1:, 0]).sum(0) + scores.radius[0]
    return scores.lines[0, 0] - reach, scores.lines[0, 0] + reach


def safe(model: bytes, pixels: np.ndarray, text: str, ends: Sequence[float], classes: int, **more: Any) -> bytes:
    """A certificate for one strength, whether it is right or not."""
    said = header(model, pixels, text, classes, strength=[float(ends[-1])], **more)
    if not said["intervals"]:
        inside = {"from": float(ends[0]), "to": float(ends[-1]), "class": said["label"], "leaves": len(ends) - 1}
        said["intervals"] = [inside]
    return checker.pack(said, {"pixels": pixels, "ends": np.asarray(ends, dtype=float)})
