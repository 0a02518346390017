"""The bundled segmenter, detector, regressor and binary classifier: exact answers beside onnxruntime's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import onnxruntime
import pytest
import torch

import shakeproof as sp
from shakeproof import demo
from shakeproof.certificate import NoCertificateError, certificate

PICTURES = ("road", "pedestrian", "crossing")
PERTURBATIONS = ("motion-blur:size=9,angle=0", "box-blur:size=7", "motion-blur:size=11,angle=90,padding=replicate")
# Strengths so close to where a requirement fails first are not judged: onnxruntime calculates in float32.
CLOSE = 1e-4


@cache
def network(name: str) -> sp.Network:
    return sp.load(demo.ROAD / f"{name}.onnx", output_name="*")


@dataclass(frozen=True)
class Sampled:
    """What onnxruntime gives at strengths z from 0 to 1, by output, first of all at 0."""

    z: np.ndarray
    outputs: dict[str, np.ndarray]

    @staticmethod
    @cache
    def of(name: str, picture: str, perturbation: str) -> Sampled:
        image = next(sp.read_images(network(name), str(demo.ROAD / f"{picture}.png")))
        z = np.linspace(0, 1, 401)
        x = sp.parse(perturbation).apply(image.pixels[None]).at(torch.from_numpy(z)[:, None]).float().numpy()
        session = onnxruntime.InferenceSession(str(demo.ROAD / f"{name}.onnx"), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return Sampled(z, dict(zip(names, session.run(None, {"image": x.reshape(-1, 3, 32, 32)}), strict=True)))


def road_kept(outputs: dict[str, np.ndarray]) -> np.ndarray:
    classes = outputs["classes"].argmax(1)
    return (classes == 2)[:, classes[0] == 2].mean(1) >= 0.95


def best_position(outputs: dict[str, np.ndarray]) -> int:
    return int(outputs["scores"][0].max(1).argmax())


def box_kept(outputs: dict[str, np.ndarray]) -> np.ndarray:
    place = best_position(outputs)
    kind, boxes = int(outputs["scores"][0, place].argmax()), outputs["boxes"][:, place]
    return (outputs["scores"][:, place, kind] > 0) & (np.abs(boxes - boxes[0]) < 1.5).all(1)


def angle_kept(outputs: dict[str, np.ndarray]) -> np.ndarray:
    return np.abs(outputs["angle"][:, 0] - outputs["angle"][0, 0]) < 2


def seen(outputs: dict[str, np.ndarray]) -> np.ndarray:
    return outputs["pedestrian"][:, 0] > 0.5


TASKS = {
    "segmenter": (lambda outputs: "pixels:share=0.95,class=2", road_kept),
    "detector": (lambda outputs: f"detection:box={best_position(outputs)},score=0,drift=1.5", box_kept),
    "steering": (lambda outputs: "drift:index=angle,by=2", angle_kept),
    "pedestrian": (lambda outputs: "score:class=0,above=0.5", seen),
}


def contradictions(result: sp.Result, sampled: Sampled, holds: np.ndarray) -> list[float]:
    """The strengths at which onnxruntime says something else."""
    if result.status == "misclassified":
        return [] if not holds[0] else [0.0]
    if result.status == "safe":
        return sampled.z[~holds].tolist()
    assert result.status == "unsafe"
    low, high = result.critical_strength
    assert high - low < 1e-5
    return sampled.z[(sampled.z < low - CLOSE) & ~holds].tolist()


@pytest.mark.parametrize("perturbation", PERTURBATIONS)
@pytest.mark.parametrize("name", TASKS)
def test_no_strength_contradicts_an_answer(name, perturbation):
    text, judge = TASKS[name]
    statuses = set()
    for picture in PICTURES:
        sampled = Sampled.of(name, picture, perturbation)
        holds = judge(sampled.outputs)
        result = sp.profile(
            network(name), str(demo.ROAD / f"{picture}.png"), perturbation, require=text(sampled.outputs)
        )
        assert contradictions(result, sampled, holds) == [], picture
        assert result.counterexample is not None or result.status == "safe"
        statuses.add(str(result.status))
    assert statuses <= {"safe", "unsafe", "misclassified"}


@pytest.mark.parametrize("change", ["pixels:share=0.5,class=2", "pixels:share=0.95,class=0"])
def test_another_requirement_would_be_noticed(change):
    """The comparison above fails where the requirement is another one than the one that is judged."""
    sampled = Sampled.of("segmenter", "road", "box-blur:size=7")
    result = sp.profile(network("segmenter"), str(demo.ROAD / "road.png"), "box-blur:size=7", require=change)
    assert contradictions(result, sampled, road_kept(sampled.outputs)) != []


def test_certificates_are_refused_by_name():
    result = sp.verify(
        network("segmenter"), str(demo.ROAD / "road.png"), "box-blur:size=7", 0.3, require="pixels:share=0.95"
    )
    assert result.status == "safe"
    with pytest.raises(NoCertificateError, match="the checker does not know pixels"):
        certificate(network("segmenter"), result)
