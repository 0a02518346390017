"""Paths of several segments with a parameter of their own: beside other descriptions, and beside the runtime."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

import shakeproof as sp
from shakeproof import demo
from shakeproof.certificate import NoCertificateError, certificate
from shakeproof.errors import InputError, ProofError
from shakeproof.proof import Record
from shakeproof.question import Path as PicturePath
from shakeproof.question import as_whole, fitting
from shakeproof.question.scale import ParameterScale

LENGTHS = ("motion-length:angle=90,upto=9", "motion-length:angle=30,upto=15", "motion-length:angle=45,upto=6.5")
ANGLES = (
    "motion-angle:size=9,from=0,to=180,strength=0.6",
    "motion-angle:size=5,from=200,to=-30",
    "motion-angle:size=7,from=20.5,to=21.5",
)
CURVES = (
    "gaussian-blur:size=9,sigma=0..3",
    "gaussian-blur:size=6,sigma=0.4..2,tolerance=0.005",
    "defocus:size=9,radius=0..4,tolerance=0.05",
    "defocus:radius=1..3,tolerance=0.02",
)
TEXTS = (*LENGTHS, *ANGLES, *CURVES)
SAMPLES = 2000
SIGNS = [str(file) for file, _ in demo.images()]
STOP, WARNING = (next(file for file in SIGNS if word in file) for word in ("stop", "warning"))


def line_kernel(angle: float, length: float, size: int, steps: int = 400_001) -> np.ndarray:
    """How long a line of a length is in each pixel: in which pixel each of many of its points is, counted."""
    along = np.linspace(-length / 2, length / 2, steps)
    rows, columns = (
        np.rint(along * side).astype(int) + size // 2
        for side in (-math.cos(math.radians(angle)), math.sin(math.radians(angle)))
    )
    kernel = np.zeros((size, size))
    np.add.at(kernel, (rows, columns), 1 / steps)
    return kernel


def blurred(picture: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Cross-correlation with reflection at the border, written out."""
    down, right = kernel.shape[0] // 2, kernel.shape[1] // 2
    padded = np.pad(picture, ((0, 0), (down, down), (right, right)), mode="reflect")
    result = np.zeros_like(picture)
    for (row, column), entry in np.ndenumerate(kernel):
        result += entry * padded[:, row : row + picture.shape[1], column : column + picture.shape[2]]
    return result


