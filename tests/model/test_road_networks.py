"""The bundled networks that look at roads: read as several outputs of any shape, and good at what they do."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from PIL import Image

import shakeproof as sp
from shakeproof import demo
from shakeproof.question import OutputPart, one_place, places

PARTS = {
    "segmenter": (OutputPart("classes", (3, 32, 32)),),
    "detector": (OutputPart("scores", (64, 2)), OutputPart("boxes", (64, 4))),
    "steering": (OutputPart("angle", (1,)),),
    "pedestrian": (OutputPart("pedestrian", (1,)),),
}


def outputs(name: str, picture: str) -> tuple[sp.Network, np.ndarray]:
    """A network, and what onnxruntime gives for a picture, in one vector."""
    network = sp.load(demo.ROAD / f"{name}.onnx", output_name="*")
    pixels = np.asarray(Image.open(demo.ROAD / f"{picture}.png"), np.float32).transpose(2, 0, 1)[None] / 255
    session = onnxruntime.InferenceSession(network.data, providers=["CPUExecutionProvider"])
    return network, np.concatenate([value.ravel() for value in session.run(None, {"image": pixels})])


@pytest.mark.parametrize("name", PARTS)
def test_they_are_read(name):
    network, vector = outputs(name, "crossing")
    assert network.parts == PARTS[name]
    assert len(vector) == network.classes
    assert network.graph.is_piecewise_linear == (name != "pedestrian")  # that one ends with a sigmoid
    assert (demo.ROAD / f"{name}.onnx").stat().st_size < 300_000


def test_they_see_what_is_there():
    network, vector = outputs("segmenter", "crossing")
    classes = vector[places(network.parts, "classes")].argmax(0)
    assert (classes[0] == 0).all()
    assert classes[31, 16] == 2
    network, vector = outputs("detector", "crossing")
    scores = vector[places(network.parts, "scores")]
    assert (scores.max(0) > 0).all()  # a pedestrian and a sign
    box = vector[places(network.parts, f"boxes[{scores[:, 0].argmax()}]")]
    assert box[0] < box[2]
    assert box[1] < box[3]
    for picture, there in (("road", False), ("pedestrian", True)):
        network, vector = outputs("pedestrian", picture)
        assert (vector[one_place(network.parts, "pedestrian")] > 0.5) == there
