"""What is done to pictures, compared with Pillow's own, and the files that say it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import shakeproof as sp
from shakeproof.errors import InputError
from shakeproof.question import Preprocessing, image_layout, read_image, read_preprocessing
from shakeproof.question.preprocessing import RESAMPLING

random = np.random.default_rng(0)
PHOTO = np.asarray(Image.fromarray(random.integers(0, 256, (9, 7, 3), np.uint8)).resize((61, 83), 3))


def last(picture: np.ndarray) -> np.ndarray:
    return picture.transpose(1, 2, 0)


def first(picture: np.ndarray) -> np.ndarray:
    return picture.transpose(2, 0, 1)


@pytest.mark.parametrize("method", RESAMPLING)
@pytest.mark.parametrize("size", [(32, 32), (120, 20), (83, 61)])
def test_resizing_is_pillows(method, size):
    found = Preprocessing(resize=size, resample=method).moved(first(PHOTO), "x")
    expected = Image.fromarray(PHOTO).resize(size[::-1], RESAMPLING[method])
    assert np.array_equal(last(found), np.asarray(expected))
    grey = Image.fromarray(PHOTO[..., 0])
    found = Preprocessing(resize=size, resample=method).moved(np.asarray(grey)[None], "x")
    assert np.array_equal(found[0], np.asarray(grey.resize(size[::-1], RESAMPLING[method])))


def test_floats_are_resized_as_floats():
    deep = random.uniform(size=(1, 50, 40))
    found = Preprocessing(resize=(20, 30), resample="bilinear").moved(deep, "x")
    expected = Image.fromarray(deep[0].astype(np.float32)).resize((30, 20), 2)
    assert np.array_equal(found[0], np.asarray(expected))
    sharp = np.zeros((1, 8, 8))
    sharp[0, 4:] = 1
    found = Preprocessing(resize=(64, 64), resample="lanczos").moved(sharp, "x")
    assert (found.min(), found.max()) == (0.0, 1.0)  # as bytes, which cannot overshoot


@given(height=st.integers(1, 90), width=st.integers(1, 90), size=st.integers(1, 60))
@settings(max_examples=60)
def test_the_shorter_side_and_the_middle(height, width, size):
    wanted = Preprocessing(resize=size, crop=(size, size))
    picture = np.zeros((3, height, width), np.uint8)
    assert wanted.moved(picture, "x").shape == wanted.shape((3, height, width)) == (3, size, size)
    resized = Preprocessing(resize=size)
    found = resized.shape((3, height, width))
    assert resized.moved(picture, "x").shape == found
    assert min(found[1:]) == size
    assert abs(found[1] * width - found[2] * height) < max(height, width)


def test_the_middle_is_the_middle():
    rows = np.arange(10)[None, :, None] * np.ones((1, 1, 4))
    assert Preprocessing(crop=(4, 4)).moved(rows, "x")[0, :, 0].tolist() == [3, 4, 5, 6]
    for size in (9, 7, 5, 3, 1):
        top = round((10 - size) / 2.0)  # as torchvision does it
        assert Preprocessing(crop=(size, 1)).moved(rows, "x")[0, :, 0].tolist() == [*range(top, top + size)]
    with pytest.raises(InputError, match="no 11 x 4 can be cut out of 10 x 4") as caught:
        Preprocessing(crop=(11, 4)).moved(rows, "a.png")
    assert caught.value.option == "resize"


def test_colours_are_pillows():
    grey = Preprocessing(colour="grey").moved(first(PHOTO), "x")
    assert np.array_equal(grey[0], np.asarray(Image.fromarray(PHOTO).convert("L")))
    assert np.allclose(Preprocessing(colour="grey").moved(first(PHOTO) / 255, "x") * 255, grey, atol=0.51)
    assert np.array_equal(last(Preprocessing(colour="rgb").moved(grey, "x"))[..., 2], grey[0])
    assert Preprocessing(colour="rgb").moved(first(PHOTO), "x") is not None
    with pytest.raises(InputError, match="neither grey nor RGB"):
        Preprocessing(colour="rgb").moved(np.zeros((4, 5, 5)), "x")


@pytest.mark.parametrize(
    "wrong",
    [
        {"resize": 0},
        {"resize": (3, 10**6)},
        {"crop": (0, 3)},
        {"resample": "magic"},
        {"scale": (1.0, 1.0)},
        {"scale": (0.0, float("inf"))},
    ],
)
def test_impossible_values(wrong):
    with pytest.raises(InputError):
        Preprocessing(**wrong)


def test_a_sliver_is_not_resized_to_gigabytes():
    with pytest.raises(InputError, match="give both sides"):
        Preprocessing(resize=256).moved(np.zeros((1, 1, 90_000), np.uint8), "x")


def test_files_are_preprocessed(tmp_path):
    """What a network is given is what Pillow's own steps give, whatever the file."""
    layout = image_layout((1, 3, 24, 20))
    wanted = Preprocessing(resize=(30, 28), crop=(24, 20), resample="bicubic")
    resized = np.asarray(Image.fromarray(PHOTO).resize((28, 30), 3))[3:27, 4:24]
    Image.fromarray(PHOTO).save(tmp_path / "a.png")
    np.save(tmp_path / "last.npy", PHOTO)
    np.save(tmp_path / "first.npy", first(PHOTO)[None])
    for name in ("a.png", "last.npy", "first.npy"):
        found = read_image(str(tmp_path / name)).fitted(layout, wanted)
        assert torch.equal(found.pixels, torch.from_numpy(first(resized) / 255))
    np.save(tmp_path / "flat.npy", PHOTO.reshape(-1))
    with pytest.raises(InputError, match="only what is high and wide"):
        read_image(str(tmp_path / "flat.npy")).fitted(layout, wanted)
    np.save(tmp_path / "deep.npy", PHOTO.astype(np.uint16) * 257)
    found = read_image(str(tmp_path / "deep.npy")).fitted(layout, wanted)
    assert torch.allclose(found.pixels, torch.from_numpy(first(resized) / 255), atol=1 / 255)


