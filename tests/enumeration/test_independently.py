"""What the runtime is given, picture by picture, against plain Python with fractions, from an image's bytes on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
import onnx
import pytest
import torch
from models import model
from onnx import TensorProto, helper
from test_pictures import in_order

import shakeproof as sp

THIRD, NINTH, Q = Fraction(1, 3), Fraction(1, 9), Fraction(1, 4)
SHARPER = [[0, -Q, 0], [-Q, 2, -Q], [0, -Q, 0]]
PADDINGS = {
    "reflect": lambda i, n: -i if i < 0 else 2 * (n - 1) - i if i >= n else i,
    "replicate": lambda i, n: min(max(i, 0), n - 1),
    "circular": lambda i, n: i % n,
    "zeros": lambda i, n: i if 0 <= i < n else None,
}


@dataclass(frozen=True)
class Case:
    """A perturbation: in words, and as two kernels of fractions, at strength 0 (none: the image itself) and at 1."""

    text: str
    full: list[list[Fraction | int]]
    start: list[list[Fraction | int]] | None = None
    padding: str = "reflect"
    shape: tuple[int, int, int] = (1, 3, 3)
    end: float = 1.0
    clip: tuple[float, float] = (0.0, 1.0)
    few_levels: bool = False


CASES = [
    Case("box-blur:size=3", [[NINTH] * 3] * 3),
    Case("box-blur:size=3", [[NINTH] * 3] * 3, few_levels=True),  # many pixels change at once
    Case("box-blur:size=3,padding=circular", [[NINTH] * 3] * 3, padding="circular", shape=(3, 2, 3), end=0.6),
    Case(
        "box-blur:size=4",
        [[Fraction(1, 16)] * 4] * 4,
        [[0, 0, 0, 0], [0, Q, Q, 0], [0, Q, Q, 0], [0, 0, 0, 0]],
    ),
    Case("motion-blur:size=3,angle=0", [[0, THIRD, 0]] * 3, few_levels=True),
    Case("sharpen:size=3", SHARPER, shape=(3, 2, 2)),
    Case("sharpen:size=3,clip=0.1..0.9", SHARPER, clip=(0.1, 0.9), end=0.7),
    Case("sharpen:size=3,padding=replicate", SHARPER, padding="replicate", few_levels=True),
    Case("motion-blur:size=3,angle=45,padding=zeros", [[0, 0, THIRD], [0, THIRD, 0], [THIRD, 0, 0]], padding="zeros"),
    Case("motion-blur:size=3,angle=90", [[0, 0, 0], [THIRD] * 3, [0, 0, 0]], shape=(3, 2, 3), end=0.5),
]


def convolved(image: np.ndarray, kernel: list[list[Fraction | int]], padding: str) -> list[Fraction]:
    """Grey levels (channels, height, width) as 255th parts, each the sum of what the kernel lies on."""
    channels, height, width = image.shape
    inside = PADDINGS[padding]
    reach = (len(kernel) - 1) // 2
    found = []
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                total = Fraction(0)
                for i, row in enumerate(kernel):
                    for j, entry in enumerate(row):
                        v, u = inside(y + i - reach, height), inside(x + j - reach, width)
                        if v is not None and u is not None:
                            total += entry * int(image[c, v, u])
                found.append(total / 255)
    return found


def expected(case: Case, image: np.ndarray, rule: str) -> list[list[int]]:
    base = convolved(image, case.start or [[1]], case.padding)
    full = convolved(image, case.full, case.padding)
    return in_order(base, [f - b for b, f in zip(base, full, strict=True)], case.end, case.clip, rule)


class Overheard:
    """A session of onnxruntime that notes what it is given."""

    def __init__(self, session):
        self.session, self.given = session, []

    def __getattr__(self, name):
        return getattr(self.session, name)

    def run(self, outputs, feed):
        self.given += [*feed.values()]
        return self.session.run(outputs, feed)


def network_of(folder, shape, kind):
    """Three scores of a picture of float32 numbers, or of bytes."""
    numbers = {"w": np.random.default_rng(0).normal(size=(int(np.prod(shape)), 3)).astype(np.float32)}
    nodes = [
        helper.make_node("Cast", ["x"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["real"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["y"]),
    ]
    made = model(nodes, (1, *shape), numbers, (1, 3))
    made.graph.input[0].type.tensor_type.elem_type = kind
    onnx.save(made, folder / "model.onnx")
    return sp.load_deployed(folder / "model.onnx")


@pytest.fixture
def one_thread():
    """So that pictures are overheard in their order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.UINT8])
@pytest.mark.parametrize("rule", ["half-even", "half-up"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text)
def test_the_runtime_is_given_these_pictures_in_this_order(tmp_path, case, rule, kind):
    random, most = np.random.default_rng(len(case.text)), 4 if case.few_levels else 256
    image = (random.integers(0, most, case.shape) * (80 if case.few_levels else 1)).astype(np.uint8)
    network = network_of(tmp_path, case.shape, kind)
    runtime = network.runtime.on_one_thread()
    overheard = Overheard(runtime.session)
    network = replace(network, runtime=replace(runtime, session=overheard))
    np.save(tmp_path / "image.npy", image)
    pixels = "8bit" if rule == "half-even" else "8bit,rounding=half-up"
    options = {"label": 0, "max_strength": case.end, "pixels": pixels, "whole_curve": True}
    result = sp.profile(network, tmp_path / "image.npy", case.text, **options)
    wanted = expected(case, image, rule)
    assert result.pieces == len(wanted)
    given = overheard.given[: len(wanted)]  # a picture that is lost is run once more
    assert {picture.dtype for picture in given} == {np.dtype(np.uint8 if kind == TensorProto.UINT8 else np.float32)}
    as_given = partial(np.array, dtype=np.uint8) if kind == TensorProto.UINT8 else nearest_floats
    assert [picture.ravel().tolist() for picture in given] == [as_given(levels).tolist() for levels in wanted]


def nearest_floats(levels: list[int]) -> np.ndarray:
    return np.array([float(Fraction(level, 255)) for level in levels]).astype(np.float32)


def test_the_cases_have_ties_and_halves():
    """Or else they would show less than they seem to: several pixels at one strength, and other pictures half up."""
    random, ties, halves = np.random.default_rng(0), 0, 0
    for case in CASES:
        image = (random.integers(0, 4, case.shape) * 80).astype(np.uint8)
        even, up = (expected(case, image, rule) for rule in ("half-even", "half-up"))
        ties += any(sum(a != b for a, b in zip(*pair, strict=True)) > 1 for pair in pairwise(even))
        halves += even != up
    assert ties >= 5
    assert halves >= 5
