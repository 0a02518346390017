"""Campaign files: what they mean, and that all that is wrong with one is said before anything runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from shakeproof import demo
from shakeproof.errors import InputError
from shakeproof.store import StoreWriter, read_campaign, register

WHOLE = """
name = "signs"
store = "answers/s.db"
models = ["signs.onnx"]
strengths = [1, 0.5]
certificates = true
perturbations = [
    "identity",
    { family = "motion-blur", size = [3, 4], angle = [0, 22.5] },
    { family = "custom", file = "kernel.npy", normalise = true, clip = "0..1" },
]
[images]
paths = ["photos/*.png", "photos/stop.1.png"]
[preprocessing]
resize = [32, 32]
mean = "half"
[network]
classes = "names.txt"
[analysis]
timeout = 30
memory = 1.5
method = "exact"
[requirement]
id = "R-7"
text = "Signs are read up to a shake of half a motion blur."
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    shutil.copy(demo.MODEL, tmp_path / "signs.onnx")
    (tmp_path / "photos").mkdir()
    for path, _ in demo.images()[:3]:
        shutil.copy(path, tmp_path / "photos")
    shutil.copy(demo.FOLDER / "images" / "stop.1.png", tmp_path / "photos")
    np.save(tmp_path / "kernel.npy", np.ones((3, 3)))
    (tmp_path / "names.txt").write_text("\n".join(demo.CLASSES))
    return tmp_path


def written(folder: Path, text: str) -> Path:
    (folder / "c.toml").write_text(text)
    return folder / "c.toml"


def said_of(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        read_campaign(written(folder, text))
    assert "\n" not in str(caught.value)
    assert "c.toml" in str(caught.value) or str(folder) in str(caught.value)
    return str(caught.value)


def test_a_whole_file(folder):
    found = read_campaign(written(folder, WHOLE))
    assert (found.name, found.store) == ("signs", folder / "answers" / "s.db")
    assert found.strengths == (0.5, 1.0)
    assert found.reach == 1.0
    assert [str(kernel) for kernel in found.perturbations] == [
        "identity",
        *(f"motion-blur:size={size},angle={angle}" for size in (3, 4) for angle in ("0", "22.5")),
        f"custom:file={folder}/kernel.npy,normalise=yes,clip=0..1",
    ]
    (asked,) = found.asked
    names = [Path(source.name).name for source in asked.sources]
    assert (asked.model, len(names), names[-1]) == (str(folder / "signs.onnx"), 5, "stop.1.png")
    assert found.preprocessing.resize == (32, 32)
    assert (found.preprocessing.mean, found.preprocessing.std) == ((0.5,), (0.5,))
    assert (found.settings.timeout, found.settings.memory, found.settings.method) == (30, 1.5, "exact")
    assert not found.settings.whole_curve
    assert found.certificates == 300.0
    assert found.class_names.words[0] == ("stop",)
    assert found.requirement.id == "R-7"


def test_the_least_that_a_file_may_say(folder, monkeypatch):
    text = 'models = "signs.onnx"\nperturbations = ["box-blur:size=3"]\nimages.paths = "photos"'
    found = read_campaign(written(folder, text))
    assert (found.name, found.store, found.strengths) == ("c", folder / "c.db", (1.0,))
    assert found.certificates is None
    monkeypatch.chdir(folder)
    found = read_campaign("c.toml")
    assert found.asked[0].model == "signs.onnx"  # as one would type it


MINIMAL = 'models = ["signs.onnx"]\nperturbations = ["box-blur:size=3"]\nimages = { paths = ["photos"] }\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models = [", "is not valid TOML"),
        (MINIMAL + "perturbation = 1", "the key 'perturbation' is not known; do you mean 'perturbations'?"),
        (MINIMAL + "timeout = 3", "the key 'timeout' is not known; it belongs to [analysis]"),
        (MINIMAL + "[analysis]\nshortcuts = true", "the key 'shortcuts' in [analysis] is not known; it was removed"),
        (MINIMAL + "[analysis]\ntimout = 3", "the key 'timout' in [analysis] is not known; do you mean 'timeout'?"),
        (MINIMAL + "[analysis]\ntimeout = -3", "[analysis]: the timeout must be a positive number"),
        (MINIMAL + '[analysis]\ntimeout = "3"', "timeout is a number, not '3'"),
        (MINIMAL + "[analysis]\nmemory = true", "memory is a number, not True"),
        (MINIMAL + '[analysis]\nmethod = "fast"', "the method must be auto, exact or bounds"),
        (MINIMAL + "analysis = 3", "analysis is a table, not 3"),
        (MINIMAL + "strengths = [0.5, 2]", "strengths are between 0 and 1"),
        (MINIMAL + "strengths = []", "strengths is numbers"),
        (MINIMAL + 'certificates = "yes"', "certificates is true or false"),
        (MINIMAL + "[network]\nimage_shape = [32, 32]", "channels, height and width"),
        (MINIMAL + '[preprocessing]\ncolour = "red"', 'colour is "rgb" or "grey"'),
        (MINIMAL + '[preprocessing]\nmean = "cifar"', "mean is numbers or one of imagenet"),
        (MINIMAL + "[preprocessing]\nresize = [1, 2, 3]", "resize is a number, or height and width"),
        (MINIMAL + "[preprocessing]\ncrop = 0", "[preprocessing]: a size of 0"),
        (MINIMAL + '[network]\nclasses = "gone.txt"', "gone.txt"),
        ('perturbations = ["identity"]\nimages = { paths = "photos" }', "say which models are meant"),
        ('models = "signs.onnx"\nperturbations = ["identity"]', "say which images are meant"),
        ('models = "signs.onnx"\nimages.paths = "photos"', "say what happens to the images"),
        (MINIMAL.replace('paths = ["photos"]', 'paths = "photos", csv = "a.csv"'), "either paths, or csv"),
        (MINIMAL.replace('paths = ["photos"]', 'paths = "photos", only = "x*"'), "has a name like 'x*'"),
        (MINIMAL.replace('"signs.onnx"', '"gone*.onnx"'), "no model matches"),
        (MINIMAL.replace('"signs.onnx"', "3"), "models is a list of texts"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(folder, text, words):
    assert words in said_of(folder, text)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('{ family = "boxblur", size = 3 }', "'boxblur' is not known; do you mean 'box-blur'?"),
        ("{ size = 3 }", "the families are"),
        ('{ family = "box-blur", sise = 3 }', "the key 'sise' in [[perturbations]] of the family box-blur"),
        ('{ family = "box-blur", size = [3, { a = 1 }] }', "size is a number or a text"),
        ("7", "a perturbation is a text like"),
    ],
)
def test_what_is_wrong_with_a_perturbation_is_said(folder, entry, words):
    assert words in said_of(folder, MINIMAL.replace('"box-blur:size=3"', entry))


