"""Networks that are read wrongly on purpose: the comparison with the runtime notices, or says that it cannot tell."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

from misreadings import answers


@pytest.mark.parametrize(("name", "count"), [("random", 48), ("built", 36)])
def test_misreadings_are_noticed_and_right_readings_are_not_refused(name, count):
    judged = [*answers(name, count)]
    assert Counter(own.right for own in judged)["noticed"] == 0
    assert [own for own in judged if own.false and own.judged == "missed"] == []
    shown = [own.judged for own in judged if own.shows]
    assert len(shown) > count / 3
    assert shown.count("missed") <= len(shown) / 15
    undecided = Counter(own.right for own in judged)["undecided"]
    assert undecided == 0 if name == "random" else undecided < count / 2