def test_scales(tmp_path):
    layout = image_layout((1, 3, 83, 61))
    expected = torch.from_numpy(first(PHOTO) / 255)

    def pixels(array, scale, **more):
        np.save(tmp_path / "a.npy", array)
        return read_image(str(tmp_path / "a.npy")).fitted(layout, Preprocessing(scale=scale, **more)).pixels

    assert torch.allclose(pixels(PHOTO.astype(np.float32), (0, 255)), expected, atol=1e-15)
    assert torch.allclose(pixels(PHOTO.astype(np.int64), (0, 255)), expected, atol=1e-15)
    assert torch.allclose(pixels(PHOTO / 127.5 - 1, (-1, 1)), expected, atol=1e-15)
    assert torch.equal(pixels(PHOTO.astype(np.float64), (0, 1)), expected * 255)  # as they are
    assert torch.equal(pixels(PHOTO, (0, 255), resize=(83, 61)), expected)
    with pytest.raises(InputError, match="outside 0 to 1"):  # bytes as they are would be hundreds of times too bright
        pixels(PHOTO, (0, 1))


def test_what_is_done_is_said():
    assert Preprocessing().note is None
    said = Preprocessing(256, (224, 224), "bicubic", "rgb", (0, 255), (0.5,), (0.1, 0.2, 0.25)).note
    assert said == (
        "before the perturbation, pictures are converted to RGB, resized to a shorter side of 256 (bicubic), cropped to"
        " the central 224 x 224, scaled from 0..255 to 0..1; perturbed pictures x are normalised:"
        " (x - 0.5) / [0.1, 0.2, 0.25]"
    )


# -- as Hugging Face writes it ----------------------------------------------------------------------------------------

HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
NORMAL = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


