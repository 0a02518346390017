"""Degradations beside implementations that are written out pixel by pixel, and beside Pillow."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
import torch
from models import network_of, random_module
from PIL import Image

import shakeproof as sp
from shakeproof import checker
from shakeproof.certificate import NoCertificateError, certificate
from shakeproof.digests import question_digest
from shakeproof.errors import InputError
from shakeproof.question import FAMILIES, PADDINGS, Degradation, as_whole, fitting
from shakeproof.store.rows import read_perturbation, write_perturbation

PADS = {"reflect": "reflect", "zeros": "constant", "replicate": "edge", "circular": "wrap"}
GIVEN = ("", ",padding=zeros", ",padding=replicate", ",padding=circular")
TEXTS = (
    "zoom-blur:by=1.4",
    *(f"rotation-blur:angle=25{padding}" for padding in GIVEN),
    *(f"rolling-shutter:size=5,top=0,bottom=150{padding}" for padding in GIVEN),
    *(f"chromatic-blur:size=5,red=0,green=0.7,blue=2{padding}" for padding in GIVEN),
    "vignetting:corner=0.3",
    *(f"downsample:factor=2.5,resample={method}" for method in ("box", "bicubic", "lanczos")),
    "downsample:factor=3",
)


def picture(height: int = 12, width: int = 15, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(height * width).uniform(0, 1, (channels, height, width))


def degraded(text: str, image: np.ndarray) -> np.ndarray:
    return sp.parse(text).apply(torch.from_numpy(image)).image(1.0).numpy()


# -- pixel by pixel ---------------------------------------------------------------------------------------------------


def between(plane: np.ndarray, y: float, x: float, margin: int) -> float:
    """Bilinear, in a picture with so wide a margin."""
    y, x = y + margin, x + margin
    top, left = min(math.floor(y), plane.shape[0] - 2), min(math.floor(x), plane.shape[1] - 2)
    down, right = y - top, x - left
    upper = plane[top, left] * (1 - right) + plane[top, left + 1] * right
    lower = plane[top + 1, left] * (1 - right) + plane[top + 1, left + 1] * right
    return upper * (1 - down) + lower * down


def of_copies(image: np.ndarray, moves, padding: str = "reflect", margin: int = 6) -> np.ndarray:
    """The mean over copies; a move says where a pixel of the copy is taken from, relative to the middle."""
    padded = np.pad(image, ((0, 0), (margin, margin), (margin, margin)), mode=PADS[padding])
    middle = (image.shape[1] - 1) / 2, (image.shape[2] - 1) / 2
    total = np.zeros_like(image)
    for channel, row, column in np.ndindex(*image.shape):
        for move in moves:
            y, x = move(row - middle[0], column - middle[1])
            total[channel, row, column] += between(padded[channel], y + middle[0], x + middle[1], margin)
    return total / len(moves)


def farthest(image: np.ndarray) -> float:
    return math.hypot((image.shape[1] - 1) / 2, (image.shape[2] - 1) / 2)


@pytest.mark.parametrize("by", [1, 1.1, 1.4])
def test_zoom_blur(by):
    image = picture()
    count = math.ceil(2 * farthest(image) * (1 - 1 / by)) + 1
    factors = [1 + (by - 1) * k / max(1, count - 1) for k in range(count)]
    expected = of_copies(image, [lambda y, x, f=factor: (y / f, x / f) for factor in factors])
    assert np.abs(degraded(f"zoom-blur:by={by}", image) - expected).max() < 1e-10


@pytest.mark.parametrize("padding", PADDINGS)
def test_rotation_blur(padding):
    image = picture()
    count = math.ceil(2 * farthest(image) * math.radians(25)) + 1

    def turned(degrees: float):
        c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        return lambda y, x: (c * y - s * x, s * y + c * x)

    moves = [turned(-12.5 + 25 * k / (count - 1)) for k in range(count)]
    expected = of_copies(image, moves, padding)
    assert np.abs(degraded(f"rotation-blur:angle=25,padding={padding}", image) - expected).max() < 1e-10


@pytest.mark.parametrize("padding", PADDINGS)
def test_rolling_shutter(padding):
    """A row is that of the whole picture under its own motion blur."""
    image = picture()
    expected = np.zeros_like(image)
    for row in range(12):
        blurred = degraded(f"motion-blur:size=5,angle={150 * row / 11!r},padding={padding}", image)
        expected[:, row] = blurred[:, row]
    found = degraded(f"rolling-shutter:size=5,top=0,bottom=150,padding={padding}", image)
    assert np.abs(found - expected).max() < 1e-10


@pytest.mark.parametrize("padding", PADDINGS)
def test_chromatic_blur(padding):
    image = picture()
    expected = image.copy()
    for channel, sigma in ((1, 0.7), (2, 2)):
        expected[channel] = degraded(f"gaussian-blur:size=5,sigma={sigma},padding={padding}", image)[channel]
    found = degraded(f"chromatic-blur:size=5,red=0,green=0.7,blue=2,padding={padding}", image)
    assert np.abs(found - expected).max() < 1e-10
    assert (found[0] == image[0]).all()


def test_vignetting():
    image, k = picture(), 0.3**-0.5 - 1
    expected = image.copy()
    for channel, row, column in np.ndindex(*image.shape):
        tangent = math.sqrt(k) * math.hypot(row - 5.5, column - 7) / farthest(image)
        expected[channel, row, column] *= math.cos(math.atan(tangent)) ** 4
    found = degraded("vignetting:corner=0.3", image)
    assert np.abs(found - expected).max() < 1e-10
    assert found[0, 0, 0] == pytest.approx(0.3 * image[0, 0, 0])


@pytest.mark.parametrize("factor", [1, 1.7, 2, 3, 4.9, 30])
@pytest.mark.parametrize("method", ["box", "bilinear", "bicubic", "lanczos"])
def test_downsampling_is_pillows(factor, method):
    image = picture(21, 18)
    expected = []
    for plane in image:
        fewer = max(1, round(18 / factor)), max(1, round(21 / factor))
        shrunk = Image.fromarray(plane.astype(np.float32)).resize(fewer, Image.Resampling[method.upper()])
        expected.append(np.asarray(shrunk.resize((18, 21), Image.Resampling[method.upper()])))
    found = degraded(f"downsample:factor={factor},resample={method}", image)
    assert np.abs(found - np.array(expected)).max() < 2e-6  # Pillow keeps float32


# -- files of the user's own ------------------------------------------------------------------------------------------


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("padding", PADDINGS)
def test_varying_blur(in_folder, padding):
    """Pixel by pixel: the kernels of the four nearest regions, weighted by how near their middles are."""
    random, image = np.random.default_rng(1), picture(12, 16)
    spreads = [random.uniform(0, 1, shape) for shape in ((3, 3), (5, 3), (1, 5), (3, 5), (5, 5), (3, 1))]
    for spread in spreads:  # heavy in the middle, so that this is where it is centred
        spread[spread.shape[0] // 2, spread.shape[1] // 2] = 20
    np.savez("spreads.npz", *spreads)
    rows, columns, margin = 2, 3, 4
    padded = np.pad(image, ((0, 0), (margin, margin), (margin, margin)), mode=PADS[padding])
    expected = np.zeros_like(image)
    for row, column in np.ndindex(12, 16):
        y = min(max((row + 0.5) * rows / 12 - 0.5, 0), rows - 1)
        x = min(max((column + 0.5) * columns / 16 - 0.5, 0), columns - 1)
        for number, spread in enumerate(spreads):
            share = max(0, 1 - abs(y - number // columns)) * max(0, 1 - abs(x - number % columns))
            for (i, j), entry in np.ndenumerate(spread / spread.sum()):
                # what a point becomes, so turned by 180 degrees
                down, right = spread.shape[0] // 2 - i, spread.shape[1] // 2 - j
                expected[:, row, column] += share * entry * padded[:, row + down + margin, column + right + margin]
    degraded_picture = degraded(f"varying-blur:file=spreads.npz,across={columns},padding={padding}", image)
    assert np.abs(degraded_picture - expected).max() < 1e-10


def blurred_by_hand(image: np.ndarray) -> np.ndarray:
    """Linear, and another thing for each channel."""
    moved = np.roll(image, 1, axis=2)
    return np.stack([0.5 * image[0] + 0.5 * moved[0], moved[1], image[2] - 2 * moved[0]])


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_a_function_becomes_a_file_that_scipy_reads_and_writes(in_folder, kind):
    image = picture(5, 6)
    path = sp.write_linear(blurred_by_hand, (3, 5, 6), "matrix.npz")
    assert np.abs(degraded("linear:file=matrix.npz", image) - blurred_by_hand(image)).max() < 1e-15
    matrix = scipy.sparse.load_npz(path)
    assert np.allclose((matrix @ image.ravel()).reshape(image.shape), blurred_by_hand(image))
    scipy.sparse.save_npz("again.npz", matrix.asformat(kind))
    assert (degraded("linear:file=again.npz", image) == degraded("linear:file=matrix.npz", image)).all()


def test_a_matrix_of_a_channel_acts_on_all(in_folder):
    image = picture(4, 5)
    matrix = np.random.default_rng(0).normal(size=(20, 20))
    scipy.sparse.save_npz("matrix.npz", scipy.sparse.csr_matrix(matrix))
    expected = (image.reshape(3, 20) @ matrix.T).reshape(3, 4, 5)
    assert np.abs(degraded("linear:file=matrix.npz,clip=-99..99", image) - expected).max() < 1e-12
    with pytest.raises(InputError, match="20 rows, which is not the number of pixels of a 3 x 5 x 5 picture"):
        degraded("linear:file=matrix.npz", picture(5, 5))


@pytest.mark.parametrize(
    "function",
    [lambda x: np.clip(x, 0, 1), lambda x: x + 0.01, lambda x: x * x, np.rint, lambda x: x.astype(np.float16), np.abs],
)
def test_what_is_not_linear_is_refused(in_folder, function):
    with pytest.raises(InputError, match="the function is not linear"):
        sp.write_linear(function, (1, 4, 4), "matrix.npz")
    assert not [*in_folder.iterdir()]


@pytest.mark.parametrize(
    ("function", "shape", "words"),
    [
        (lambda x: x[:, 1:], (1, 4, 4), "must return finite numbers of the shape"),
        (lambda x: x / 0, (1, 4, 4), "must return finite numbers"),
        (lambda x: x, (4, 4), "may have 65,536 numbers"),
        (lambda x: x, (3, 224, 224), "may have 65,536 numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_that_will_not_do(in_folder, function, shape, words):
    with pytest.raises(InputError, match=words):
        sp.write_linear(function, shape, "matrix.npz")


def of_csr(**changes):
    arrays = {"format": b"csr", "shape": [2, 2], "indptr": [0, 1, 2], "indices": [0, 1], "data": [1.0, 1.0]}
    return {key: value for key, value in (arrays | changes).items() if value is not None}


@pytest.mark.parametrize(
    "arrays",
    [
        of_csr(indices=[0, 2]),
        of_csr(indices=[0, -1]),
        of_csr(indices=[0.0, 1.0]),
        of_csr(indptr=[0, 3, 2]),
        of_csr(indptr=[1, 1, 2]),
        of_csr(indptr=[0, 1, 3]),
        of_csr(indptr=[0, 2]),
        of_csr(data=[1.0]),
        of_csr(data=[1.0, np.nan]),
        of_csr(data=[1.0, 1e101]),
        of_csr(data=[1j, 1.0]),
        of_csr(data=np.array(["a", "b"])),
        of_csr(data=None),
        of_csr(shape=[2, 3]),
        of_csr(format=b"bsr"),
        of_csr(format=None),
        of_csr(format=b"csc", indices=[0, 5]),
        {"format": b"coo", "shape": [2, 2], "row": [0, 2], "col": [0, 1], "data": [1.0, 1.0]},
        {"format": b"coo", "shape": [2, 2], "row": [0], "col": [0, 1], "data": [1.0, 1.0]},
        {"format": b"coo", "shape": [2, 2], "row": [0, 1], "col": [0, 1], "data": [1.0]},
    ],
)
def test_damaged_matrices_are_refused(in_folder, arrays):
    np.savez("matrix.npz", **arrays)
    with pytest.raises(InputError, match=r"^matrix.npz: "):
        sp.parse("linear:file=matrix.npz")


def test_files_that_are_missing_or_do_not_fit(in_folder):
    np.savez("two.npz", np.ones((3, 3)), np.ones((3, 3)))
    for text, words in (
        ("linear:file=none.npz", "cannot read a sparse matrix"),
        ("linear:file=two.npz", "not a sparse matrix"),
        ("linear:file=two.npy", "is an .npz"),
        ("varying-blur:file=none.npz,across=2", "cannot read a kernel"),
        ("varying-blur:file=two.npz,across=3", "the 2 kernels of two.npz cannot be laid out 3 side by side"),
        ("varying-blur:file=two.npz,across=0", "cannot be laid out 0 side by side"),
    ):
        with pytest.raises(InputError, match=words):
            sp.parse(text)


def test_files_are_kept_in_stores_and_asked_about_anew(in_folder):
    """What a text stands for may change with its file: nothing that was made before may be taken for it."""
    image, digests, before = picture(5, 6), set(), []
    np.savez("spreads.npz", np.ones((1, 3)), np.ones((3, 1)))
    sp.write_linear(blurred_by_hand, (3, 5, 6), "matrix.npz")
    for text in ("linear:file=matrix.npz", "varying-blur:file=spreads.npz,across=1"):
        perturbation = sp.parse(text)
        again = read_perturbation(write_perturbation(perturbation))
        slopes = perturbation.apply(torch.from_numpy(image)).slopes
        assert torch.equal(again.apply(torch.from_numpy(image)).slopes, slopes)
        digests.add(question_digest("network", "image", 0, perturbation, sp.Settings()))
        before.append(degraded(text, image))
    np.savez("spreads.npz", np.ones((1, 5)), np.ones((5, 1)))
    sp.write_linear(lambda x: 2 * x, (3, 5, 6), "matrix.npz")
    for text, was in zip(("linear:file=matrix.npz", "varying-blur:file=spreads.npz,across=1"), before, strict=True):
        assert np.abs(degraded(text, image) - was).max() > 0.01
        digests.add(question_digest("network", "image", 0, sp.parse(text), sp.Settings()))
    assert len(digests) == 4


# -- the path ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [text for text in TEXTS if "vignetting" not in text and "zeros" not in text])
def test_what_is_flat_stays_so_exactly(text):
    flat = np.full((3, 12, 15), 0.3)
    whole, unit = as_whole(torch.from_numpy(flat))
    path = sp.parse(text).exactly(whole, unit)
    assert not path.slopes.any()
    assert np.abs(degraded(text, flat) - 0.3).max() < 1e-15


@pytest.mark.parametrize("text", [*TEXTS, "box-blur:size=4+zoom-blur:by=1.3+haze:colour=0.5",
                                  "sharpen:size=5+vignetting:corner=0.2+rotation-blur:angle=30"])  # fmt: skip
def test_float64_is_as_close_as_the_path_says(text):
    """The path in fractions lies within the error that proofs allow for; a thousandth of it would be too little."""
    image = picture() ** 3
    perturbation = sp.parse(text)
    path = perturbation.apply(torch.from_numpy(image))
    exact = perturbation.exactly(*as_whole(torch.from_numpy(image)))
    worst = 0.0
    for z in (0.0, 0.3, 1.0):
        strengths = [z] * perturbation.parameters
        found = path.at(torch.tensor(strengths, dtype=torch.float64)).flatten().tolist()
        moved = exact.base + sum(Fraction(z) * slope for slope in exact.slopes)
        for ours, true, allowed in zip(found, moved.ravel(), path.error.flatten().tolist(), strict=True):
            distance = abs(Fraction(ours) - Fraction(true) / exact.unit)
            assert distance <= allowed
            worst = max(worst, float(distance) / allowed)
    assert worst > 1e-3


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_read_and_written(text, tmp_path):
    perturbation = sp.parse(text)
    assert str(perturbation) == text
    image = torch.from_numpy(picture())
    expected = perturbation.apply(image).slopes
    for again in (read_perturbation(write_perturbation(perturbation)), pickle.loads(pickle.dumps(perturbation))):
        assert again == perturbation
        assert torch.equal(again.apply(image).slopes, expected)


def test_stacks_of_images_are_degraded_together():
    images = torch.from_numpy(np.stack([picture(), picture(15, 12).transpose(0, 2, 1)]))
    for text in TEXTS:
        together = sp.parse(text).apply(images)
        for number, image in enumerate(images):
            alone = sp.parse(text).apply(image)
            assert torch.allclose(together.slopes[:, number], alone.slopes, atol=1e-15)


def test_a_path_that_is_clipped():
    path = sp.parse("downsample:factor=2,resample=lanczos,clip=0.2..0.8").apply(torch.from_numpy(picture()))
    assert path.image(0.7).min() == 0.2
    assert path.image(0.7).max() == 0.8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zoom-blur:by=0.9", "by must be a number from 1 to 4"),
        ("zoom-blur:by=nan", "by must be a number from 1 to 4"),
        ("zoom-blur:by=2,padding=zeros", "padding means nothing"),
        ("rotation-blur:angle=181", "angle must be a number from 0 to 180"),
        ("rolling-shutter:size=4,top=0,bottom=1", "size must be odd"),
        ("rolling-shutter:size=5,top=0", "bottom missing"),
        ("chromatic-blur:size=5,red=-1,green=0,blue=0", "red must be a number from 0"),
        ("vignetting:corner=0", "corner must be a number from 0.01 to 1"),
        ("downsample:factor=2,resample=nearest", "resample must be one of box"),
        ("downsample:factor=0.5", "factor must be a number from 1 to 64"),
    ],
)
def test_what_is_not_possible_is_refused(text, words):
    with pytest.raises(InputError, match=words):
        sp.parse(text)


@pytest.mark.parametrize(
    ("text", "shape", "words"),
    [
        ("chromatic-blur:size=5,red=0,green=0,blue=1", (1, 9, 9), "the picture has 1 channels"),
        ("rotation-blur:angle=180", (1, 2, 30), "too large for an image of 2 x 30"),
        ("zoom-blur:by=4", (1, 700, 700), "weights; take a smaller picture"),
    ],
)
def test_pictures_that_do_not_do(text, shape, words):
    with pytest.raises(InputError, match=words):
        sp.parse(text).apply(torch.rand(*shape, dtype=torch.float64))


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [family.example for family in FAMILIES.values() if family.group != "yours"
                                  and not family.reads_files and isinstance(
                                      sp.parse(family.example).parts[0].effect, Degradation)])  # fmt: skip
def test_profiles_are_what_onnxruntime_says(demo_network, text):
    """Dense sampling agrees with the exact profile wherever the sample is not just at a change of class."""
    images = [fitting(demo_network, path) for path, _ in sp.demo.images()[:3]]
    places = np.linspace(0, 1, 201)
    for query in sp.perturbed(demo_network, images, text):
        (result,) = sp.analyse(demo_network, [query])
        assert result.status in ("safe", "unsafe")
        z = torch.from_numpy(places)[:, None]
        winners = demo_network.runtime(query.path.runtime_inputs(z)).argmax(1)
        for place, winner in zip(places, winners, strict=True):
            parts = [part for part in result.profile if part.start - 1e-5 <= place <= part.end + 1e-5]
            assert winner in {part.winner for part in parts}


def test_a_sum_is_verified():
    network = network_of(random_module(3), 1, 8, 8)
    text = "zoom-blur:by=1.2+haze:colour=0.5"
    (query,) = sp.perturbed(network, [np.random.default_rng(0).uniform(0, 1, (1, 8, 8))], text, strength=0.05)
    (result,) = sp.analyse(network, [query])
    assert result.status in ("safe", "unsafe")


def test_8bit_pictures_of_a_degradation(demo_network):
    image = fitting(demo_network, sp.demo.images()[0][0])
    result = sp.verify(demo_network, image, "zoom-blur:by=1.2", strength=0.05, pixels="8bit")
    path = result.query.path.path
    seen = {tuple(picture.ravel()) for batch in result.proof.pictures.batches(64) for picture in batch}
    for z in np.linspace(0, 0.05, 50):
        assert tuple(np.rint(255 * path.image(z).numpy()).astype(np.uint8).ravel()) in seen


def test_there_is_no_certificate_and_it_says_why():
    (path, _) = sp.demo.images()[0]
    network = sp.load(sp.demo.MODEL)
    result = sp.verify(network, path, "zoom-blur:by=1.2+box-blur:size=3", strength=0.001)
    assert result.status == "safe"
    with pytest.raises(NoCertificateError, match="the checker does not know zoom-blur"):
        certificate(network, result)


def test_the_checker_refuses_what_it_does_not_know():
    for name, family in FAMILIES.items():
        if not family.reads_files and name not in ("any-kernel", "all-kernels"):
            perturbation, known = sp.parse(family.example), name in checker.kernels.FAMILIES
            is_straight = perturbation.scale.segments == 1
            assert known == (is_straight and not perturbation.degradations)
