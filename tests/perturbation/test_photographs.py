"""What happens to photographs as taken, before they are resized: beside Pillow, exact fractions, and by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import shakeproof as sp
from shakeproof import demo
from shakeproof.certificate import NoCertificateError, certificate
from shakeproof.digests import content_digest, query_digest
from shakeproof.errors import InputError, ProofError
from shakeproof.proof.leads import exact_path
from shakeproof.question import Preprocessing, RawImage, image_layout, perturbed, read_image
from shakeproof.question.linear_maps import resizing
from shakeproof.question.photographs import Resizing
from shakeproof.question.preprocessing import RESAMPLING
from shakeproof.settings import Settings
from shakeproof.store import keep, read_campaign

STEPS = Preprocessing(resize=40, crop=(32, 32), resample="bicubic")
BLUR = "motion-blur:size=15,angle=90"
SIGN = next(path for path, _ in demo.images() if path.name == "stop.1.png")


@pytest.fixture(scope="module")
def network():
    return sp.load(demo.MODEL, preprocess=STEPS)


@pytest.fixture
def photograph(tmp_path):
    """A sign of more pixels than the network takes, and not square."""
    file = tmp_path / "photograph.png"
    Pillow.open(SIGN).resize((71, 58), Pillow.Resampling.LANCZOS).save(file)
    return str(file)


def fitted(file: str, steps: Preprocessing, shape: tuple[int, int, int]):
    return read_image(file).fitted(image_layout(shape), steps, with_photograph=True)


# -- the linear map, beside Pillow ------------------------------------------------------------------------------------


@pytest.mark.parametrize("resample", RESAMPLING)
def test_weights_of_one_side_are_pillows_at_all_small_sizes(resample):
    """Ties among them: which of two pixels is the nearest one, and which ends of a box belong to it."""
    for before in range(1, 28):
        each = Pillow.fromarray(np.eye(before, dtype=np.float32))
        for after in range(1, 28):
            across, down = (
                np.asarray(each.resize(size, RESAMPLING[resample]), float)
                for size in ((after, before), (before, after))
            )
            weights = resizing(before, after, resample)
            assert max(np.abs(across.T - weights).max(), np.abs(down - weights).max()) < 1e-5, (before, after)


@pytest.mark.parametrize("resample", RESAMPLING)
@pytest.mark.parametrize("size", [40, (33, 90), (58, 71), (100, 200)])
def test_resizing_is_pillows_before_it_rounds(photograph, resample, size):
    steps = Preprocessing(resize=size, resample=resample)
    with Pillow.open(photograph) as opened:
        planes = [np.asarray(plane, dtype=np.float32) for plane in opened.split()]
    found = fitted(photograph, steps, steps.shape((3, 58, 71))).photograph
    height, width = steps.shape((3, 58, 71))[1:]
    theirs = [Pillow.fromarray(plane).resize((width, height), RESAMPLING[resample]) for plane in planes]
    ours = found.resizing.applied(found.pixels) * 255
    assert np.abs(ours.numpy() - np.stack([np.asarray(plane, dtype=float) for plane in theirs])).max() < 1e-4


@pytest.mark.parametrize("number", range(5))
def test_real_photographs_are_resized_as_pillow_does(shared, number):
    """Pillow rounds to bytes between its two passes and at the end: ours is less than a level and a half off."""
    file = str(sorted(shared("data/imagenet").glob("*.jpg"))[number])
    steps = Preprocessing(resize=256, crop=(224, 224))
    image = fitted(file, steps, (3, 224, 224))
    ours = image.photograph.resizing.applied(image.photograph.pixels)
    assert (ours - image.pixels).abs().max() * 255 < 1.5
    assert (ours - image.pixels).abs().mean() * 255 < 0.4
    with Pillow.open(file) as opened:  # by hand: the shorter side, and the middle
        picture = opened.convert("RGB")
        width, height = picture.size
        short = min(width, height)
        picture = picture.resize((int(256 * width / short), int(256 * height / short)), Pillow.Resampling.BILINEAR)
        left, top = round((picture.width - 224) / 2), round((picture.height - 224) / 2)
        by_hand = np.asarray(picture.crop((left, top, left + 224, top + 224))).transpose(2, 0, 1)
    assert np.array_equal(image.photograph.developed(image.photograph.bytes()[None])[0], by_hand)


@pytest.mark.parametrize("colour", ["rgb", "grey"])
def test_colours_are_changed_first(tmp_path, colour):
    grey = Pillow.open(SIGN).resize((50, 44)).convert("L" if colour == "rgb" else "RGB")
    grey.save(tmp_path / "a.png")
    steps = Preprocessing(resize=(32, 32), colour=colour)
    image = fitted(str(tmp_path / "a.png"), steps, (3 if colour == "rgb" else 1, 32, 32))
    ours = image.photograph.resizing.applied(image.photograph.pixels)
    assert ours.shape == image.pixels.shape
    assert (ours - image.pixels).abs().max() * 255 < 2


@pytest.mark.parametrize("resample", RESAMPLING)
def test_weights_are_few_bits_and_sum_to_one(resample):
    for side in Preprocessing(resize=(37, 90), colour="grey", resample=resample).matrices((3, 58, 71), "a"):
        assert (side * 2**40 == np.rint(side * 2**40)).all()
        assert all(sum(map(Fraction, row)) == 1 for row in side.tolist())


# -- the path ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [BLUR, "box-blur:size=4", "sharpen:size=5", "vignetting:corner=0.3", "haze:colour=0.4",
                                  "gaussian-blur:size=5,sigma=1+brightness:max=0.2"])  # fmt: skip
def test_a_path_of_photographs_without_rounding(photograph, network, text):
    """In fractions, x(z) is no farther from what float64 gives than the path says, and that is little."""
    (query,) = perturbed(network, [photograph], text + ",at=original")
    image = fitted(photograph, STEPS, (3, 32, 32)).photograph
    exact = query.perturbation.exactly(image.levels.astype(object), 255)
    z = [Fraction(3, 7)] * query.parameters
    moved = exact.base * z[0].denominator + sum(s * share.numerator for s, share in zip(exact.slopes, z, strict=True))
    unit = exact.unit * z[0].denominator
    channels, rows, columns = (
        [[int(weight * 2**40) for weight in row] for row in side.tolist()]
        for side in (image.resizing.channels, image.resizing.rows, image.resizing.columns)
    )
    resized = np.array(rows, object) @ moved @ np.array(columns, object).T
    resized = np.tensordot(np.array(channels, object), resized, 1)
    path = query.path.path
    found = path.at(torch.tensor([[float(share) for share in z]], dtype=torch.float64))[0]
    # 3/7 is no float64: what its rounding moves is added
    slack = 2.0**-52 * path.slopes.abs().sum(0) + path.error
    for place in range(0, resized.size, 97):
        true = Fraction(int(resized.ravel()[place]), unit * 2**120)
        assert abs(Fraction(found.ravel()[place].item()) - true) <= Fraction(slack.ravel()[place].item())
    assert path.error.max() < 1e-12


def test_errors_of_photographs_are_carried_on():
    """A bound that leaves out the weights' sizes, or the photograph's own error, is too small."""
    side = torch.tensor([[1.5, -0.5]], dtype=torch.float64)
    resizing = Resizing(torch.eye(1, dtype=torch.float64), side, torch.eye(1, dtype=torch.float64))
    from shakeproof.question import Path

    base = torch.tensor([[[1.0], [0.5]]], dtype=torch.float64)
    path = resizing.path(Path(torch.zeros(1, 1, 2, 1, dtype=torch.float64), base, error=torch.full_like(base, 0.1)))
    assert path.base.item() == 1.25
    assert 0.2 <= path.error.item() < 0.21


def test_answers_beside_dense_sampling(photograph, network):
    """Photographs that are blurred, then resized in float64, in the runtime at many strengths."""
    results = sp.profile(
        network,
        photograph,
        [f"{BLUR},at=original", "sharpen:size=9,at=original", "motion-length:angle=90,upto=9,at=original"],
    )
    for result in results:
        photo = result.query.photograph
        assert photo.pixels.shape == (3, 58, 71)
        path = sp.parse(str(result.query.perturbation)).apply(photo.pixels)
        for z in np.linspace(0, 1, 101):
            picture = photo.resizing.applied(path.image(z)).float()
            winner = int(network.reference(picture[None, None].numpy()).argmax())
            expected = {part.winner for part in result.profile if part.start <= z <= part.end}
            assert winner in expected


def test_sizes_are_in_pixels_of_the_photograph(photograph, network):
    """A blur of the photograph is another path than one of the picture, and both start from nearly the same."""
    ours, plain = (perturbed(network, [photograph], text)[0] for text in (f"{BLUR},at=original", BLUR))
    assert (ours.picture(0.0) - plain.picture(0.0)).abs().max() < 2 / 255
    assert (ours.picture(1.0) - plain.picture(1.0)).abs().max() > 0.05
    assert ours.photograph is not None
    assert plain.photograph is None


# -- 8-bit photographs, through Pillow's own code ----------------------------------------------------------------------


def by_hand(photo: np.ndarray, text: str, z: Fraction) -> np.ndarray:
    """The photograph at a strength in fractions, rounded half to even, resized and cropped as a camera's user would."""
    path = sp.parse(text).exactly(photo.astype(object), 255)
    levels = (path.base * z.denominator + path.slopes[0] * z.numerator) * 255
    rounded = np.array([round(Fraction(int(n), path.unit * z.denominator)) for n in levels.ravel()])
    picture = Pillow.fromarray(np.clip(rounded, 0, 255).astype(np.uint8).reshape(photo.shape).transpose(1, 2, 0))
    picture = picture.resize((int(40 * 71 / 58), 40), Pillow.Resampling.BICUBIC)
    left, top = round((picture.width - 32) / 2), round((picture.height - 32) / 2)
    return np.asarray(picture.crop((left, top, left + 32, top + 32))).transpose(2, 0, 1)