def read(tmp_path, **said) -> Preprocessing:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    return read_preprocessing(tmp_path)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"size": 224}, {"resize": (224, 224)}),
        ({"size": {"height": 30, "width": 40}, "resample": 3}, {"resize": (30, 40), "resample": "bicubic"}),
        ({"image_processor_type": "ViTImageProcessorFast", "size": 224}, {"resize": (224, 224)}),
        (
            {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224, "do_convert_rgb": True},
            {"resize": 224, "crop": (224, 224), "resample": "bicubic", "colour": "rgb"},
        ),
        (
            {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 224}, "crop_pct": 0.875},
            {"resize": 256, "crop": (224, 224)},
        ),
        ({"image_processor_type": "ConvNextImageProcessor", "size": 384}, {"resize": (384, 384)}),
        (
            {"image_processor_type": "LevitImageProcessor", "size": {"shortest_edge": 224}, "crop_size": 224},
            {"resize": 256, "crop": (224, 224), "resample": "bicubic"},
        ),
        (
            {"image_processor_type": "PoolFormerImageProcessor", "size": 224, "crop_pct": 0.9, "crop_size": 224},
            {"resize": 248, "crop": (224, 224), "resample": "bicubic"},
        ),
        (
            {"image_processor_type": "PoolFormerImageProcessor", "size": 224, "crop_size": 224},
            {"resize": 248, "crop": (224, 224), "resample": "bicubic"},
        ),
        (
            {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, "do_center_crop": False},
            {"resize": 256, "resample": "bicubic"},
        ),
        ({"do_resize": False, "size": 224, "do_reduce_labels": True}, {}),
    ],
)
def test_sizes_as_image_processors_mean_them(tmp_path, said, expected):
    assert read(tmp_path, **HALF, **said) == Preprocessing(**NORMAL, **expected)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"do_rescale": False},
        {"rescale_factor": 1 / 127.5, "rescale_offset": True},
        {"include_top": True},
        {"do_normalize": False},
        {"do_normalize": False, "do_rescale": False},
    ],
)
def test_normalisation_is_all_that_happens_to_bytes(tmp_path, said):
    mean, std = np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.3, 0.4])
    found = read(tmp_path, do_resize=False, image_mean=mean.tolist(), image_std=std.tolist(), **said)
    x = np.arange(256.0)[:, None]
    expected = x * said.get("rescale_factor", 1 / 255) if said.get("do_rescale", True) else x
    expected = expected - 1 if said.get("rescale_offset") else expected
    expected = (expected - mean) / std if said.get("do_normalize", True) else expected * np.ones(3)
    expected = expected / std if said.get("include_top") else expected
    ours = (x / 255 - np.array(found.mean or (0.0,))) / np.array(found.std or (1.0,)) * np.ones(3)
    assert np.allclose(ours, expected, rtol=1e-12, atol=1e-12)


def test_efficient_net_divides_twice_unless_it_says_otherwise(tmp_path):
    own = {"image_processor_type": "EfficientNetImageProcessor", "do_resize": False, "image_mean": [0.0]}
    assert read(tmp_path, **own, image_std=[0.5]).std == (0.25,)
    assert read(tmp_path, **own, image_std=[0.5], include_top=False).std == (0.5,)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"image_processor_type": "DonutImageProcessor"}, "the steps of a DonutImageProcessor are unknown"),
        (
            {"image_processor_type": "PoolFormerImageProcessor", "size": {"height": 9, "width": 9}, "crop_size": 9},
            "height and width, with a share",
        ),
        ({"do_pad": True}, "do_pad: unknown"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order"),
        ({"size": {"longest_edge": 800}}, "longest_edge"),
        ({"size": "large"}, "a size of"),
        ({"size": 0}, "none from 1"),
        ({"size": 224, "resample": 17}, "17"),
        ({}, "'size' is missing"),
        ({"do_resize": False, "image_mean": None}, "not a preprocessor_config.json"),
        ({"do_resize": False, "image_mean": ["a"]}, "not a preprocessor_config.json"),
        ({"image_processor_type": "CLIPImageProcessor", "size": 5}, "'crop_size' is missing"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path, said, problem):
    with pytest.raises(InputError, match=problem) as caught:
        read(tmp_path, **(HALF | said))
    assert "preprocessor_config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "[" * 100_000, '{"size": 1e999}'])
def test_files_that_are_none(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(InputError, match=r"p\.json"):
        read_preprocessing(tmp_path / "p.json")


# -- with networks ----------------------------------------------------------------------------------------------------


def test_a_network_preprocesses_files(tmp_path):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4)).eval()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(HALF | {"size": {"height": 8, "width": 8}}))
    Image.fromarray(PHOTO).save(tmp_path / "a.png")
    network = sp.load(module, torch.zeros(1, 3, 8, 8), preprocess=tmp_path / "preprocessor_config.json")
    result = sp.profile(network, tmp_path / "a.png", "box-blur:size=3")
    small = np.asarray(Image.fromarray(PHOTO).resize((8, 8), 2))
    with torch.inference_mode():
        expected = module(torch.from_numpy(first(small) / 127.5 - 1).float()[None])[0].double()
    assert np.allclose(result.curve.scores[0], expected, atol=1e-5)
    assert any("resized to 8 x 8 (bilinear)" in note for note in network.notes)
    (image,) = sp.read_images(network, str(tmp_path / "*.png"))
    assert torch.equal(image.pixels, result.query.image.pixels)
