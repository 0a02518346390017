"""Queries whose sweep is shared by threads: the answers of one core."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from models import network_of, random_module

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import MemoryBudgetError
from shakeproof.exact import lines as of_lines
from shakeproof.proof import exact_method
from shakeproof.proof.evidence import by_class
from shakeproof.proof.verdict import Reason

PICTURES = [str(path) for path, _ in demo.images()[:9]]


@pytest.fixture
def eager(monkeypatch):
    """The smallest work is worth a thread."""
    monkeypatch.setattr(of_lines, "LEAST_WORK", 1e4)


def on(cores: int, asked, *args, **options):
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        return asked(*args, **options)
    finally:
        torch.set_num_threads(before)


def assert_same(ones, others) -> None:
    for one, other in zip(ones, others, strict=True):
        assert one.status == other.status
        assert one.reason == other.reason
        assert [part.winner for part in by_class(one.profile)] == [part.winner for part in by_class(other.profile)]
        assert np.allclose(
            [part.end for part in by_class(one.profile)], [part.end for part in by_class(other.profile)], atol=1e-9
        )
        assert (one.critical_strength is None) == (other.critical_strength is None)
        if one.critical_strength is not None:
            assert np.allclose(one.critical_strength, other.critical_strength, atol=1e-8)
        assert one.certified_strength == pytest.approx(other.certified_strength, abs=1e-8)
        if len(one.curve.z) == 0 or len(other.curve.z) == 0 or one.curve.z[-1] != other.curve.z[-1]:
            continue
        if not (one.curve.bridged.any() or other.curve.bridged.any()):
            z = np.union1d(one.curve.z, other.curve.z)
            assert np.abs(one.curve.at(z) - other.curve.at(z)).max() < 1e-9


@pytest.mark.parametrize("cores", [2, 3])
@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize(
    ("perturbation", "options"),
    [
        ("motion-blur:size=9,angle=45", {}),
        ("box-blur:size=5", {"whole_curve": True}),
        ("sharpen:size=4,clip=0..1", {}),
        ("haze:colour=0.2", {}),
        ("box-blur:size=3", {"arithmetic": "float32"}),
    ],
)
def test_answers_are_those_of_one_core(demo_network, folded_demo, eager, cores, count, perturbation, options):
    network = folded_demo if options.get("arithmetic") == "float32" else demo_network
    asked = sp.profile, network, PICTURES[:count], perturbation
    one = on(1, *asked, **options)
    assert_same(one, on(cores, *asked, **options))


@pytest.mark.parametrize(
    ("network", "images", "perturbation"),
    [
        ("benchmarks/mnist_fc/onnx/mnist-net_256x4.onnx", "data/mnist_test.npz@0:32", "box-blur:size=9"),
        ("benchmarks/oval21/onnx/cifar_base_kw.onnx", "data/cifar10_test_first2000.npz@0:8", "sharpen:size=9"),
        ("benchmarks/oval21/onnx/cifar_deep_kw.onnx", "data/cifar10_test_first2000.npz@0:8", "box-blur:size=9"),
    ],
)
def test_answers_about_real_networks_are_those_of_one_core(shared, monkeypatch, network, images, perturbation):
    monkeypatch.setattr(of_lines, "LEAST_WORK", 1e6)
    loaded, (archive, numbers) = sp.load(shared(network)), images.split("@")
    first, last = map(int, numbers.split(":"))
    pictures = [f"{shared(archive)}@{number}" for number in range(first, last)]
    one, two, again = (on(cores, sp.profile, loaded, pictures, perturbation) for cores in (1, 2, 2))
    assert_same(one, two)
    assert [result.pieces for result in two] == [result.pieces for result in again]  # whoever did what


@pytest.mark.parametrize("seed", range(4))
def test_answers_about_modules_are_those_of_one_core(eager, seed):
    network = network_of(random_module(seed), 1, 8, 8)
    pictures = list(torch.rand(5, 1, 8, 8, dtype=torch.float64))
    one, two = (on(cores, sp.profile, network, pictures, "box-blur:size=3") for cores in (1, 2))
    assert_same(one, two)


@pytest.mark.parametrize("strength", [0.1, 0.9])
def test_early_answers_are_those_of_one_core(demo_network, eager, strength):
    for perturbation in ("motion-blur:size=9,angle=45", "box-blur:size=5"):
        asked = sp.verify, demo_network, PICTURES[:3], perturbation, strength
        for one, two in zip(on(1, *asked), on(2, *asked), strict=True):
            assert one.status == two.status
            assert (one.evidence.counterexample is None) == (two.evidence.counterexample is None)


def test_a_counterexample_between_probes_ends_the_query(demo_network, eager, monkeypatch):
    monkeypatch.setattr("shakeproof.proof.exact_method.PROBES", 1)
    (whole,) = on(1, sp.profile, demo_network, PICTURES[:1], "motion-blur:size=9,angle=45")
    asked = sp.verify, demo_network, PICTURES[:1], "motion-blur:size=9,angle=45", 1.0
    if whole.profile[-1].winner == whole.profile[0].winner:
        pytest.skip("it flips, and flips back")
    monkeypatch.setattr(exact_method, "probed", lambda context, comparisons: {})
    (two,) = on(2, *asked)
    assert two.status == on(1, *asked)[0].status == "unsafe"
    assert two.critical_strength == pytest.approx(whole.critical_strength, abs=1e-8)


def test_what_there_is_time_for_is_from_the_left(demo_network, eager):
    asked = sp.profile, demo_network, PICTURES[0], "motion-blur:size=9,angle=45"
    whole = on(2, *asked)
    reached = [0.0]
    for timeout in (0.05, 0.2, 0.4, *(2.0**power for power in range(10))):  # a busy machine needs the longer ones
        if timeout > 0.4 and max(reached) > 0:
            break
        began = time.process_time()
        part = on(2, *asked, timeout=timeout)
        assert time.process_time() - began < 2 * (timeout + 5)
        assert part.reason in (Reason.TIMEOUT, whole.reason)
        assert part.certified_strength <= whole.certified_strength + 1e-9
        assert not len(part.curve.z) or part.curve.z[0] == 0
        reached.append(part.certified_strength)
    assert max(reached) > 0


def test_what_was_begun_goes_on(demo_network, eager):
    (query,) = sp.perturbed(demo_network, PICTURES[:1], "motion-blur:size=9,angle=45")
    (whole,) = on(2, sp.analyse, demo_network, [query])
    with torch.inference_mode():
        begun = sp.proof.sweep_window(demo_network, query, sp.Settings(), 0.0, 0.3)
        (result,) = on(2, sp.proof.answer_by_sweep, demo_network, [query], sp.Settings(), lambda share: None, [begun])
    assert_same([whole], [result])


@pytest.mark.parametrize("cores", [1, 2])
def test_a_curve_of_another_network_proves_nothing(demo_network, eager, monkeypatch, cores):
    """Whoever has swept a curve, it is compared with what is evaluated here."""
    one = on(1, sp.profile, demo_network, PICTURES, "box-blur:size=3")
    swept = exact_method.swept_curves

    def better(graph, lines, labels, *args):
        curves = swept(graph, lines, labels, *args)
        for curve, label in zip(curves, labels.tolist(), strict=True):
            curve.scores[:, label] += 100
        return curves

    monkeypatch.setattr(exact_method, "swept_curves", better)
    two = on(cores, sp.profile, demo_network, PICTURES, "box-blur:size=3")
    assert any(result.status == "safe" for result in one)
    assert not any(result.status == "safe" or result.certified_strength for result in two)


def test_a_curve_that_is_contradicted_says_nothing(demo_network, monkeypatch):
    """Neither up to where a label wins nor where it loses, nor that it does at strength 0."""
    blur = "motion-blur:size=9,angle=90"
    before = on(1, sp.profile, demo_network, PICTURES, blur)
    lost = [number for number, result in enumerate(before) if result.status == "unsafe"]
    assert lost
    monkeypatch.setattr(exact_method, "contradicted", lambda context, curves: set(range(len(curves))))
    after = on(1, sp.profile, demo_network, PICTURES, blur)
    for number in lost:
        assert after[number].status == "unsafe"  # the runtime shows it
        low, high = after[number].critical_strength
        assert low == 0 < before[number].critical_strength[0] < high
    assert not any(result.status == "safe" or result.certified_strength for result in after)


def test_memory_that_is_too_little_for_two_threads_is_enough_for_one(demo_network):
    def answered(cores: int, memory: float) -> list[str] | None:
        try:
            return [
                str(own.status) for own in on(cores, sp.profile, demo_network, PICTURES[:2], "identity", memory=memory)
            ]
        except MemoryBudgetError:
            return None

    least = next(memory for memory in 1e-4 * 1.2 ** np.arange(80) if answered(1, memory))
    assert answered(2, least) == answered(1, least)