def test_8_bit_photographs_are_rounded_before_they_are_resized(photograph, network):
    result = sp.profile(network, photograph, f"{BLUR},at=original", max_strength=0.05, pixels="8bit")
    proof, photo = result.proof, result.query.photograph
    assert result.pieces == len(proof.pictures) > 1000
    assert proof.pictures.picture(0).shape == (3, 58, 71)
    for z in map(Fraction, np.random.default_rng(0).uniform(0, 0.05, 40).tolist()):
        expected, number = by_hand(photo.levels, BLUR, z), proof.pictures.before(z) - 1
        assert proof.pictures.begins(number) <= z <= proof.pictures.begins(number + 1)
        developed = photo.developed(proof.pictures.picture(number)[None])[0]
        assert developed.tobytes() == expected.tobytes()
        scores = network.reference((expected / np.float32(255)).astype(np.float32)[None, None])[0]
        assert scores.argmax() == proof.winners[number]
        own = np.delete(scores, result.label).max()
        assert scores[result.label] - own == pytest.approx(proof.margins[number], abs=1e-5)


def test_a_lost_photograph_is_shown_as_the_network_saw_it(photograph, network):
    wrong = sp.profile(network, photograph, f"{BLUR},at=original", label=3, max_strength=0.01, pixels="8bit")
    counterexample = wrong.counterexample
    assert counterexample is not None
    assert counterexample.replayed
    shown = by_hand(wrong.query.photograph.levels, BLUR, Fraction(counterexample.strengths[0]))
    assert np.array_equal(counterexample.input[0], (shown / np.float32(255)).astype(np.float32))


