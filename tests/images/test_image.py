"""Images from every kind of file, and the mistakes that files can hold."""

from __future__ import annotations

import gzip
import io
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from shakeproof.checker import Refused
from shakeproof.checker.picture import compared
from shakeproof.errors import InputError
from shakeproof.question import image_layout, parse_path, read_image

RGB = image_layout((1, 3, 4, 5))
GREY = image_layout((1, 1, 4, 5))
random = np.random.default_rng(0)
PIXELS = random.integers(0, 256, (4, 5, 3)).astype(np.uint8)


def test_pictures_are_scaled(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    image = read_image(str(tmp_path / "a.png")).fitted(RGB)
    assert torch.equal(image.pixels, torch.from_numpy(PIXELS.transpose(2, 0, 1) / 255))
    assert image.label is None


def test_grey_palette_16_bit_and_opaque_alpha(tmp_path):
    Image.fromarray(PIXELS[..., 0]).save(tmp_path / "grey.png")
    assert read_image(str(tmp_path / "grey.png")).fitted(GREY).pixels.shape == (1, 4, 5)
    deep = (PIXELS[..., 0].astype(np.uint16)) * 257
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert torch.allclose(
        read_image(str(tmp_path / "deep.png")).fitted(GREY).pixels, torch.from_numpy(PIXELS[None, ..., 0] / 255.0)
    )
    opaque = np.concatenate([PIXELS, np.full((4, 5, 1), 255, np.uint8)], 2)
    Image.fromarray(opaque).save(tmp_path / "opaque.png")
    assert read_image(str(tmp_path / "opaque.png")).fitted(RGB).pixels.shape == (3, 4, 5)
    opaque[0, 0, 3] = 10
    Image.fromarray(opaque).save(tmp_path / "glass.png")
    with pytest.raises(InputError, match="transparent"):
        read_image(str(tmp_path / "glass.png"))


@pytest.mark.parametrize("shape", [(3, 4, 5), (4, 5, 3), (1, 3, 4, 5), (60,), (1, 60)])
def test_arrays_in_every_layout(tmp_path, shape):
    picture = PIXELS.transpose(2, 0, 1) / 255.0
    array = picture.transpose(1, 2, 0) if shape == (4, 5, 3) else picture.reshape(shape)
    np.save(tmp_path / "a.npy", array)
    assert torch.equal(read_image(str(tmp_path / "a.npy")).fitted(RGB).pixels, torch.from_numpy(picture))


def test_archives(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.stack([PIXELS, PIXELS // 2]), y=np.array([7, 8], np.uint8))
    image = read_image(f"{tmp_path}/d.npz@1").fitted(RGB)
    assert image.label == 8
    assert torch.equal(image.pixels, torch.from_numpy((PIXELS // 2).transpose(2, 0, 1) / 255))
    np.savez(tmp_path / "none.npz", z=np.zeros(3))
    for bad, message in (("@2", "0 to 1"), ("@-1", "no image"), ("@x", "no image"), ("", "@0")):
        with pytest.raises(InputError, match=message):
            read_image(f"{tmp_path}/d.npz{bad}")
    with pytest.raises(InputError, match="no array 'x'"):
        read_image(f"{tmp_path}/none.npz@0")


def test_a_wrong_size_names_both(tmp_path):
    Image.fromarray(PIXELS[:3]).save(tmp_path / "a.png")
    with pytest.raises(InputError, match=r"3 x 3 x 5.*3 x 4 x 5"):
        read_image(str(tmp_path / "a.png")).fitted(RGB)
    # the same number of entries in another shape is still another picture
    np.save(tmp_path / "turned.npy", np.zeros((3, 5, 4)))
    with pytest.raises(InputError, match="3 x 5 x 4"):
        read_image(str(tmp_path / "turned.npy")).fitted(RGB)


@pytest.mark.parametrize("labels", [[1.7, 2.0], [[0, 1], [1, 0]], [3]])
def test_labels_must_be_one_whole_number_an_image(tmp_path, labels):
    np.savez(tmp_path / "d.npz", x=np.stack([PIXELS, PIXELS]), y=np.array(labels))
    with pytest.raises(InputError, match="one whole number"):
        read_image(f"{tmp_path}/d.npz@0")


def test_flat_arrays_are_in_the_networks_order(tmp_path):
    last = image_layout((1, 5, 5, 3))
    picture = random.uniform(size=(5, 5, 3))
    np.save(tmp_path / "flat.npy", picture.reshape(-1))
    found = read_image(str(tmp_path / "flat.npy")).fitted(last)
    assert torch.equal(found.pixels, torch.from_numpy(picture.transpose(2, 0, 1)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_pixels_must_be_finite(tmp_path, bad):
    array = np.zeros((3, 4, 5))
    array[0, 0, 0] = bad
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(InputError, match="NaN or infinite"):
        read_image(str(tmp_path / "a.npy")).fitted(RGB)


def test_unreadable_files(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY broken")
    (tmp_path / "broken.npz").write_bytes(b"PK broken")
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    for name in ("gone.png", "broken.png", "broken.npy", "broken.npz@0", "."):
        with pytest.raises(InputError):
            read_image(str(tmp_path / name))
    with pytest.raises(InputError, match="not numbers"):
        read_image(str(tmp_path / "words.npy")).fitted(RGB)


QUERY = """; a comment with (assert (<= X_0 99))
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const X_2 Real)
(declare-const X_3 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(declare-const Y_2 Real)
(assert (<= X_0 0.03))
(assert (>= X_0 0.0))
(assert (<= X_1 0.53))
(assert (>= X_1 0.47))
(assert (<= X_2 1.0))
(assert (>= X_2 0.98))
(assert (<= X_3 0.08))
(assert (>= X_3 0.02))
(assert (or
    (and (>= Y_0 Y_1))
    (and (>= Y_2 Y_1))
))
"""


def test_vnnlib_boxes_clipped_to_the_unit_interval(tmp_path):
    (tmp_path / "q.vnnlib.gz").write_bytes(gzip.compress(QUERY.encode()))
    image = read_image(str(tmp_path / "q.vnnlib.gz")).fitted(image_layout((1, 1, 2, 2)))
    assert image.label == 1
    assert image.pixels.flatten().tolist() == pytest.approx([0.0, 0.5, 1.0, 0.05], abs=1e-12)


def test_vnnlib_boxes_elsewhere_have_their_centre_in_the_middle(tmp_path):
    text = QUERY.replace("(>= X_0 0.0)", "(>= X_0 -0.01)").replace("(and (>= Y_0 Y_1))", "(and (<= Y_1 Y_0))")
    (tmp_path / "q.vnnlib").write_text(text)
    image = read_image(str(tmp_path / "q.vnnlib")).fitted(image_layout((1, 1, 2, 2)))
    assert image.label == 1
    assert image.pixels.flatten().tolist() == pytest.approx([0.01, 0.5, 0.99, 0.05])


def test_vnnlib_without_a_label_or_with_several_boxes(tmp_path):
    path = tmp_path / "q.vnnlib"
    path.write_text(QUERY.replace("(and (>= Y_2 Y_1))", "(and (>= Y_1 Y_2))"))
    assert read_image(str(path)).fitted(image_layout((1, 1, 2, 2))).label is None
    path.write_text(QUERY.replace("(and (>= Y_2 Y_1))", "(and (>= Y_2 Y_1) (<= X_0 0.01))"))
    with pytest.raises(InputError, match="several boxes"):
        read_image(str(path)).fitted(image_layout((1, 1, 2, 2)))


@pytest.mark.parametrize(
    ("shape", "image", "last"),
    [
        ((1, 3, 32, 32), (3, 32, 32), False),
        ((1, 32, 32, 3), (3, 32, 32), True),
        ((1, 28, 28), (1, 28, 28), False),
        ((1, 1, 28, 28), (1, 28, 28), False),
        ((1, 784), (1, 28, 28), False),
        ((1, 784, 1), (1, 28, 28), False),
        ((3072,), (3, 32, 32), False),
    ],
)
def test_layouts(shape, image, last):
    layout = image_layout(shape)
    assert (layout.image_shape, layout.channels_last) == (image, last)
    picture = torch.rand(image)
    assert layout.to_input(picture).shape == shape
    assert torch.equal(layout.from_input(layout.to_input(picture)), picture)


def test_flat_inputs_need_a_word():
    assert image_layout((1, 100)) is None
    assert image_layout((1, 100), (1, 10, 10)).image_shape == (1, 10, 10)
    with pytest.raises(InputError, match="does not fit"):
        image_layout((1, 100), (1, 9, 9))
    with pytest.raises(InputError, match="does not fit"):
        image_layout((1, 3, 8, 8), (1, 8, 8))


def saved(tmp_path, array) -> str:
    np.save(tmp_path / "a.npy", array)
    return str(tmp_path / "a.npy")


def test_whole_numbers_are_scaled_by_their_type(tmp_path):
    deep = PIXELS.astype(np.uint16) * 257
    for array in (PIXELS, deep):
        found = read_image(saved(tmp_path, array)).fitted(RGB).pixels
        assert torch.allclose(found, torch.from_numpy(PIXELS.transpose(2, 0, 1) / 255.0), atol=1e-15)
    assert read_image(saved(tmp_path, PIXELS > 99)).fitted(RGB).pixels.unique().tolist() == [0.0, 1.0]
    for kind in (np.int8, np.int64, np.uint32):
        with pytest.raises(InputError, match="do not say which of them is white") as caught:
            read_image(saved(tmp_path, (PIXELS // 2).astype(kind))).fitted(RGB)
        assert caught.value.option == "scale"


def test_floats_beyond_black_and_white_are_not_guessed_at(tmp_path):
    wavy = PIXELS / 255.0 * 1.15 - 0.075
    assert torch.equal(read_image(saved(tmp_path, wavy)).fitted(RGB).pixels, torch.from_numpy(wavy.transpose(2, 0, 1)))
    for array in (PIXELS.astype(np.float32), PIXELS / 127.5 - 1, PIXELS / 127.5):
        with pytest.raises(InputError, match="0 is black and 1 is white") as caught:
            read_image(saved(tmp_path, array)).fitted(RGB)
        assert caught.value.option == "scale"


def test_misfits_say_what_to_do(tmp_path):
    for array, said, option in (
        (PIXELS[..., 0], "convert it to 3 channels", "colour"),
        (np.zeros((4, 5, 1), np.uint8), "convert it to 3 channels", "colour"),
        (PIXELS[:3], "resize or crop it", "resize"),
        (np.zeros((9, 4, 5), np.uint8), "choose one: .*a.npy@0", None),
    ):
        with pytest.raises(InputError, match=said) as caught:
            read_image(saved(tmp_path, array)).fitted(RGB)
        assert caught.value.option == option


@pytest.mark.parametrize("first", ["x", "x.npy"])
def test_an_archive_with_one_name_twice_is_refused(tmp_path, first):
    """Which of both is the picture would be up to who reads it; numpy calls both of x and x.npy x."""
    with zipfile.ZipFile(tmp_path / "two.npz", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in ((first, 0.0), ("x.npy", 1.0)):
            held = io.BytesIO()
            np.save(held, np.full((2, 1, 4, 4), value))
            archive.writestr(name, held.getvalue())
    with pytest.raises(InputError, match="it contains one name twice"):
        read_image(f"{tmp_path / 'two.npz'}@0")
    with pytest.raises(Refused, match="holds one name twice"):
        compared(Path(f"{tmp_path / 'two.npz'}@0"), np.zeros((1, 4, 4)), {"channels_last": False}, [1, 1, 4, 4])
    with pytest.raises(InputError, match="it contains one name twice"):
        parse_path(f"custom:file={tmp_path / 'two.npz'},index=0")
