"""Certificates: an answer with all that the independent checker needs to find it again, and nothing it has to believe.

The prover says where to look: stretches of a path, the boxes of a search, a counterexample. The checker is asked about
leaves until it proves all of them, and accepts the whole certificate before it is handed out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shakeproof
from shakeproof import checker
from shakeproof.budget import GIB, Budget, now
from shakeproof.digests import image_digest
from shakeproof.errors import InputError, ProofError
from shakeproof.model import Deployed
from shakeproof.proof import BoundedCells, Enumerated, Result, Status, by_class
from shakeproof.question import STRENGTH, Perturbation, Query, output_context, written_chain, written_kernels
from shakeproof.search import Tree

Floats = NDArray[np.float64]
# A leaf that the checker does not prove is cut into 2 to MOST_PARTS parts, as long as it is wider than this share of
# the domain; around a change of class, what is left then is a gap.
MOST_PARTS, NARROWEST, MOST_LEAVES = 16, 1e-9, 10**6
# What a leaf loses to its width grows about like this power of it: how many parts are needed follows from that.
GROWTH = 1.5
OPEN = -1  # the winner of a leaf of which nothing is claimed
NEAR = (0.9e-9, 1e-7, 1e-5)
# How long a certificate may take unless something else is said, in seconds.
CERTIFICATE_SECONDS = 300.0
TOO_SIMPLE = "the checker's simpler bounds do not prove this answer"
ONNX_FILES = "certificates are about ONNX files; load(module, example_input, save='model.onnx') keeps a module's"


class NoCertificateError(InputError):
    """Why there is no certificate of an answer, in one sentence."""


class LateCertificateError(NoCertificateError):
    """The time for a certificate was up."""


def certificate(network: Deployed, result: Result, profile: bool = False, timeout: float | None = None) -> bytes:
    """The certificate of an answer, as the checker has accepted it; `timeout` in seconds.

    With `profile`, of an exact answer that is not safe: which class wins on every stretch, but for gaps around changes.
    """
    budget = Budget.starting(timeout, GIB)
    header, pixels, model = _asked(network, result)
    if isinstance(result.proof, Enumerated):
        return _of_enumeration(network, header, pixels, result.proof, profile)
    is_label, question = "requirement" not in header, _question(network, header, pixels, model)
    leaves = _Leaves(question, is_label, result.query.name, timeout, budget)
    if result.status is not Status.SAFE:
        # a loss at a strength drawn at random is behind what was proved
        is_inside = result.critical_strength is not None or result.counterexample is None
        of = _of_profile if profile and result.profile and is_inside else _of_counterexample
    else:
        of = _of_path if len(result.query.strengths) == 1 else _of_boxes
    packed = of(leaves, header, pixels, result)
    leaves.check_time(_count(packed))
    outcome = checker.check(packed, model)
    if not outcome.accepted:
        raise NoCertificateError(f"{result.query.name}: the checker refuses its certificate: {outcome.sentence}")
    return packed


def _count(packed: bytes) -> int:
    """How many leaves a certificate has."""
    _, arrays = checker.unpack(packed)
    return len(arrays.get("cuts", ())) + 1


def check_certifiable(network: Deployed, result: Result) -> None:
    """Refuse an answer that can have no certificate."""
    query = result.query
    if result.status is Status.UNDECIDED:
        raise NoCertificateError(f"{query.name}: is undecided, so there is no certificate")
    if isinstance(result.proof, Enumerated) and not result.record.is_about_label:
        raise NoCertificateError(f"{query.name}: certificates of 8-bit pictures cover labels only")
    kinds = () if query.requirement is None else query.requirement.kinds
    if unknown := [kind.name for kind in kinds if kind.name in ("pixels", "detection")]:
        raise NoCertificateError(f"{query.name}: the checker does not know {unknown[0]}, so there is no certificate")
    if not isinstance(query.perturbation, Perturbation) or query.image is None:
        raise NoCertificateError(f"{query.name}: certificates cover perturbed images, not boxes of inputs")
    if query.perturbation.at_original:
        raise NoCertificateError(f"{query.name}: the checker does not know at=original, so there is no certificate")
    if query.perturbation.scale.included:
        raise NoCertificateError(
            f"{query.perturbation}: certificates are about the chords of a curve, not all around them"
        )
    if query.perturbation.degradations:
        families = " and ".join(part.family for part in query.perturbation.degradations)
        raise NoCertificateError(f"{query.name}: the checker does not know {families}, so there is no certificate")
    if Path(network.name).suffix not in (".onnx", ".gz"):
        raise NoCertificateError(f"{network.name}: {ONNX_FILES}")


def _asked(network: Deployed, result: Result) -> tuple[dict[str, Any], Floats, bytes]:
    """The question as the checker reads it: its part of the header, the pixels, and the model."""
    check_certifiable(network, result)
    query, path = result.query, Path(network.name)
    assert isinstance(query.perturbation, Perturbation)
    assert query.image is not None
    if not path.is_file():
        raise NoCertificateError(f"{network.name}: {ONNX_FILES}; this one is gone")
    model = path.read_bytes()
    if hashlib.sha256(model).hexdigest() != network.identity:
        raise NoCertificateError(
            f"{network.name}: has weights in other files, another output is meant than its first, or it has changed"
        )
    pixels, file = query.image.pixels.numpy().astype("<f8"), Path(query.name)
    normalisation, is_chain = network.normalisation, query.perturbation.scale != STRENGTH
    header = {
        "tool": f"shakeproof {shakeproof.__version__}",
        "model": path.name,
        "model_sha256": network.identity,
        "image": file.name,
        "image_sha256": image_digest(query.image.pixels),
        "file_sha256": hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "",
        "channels_last": network.picture().channels_last,
        "perturbation": str(query.perturbation),
        "kernels": (written_chain if is_chain else written_kernels)(query.perturbation),
        "mean": [] if normalisation is None else [float(x) for x in normalisation.mean],
        "std": [] if normalisation is None else [float(x) for x in normalisation.std],
        "label": -1 if result.label is None else result.label,
        "strength": [float(z) for z in query.strengths],
        "arithmetic": result.arithmetic,
    }
    header |= {"nodes": [*query.perturbation.scale.nodes]} if is_chain else {}
    return header | _required(network, query), pixels, model


def _required(network: Deployed, query: Query) -> dict[str, Any]:
    """A requirement in the checker's words, with numbers for all names; nothing where that is the label."""
    if query.requirement is None or query.requirement.is_label:
        return {}
    start = [] if query.start is None else query.start.tolist()
    return {"requirement": str(query.requirement.numbered(output_context(network))), "start": start}


