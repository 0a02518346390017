"""Questions and certificates made by hand, without the prover."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

import shakeproof as sp
from shakeproof import checker
from shakeproof.certificate import pack


def kernels_of(perturbation: sp.Perturbation) -> list[list[list[str]]]:
    """The header's `kernels`, by the prover's own: the checker has others."""
    return [
        [
            [str(b + c) for b, c in zip(*rows, strict=True)]
            for rows in zip(part.effect.bias, part.effect.coefficients[0], strict=True)
        ]
        if hasattr(part.effect, "bias")
        else [[str(1 + part.effect.gain)]]
        for part in perturbation.parts
    ]


def header(model: bytes, pixels: np.ndarray, text: str, label: int = 0, **more: Any) -> dict[str, Any]:
    kernels = kernels_of(sp.parse(text))
    made = {
        "tool": "shakeproof test",
        "model": "net.onnx",
        "model_sha256": hashlib.sha256(model).hexdigest(),
        "image": "image.npy",
        "image_sha256": hashlib.sha256(np.asarray(pixels, "<f8").tobytes()).hexdigest(),
        "file_sha256": "",
        "channels_last": False,
        "perturbation": text,
        "kernels": kernels,
        "mean": [],
        "std": [],
        "label": label,
        "strength": [1.0] * len(kernels),
        "arithmetic": "real",
        "claim": "safe",
    }
    return made | more


def question(model: onnx.ModelProto, pixels: np.ndarray, text: str, **more: Any) -> checker.Question:
    data = model.SerializeToString()
    return checker.Question(header(data, pixels, text, **more), pixels, data)


def bounds(asked: checker.Question, low: Sequence[float], high: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """What every score lies between on one box."""
    with np.errstate(all="ignore"):
        scores = asked.scores(np.array([low], dtype=float), np.array([high], dtype=float))
    reach = np.abs(scores.lines[1:, 0]).sum(0) + scores.radius[0]
    return scores.lines[0, 0] - reach, scores.lines[0, 0] + reach


def safe(model: bytes, pixels: np.ndarray, text: str, ends: Sequence[float], **more: Any) -> bytes:
    """A certificate for one strength, whether it is right or not."""
    said = header(model, pixels, text, strength=[float(ends[-1])], **more)
    return pack(said, {"pixels": pixels, "cuts": np.asarray(ends[1:-1], dtype=float)})
