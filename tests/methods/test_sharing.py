"""Batches shared by several processes: the answers of one, whatever becomes of the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from models import network_of, random_module

import shakeproof as sp
from shakeproof import crew as crews
from shakeproof import demo, replay
from shakeproof.bounds import cells_within
from shakeproof.budget import GIB, Budget
from shakeproof.crew import Crew
from shakeproof.errors import ProofError
from shakeproof.evidence import by_class
from shakeproof.exact import Curve, Lines, counted, longest_window, swept_curves
from shakeproof.exact import lines as of_lines
from shakeproof.exact import sharing as of_sweeps
from shakeproof.methods import sharing
from shakeproof.methods.sweeping import Batch
from shakeproof.question import Path as InputsPath
from shakeproof.verdict import Reason

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
PICTURES = [str(path) for path, _ in demo.images()[:9]]


@pytest.fixture
def eager(monkeypatch):
    """The smallest work is shared, and every bracket."""
    crews._let_go()  # of those that other tests have had
    monkeypatch.setattr(of_sweeps, "ENTRIES_A_NODE", 10.0)
    monkeypatch.setattr(sharing, "WORTH_A_PROCESS", 0.0)
    monkeypatch.setattr(of_sweeps, "USUAL_BREAKS", 1e9)
    monkeypatch.setattr(sharing, "WORTH_SHARING", 1.0)


@pytest.fixture
def shifts(monkeypatch):
    """How many jobs each shift had that was shared with others."""
    counts: list[int] = []
    begin = crews.Shift.__init__

    def counting(self, crew, count, given):
        counts.append(count)
        begin(self, crew, count, given)

    monkeypatch.setattr(crews.Shift, "__init__", counting)
    return counts


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
        ("haze:colour=0.2", {"rounding": "nominal"}),
        ("box-blur:size=3", {"arithmetic": "float32"}),
    ],
)
def test_answers_are_those_of_one_core(demo_network, folded_demo, eager, shifts, cores, count, perturbation, options):
    network = folded_demo if options.get("arithmetic") == "float32" else demo_network
    asked = sp.profile, network, PICTURES[:count], perturbation
    one = on(1, *asked, **options)
    assert not shifts
    assert_same(one, on(cores, *asked, **options))
    assert max(shifts) >= cores


@pytest.mark.parametrize(
    ("network", "images", "perturbation"),
    [
        ("benchmarks/mnist_fc/onnx/mnist-net_256x4.onnx", "data/mnist_test.npz@0:32", "box-blur:size=9"),
        ("benchmarks/oval21/onnx/cifar_base_kw.onnx", "data/cifar10_test_first2000.npz@0:8", "sharpen:size=9"),
        ("benchmarks/oval21/onnx/cifar_deep_kw.onnx", "data/cifar10_test_first2000.npz@0:8", "box-blur:size=9"),
    ],
)
def test_answers_about_real_networks_are_those_of_one_core(shared, shifts, monkeypatch, network, images, perturbation):
    monkeypatch.setattr(sharing, "WORTH_A_PROCESS", 0.0)
    monkeypatch.setattr(sharing, "WORTH_SHARING", 1.0)
    monkeypatch.setattr(of_sweeps, "USUAL_BREAKS", 1.0)
    loaded, (archive, numbers) = sp.load(shared(network)), images.split("@")
    first, last = map(int, numbers.split(":"))
    pictures = [f"{shared(archive)}@{number}" for number in range(first, last)]
    one, two, again = (on(cores, sp.profile, loaded, pictures, perturbation) for cores in (1, 2, 2))
    assert shifts
    assert_same(one, two)
    assert [result.pieces for result in two] == [result.pieces for result in again]  # whoever did what


@pytest.mark.parametrize("seed", range(4))
def test_answers_about_modules_are_those_of_one_core(eager, shifts, seed):
    network = network_of(random_module(seed), 1, 8, 8)
    pictures = list(torch.rand(5, 1, 8, 8, dtype=torch.float64))
    one, two = (on(cores, sp.profile, network, pictures, "box-blur:size=3") for cores in (1, 2))
    assert shifts
    assert_same(one, two)


@pytest.mark.parametrize("strength", [0.1, 0.9])
def test_early_answers_are_those_of_one_core(demo_network, eager, shifts, strength):
    for perturbation in ("motion-blur:size=9,angle=45", "box-blur:size=5"):
        asked = sp.verify, demo_network, PICTURES[:3], perturbation, strength
        for one, two in zip(on(1, *asked), on(2, *asked), strict=True):
            assert one.status == two.status
            assert (one.evidence.witness is None) == (two.evidence.witness is None)
    assert shifts or strength == 0.9  # all counterexamples may be found by probing


def test_a_counterexample_between_probes_ends_the_query(demo_network, eager, shifts, monkeypatch):
    monkeypatch.setattr("shakeproof.methods.sweeping.PROBES", 1)
    (whole,) = on(1, sp.profile, demo_network, PICTURES[:1], "motion-blur:size=9,angle=45")
    asked = sp.verify, demo_network, PICTURES[:1], "motion-blur:size=9,angle=45", 1.0
    if whole.profile[-1].winner == whole.profile[0].winner:
        pytest.skip("it flips, and flips back")
    monkeypatch.setattr("shakeproof.methods.sweeping.Batch.probe", lambda self: {})
    (two,) = on(2, *asked)
    assert shifts
    assert two.status == on(1, *asked)[0].status == "unsafe"
    assert two.critical_strength == pytest.approx(whole.critical_strength, abs=1e-8)


def test_what_there_is_time_for_is_from_the_left(demo_network, eager, shifts, monkeypatch):
    monkeypatch.setattr(of_sweeps, "MOST_BEFORE_A_DEADLINE", 1e6)
    asked = sp.profile, demo_network, PICTURES[0], "motion-blur:size=9,angle=45"
    whole = on(2, *asked)
    reached = []
    for timeout in (0.05, 0.2, 0.4):
        began = time.perf_counter()
        part = on(2, *asked, timeout=timeout)
        assert time.perf_counter() - began < timeout + 5
        assert part.reason in (Reason.TIMEOUT, whole.reason)
        assert part.certified_strength <= whole.certified_strength + 1e-9
        assert not len(part.curve.z) or part.curve.z[0] == 0
        reached.append(part.certified_strength)
    assert max(reached) > 0
    assert shifts


def test_what_was_begun_goes_on(demo_network, eager, shifts):
    (query,) = sp.perturbed(demo_network, PICTURES[:1], "motion-blur:size=9,angle=45")
    (whole,) = on(2, sp.analyse, demo_network, [query])
    with torch.inference_mode():
        begun = sp.methods.sweep_window(demo_network, query, sp.Settings(), 0.0, 0.3)
        (result,) = on(2, sp.methods.answer_by_sweep, demo_network, [query], sp.Settings(), lambda share: None, [begun])
    assert_same([whole], [result])


@pytest.fixture
def killed(monkeypatch):
    """Every crew is killed, all of it, while it is at work; they are begun anew as often as it takes."""
    deaths: list[int] = []
    begin = crews.Shift.__init__

    def killing(self, crew, count, given):
        begin(self, crew, count, given)
        delay = 0.005 * (len(deaths) % 8)

        def kill() -> None:
            time.sleep(delay)
            for member in crew.members:
                try:
                    os.kill(member.process, signal.SIGKILL)
                    deaths.append(member.process)
                except ProcessLookupError:
                    pass

        threading.Thread(target=kill).start()

    monkeypatch.setattr(crews, "MOST_BROKEN", 10**6)
    monkeypatch.setattr(crews.Shift, "__init__", killing)
    return deaths


@pytest.mark.parametrize("count", [1, 3, 9])
def test_a_member_that_is_killed_changes_no_answer(demo_network, eager, killed, count):
    one = on(1, sp.profile, demo_network, PICTURES[:count], "motion-blur:size=9,angle=45")
    for _ in range(8):
        assert_same(one, on(2, sp.profile, demo_network, PICTURES[:count], "motion-blur:size=9,angle=45"))
    assert len(killed) >= 8


ASKING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored by what a shell runs in the background
import torch
import shakeproof as sp
from shakeproof import demo
torch.set_num_threads(3)
network, pictures = sp.load(demo.MODEL), [str(path) for path, _ in demo.images()]
while True:
    sp.profile(network, pictures, "motion-blur:size=9,angle=45", whole_curve=True)
"""


