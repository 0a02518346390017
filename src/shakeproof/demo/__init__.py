"""The bundled classifier of traffic-sign-like pictures, and pictures to try it on (made by tools/make_demo.py).

And four networks that look at roads: a segmenter, a detector, a regressor, a binary classifier (tools/make_road.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from shakeproof.files import write_whole

FOLDER = Path(__file__).parent
MODEL = FOLDER / "signs.onnx"
ROAD = FOLDER / "road"
CLASSES = (
    "stop",
    "no-entry",
    "yield",
    "priority",
    "limit-30",
    "limit-50",
    "keep-right",
    "turn-left",
    "warning",
    "parking",
)
# The paper's six perturbations, at two sizes.
PERTURBATIONS = tuple(
    text.format(size)
    for size in (7, 11)
    for text in (
        "box-blur:size={}",
        "sharpen:size={}",
        "motion-blur:size={},angle=0",
        "motion-blur:size={},angle=45",
        "motion-blur:size={},angle=90",
        "motion-blur:size={},angle=135",
    )
)
CAMPAIGN = """\
# Every image of labels.csv under five perturbations. Run: shakeproof campaign signs.toml
models = ["model.onnx"]
certificates = true  # one for each answer; `shakeproof report` checks them
strengths = [0.2, 0.4, 0.6, 0.8, 1.0]
perturbations = [
    "box-blur:size=5",
    { family = "motion-blur", size = 9, angle = [0, 45, 90, 135] },
]

[images]
csv = "labels.csv"

[requirement]
id = "SHAKE-1"
text = "Signs are read under camera shake up to half of a 9-pixel motion blur."
"""


def images() -> Sequence[tuple[Path, int]]:
    """The bundled pictures and their classes."""
    return [(path, CLASSES.index(path.name.split(".")[0])) for path in sorted((FOLDER / "images").glob("*.png"))]


def write_files(folder: Path) -> dict[str, str]:
    """Write the model, the pictures and a campaign file into a folder; the names of the files, and what each holds."""
    import numpy as np
    from PIL import Image

    pictures = {path.name.replace(".1.", "."): (path, label) for path, label in images()}
    arrays = BytesIO()
    pixels = np.stack([np.asarray(Image.open(path)) for path, _ in pictures.values()])
    np.savez(arrays, x=pixels, y=np.array([label for _, label in pictures.values()]))
    files = {name: path.read_bytes() for name, (path, _) in pictures.items()} | {
        "model.onnx": MODEL.read_bytes(),
        "data.npz": arrays.getvalue(),
        "labels.csv": "".join(f"{name},{CLASSES[label]}\n" for name, (_, label) in pictures.items()).encode(),
        "classes.txt": "".join(f"{name}\n" for name in CLASSES).encode(),
        "signs.toml": CAMPAIGN.encode(),
    }
    files |= {f"road/{path.name}": path.read_bytes() for path in sorted(ROAD.glob("*.*"))}
    write_whole({folder / name: data for name, data in files.items()})
    return {
        "model.onnx": f"the classifier: {len(CLASSES)} classes of traffic signs",
        ", ".join(pictures): f"{len(pictures)} images",
        "data.npz": "the same images and their labels as arrays x and y",
        "labels.csv": "the class of each image",
        "classes.txt": "the name of each class",
        "signs.toml": "a campaign: all images under five perturbations",
        "road": "networks that segment, detect, steer and decide, and drawn roads for them",
    }