def test_perturbations_are_checked_as_their_texts_are(folder):
    text = MINIMAL.replace('"box-blur:size=3"', '{ family = "box-blur", size = [3, -2] }')
    with pytest.raises(InputError, match="-2"):
        read_campaign(written(folder, text))
    with pytest.raises(InputError, match="only `verify` takes it"):
        read_campaign(written(folder, MINIMAL.replace("box-blur:size=3", "any-kernel:size=3")))


JUDGED = (
    MINIMAL
    + """
[[requirement]]
id = "A"
text = "Signs keep their class."
share = 0.9
[[requirement]]
id = "B"
require = "never:classes=yield  and top:k=2"
perturbations = [{ family = "box-blur", size = [3, 5] }]
strength = 0.25
"""
)


def test_requirements_that_are_judged(folder):
    found = read_campaign(written(folder, JUDGED))
    first, second = found.requirements
    assert (first.id, first.text, first.require) == ("A", "Signs keep their class.", "label")
    assert (first.perturbations, first.strength, first.share, first.confidence) == (
        ("box-blur:size=3",),
        1.0,
        0.9,
        0.95,
    )
    assert (second.require, second.strength) == ("never:classes=yield and top:k=2", 0.25)
    assert (second.perturbations, second.share, second.confidence) == (
        ("box-blur:size=3", "box-blur:size=5"),
        1.0,
        None,
    )
    assert found.strengths == (0.25, 1.0)
    asked = {(str(requirement), str(kernel)): z for (requirement, kernel), z in found.questions().items()}
    assert asked == {
        ("label", "box-blur:size=3"): 1.0,
        (second.require, "box-blur:size=3"): 0.25,
        (second.require, "box-blur:size=5"): 0.25,
    }
    found = read_campaign(written(folder, "strengths = [0.5]\n" + JUDGED))
    assert found.strengths == (0.5,)
    assert {*found.questions().values()} == {0.5}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('text = "x"', "each [[requirement]] has an id"),
        ('id = "A"\nrequire = "labels"', "[[requirement]] A: unknown requirement 'labels'"),
        ('id = "A"\nshare = 0', "share is above 0 and at most 1, not 0"),
        ('id = "A"\nshare = 1.5', "share is above 0 and at most 1, not 1.5"),
        ('id = "A"\nconfidence = 0.95', "no number of pictures shows that all there are hold"),
        ('id = "A"\nshare = 0.9\nconfidence = 1', "confidence is at least 0.5 and below 1, not 1"),
        ('id = "A"\nstrength = 2', "strength is between 0 and 1, not 2"),
        ('id = "A"\nsahre = 0.9', "the key 'sahre' in [[requirement]] is not known; do you mean 'share'?"),
        ('id = "A"\nperturbations = []', "say what happens to the images"),
        ('id = "A"\n[[requirement]]\nid = "A"', "two requirements have the id 'A'"),
    ],
)
def test_what_is_wrong_with_a_requirement_is_said(folder, entry, words):
    assert words in said_of(folder, f"{MINIMAL}[[requirement]]\n{entry}\n")


