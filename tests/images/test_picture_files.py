"""Picture files as cameras and programs write them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from shakeproof.errors import InputError
from shakeproof.question import Preprocessing, image_layout, read_image

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 5, 3)).astype(np.uint8)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright_as_their_camera_says(tmp_path, orientation):
    """What is stored is turned or mirrored such that a viewer who follows the tag shows PIXELS."""
    turns = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: np.rot90(a, -1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(turns[orientation](PIXELS))).save(tmp_path / "a.png", exif=exif)
    raw = read_image(str(tmp_path / "a.png"))
    assert np.array_equal(raw.array, PIXELS.transpose(2, 0, 1))
    assert [*raw.notes] == ["pictures are turned upright where their EXIF orientation says so"][: orientation != 1]
    assert raw.fitted(image_layout((1, 3, 4, 5))).notes == raw.notes


def test_16_bits_cmyk_and_palettes(tmp_path):
    deep = np.array([[0, 1, 32768, 65535]] * 2, np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    Image.fromarray(deep).save(tmp_path / "deep.tif")
    for name in ("deep.png", "deep.tif"):
        found = read_image(str(tmp_path / name)).fitted(image_layout((1, 1, 2, 4))).pixels
        assert torch.equal(found, torch.from_numpy(deep[None] / 65535))
    Image.fromarray(PIXELS).convert("CMYK").save(tmp_path / "c.tif")
    assert np.array_equal(read_image(str(tmp_path / "c.tif")).array, PIXELS.transpose(2, 0, 1))
    palette = Image.fromarray(PIXELS).quantize(16)
    palette.save(tmp_path / "p.png")
    shown = np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(read_image(str(tmp_path / "p.png")).array, shown)
    Image.fromarray(np.array([[0, 70_000]], np.int32)).save(tmp_path / "deeper.tif")
    with pytest.raises(InputError, match="more than 16 bits"):
        read_image(str(tmp_path / "deeper.tif"))


@pytest.mark.parametrize(("height", "width"), [(3, 7), (4, 7), (7, 3), (4, 4), (3, 3)])
def test_a_few_rows_are_no_channels(tmp_path, height, width):
    colours = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)
    Image.fromarray(colours).save(tmp_path / "rgb.png")
    Image.fromarray(colours[..., 0]).save(tmp_path / "grey.png")
    for name, channels in (("rgb", 3), ("grey", 1)):
        raw = read_image(str(tmp_path / f"{name}.png"))
        assert raw.own_shape() == (channels, height, width)
        for moving in (Preprocessing(), Preprocessing(crop=(height, width))):
            found = raw.fitted(image_layout((1, channels, height, width)), moving).pixels
            assert np.array_equal(found.numpy(), colours.transpose(2, 0, 1)[:channels] / 255)


def test_the_first_of_several_frames(tmp_path):
    frames = [Image.new("L", (4, 4), colour) for colour in (0, 255)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    raw = read_image(str(tmp_path / "a.gif"))
    assert raw.array.max() == 0
    assert raw.notes == ("of pictures with several frames, the first is taken",)
