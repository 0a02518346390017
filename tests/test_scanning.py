"""Motion blur of many sizes in many directions: the answers of `profile`, in the right places."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image as Pillow
from warm import complaint, run

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import InputError

WARNING = str(next(path for path, _ in demo.images() if path.name == "warning.1.png"))
MODEL = str(demo.MODEL)


@pytest.fixture(scope="module")
def scanned(demo_network):
    return sp.scan(demo_network, WARNING, sizes=(3, 9), angles=(0, 45, 90))


def test_each_cell_is_the_profile_of_its_kernel(demo_network, scanned):
    assert (scanned.sizes, scanned.angles) == ((3, 9), (0.0, 45.0, 90.0))
    statuses = set()
    for size in scanned.sizes:
        for angle in scanned.angles:
            alone = sp.profile(demo_network, WARNING, sp.motion_blur(size, angle))
            cell = scanned.cell(size, angle)
            assert (cell.size, cell.angle, cell.status) == (size, angle, alone.status)
            assert cell.certified == pytest.approx(alone.certified_strength, abs=1e-9)
            assert cell.critical == (alone.critical_strength and pytest.approx(alone.critical_strength, abs=1e-9))
            statuses.add(alone.status)
    assert statuses == {"safe", "unsafe"}
    assert scanned.status == "unsafe"
    assert scanned.weakest.certified == min(cell.certified for cell in scanned.cells) < 1
    assert f"size {scanned.weakest.size} at angle {scanned.weakest.angle:g}" in scanned.sentence


def test_no_sample_contradicts_a_cell(demo_network, scanned):
    """In the runtime at many strengths: the label wins wherever it is certified, and not right behind a flip."""
    image = sp.read_image(WARNING).fitted(demo_network.picture())
    for cell in scanned.cells:
        path = sp.motion_blur(cell.size, cell.angle).apply(image.pixels)
        ends = [
            *np.linspace(0, cell.certified - 1e-6, 50),
            *([] if cell.critical is None else [cell.critical[1] + 1e-6]),
        ]
        scores = demo_network.reference(np.stack([path.image(z)[None].float().numpy() for z in ends]))
        right = scores.argmax(1) == scores[0].argmax()
        assert right[:50].all()
        assert cell.critical is None or not right[50]


def test_every_angle_between_is_certified(demo_network):
    """At many angles between those of the grid, in the runtime, at the very strength; and not much more is possible."""
    found = sp.scan(demo_network, WARNING, sizes=(3, 9), angles=range(0, 180, 30), between=True)
    image = sp.read_image(WARNING).fitted(demo_network.picture())
    small, large = found.between
    assert (small.start, small.end, small.strength) == (0, 180, 1)
    assert 0.6 < large.strength < min(cell.certified for cell in found.cells)
    for one in found.between:
        paths = [sp.motion_blur(one.size, angle).apply(image.pixels) for angle in np.linspace(0, 180, 200)]
        scores = demo_network.reference(np.stack([path.image(one.strength)[None].float().numpy() for path in paths]))
        assert (scores.argmax(1) == scores[0].argmax()).all()
    more = sp.verify(
        demo_network, WARNING, f"motion-angle:size=9,from=0,to=180,strength={large.strength + 0.02:.4f}", 1.0
    )
    assert more.status == "unsafe"
    assert found.to_json()["between"][1] == {"from": 0.0, "to": 180.0, "strength": large.strength}


@pytest.mark.parametrize(
    ("angles", "turn"),
    [((0, 90), (0, 180)), ((0, 45, 90), (0, 90)), ((30,), (30, 210)), ((10, 100, 170), (10, 190)), ((0, 30), (0, 30))],
)
def test_which_angles_are_between(demo_network, angles, turn):
    (one,) = sp.scan(demo_network, WARNING, sizes=(3,), angles=angles, between=True).between
    assert (one.start, one.end) == turn


def test_no_angle_between_where_the_label_does_not_win(demo_network):
    found = sp.scan(demo_network, WARNING, sizes=(3,), angles=(0, 90), label=0, between=True)
    assert found.status == "misclassified"
    assert found.between[0].strength is None


def test_angles_between_are_refused_by_name(demo_network):
    with pytest.raises(InputError, match="size must be odd"):
        sp.scan(demo_network, WARNING, sizes=(4,), between=True)
    with pytest.raises(InputError, match="not for 8-bit pictures"):
        sp.scan(demo_network, WARNING, sizes=(3,), between=True, pixels="8bit")


def test_sizes_are_in_pixels_of_the_photograph(tmp_path):
    Pillow.open(WARNING).resize((64, 64)).save(tmp_path / "large.png")
    network = sp.load(demo.MODEL, preprocess=sp.Preprocessing(resize=32))
    large = str(tmp_path / "large.png")
    found = sp.scan(network, large, sizes=(19,), angles=(90,), at_original=True)
    alone = sp.profile(network, large, "motion-blur:size=19,angle=90,at=original")
    assert found.cell(19, 90.0).critical == alone.critical_strength is not None
    assert found.perturbation == "motion-blur:at=original"


def test_json_has_a_row_for_each_size(scanned):
    told = json.loads(json.dumps(scanned.to_json()))
    assert told["statuses"][1][2] == "unsafe"
    assert told["critical"][1][2] == list(scanned.cell(9, 90.0).critical)
    assert told["certified"][0] == [1.0, 1.0, 1.0]
    assert (told["between"], told["status"], told["label"]) == (None, "unsafe", "warning")


def test_half_turns_are_no_other_direction(demo_network):
    found = sp.scan(demo_network, WARNING, sizes=(3, 3), angles=(0, 90, 180, -90))
    assert (found.sizes, found.angles) == ((3,), (0.0, 90.0))


@pytest.mark.parametrize(
    ("sizes", "angles", "message"),
    [((), (0,), "at least one"), ((2,), (0,), "size 2"), (range(3, 400), range(180), "more than 10000"),
     ((3,), (float("nan"),), "finite number")],
)  # fmt: skip
def test_what_is_refused(demo_network, sizes, angles, message):
    with pytest.raises(InputError, match=message):
        sp.scan(demo_network, WARNING, sizes=sizes, angles=angles)


def test_a_map_has_each_cell_on_both_sides(scanned):
    """Its colours are the certified strengths, north is up, and bearings grow clockwise."""
    figure = scanned.plot()
    axes = figure.axes[0]
    meshes = [mesh.get_array().ravel() for mesh in axes.collections]
    assert len(meshes) == 2
    assert all(np.array_equal(mesh, [cell.certified for cell in scanned.cells]) for mesh in meshes)
    assert axes.get_theta_direction() == -1
    assert axes.get_theta_offset() == pytest.approx(np.pi / 2)
    safe = sum(cell.status == "safe" for cell in scanned.cells)
    assert len(axes.patches) == 2 * safe


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command(tmp_path):
    words = ("scan", MODEL, WARNING, "--sizes", "3..9:6", "--angles", "0..180:90")
    shown = run(*words, "--plot", str(tmp_path / "map.png"), cwd=tmp_path)
    assert shown.returncode == 1
    assert "size 3" in shown.stdout
    assert "nothing is claimed between" in shown.stdout.lower().replace("\n", " ")
    assert Pillow.open(tmp_path / "map.png").size[0] > 500
    between = run("scan", MODEL, WARNING, "--sizes", "3", "--angles", "0,90", "--between", cwd=tmp_path)
    assert "every angle, 0 to 180" in between.stdout
    told = run(*words, "--json", cwd=tmp_path)
    assert json.loads(told.stdout)["angles"] == [0.0, 90.0]
    assert told.returncode == 1
    assert run("scan", MODEL, WARNING, "--sizes", "3", "--angles", "0", "--quiet", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sizes", "3..x"), "not a range such as"),
        (("--sizes", "9..3"), "not a range such as"),
        (("--angles", "0..180:0"), "not a range such as"),
        (("--sizes", "99"), "too large for an image of 32 x 32"),
        (("--padding", "none"), "padding must be one of"),
        (("--plot", "map.txt"), "map.txt"),
    ],
)
def test_what_the_command_refuses(tmp_path, words, message):
    assert message in complaint("scan", MODEL, WARNING, *words, cwd=tmp_path)
