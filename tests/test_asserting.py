"""`assert_safe`, called and as pytest's plugin reports it, in a project of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import shakeproof as sp
from shakeproof import asserting, demo
from shakeproof.errors import InputError

SIGN = next(path for path, _ in demo.images() if path.name == "warning.1.png")


def test_what_is_safe_is_returned(demo_network):
    result = sp.assert_safe(demo_network, SIGN, "motion-blur:size=9,angle=90", 0.6)
    assert result.status is sp.Status.SAFE
    assert sp.assert_safe(demo.MODEL, SIGN, sp.any_kernel(3), 0.001).status is sp.Status.SAFE


def test_a_loss_fails_with_the_critical_strength(demo_network):
    with pytest.raises(AssertionError) as error:
        sp.assert_safe(demo_network, SIGN, "motion-blur:size=9,angle=90", 0.9)
    said = str(error.value)
    assert "warning.1.png under motion-blur:size=9,angle=90: unsafe, warning loses" in said
    critical = sp.profile(demo_network, SIGN, "motion-blur:size=9,angle=90").critical_strength[0]
    assert f"critical strength {critical:.6f}" in said
    with pytest.raises(AssertionError, match="misclassified, warning wins at strength 0, not priority"):
        sp.assert_safe(demo_network, SIGN, "box-blur:size=3", 0.1, label=3)


def test_what_is_undecided_fails_unless_it_is_allowed(demo_network):
    asked = (demo_network, SIGN, "motion-blur:size=9,angle=90", 0.6)
    with pytest.raises(AssertionError, match="undecided, the time limit was reached"):
        sp.assert_safe(*asked, timeout=1e-6)
    assert sp.assert_safe(*asked, timeout=1e-6, allow_undecided=True).status is sp.Status.UNDECIDED
    with pytest.raises(AssertionError, match="unsafe"):
        sp.assert_safe(*asked[:3], 0.9, allow_undecided=True)


def test_mistakes_are_no_failures(demo_network):
    for image, text, strength in (("gone.png", "box-blur:size=3", 1), (SIGN, "box-blur", 1), (SIGN, "identity", 2)):
        with pytest.raises(InputError):
            sp.assert_safe(demo_network, image, text, strength)
    with pytest.raises(InputError, match="call it for each"):
        sp.assert_safe(demo_network, [SIGN], "box-blur:size=3", 1)


def test_listeners_hear_of_every_answer(demo_network):
    heard = []
    asserting.listeners.append(heard.append)
    try:
        sp.assert_safe(demo_network, SIGN, "box-blur:size=3", 0.2)
        with pytest.raises(AssertionError):
            sp.assert_safe(demo_network, SIGN, "haze:colour=0.8", 0.9)
    finally:
        asserting.listeners.remove(heard.append)
    assert [record.status for record in heard] == ["safe", "unsafe"]


# -- the plugin --------------------------------------------------------------------------------------------------------

PROJECT = """
import pytest
import shakeproof as sp
from shakeproof import demo

SIGN = next(path for path, _ in demo.images() if path.name == "warning.1.png")


@pytest.fixture(scope="session")
def network():
    return sp.load(demo.MODEL)


@pytest.mark.parametrize("text", ["box-blur:size=3", "haze:colour=0.8"])
def test_signs(network, text):
    sp.assert_safe(network, SIGN, text, 0.5)


def test_blur(network):
    sp.assert_safe(network, SIGN, "motion-blur:size=9,angle=90", 0.9)


def test_nothing():
    pass
"""


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """pytest in a folder. Where the package was installed before it had a plugin, that is named."""
    installed = any(entry.value == "shakeproof.plugin" for entry in entry_points(group="pytest11"))
    named = [] if installed else ["-p", "shakeproof.plugin"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *named, *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(Path(sp.__file__).parents[1])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_plugin_reports_critical_strengths(tmp_path):
    (tmp_path / "test_signs.py").write_text(PROJECT)
    done = run_pytest(tmp_path, "--junitxml=junit.xml")
    assert done.returncode == 1, done.stdout
    assert "1 failed, 3 passed" in done.stdout
    summary = done.stdout.split("= shakeproof =")[1]
    assert "test_signs.py::test_signs[box-blur:size=3]" in summary
    assert "safe, warning wins at every strength up to 0.5" in summary
    assert "unsafe, warning loses, critical strength 0.681937" in summary
    assert "asserting.py" not in done.stdout  # the test is shown, not our code
    tests = {case.get("name"): case for case in ElementTree.parse(tmp_path / "junit.xml").iter("testcase")}
    (said,) = tests["test_blur"].iter("property")
    assert said.get("name") == "shakeproof: warning.1.png under motion-blur:size=9,angle=90"
    assert said.get("value").startswith("unsafe, warning loses, critical strength 0.681937")
    assert not list(tests["test_nothing"].iter("property"))


def test_the_plugin_is_silent_and_light_where_nothing_is_asked(tmp_path):
    (tmp_path / "test_other.py").write_text(
        "import sys\n\n\ndef test_light():\n    assert 'shakeproof.plugin' in sys.modules\n"
        "    assert not {'torch', 'numpy', 'onnx', 'matplotlib'} & sys.modules.keys()\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    said = [line for line in done.stdout.splitlines() if not line.startswith(("plugins:", "rootdir:"))]
    assert "shakeproof" not in "\n".join(said)


def test_the_package_declares_its_plugin():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nshakeproof = "shakeproof.plugin"' in text
