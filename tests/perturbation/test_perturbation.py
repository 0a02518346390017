"""Theorem 1 on random images, and the text form."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import shakeproof as sp
from shakeproof.errors import InputError
from shakeproof.question import (
    FAMILIES,
    PADDINGS,
    Perturbation,
    box_blur,
    brightness,
    contrast,
    custom,
    defocus,
    gaussian_blur,
    haze,
    identity,
    motion_blur,
    parse,
    psf,
    sharpen,
    unsharp,
)

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
            lambda size, angle, padding: gaussian_blur(size, (angle + 1) / 50, padding),
            lambda size, angle, padding: unsharp(size, (angle + 1) / 50, padding),
            lambda size, angle, padding: defocus(0.6 + angle / 50, padding),
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
    expected = convolved(image, perturbation.kernel.at(z), perturbation.parts[0].padding)
    assert np.abs(path.image(z).numpy() - expected).max() < 1e-12


def test_theorem_1_notices_another_padding():
    image = np.random.default_rng(0).uniform(0, 1, (1, 9, 9))
    path = box_blur(5, padding="reflect").apply(torch.from_numpy(image))
    assert np.abs(path.image(1.0).numpy() - convolved(image, box_blur(5).kernel.at(1), "zeros")).max() > 0.01


# -- sums -------------------------------------------------------------------------------------------------------------


def kernel_parts(sizes, paddings):
    """Each with what it should do: its kernel at full strength, and its padding."""
    return st.one_of(
        st.builds(lambda n, p: (box_blur(n, p), box_blur(n).kernel.at(1), p), sizes, paddings),
        st.builds(lambda n, p: (sharpen(n, p), sharpen(n).kernel.at(1), p), sizes, paddings),
        st.builds(
            lambda n, a, p: (motion_blur(n, a, p), motion_blur(n, a).kernel.at(1), p),
            sizes, st.sampled_from([0, 30, 45, 90, 101.5]), paddings,
        ),
    )  # fmt: skip


LIMITS = st.floats(-0.99, 2).filter(bool)
TONES = st.one_of(
    st.builds(lambda limit: (brightness(limit), "offset", limit), LIMITS),
    st.builds(lambda limit: (contrast(limit), "gain", limit), LIMITS),
    st.builds(lambda colour: (haze(colour), "colour", colour), st.floats(-1, 2)),
)


@st.composite
def sums(draw, one_padding=False):
    """Parts as above, up to 5 of them: kernels all odd with any paddings, or all even with one; and tones."""
    even, shared = draw(st.booleans()), draw(st.sampled_from(list(PADDINGS)))
    paddings = st.just(shared) if even or one_padding else st.sampled_from(list(PADDINGS))
    sizes = st.sampled_from([4, 6, 8] if even else [3, 5, 7, 9])
    return draw(st.lists(st.one_of(kernel_parts(sizes, paddings), TONES), min_size=1, max_size=5))


def added(parts) -> Perturbation:
    return reduce(add, (part for part, _, _ in parts))


def written_out(image, parts, strengths):
    """The image at strength 0, plus each strength times what its part alone changes at full strength."""
    matrices = [(matrix, padding) for _, matrix, padding in parts if isinstance(matrix, tuple)]
    even = any(len(matrix) % 2 == 0 for matrix, _ in matrices)
    base = convolved(image, np.full((2, 2), 0.25), matrices[0][1]) if even else image
    x, tones = base.copy(), {"offset": lambda b: b, "gain": lambda b: b * base, "colour": lambda b: b - base}
    for (_, what, value), z in zip(parts, strengths, strict=True):
        x += z * (tones[what](value) if isinstance(what, str) else convolved(image, what, value) - base)
    return x


strength_lists = st.lists(st.floats(0, 1), min_size=5, max_size=5)


@given(parts=sums(), z=strength_lists, seed=st.integers(0, 1000))
def test_a_sum_is_what_each_part_adds(parts, z, seed):
    image = np.random.default_rng(seed).uniform(0, 1, (2, 9, 11))
    path = added(parts).apply(torch.from_numpy(image))
    assert path.slopes.shape == (len(parts), *image.shape)
    assert added(parts).parameters == len(parts)
    z = z[: len(parts)]
    assert np.abs(path.image(*z).numpy() - written_out(image, parts, z)).max() < 1e-12


def test_a_sum_notices_swapped_strengths_and_paddings():
    image = np.random.default_rng(0).uniform(0, 1, (1, 9, 9))
    up, across = motion_blur(5, 0).kernel.at(1), motion_blur(5, 90).kernel.at(1)
    both = motion_blur(5, 0) + motion_blur(5, 90, padding="zeros")
    parts = [(None, up, "reflect"), (None, across, "zeros")]
    found = both.apply(torch.from_numpy(image)).image(0.2, 0.7).numpy()
    assert np.abs(found - written_out(image, parts, (0.2, 0.7))).max() < 1e-12
    assert np.abs(found - written_out(image, parts, (0.7, 0.2))).max() > 0.01
    assert np.abs(found - written_out(image, [parts[0], (None, across, "reflect")], (0.2, 0.7))).max() > 0.01


@given(parts=sums(one_padding=True), z=strength_lists)
def test_the_kernel_and_offset_of_a_sum_say_all_if_the_padding_is_one(parts, z):
    image = np.random.default_rng(1).uniform(0, 1, (1, 9, 11))
    both, z = added(parts), z[: len(parts)]
    padding = next((padding for _, matrix, padding in parts if isinstance(matrix, tuple)), "reflect")
    expected = convolved(image, both.kernel.at(*z), padding) + float(both.offset(*z))
    assert np.abs(both.apply(torch.from_numpy(image)).image(*z).numpy() - expected).max() < 1e-12


def test_the_kernel_of_a_sum_is_exact():
    matrix = (box_blur(3) + motion_blur(5, 90) + contrast(0.1)).kernel.at(Fraction(1, 2), Fraction(1, 3), 1)
    assert matrix[2] == (
        Fraction(1, 15), Fraction(1, 15) + Fraction(1, 18), 1 - Fraction(4, 9) - Fraction(4, 15) + Fraction(1, 10),
        Fraction(1, 15) + Fraction(1, 18), Fraction(1, 15),
    )  # fmt: skip
    assert matrix[0] == (0,) * 5
    assert sum(map(sum, matrix)) == Fraction(11, 10)


@given(limit=LIMITS, z=st.floats(0, 1))
def test_tone_changes(limit, z):
    image = torch.rand(2, 3, 4, dtype=torch.float64)
    assert torch.allclose(brightness(limit).apply(image).image(z), image + limit * z, rtol=0, atol=1e-14)
    assert torch.allclose(contrast(limit).apply(image).image(z), image * (1 + limit * z), rtol=0, atol=1e-14)
    assert torch.allclose(haze(limit).apply(image).image(z), (1 - z) * image + z * limit, rtol=0, atol=1e-14)


@given(parts=sums(), clip=st.sampled_from([None, (0.0, 1.0), (-0.5, 1.5)]))
def test_text_round_trip_of_sums(parts, clip):
    made = Perturbation(added(parts).parts, clip)
    assert parse(str(made)) == made
    assert str(parse(str(made))) == str(made)
    assert " " not in str(made)


def test_sums_in_python():
    assert sp.motion_blur(5, 0) + sp.motion_blur(5, 90) == parse(
        "motion-blur:size=5,angle=0+motion-blur:size=5,angle=90"
    )
    clipped = sp.brightness(0.2, clip=(0, 1)) + sp.contrast(-0.5)
    assert clipped == sp.brightness(0.2) + sp.contrast(-0.5, clip=(0, 1)) == parse(str(clipped))
    assert clipped != sp.contrast(-0.5, clip=(0, 1)) + sp.brightness(0.2)
    with pytest.raises(TypeError):
        sp.brightness(0.2) + 1


def test_strengths_of_a_sum():
    both = box_blur(3) + brightness(0.1)
    assert both.strengths(0.5) == both.strengths([0.5]) == (0.5, 0.5)
    assert both.strengths((0.2, 0.3)) == (0.2, 0.3)
    for wrong in ((), (0.1, 0.2, 0.3)):
        with pytest.raises(InputError, match="takes 2 strengths"):
            both.strengths(wrong)
    for wrong in (1.5, (0.5, -0.1), float("nan")):
        with pytest.raises(InputError, match="between 0 and 1"):
            both.strengths(wrong)


def test_file_names_with_a_plus(tmp_path):
    for name in ("a+b.csv", "a+box-blur.csv", "+.csv", "box-blur+contrast=1.csv"):
        (tmp_path / name).write_text("0,1,0\n")
        made = custom(tmp_path / name) + box_blur(3) + psf(tmp_path / name) + custom(tmp_path / name, normalise=True)
        assert parse(str(made)) == made
        assert [part.family for part in made.parts] == ["custom", "box-blur", "psf", "custom"]
    for name in ("a+box-blur:b.csv", "a,padding=zeros.csv"):
        (tmp_path / name).write_text("0,1,0\n")
        for make in (custom, psf):
            with pytest.raises(InputError, match="rename"):
                make(tmp_path / name)


def test_texts_of_one_kernel_of_several(tmp_path):
    file = tmp_path / "shakes.npz"
    np.savez(file, k1=np.ones((3, 1)), k2=np.ones((1, 5)))
    for made, text in (
        (psf(file, "k2"), f"psf:file={file},index=k2"),
        (psf(file, 1, padding="zeros"), f"psf:file={file},index=1,padding=zeros"),
        (custom(file, index="k1", normalise=True), f"custom:file={file},index=k1,normalise=yes"),
    ):
        assert str(made) == text
        assert parse(text) == made
    assert psf(file, "k2").kernel == psf(file, 1).kernel != psf(file, 0).kernel
    with pytest.raises(InputError, match="rename the array"):
        psf(file, "a,b=c")


def test_a_spread_larger_than_the_image(tmp_path):
    image = torch.zeros(1, 8, 8, dtype=torch.float64)
    for size in (16, 17):
        np.save(tmp_path / "k.npy", np.ones((1, size)))
        with pytest.raises(InputError, match="a 1 x 17 kernel is too large for an image of 8 x 8 pixels"):
            psf(tmp_path / "k.npy").apply(image)
        assert psf(tmp_path / "k.npy", padding="replicate").apply(image).base.shape == image.shape


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("box-blur:size=3+box-blur:size=4", "make all sizes odd or all even"),
        ("box-blur:size=6+brightness:max=1+box-blur:size=4,padding=zeros", "give all of them the same"),
        ("identity+box-blur:size=3", "leave it out of the sum"),
        ("box-blur:size=3+identity", "leave it out of the sum"),
        ("box-blur:size=3,clip=0..1+box-blur:size=5,clip=0..2", "clip applies to their sum"),
        ("+".join(["box-blur:size=3"] * 9), "1 to 8 parts, not 9"),
        ("box-blur:size=3+blur:size=3", "unknown perturbation 'blur'"),
        ("identity+blur", "unknown perturbation 'blur'"),
        ("box-blur:size=3+", "must be a whole number"),
        ("+box-blur:size=3", "unknown perturbation ''"),
        ("box-blur:size=3+brightness", "max missing"),
        ("brightness:max=0", "number other than 0"),
        ("brightness:max=nan", "number other than 0"),
        ("contrast:max=inf", "number other than 0"),
        ("contrast:max=bright", "must be a number"),
        ("contrast:max=-1", "above -1"),
        ("brightness:max=0.2,padding=zeros", "padding means nothing"),
    ],
)
def test_sums_that_mean_nothing(text, problem):
    with pytest.raises(InputError) as error:
        parse(text)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_eight_parts_are_not_too_many():
    assert parse("+".join(["box-blur:size=3"] * 8)).parameters == 8


def test_odd_and_even_custom_kernels(tmp_path):
    (tmp_path / "wide.csv").write_text("0,1\n")
    (tmp_path / "high.csv").write_text("0\n1\n")
    with pytest.raises(InputError, match="odd"):
        custom(tmp_path / "wide.csv") + custom(tmp_path / "high.csv")
    both = custom(tmp_path / "wide.csv") + contrast(1)
    image = torch.tensor([[[0.0, 2.0, 6.0]]], dtype=torch.float64)
    assert both.apply(image).image(0, 0).tolist() == [[[1, 4, 4]]]
    assert both.apply(image).image(1, 0).tolist() == [[[2, 6, 2]]]
    assert both.apply(image).image(0, 1).tolist() == [[[2, 8, 8]]]


# -- the text form ----------------------------------------------------------------------------------------------------


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
        ("identity:clip=0..1", "identity:clip=0..1"),
        ("gaussian-blur:sigma=1.50,size=7", "gaussian-blur:size=7,sigma=1.5"),
        ("defocus:radius=3.0,clip=0..1", "defocus:radius=3,clip=0..1"),
        ("unsharp:padding=zeros,size=5,sigma=1e0", "unsharp:size=5,sigma=1,padding=zeros"),
        ("haze:colour=-0.0", "haze:colour=0"),
        ("gaussian-blur:size=3,sigma=1+haze:colour=.8", "gaussian-blur:size=3,sigma=1+haze:colour=0.8"),
        ("brightness:max=2e-1", "brightness:max=0.2"),
        ("contrast:clip=0..1,max=-0.50", "contrast:max=-0.5,clip=0..1"),
        (" box-blur:size=+5 + contrast:max=1 ", "box-blur:size=5+contrast:max=1"),
        ("box-blur:clip=0..1,size=3,padding=zeros+sharpen:padding=circular,size=5+brightness:max=1.0",
         "box-blur:size=3,padding=zeros+sharpen:size=5,padding=circular+brightness:max=1,clip=0..1"),
        ("box-blur:size=4,clip=0..1+sharpen:size=6,clip=0.0..1", "box-blur:size=4+sharpen:size=6,clip=0..1"),
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
        "psf:file=gone.npz,index=3",
        "psf",
        "gaussian-blur:size=7",
        "gaussian-blur:size=7,sigma=0",
        "gaussian-blur:size=7,sigma=wide",
        "gaussian-blur:size=2,sigma=1",
        "unsharp:size=5,sigma=nan",
        "defocus:radius=0.5",
        "defocus:radius=1e9",
        "defocus:radius=-inf",
        "defocus:size=3",
        "haze",
        "haze:colour=inf",
        "haze:colour=grey",
        "haze:colour=0.8,padding=zeros",
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
    assert box_blur(4).apply(image).image(0.0)[0, 0, 0] == (0 + 1 + 4 + 5) / 4


DOCS = Path(__file__).parents[2] / "docs"


def test_every_family_is_documented_with_its_picture():
    text = (DOCS / "perturbations.md").read_text()
    for name, family in FAMILIES.items():
        assert f"**`{family.example}`**" in text
        if name != "identity":
            assert f"(pictures/families/{name}.png)" in text
            assert (DOCS / "pictures" / "families" / f"{name}.png").is_file()


def test_every_family_makes_its_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("kernel.npy", np.ones((3, 3)))
    np.savez("shakes.npz", *[np.ones((3, 5))] * 4)
    sp.write_linear(lambda picture: picture[:, ::-1], (1, 4, 4), "matrix.npz")
    (tmp_path / "shake.csv").write_text("time,x,y\n0,0,0\n0.1,1,2\n")
    for name, family in FAMILIES.items():
        assert str(parse(family.example)) == family.example
        assert family.make is getattr(sp, name.replace("-", "_"))
        assert family.summary


def test_identity_changes_nothing():
    image = torch.rand(3, 5, 5, dtype=torch.float64)
    assert torch.equal(identity().apply(image).image(0.7), image)


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_large_picture_is_convolved_in_parts(monkeypatch, padding):
    """However large picture and kernel are, what torch writes out to convolve them stays within a limit."""
    picture, blur = torch.rand(3, 24, 20, dtype=torch.float64), gaussian_blur(7, 2.0, padding=padding)
    whole, sizes, convolve = blur.apply(picture), [], torch.nn.functional.conv2d

    def noted(x, weight):
        made = convolve(x, weight)
        sizes.append(made.numel() * weight.numel())
        return made

    monkeypatch.setattr(torch.nn.functional, "conv2d", noted)
    monkeypatch.setattr("shakeproof.question.perturbation.MOST_READ", 5 * 3 * 20 * 49)
    found = blur.apply(picture)
    assert max(sizes) <= 5 * 3 * 20 * 49
    for name in ("slopes", "base", "error"):
        assert torch.allclose(getattr(found, name), getattr(whole, name), rtol=0, atol=1e-15)
