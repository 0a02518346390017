"""Pictures as people have them, by the command: folders, patterns, archives, arrays by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from warm import complaint, run

from shakeproof import demo

MODEL = str(demo.MODEL)
BLUR = ("-p", "box-blur:size=3")
PIXELS = np.stack([np.asarray(Image.open(path)) for path, _ in demo.images()])
LABELS = np.array([label for _, label in demo.images()])


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(*words: str | Path, model: str = MODEL) -> list[dict]:
    done = run("profile", model, *words, *BLUR, "--json")
    assert done.stderr == "", done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_folders_and_patterns():
    Path("photos").mkdir()
    for path, _ in demo.images()[:3]:
        shutil.copy(path, "photos")
    names = [f"photos/{path.name}" for path, _ in demo.images()[:3]]
    assert [row["image"] for row in rows("photos")] == sorted(names)
    assert [row["image"] for row in rows("photos/*.png")] == sorted(names)
    (Path("photos") / "broken.png").write_text("no picture")
    done = run("profile", MODEL, "photos", *BLUR, "--json")
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr.count("\n") == 1
    assert "photos/broken.png" in done.stderr


def test_archives_slices_and_names_of_arrays():
    np.savez_compressed("d.npz", x_train=PIXELS[:1], y_train=LABELS[:1], x_test=PIXELS, y_test=LABELS)
    found = rows("d.npz@2:4", "d.npz@0")
    assert [(row["image"], row["label"]) for row in found] == [(f"d.npz@{i}", int(LABELS[i])) for i in (2, 3, 0)]
    shown = run("profile", MODEL, "d.npz@2:4", *BLUR).stdout
    assert shown.count("note: d.npz: the pictures are 'x_test', the labels 'y_test'") == 1
    assert len(rows("d.npz", "--array", "x_train", "--labels", "y_train")) == 1
    message = complaint("profile", MODEL, "d.npz", *BLUR, "--array", "x")
    assert "has no array 'x', but x_train (1 x 32 x 32 x 3, uint8), y_train (1, int64), x_test" in message
    assert "(--array NAME --labels NAME)" in message


def test_export_takes_one_picture():
    np.save("stack.npy", PIXELS)
    words = ("-p", "identity", "--strength", "1", "-o", "out")
    assert "several images" in complaint("export", MODEL, "stack.npy", *words)
    assert not Path("out").exists()
    assert run("export", MODEL, "stack.npy@3", *words).returncode == 0


def photo(path: str, label: int = 0, factor: int = 2, **how: object) -> None:
    """A sign, larger than the network takes it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(PIXELS[[*LABELS].index(label)])
    picture.resize((32 * factor, 32 * factor), Image.Resampling.BICUBIC).save(path, **how)


def test_pictures_of_another_size_or_colour():
    photo("a.jpg", quality=95)
    message = complaint("profile", MODEL, "a.jpg", *BLUR)
    assert "the image is 3 x 64 x 64, the network wants 3 x 32 x 32" in message
    assert message.endswith("resize or crop it (--resize H,W and --crop H,W)\n")
    shown = run("profile", MODEL, "a.jpg", *BLUR, "--resize", "40,bicubic", "--crop", "32").stdout
    said = " ".join(shown.split())
    assert "pictures are resized to a shorter side of 40 (bicubic), cropped to the central 32 x 32" in said
    assert rows("a.jpg", "--resize", "32,32")[0]["label"] == 0
    Image.open("a.jpg").convert("L").resize((32, 32)).save("grey.png")
    assert complaint("profile", MODEL, "grey.png", *BLUR).endswith("(--colour rgb or --colour grey)\n")
    assert len(rows("grey.png", "--colour", "rgb")) == 1


def test_scales():
    np.save("bytes.npy", PIXELS[0].astype(np.float32))
    message = complaint("profile", MODEL, "bytes.npy", *BLUR)
    assert "(--scale 0..255; --scale 0..1 takes them as they are)" in message
    (found,) = rows("bytes.npy", "--scale", "0..255")
    np.save("plain.npy", PIXELS[0])
    assert found["min_margin"] == pytest.approx(rows("plain.npy")[0]["min_margin"], rel=1e-12)
    assert found["min_margin"] != rows("bytes.npy", "--scale", "0..1")[0]["min_margin"]
    assert "black and white" in complaint("profile", MODEL, "bytes.npy", *BLUR, "--scale", "255")


