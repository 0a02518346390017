"""Real numbers and 8-bit pictures tell one story, and a comparison that notices if they do not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from models import dense, network_of
from torch import nn

import shakeproof as sp
from shakeproof import demo
from shakeproof.enumeration import EightBitPictures
from shakeproof.proof.evidence import Interval

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from two_engines import CASES, both, explained, question, stretches

QUICK = {"mnist_fc_256x4": 0.5, "Convnet_maxpool": 0.5, "mnist_sigmoid": 0.5, "oval21_base": 0.2, "gtsrb_cnn": 0.15}


def told(network, query, claims, proof):
    """How many stretches the two disagree on, and what is wrong with that."""
    found = [explained(network, query, proof, stretch) for stretch in stretches(claims, proof)]
    return len(found), {problem for one in found for problem in one.problems}


@pytest.mark.parametrize("name", QUICK)
def test_every_disagreement_is_half_a_level_and_float32(shared, name):
    case = replace(CASES[name], strength=QUICK[name], images=1)
    data = shared("networks").parent
    network = case.network(data)
    for query in case.queries(network, data):
        count, problems = told(network, query, *both(network, query))
        assert count > 0
        assert not problems


@pytest.fixture(scope="module")
def answered():
    """A sign that is mistaken for another, both ways: the network, the question, and two answers that disagree."""
    network, file = sp.load(demo.MODEL), next(path for path, _ in demo.images() if "warning" in path.name)
    query = question(network, sp.read_image(str(file)).fitted(network.picture()), "motion-blur:size=9,angle=90", 0.7)
    return network, query, *both(network, query)


def test_they_disagree_a_little(answered):
    count, problems = told(*answered)
    assert count > 0
    assert not problems


class Late(EightBitPictures):
    """Pictures that are said to begin later than they do."""

    def strengths(self, count):
        found = super().strengths(count)
        return np.append(found[:-1] + 0.02 * (found[:-1] > 0), found[-1])


def test_a_shifted_answer_is_noticed(answered):
    network, query, claims, proof = answered
    shifted = [Interval(i.start, i.end + 1e-3 * (i.end < 0.7), i.winner) for i in claims]
    assert "the real scores are not on the real answer's side" in told(network, query, shifted, proof)[1]
    early = replace(proof, winners=np.append(proof.winners[40:], proof.winners[-40:]))
    assert "the runtime's scores are not on its answer's side" in told(network, query, claims, early)[1]
    true = proof.pictures
    late = replace(proof, pictures=Late(true.changes, true.shape, true.end))
    assert "a picture is more than half a grey level from the path" in told(network, query, claims, late)[1]


def test_an_answer_that_bounds_exclude_is_noticed():
    """Another class where the label leads by far."""
    network, random = network_of(nn.Sequential(nn.Flatten(), dense(3, 64, 16, 3)), 1, 8, 8), np.random.default_rng(0)
    image = sp.Image("x", torch.from_numpy(random.integers(0, 256, (1, 8, 8)) / 255))
    query = question(network, image, "box-blur:size=3", 0.1)
    claims, proof = both(network, query)
    lost = replace(proof, winners=np.full_like(proof.winners, (proof.about.label + 1) % 3))
    assert "bounds prove that there is no disagreement" in told(network, query, claims, lost)[1]


def test_other_scores_than_the_runtimes_are_noticed(answered):
    network, query, claims, proof = answered
    other = replace(network, runtime=lambda x: network.runtime(x) * 1.01)
    assert "the runtime's scores are not the real ones in float32" in told(other, query, claims, proof)[1]
