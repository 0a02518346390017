"""The laws of parameterised kernels, in exact fractions."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.ndimage import gaussian_filter
from scipy.special import j0, j1

from shakeproof.errors import InputError
from shakeproof.question import (
    ParameterisedKernel,
    box_blur,
    defocus,
    gaussian_blur,
    motion_blur,
    otf,
    sharpen,
    unsharp,
)
from shakeproof.question.kernel_matrices import resized
from shakeproof.question.perturbation import identity_matrix

SIZES = st.integers(3, 14)
ANGLES = st.integers(0, 1440).map(lambda quarter: quarter / 4)
STRENGTHS = st.fractions(0, 1, max_denominator=1000)
FAMILIES = {
    "box": lambda size, angle: box_blur(size).kernel,
    "sharpen": lambda size, angle: sharpen(size).kernel,
    "motion": lambda size, angle: motion_blur(size, angle).kernel,
    "gaussian": lambda size, angle: gaussian_blur(size, (angle + 1) / 100).kernel,
    "unsharp": lambda size, angle: unsharp(size, (angle + 1) / 100).kernel,
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
    assert set(sum(box_blur(size).kernel.at(1), ())) == {Fraction(1, size * size)}


@given(size=SIZES)
def test_sharpen_counts_of_the_paper(size):
    entries = list(sum(sharpen(size).kernel.at(1), ()))
    half = (size - 1) // 2 if size % 2 else size // 2 - 1
    zeros = 2 * half * (half + 1)
    negatives = size * size - zeros - (1 if size % 2 else 4)
    assert entries.count(Fraction(0)) == zeros
    assert entries.count(Fraction(-1, negatives)) == negatives
    assert max(entries) == (2 if size % 2 else Fraction(1, 2))


@pytest.mark.parametrize("size", [3, 5, 9, 4, 6])
def test_motion_blur_of_the_paper(size):
    def line(angle):
        matrix = motion_blur(size, angle).kernel.at(1)
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
    matrix = np.array(motion_blur(size, angle).kernel.at(1), dtype=float)
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
    turned = np.array(motion_blur(size, angle + 90).kernel.at(1), dtype=float)
    assert np.allclose(turned, np.rot90(np.array(motion_blur(size, angle).kernel.at(1), dtype=float), -1), atol=1e-9)


def test_an_angle_just_below_zero():
    assert motion_blur(5, -1e-20).kernel == motion_blur(5, 0).kernel


@given(size=SIZES, sigma=st.floats(0.05, 50))
def test_a_gaussian_is_sampled_at_the_pixels_centres(size, sigma):
    matrix = np.array(gaussian_blur(size, sigma).kernel.at(1), dtype=float)
    place = np.arange(size) - (size - 1) / 2
    weights = np.exp(-(np.add.outer(place**2, place**2) - 2 * np.abs(place).min() ** 2) / (2 * sigma**2))
    assert np.abs(matrix - weights / weights.sum()).max() < 1e-15


@pytest.mark.parametrize("sigma", [0.4, 1.5, 3.0])
def test_a_gaussian_is_scipys(sigma):
    """With the size that scipy takes, what a point becomes is the kernel."""
    reach = int(4 * sigma + 0.5)
    point = np.zeros((4 * reach + 1,) * 2)
    point[2 * reach, 2 * reach] = 1
    theirs = gaussian_filter(point, sigma)[reach : 3 * reach + 1, reach : 3 * reach + 1]
    ours = np.array(gaussian_blur(2 * reach + 1, sigma).kernel.at(1), dtype=float)
    assert np.abs(theirs - ours).max() < 1e-15


@pytest.mark.parametrize("size", [5, 6])
def test_a_gaussian_goes_from_the_identity_to_the_mean(size):
    assert gaussian_blur(size, 1e-300).kernel.at(1) == identity_matrix(size, size)
    assert gaussian_blur(size, 5e-324).kernel.at(1) == identity_matrix(size, size)
    assert gaussian_blur(size, 1e300).kernel == box_blur(size).kernel


@given(size=SIZES, sigma=st.floats(0.05, 50), z=STRENGTHS)
def test_unsharp_masking_adds_what_the_blur_takes(size, sigma, z):
    kernel, blur, same = unsharp(size, sigma).kernel, gaussian_blur(size, sigma).kernel, identity_matrix(size, size)
    assert (np.array(kernel.at(z)) - np.array(same) == np.array(same) - np.array(blur.at(z))).all()


@pytest.mark.parametrize("sigma", [0, -1, float("nan"), float("inf")])
def test_impossible_sigmas(sigma):
    for make in (gaussian_blur, unsharp):
        with pytest.raises(InputError, match="sigma must be"):
            make(5, sigma)


def midpoints(radius, size, steps=10_000):
    """Areas of the disk in pixels, by the midpoint rule across and exactly upwards."""
    x = (np.arange(size * steps) + 0.5) / steps - size / 2
    top = np.sqrt(np.maximum(radius**2 - x**2, 0))
    edges = np.arange(size + 1) - size / 2
    heights = np.minimum(top, edges[1:, None]).clip(edges[:-1, None]) - np.maximum(-top, edges[:-1, None]).clip(
        max=edges[1:, None]
    )
    columns = np.floor(x + size / 2).astype(int)
    return np.array([np.bincount(columns, weights=row, minlength=size) for row in heights]) / steps


@pytest.mark.parametrize("radius", [0.51, 0.7, 2**-0.5, 1, 1.5, 2.9, 3, 3.5, 5, 7.25])
def test_defocus_measures_the_disk(radius):
    matrix = np.array(defocus(radius).kernel.at(1), dtype=float)
    areas = midpoints(radius, len(matrix))
    assert abs(areas.sum() - np.pi * radius**2) < 1e-4
    assert np.abs(matrix - areas / (np.pi * radius**2)).max() < 2e-6
    assert matrix[0].any()  # not larger than the disk


@given(radius=st.floats(0.51, 9), z=STRENGTHS)
def test_a_disk_is_round(radius, z):
    kernel = defocus(radius).kernel
    size = len(kernel.bias)
    assert size % 2 == 1
    assert radius <= size / 2 < radius + 1
    assert kernel.at(0) == identity_matrix(size, size)
    matrix = kernel.at(z)
    assert total(matrix) == 1
    assert matrix == tuple(zip(*matrix, strict=True)) == matrix[::-1]
    assert all(0 <= entry <= Fraction(1) for entry in sum(kernel.at(1), ()))


def test_pixels_inside_the_disk_weigh_the_same():
    matrix = defocus(3).kernel.at(1)
    assert len({matrix[i][j] for i in range(2, 5) for j in range(1, 6)}) == 1
    assert abs(float(matrix[3][3]) * np.pi * 9 - 1) < 1e-15
    assert matrix[0][0] == 0


@pytest.mark.parametrize("radius", [0, 0.5, -2, 499.6, float("nan"), float("inf")])
def test_impossible_radii(radius):
    with pytest.raises(InputError, match="radius must be"):
        defocus(radius)


def radial(size, passes, highest):
    """What a point becomes by a transfer function of the radius: its Hankel transform, at each distance apart."""
    place = np.arange(size) - size // 2
    away = np.hypot(place, place[:, None])
    found = {
        distance: quad(lambda r, x=distance: passes(r) * j0(2 * np.pi * r * x) * r, 0, highest, limit=500)[0]
        for distance in {*away.ravel()}
    }
    matrix = np.vectorize(found.get)(away)
    return matrix / matrix.sum()


def passed_by_aperture(r, cutoff):
    """The area that two discs of diameter 1 share, so far apart, of that of one."""
    apart = min(r / cutoff, 1)
    return 2 / np.pi * (np.arccos(apart) - apart * np.sqrt(1 - apart**2))


@pytest.mark.parametrize(
    ("options", "passes", "highest"),
    [
        ({"defocus": 2.5}, lambda r: np.exp(-((np.pi * 2.5 * r) ** 2) / 4), 3),
        ({"turbulence": 0.4}, lambda r: np.exp(-3.44 * (r / 0.4) ** (5 / 3)), 4),
        ({"aperture": 0.45}, lambda r: passed_by_aperture(r, 0.45), 0.45),
        (
            {"jitter": 0.6, "aperture": 0.5, "turbulence": 0.4},
            lambda r: (
                np.exp(-2 * (np.pi * 0.6 * r) ** 2) * np.exp(-3.44 * (r / 0.4) ** (5 / 3)) * passed_by_aperture(r, 0.5)
            ),
            0.5,
        ),
    ],
)
def test_transfer_functions_beside_their_hankel_transforms(options, passes, highest):
    matrix = np.array(otf(9, **options).kernel.at(1), dtype=float)
    assert np.abs(matrix - radial(9, passes, highest)).max() < 2e-6


def test_an_aperture_makes_airy_discs():
    place = np.arange(9) - 4
    away = np.pi * 0.45 * np.hypot(place, place[:, None]) + 1e-9
    airy = (2 * j1(away) / away) ** 2
    matrix = np.array(otf(9, aperture=0.45).kernel.at(1), dtype=float)
    assert np.abs(matrix - airy / airy.sum()).max() < 2e-6


@pytest.mark.parametrize("widths", [(0.3, 0.3), (1.2, 0.7), (0, 2.0), (1.5, 0)])
def test_jitter_is_a_gaussian_of_two_widths(widths):
    place = np.arange(11) - 5
    across, down = (np.exp(-(place**2) / (2 * w**2)) if w else (place == 0) * 1.0 for w in widths)
    expected = np.outer(down, across) / down.sum() / across.sum()
    matrix = np.array(otf(11, jitter=widths[0], vertical=widths[1]).kernel.at(1), dtype=float)
    assert np.abs(matrix - expected).max() < 1e-10
    if widths[0] == widths[1]:
        assert otf(11, jitter=widths[0]).kernel == otf(11, jitter=widths[0], vertical=widths[0]).kernel


@given(size=st.integers(1, 7).map(lambda half: 2 * half + 1), width=st.floats(0.3, 5), cutoff=st.floats(0.05, 4))
def test_kernels_by_transfer_functions_are_blurs(size, width, cutoff):
    matrix = otf(size, jitter=width, vertical=1, aperture=cutoff).kernel.at(1)
    assert total(matrix) == 1
    assert matrix == matrix[::-1] == tuple(row[::-1] for row in matrix)
    assert all(0 <= entry <= 1 for entry in sum(matrix, ()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 9}, "say at least one of"),
        ({"size": 9, "jitter": 0, "vertical": 0}, "say at least one of"),
        ({"size": 9, "jitter": 0.1}, "jitter must be"),
        ({"size": 9, "aperture": 0}, "aperture must be"),
        ({"size": 9, "turbulence": float("nan")}, "turbulence must be"),
        ({"size": 8, "jitter": 1}, "size must be odd"),
        ({"size": 129, "jitter": 1}, "size must be at most 127"),
    ],
)
def test_impossible_transfer_functions(options, message):
    with pytest.raises(InputError, match=message):
        otf(**options)


@pytest.mark.parametrize("scale", [0.5, 0.37, 1, 1.7, 3, 0.01])
def test_a_resized_kernel_covers_what_it_covered(scale):
    """Beside a grid of a thousand points to each pixel: where they are after it was stretched around its middle."""
    matrix = np.random.default_rng(0).uniform(0, 1, (4, 7))
    exact = tuple(tuple(map(Fraction, row)) for row in matrix.tolist())
    found = np.array(resized(exact, Fraction(str(scale))), dtype=float)
    assert total(resized(exact, Fraction(str(scale)))) == total(exact)
    steps, expected, shape = 999, np.zeros(found.shape), found.shape
    places = [
        np.clip(((np.arange(n * steps) + 0.5) / steps - n / 2) * scale + size / 2, 0, size - 1e-9).astype(int)
        for n, size in zip(matrix.shape, shape, strict=True)
    ]
    dense = np.kron(matrix, np.full((steps, steps), 1 / steps**2))
    np.add.at(expected, (places[0][:, None], places[1][None, :]), dense)
    assert np.abs(found - expected).max() < 2e-3 * max(1, 1 / scale)


@pytest.mark.parametrize("size", [-3, 0, 1, 2, 1001, 3.0])
def test_impossible_sizes(size):
    for make in (box_blur, sharpen):
        with pytest.raises(InputError, match="kernel size"):
            make(size)
    for make in (motion_blur, gaussian_blur, unsharp):
        with pytest.raises(InputError, match="kernel size"):
            make(size, 1)


def test_several_strengths():
    a, b = box_blur(3).kernel, sharpen(3).kernel
    both = ParameterisedKernel((a.coefficients[0], b.coefficients[0]), a.bias)
    assert both.at(1, 0) == a.at(1)
    assert both.at(0, 1) == b.at(1)
    with pytest.raises(ValueError, match="shorter"):
        both.at(1)


@given(odd=st.booleans(), halves=st.lists(st.integers(2, 5), min_size=2, max_size=3), z=STRENGTHS)
def test_combined_kernels_share_their_centre(odd, halves, z):
    parts = [sharpen(2 * half + odd) for half in halves]
    several, both = [part.kernel for part in parts], reduce(add, parts).kernel
    size = 2 * max(halves) + odd
    assert both.at(*[0] * len(several)) == identity_matrix(size, size)
    for i, kernel in enumerate(several):
        matrix = np.array(both.at(*[z * (i == j) for j in range(len(several))]))
        rim = (size - len(kernel.bias)) // 2
        inner = matrix[rim : size - rim, rim : size - rim]
        assert inner.tolist() == np.array(kernel.at(z)).tolist()
        assert np.count_nonzero(matrix) == np.count_nonzero(inner)
