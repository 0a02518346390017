"""How pixels lie in a model's input and in an image file: one rule, the prover's as well, and nothing else holds."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from certificates import safe
from models import model
from onnx import helper

from shakeproof import checker
from shakeproof.checker.picture import PictureLayout, compared, input_shape, layout, require_layout
from shakeproof.question import RawImage, image_layout

SIZES = (1, 2, 3, 4, 5, 28)


def test_the_rule_is_the_provers():
    """Two programs, written apart, read a model's input in the same way."""
    shapes = [(1, c, h, w) for c in SIZES for h in SIZES for w in SIZES] + [(1, h, w) for h in SIZES for w in SIZES]
    for shape in shapes:
        theirs, own = image_layout(shape), layout(shape)
        if theirs is None or theirs.note:
            assert own is None
        else:
            assert own == PictureLayout(theirs.image_shape, theirs.channels_last), shape


def test_files_are_read_as_the_prover_reads_them():
    random = np.random.default_rng(0)
    for c in (1, 3, 5):
        for last in (False, True):
            picture = random.integers(0, 256, (c, 6, 7), dtype=np.uint8)
            shape = [1, 6, 7, c] if last else [1, c, 6, 7]
            theirs = image_layout(shape)
            if theirs is None or theirs.image_shape != (c, 6, 7):
                continue
            moved = picture.transpose(1, 2, 0)
            files = [picture, moved, picture[None], moved[None], (moved if last else picture).ravel()]
            for file in files + ([picture[0]] if c == 1 else []):
                pixels = RawImage("file", file).fitted(theirs).pixels.numpy()
                assert (pixels == picture / 255).all()
                found = _compared(file, pixels, theirs.channels_last, shape)
                assert found == "pixels"


def _compared(file: np.ndarray, pixels: np.ndarray, channels_last: bool, shape: Sequence[int]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "file.npy", file)
        return compared(Path(folder) / "file.npy", pixels, {"channels_last": channels_last}, shape)[0]


GREY = np.random.default_rng(1).integers(0, 256, (28, 28), dtype=np.uint8)
COLOUR = np.random.default_rng(2).integers(0, 256, (3, 6, 7), dtype=np.uint8)
# Other pictures that are made of the same numbers: file, certificate's pixels, channels last, the model's input.
OTHERS = {
    "transposed": (GREY, GREY.T[None], False, [1, 1, 28, 28]),
    "rows as channels": (GREY, GREY[:, None], False, [1, 1, 28, 28]),
    "columns as channels": (GREY, GREY.T[:, None], True, [1, 28, 28, 1]),
    "transposed rows as channels": (GREY, GREY.T.reshape(28, 1, 28), False, [1, 1, 28, 28]),
    "colours as rows": (COLOUR, np.moveaxis(COLOUR, -1, 0), True, [1, 3, 6, 7]),
    "colours in another order": (COLOUR, COLOUR[::-1], False, [1, 3, 6, 7]),
    "a flat input read as rows": (GREY, GREY[:, None], False, [1, 784]),
    "a flat input transposed": (GREY, GREY.T[None], False, [1, 784]),
    "a flat file of another width": (GREY.ravel(), GREY.reshape(1, 14, 56), False, [1, 784]),
    "a flat input, channels last": (COLOUR, COLOUR, True, [1, 126]),
    "a flat input in another order": (COLOUR.transpose(1, 2, 0).ravel(), COLOUR, False, [1, 126]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_pictures_of_the_same_numbers_are_refused(name):
    file, pixels, last, shape = OTHERS[name]
    with pytest.raises(checker.Refused):
        _compared(file, pixels / 255, last, shape)


def test_a_flat_file_for_a_flat_input_is_what_the_certificate_says(tmp_path):
    """Nothing else says it; the outcome does."""
    np.save(tmp_path / "flat.npy", COLOUR.ravel())
    word, said = compared(tmp_path / "flat.npy", COLOUR / 255, {"channels_last": False}, [1, 126])
    assert word == "pixels"
    assert "only the certificate says" in said


def test_open_sizes_are_the_pictures():
    assert input_shape([None, 1, None, None], (1, 8, 9)) == [1, 1, 8, 9]
    assert input_shape([None, None, None, 3], (3, 8, 9)) == [1, 8, 9, 3]
    assert input_shape([None, None], (1, 8, 9)) == [1, 72]
    assert input_shape([72], (1, 8, 9)) == [72]
    for stated in ([2, 1, 8, 9], [None, 2, None, None], [None] * 5, [1, 1, 8, 8], [0, 1, 8, 9]):
        with pytest.raises(checker.Refused, match="fit"):
            input_shape(stated, (1, 8, 9))
    with pytest.raises(checker.Refused, match="model's input"):
        require_layout(PictureLayout((8, 1, 9)), [1, 1, 8, 9])


def test_a_digest_is_not_called_a_comparison_of_pixels(tmp_path):
    nodes = [helper.make_node("Flatten", ["x"], ["y"])]
    data, pixels = model(nodes, (1, 1, 1, 2)).SerializeToString(), np.array([[[1.0, 0.25]]])
    (tmp_path / "picture.png").write_bytes(b"as it is")
    np.save(tmp_path / "picture.npy", pixels)
    digest = hashlib.sha256(b"as it is").hexdigest()
    given = safe(data, pixels, "brightness:max=0.1", [0.0, 1.0], label=0, file_sha256=digest)
    outcomes = {
        word: checker.check(given, data, None if word == "nothing" else tmp_path / file)
        for word, file in (("pixels", "picture.npy"), ("digest", "picture.png"), ("nothing", ""))
    }
    for word, outcome in outcomes.items():
        assert outcome.accepted
        assert outcome.details["image_compared"] == word
        assert "1 x 1 x 2 (channels x height x width)" in outcome.sentence
    assert "were not read" in outcomes["digest"].sentence
