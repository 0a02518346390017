"""Certificates: an answer with all that the independent checker needs to find it again, and nothing it has to believe.

The prover hands over where to look: the ends of the pieces of a sweep, the boxes of a search, a witness. Each leaf is
shown to the checker before the certificate is handed out, and cut further where its simpler rule does not suffice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shakeproof
from shakeproof import checker
from shakeproof.errors import InputError, ProofError
from shakeproof.evidence import BoundedCells, Enumerated
from shakeproof.network import Deployed
from shakeproof.perturbation import Part, Perturbation, Tone
from shakeproof.result import Result
from shakeproof.search import Tree
from shakeproof.verdict import Status

Floats = NDArray[np.float64]
# A leaf that the checker cannot prove is halved, so many times at most, as long as it is wider than this share of the
# domain; around a change of class, what is left then is a gap.
HALVINGS, NARROWEST, MOST_LEAVES = 60, 1e-9, 10**6
OPEN = -1  # the winner of a leaf of which nothing is claimed
NEAR = (0.9e-9, 1e-7, 1e-5)
TOO_SIMPLE = "the checker's simpler bounds do not prove this answer"


class NoCertificateError(InputError):
    """Why there is no certificate of an answer, in one sentence."""


def certificate(network: Deployed, result: Result, profile: bool = False) -> bytes:
    """The certificate of an answer, as the checker has accepted it.

    With `profile`, of an exact answer that is not safe: which class wins on every stretch, but for gaps around changes.
    """
    header, pixels, model = _asked(network, result)
    if isinstance(result.proof, Enumerated):
        return _of_enumeration(network, header, pixels, result.proof, profile)
    question, label = _question(network, header, pixels, model), header["label"]
    if result.status is not Status.SAFE:
        of = _of_profile if profile and result.profile else _of_witness
        return of(question, header, pixels, result)
    if len(result.query.strengths) == 1:
        (ends,) = _stretches(question, _ends(result), label, result.query.name)
        return pack(header | {"claim": "safe"}, {"pixels": pixels, "cuts": ends[1:-1]})
    root = _grown(result)
    for _ in range(HALVINGS):
        leaves = list(root.leaves())
        low, high = (np.array([getattr(leaf, side) for leaf in leaves]) for side in ("low", "high"))
        weak = np.flatnonzero(~(question.margins(low, high, label) > 0))
        if not len(weak):
            axes, cuts = root.written()
            return pack(header | {"claim": "safe"}, {"pixels": pixels, "axes": axes, "cuts": cuts})
        if len(leaves) + len(weak) > MOST_LEAVES:
            break
        for number in weak.tolist():
            leaves[number].halve()
    raise NoCertificateError(f"{result.query.name}: {TOO_SIMPLE}")


def _asked(network: Deployed, result: Result) -> tuple[dict[str, Any], Floats, bytes]:
    """What is asked, in the checker's words: the header's part of it, the pixels, and the model."""
    query, path = result.query, Path(network.name)
    if result.status is Status.UNDECIDED:
        raise NoCertificateError(f"{query.name}: is undecided, and of that there is no certificate")
    if not isinstance(query.perturbation, Perturbation) or query.image is None:
        raise NoCertificateError(f"{query.name}: certificates are about perturbed images, not boxes of inputs")
    if path.suffix not in (".onnx", ".gz") or not path.is_file():
        advice = "of a module, load(module, example_input, save='model.onnx') keeps the file"
        raise NoCertificateError(f"{network.name}: certificates are about ONNX files; {advice}")
    model = path.read_bytes()
    if hashlib.sha256(model).hexdigest() != network.identity:
        raise NoCertificateError(
            f"{network.name}: has weights in other files, another output is meant than its first, or it has changed"
        )
    pixels, file = query.image.pixels.numpy().astype("<f8"), Path(query.name)
    said = network.normalisation
    header = {
        "tool": f"shakeproof {shakeproof.__version__}",
        "model": path.name,
        "model_sha256": network.identity,
        "image": file.name,
        "image_sha256": hashlib.sha256(pixels.tobytes()).hexdigest(),
        "file_sha256": hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "",
        "channels_last": network.picture().channels_last,
        "perturbation": str(query.perturbation),
        "kernels": written_kernels(query.perturbation),
        "mean": [] if said is None else [float(x) for x in said.mean],
        "std": [] if said is None else [float(x) for x in said.std],
        "label": result.label,
        "strength": [float(z) for z in query.strengths],
        "arithmetic": result.arithmetic,
    }
    return header, pixels, model


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
    if not proof.is_deployed:
        raise NoCertificateError(f"{name}: bounds spared some pictures; without shortcuts, all are run")
    complete = len(proof.winners) == len(pictures)
    claim = "safe" if lost is None else "profile" if profile and complete else "unsafe"
    count = lost + 1 if claim == "unsafe" and lost is not None else len(pictures)
    header |= {
        "claim": claim,
        "rounding": pictures.rule,
        "input_shape": list(network.input_shape),
        "deployment": asdict(proof.deployment),
        "pictures": count,
        "kept": len(pictures) if lost is None else lost,
        "intervals": [[str(own), own.winner] for own in proof.exact_profile(count)],
    }
    try:
        again = checker.Pictures(header, pixels)
    except (checker.Refused, *checker.MALFORMED) as problem:
        raise NoCertificateError(f"{name}: {problem}") from problem
    if len(again) != len(pictures) or again.intervals(proof.winners[:count]) != header["intervals"]:
        raise ProofError(f"{name}: the checker finds other pictures than the prover")
    return pack(header, {"pixels": pixels})


def written_kernels(perturbation: Perturbation) -> list[list[list[str]]]:
    """Its parts' kernels as certificates have them."""
    return [_written(part) for part in perturbation.parts]


