"""How to run: plain data that can be compared and hashed, and that a type checker knows by name."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from pathlib import Path

import pytest

import shakeproof as sp
from shakeproof.errors import InputError
from shakeproof.settings import Options

# Only our own types are asked about; reading those of torch takes a minute.
CONFIG = """[mypy]
strict = true
follow_imports = silent
[mypy-torch.*,numpy.*,onnx.*,matplotlib.*,PIL.*,scipy.*,onnxruntime.*,rich.*,click.*,vnnlib.*,google.*]
follow_imports = skip
"""
SNIPPET = """from pathlib import Path
import numpy as np
import shakeproof as sp

net = sp.load("model.onnx")
img = np.zeros((1, 8, 8))
sp.profile(net, img, "identity", timeout=3.0)
sp.profile(net, img, "identity", timeout=None, memory=1.0, method="bounds", tolerance=1e-3, whole_curve=True)
sp.verify(net, img, "identity", 0.5, timeout=3.0, device="cpu", stop_early=False)
sp.verify_specification(net, "query.vnnlib", timeout=3.0)
one: sp.Result = sp.profile("model.onnx", "stop.png", sp.box_blur(3), label=7)
several: list[sp.Result] = sp.profile(net, ["stop.png", img], "identity", label=[7, None])
several = sp.verify(net, [Path("stop.png")], ["identity", sp.box_blur(3)], 0.5)
several = sp.verify(net, img, (sp.any_kernel(3), "identity"), 0.5)
one = sp.assert_safe("model.onnx", img, "identity", 0.5, timeout=3.0)
result: sp.Result = sp.analyse(net, sp.perturbed(net, [], "identity"), sp.Settings(timeout=3.0))[0]
"""
WRONG = {
    'sp.profile(net, img, "identity", timeuot=3)': "timeuot",
    'sp.verify(net, img, "identity", 0.5, timeuot=3)': "timeuot",
    'sp.verify_specification(net, "query.vnnlib", timeuot=3)': "timeuot",
    'sp.profile(net, img, "identity", method="exakt")': "call-overload",
    'sp.profile(net, img, "identity", timeout="3")': "call-overload",
    'one = sp.profile(net, img, ["identity"])': "assignment",
    "sp.profile(net, img, 5)": "call-overload",
    "sp.Settings(timeuot=3)": "timeuot",
    "result.status = sp.Status.SAFE": "read-only",
    "sp.Result(status=sp.Status.SAFE)": "status",
}


def test_settings_can_be_hashed_and_compared():
    assert hash(sp.Settings()) == hash(sp.Settings())
    assert len({sp.Settings(), sp.Settings(timeout=1.0), sp.Settings(timeout=1.0), sp.Settings(method="bounds")}) == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        sp.Settings().timeout = 3.0


def test_options_are_the_settings_by_name():
    """What `profile` takes as keywords is what `Settings` has, no more and no less."""
    settings = typing.get_type_hints(sp.Settings)
    assert typing.get_type_hints(Options) == settings
    assert list(settings) == [field.name for field in dataclasses.fields(sp.Settings)]
    for function in (sp.profile, sp.verify, sp.verify_specification):
        assert not set(settings) & set(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    "change",
    [
        {"timeout": 0.0},
        {"timeout": float("nan")},
        {"memory": -1.0},
        {"memory": float("nan")},
        {"tolerance": 0.0},
        {"tolerance": 1.0},
        {"method": "exakt"},
    ],
)
def test_settings_that_cannot_be(change):
    with pytest.raises(InputError):
        sp.Settings(**change)
    with pytest.raises(TypeError):
        sp.Settings(timeuot=3)


def test_a_type_checker_knows_the_options(tmp_path, monkeypatch):
    """A misspelt option is an error before anything runs."""
    api = pytest.importorskip("mypy.api")
    file, config = tmp_path / "snippet.py", tmp_path / "mypy.ini"
    file.write_text(SNIPPET + "\n".join(WRONG) + "\n")
    config.write_text(CONFIG)
    monkeypatch.setenv("MYPYPATH", str(Path(sp.__file__).parents[1]))
    words = ["--config-file", str(config), "--cache-dir", str(tmp_path / "cache"), "--no-error-summary", str(file)]
    out, err, code = api.run(words)
    assert code == 1, err
    first = SNIPPET.count("\n") + 1
    found: dict[int, str] = {}
    for line in out.splitlines():
        if line.startswith(str(file)) and ": error:" in line:
            number = int(line.split(":")[1])
            found[number] = found.get(number, "") + line
    assert set(found) == set(range(first, first + len(WRONG))), out
    for number, (words_, message) in enumerate(WRONG.items(), start=first):
        assert message in found[number], (words_, found[number])
