"""Pictures as people have them, by the command: folders, patterns, archives, arrays by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
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


def rows(*words: str | Path) -> list[dict]:
    done = run("profile", MODEL, *words, *BLUR, "--json")
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
