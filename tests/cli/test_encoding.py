"""Terminals and pipes that cannot print everything, and file names that are no text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from shakeproof import demo
from shakeproof.cli.encoding import print_anywhere, printable

WARNING = os.fsencode(next(path for path, _ in demo.images() if path.stem == "warning.1"))
ENVIRONMENTS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "utf-8": {"PYTHONIOENCODING": "utf-8"},
}


def printed(folder, environment: dict[str, str], *words: bytes | str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "shakeproof.cli", "profile", str(demo.MODEL), *words, "--threads", "1"]
    kept = {key: value for key, value in os.environ.items() if key not in ("LC_ALL", "PYTHONIOENCODING", "COLUMNS")}
    return subprocess.run(command, cwd=folder, env=kept | environment, capture_output=True, timeout=100, check=False)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_verdicts_are_printed_in_any_encoding(tmp_path, name):
    shutil.copy(WARNING, os.fsencode(tmp_path) + "/ü日.png".encode())
    shutil.copy(WARNING, os.fsencode(tmp_path) + b"/\xff\xfe.png")
    encoding = "ascii" if name == "C" else name
    words = ("ü日.png".encode(), b"\xff\xfe.png", "gone-ü.png".encode(), "-p", "box-blur:size=9")
    done = printed(tmp_path, ENVIRONMENTS[name], *words)
    assert done.returncode == 2
    text, errors = done.stdout.decode(encoding), done.stderr.decode(encoding)
    assert text.count("unsafe") == 3  # twice, and how often
    assert "0.688417026" in text
    assert r"\xff\xfe.png" in text
    assert {"utf-8": "ü日", "ascii": r"\xfc\u65e5", "C": r"\xc3\xbc"}.get(name, "ü") in text
    assert ("warning ▸0.688▸ priority" if name == "utf-8" else "warning >0.688> priority") in text
    assert errors.startswith("shakeproof: gone-")
    assert errors.count("\n") == 1


def test_names_that_are_no_text_in_json_and_files(tmp_path):
    shutil.copy(WARNING, os.fsencode(tmp_path) + b"/\xff$x^{$.png")
    words = ("-p", "identity", "--plot", "p.svg", "--output", "r.csv", "--json")
    done = printed(tmp_path, {}, b"\xff$x^{$.png", *words)
    assert done.stderr == b""
    assert os.fsencode(json.loads(done.stdout)["image"]) == b"\xff$x^{$.png"
    assert b",\xff$x^{$.png," in (tmp_path / "r.csv").read_bytes()
    assert b"$x^{$.png" in (tmp_path / "p.svg").read_bytes()


def test_printable():
    print_anywhere()
    assert printable("a▸ü日\udcff\n", "ascii") == "a>\\xfc\\u65e5\\xff\n"
    assert printable("a▸ü日", "utf-8") == "a▸ü日"