def _written(part: Part) -> list[list[str]]:
    """The kernel at full strength; a tone's has one entry, and its offset is in the text."""
    if isinstance(part.effect, Tone):
        return [[str(1 + part.effect.gain)]]
    start, (change,) = part.effect.bias, part.effect.coefficients
    return [[str(a + b) for a, b in zip(*rows, strict=True)] for rows in zip(start, change, strict=True)]


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A certificate's bytes; the header's "arrays" is filled in, pixels stored as float32 where that is exact."""
    made = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    if (made["pixels"].astype("<f4") == made["pixels"]).all():
        made["pixels"] = made["pixels"].astype("<f4")
    listed = {name: [array.dtype.str, *array.shape] for name, array in made.items()}
    words = json.dumps({**header, "arrays": listed}, ensure_ascii=False, allow_nan=False)
    body = b"\n".join([b"shakeproof certificate 1", words.encode(), b""])
    body += b"".join(array.tobytes() for array in made.values())
    return body + hashlib.sha256(body).digest()


def _of_witness(question: checker.Question, header: dict[str, Any], pixels: Floats, result: Result) -> bytes:
    found, label = result.counterexample, result.label
    z = [0.0] * len(result.query.strengths) if found is None or found.strengths is None else list(found.strengths)
    rivals = [result.predicted] if found is None else [found.winner]
    for rival in rivals:
        if rival is not None and question.margins(np.array([z]), np.array([z]), rival, over=label)[0] > 0:
            arrays = {"pixels": pixels, "witness": np.array(z, dtype="<f8"), "winners": np.array([rival], dtype="<i2")}
            return pack(header | {"claim": "unsafe"}, arrays)
    raise NoCertificateError(f"{result.query.name}: the label loses by less than the checker can tell from rounding")


def _of_profile(question: checker.Question, header: dict[str, Any], pixels: Floats, result: Result) -> bytes:
    """Each stretch of the profile, as much of it as can be proved: around a change of class there is a gap."""
    (end,) = result.query.strengths
    rows, ends, winners = _ends(result), np.zeros(1), list[int]()
    for stretch in result.profile:
        # close to a change of class, where most of it can still be proved
        after = [stretch.start + near for near in NEAR if stretch.start > 0]
        before = [stretch.end - near for near in NEAR if stretch.end < end]
        inner = np.union1d(rows, [*after, *before])
        inner = inner[(inner > stretch.start) & (inner < stretch.end)]
        for proved in _stretches(question, np.array([stretch.start, *inner, stretch.end]), stretch.winner):
            if proved[0] > ends[-1]:
                ends, winners = np.append(ends, proved[0]), [*winners, OPEN]
            ends, winners = np.append(ends, proved[1:]), [*winners, *[stretch.winner] * (len(proved) - 1)]
    if ends[-1] != end or winners[:1] in ([], [OPEN]):
        raise NoCertificateError(f"{result.query.name}: the class at an end of the path is not provable")
    arrays = {"pixels": pixels, "cuts": ends[1:-1], "winners": np.array(winners, dtype="<i2")}
    return pack(header | {"claim": "profile"}, arrays)


def _ends(result: Result) -> Floats:
    """Where the prover cut the only strength."""
    if isinstance(result.proof, BoundedCells):
        cells = result.proof.cells
        return np.unique(cells.boxes(cells.safe))
    return result.curve.z if len(result.curve.z) > 1 else np.repeat(result.curve.z, 2)


def _stretches(question: checker.Question, ends: Floats, winner: int, whole: str | None = None) -> list[Floats]:
    """The same ends and more, such that the checker proves every leaf, in stretches: slivers that it cannot prove are
    left out. Of a query that is to be proved as a `whole`, whose name that is, nothing may be.
    """
    low, high = ends[:-1], ends[1:]
    proved: list[tuple[Floats, Floats]] = []
    narrow = NARROWEST * max(float(ends[-1]), NARROWEST)
    for _ in range(HALVINGS):
        holds = question.margins(low[:, None], high[:, None], winner) > 0
        proved.append((low[holds], high[holds]))
        low, high = low[~holds], high[~holds]
        wide = high - low > narrow
        if (whole is not None and not wide.all()) or len(low) > MOST_LEAVES:
            raise NoCertificateError(f"{whole}: {TOO_SIMPLE}")
        low, high = low[wide], high[wide]
        if not len(low):
            break
        middle = low + (high - low) / 2
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
    starts, stops = (np.concatenate(side) for side in zip(*proved, strict=True))
    order = starts.argsort()
    starts, stops = starts[order], stops[order]
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    parts = zip(np.split(starts, breaks), np.split(stops, breaks), strict=True)
    return [np.append(some, after[-1]) for some, after in parts if len(some)]


@dataclass(eq=False)
class _Box:
    """A box of strengths, and the two that a cut made of it, if one did."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    axis: int = -1
    at: float = 0.0
    halves: list[_Box] = field(default_factory=list)

    def cut(self, axis: int, at: float) -> None:
        self.axis, self.at = axis, at
        below, above = list(self.high), list(self.low)
        below[axis] = above[axis] = at
        self.halves = [_Box(self.low, tuple(below)), _Box(tuple(above), self.high)]

    def halve(self) -> None:
        """Across its longest side."""
        sides = [high - low for low, high in zip(self.low, self.high, strict=True)]
        axis = sides.index(max(sides))
        middle = self.low[axis] + sides[axis] / 2
        if not self.low[axis] < middle < self.high[axis]:
            raise NoCertificateError(TOO_SIMPLE)
        self.cut(axis, middle)

    def in_order(self) -> Iterator[_Box]:
        """Itself, what is below its cut, what is above."""
        waiting = [self]
        while waiting:
            box = waiting.pop()
            yield box
            waiting += reversed(box.halves)

    def leaves(self) -> Iterator[_Box]:
        return (box for box in self.in_order() if not box.halves)

    def written(self) -> tuple[NDArray[np.uint8], Floats]:
        boxes = list(self.in_order())
        axes = np.array([box.axis if box.halves else 255 for box in boxes], dtype=np.uint8)
        return axes, np.array([box.at for box in boxes if box.halves])


def _grown(result: Result) -> _Box:
    """The boxes that the prover's search made, as far as it proved them."""
    root = _Box((0.0,) * len(result.query.strengths), tuple(result.query.strengths))
    if isinstance(result.proof, BoundedCells):
        tree = result.proof.cells.tree
        children = _children(tree)
        waiting = [(0, root)]
        while waiting:
            part, box = waiting.pop()
            if part in children and not tree.is_proved[part]:
                below, above = children[part]
                box.cut(int(tree.coordinate[below]), float(tree.at[below]))
                waiting += zip((below, above), box.halves, strict=True)
    return root


def _children(tree: Tree) -> dict[int, tuple[int, int]]:
    found: dict[int, Sequence[int]] = {}
    for part in np.flatnonzero(tree.parent >= 0).tolist():
        pair = found.setdefault(int(tree.parent[part]), [-1, -1])
        pair[int(tree.above[part])] = part  # type: ignore[index]
    return {parent: (pair[0], pair[1]) for parent, pair in found.items()}
