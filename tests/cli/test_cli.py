"""The command as its users meet it: a real process, its output, its exit code, its one line of complaint."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from models import model
from onnx import helper
from PIL import Image
from processes import HANGING
from warm import complaint, run

from shakeproof import demo, motion_blur

MODEL = str(demo.MODEL)
IMAGES = {path.stem: str(path) for path, _ in demo.images()}


def test_profile_json_and_exit_codes(tmp_path):
    done = run(
        "profile",
        MODEL,
        IMAGES["limit-30.1"],
        IMAGES["parking.1"],
        "-p",
        "box-blur:size=9",
        "-p",
        "sharpen:size=3",
        "--json",
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [(r["image"], r["perturbation"]) for r in rows] == [
        (IMAGES[name], text) for name in ("limit-30.1", "parking.1") for text in ("box-blur:size=9", "sharpen:size=3")
    ]
    assert rows[0]["status"] == "unsafe"
    assert rows[0]["counterexample"]["replayed"] is True
    assert {row["status"] for row in rows[1:]} == {"safe"}
    assert rows[0]["model"] == MODEL


def test_verify_safe_and_table():
    done = run("verify", MODEL, IMAGES["limit-30.1"], "-p", "box-blur:size=9", "--strength", "0.3")
    assert done.returncode == 0
    assert "safe" in done.stdout
    assert "the prediction at strength 0 is used" in done.stdout


def test_an_early_answer_does_not_pretend_to_know_the_critical_strength():
    words = ("verify", MODEL, IMAGES["limit-30.1"], "-p", "box-blur:size=9", "--strength", "1")
    done = run(*words)
    assert done.returncode == 1
    assert "at most 0." in done.stdout
    whole = run(*words, "--profile", "--json")
    low, high = json.loads(whole.stdout)["critical_strength"]
    assert high - low <= 1e-8
    early = json.loads(run(*words, "--json").stdout)["critical_strength"]
    assert early[0] <= low
    assert high <= early[1]


def test_undecided_is_exit_code_3():
    done = run("profile", MODEL, IMAGES["parking.1"], "-p", "box-blur:size=9", "--timeout", "0.000001")
    assert done.returncode == 3
    assert "timeout" in done.stdout


def test_pictures(tmp_path):
    done = run(
        "profile", MODEL, IMAGES["limit-30.1"], "-p", "box-blur:size=9", "--quiet",
        "--plot", tmp_path / "plot.svg", "--counterexample", tmp_path / "c.png",
    )  # fmt: skip
    assert done.stdout == ""
    assert "<svg" in (tmp_path / "plot.svg").read_text()
    assert np.asarray(Image.open(tmp_path / "c.png").convert("L")).std() > 10
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.png", "plot.svg"]
    run(
        "profile",
        MODEL,
        IMAGES["limit-30.1"],
        "-p",
        "box-blur:size=9",
        "-p",
        "sharpen:size=3",
        "--plot",
        tmp_path / "p.png",
    )
    assert (tmp_path / "p-1.png").exists()
    assert (tmp_path / "p-2.png").exists()


def test_labels_come_with_data_sets(tmp_path):
    pictures = np.stack([np.asarray(Image.open(IMAGES[name])) for name in ("stop.1", "yield.1")])
    np.savez(tmp_path / "d.npz", x=pictures, y=np.array([0, 3]))
    done = run("profile", MODEL, tmp_path / "d.npz@0", tmp_path / "d.npz@1", "-p", "box-blur:size=3", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["label"] for row in rows] == [0, 3]
    assert [row["status"] for row in rows] == ["safe", "misclassified"]
    assert done.returncode == 1
    forced = run("profile", MODEL, tmp_path / "d.npz@1", "-p", "box-blur:size=3", "--json", "--label", "2")
    assert json.loads(forced.stdout)["status"] == "safe"


def test_flat_networks_and_normalisation(tmp_path):
    weights = {"w": np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)}
    proto = model([helper.make_node("Gemm", ["x", "w"], ["y"])], (1, 60), weights)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    np.save(tmp_path / "flat.npy", np.random.default_rng(1).uniform(size=60))
    np.save(tmp_path / "shaped.npy", np.random.default_rng(1).uniform(size=(3, 4, 5)))
    assert "--image-shape" in complaint("profile", tmp_path / "m.onnx", tmp_path / "flat.npy", "-p", "box-blur:size=3")
    words = ("-p", "box-blur:size=3", "--json")
    told = run("profile", tmp_path / "m.onnx", tmp_path / "flat.npy", *words, "--image-shape", "3,4,5")
    seen = run("profile", tmp_path / "m.onnx", tmp_path / "shaped.npy", *words)
    results = [json.loads(done.stdout) for done in (told, seen)]
    assert results[0]["min_margin"] == results[1]["min_margin"]
    shifted = run("profile", tmp_path / "m.onnx", tmp_path / "shaped.npy", *words, "--mean", "0.5", "--std", "1,2,3")
    assert json.loads(shifted.stdout)["min_margin"] != results[0]["min_margin"]


def test_kernels(tmp_path):
    listing = run("kernels").stdout
    names = ("box-blur", "sharpen", "motion-blur", "custom", "identity", "brightness", "contrast", "angle=0+brightness")
    assert all(name in listing for name in names)
    shown = run("kernels", "sharpen:size=3", "--strength", "0.5", "--png", tmp_path / "k.png")
    assert "-1/8" in shown.stdout
    assert "sum 1" in shown.stdout
    assert (tmp_path / "k.png").exists()


def test_kernels_of_sums(tmp_path):
    crossed = "motion-blur:size=5,angle=0+motion-blur:size=5,angle=90"
    shown = run("kernels", crossed, "--strength", "0.2,0.3", "--png", tmp_path / "k.png")
    assert [line.split() for line in shown.stdout.splitlines()] == [
        [crossed, "at", "strength", "0.2,0.3", "(angle", "0", "is", "up)"],
        ["0", "0", "1/25", "0", "0"],
        ["0", "0", "1/25", "0", "0"],
        ["3/50", "3/50", "3/5", "3/50", "3/50"],
        ["0", "0", "1/25", "0", "0"],
        ["0", "0", "1/25", "0", "0"],
        ["5", "x", "5,", "sum", "1"],
        ["wrote", str(tmp_path / "k.png")],
    ]
    assert (tmp_path / "k.png").exists()
    assert "at strength 0.25,0.25" in run("kernels", crossed, "--strength", "0.25").stdout
    toned = run("kernels", "brightness:max=-0.2+contrast:max=0.3", "--strength", "0.5", "--png", tmp_path / "t.png")
    said = ["every pixel times 23/20", "then -1/10 is added to every pixel", f"wrote {tmp_path / 't.png'}"]
    assert toned.stdout.splitlines()[1:] == said
    assert (tmp_path / "t.png").exists()
    mixed = "box-blur:size=3,padding=zeros+sharpen:size=5+brightness:max=1"
    shown = run("kernels", mixed, "--png", tmp_path / "m.png")
    assert "own padding (zeros, reflect)" in shown.stdout
    assert (tmp_path / "m.png").exists()


def test_brightness_is_analysed_and_drawn(tmp_path):
    done = run(
        "profile", MODEL, IMAGES["warning.1"], "-p", "brightness:max=0.9,clip=0..1",
        "--counterexample", tmp_path / "c.png", "--json",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["perturbation"] == "brightness:max=0.9,clip=0..1"
    assert found["status"] == "unsafe"
    assert (tmp_path / "c.png").exists()


def test_supports(tmp_path):
    done = run("supports", MODEL)
    assert "supported; method: exact" in done.stdout
    assert done.returncode == 0
    nodes = [
        helper.make_node("Sin", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Tan", ["b"], ["y"]),
    ]
    (tmp_path / "m.onnx").write_bytes(model(nodes, (1, 4)).SerializeToString())
    done = run("supports", tmp_path / "m.onnx")
    assert done.returncode == 1
    assert all(
        word in done.stdout for word in ("Sin", "Relu", "Tan", "not supported", "2 operators cannot be analysed")
    )
    done = run("supports", tmp_path / "m.onnx", "--json")
    assert done.returncode == 1
    data = json.loads(done.stdout)
    assert data["supported"] is False
    assert [p["operator"] for p in data["problems"]] == ["Sin", "Tan"]
    message = complaint("profile", tmp_path / "m.onnx", IMAGES["stop.1"], "-p", "box-blur:size=3")
    assert "Sin" in message
    assert "Tan" in message


def test_smooth_networks_are_for_bounds(tmp_path):
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["g"]),
        helper.make_node("Sigmoid", ["g"], ["s"]),
        helper.make_node("Mul", ["s", "s"], ["y"]),
    ]
    weights = {"w": np.random.default_rng(0).normal(size=(3072, 3)).astype(np.float32)}
    (tmp_path / "m.onnx").write_bytes(model(nodes, (1, 3, 32, 32), weights).SerializeToString())
    shown = run("supports", tmp_path / "m.onnx").stdout
    assert "supported; method: bounds (3 Sigmoid neurons, 3 Power neurons)" in " ".join(shown.split())
    assert json.loads(run("supports", tmp_path / "m.onnx", "--json").stdout)["method"] == "bounds"
    assert json.loads(run("supports", MODEL, "--json").stdout)["method"] == "exact"
    message = complaint("profile", tmp_path / "m.onnx", IMAGES["stop.1"], "-p", "box-blur:size=3", "--method", "exact")
    assert "has smooth operators (Power, Sigmoid), so use bounds (--method bounds)" in message


def test_bounds_and_several_strengths(tmp_path):
    image = IMAGES["limit-30.1"]
    exact = json.loads(run("profile", MODEL, image, "-p", "box-blur:size=9", "--json").stdout)
    words = ("-p", "box-blur:size=9", "--method", "bounds", "--tolerance", "1e-3", "--json")
    bounds = json.loads(run("profile", MODEL, image, *words).stdout)
    assert bounds["method"] == "bounds"
    assert bounds["status"] == exact["status"] == "unsafe"
    low, high = bounds["critical_strength"]
    assert low <= exact["critical_strength"][1] <= high + 1e-3
    assert high - low <= 1e-3

    both = "box-blur:size=9+brightness:max=0.5"
    shown = run(
        "profile", MODEL, image, "-p", both, "--plot", tmp_path / "map.png", "--counterexample", tmp_path / "c.png"
    )
    assert shown.returncode == 1
    assert "unsafe" in shown.stdout
    assert (tmp_path / "map.png").stat().st_size > 10_000
    assert (tmp_path / "c.png").exists()
    safe = run("verify", MODEL, image, "-p", both, "--strength", "0.1,0.05", "--json")
    assert safe.returncode == 0
    assert json.loads(safe.stdout)["strength"] == [0.1, 0.05]

    three = both + "+contrast:max=0.1"
    assert "one or two strengths" in complaint("profile", MODEL, image, "-p", three, "--plot", tmp_path / "p.png")
    assert "3 strengths, or one for all" in complaint("verify", MODEL, image, "-p", three, "--strength", "0.1,0.2")
    message = complaint("profile", MODEL, image, "-p", both, "--method", "exact")
    assert "the exact method takes one strength (--method bounds)" in message
    assert "tolerance must be between" in complaint("profile", MODEL, image, "-p", both, "--tolerance", "2")
    assert "between 0 and 1" in complaint("verify", MODEL, image, "-p", both, "--strength", "0.1,1.5")


def test_a_timeout_of_bounds_is_undecided():
    text = "+".join(f"motion-blur:size=9,angle={angle}" for angle in (0, 30, 60, 90, 120, 150))
    done = run("verify", MODEL, IMAGES["stop.1"], "-p", text, "--strength", "0.3", "--timeout", "0.5", "--json")
    row = json.loads(done.stdout)
    assert row["seconds"] < 1.5
    if row["status"] == "undecided":
        assert (done.returncode, row["reason"]) == (3, "timeout")
    else:
        assert (done.returncode, row["status"]) in {(0, "safe"), (1, "unsafe")}


def test_export(tmp_path):
    words = ("export", MODEL, IMAGES["limit-30.1"], "-p", "box-blur:size=9+brightness:max=0.5", "-o", tmp_path / "out")
    done = run(*words, "--strength", "0.1,0.05")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    network, query = tmp_path / "out" / "augmented.onnx", tmp_path / "out" / "query.vnnlib"
    assert f"wrote {network} and {query}. " in done.stdout
    assert f"Marabou {network} {query} (unsat: class 4 always wins)" in done.stdout
    assert "(<= X_1 0.05)" in query.read_text()
    first = network.read_bytes()
    only = run(*words, "--strength", "0.2", "--label", "3", "--format", "vnnlib", "--json")
    assert json.loads(only.stdout) == {"model": MODEL, "augmented": None, "query": str(query), "label": 3}
    assert "(<= X_1 0.2)" in query.read_text()
    assert network.read_bytes() == first
    both = run(*words, "--strength", "0.2", "--json", "--mean", "0.5", "--std", "1,2,3")
    assert json.loads(both.stdout) == {"model": MODEL, "augmented": str(network), "query": str(query), "label": 4}
    assert network.read_bytes() != first


def test_export_perturbed(tmp_path):
    words = (
        "export",
        MODEL,
        IMAGES["limit-30.1"],
        "-p",
        "box-blur:size=9",
        "--strength",
        "0.1",
        "-o",
        tmp_path / "out",
    )
    done = run(*words, "--format", "perturbed", "--mean", "0.5")
    file = tmp_path / "out" / "perturbed.vnnlib"
    assert done.returncode == 0
    assert done.stdout == f"wrote {file}, for shakeproof verify: box-blur:size=9 of an image of class 4\n"
    header = {line for line in file.read_text().splitlines() if line.startswith("; shakeproof-")}
    assert header == {
        "; shakeproof-perturbation: box-blur:size=9",
        "; shakeproof-strength: 0.1",
        "; shakeproof-mean: 0.5",
        "; shakeproof-std: 1.0",
        "; shakeproof-image-shape: 3,32,32",
    }
    as_json = run(*words, "--format", "perturbed", "--json")
    assert json.loads(as_json.stdout) == {"model": MODEL, "augmented": None, "query": str(file), "label": 4}


def test_export_of_a_flat_network_reads_the_shape_off_the_image(tmp_path):
    weights = {"w": np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)}
    proto = model([helper.make_node("Gemm", ["x", "w"], ["y"])], (1, 60), weights)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    pixels = np.random.default_rng(1).uniform(size=(3, 4, 5))
    np.save(tmp_path / "flat.npy", pixels.reshape(-1))
    np.save(tmp_path / "shaped.npy", pixels)
    words = ("-p", "box-blur:size=3", "--strength", "0.5", "-o")
    assert "--image-shape" in complaint("export", tmp_path / "m.onnx", tmp_path / "flat.npy", *words, tmp_path / "no")
    run("export", tmp_path / "m.onnx", tmp_path / "flat.npy", *words, tmp_path / "a", "--image-shape", "3,4,5")
    run("export", tmp_path / "m.onnx", tmp_path / "shaped.npy", *words, tmp_path / "b")
    assert (tmp_path / "a" / "augmented.onnx").read_bytes() == (tmp_path / "b" / "augmented.onnx").read_bytes()


def test_demo(tmp_path):
    done = run("demo", cwd=tmp_path)
    assert done.returncode == 0
    page = (tmp_path / "demo-report.html").read_text()
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    said = zlib.decompress(base64.b64decode(re.search(r'id="contents">([^<]*)<', page)[1])).decode()
    assert len(json.loads(said)["answers"]["status"]) == 144
    for name in IMAGES:
        assert name in done.stdout
        assert name in said


def test_the_files_of_the_demo_can_be_tried(tmp_path):
    folder = tmp_path / "try"
    done = run("demo", "--files", folder)
    assert done.returncode == 0
    names = {path.name for path in folder.iterdir()}
    assert {
        "model.onnx",
        "stop.png",
        "warning.png",
        "data.npz",
        "labels.csv",
        "classes.txt",
        "signs.toml",
        "road",
    } <= names
    assert [name for name in names if name not in done.stdout] == []
    by_name = run("profile", "model.onnx", "stop.png", "-p", "box-blur:size=3", "--classes", "classes.txt", cwd=folder)
    assert (by_name.returncode, " stop" in by_name.stdout) == (0, True)
    rows = run("profile", "model.onnx", "data.npz", "-p", "box-blur:size=3", "--json", cwd=folder).stdout.splitlines()
    assert [json.loads(row)["label"] for row in rows] == [label for _, label in demo.images()]
    assert "60 queries: 1 model, 5 perturbations" in run("campaign", "signs.toml", "--dry-run", cwd=folder).stdout
    assert not (tmp_path / "demo-report.html").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("profile", "gone.onnx", "IMAGE", "-p", "box-blur:size=3"), "gone.onnx"),
        (("profile", "cut.onnx", "IMAGE", "-p", "box-blur:size=3"), "cut.onnx"),
        (("profile", "MODEL", "gone.png", "-p", "box-blur:size=3"), "gone.png"),
        (("profile", "MODEL", "small.png", "-p", "box-blur:size=3"), "3 x 8 x 8"),
        (("profile", "MODEL", "nan.npy", "-p", "box-blur:size=3"), "NaN"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--label", "10"), "label 10"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--label", "cat"), "cat"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=0"), "size 0"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=1"), "size 1"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=2"), "size 2"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=-3"), "size -3"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=65"), "too large"),
        (("profile", "MODEL", "IMAGE", "-p", "motion-blur:size=3,angle=north"), "angle"),
        (("profile", "MODEL", "IMAGE", "-p", "wobble"), "wobble"),
        (("profile", "MODEL", "IMAGE"), "perturbation"),
        (("profile", "MODEL", "-p", "box-blur:size=3"), "IMAGES"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--max-strength", "1.2"), "between 0 and 1"),
        (("verify", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--strength", "-0.1"), "between 0 and 1"),
        (("verify", "MODEL", "IMAGE", "-p", "box-blur:size=3"), "strength"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--plot", "nowhere/p.png"), "nowhere"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--plot", "p.pdf"), "p.pdf"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--memory", "0.001"), "memory"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--device", "tpu9"), "tpu9"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--device", "meta"), "meta"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--device", "mps"), "float64, which Apple's GPUs"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--device", "hpu"), "; use cpu"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--threads", "123456789012"), "--threads"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--mean", "a,b"), "a,b"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--mean", "nan"), "finite"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--image-shape", "3,32"), "3,32"),
        (("profile", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--image-shape", "1,32,32"), "does not fit"),
        (("profile", "MODEL", "IMAGE", "-p", "custom:file=gone.npy"), "gone.npy"),
        (("kernels", "box-blur:size=3", "--strength", "7"), "between 0 and 1"),
        (("kernels", "box-blur:size=3", "--strength", "weak"), "weak"),
        (("kernels", "box-blur:size=3", "--strength", "0.1,0.2"), "takes one strength, not 2"),
        (("kernels", "box-blur:size=3+sharpen:size=3", "--strength", "0.1,0.2,0.3"), "takes 2 strengths"),
        (("kernels", "box-blur:size=3+sharpen:size=4"), "all sizes odd or all even"),
        (("kernels", "box-blur:size=3", "--png", "nowhere/k.png"), "nowhere"),
        (("supports", "cut.onnx"), "cut.onnx"),
        (("export", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--strength", "0.1"), "--output"),
        (("export", "MODEL", "IMAGE", "-p", "box-blur:size=3", "-o", "d"), "--strength"),
        (("export", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--strength", "0.1,0.2", "-o", "d"), "one strength"),
        (("export", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--strength", "2", "-o", "d"), "between 0 and 1"),
        (("export", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--strength", "1", "-o", "small.png"), "small.png"),
        (("export", "MODEL", "IMAGE", "-p", "box-blur:size=3", "--strength", "1", "-o", "small.png/d"), "small.png/d"),
        (("export", "MODEL", "IMAGE", "-p", "wobble", "--strength", "1", "-o", "d"), "wobble"),
        (("export", "MODEL", "IMAGE", "-p", "identity", "--strength", "1", "-o", "d", "--label", "10"), "label 10"),
        (("export", "MODEL", "IMAGE", "-p", "identity", "--strength", "1", "-o", "d", "--std", "0"), "std positive"),
        (("export", "cut.onnx", "IMAGE", "-p", "identity", "--strength", "1", "-o", "d"), "cut.onnx"),
        (
            ("export", "m.pt2", "IMAGE", "-p", "identity", "--strength", "1", "-o", "d"),
            "m.pt2: cannot read",
        ),
        (("profile", "MODEL", "IMAGE", "-p", "any-kernel:size=3"), "only `verify` takes it"),
        (("kernels", "any-kernel:size=3"), "only `verify` takes it"),
        (
            ("export", "MODEL", "IMAGE", "-p", "any-kernel:size=3", "--strength", "1", "-o", "d"),
            "only `verify` takes it",
        ),
        (("verify", "MODEL", "IMAGE", "-p", "any-kernel:size=4", "--strength", "1"), "must be odd"),
        (("verify", "MODEL", "IMAGE", "-p", "any-kernel:size=3", "--strength", "1", "--plot", "p.png"), "--plot"),
        (("verify", "MODEL", "IMAGE", "-p", "any-kernel:size=3", "--strength", "1", "--method", "exact"), "not a box"),
        (("verify", "MODEL", "IMAGE", "-p", "any-kernel:size=3", "--strength", "1", "--label", "10"), "label 10"),
        (("verify", "MODEL", "IMAGE", "-p", "any-kernel:size=3", "--strength", "1", "--memory", "1e-9"), "--memory"),
        (("verify", "MODEL"), "name what to verify"),
        (("verify", "MODEL", "IMAGE"), "name the perturbation"),
        (("verify", "MODEL", "IMAGE", "--strength", "1"), "go together"),
        (("verify", "MODEL", "cut.vnnlib"), "cut.vnnlib"),
        (("verify", "MODEL", "gone.vnnlib"), "gone.vnnlib"),
        (("verify", "MODEL", "tiny.vnnlib"), "1 inputs and 1 outputs"),
        (("verify", "MODEL", "tiny.vnnlib", "--label", "1"), "--label"),
        (("verify", "MODEL", "tiny.vnnlib", "tiny.vnnlib", "--results", "r.txt"), "--results"),
        (("verify", "MODEL", "tiny.vnnlib", "--results", "nowhere/r.txt"), "nowhere"),
        (("verify", "MODEL", "tiny.vnnlib", "--counterexample", "c.pdf"), "c.pdf"),
        (("verify", "tiny.vnnlib", "--network", "MODEL"), "NAME=FILE"),
        (("verify", "tiny.vnnlib", "--network", "N=gone.onnx"), "gone.onnx"),
        (("verify", "tiny.vnnlib", "IMAGE", "--network", "N=MODEL"), "takes no image"),
        (("demo", "--output", "nowhere/report.html"), "nowhere"),
        (("dance",), "dance"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, words, expected):
    (tmp_path / "cut.onnx").write_bytes(demo.MODEL.read_bytes()[:40000])
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "small.png")
    np.save(tmp_path / "nan.npy", np.full((3, 32, 32), np.nan))
    tiny = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 0))(assert (<= X_0 1))(assert (>= Y_0 0))"
    (tmp_path / "tiny.vnnlib").write_text(tiny)
    (tmp_path / "cut.vnnlib").write_text(tiny[:-3])
    before = sorted(p.name for p in tmp_path.iterdir())
    real = [{"MODEL": MODEL, "IMAGE": IMAGES["stop.1"]}.get(word, word) for word in words]
    assert expected in complaint(*real, cwd=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_full_disk_is_one_line():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    words = [sys.executable, "-m", "shakeproof", "kernels", "box-blur:size=3"]
    with full.open("w") as target:
        done = subprocess.run(words, stdout=target, stderr=subprocess.PIPE, text=True, timeout=HANGING, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("shakeproof: ")


def test_help_starts_with_the_questions_people_ask():
    """Each command's summary fits its line, so none is cut off."""
    text = run("--help").stdout
    assert text.index("profile MODEL IMAGE") < text.index("verify MODEL IMAGE") < text.index("campaign FILE.toml")
    assert "--pixels 8bit" in text
    assert not [line for line in text.splitlines() if line.startswith("  ") and line.endswith("...")]