def _question(network: Deployed, header: dict[str, Any], pixels: Floats, model: bytes) -> checker.Question:
    try:
        return checker.Question(header, pixels, model)
    except (checker.Refused, *checker.MALFORMED) as problem:
        raise NoCertificateError(f"{network.name}: {problem}") from problem


def _of_enumeration(
    network: Deployed, header: dict[str, Any], pixels: Floats, proof: Enumerated, profile: bool
) -> bytes:
    """The checker makes all pictures before, and runs them when it is asked."""
    name, pictures, lost = header["image"], proof.pictures, proof.first_lost
    if lost is None and not proof.all_run:
        raise NoCertificateError(
            f"{name}: the label loses at a picture beyond those that were run; certify up to a smaller strength"
        )
    claim = "safe" if lost is None else "profile" if profile and proof.all_run else "unsafe"
    count = lost + 1 if claim == "unsafe" and lost is not None else len(pictures)
    header |= {
        "claim": claim,
        "rounding": pictures.rule,
        "input_shape": list(network.input_shape),
        "deployment": asdict(proof.deployment),
        "pictures": count,
        "kept": len(pictures) if lost is None else lost,
        "intervals": [[str(interval), interval.winner] for interval in proof.exact_profile(count)],
    }
    try:
        again = checker.Pictures(header, pixels)
    except (checker.Refused, *checker.MALFORMED) as problem:
        raise NoCertificateError(f"{name}: {problem}") from problem
    if len(again) != len(pictures) or again.intervals(proof.winners[:count]) != header["intervals"]:
        raise ProofError(f"{name}: the checker finds other pictures than the prover")
    return pack(header, {"pixels": pixels})


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A certificate's bytes; the header's "arrays" is filled in, pixels stored as float32 where that is exact."""
    stored = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    if (stored["pixels"].astype("<f4") == stored["pixels"]).all():
        stored["pixels"] = stored["pixels"].astype("<f4")
    listed = {name: [array.dtype.str, *array.shape] for name, array in stored.items()}
    words = json.dumps({**header, "arrays": listed}, ensure_ascii=False, allow_nan=False)
    body = b"\n".join([b"shakeproof certificate 1", words.encode(), b""])
    body += b"".join(array.tobytes() for array in stored.values())
    return body + hashlib.sha256(body).digest()


class _Leaves:
    """What the checker proves of leaves, asked as long as there is time. A leaf takes it about so many `seconds`."""

    def __init__(
        self, question: checker.Question, is_label: bool, name: str, timeout: float | None, budget: Budget
    ) -> None:
        self.is_label = is_label
        self.question, self.name, self.timeout, self.budget, self.seconds = question, name, timeout, budget, 0.0

    def margins(self, low: Floats, high: Floats, winner: int, over: int | None = None) -> Floats:
        """Of boxes (n, m): by how much a class wins, or is over another; or a requirement holds, or fails (`over`)."""
        self.check_time(len(low))
        margins, began = np.full(len(low), np.nan), now()
        for batch in self.budget.slices(len(low), MOST_LEAVES, first=16):
            margins[batch] = self.question.margins(low[batch], high[batch], winner if self.is_label else 0, over)
        self.check_time()
        self.seconds = (now() - began) / max(1, len(low))
        return margins

    def check_time(self, ahead: int = 0) -> None:
        """Stop if the time is up, or would be after so many more leaves."""
        if self.budget.is_late(ahead * self.seconds):
            raise LateCertificateError(f"{self.name}: its certificate takes longer than {self.timeout:g} s")

    def unproved(self) -> NoCertificateError:
        return NoCertificateError(f"{self.name}: {TOO_SIMPLE}")


def _of_counterexample(leaves: _Leaves, header: dict[str, Any], pixels: Floats, result: Result) -> bytes:
    counterexample, label = result.counterexample, header["label"]
    z = (
        [0.0] * len(result.query.strengths)
        if counterexample is None or counterexample.strengths is None
        else list(counterexample.strengths)
    )
    rival = result.predicted if counterexample is None else counterexample.winner
    if rival is None or not leaves.margins(np.array([z]), np.array([z]), rival, over=label)[0] > 0:
        raise NoCertificateError(f"{leaves.name}: the label loses by less than the checker can tell from rounding")
    arrays = {"pixels": pixels, "witness": np.array(z, dtype="<f8")}
    arrays |= {"winners": np.array([rival], dtype="<i2")} if leaves.is_label else {}
    return pack(header | {"claim": "unsafe"}, arrays)


def _of_path(leaves: _Leaves, header: dict[str, Any], pixels: Floats, result: Result) -> bytes:
    """Of a safe answer with one strength."""
    (end,), rows = result.query.strengths, _rows(result)
    cells = rows if isinstance(result.proof, BoundedCells) else np.array(_straight(result, 0.0, end))
    (ends,) = _stretches(leaves, cells, rows, header["label"], whole=True)
    return pack(header | {"claim": "safe"}, {"pixels": pixels, "cuts": ends[1:-1]})


def _of_profile(leaves: _Leaves, header: dict[str, Any], pixels: Floats, result: Result) -> bytes:
    """Each stretch of the profile, as much of it as can be proved: around a change of class there is a gap."""
    (end,) = result.query.strengths
    rows, ends, winners = _rows(result), np.zeros(1), list[int]()
    for stretch in by_class(result.profile):
        # close to a change of class, where most of it can still be proved, on the last piece before it as a whole
        first, last = np.searchsorted(rows, stretch.start, "right"), np.searchsorted(rows, stretch.end) - 1
        after = [*(stretch.start + near * end for near in NEAR), *rows[first : first + 1]] if stretch.start > 0 else []
        before = [*(stretch.end - near * end for near in NEAR), *rows[last : last + 1]] if stretch.end < end else []
        inner = np.unique([*after, *before])
        inner = inner[(inner > stretch.start) & (inner < stretch.end)]
        cells = np.unique([*_straight(result, stretch.start, stretch.end), *inner])
        for proved in _stretches(leaves, cells, rows, stretch.winner):
            if proved[0] > ends[-1]:
                ends, winners = np.append(ends, proved[0]), [*winners, OPEN]
            ends, winners = np.append(ends, proved[1:]), [*winners, *[stretch.winner] * (len(proved) - 1)]
    if ends[-1] != end or winners[:1] in ([], [OPEN]):
        raise NoCertificateError(f"{leaves.name}: the class at an end of the path is not provable")
    arrays = {"pixels": pixels, "cuts": ends[1:-1], "winners": np.array(winners, dtype="<i2")}
    return pack(header | {"claim": "profile"}, arrays)


def _straight(result: Result, start: float, end: float) -> list[float]:
    """A stretch's ends, and where segments meet between them: no leaf may reach over that."""
    assert result.query.path is not None
    return result.query.path.path.within(start, end)


