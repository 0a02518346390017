"""What the command imports: nothing that its words do not ask for. Real processes, from a cold start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from warm import run

from shakeproof import demo

MODEL, IMAGE = str(demo.MODEL), str(demo.images()[0][0])
QUERY = (MODEL, IMAGE, "-p", "box-blur:size=3")
# The end of a run: what it has imported, and whether Python looks for garbage, but not among that.
ENDING = """
import gc, json, sys
from shakeproof.cli import main
try:
    main()
except SystemExit as end:
    said = {"code": end.code, "modules": [*sys.modules], "collects": gc.isenabled(), "frozen": gc.get_freeze_count()}
    print(json.dumps(said), file=sys.stderr)
"""
LIBRARIES = {"torch", "onnx", "onnxruntime", "scipy", "matplotlib", "PIL"}
SELDOM = {"scipy", "matplotlib", "onnx.reference", "shakeproof.checker", "shakeproof.certificate"}


def started(*words: str) -> dict:
    """How a run of the command ended."""
    done = subprocess.run([sys.executable, "-c", ENDING, *words], capture_output=True, text=True, check=True)
    return json.loads(done.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--help",), 0),
        (("--version",), 0),
        (("profile", "--help"), 0),
        (("profile", MODEL, IMAGE), 2),
        (("profile", MODEL, IMAGE, "-p", "box-blur:size=0"), 2),
        (("kernels", "box-blur:size=3"), 0),
    ],
)
def test_words_alone_need_no_library(words, code):
    end = started(*words)
    assert end["code"] == code
    assert not {*LIBRARIES, "numpy", "rich"} & {*end["modules"]}


def test_a_list_of_kernels_needs_a_table_only():
    modules = {*started("kernels")["modules"]}
    assert "rich" in modules
    assert not {*LIBRARIES, "numpy"} & modules


def test_a_check_needs_numpy_only(tmp_path):
    certificate = str(tmp_path / "answer.cert")
    assert run("verify", *QUERY, "--strength", "0.1", "--certificate", certificate).returncode == 0
    end = started("check", certificate, "--model", MODEL)
    assert end["code"] == 0
    assert "numpy" in end["modules"]
    assert LIBRARIES & {*end["modules"]} == set()


@pytest.mark.parametrize("words", [("profile", *QUERY), ("verify", *QUERY, "--strength", "0.1", "--json")])
def test_a_query_imports_what_it_needs(words):
    end = started(*words)
    assert end["code"] == 0
    assert {"torch", "onnxruntime"} <= {*end["modules"]}
    assert SELDOM & {*end["modules"]} == set()
    assert end["collects"]
    assert end["frozen"] > 100_000


def test_what_is_asked_for_is_imported_when_its_turn_comes(tmp_path):
    files = ("--plot", str(tmp_path / "margins.png"), "--certificate", str(tmp_path / "answer.cert"))
    modules = {*started("profile", *QUERY, *files)["modules"]}
    assert {"matplotlib", "shakeproof.checker", "shakeproof.certificate"} <= modules
    assert "scipy" not in modules