def test_written_files_are_announced(tmp_path):
    """One line for the files of one kind; on stderr beside JSON; none with --quiet."""
    words = ("profile", MODEL, IMAGES["warning.1"], IMAGES["stop.1"], "-p", "motion-blur:size=9,angle=90")
    files = ("--plot", "m.png", "--counterexample", "c.npy", "--junit", "j.xml", "--output")
    shown = run(*words, *files, "a.csv", cwd=tmp_path)
    lines = ["wrote a.csv", "wrote m-1.png to m-2.png (2 files)", "wrote c-1.npy to c-2.npy (2 files)", "wrote j.xml"]
    assert shown.stdout.splitlines()[-4:] == lines
    as_json = run(*words, *files, "b.csv", "--json", cwd=tmp_path)
    assert as_json.stderr.splitlines()[-4:] == ["wrote b.csv", *lines[1:]]
    quiet = run(*words, *files, "c.csv", "--quiet", cwd=tmp_path)
    assert (quiet.stdout, quiet.stderr) == ("", "")
    assert (tmp_path / "c.csv").exists()


def test_either_spelling_of_colour():
    words = ("profile", MODEL, IMAGES["warning.1"], "-p", "identity", "--json")
    first, second = (json.loads(run(*words, option, "rgb").stdout) for option in ("--color", "--colour"))
    assert first["min_margin"] == second["min_margin"]
    grey = [complaint(*words, "--color", name) for name in ("gray", "grey")]
    assert grey[0] == grey[1]


def test_misclassified_rows_name_the_predicted_class():
    words = ("profile", MODEL, IMAGES["stop.1"], "--label", "3", "-p", "box-blur:size=5", "-p", "box-blur:size=4")
    for options in ((), ("--method", "bounds"), ("--pixels", "8bit")):
        shown = run(*words, *options)
        assert shown.returncode == 1
        _, odd, even = shown.stdout.split("box-blur:size=")
        assert "predicted stop" in odd
        assert "without blur" not in odd
        assert "predicted stop, without blur stop" in even
        assert "check the label and the preprocessing" in shown.stdout
        assert "without blur: the kernel already blurs at strength 0" in shown.stdout


def test_angle_0_is_up_wherever_angles_are_explained():
    texts = (
        run("kernels").stdout,
        run("profile", "--help").stdout,
        run("export", "--help").stdout,
        motion_blur.__doc__,
    )
    assert all("0 is up" in " ".join(text.split()) for text in texts)