def _rows(result: Result) -> Floats:
    """Where the prover cut the only strength."""
    if isinstance(result.proof, BoundedCells):
        cells = result.proof.cells
        return np.unique(cells.boxes(cells.safe))
    return result.curve.z if len(result.curve.z) > 1 else np.repeat(result.curve.z, 2)


def _stretches(leaves: _Leaves, cells: Floats, rows: Floats, winner: int, whole: bool = False) -> list[Floats]:
    """The ends of leaves that the checker proves, in stretches without gaps, of the cells with these ends.

    The checker is asked about wide leaves first, since most of them hold: a leaf for each piece of the sweep would take
    fifty times as long. A leaf that it does not prove is cut into as many parts as are likely to hold. What cannot be
    proved even at single strengths is left out; of a `whole`, nothing may be.
    """
    low, high = cells[:-1], cells[1:]
    narrow = NARROWEST * max(float(rows[-1]), NARROWEST)
    proved: list[tuple[Floats, Floats]] = []
    while len(low):
        margins = leaves.margins(low[:, None], high[:, None], winner)
        holds = margins > 0
        proved.append((low[holds], high[holds]))
        low, high, margins = low[~holds], high[~holds], margins[~holds]
        wide = high - low > narrow
        if len(low) > MOST_LEAVES or (whole and not wide.all()):
            raise leaves.unproved()
        low, high, margins = low[wide], high[wide], margins[wide]
        middle = (low + (high - low) / 2)[:, None]
        at_point = leaves.margins(middle, middle, winner)
        if whole and not (at_point > 0).all():
            raise leaves.unproved()
        low, high = _cut(leaves, winner, rows, low, high, _parts(margins, at_point))
    return _joined(proved)