def test_normalisation_by_name_and_by_file():
    np.save("a.npy", PIXELS[0])
    words = ("a.npy", "--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225")
    expected = rows(*words)[0]["min_margin"]
    for preset in (("--mean", "imagenet"), ("--std", "imagenet"), ("--mean", "imagenet", "--std", "imagenet")):
        assert rows("a.npy", *preset)[0]["min_margin"] == expected
    config = {
        "size": {"height": 32, "width": 32},
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    Path("preprocessor_config.json").write_text(json.dumps(config))
    assert rows("a.npy", "--preprocess", "preprocessor_config.json")[0]["min_margin"] == expected
    assert rows("a.npy", "--preprocess", ".")[0]["min_margin"] == expected
    said = run("profile", MODEL, "a.npy", *BLUR, "--preprocess", ".").stdout
    assert "(x - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]" in " ".join(said.split())
    message = complaint("profile", MODEL, "a.npy", *BLUR, "--preprocess", ".", "--mean", "half", "--crop", "3")
    assert "omit --crop and --mean" in message
    assert "nor one of imagenet" in complaint("profile", MODEL, "a.npy", *BLUR, "--mean", "imagnet")
    for word in ("32,32,32", "x", "", "-3", "32,magic"):
        complaint("profile", MODEL, "a.npy", *BLUR, "--resize", word)


def nameless() -> str:
    """The bundled classifier, without the names in its metadata."""
    model = onnx.load(MODEL)
    del model.metadata_props[:]
    onnx.save(model, "nameless.onnx")
    return "nameless.onnx"


def test_class_names_from_a_file():
    Path("names.txt").write_text("\n".join(demo.CLASSES))
    np.save("a.npy", PIXELS[[*LABELS].index(4)])
    done = run("profile", MODEL, "a.npy", "-p", "box-blur:size=9", "--classes", "names.txt", "--label", "Limit 30",
               "--plot", "p.svg", "--counterexample", "c.svg")  # fmt: skip
    assert done.returncode == 1
    assert "limit-30 ▸" in done.stdout
    assert rows("a.npy", "--classes", "names.txt", "--label", "limit-30")[0]["label"] == 4
    assert "stop" in complaint("profile", MODEL, "a.npy", *BLUR, "--classes", "names.txt", "--label", "stpo")
    assert "(--classes FILE)" in complaint("profile", nameless(), "a.npy", *BLUR, "--label", "stop")
    Path("few.txt").write_text("a\nb")
    assert "has 10 classes, and 2 names" in complaint("profile", MODEL, "a.npy", *BLUR, "--classes", "few.txt")


def test_class_names_from_the_models_metadata():
    model = onnx.load(nameless())
    onnx.helper.set_model_props(model, {"names": repr(dict(enumerate(demo.CLASSES)))})
    onnx.save(model, "named.onnx")
    np.save("a.npy", PIXELS[[*LABELS].index(2)])
    done = run("verify", "named.onnx", "a.npy", *BLUR, "--strength", "1", "--label", "yield")
    assert done.returncode == 0
    assert " yield " in done.stdout


def test_labels_from_subfolders():
    for label in range(10):
        photo(f"set/{demo.CLASSES[label]}/a.png", label, factor=1)
    found = rows("set", model=nameless())
    order = sorted(demo.CLASSES)
    assert [(row["image"], row["label"]) for row in found] == [(f"set/{name}/a.png", i) for i, name in enumerate(order)]
    Path("names.json").write_text(json.dumps(demo.CLASSES))
    found = rows("set", "--classes", "names.json", model=nameless())
    assert [row["label"] for row in found] == [demo.CLASSES.index(name) for name in order]
    assert {row["status"] for row in found} == {"safe"}
    assert [row["label"] for row in rows("set")] == [row["label"] for row in found]
    shown = run("profile", MODEL, "set", *BLUR).stdout
    assert shown.count("note: set: labels are the classes that subfolders are named after") == 1


def test_photographs_are_turned_upright_and_that_is_said():
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("a", "b"):
        Image.fromarray(np.ascontiguousarray(np.rot90(PIXELS[0]))).save(f"{name}.png", exif=exif)
    np.save("plain.npy", PIXELS[0])
    assert rows("a.png")[0]["min_margin"] == rows("plain.npy")[0]["min_margin"]
    assert run("profile", MODEL, "a.png", "b.png", *BLUR).stdout.count("EXIF orientation") == 1
