"""Every 8-bit picture in the runtime: against running all of them by hand, and against the exact method."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from models import model
from onnx import helper

import shakeproof as sp
from shakeproof import demo
from shakeproof.analysis import answers
from shakeproof.enumeration import eight_bit_pictures
from shakeproof.errors import InputError, ProofError
from shakeproof.proof.enumeration_method import Expected, grey_levels
from shakeproof.proof.evidence import Enumerated
from shakeproof.proof.verdict import judge

BLUR = "motion-blur:size=9,angle=90"


@pytest.fixture(scope="module")
def network():
    return sp.load(demo.MODEL)


@pytest.fixture(scope="module")
def images(network):
    return [sp.read_image(str(path)).fitted(network.picture()) for path, _ in demo.images()]


def by_hand(network, image, text, end=1.0):
    """All pictures, one at a time, in the runtime: their exact begins and scores."""
    perturbation = sp.parse(text)
    pictures = eight_bit_pictures(perturbation.exactly(*grey_levels(image)), end, perturbation.clip)
    scores = [
        network.reference(
            network.picture().to_input(torch.from_numpy((levels / np.float32(255)).astype(np.float32))).numpy()[None]
        )[0]
        for (levels,) in pictures.batches(1)
    ]
    return pictures, np.array(scores)


def test_profiles_are_those_of_all_pictures(network, images):
    statuses = set()
    for image in images[:3]:
        result = sp.profile(network, image, BLUR, max_strength=0.1, pixels="8bit")
        pictures, scores = by_hand(network, image, BLUR, 0.1)
        winners = scores.argmax(1)
        assert result.pieces == len(pictures)
        assert (result.method, result.arithmetic) == ("enumeration", "deployed")
        changes = [0, *(np.flatnonzero(np.diff(winners)) + 1).tolist()]
        assert [i.winner for i in result.profile] == winners[changes].tolist()
        assert [i.start for i in result.profile] == pytest.approx([float(pictures.begins(k)) for k in changes])
        assert result.profile[-1].end == 0.1
        ends = [(z, part.winner) for part in result.profile for z in (part.start, part.end)]
        assert [winner for _, winner in ends] == [winners[shown_at(pictures, z)] for z, _ in ends]
        lost = np.flatnonzero(winners != result.label)
        assert result.status == ("safe" if not len(lost) else "misclassified" if lost[0] == 0 else "unsafe")
        if len(lost) and lost[0]:
            low, high = result.critical_strength
            assert Fraction(low) <= pictures.begins(int(lost[0])) <= Fraction(high)
            assert high <= np.nextafter(low, 1)
            assert result.certified_strength <= high
        statuses.add(result.status)
    assert "safe" in statuses


def shown_at(pictures, z):
    """The number of the picture at a strength."""
    moment = Fraction(z), False
    return [k for k in range(len(pictures)) if (pictures.begins(k), not pictures.has_start(k)) <= moment][-1]


@pytest.mark.parametrize(("start", "answer"), [(10, "unsafe"), (11, "safe")])
def test_an_answer_holds_at_the_strengths_that_it_names(tmp_path, start, answer):
    """A pixel has risen by 25.5 levels at 1/2. From 35 to 36 it goes there; from 36 to 37, behind."""
    weights = {"w": np.float32([[-1, 0], *[[0, 0]] * 8]), "b": np.float32([(start + 25.5) / 255, 0])}
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Gemm", ["f", "w", "b"], ["y"])]
    path = tmp_path / "m.onnx"
    path.write_bytes(model(nodes, (1, 1, 3, 3), weights).SerializeToString())
    network, image = sp.load(path), np.full((1, 3, 3), start / 255)
    whole = sp.profile(network, image, "brightness:max=0.2", label=0, pixels="8bit")
    half = sp.verify(network, image, "brightness:max=0.2", 0.5, label=0, pixels="8bit")
    assert (whole.status, half.status) == ("unsafe", answer)
    assert whole.record.status_at(0.5) == answer
    first, then = whole.profile
    assert (first.winner, then.winner) == (0, 1)
    assert first.end < then.start
    assert (first.end == 0.5) == (answer == "safe")
    assert (then.start == 0.5) == (answer == "unsafe")


def test_an_early_answer_stops_at_the_first_loss(network, images):
    whole = next(r for r in (sp.profile(network, i, BLUR, pixels="8bit") for i in images) if r.status == "unsafe")
    early = sp.verify(network, whole.query.image, BLUR, 1.0, pixels="8bit")
    assert early.status == "unsafe"
    assert early.pieces < whole.pieces
    assert early.critical_strength == whole.critical_strength
    assert early.counterexample.replayed
    levels = early.counterexample.input * 255
    assert np.abs(levels - np.rint(levels)).max() < 1e-4  # an 8-bit picture
    assert network.reference(early.counterexample.input[None]).argmax() == early.counterexample.winner != early.label


def test_what_is_proved_grows_from_the_left(network, images):
    result = sp.profile(network, images[0], BLUR, pixels="8bit", timeout=1e-9)
    assert (result.status, result.reason) == ("undecided", "timeout")
    assert result.remaining is not None
    assert result.remaining.seconds == pytest.approx(
        (len(result.proof.pictures) - result.pieces) / result.remaining.pieces_per_second
    )
    proof = result.proof
    assert 0 < len(proof.margins) < len(proof.pictures)
    assert result.certified_strength == proof.pictures.last_before(len(proof.margins))
    assert Fraction(result.certified_strength) <= proof.pictures.begins(len(proof.margins))


def test_a_picture_that_nobody_looked_at_is_no_proof(network, images):
    safe = sp.profile(network, images[0], BLUR, max_strength=0.05, pixels="8bit")
    assert safe.status == "safe"
    proof = safe.proof

    def told(**change):
        return judge(replace(safe.evidence, proofs=(replace(proof, **change),)))[0]

    assert told() == "safe"
    shorter = {name: getattr(proof, name)[:-1] for name in ("margins", "winners")}
    assert told(**shorter) == "undecided"
    for bad in (0.0, np.nan, -1.0):
        margins = proof.margins.copy()
        margins[len(margins) // 2] = bad
        assert told(margins=margins) == "undecided"
    with pytest.raises(ProofError):
        Enumerated(proof.pictures, proof.about, proof.margins, proof.winners[:-1], proof.deployment)
    with pytest.raises(ProofError):
        replace(safe, query=replace(safe.query, strengths=(0.06,)))


class Changed:
    """A runtime whose scores are changed, given how many pictures it was handed and which."""

    in_batches = True

    def __init__(self, runtime, change):
        self.runtime, self.change = runtime, change

    def __call__(self, x):
        return self.change(self.runtime(x), x)

    def one_by_one(self, x):
        return np.concatenate([self(row[None]) for row in x])

    def on_one_thread(self):
        return self

    def deployment(self, batch):
        return self.runtime.deployment(batch)


def test_scores_that_are_no_numbers_are_no_verdict(network, images):
    start = network.picture().to_input(images[0].pixels).float().numpy()

    def broken(scores, x):
        return np.where((x == start).reshape(len(x), -1).all(1)[:, None], scores, np.nan)

    changed = replace(network, runtime=Changed(network.runtime, broken))
    result = sp.profile(changed, images[0], BLUR, max_strength=0.01, pixels="8bit")
    assert (result.status, result.reason) == ("undecided", "not-finite")


def test_what_to_expect_is_known_before(network, images):
    """How many pictures there are exactly; and once for each query, before it is run."""
    heard: list[object] = []
    queries = sp.perturbed(network, images[:2], BLUR, strength=0.05)
    settings = sp.Settings(pixels="8bit")
    results = list(answers(network, queries, settings, heard.append, lambda *told: heard.append(told)))
    told = [own for own in heard if isinstance(own, tuple)]
    assert list(dict.fromkeys(query for query, *_ in told)) == queries
    assert [expected.pictures for _, expected, certified in told if not certified] == [own.pieces for own in results]
    assert all(expected.seconds > 0 for _, expected, _ in told)
    assert heard[0] == told[0]
    assert str(Expected(106964, 244.4, cores=2)) == "106,964 pictures, about 4.1 min on 2 cores"
    assert str(Expected(300, 0.0123, counted=False)) == "about 300 pictures, about 0.012 s on one core"


def test_only_one_strength_can_be_enumerated(network, images):
    with pytest.raises(InputError, match="one strength"):
        sp.profile(network, images[0], "box-blur:size=3+brightness:max=0.1", pixels="8bit")


def test_batches_are_used_only_where_no_bit_changes(network, images):
    def batch(change):
        changed = replace(network, runtime=Changed(network.runtime, change))
        return sp.profile(changed, images[0], BLUR, max_strength=0.01, pixels="8bit")

    same = batch(lambda scores, x: scores)
    assert same.proof.deployment.batch > 1
    other = batch(lambda scores, x: np.nextafter(scores, np.inf) if len(x) > 1 else scores)
    assert other.proof.deployment.batch == 1
    assert np.array_equal(same.proof.margins, other.proof.margins)


def test_a_batch_that_fails_is_not_called_one(tmp_path, images):
    """The input leaves the batch open, and a shape within the network does not."""
    weights = {"flat": np.array([1, 3072]), "w": np.random.default_rng(0).normal(size=(3072, 3)).astype(np.float32)}
    nodes = [helper.make_node("Reshape", ["x", "flat"], ["f"]), helper.make_node("Gemm", ["f", "w"], ["y"])]
    path = tmp_path / "m.onnx"
    path.write_bytes(model(nodes, ("N", 3, 32, 32), weights).SerializeToString())
    for network in (sp.load(path), sp.load_deployed(path)):
        result = sp.profile(network, images[0], BLUR, max_strength=0.01, pixels="8bit")
        assert result.proof.deployment.batch == 1
        with pytest.raises(InputError, match="2 pictures at once"):
            network.runtime.on_one_thread()(np.zeros((2, 1, 3, 32, 32), np.float32))