# -- texts, digests, refusals ------------------------------------------------------------------------------------------


def test_texts():
    text = "box-blur:size=3+haze:colour=0.5,at=original"
    assert str(sp.parse(text)) == text
    assert sp.parse("box-blur:size=3,at=original+haze:colour=0.5") == sp.parse(text)
    assert sp.box_blur(size=3).of_photograph() == sp.parse("box-blur:size=3,at=original")
    assert sp.parse("box-blur:size=3,at=network") == sp.box_blur(size=3) != sp.box_blur(size=3).of_photograph()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("box-blur:size=3,at=sensor", "at must be original"),
        ("box-blur:size=3,clip=0..1,at=original", "leave clip out"),
        ("box-blur:size=3,clip=0..1+haze:colour=0.5,at=original", "leave clip out"),
        ("any-kernel:size=3,at=original", "set of images"),
        ("all-kernels:size=3,at=original", "set of images"),
    ],
)
def test_texts_that_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        sp.parse(text)


def test_what_is_refused_by_name(photograph, network, tmp_path):
    text = f"{BLUR},at=original"
    with pytest.raises(InputError, match="name its file"):
        sp.profile(network, np.zeros((3, 32, 32)), text)
    with pytest.raises(NoCertificateError, match="at=original"):
        certificate(network, sp.verify(network, photograph, text, strength=0.01))
    np.save(tmp_path / "deep.npy", np.full((3, 58, 71), 20000, np.uint16))
    with pytest.raises(InputError, match="no photograph of 8 bits"):
        sp.profile(network, str(tmp_path / "deep.npy"), text, pixels="8bit")
    with pytest.raises(InputError, match="too large for an image of 58 x 71"):
        sp.profile(network, photograph, "box-blur:size=127,at=original")
    with pytest.raises(InputError, match="another form"):
        sp.export(demo.MODEL, str(SIGN), f"{BLUR},at=original", 0.1, tmp_path, form="perturbed")


