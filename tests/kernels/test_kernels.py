"""The laws of parameterised kernels, in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shakeproof import kernels
from shakeproof.errors import InputError
from shakeproof.kernels import ParameterisedKernel, identity_matrix

SIZES = st.integers(3, 14)
ANGLES = st.integers(0, 1440).map(lambda quarter: quarter / 4)
STRENGTHS = st.fractions(0, 1, max_denominator=1000)
FAMILIES = {
    "box": lambda size, angle: kernels.box_blur(size),
    "sharpen": lambda size, angle: kernels.sharpen(size),
    "motion": kernels.motion_blur,
}


def total(matrix):
    return sum(map(sum, matrix))


@pytest.mark.parametrize("family", FAMILIES)
@given(size=SIZES, angle=ANGLES, z=STRENGTHS)
def test_identity_at_zero_sum_one_and_point_symmetry_everywhere(family, size, angle, z):
    kernel = FAMILIES[family](size, angle)
    assert kernel.at(0) == identity_matrix(size, size)
    matrix = kernel.at(z)
    assert total(matrix) == 1
    assert matrix == tuple(row[::-1] for row in matrix[::-1])


def test_a_broken_kernel_breaks_the_sum_law():
    broken = ParameterisedKernel((((Fraction(1, 3),) * 3,) * 3,), identity_matrix(3, 3))
    assert total(broken.at(Fraction(1, 2))) != 1


@given(size=SIZES)
def test_box_blur_ends_in_the_mean(size):
    assert set(sum(kernels.box_blur(size).at(1), ())) == {Fraction(1, size * size)}


@given(size=SIZES)
def test_sharpen_counts_of_the_paper(size):
    entries = list(sum(kernels.sharpen(size).at(1), ()))
    half = (size - 1) // 2 if size % 2 else size // 2 - 1
    zeros = 2 * half * (half + 1)
    negatives = size * size - zeros - (1 if size % 2 else 4)
    assert entries.count(Fraction(0)) == zeros
    assert entries.count(Fraction(-1, negatives)) == negatives
    assert max(entries) == (2 if size % 2 else Fraction(1, 2))


@pytest.mark.parametrize("size", [3, 5, 9, 4, 6])
def test_motion_blur_of_the_paper(size):
    def line(angle):
        matrix = kernels.motion_blur(size, angle).at(1)
        return {(i, j) for i in range(size) for j in range(size) if matrix[i][j]}, matrix

    middles = [size // 2] if size % 2 else [size // 2 - 1, size // 2]
    share = Fraction(1, size * len(middles))
    for angle, expected in (
        (0, {(i, j) for i in range(size) for j in middles}),
        (90, {(i, j) for i in middles for j in range(size)}),
    ):
        cells, matrix = line(angle)
        assert cells == expected
        assert all(matrix[i][j] == share for i, j in cells)
    for angle, expected in (
        (45, {(i, size - 1 - i) for i in range(size)}),  # top right to bottom left
        (135, {(i, i) for i in range(size)}),
    ):
        cells, matrix = line(angle)
        assert cells == expected
        assert all(matrix[i][j] == Fraction(1, size) for i, j in cells)


@given(size=SIZES, angle=ANGLES)
def test_motion_blur_measures_the_line(size, angle):
    """Each entry is close to the share of densely placed points of the clipped line that fall into its pixel."""
    matrix = np.array(kernels.motion_blur(size, angle).at(1), dtype=float)
    right, up = np.sin(np.radians(angle)), np.cos(np.radians(angle))
    reach = size / 2 / max(abs(right), abs(up))
    steps = (np.arange(20000) + 0.5) / 10000 - 1
    # Beside a grid line the points fall on one side or the other: look at both sides, as the kernel does.
    shares = np.zeros((size, size))
    for shift in (1e-6, -1e-6):
        x = np.clip(np.floor(size / 2 + steps * reach * right + shift), 0, size - 1).astype(int)
        y = np.clip(np.floor(size / 2 - steps * reach * up + shift), 0, size - 1).astype(int)
        np.add.at(shares, (y, x), 0.5 / len(steps))
    assert np.abs(shares - matrix).max() < 2e-3


@given(size=SIZES, angle=ANGLES)
def test_turning_by_a_quarter_turns_the_kernel(size, angle):
    turned = np.array(kernels.motion_blur(size, angle + 90).at(1), dtype=float)
    assert np.allclose(turned, np.rot90(np.array(kernels.motion_blur(size, angle).at(1), dtype=float), -1), atol=1e-9)


def test_an_angle_just_below_zero():
    assert kernels.motion_blur(5, -1e-20) == kernels.motion_blur(5, 0)


@pytest.mark.parametrize("size", [-3, 0, 1, 2, 1001, 3.0])
def test_impossible_sizes(size):
    for make in (kernels.box_blur, kernels.sharpen, lambda s: kernels.motion_blur(s, 0)):
        with pytest.raises(InputError, match="kernel size"):
            make(size)


def test_several_strengths():
    a, b = kernels.box_blur(3), kernels.sharpen(3)
    both = ParameterisedKernel((a.coefficients[0], b.coefficients[0]), a.bias)
    assert both.parameters == 2
    assert both.at(1, 0) == a.at(1)
    assert both.at(0, 1) == b.at(1)
    with pytest.raises(ValueError, match="2 strengths"):
        both.at(1)


@given(odd=st.booleans(), halves=st.lists(st.integers(2, 5), min_size=2, max_size=3), z=STRENGTHS)
def test_combined_kernels_share_their_centre(odd, halves, z):
    several = [kernels.sharpen(2 * half + odd) for half in halves]
    both = kernels.combined([kernel.coefficients[0] for kernel in several])
    size = 2 * max(halves) + odd
    assert both.at(*[0] * len(several)) == identity_matrix(size, size)
    for i, kernel in enumerate(several):
        matrix = np.array(both.at(*[z * (i == j) for j in range(len(several))]))
        rim = (size - len(kernel.bias)) // 2
        inner = matrix[rim : size - rim, rim : size - rim]
        assert inner.tolist() == np.array(kernel.at(z)).tolist()
        assert np.count_nonzero(matrix) == np.count_nonzero(inner)


def test_odd_and_even_kernels_have_no_common_centre():
    with pytest.raises(ValueError, match="centre"):
        kernels.combined([kernels.box_blur(size).coefficients[0] for size in (3, 4)])


def test_custom_kernels_from_files(tmp_path):
    np.save(tmp_path / "k.npy", np.array([[0.0, 0.5], [0.25, 0.25]]))
    (tmp_path / "k.csv").write_text("1/9,1/9,1/9\n1/9, 1/9 ,1/9\n1/9,1/9,1/9\n")
    Image.fromarray(np.array([[0, 255, 0]], dtype=np.uint8)).save(tmp_path / "k.png")
    assert kernels.custom_target(tmp_path / "k.npy", False).at(1)[1][0] == Fraction(1, 4)
    assert kernels.custom_target(tmp_path / "k.csv", False) == kernels.box_blur(3)
    assert kernels.custom_target(tmp_path / "k.png", False).at(1) == ((0, 1, 0),)
    np.save(tmp_path / "two.npy", np.full((3, 3), 2))
    assert total(kernels.custom_target(tmp_path / "two.npy", False).at(1)) == 18
    assert kernels.custom_target(tmp_path / "two.npy", True) == kernels.box_blur(3)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("gone.npy", None),
        ("text.npy", b"no array"),
        ("words.csv", b"a,b\nc,d\n"),
        ("ragged.csv", b"1,2\n3\n"),
        ("zero.csv", b"1/0\n"),
        ("empty.csv", b""),
        ("inf.csv", b"inf,1\n"),
        ("kernel.txt", b"1"),
        ("huge.csv", b"1e400\n"),
        ("long.csv", b"1" * 200_000),
        ("broken.png", b"\x89PNG broken"),
    ],
)
def test_bad_kernel_files(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        kernels.custom_target(tmp_path / name, False)


def test_a_kernel_that_sums_to_zero_cannot_be_normalised(tmp_path):
    (tmp_path / "k.csv").write_text("1,-1\n")
    with pytest.raises(InputError, match="sums to 0"):
        kernels.custom_target(tmp_path / "k.csv", True)