def test_a_requirement_that_the_network_cannot_have_ends_it(folder):
    for entry, words in (
        ("never:classes=17", "17"),
        ("never:classes=gone", "gone"),
        ("pixels:share=0.9", "classes, height"),
    ):
        text = f'{MINIMAL}[[requirement]]\nid = "A"\nrequire = "{entry}"\n'
        with pytest.raises(InputError, match=words):
            asked_in(folder, text)


def asked_in(folder: Path, text: str) -> list[tuple[str, str, int | None]]:
    """Model, image and label of all that a file asks."""
    with StoreWriter.open(folder / "t.db") as writer:
        registered = register(read_campaign(written(folder, text)), writer)
        rows = writer.connection.execute(
            "SELECT models.name, images.name, label FROM items JOIN queries ON queries.id = query"
            " JOIN models ON models.id = model JOIN images ON images.id = items.image WHERE campaign = ?"
            " ORDER BY number",
            (registered.id,),
        )
        return [(Path(model).name, Path(image).name, label) for model, image, label in rows]


def test_labels_from_a_list(folder):
    (folder / "photos" / "list.csv").write_text("path,label\nstop.1.png,stop\nkeep-right.1.png,3\nlimit-30.1.png\n")
    text = MINIMAL.replace('paths = ["photos"]', 'csv = "photos/list.csv"')
    found = asked_in(folder, text + '[network]\nclasses = "names.txt"')
    assert [own[1:] for own in found] == [("stop.1.png", 0), ("keep-right.1.png", 3), ("limit-30.1.png", None)]
    for row, words in (("stop.1.png,sotp", "stop"), ("stop.1.png,17", "17 is not one of"), ("a,b,c", "line 2")):
        (folder / "photos" / "list.csv").write_text(f"stop.1.png,0\n{row}\n")
        with pytest.raises(InputError, match=words):
            asked_in(folder, text + '[network]\nclasses = "names.txt"')


def test_labels_from_subfolders_and_archives(folder):
    for name in ("stop", "yield"):
        (folder / "sorted" / name).mkdir(parents=True)
        shutil.copy(folder / "photos" / "stop.1.png", folder / "sorted" / name / "a.png")
    text = MINIMAL.replace('"photos"', '"sorted"') + '[network]\nclasses = "names.txt"'
    assert [own[1:] for own in asked_in(folder, text)] == [("a.png", 0), ("a.png", 2)]
    x = np.zeros((3, 32, 32, 3), np.uint8)
    np.savez(folder / "data.npz", x=x, y=np.array([4, 5, 6]))
    found = asked_in(folder, MINIMAL.replace('"photos"', '"data.npz@0:2"'))
    assert [own[1:] for own in found] == [("data.npz@0", 4), ("data.npz@1", 5)]


def test_a_benchmark_says_which_model_is_asked_what(shared, tmp_path):
    benchmark = shared("benchmarks/mnist_fc")
    text = f'perturbations = ["box-blur:size=3"]\nimages = {{ benchmark = "{benchmark}", only = "*_0.03.vnnlib" }}'
    found = asked_in(tmp_path, text)
    assert len(found) == 45
    assert found[0] == ("mnist-net_256x2.onnx", "prop_0_0.03.vnnlib.gz", 4)
    assert len({model for model, _, _ in found}) == 3
    with pytest.raises(InputError, match="leave out models"):
        read_campaign(written(tmp_path, 'models = "a.onnx"\n' + text))


def test_everything_is_read_before_anything_runs(folder):
    """A picture that is none, a kernel that is too large, a model that is gone: each ends it, with nothing asked."""
    (folder / "photos" / "z.png").write_bytes(b"no picture")
    for text, words in (
        (MINIMAL, "z.png"),
        (MINIMAL.replace("photos", "photos/stop.1.png").replace("size=3", "size=65"), "too large"),
        (MINIMAL.replace("signs.onnx", "gone.onnx"), "gone.onnx"),
        (MINIMAL.replace('"box-blur:size=3"', '"box-blur:size=3+haze:colour=1"').replace("photos", "photos/stop.1.png")
         + 'analysis.method = "exact"', "takes one strength"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            asked_in(folder, text)
    with StoreWriter.open(folder / "t.db") as writer:
        assert writer.campaigns() == []
