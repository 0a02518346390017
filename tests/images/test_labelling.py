"""Labels from the names of subfolders."""

from __future__ import annotations

import pytest
from PIL import Image

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import InputError
from shakeproof.model.loading import subfolder_label
from shakeproof.question import ClassNames, Subfolder

NAMED = ClassNames.of(["stop", "speed limit", "yield"])


def labels(*siblings: str, names: ClassNames = NAMED, classes: int = 3) -> tuple[list[int], str]:
    found = [subfolder_label(Subfolder(name, "set", siblings), names, classes) for name in siblings]
    (note,) = {note for _, note in found}
    return [label for label, _ in found], note


def test_names_numbers_and_places():
    assert labels("speed_limit", "stop") == ([1, 0], "set: labels are the classes that subfolders are named after")
    assert labels("00002", "1", names=ClassNames()) == (
        [2, 1],
        "set: labels are the numbers that subfolders are named by",
    )
    assert labels("ant", "bee", "cow") == (
        [0, 1, 2],
        "set: labels are the places of subfolders in the alphabet (0 ant, 1 bee, 2 cow)",
    )
    places, note = labels("ant", "bee")
    assert places == [0, 1]
    assert "the network has 3 classes" in note


def test_what_cannot_be_meant():
    with pytest.raises(InputError, match="no class is called elephant, as subfolders are"):
        labels("elephant", "stop")
    with pytest.raises(InputError, match="has 4 subfolders, the network 3 classes"):
        labels("a", "b", "c", "d")
    with pytest.raises(InputError, match="numbered up to 3, the network's classes from 0 to 2"):
        labels("1", "2", "3", names=ClassNames())


def test_folders_as_torchvision_reads_them(tmp_path):
    for name in sorted(demo.CLASSES):
        (tmp_path / name).mkdir()
    for path, label in demo.images():
        Image.open(path).save(tmp_path / demo.CLASSES[label] / "a.jpg", quality=95)
    nameless = sp.load(demo.MODEL, classes=[])
    found = list(sp.read_images(nameless, str(tmp_path)))
    assert [image.label for image in found] == [*range(10)]
    assert "(0 keep-right, 1 limit-30" in found[0].notes[0]
    named = sp.load(demo.MODEL, classes=demo.CLASSES)
    for image in sp.read_images(named, str(tmp_path)):
        assert demo.CLASSES[image.label] in image.name
    result = sp.profile(named, demo.images()[0][0], "box-blur:size=3", label=demo.CLASSES[demo.images()[0][1]])
    assert result.status == "safe"
    with pytest.raises(InputError, match="has 10 classes, and 2 names"):
        sp.load(demo.MODEL, classes=["a", "b"])
