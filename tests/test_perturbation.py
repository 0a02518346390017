"""Theorem 1 on random images, and the text form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shakeproof.errors import InputError
from shakeproof.perturbation import PADDINGS, box_blur, custom, identity, motion_blur, parse, sharpen

NUMPY_PADDINGS = {"reflect": "reflect", "zeros": "constant", "replicate": "edge", "circular": "wrap"}


def convolved(image: np.ndarray, matrix, padding: str) -> np.ndarray:
    """Cross-correlation written out with numpy, to the image's size; even kernels are padded more at the end."""
    kernel = np.array(matrix, dtype=float)
    height, width = kernel.shape
    widths = ((0, 0), ((height - 1) // 2, height // 2), ((width - 1) // 2, width // 2))
    padded = np.pad(image, widths, mode=NUMPY_PADDINGS[padding])
    out = np.zeros_like(image)
    for i in range(height):
        for j in range(width):
            out += kernel[i, j] * padded[:, i : i + image.shape[1], j : j + image.shape[2]]
    return out


perturbations = st.builds(
    lambda make, size, angle, padding: make(size, angle, padding),
    st.sampled_from(
        [
            lambda size, angle, padding: box_blur(size, padding),
            lambda size, angle, padding: sharpen(size, padding),
            motion_blur,
        ]
    ),
    st.integers(3, 9),
    st.floats(0, 180),
    st.sampled_from(list(PADDINGS)),
)


@given(perturbation=perturbations, z=st.floats(0, 1), seed=st.integers(0, 1000))
def test_theorem_1(perturbation, z, seed):
    image = np.random.default_rng(seed).uniform(0, 1, (2, 9, 11))
    path = perturbation.apply(torch.from_numpy(image))
    expected = convolved(image, perturbation.kernel.at(z), perturbation.padding)
    assert np.abs(path.at(z).numpy() - expected).max() < 1e-12


def test_theorem_1_notices_another_padding():
    image = np.random.default_rng(0).uniform(0, 1, (1, 9, 9))
    path = box_blur(5, padding="reflect").apply(torch.from_numpy(image))
    assert np.abs(path.at(1.0).numpy() - convolved(image, box_blur(5).kernel.at(1), "zeros")).max() > 0.01


@given(perturbation=perturbations)
def test_text_round_trip(perturbation):
    assert parse(str(perturbation)) == perturbation
    assert str(parse(str(perturbation))) == str(perturbation)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("identity", "identity"),
        ("box-blur:size=5", "box-blur:size=5"),
        ("box-blur:padding=reflect,size=5", "box-blur:size=5"),
        ("motion-blur:angle=45.0,size=9", "motion-blur:size=9,angle=45"),
        ("motion-blur:size=9,angle=-45", "motion-blur:size=9,angle=135"),
        ("motion-blur:size=9,angle=5,clip=0..1,padding=zeros", "motion-blur:size=9,angle=5,padding=zeros,clip=0..1"),
        ("sharpen:size=4,clip=-0.5..1.5", "sharpen:size=4,clip=-0.5..1.5"),
    ],
)  # fmt: skip
def test_text_prints_canonically(text, canonical):
    assert str(parse(text)) == canonical


def test_custom_text(tmp_path):
    file = tmp_path / "a,b.csv"
    file.write_text("0,1,0\n")
    made = custom(file, normalise=True, padding="circular")
    assert parse(str(made)) == made
    assert str(made) == f"custom:file={file},normalise=yes,padding=circular"


@pytest.mark.parametrize(
    "text",
    [
        "blur:size=3",
        "box-blur",
        "box-blur:size=0",
        "box-blur:size=1",
        "box-blur:size=2",
        "box-blur:size=-3",
        "box-blur:size=3.5",
        "box-blur:size=99999999",
        "box-blur:size=3,size=5",
        "box-blur:size=3,angle=4",
        "box-blur:size=3,padding=mirror",
        "box-blur:size=3,clip=1..0",
        "box-blur:size=3,clip=nan..1",
        "box-blur:size=3,clip=1",
        "motion-blur:size=3,angle=north",
        "motion-blur:size=3,angle=nan",
        "motion-blur:size=3",
        "custom:file=gone.npy",
        "custom:file=k.npy,normalise=maybe",
        "",
    ],
)
def test_bad_texts_say_what_is_wrong(text):
    with pytest.raises(InputError) as error:
        parse(text)
    assert "\n" not in str(error.value)


def test_a_kernel_too_large_for_the_image():
    image = torch.zeros(1, 8, 8, dtype=torch.float64)
    with pytest.raises(InputError, match="too large"):
        box_blur(17).apply(image)
    assert box_blur(15).apply(image).base.shape == image.shape
    assert box_blur(17, padding="replicate").apply(image).base.shape == image.shape


def test_even_kernels_take_the_next_pixel():
    image = torch.arange(16.0, dtype=torch.float64).reshape(1, 4, 4)
    assert box_blur(4).apply(image).at(0.0)[0, 0, 0] == (0 + 1 + 4 + 5) / 4


def test_identity_changes_nothing():
    image = torch.rand(3, 5, 5, dtype=torch.float64)
    assert torch.equal(identity().apply(image).at(0.7), image)
