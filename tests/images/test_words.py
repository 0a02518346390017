"""What words stand for: folders, patterns, archives and slices, and what cannot be found."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from shakeproof.errors import InputError
from shakeproof.question import read_image, sources

random = np.random.default_rng(0)
PIXELS = random.integers(0, 256, (6, 4, 5, 3)).astype(np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9])


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def picture(path, number: int = 0) -> None:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    Image.fromarray(PIXELS[number]).save(path)


def names(*words: str, **chosen: str) -> list[str]:
    return [source.name for source in sources(words, **chosen)]


def problem(word: str, **chosen: str) -> str:
    """What is wrong with the one source that a word gives; it is found out about only when it is read."""
    (source,) = sources([word], **chosen)
    assert source.name == word
    with pytest.raises(InputError) as caught:
        source.read()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_folders_and_patterns():
    for number, name in enumerate(("b.png", "a.JPG", "notes.txt", ".hidden.png", "c.bmp")):
        if name.endswith("txt"):
            os.makedirs("photos", exist_ok=True)
            open(f"photos/{name}", "w").close()
        else:
            picture(f"photos/{name}", number)
    assert names("photos") == names("photos/") == ["photos/a.JPG", "photos/b.png", "photos/c.bmp"]
    assert names("photos/*.png", "photos/?.bmp") == ["photos/b.png", "photos/c.bmp"]
    assert names("**/*.bmp") == ["photos/c.bmp"]
    assert [source.subfolder for source in sources(["photos"])] == [None] * 3
    (source,) = sources(["photos/b*"])
    assert np.array_equal(source.read().array, PIXELS[0].transpose(2, 0, 1))


def test_subfolders_are_classes():
    for path in ("set/dog/1.png", "set/cat/2.png", "set/cat/deep/1.png", "set/.git/3.png"):
        picture(path)
    os.mkdir("set/empty")
    found = list(sources(["set"]))
    assert [source.name for source in found] == ["set/cat/2.png", "set/cat/deep/1.png", "set/dog/1.png"]
    assert [source.subfolder.name for source in found] == ["cat", "cat", "dog"]
    assert found[0].subfolder.siblings == ("cat", "dog", "empty")
    assert found[0].subfolder.folder == "set"
    picture("set/loose.png")
    assert "pictures and subfolders" in problem("set")


def test_names_are_what_they_are():
    """A file's own name comes first, whatever characters are in it."""
    picture("d.npz@dir/i.png")
    picture("odd[1].png")
    assert names("d.npz@dir/i.png", "odd[1].png", "d.npz@dir") == ["d.npz@dir/i.png", "odd[1].png", "d.npz@dir/i.png"]
    assert np.array_equal(read_image("odd[1].png").array, PIXELS[0].transpose(2, 0, 1))


def test_archives_and_slices():
    np.savez_compressed("d.npz", x=PIXELS, y=LABELS)
    assert names("d.npz") == [f"d.npz@{i}" for i in range(6)]
    assert names("d.npz@1:3", "d.npz@5", "d.npz@:2", "d.npz@::4") == [f"d.npz@{i}" for i in (1, 2, 5, 0, 1, 0, 4)]
    assert names("d.npz@4:99") == ["d.npz@4", "d.npz@5"]
    for place in (5, 0, 3, 3):  # in any order
        raw = read_image(f"d.npz@{place}")
        assert np.array_equal(raw.array, PIXELS[place])
        assert raw.label == LABELS[place]
        assert raw.notes == ()
    found = list(sources(["d.npz@2:5", "d.npz@0"]))
    assert [source.read().label for source in reversed(found)] == [3, 5, 1, 4]
    assert [np.array_equal(source.read().array, PIXELS[i]) for source, i in zip(found, (2, 3, 4, 0), strict=True)]
    for bad in ("6", "-1", "x", "", "4:2", "1:2:0", "1.5", "9" * 5000, "0:1:1:1", "dir/i.png"):
        assert "no image" in problem(f"d.npz@{bad}")