def test_stores_and_campaigns_refuse_photographs(photograph, network, tmp_path):
    """What they keep is the network's picture, of which a report would draw another path."""
    result = sp.verify(network, photograph, f"{BLUR},at=original", strength=0.01)
    with pytest.raises(InputError, match="answers are stored with pictures as networks take them"):
        keep(tmp_path / "store.db", "name", network, [result], Settings())
    (tmp_path / "c.toml").write_text(
        f'name = "c"\nmodels = ["{demo.MODEL}"]\nperturbations = ["{BLUR},at=original"]\n[images]\npaths = ["{SIGN}"]\n'
    )
    with pytest.raises(InputError, match="campaigns are run with pictures as networks take them"):
        read_campaign(tmp_path / "c.toml")


def test_the_exact_path_of_the_picture_is_no_photographs(photograph, network):
    (query,) = perturbed(network, [photograph], f"{BLUR},at=original")
    with pytest.raises(ProofError, match="exact path of a photograph"):
        exact_path(query)


def test_an_exported_query_has_the_path_of_pictures(network, tmp_path):
    """The network that other verifiers are given, beside ours at some strengths."""
    import onnxruntime

    exported = sp.export(demo.MODEL, str(SIGN), f"{BLUR},at=original", 0.5, tmp_path)
    session = onnxruntime.InferenceSession(str(exported.augmented), providers=["CPUExecutionProvider"])
    plain = sp.load(demo.MODEL)
    (query,) = perturbed(plain, [str(SIGN)], f"{BLUR},at=original")
    for z in (0.0, 0.2, 0.5):
        (theirs,) = session.run(None, {session.get_inputs()[0].name: np.array([[z]], np.float32)})
        ours = plain.reference(query.path.runtime_inputs(torch.tensor([[z]], dtype=torch.float64)))
        assert np.abs(theirs - ours).max() < 1e-3


def test_a_question_is_found_again_by_its_photograph(photograph, network):
    text = f"{BLUR},at=original"
    (query,) = perturbed(network, [photograph], text)
    other = replace(query.image.photograph, pixels=query.image.photograph.pixels.flip(-1))
    (plain,) = perturbed(network, [photograph], BLUR)
    assert content_digest(plain) != content_digest(query)
    assert content_digest(replace(query, image=replace(query.image, photograph=other))) != content_digest(query)
    steps = replace(query.image.photograph, preprocessing=replace(STEPS, resample="box"))
    assert content_digest(replace(query, image=replace(query.image, photograph=steps))) != content_digest(query)
    again = RawImage("another name", read_image(photograph).array)
    assert query_digest(network, perturbed(network, [again], text)[0], Settings()) == query_digest(
        network, query, Settings()
    )
