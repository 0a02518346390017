"""Certificates of requirements: made, checked from the model's bytes alone, and refused where anything was changed."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import HANGING
from torch import nn

import shakeproof as sp
from shakeproof import checker
from shakeproof.certificate import NoCertificateError, certificate, pack
from shakeproof.checker import requirement as checked
from shakeproof.checker.enclosure import Tube
from shakeproof.question import OutputContext, OutputPart, parse_requirement

BLUR = "motion-blur:size=5,angle=45"
TEXTS = (
    "label:lead=0.05",
    "top:k=2",
    "among:classes=0,1,2",
    "never:classes=3,4",
    "score:class=1,above=-0.2",
    "output:index=2,within=-0.6..0.6",
    "drift:index=0,by=0.1",
    "top:k=3 and drift:index=1,by=0.2 and never:classes=4",
)


NONSENSE = (
    *(
        "win",
        "label ",
        "label:lead=-9",
        "top",
        "top:k=0",
        "top:k=9",
        "top:k=2,k=3",
        "among:classes=",
        "among:classes=1,1",
    ),
    *("never:classes=0,1,2,3,4", "score:class=-1,above=0", "score:class=7,above=-9", "score:class=0,above=nan"),
    *("output:index=0,within=-9..9,more=1", "output:index=0", "drift:by=9"),
)


def saved(seed: int, folder: Path, last: nn.Module | None = None) -> sp.Network:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 5)]
    module = nn.Sequential(*layers, *([] if last is None else [last])).eval()
    with torch.no_grad():
        layers[-1].weight *= 3
    return sp.load(module, torch.zeros(1, 1, 6, 6), save=folder / f"{seed}.onnx")


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((1, 6, 6))


def certified(network: sp.Network, image: np.ndarray, text: str) -> tuple[sp.Result, bytes, bytes]:
    result = sp.profile(network, image, BLUR, require=text)
    return result, certificate(network, result), Path(network.name).read_bytes()


@pytest.mark.parametrize("text", TEXTS)
def test_certificates_are_made_and_accepted(tmp_path, text):
    claims = set()
    for seed in range(5):
        network = saved(seed, tmp_path)
        result, made, model = certified(network, picture(seed), text)
        outcome = checker.check(made, model)
        assert outcome.accepted
        assert text in outcome.sentence
        assert json.loads(made.split(b"\n")[1])["requirement"] == text
        claims.add(json.loads(made.split(b"\n")[1])["claim"])
        assert (result.status == "safe") == ("holds" in outcome.sentence)
    assert claims <= {"safe", "unsafe"}


def changed(made: bytes, **more: object) -> bytes:
    header, arrays = checker.unpack(made)
    return pack({key: value for key, value in (header | more).items() if key != "arrays"}, arrays)


def test_what_was_changed_is_refused(tmp_path):
    network = saved(1, tmp_path)
    safe = {text: made for text in TEXTS for result, made, _ in [certified(network, picture(1), text)]
            if result.status == "safe"}  # fmt: skip
    model = Path(network.name).read_bytes()
    assert len(safe) >= 3
    for text, made in safe.items():
        header, _ = checker.unpack(made)
        assert checker.check(changed(made), model).accepted
        assert not checker.check(changed(made, claim="profile"), model).accepted
        for other in ("output:index=2,within=50..60", "score:class=0,above=40", "label:lead=90", "drift:index=0,by=0"):
            assert not checker.check(changed(made, requirement=other, label=max(header["label"], 0)), model).accepted
        for nonsense in NONSENSE:
            outcome = checker.check(changed(made, requirement=nonsense, label=max(header["label"], 0)), model)
            assert not outcome.accepted, nonsense
        if "drift" in text:
            for start in ([], [1e9] * 5, [value + 0.2 for value in header["start"]]):
                assert not checker.check(changed(made, start=start), model).accepted
        if "label" in text or "top" in text:
            assert not checker.check(changed(made, label=-1), model).accepted


def test_a_certificate_of_a_label_has_no_requirement(tmp_path):
    network = saved(2, tmp_path)
    _, made, model = certified(network, picture(2), "label")
    header, _ = checker.unpack(made)
    assert "requirement" not in header
    assert checker.check(made, model).accepted


def test_probabilities_have_no_certificate_but_their_order_has(tmp_path):
    network = saved(3, tmp_path, nn.Softmax(1))
    winner = sp.profile(network, picture(3), BLUR).label
    assert checker.check(*certified(network, picture(3), f"among:classes={winner},{(winner + 1) % 5}")[1:]).accepted
    result = sp.profile(network, picture(3), BLUR, require=f"score:class={winner},above=0.0001", timeout=HANGING)
    assert result.status == "safe"
    with pytest.raises(NoCertificateError, match="softmax"):
        certificate(network, result)


# -- the checker's own reading of a requirement -----------------------------------------------------------------------

several = st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True).map(lambda c: ",".join(map(str, c)))
kinds = st.one_of(
    st.integers(0, 4).map(lambda n: f"label:lead={n / 4}"),
    st.just("label"),
    st.integers(1, 4).map(lambda k: f"top:k={k}"),
    several.map(lambda classes: f"among:classes={classes}"),
    several.map(lambda classes: f"never:classes={classes}"),
    st.tuples(st.integers(0, 4), st.integers(-4, 4)).map(lambda c: f"score:class={c[0]},above={c[1] / 4}"),
    st.tuples(st.integers(0, 4), st.integers(-4, 0), st.integers(1, 4)).map(
        lambda c: f"output:index={c[0]},within={c[1] / 4}..{c[2] / 4}"
    ),
    st.tuples(st.integers(0, 4), st.integers(1, 4)).map(lambda c: f"drift:index={c[0]},by={c[1] / 4}"),
)  # fmt: skip
quarters = st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=5, max_size=5)


@given(parts=st.lists(kinds, min_size=1, max_size=3), y=quarters, start=quarters, label=st.integers(0, 4))
@settings(max_examples=400)
def test_the_checker_and_the_prover_mean_the_same(parts, y, start, label):
    """At a point without any error, both margins are the same but for rounding; and one of both sides is proved."""

    def tube(values: list[float]) -> Tube:
        zero = np.zeros((1, 5))
        return Tube(np.array([[values], [[0.0] * 5]]), zero, np.zeros(1), False)

    text = str(parse_requirement(" and ".join(parts)))
    listed = checked.cases({"requirement": text, "label": label, "start": start}, tube(start), "Gemm")
    holds, fails = (float(checked.required(tube(y), listed, side)[0]) for side in (False, True))
    context = OutputContext((OutputPart("y", (5,)),), int, label, np.array(start))
    margin = float(parse_requirement(text).resolved(context).margin(np.array([y]))[0])
    assert holds <= margin
    assert abs(holds - margin) < 1e-12
    assert abs(fails + margin) < 1e-12


@given(seed=st.integers(0, 10**6), parts=st.lists(kinds, min_size=1, max_size=2), label=st.integers(0, 4))
@settings(max_examples=100)
def test_what_the_checker_proves_of_a_leaf_holds_on_all_of_it(seed, parts, label):
    random = np.random.default_rng(seed)
    lines, radius = random.normal(size=(2, 1, 5)), random.random((1, 5)) * 0.3
    scores = Tube(lines, radius, np.linalg.norm(radius, axis=1) * 1.001, False)
    start = lines[0, 0].tolist()
    text = str(parse_requirement(" and ".join(parts)))
    try:
        listed = checked.cases({"requirement": text, "label": label, "start": start}, scores, "Gemm")
    except checker.Refused:
        return
    context = OutputContext((OutputPart("y", (5,)),), int, label, np.array(start))
    about = parse_requirement(text).resolved(context)
    t, e = random.uniform(-1, 1, (400, 1)), random.uniform(-1, 1, (400, 5)) * radius
    margin = about.margin(lines[0] + t * lines[1] + e)
    assert checked.required(scores, listed, False)[0] <= margin.min()
    assert checked.required(scores, listed, True)[0] <= (-margin).min()


@given(
    scores=st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3),
    text=st.sampled_from(["label:lead=0.1", "top:k=2", "score:class=0,above=0.1", "output:index=0,within=-0.1..0.3"]),
)
@settings(max_examples=300)
def test_the_checker_counts_its_own_rounding(scores, text):
    """At a point: what is proved is no more than the margin in exact fractions, whichever way float64 rounds it."""
    tube = Tube(np.array([[scores], [[0.0] * 3]]), np.zeros((1, 3)), np.zeros(1), False)
    listed = checked.cases({"requirement": text, "label": 0}, tube, "Gemm")
    margins = []
    for rows, constants, count in listed:
        exact = [
            sum(Fraction(a) * Fraction(y) for a, y in zip(row, scores, strict=True)) + Fraction(constant)
            for row, constant in zip(rows.tolist(), constants.tolist(), strict=True)
        ]
        margins.append(sorted(exact)[count - 1])
    assert Fraction(float(checked.required(tube, listed, False)[0])) <= min(margins)
    assert Fraction(float(checked.required(tube, listed, True)[0])) <= -min(margins)
