"""The scripts in examples/ run, as a newcomer would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SAYS = {
    "data_set.py": "are safe",
    "first_steps.py": "the label is safe up to 0.7101807",
    "own_network.py": "boxes",
    "own_operator.py": "noticed: ",
    "which_shake.py": "so expose for at most 1/103 s",
}


def test_every_example_is_tried():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_examples_run(name, tmp_path):
    done = subprocess.run([sys.executable, EXAMPLES / name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