def test_stacks_in_npy_files():
    np.save("stack.npy", PIXELS)
    np.save("grey.npy", PIXELS[..., 0])
    np.save("turned.npy", np.asfortranarray(PIXELS))
    np.save("one.npy", PIXELS[:1])
    assert names("stack.npy") == [f"stack.npy@{i}" for i in range(6)]
    assert names("grey.npy", "one.npy") == ["grey.npy", "one.npy"]
    for word, expected in (
        ("stack.npy@3", PIXELS[3]),
        ("turned.npy@4", PIXELS[4]),
        ("grey.npy@1", PIXELS[1, ..., 0]),
        ("one.npy", PIXELS[:1]),
        ("one.npy@0", PIXELS[0]),
    ):
        raw = read_image(word)
        assert np.array_equal(raw.array, expected)
        assert raw.label is None
    np.save("flat.npy", np.zeros(7))
    assert "not a list of images" in problem("flat.npy@0")


def test_arrays_by_name():
    np.savez("mnist.npz", x_train=PIXELS, y_train=LABELS, x_test=PIXELS[:2], y_test=LABELS[:2, None])
    raw = read_image("mnist.npz@1")
    assert raw.label == 1
    assert raw.notes == ("mnist.npz: the pictures are 'x_test', the labels 'y_test'",)
    raw = read_image("mnist.npz@5", array="x_train", labels="y_train")
    assert (raw.label, len(names("mnist.npz", array="x_train"))) == (9, 6)
    assert read_image("mnist.npz@5", array="x_train").label is None
    message = problem("mnist.npz", array="pictures")
    assert "no array 'pictures'" in message
    assert "x_test (2 x 4 x 5 x 3, uint8), y_test (2 x 1, int64)" in message
    assert "y_train' (6, int64) must hold one whole number" in problem("mnist.npz@0", labels="y_train")


def test_arrays_that_are_not_plainly_meant():
    np.savez("two.npz", x=PIXELS, images=PIXELS)
    np.savez("strange.npz", first=PIXELS, second=np.array([{}], dtype=object))
    np.savez("empty.npz")
    np.savez("none.npz", x=PIXELS[:0])
    assert "several arrays" in problem("two.npz")
    assert "first (6 x 4 x 5 x 3, uint8), second (no array of numbers)" in problem("strange.npz@0")
    assert read_image("strange.npz@2", array="first").label is None
    assert "no arrays" in problem("empty.npz")
    assert "it has no images" in problem("none.npz")
    np.savez("many.npz", x=np.zeros((20_000_000, 0, 1), np.uint8))
    assert "many.npz@0:1000" in problem("many.npz")


def test_one_bad_word_leaves_the_others():
    picture("a.png")
    found = list(sources(["gone.png", "a.png", "gone*.png", "gone.npz", "gone.npz@1"]))
    assert [source.name for source in found] == ["gone.png", "a.png", "gone*.png", "gone.npz", "gone.npz@1"]
    assert np.array_equal(found[1].read().array, PIXELS[0].transpose(2, 0, 1))
    assert "No such file" in problem("gone.png")
    assert "no picture matches" in problem("gone*.png")
    assert "No such file" in problem("gone.npz@1")
    os.mkdir("empty")
    assert "without pictures" in problem("empty")


def test_nothing_is_read_before_it_is_asked_for():
    os.mkdir("many")
    for number in range(300):
        open(f"many/{number:03}.png", "wb").close()
    picture("many/000.png")
    found = list(sources(["many"]))
    assert len(found) == 300
    assert np.array_equal(found[0].read().array, PIXELS[0].transpose(2, 0, 1))
    with pytest.raises(InputError, match=r"many/001\.png"):
        found[1].read()


def test_one_image_is_meant():
    np.save("stack.npy", PIXELS)
    with pytest.raises(InputError, match=r"several images; choose one, e\.g\. stack\.npy@0"):
        read_image("stack.npy")
