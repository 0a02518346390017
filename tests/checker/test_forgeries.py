"""Certificates that were forged to fool the checker: none is accepted, and true ones beside them are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shakeproof import checker

FORGED = "attacks/second"


@pytest.mark.parametrize("number", range(1, 8))
def test_false_certificates_are_refused(shared, number):
    folder = shared(f"{FORGED}/false")
    model, forged = (folder / f"{number}.{kind}" for kind in ("onnx", "cert"))
    outcome = checker.check(forged.read_bytes(), model.read_bytes())
    assert not outcome.accepted
    assert "\n" not in outcome.sentence


# What a forger's script prints of forgeries that were accepted, and of true certificates beside them.
SCRIPTS = {
    "t1_parse.py": (["; 0 false claims accepted; 5 true"], ["FALSE CLAIM ACCEPTED"]),
    "t2b_int32.py": (["(False, 'cannot be checked: whole numbers that do not fit into int32')"], []),
    "t2_layout.py": (["accepted with --image: 0", "false claims accepted with --image 0"], []),
    "t6_enum.py": (["false accepted 0", "control True", "accepted 0", "(False, "], ["FALSE:"]),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_forgers_scripts_find_nothing(shared, tmp_path, name):
    """They read ../shared, and write beside themselves."""
    folder = tmp_path / "here"
    folder.mkdir()
    (tmp_path / "shared").symlink_to(shared(FORGED).parents[1], target_is_directory=True)
    source = Path(checker.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(shared(f"{FORGED}/{name}"))],
        cwd=folder, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(source), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wanted, unwanted = SCRIPTS[name]
    assert all(words in done.stdout for words in wanted), done.stdout
    assert not any(words in done.stdout for words in unwanted), done.stdout