def children_of(process: int) -> set[int]:
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        if int(parent) == process and state not in "ZX":
            found.add(int(name))
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nobody_is_left_when_whoever_asks_is_killed(how):
    asking = subprocess.Popen([sys.executable, "-c", ASKING], stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 60
    while len(members := children_of(asking.pid)) < 2 and time.monotonic() < until and asking.poll() is None:
        time.sleep(0.01)
    time.sleep(0.2)  # in the middle of a query
    os.killpg(asking.pid, how) if how == signal.SIGINT else asking.send_signal(how)
    try:
        asking.wait(30)
    finally:
        asking.kill()
    while any(map(is_running, members)) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(members) == 2
    assert not any(map(is_running, members))


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("count", [1, 9])
def test_ties_are_left_to_the_runtime(demo_network, eager, shifts, monkeypatch, count):
    """There is none to ask elsewhere: what depends on it is done here."""
    here: list[int] = []
    brackets = Batch.brackets

    def asking(self, *args):
        self.network.reference(np.zeros((1, *self.network.input_shape), dtype=np.float32))
        here.append(os.getpid())
        return brackets(self, *args)

    monkeypatch.setattr(Batch, "brackets", asking)
    asked = sp.profile, demo_network, PICTURES[:count], "motion-blur:size=9,angle=45"
    one, alone = on(1, *asked), len(here)
    assert_same(one, on(2, *asked))
    assert shifts
    assert len(here) > alone  # all of them; what others have tried is not heard of


def test_jobs_of_another_session_are_refused(demo_network):
    colleague = sharing.Colleague(object, demo_network)
    with pytest.raises(ProofError, match="another session"):
        colleague.begin(sharing.packed((3, b"", [])), bool)


def test_curves_of_another_network_prove_nothing(demo_network, eager, shifts, monkeypatch):
    """Whoever has swept a curve, it is compared with what is evaluated here."""
    one = on(1, sp.profile, demo_network, PICTURES, "box-blur:size=3")
    swept = Batch.curves

    def better(self, *args):
        curves = swept(self, *args)
        for curve, label in zip(curves, self.labels.tolist(), strict=True):
            curve.scores[:, label] += 100
        return curves

    monkeypatch.setattr(Batch, "curves", better)
    two = on(2, sp.profile, demo_network, PICTURES, "box-blur:size=3")
    assert shifts
    assert any(result.status == "safe" for result in one)
    assert not any(result.status == "safe" or result.certified_strength for result in two)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_curve_that_is_contradicted_says_nothing(demo_network, eager, monkeypatch, cores):
    """Neither up to where a label wins nor where it loses, nor that it does at strength 0."""
    blur = "motion-blur:size=9,angle=90"
    before = on(1, sp.profile, demo_network, PICTURES, blur)
    lost = [number for number, result in enumerate(before) if result.status == "unsafe"]
    assert lost
    monkeypatch.setattr(Batch, "contradicted", lambda self, curves: set(curves))
    after = on(cores, sp.profile, demo_network, PICTURES, blur)
    for number in lost:
        assert after[number].status == "unsafe"  # the runtime shows it
        low, high = after[number].critical_strength
        assert low == 0
        assert replay.fails(demo_network, after[number].query.obligations[0], torch.tensor([[high]]).double()).all()
    assert not any(result.status == "safe" or result.certified_strength for result in after)
    scores = Batch.first(batch := made_batch(demo_network, blur), found_wrong(batch))
    assert np.abs(scores - demo_network.scores(batch.inputs([0], [0.0])).numpy()).max() < 1e-9


def made_batch(network, blur: str) -> Batch:
    return Batch(network, sp.perturbed(network, PICTURES[:1], blur), sp.Settings(), Budget())


def found_wrong(batch: Batch) -> sharing.LinesFound:
    """A curve with other scores, which is known to be wrong."""
    curve = Curve(np.array([0.0, 1.0]), np.full((2, batch.graph.classes), 7.0))
    return sharing.LinesFound([curve], [False], [None], [np.empty(0)])


def test_weights_that_change_later_are_not_the_networks(eager, shifts):
    module = random_module(1).double()
    network = network_of(module, 1, 8, 8, dtype=torch.float64)
    pictures = list(torch.rand(5, 1, 8, 8, dtype=torch.float64))
    before = on(2, sp.profile, network, pictures, "box-blur:size=3")
    assert any(result.status == "safe" for result in before)
    with torch.no_grad():
        for weights in module.parameters():
            weights.neg_()
    for cores in (1, 2):
        after = on(cores, sp.profile, network, pictures, "box-blur:size=3")
        assert [(r.status, r.critical_strength) for r in after] == [(r.status, r.critical_strength) for r in before]
    assert shifts


def least_memory(enough) -> float:
    """How many bytes something takes, about."""
    needed = 2.0**20
    while True:
        try:
            enough(Budget(memory=needed))
        except sp.ShakeproofError:
            needed *= 1.02
        else:
            return needed


@pytest.mark.parametrize("options", [{}, {"arithmetic": "float32"}])
def test_memory_for_bounds_is_asked_for_before_lines_are_shared(eager, options):
    torch.manual_seed(0)
    layers = [(torch.nn.Conv2d(width, 4, 3, padding=1), torch.nn.ReLU()) for width in (1, 4, 4, 4, 4, 4)]
    flat = torch.nn.Flatten(), torch.nn.Linear(4 * 56 * 56, 3)
    network = network_of(torch.nn.Sequential(*chain(*layers), *flat), 1, 56, 56)
    window = least_memory(lambda budget: longest_window(network.graph, budget))
    cell = least_memory(lambda budget: cells_within(network.graph, budget, 1))
    assert window < cell < 2 * window  # enough for two sweeps is not enough for two cells
    asked = sp.profile, network, list(torch.rand(4, 1, 56, 56, dtype=torch.float64)), "box-blur:size=3", None, 0.01
    memory = 2.02 * window / GIB
    assert_same(on(1, *asked, memory=memory, **options), on(2, *asked, memory=memory, **options))


class Vanishing(torch.nn.Module):
    """What is too small for float64 comes back as 1, and the label loses."""

    def forward(self, x):
        h = torch.relu(torch.relu(x.flatten(1)[:, :1] * 1e-200) * 1e-200)
        h = torch.relu(h * 1e200) * 1e200
        return torch.cat([1 - 2 * h, 0 * h], 1)


@pytest.mark.parametrize("count", [1, 4])
def test_what_is_lost_without_rounding_is_lost_elsewhere(eager, shifts, count):
    network = network_of(Vanishing().double(), 1, 2, 2, dtype=torch.float64)
    asked = sp.profile, network, [np.zeros((1, 2, 2))] * count, "brightness:max=1", 0
    assert {result.status for result in on(2, *asked)} == {sp.Status.UNSAFE}
    assert shifts


def test_a_line_that_is_dropped_is_not_safe(demo_network, eager, shifts, monkeypatch):
    share = of_sweeps.lines_by_work
    monkeypatch.setattr(sharing, "lines_by_work", lambda *args: share(*args)[1:])
    one, two = (on(cores, sp.profile, demo_network, PICTURES, "identity") for cores in (1, 2))
    assert {result.status.value for result in one} == {"safe"}
    assert {result.status.value for result in two} == {"safe", "undecided"}


def test_a_stretch_that_is_dropped_is_noticed(demo_network, eager, monkeypatch):
    cut = of_sweeps.cut_by_work
    monkeypatch.setattr(of_lines, "cut_by_work", lambda *args: [parts[:1] + parts[2:] for parts in cut(*args)])
    with pytest.raises(ProofError, match="missing"):
        on(2, sp.profile, demo_network, PICTURES[0], "motion-blur:size=9,angle=45")


def test_too_little_memory_for_two_is_enough_for_one(demo_network, eager, shifts):
    needed = 0.002
    while True:
        try:
            one = on(1, sp.profile, demo_network, PICTURES[:1], "box-blur:size=3", memory=needed)
            break
        except sp.ShakeproofError:
            needed *= 1.05
    assert_same(one, on(2, sp.profile, demo_network, PICTURES[:1], "box-blur:size=3", memory=needed))
    assert not shifts


def test_what_cannot_be_sent_is_answered_here(demo_network, eager, shifts, monkeypatch):
    def unable(value):
        raise TypeError("cannot pickle it")

    monkeypatch.setattr(sharing, "packed", unable)
    asked = sp.profile, demo_network, PICTURES, "box-blur:size=3"
    assert_same(on(1, *asked), on(2, *asked))
    assert not shifts


@pytest.mark.parametrize("stop_early", [False, True])
def test_lines_beyond_all_numbers_are_nobodys_job(eager, shifts, stop_early):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    for parameter in module.double().parameters():
        parameter.data *= 50
    network = network_of(module, 1, 6, 6, dtype=torch.float64)
    pictures = list(np.random.default_rng(0).random((8, 1, 6, 6)))
    pictures.insert(5, pictures[0] * 1e308)
    one, two = (on(n, sp.profile, network, pictures, "sharpen:size=3", stop_early=stop_early) for n in (1, 2))
    assert shifts
    assert_same(one, two)
    assert [number for number, result in enumerate(two) if result.reason is Reason.NOT_FINITE] == [5]


def test_lines_that_are_closed_are_in_no_job(eager):
    graph = network_of(random_module(1), 1, 8, 8).graph
    slopes, bases = torch.randn(2, 6, 1, 1, 8, 8, dtype=torch.float64)
    lines = Lines(
        InputsPath(slopes.unsqueeze(0), bases), torch.zeros(6).double(), torch.ones(6).double(), torch.arange(6)
    )
    labels, budget, given = np.zeros(6, dtype=np.int64), Budget(), []

    class Elsewhere:
        cores, work, compare = 2, counted(graph, lines, 16), bool

        def results(self, jobs, own=None, meanwhile=bool):
            given.extend(job.path.tolist() for job in jobs)
            return (job.do(of_sweeps.Laid(graph, lines, labels, None), budget) for job in jobs)

    curves = swept_curves(graph, lines, labels, budget, closed=[2, 5], whole=True, helpers=Elsewhere())
    assert len(given) > 2
    assert {number for paths in given for number in paths} == {0, 1, 3, 4}
    for number, (one, other) in enumerate(
        zip(curves, swept_curves(graph, lines, labels, budget, closed=[2, 5], whole=True), strict=True)
    ):
        assert (
            len(one.z) == len(other.z) == 0 if number in (2, 5) else np.abs(one.at(other.z) - other.scores).max() < 1e-9
        )


def test_progress_goes_forward_to_the_end(demo_network, eager, shifts):
    told: list[float] = []
    on(2, sp.profile, demo_network, PICTURES, "motion-blur:size=9,angle=45", progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert shifts


def test_small_questions_begin_no_process(demo_network, monkeypatch):
    monkeypatch.setattr(sharing, "WORTH_A_PROCESS", 1e30)
    monkeypatch.setattr(Crew, "__init__", lambda *args: pytest.fail("a process was begun"))
    assert on(2, sp.profile, demo_network, PICTURES[0], "box-blur:size=3").status == "safe"


@pytest.mark.parametrize("count", [1, 2, 7, 40])
@pytest.mark.parametrize("cores", [2, 4])
def test_jobs_cover_all_lines_in_order(eager, count, cores):
    graph = network_of(random_module(1), 1, 8, 8).graph
    slopes, bases = torch.randn(2, count, 1, 1, 8, 8, dtype=torch.float64)
    start = torch.rand(count, dtype=torch.float64)
    lines = Lines(InputsPath(slopes.unsqueeze(0), bases), start, start + torch.rand(count), torch.arange(count))
    cuts = of_sweeps.cut_by_work(graph, counted(graph, lines, 16), lines, cores, False)
    jobs = [job for parts in cuts for job, _, _ in parts]
    assert jobs == sorted(jobs)
    assert set(jobs) == set(range(max(jobs) + 1))
    assert len(set(jobs)) >= cores
    for number, parts in enumerate(cuts):
        assert parts[0][1] == float(lines.start[number])
        assert parts[-1][2] == float(lines.end[number])
        assert all(one[2] == other[1] for one, other in pairwise(parts))
        assert all(low < high for _, low, high in parts)
