"""Terminals and pipes that cannot print everything, and file names that are no text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import click
import numpy as np
import pytest
from processes import HANGING

from shakeproof import demo
from shakeproof.cli import cli
from shakeproof.cli.terminal import print_anywhere, printable

WARNING = os.fsencode(next(path for path, _ in demo.images() if path.stem == "warning.1"))
ENVIRONMENTS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "utf-8": {"PYTHONIOENCODING": "utf-8"},
}


def printed(folder, environment: dict[str, str], *words: bytes | str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "shakeproof", *words]
    kept = {key: value for key, value in os.environ.items() if key not in ("LC_ALL", "PYTHONIOENCODING", "COLUMNS")}
    return subprocess.run(
        command, cwd=folder, env=kept | environment, capture_output=True, timeout=HANGING, check=False
    )


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_verdicts_are_printed_in_any_encoding(tmp_path, name):
    shutil.copy(WARNING, os.fsencode(tmp_path) + "/ü日.png".encode())
    shutil.copy(WARNING, os.fsencode(tmp_path) + b"/\xff\xfe.png")
    encoding = "ascii" if name == "C" else name
    words = ("ü日.png".encode(), b"\xff\xfe.png", "gone-ü.png".encode(), "-p", "box-blur:size=9")
    done = printed(tmp_path, ENVIRONMENTS[name], "profile", str(demo.MODEL), *words)
    assert done.returncode == 2
    text, errors = done.stdout.decode(encoding), done.stderr.decode(encoding)
    assert text.count("unsafe") == 3  # twice, and how often
    assert "0.688417026" in text
    assert r"\xff\xfe.png" in text
    assert {"utf-8": "ü日", "ascii": r"\xfc\u65e5", "C": r"\xc3\xbc"}.get(name, "ü") in text
    assert ("warning ▸0.688▸ priority" if name == "utf-8" else "warning >0.688> priority") in text
    assert errors.startswith("shakeproof: gone-")
    assert errors.count("\n") == 1


NAMES = {"utf-8": r"ü日\xff", "ascii": r"\xfc\u65e5\xff", "C": r"\xc3\xbc\xe6\x97\xa5\xff"}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_networks_and_kernels_are_shown_in_any_encoding(tmp_path, name):
    start = "ü日".encode() + b"\xff"
    folder = os.fsencode(tmp_path) + b"/" + start + b"["
    os.mkdir(folder)
    shutil.copy(demo.MODEL, folder + b"/red].onnx")  # together, what rich would take for markup
    np.save(tmp_path / "k.npy", np.ones((3, 3)))
    os.rename(tmp_path / "k.npy", folder + b"/k.npy")
    encoding, shown = "ascii" if name == "C" else name, NAMES.get(name, r"ü\u65e5\xff")
    network = printed(tmp_path, ENVIRONMENTS[name], "supports", start + b"[/red].onnx", "--trial", "0")
    kernel = printed(tmp_path, ENVIRONMENTS[name], "kernels", b"custom:normalise=yes,file=" + start + b"[/k.npy")
    for done in (network, kernel):
        assert (done.returncode, done.stderr) == (0, b"")
    assert f"{shown}[/red].onnx: supported; method: exact" in network.stdout.decode(encoding)
    assert f"{shown}[/k.npy" in kernel.stdout.decode(encoding)
    assert kernel.stdout.decode(encoding).endswith("3 x 3, sum 1\n")


def every_command(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for own in command.commands.values():
            yield from every_command(own)


def test_help_is_plain():
    """click prints it itself, and an ASCII terminal would be sent something else."""
    for command in every_command(cli):
        assert command.get_help(click.Context(command)).isascii(), command.name


def test_names_that_are_no_text_in_json_and_files(tmp_path):
    shutil.copy(WARNING, os.fsencode(tmp_path) + b"/\xff$x^{$.png")
    words = ("-p", "identity", "--plot", "p.svg", "--output", "r.csv", "--json")
    done = printed(tmp_path, {}, "profile", str(demo.MODEL), b"\xff$x^{$.png", *words)
    assert done.stderr == b"wrote r.csv\nwrote p.svg\n"
    assert os.fsencode(json.loads(done.stdout)["image"]) == b"\xff$x^{$.png"
    assert b",\xff$x^{$.png," in (tmp_path / "r.csv").read_bytes()
    assert b"$x^{$.png" in (tmp_path / "p.svg").read_bytes()


def test_printable():
    print_anywhere()
    assert printable("a▸ü日\udcff\n", "ascii") == "a>\\xfc\\u65e5\\xff\n"
    assert printable("a▸ü日", "utf-8") == "a▸ü日"