def square(matrix, size: int) -> np.ndarray:
    """A kernel in the middle of a larger one."""
    entries = np.array([[float(entry) for entry in row] for row in matrix])
    down, right = ((size - side) // 2 for side in entries.shape)
    return np.pad(entries, ((down, down), (right, right)))


def picture(channels: int = 1, side: int = 8) -> np.ndarray:
    return np.random.default_rng(side).uniform(0, 1, (channels, side, side))


# -- what the path is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", LENGTHS)
def test_kernels_are_means_along_a_line_at_every_length(text):
    """Also between the nodes, where the path is affine in 1 / length."""
    perturbation = sp.parse(text)
    assert str(perturbation) == text
    angle = float(text.partition("angle=")[2].partition(",")[0])
    for z in np.random.default_rng(0).uniform(0, 1, 40):
        kernel, length = perturbation.kernel.at(z), float(perturbation.scale.value(z))
        assert sum(map(sum, kernel)) == 1
        assert np.abs(square(kernel, 21) - line_kernel(angle, length, 21)).sum() < 1e-4


@pytest.mark.parametrize("text", ANGLES)
def test_kernels_are_motion_blur_at_every_angle(text):
    """Also between the nodes, where the path is affine in the cotangent of the angle to an axis."""
    perturbation, options = sp.parse(text), dict(part.split("=") for part in text.partition(":")[2].split(","))
    assert str(perturbation) == text
    size, strength = int(options["size"]), float(options.get("strength", 1))
    for z in (0.0, *np.random.default_rng(0).uniform(0, 1, 60), 1.0):
        meant = sp.motion_blur(size=size, angle=float(perturbation.scale.value(z))).kernel.at(strength)
        assert np.abs(square(perturbation.kernel.at(z), size) - square(meant, size)).sum() < 1e-13
    assert (perturbation.scale.value(0), perturbation.scale.value(1)) == (float(options["from"]), float(options["to"]))


def floats(matrix) -> np.ndarray:
    return np.array([[float(entry) for entry in row] for row in matrix])


def of_curve(text: str, value: float, size: int) -> np.ndarray:
    """The kernel of the plain family."""
    if text.startswith("gaussian"):
        return (
            floats(sp.gaussian_blur(size=size, sigma=value).kernel.at(1))
            if value
            else floats(sp.parse(text).kernel.at(0))
        )
    return square(sp.defocus(radius=value).kernel.at(1) if value > 0.5 else sp.identity().kernel.at(1), size)


def distance_to_curve(text: str, scale, samples: int) -> float:
    """The largest of many sampled distances between a chain's kernels and the curve's, at the same value."""
    perturbation, largest = sp.parse(text), 0.0
    ends = [floats(perturbation.kernel.at(node)) for node in scale.nodes]
    for z in np.random.default_rng(0).uniform(0, 1, samples):
        segment, share = scale.place(z)
        chord = ends[segment] * (1 - float(share)) + ends[segment + 1] * float(share)
        largest = max(largest, float(np.abs(chord - of_curve(text, float(scale.value(z)), len(chord))).sum()))
    return largest


@pytest.mark.parametrize("text", CURVES)
def test_chords_are_as_near_to_the_curve_as_is_proved(text):
    scale = sp.parse(text).scale
    assert str(sp.parse(text)) == text
    assert 0.02 * scale.distance < distance_to_curve(text, scale, 300) <= scale.distance


@pytest.mark.parametrize("text", CURVES)
def test_too_few_nodes_are_noticed(text):
    """A chain of which every other node is left out does not keep its tolerance, if that is what was used up."""
    perturbation = sp.parse(text)
    scale, kernel = perturbation.scale, perturbation.kernel
    farthest = 0.0
    for start, end in pairwise(scale.nodes[:: max(1, scale.segments // 3)]):
        middle = (start + end) / 2
        chord = (floats(kernel.at(start)) + floats(kernel.at(end))) / 2
        farthest = max(farthest, np.abs(chord - of_curve(text, float(scale.value(middle)), len(chord))).sum())
    assert farthest > scale.distance


def test_curves_that_cannot_be_followed_are_refused():
    for wrong in (
        "gaussian-blur:size=9,sigma=3..0",
        "gaussian-blur:size=9,sigma=1,tolerance=0.1",
        "gaussian-blur:size=9,sigma=0..inf",
        "defocus:radius=0..0.4",
        "defocus:size=5,radius=0..4",
        "defocus:size=9,radius=2",
        "defocus:radius=1..20,tolerance=0.0001",
    ):
        with pytest.raises(InputError):
            sp.parse(wrong)


def test_the_longest_line_is_motion_blur():
    """Where both mean the same: a line that ends at the border of the square."""
    for angle in (0, 90):
        ours, theirs = sp.motion_length(angle=angle, upto=9), sp.motion_blur(size=9, angle=angle)
        assert np.array_equal(square(ours.kernel.at(1), 9), square(theirs.kernel.at(1), 9))
        assert ours.kernel.at(0) == tuple(
            map(tuple, np.eye(9, dtype=int)[4:5] if angle else np.eye(9, dtype=int)[4:5].T)
        )


@pytest.mark.parametrize("text", TEXTS)
def test_the_path_is_within_its_error_of_what_it_is_exactly(text):
    """At the nodes, beside them, and anywhere."""
    perturbation, image = sp.parse(text), torch.from_numpy(picture(side=11))
    path, (whole, unit) = perturbation.apply(image), as_whole(image)
    exact, nodes = perturbation.exactly(whole, unit), perturbation.scale.nodes
    beside = [np.nextafter(node, side) for node in nodes[1:-1] for side in (0, 1)]
    stack = PicturePath.stacked([path, path])
    for z in (*nodes, *beside, *np.random.default_rng(0).uniform(0, 1, 20)):
        shares = perturbation.scale.shares(z)
        there = exact.base + sum(share * slope for share, slope in zip(shares, exact.slopes, strict=True))
        meant = np.array([float(Fraction(pixel) / exact.unit) for pixel in there.ravel()]).reshape(there.shape)
        at = torch.tensor([z], dtype=torch.float64)
        for found in (path.at(at), stack.rows(torch.tensor([1]), at)[0]):
            assert (np.abs(found.numpy() - meant) <= path.error.numpy() + 1e-15).all()


def test_segments_meet_and_cover_all_strengths():
    halves, values = (0.0, 0.5, 1.0), (Fraction(0), Fraction(1), Fraction(2))
    assert ParameterScale("x", "", halves, values).value(0.75) == Fraction(3, 2)
    for nodes in ((0.0, 0.5), (0.1, 0.5, 1.0), (0.0, 0.5, 0.5, 1.0), (0.0, 0.7, 0.5, 1.0)):
        with pytest.raises(ProofError):
            ParameterScale("x", "", nodes, tuple(map(Fraction, range(len(nodes)))))
    with pytest.raises(ProofError):
        ParameterScale("x", "", halves, (Fraction(0), Fraction(2), Fraction(1)))
    with pytest.raises(ProofError):
        PicturePath(torch.zeros(3, 1), torch.zeros(1), nodes=halves)


def test_values_are_rounded_to_the_safe_side():
    for scale in (
        sp.parse(TEXTS[1]).scale,
        ParameterScale("angle", "degrees", (0.0, 1.0), (Fraction(30), Fraction(10))),
    ):
        towards = 1 if scale.values[-1] > scale.values[0] else -1
        for z in np.random.default_rng(0).uniform(0, 1, 200):
            exact = scale.value(z)
            assert towards * (scale.reached(z) - exact) <= 0 <= towards * (scale.passed(z) - exact)
            assert abs(scale.reached(z) - scale.passed(z)) < 1e-9


# -- answers ----------------------------------------------------------------------------------------------------------


def agrees_with_samples(network, result) -> int:
    """How many samples were compared: the class that the runtime gives at strengths for which one is proved."""
    path = result.query.path
    z = np.linspace(0, 1, SAMPLES)
    winners = np.concatenate(
        [network.reference(path.runtime_inputs(torch.from_numpy(part)[:, None])) for part in np.split(z, 4)]
    ).argmax(1)
    compared = 0
    for part in result.profile:
        inside = (z > part.start) & (z < part.end)
        assert part.proved is False or (winners[inside] == part.winner).all(), part
        compared += int(inside.sum()) * part.proved
    return compared


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("file", SIGNS[::6], ids=lambda file: Path(file).stem)
def test_profiles_beside_the_runtime_at_many_strengths(demo_network, file, text):
    result = sp.profile(demo_network, file, text)
    assert result.status in ("safe", "unsafe")
    assert agrees_with_samples(demo_network, result) > 0.99 * SAMPLES
    up_to = sp.verify(demo_network, file, text, strength=0.5)
    critical = result.critical_strength
    assert up_to.status == ("unsafe" if critical is not None and critical[0] < 0.5 else "safe")


def test_traffic_signs_beside_lines_of_every_length(demo_network):
    """The picture is made here once more, from the line itself, and run."""
    picture = fitting(demo_network, STOP)
    image = picture.pixels.numpy()
    result = sp.profile(demo_network, picture, "motion-length:angle=90,upto=9")
    scale = result.query.perturbation.scale
    assert result.critical_strength is not None
    for part in result.profile:
        for z in np.linspace(part.start, part.end, 32)[1:-1]:
            inputs = blurred(image, line_kernel(90, float(scale.value(z)), 11, 40_001)).astype(np.float32)
            scores = demo_network.reference(demo_network.picture().to_input(torch.from_numpy(inputs))[None].numpy())
            top = np.sort(scores[0])
            assert int(scores.argmax()) == part.winner or top[-1] - top[-2] < 0.02


def test_an_answer_says_where_it_is_in_pixels(demo_network):
    result = sp.profile(demo_network, STOP, "motion-length:angle=90,upto=9")
    parameter, critical = result.parameter, result.critical_strength
    scale = result.query.perturbation.scale
    assert (parameter.name, parameter.unit, parameter.first, parameter.last) == ("length", "pixels", 0, 9)
    assert Fraction(parameter.certified) <= scale.value(result.certified_strength)
    assert Fraction(parameter.critical[0]) <= scale.value(critical[0])
    assert Fraction(parameter.critical[1]) >= scale.value(critical[1])
    line = json.dumps(result.to_json())
    assert json.loads(line)["parameter"]["segments"] == scale.segments
    assert Record.from_json(line) == result.record
    assert "pixels" in result.sentence
    assert "parameter" not in sp.profile(demo_network, STOP, "box-blur:size=3").to_json()


def test_an_answer_about_angles_says_from_where(demo_network):
    result = sp.profile(demo_network, STOP, "motion-angle:size=5,from=20,to=200,strength=0.3")
    assert result.sentence.endswith("angle from 20 to 200 degrees")
    back = sp.profile(demo_network, STOP, "motion-angle:size=5,from=200,to=20,strength=0.3")
    assert back.sentence.endswith("angle from 200 to 20 degrees")
    assert back.min_margin == pytest.approx(result.min_margin, abs=1e-9)


def test_an_answer_about_chords_says_so(demo_network):
    result = sp.profile(demo_network, STOP, CURVES[0])
    assert "by chords within 0.01 of the curve" in result.sentence
    assert result.to_json()["parameter"]["distance"] == 0.01
    assert Record.from_json(json.dumps(result.to_json())) == result.record


INCLUDED = "gaussian-blur:size=7,sigma=0..1,tolerance=0.001,remainder=include"


def test_the_curve_itself_is_within_the_error_of_its_chords():
    """Pixel by pixel, anywhere; without the remainder it is not."""
    image, perturbation = torch.from_numpy(picture(side=11)), sp.parse(INCLUDED.replace("0.001", "0.05"))
    assert str(sp.parse(INCLUDED)) == INCLUDED
    path, z = perturbation.apply(image), torch.from_numpy(np.random.default_rng(0).uniform(0, 1, 200))
    off = (perturbation.on_curve(image, z) - path.at(z[:, None])).abs().amax(0)
    assert (off <= path.error).all()
    assert (off > sp.parse("gaussian-blur:size=7,sigma=0..1,tolerance=0.05").apply(image).error).any()


def test_a_curve_is_certified_with_its_remainder(demo_network):
    """Every picture of the curve itself keeps the label; with a larger tolerance, nothing is proved."""
    result = sp.profile(demo_network, WARNING, INCLUDED)
    assert (result.status, result.parameter.included) == ("safe", True)
    assert result.sentence.endswith("all within 0.001 of the chords")
    image, layout = fitting(demo_network, WARNING).pixels, demo_network.picture()
    blurs = [sp.gaussian_blur(size=7, sigma=sigma).apply(image).image(1.0) for sigma in np.linspace(0.01, 1, 200)]
    assert set(demo_network.predicted(layout.to_input(torch.stack(blurs)))) == {result.label}
    chords = sp.profile(demo_network, WARNING, INCLUDED.replace(",remainder=include", ""))
    assert result.evidence.proofs[0].least < chords.evidence.proofs[0].least
    loose = sp.profile(demo_network, WARNING, INCLUDED.replace("0.001", "0.1"))
    assert loose.status == "undecided"
    assert "a smaller tolerance may decide it" in loose.sentence
    with pytest.raises(NoCertificateError, match="chords of a curve"):
        certificate(demo_network, result)
    with pytest.raises(InputError, match="exclude or include"):
        sp.parse(INCLUDED.replace("=include", "=yes"))


def test_a_counterexample_is_a_picture_of_the_curve(demo_network):
    """Not one of the chords."""
    text = "gaussian-blur:size=9,sigma=0..3,tolerance=0.1,remainder=include"
    result = sp.profile(demo_network, WARNING, text)
    assert result.status == "unsafe"
    (z,), scale = result.counterexample.strengths, result.query.perturbation.scale
    image = fitting(demo_network, WARNING).pixels
    blurred = sp.gaussian_blur(size=9, sigma=float(scale.value(z))).apply(image).image(1.0)
    assert np.abs(result.picture().numpy() - blurred.numpy()).max() < 1e-6


def test_windows_of_strength_and_two_networks(demo_network):
    """A path cut into windows that begin and end anywhere, and two networks side by side."""
    from shakeproof.analysis import joined_windows, window_of
    from shakeproof.question import perturbed
    from shakeproof.settings import Settings

    image = WARNING
    (query,) = perturbed(demo_network, [image], TEXTS[1])
    ends = [0.0, 0.2, 0.55, 1.0]
    windows = [window_of(demo_network, query, Settings(), *pair) for pair in pairwise(ends)]
    joined, whole = joined_windows(demo_network, query, Settings(), windows), sp.profile(demo_network, image, TEXTS[1])
    assert joined.status == whole.status == "unsafe"
    assert joined.critical_strength == pytest.approx(whole.critical_strength, abs=1e-12)
    assert sp.compare(demo_network, demo_network, image, TEXTS[1]).status == "agree"


# -- what would be wrong ----------------------------------------------------------------------------------------------


def test_a_sweep_that_jumps_over_a_node_proves_nothing(demo_network):
    """If segments were not cut, chords between rows would not be the network's: direct evaluation says so."""
    with patch.object(PicturePath, "within", lambda self, start, end: [start, end]):
        with pytest.raises(ProofError, match="over the end of its segment"):
            sp.profile(demo_network, STOP, TEXTS[1])
        with patch.object(PicturePath, "check_straight", lambda *ends: None):
            result = sp.profile(demo_network, STOP, TEXTS[1], whole_curve=True)
    assert result.status == "undecided"
    assert result.certified_strength == 0


def test_what_is_not_possible_yet_is_refused_by_name(demo_network, tmp_path):
    text, image = TEXTS[0], STOP
    with pytest.raises(InputError, match="exact method alone"):
        sp.profile(demo_network, image, text, method="bounds")
    with pytest.raises(InputError, match="cannot be added"):
        sp.parse(f"{text}+brightness:max=0.1")
    with pytest.raises(InputError, match="8-bit pictures"):
        sp.profile(demo_network, image, text, pixels="8bit")
    with pytest.raises(InputError, match="other verifiers"):
        sp.export(str(demo.MODEL), image, text, 0.5, tmp_path)
    for wrong in (
        "motion-length:angle=0,upto=0.5",
        "motion-length:angle=nan,upto=5",
        "motion-length:angle=0,upto=5000",
    ):
        with pytest.raises(InputError, match="motion-length"):
            sp.parse(wrong)


# -- exposure ---------------------------------------------------------------------------------------------------------


def wandering(seed: int, samples: int = 24, seconds: float = 0.12, gyroscope: bool = False) -> np.ndarray:
    """Samples of a motion that wanders by a few pixels: time, x, y; or of the rates at which it turns."""
    random = np.random.default_rng(seed)
    time = np.round(np.sort(random.uniform(0, seconds, samples)) + 10 + np.arange(samples) * 1e-4, 6)
    places = np.cumsum(random.normal(0, 0.7, (samples, 2)), 0)
    return np.column_stack([time, np.round(random.normal(0, 0.2, (samples, 2)) if gyroscope else places, 6)])


def write_samples(path: Path, rows: np.ndarray, names: str = "time,x,y") -> Path:
    path.write_text("\n".join([names, *(",".join(map(repr, row)) for row in rows.tolist())]) + "\n")
    return path


def shifted(picture: np.ndarray, right: float, down: float) -> np.ndarray:
    """A picture that has moved, bilinear between pixels and reflected at the border, pixel by pixel."""
    moved, (height, width) = np.zeros_like(picture), picture.shape[1:]

    def inside(place: int, size: int) -> int:
        place = abs(place)
        return 2 * (size - 1) - place if place >= size else place

    for y in range(height):
        for x in range(width):
            top, left = math.floor(y - down), math.floor(x - right)
            for row, vertical in ((top, 1 - (y - down - top)), (top + 1, y - down - top)):
                for column, horizontal in ((left, 1 - (x - right - left)), (left + 1, x - right - left)):
                    moved[:, y, x] += vertical * horizontal * picture[:, inside(row, height), inside(column, width)]
    return moved


def seen(picture: np.ndarray, rows: np.ndarray, seconds: float) -> np.ndarray:
    """The mean of what is seen: each sample holds until the next one, or until the exposure ends."""
    time, total = rows[:, 0] - rows[0, 0], np.zeros_like(picture)
    ends = np.append(time[1:], np.inf)
    for (_, x, y), start, end in zip(rows, time, ends, strict=True):
        if start < seconds:
            total += (min(end, seconds) - start) * shifted(picture, x - rows[0, 1], y - rows[0, 2])
    return total / seconds


@pytest.mark.parametrize("seed", range(3))
def test_exposures_are_means_over_the_trajectory(tmp_path, seed):
    rows, image = wandering(seed), picture(channels=2, side=12)
    file = write_samples(tmp_path / "shake.csv", rows)
    perturbation = sp.exposure(file, upto=0.1)
    path = perturbation.apply(torch.from_numpy(image))
    nodes = perturbation.scale.nodes
    for z in (*nodes[1:5], *np.random.default_rng(seed).uniform(0, 1, 12)):
        seconds = float(perturbation.scale.value(z))
        assert np.abs(path.image(z).numpy() - seen(image, rows, seconds)).max() < 1e-12
    assert np.array_equal(path.image(0.0), image)
    assert str(sp.parse(str(perturbation))) == str(perturbation)


def test_a_gyroscope_turns_into_pixels(tmp_path):
    """Rates are held as well; a camera that turns to the right (about the y axis) sees the picture move to the left."""
    rates = wandering(5, gyroscope=True)
    steps = np.diff(rates[:, 0])[:, None] * 800 * np.column_stack([-rates[:-1, 2], rates[:-1, 1]])
    places = np.column_stack([rates[:, 0], np.vstack([np.zeros((1, 2)), np.cumsum(steps, 0)])])
    file, image = write_samples(tmp_path / "gyro.csv", rates, "time,wx,wy"), picture(side=12)
    perturbation = sp.parse(f"exposure:trajectory={file},upto=0.09,focal=800")
    path = perturbation.apply(torch.from_numpy(image))
    for z in (0.2, 0.5, 1.0):
        meant = seen(image, places, float(perturbation.scale.value(z)))
        assert np.abs(path.image(z).numpy() - meant).max() < 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_exposures_beside_replays_of_the_trajectory(tmp_path, demo_network, seed):
    """Every picture is made once more, by moving it about, and run."""
    rows = wandering(seed)
    text = f"exposure:trajectory={write_samples(tmp_path / 'shake.csv', rows)},upto=0.1"
    image = fitting(demo_network, WARNING)
    result = sp.profile(demo_network, image, text)
    assert result.status in ("safe", "unsafe")
    assert agrees_with_samples(demo_network, result) > 0.99 * SAMPLES
    layout, copies = demo_network.picture(), {}
    for part in result.profile:
        for z in np.linspace(part.start, part.end, 12)[1:-1]:
            seconds = float(result.query.perturbation.scale.value(z))
            whole = int((rows[:, 0] - rows[0, 0] < seconds).sum())
            for number in range(whole):
                move = rows[number, 1:] - rows[0, 1:]
                copies.setdefault(number, shifted(image.pixels.numpy(), *move))
            ends = np.minimum(np.append(rows[1:, 0] - rows[0, 0], np.inf), seconds)[:whole]
            weights = np.diff(np.append(0.0, ends)) / seconds
            mean = sum(weight * copies[number] for number, weight in enumerate(weights))
            inputs = layout.to_input(torch.from_numpy(mean))[None].float().numpy()
            scores = np.sort(demo_network.reference(inputs)[0])
            assert demo_network.reference(inputs).argmax() == part.winner or scores[-1] - scores[-2] < 1e-4


def test_exposures_are_told_as_cameras_have_them(tmp_path, demo_network):
    rows = wandering(1) * [1, 3, 3]
    text = f"exposure:trajectory={write_samples(tmp_path / 'shake.csv', rows)},upto=0.1"
    result = sp.profile(demo_network, WARNING, text)
    low, high = result.critical_strength
    scale = result.query.perturbation.scale
    words = result.sentence.partition("exposure ")[2]
    ends = [Fraction(word) for word in words.removesuffix(" s").split(" to ")]
    assert ends[0] <= scale.value(low) <= scale.value(high) <= ends[-1]
    assert all(end.numerator == 1 for end in ends)
    safe = sp.verify(demo_network, WARNING, text, strength=low / 2)
    assert safe.sentence.endswith(f"exposure up to 1/{math.ceil(1 / scale.value(low / 2))} s")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "first line names the columns"),
        ("time;x;y\n0;0;0\n", "first line names the columns"),
        ("time,x,y\n0,0,0\n", "2 to 100000 samples, not 1"),
        ("time,x,y\n0,0,0\n0,1,1\n", "times must increase"),
        ("time,x,y\n0,0,0\n0.1,1\n", "line 3 has 2 numbers instead of 3"),
        ("time,x,y\n0,0,0\n0.1,nan,1\n", "line 3: 'nan' is not a number"),
        ("time,x,y\n0,0,0\n0.1,1e999999999,1\n", "is not a number"),
        ("time,wx,wy\n0,0,0\n0.2,1,1\n", "focal=PIXELS goes with a gyroscope"),
        ("time,x,y\n0,0,0\n0.01,1,1\n", "upto must be a number from 0 to 0.01"),
        ("time,x,y\n0,0,0\n0.01,9000,1\n0.2,0,0\n", "is too large"),
    ],
)
def test_bad_trajectories_are_refused_in_one_line(tmp_path, text, complaint):
    (tmp_path / "shake.csv").write_text(text)
    with pytest.raises(InputError, match=complaint) as error:
        sp.parse(f"exposure:trajectory={tmp_path / 'shake.csv'},upto=0.1")
    assert "\n" not in str(error.value)


def test_no_trajectory_and_no_exposure(tmp_path):
    file = write_samples(tmp_path / "shake.csv", wandering(0))
    with pytest.raises(InputError, match="cannot be read"):
        sp.parse("exposure:trajectory=missing.csv,upto=0.1")
    with pytest.raises(InputError, match="above 0"):
        sp.exposure(file, upto=0)
    with pytest.raises(InputError, match="focal=PIXELS goes"):
        sp.exposure(file, upto=0.1, focal=800)


def test_the_whole_exposure_is_told_as_it_was_asked(tmp_path, demo_network):
    """Though a tenth of a second is no float64, and a sample is there."""
    file = write_samples(tmp_path / "still.csv", np.array([[0, 0, 0], [0.05, 0.01, 0], [0.1, 0, 0]]))
    result = sp.profile(demo_network, WARNING, f"exposure:trajectory={file},upto=0.1")
    assert result.sentence.endswith("exposure up to 1/10 s")
    assert (result.parameter.last, result.parameter.certified) == (0.1, 0.1)