def _parts(margins: Floats, at_point: Floats) -> NDArray[np.int64]:
    """Into how many parts leaves should be cut that are not proved; 0 where not even their middle is."""
    with np.errstate(invalid="ignore", divide="ignore"):
        needed = ((at_point - margins) / at_point) ** (1 / GROWTH)
    parts = np.clip(np.ceil(np.where(np.isfinite(needed), needed, MOST_PARTS)), 2, MOST_PARTS)
    return np.where(at_point > 0, parts, 0).astype(np.int64)


def _cut(
    leaves: _Leaves, winner: int, rows: Floats, low: Floats, high: Floats, parts: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Leaves cut evenly, or at the prover's rows if there are fewer: between two rows, every neuron is affine. Of a
    leaf whose middle cannot be proved, the halves are kept whose other end can be.
    """
    ends_of_leaves: list[tuple[float, float]] = []
    for start, stop, count in zip(low.tolist(), high.tolist(), parts.tolist(), strict=True):
        if count:
            inner = rows[np.searchsorted(rows, start, "right") : np.searchsorted(rows, stop)]
            cuts = inner if 0 < len(inner) < count else start + (stop - start) * np.arange(1, count) / count
            ends_of_leaves += pairwise(np.unique([start, *cuts, stop]).tolist())
            continue
        ends = np.array([[start], [stop]])
        holds, middle = leaves.margins(ends, ends, winner) > 0, start + (stop - start) / 2
        ends_of_leaves += [(start, middle)] * bool(holds[0]) + [(middle, stop)] * bool(holds[1])
    starts, stops = np.array(ends_of_leaves).reshape(-1, 2).T
    return starts, stops


def _joined(proved: Sequence[tuple[Floats, Floats]]) -> list[Floats]:
    """Leaves by their ends, those next to each other in one list."""
    starts, stops = (np.concatenate(side) for side in zip(*proved, strict=True))
    order = starts.argsort()
    starts, stops = starts[order], stops[order]
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    parts = zip(np.split(starts, breaks), np.split(stops, breaks), strict=True)
    return [np.append(places, after[-1]) for places, after in parts if len(places)]


def _of_boxes(leaves: _Leaves, header: dict[str, Any], pixels: Floats, result: Result) -> bytes:
    """Of a safe answer with several strengths: the boxes of the prover's search, halved where the checker needs it."""
    start, end = np.zeros(len(result.query.strengths)), np.array(result.query.strengths)
    tree = _pruned(result.proof.cells.tree) if isinstance(result.proof, BoundedCells) else Tree.planted(1)
    waiting, count = np.setdiff1d(np.arange(len(tree)), tree.parent), 0
    while len(waiting):
        low, high = tree.boxes(start, end)[waiting].swapaxes(0, 1)
        weak = ~(leaves.margins(low, high, header["label"]) > 0)
        count += len(waiting) + int(weak.sum())
        low, sides = low[weak], (high - low)[weak]
        middle = low + sides / 2
        if count > MOST_LEAVES or not (leaves.margins(middle, middle, header["label"]) > 0).all():
            raise leaves.unproved()
        rows, longest = np.arange(len(low)), sides.argmax(1)
        at = middle[rows, longest]
        if not ((low[rows, longest] < at) & (at < high[weak][rows, longest])).all():
            raise leaves.unproved()
        tree, waiting = tree.split(waiting[weak], longest, at)
    halves = np.full((len(tree), 2), -1)  # below and above
    parts = np.flatnonzero(tree.parent >= 0)
    halves[tree.parent[parts], tree.above[parts].astype(int)] = parts
    in_order, left = list[int](), [0]  # each box, what is below its cut, what is above
    while left:
        in_order.append(left.pop())
        left += [half for half in halves[in_order[-1], ::-1].tolist() if half >= 0]
    below = halves[in_order, 0]
    axes = np.where(below < 0, 255, tree.coordinate[below]).astype(np.uint8)
    cuts = tree.at[below[below >= 0]]
    return pack(header | {"claim": "safe"}, {"pixels": pixels, "axes": axes, "cuts": cuts})


def _pruned(tree: Tree) -> Tree:
    """The cuts without those inside parts that are proved as a whole."""
    gone, proved = np.zeros(len(tree), bool), tree.is_proved
    for part, parent in enumerate(tree.parent.tolist()):  # which has the smaller number
        gone[part] = parent >= 0 and (gone[parent] or proved[parent])
    kept, number = np.flatnonzero(~gone), np.cumsum(~gone) - 1
    columns = {column.name: getattr(tree, column.name)[kept] for column in fields(tree)}
    parent = columns["parent"]
    return Tree(**columns | {"parent": np.where(parent < 0, -1, number[parent])})
