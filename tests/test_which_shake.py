"""The worked calculation of docs/howto/camera.md: its formulas beside cameras that are followed in small steps."""

from __future__ import annotations

import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "howto" / "camera.md").read_text()
# A point of the scene, in metres, and the camera: focal length, pixel pitch.
FOCAL, PITCH = 6e-3, 3e-6


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """What the example computes, and what it prints."""
    import contextlib
    import io
    import os

    before, printed = Path.cwd(), io.StringIO()
    os.chdir(tmp_path_factory.mktemp("worked"))
    try:
        with contextlib.redirect_stdout(printed):
            names = runpy.run_path(str(ROOT / "examples" / "which_shake.py"))
    finally:
        os.chdir(before)
    return names | {"printed": printed.getvalue()}


def test_the_page_says_what_the_example_prints(worked):
    (block,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert block == worked["printed"]
    for number, name in ((6.05, "shaken"), (17.45, "turned")):
        assert f"**{number} pixels**" in PAGE
        assert round(worked[name], 2) == number
    assert f"motion-blur:size={worked['odd_size'](worked['shaken'])},angle=0" in PAGE


@pytest.mark.parametrize("frequency", [1, 5, 20, 29, 30, 31, 100])
def test_how_far_a_tremble_goes(worked, frequency):
    """The farthest between any two moments of an exposure, whenever it begins."""
    exposure, amplitude = 1 / 60, math.radians(0.1)
    begins = np.linspace(0, 1 / frequency, 721)[:, None]
    places = amplitude * np.sin(2 * np.pi * frequency * (begins + np.linspace(0, exposure, 721)))
    farthest = float(np.ptp(places, axis=1).max())
    assert worked["travel"](amplitude, frequency, exposure) == pytest.approx(farthest, rel=1e-4)


@pytest.mark.parametrize("pixels", [0.5, 1, 3, 3.01, 6.05, 7, 7.2, 17.45])
def test_a_kernel_that_a_motion_fits_into(worked, pixels):
    size = worked["odd_size"](pixels)
    assert size % 2 == 1
    assert max(3, pixels) <= size < max(3, pixels) + 2


def seen(points: np.ndarray, camera: np.ndarray, yaw: float = 0.0) -> np.ndarray:
    """Where points (n, 3) are in the picture, in pixels, of a pinhole camera that looks along z."""
    away = points - camera
    right = away[:, 0] * math.cos(yaw) - away[:, 2] * math.sin(yaw)
    ahead = away[:, 0] * math.sin(yaw) + away[:, 2] * math.cos(yaw)
    return np.stack([right, away[:, 1]], 1) / ahead[:, None] * FOCAL / PITCH


def test_lengths_beside_a_pinhole_camera():
    exposure, still = 1 / 60, np.zeros(3)
    ahead = np.array([[0.0, 0.0, 25.0]])
    turned = seen(ahead, still, math.radians(30) * exposure) - seen(ahead, still)
    assert np.abs(turned).max() == pytest.approx(math.radians(30) * exposure * FOCAL / PITCH, rel=1e-4)
    speed, distance = 14.0, 25.0
    passed = seen(ahead, np.array([speed * exposure, 0, 0])) - seen(ahead, still)
    assert np.abs(passed).max() == pytest.approx(speed * exposure * FOCAL / (distance * PITCH), rel=1e-9)
    beside = np.array([[3.0, 1.0, distance]])
    closer = seen(beside, np.array([0, 0, speed * exposure])) / seen(beside, still)
    assert closer == pytest.approx(distance / (distance - speed * exposure), rel=1e-9)


@pytest.mark.parametrize(("focused", "away"), [(5.0, 25.0), (25.0, 5.0), (3.0, 1e6)])
def test_how_far_out_of_focus(focused, away):
    """Rays through the rim of a thin lens: where they meet the sensor that is in focus for another distance."""
    number = 2.0

    def behind(distance):
        return 1 / (1 / FOCAL - 1 / distance)

    rim = FOCAL / number / 2
    radius = rim * abs(behind(focused) - behind(away)) / behind(away) / PITCH
    said = FOCAL**2 / (2 * number * PITCH) * abs(1 / focused - 1 / away)
    assert said == pytest.approx(radius, rel=0.005)


def test_pictures_are_made_of_what_the_page_asks():
    names = runpy.run_path(str(ROOT / "tools" / "make_examples.py"))
    for group, text in names["EXAMPLES"].items():
        assert f"-p {text} --counterexample {group}.png" in PAGE
        assert f"pictures/examples/{group}.png" in PAGE
        assert (ROOT / "docs" / "pictures" / "examples" / f"{group}.png").is_file()
