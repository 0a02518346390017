"""A small store with certificates, and the bundle that a report makes of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from warm import run

import shakeproof as sp
from shakeproof import demo
from shakeproof.question import read_image
from shakeproof.settings import Settings
from shakeproof.store import NamedRequirement, keep

STRENGTH = 0.05


@pytest.fixture(scope="module")
def folder(demo_network, tmp_path_factory):
    """A store beside its network: one answer safe, one unsafe, one misclassified, one undecided; three certificates."""
    place = tmp_path_factory.mktemp("reporting")
    shutil.copy(demo.MODEL, place / "signs.onnx")
    network = sp.load(place / "signs.onnx")
    path, label = next(own for own in demo.images() if own[0].stem == "warning.1")
    picture = replace(read_image(str(path)).fitted(network.picture()), name="warning.1", label=label)
    asked = [
        ("box-blur:size=3", STRENGTH, {}),
        ("haze:colour=0.8", 1.0, {"whole_curve": True}),
        ("sharpen:size=3", STRENGTH, {"label": 0}),
        ("box-blur:size=9", 1.0, {"timeout": 1e-6}),
    ]
    results = [sp.profile(network, picture, text, max_strength=end, **more) for text, end, more in asked]
    assert [result.status for result in results] == ["safe", "unsafe", "misclassified", "undecided"]
    wanted = NamedRequirement("REQ-7", "Signs keep their class.")
    keep(place / "store.sqlite", "Signs", network, results, Settings(), certificates=True, requirement=wanted)
    return place


@pytest.fixture(scope="module")
def bundle(folder):
    made = run("report", folder / "store.sqlite", "-o", folder / "report.html", "--bundle", folder / "bundle")
    assert made.returncode == 0, made.stderr
    assert "3 of 3 certificates hold" in made.stdout
    return folder / "bundle"


@pytest.fixture
def copied(bundle, tmp_path):
    return shutil.copytree(bundle, tmp_path / "elsewhere")


def recheck(place):
    """In a process that finds nothing but the standard library and numpy."""
    script = (
        "import sys, runpy; sys.path = [own for own in sys.path if 'shakeproof' not in own and 'src' not in own];"
        f"sys.argv = ['recheck.py']; runpy.run_path({str(place / 'recheck.py')!r}, run_name='__main__')"
    )
    import_only = {"PYTHONPATH": "", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd="/", env=import_only, check=False
    )


def sections(evidence: dict) -> dict[str, dict]:
    return {section["heading"]: section for section in evidence["sections"]}
