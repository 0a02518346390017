"""Certificates: how they are written, what they must say, and whether what they claim holds."""

import hashlib
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shakeproof.checker import kernels
from shakeproof.checker.enclosure import U64, Tube, bent, clipping, norm, scaled, up
from shakeproof.checker.operators import Program
from shakeproof.checker.wire import Array, Refused, Unknown, read_model, require

MAGIC = b"shakeproof certificate 1\n"
MEMORY = 2**27  # bytes that a batch of leaves may take
Header = Mapping[str, Any]
Leaves = tuple[Array, Array, Array, str]  # low and high ends (leaves, strengths), winners, what follows if all hold
# fmt: off
# What Python raises when a file means something impossible.
MALFORMED = (
    ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, StopIteration, TypeError, ValueError,
    struct.error, zipfile.BadZipFile, zlib.error)
# The header's keys. A type: exactly that, floats finite. A list: any number of its entry. A tuple: any of it.
QUESTION: Header = {
    "channels_last": bool, "perturbation": str,
    "parts": [({"padding": str, "start": [[str]], "change": [[str]]}, {"gain": str, "offset": str})],
    "clip": (None, [float]), "mean": (None, [float]), "std": (None, [float]),
    "label": int, "classes": int, "strength": [float], "arithmetic": str}
HEADER: Header = {
    "tool": str, "model": {"name": str, "sha256": str},
    "image": {"name": str, "sha256": str, "file_sha256": (None, str), "shape": [int]}, **QUESTION, "claim": str,
    "intervals": [{"from": float, "to": float, "class": int, "leaves": int}],
    "witness": (None, {"strength": [float], "class": int}), "arrays": [{"name": str, "dtype": str, "shape": [int]}]}
# fmt: on


def conforms(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return any(conforms(value, option) for option in wanted)
    if isinstance(wanted, list):
        return type(value) is list and all(conforms(entry, wanted[0]) for entry in value)
    if isinstance(wanted, dict):
        same = type(value) is dict and value.keys() == wanted.keys()
        return same and all(conforms(value[key], wanted[key]) for key in wanted)
    return value is None if wanted is None else type(value) is wanted and (wanted is not float or math.isfinite(value))


@lru_cache(maxsize=2)
def _program(model: bytes) -> Program:
    """Kept for the next question about the same bytes: the norms of a large network take seconds."""
    return Program(read_model(model))


class Question:
    """An image's path through a network: what can be proved of the scores on boxes of strengths."""

    @staticmethod
    def of(header: Header, pixels: Array, model: bytes) -> "Question":
        """Refused where this is not a question, Unknown where the network has an operator without a rule."""
        try:
            return Question(header, np.asarray(pixels, dtype=np.float64), model)
        except MALFORMED as error:
            said = " ".join(str(error).split())
            raise Refused(f"the model or the perturbation is malformed ({type(error).__name__}: {said})") from error

    @np.errstate(all="ignore")
    def __init__(self, header: Header, pixels: Array, model: bytes) -> None:
        for key, wanted in QUESTION.items():
            require(key in header and conforms(header[key], wanted), f"the header's {key!r} is not as it must be")
        strength, clip, mean, std = (header[key] for key in ("strength", "clip", "mean", "std"))
        require(pixels.ndim == 3 and (np.abs(pixels) < 2.0**60).all(), "the pixels are not finite numbers")
        inside = len(strength) == len(header["parts"]) > 0 and all(0 <= s <= 1 for s in strength)
        require(inside, "there must be one strength in [0, 1] for each part")
        require(header["arithmetic"] in ("real", "float32"), "the arithmetic is neither real nor float32")
        require(clip is None or (len(clip) == 2 and clip[0] < clip[1]), "the clip range is empty")
        require((mean is None) == (std is None), "mean and std must come together")
        fits = {len(mean or [0.0]), len(std or [1.0])} <= {1, len(pixels)} and all(1e-30 < s < 1e30 for s in std or [])
        require(fits, "mean and std are not for the image's channels, or std is not positive")
        self._header, self._float32 = header, header["arithmetic"] == "float32"
        self.remarks = kernels.confirm(header["perturbation"], header["parts"], clip)
        if mean is not None:  # whoever reads the outcome must know what the network was given
            self.remarks.append(f"the model is given (x - {mean}) / {std}")
        self._base, slopes = kernels.path(pixels, header["parts"])
        self._slopes, self._slope_errors = (np.stack(side) for side in zip(*slopes, strict=True))
        self._program = _program(bytes(model))
        nowhere = np.zeros((1, len(slopes)))
        classes = self._scores(nowhere, nowhere).radius.shape[1]
        require(classes == header["classes"] >= 2, f"the network has {classes} classes, not {header['classes']}")
        require(0 <= header["label"] < classes, "the label is not a class")

    @np.errstate(all="ignore")  # what is not finite is looked at in the end
    def margins(self, low: Array, high: Array, winner: int | Array) -> Array:
        """For each box (n, m) a lower bound of how far the winner's score is above all others; NaN proves nothing."""
        low, high = (np.atleast_2d(np.asarray(side, dtype=np.float64)) for side in (low, high))
        winners = np.broadcast_to(np.asarray(winner), len(low))
        require(low.shape == high.shape == (len(low), len(self._slopes)), "a leaf is not a box of all strengths")
        require(np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all(), "a leaf is not a box")
        require(((winners >= 0) & (winners < self._header["classes"])).all(), "a winner is not a class")
        found = np.full(len(low), np.nan)
        step = max(1, min(4096, MEMORY // (8 * 12 * (len(self._slopes) + 2) * max(1, self._program.largest))))
        for some in (slice(first, first + step) for first in range(0, len(low), step)):
            least, _ = self._lead(low[some], high[some], winners[some])
            rivals = np.arange(least.shape[1]) != winners[some, None]
            found[some] = np.where(rivals, least, np.inf).min(1)
        return found

    @np.errstate(all="ignore")
    def advantage(self, z: Sequence[float], label: int, rival: int) -> tuple[float, float]:
        """Encloses score[label] - score[rival] at one point."""
        place = np.asarray(z, dtype=np.float64).reshape(1, -1)
        least, most = self._lead(place, place, np.array([label]))
        return float(least[0, rival]), float(most[0, rival])

    def _lead(self, low: Array, high: Array, winners: Array) -> tuple[Array, Array]:
        """Encloses score[winner] - score[j] on each leaf, for all j: the affine parts' difference, and both errors.

        Errors of two entries add up to at most radius + radius, and to at most sqrt(2) times the norm. A softmax that
        was left out keeps the order of scores, but in float32 only if they are 2^-18 of their size apart.
        """
        scores, rows = self._scores(low, high), np.arange(len(winners))
        size, doubt = scores.magnitude, 2.0**-18 if self._float32 and self._program.softmax else 0.0
        apart = scores.lines[:, rows, winners][:, :, None] - scores.lines
        error = np.minimum(scores.radius[rows, winners][:, None] + scores.radius, 1.5 * scores.norm[:, None])
        error = error + np.abs(apart[1:]).sum(0) + doubt * (1 + size + size[rows, winners][:, None])
        error = up(error + 8 * U64 * np.abs(apart[0]))  # differences are rounded: this one, and those returned
        return apart[0] - error, apart[0] + error

    def _scores(self, low: Array, high: Array) -> Tube:
        made = self._program.run(self._input(low, high))
        return made.each(lambda array: array.reshape(*array.shape[: array.ndim - len(made.shape)], -1))

    def _input(self, low: Array, high: Array) -> Tube:
        """x(z) on boxes: z = middle + t * half, with halves that reach at least to both ends."""
        middle = low / 2 + high / 2
        half = np.maximum(high - middle, middle - low) * (1 + 4 * U64)
        (base, error), reach = self._base, np.abs(middle) + half
        size = np.abs(base) + np.tensordot(reach, np.abs(self._slopes), 1)
        doubt = error + np.tensordot(reach, self._slope_errors, 1)
        lines = [base + np.tensordot(middle, self._slopes, 1), *(half.T[..., None, None, None] * self._slopes[:, None])]
        radius = up(doubt + (len(lines) + 3) * 2 * U64 * size + 2.0**-1000)
        x = Tube(np.stack(lines), radius, norm(radius), self._float32)
        if self._header["clip"] is not None:
            x = bent(x, clipping(*self._header["clip"]))
        if self._float32:  # pixels are stored as float32
            x = scaled(x, np.ones(()), 1)
        if self._header["mean"] is not None:
            mean, std = (np.array(self._header[key]).reshape(-1, 1, 1) for key in ("mean", "std"))
            # divided before it is subtracted; runtimes do it after: `unit` has room for both
            x = scaled(x, 1 / std, 8, -mean / std, np.abs(mean / std))
        return x.each(self._arranged)

    def _arranged(self, array: Array) -> Array:
        """Pictures (..., channels, height, width) as the model's input; flat inputs are read in the said order."""
        moved = np.moveaxis(array, -3, -1) if self._header["channels_last"] else array
        shape = self._program.model.input_shape
        long, image = ([size for size in sizes if size > 1] for sizes in (shape, moved.shape[-3:]))
        fits = (len(long) <= 1 or long == image) and math.prod(long) == math.prod(image)
        require(fits, "the image does not fit the model's input")
        return moved.reshape(*array.shape[:-3], *shape)


class Outcome(NamedTuple):
    """Whether a certificate holds, why in one sentence, and what was found on the way."""

    accepted: bool
    sentence: str
    details: dict[str, Any]


def pack(header: Header, arrays: Mapping[str, Array]) -> bytes:
    """A certificate; the header's "arrays" is filled in, pixels stored as float32 where that is exact."""
    made = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    if "pixels" in made and (made["pixels"].astype("<f4") == made["pixels"]).all():
        made["pixels"] = made["pixels"].astype("<f4")
    made = {n: a if a.dtype in ("<f4", "|u1") else a.astype("<f8") for n, a in made.items()}
    said = [{"name": n, "dtype": a.dtype.str, "shape": list(a.shape)} for n, a in made.items()]
    whole = {key: {**header, "arrays": said}[key] for key in HEADER}
    body = MAGIC + json.dumps(whole, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    body += b"".join(a.tobytes() for a in made.values())
    return body + hashlib.sha256(body).digest()


def unpack(certificate: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and arrays, after everything was checked that can be without the model."""
    require(certificate.startswith(MAGIC), "this is not a certificate of version 1")
    whole = hashlib.sha256(certificate[:-32]).digest() == certificate[-32:]
    require(whole, "the certificate was changed or cut short")
    line, newline, data = certificate[len(MAGIC) : -32].partition(b"\n")
    try:
        header = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the header is not readable ({error})") from error
    require(newline and type(header) is dict, "the header is not one line of JSON")
    for key in {**HEADER, **header}:
        fits = key in header and key in HEADER and conforms(header[key], HEADER[key])
        require(fits, f"the header's {key!r} is not as it must be, or must not be there")
    arrays: dict[str, Array] = {}
    for said in header["arrays"]:
        require(said["dtype"] in ("<f4", "<f8", "|u1"), "an array has a strange type")
        require(min(said["shape"], default=0) >= 0 and said["name"] not in arrays, "an array is given twice or odd")
        length = math.prod(said["shape"]) * int(said["dtype"][2])
        require(length <= len(data), "an array is longer than the file")
        arrays[said["name"]] = np.frombuffer(data[:length], said["dtype"]).reshape(said["shape"])
        data = data[length:]
    require(not data, "the file is longer than its arrays")
    return header, arrays


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    require(len(dict(pairs)) == len(pairs), "the header gives a key twice")
    return dict(pairs)


def check(certificate: bytes, model: bytes, image: Path | None = None) -> Outcome:
    """Whether everything that the certificate claims was proved here and now, from the model's own bytes."""
    details: dict[str, Any] = {}
    try:
        return Outcome(True, _checked(certificate, model, image, details), details)
    except Refused as problem:
        return Outcome(False, f"{'cannot be checked: ' if isinstance(problem, Unknown) else ''}{problem}", details)
    except MemoryError:
        return Outcome(False, "this needs more memory than there is", details)
    except MALFORMED as error:
        return Outcome(False, f"the files are malformed ({type(error).__name__})", details)


def _checked(certificate: bytes, model: bytes, image: Path | None, details: dict[str, Any]) -> str:
    header, arrays = unpack(certificate)
    details |= {key: header[key] for key in ("perturbation", "label", "strength", "arithmetic", "claim")}
    details |= {"model": header["model"]["name"], "image": header["image"]["name"], "image_compared": image is not None}
    pixels = np.asarray(arrays.get("pixels", np.zeros(0)), dtype="<f8")
    digests = [hashlib.sha256(data).hexdigest() for data in (model, pixels.tobytes())]
    require(digests[0] == header["model"]["sha256"], "the certificate is about another model")
    require(list(pixels.shape) == header["image"]["shape"] and pixels.ndim == 3, "the pixels have another shape")
    require(digests[1] == header["image"]["sha256"], "the pixels are not those of the image")
    seen = ["the image is the certificate's own pixels"] if image is None else _compared(image, pixels, header)
    claim, several = header["claim"], len(header["strength"]) > 1
    require(claim in ("safe", "unsafe") or (claim == "profile" and not several), f"the claim {claim!r} is not known")
    names = {"pixels"} if claim == "unsafe" else {"pixels", "axes", "cuts"} if several else {"pixels", "ends"}
    require(arrays.keys() == names, f"a certificate of this kind has the arrays {sorted(names)}")
    require((header["witness"] is None) != (claim == "unsafe"), "a witness is for the claim unsafe, only and always")
    require(bool(header["intervals"]) == ("ends" in names), "intervals are missing or superfluous")
    question = Question.of(header, pixels, model)
    details["remarks"] = question.remarks + seen
    if claim == "unsafe":
        return "; ".join((_beaten(question, header, details), *details["remarks"]))
    low, high, winners, sentence = (_tree if several else _line)(header, arrays, details)
    margins = question.margins(low, high, winners)
    failed = np.nonzero(~(margins > 0))[0].tolist()
    details |= {"leaves": len(low), "failed": len(failed), "least_margin": float(margins.min())}
    where = "".join(f"{low[i].tolist()} to {high[i].tolist()} ({margins[i]:.3g})" for i in failed[:1])
    require(not failed, f"not proved on {len(failed)} of {len(low)} leaves, first {where}")
    return "; ".join((f"{sentence}, {len(low)} leaves, margin at least {margins.min():.3g}", *details["remarks"]))


def _beaten(question: Question, header: Header, details: dict[str, Any]) -> str:
    """The claim unsafe: at one strength inside the box, another class has the higher score."""
    place, rival, label = header["witness"]["strength"], header["witness"]["class"], header["label"]
    require(len(place) == len(header["strength"]), "the witness has another number of strengths")
    require(all(0 <= z <= s for z, s in zip(place, header["strength"], strict=True)), "the witness is not inside")
    require(0 <= rival < header["classes"] and rival != label, "the witness's class is the label, or none")
    low, high = details["margin"] = question.advantage(place, label, rival)
    require(high < 0, f"not proved: at the witness, class {label} is {low:.6g} to {high:.6g} ahead of class {rival}")
    return f"class {rival} beats {label} at strength {place}, by at least {-high:.3g}"


def _line(header: Header, arrays: Mapping[str, Array], details: dict[str, Any]) -> Leaves:
    """Leaves that follow each other without gaps in each interval; which intervals there may be, the claim says."""
    (strength,), intervals, label, ends = header["strength"], header["intervals"], header["label"], arrays["ends"]
    require(ends.dtype == "<f8" and ends.ndim == 1 and np.isfinite(ends).all(), "the ends are not finite numbers")
    leaves, winners, place, reached, gaps = [], [], 0, 0.0, []
    for interval in intervals:
        own = ends[place : place + interval["leaves"] + 1]
        place += len(own)
        require(1 <= interval["leaves"] == len(own) - 1, "an interval has another number of ends than leaves + 1")
        require(own[0] == interval["from"] and own[-1] == interval["to"], "the ends are not those of their interval")
        require(interval["from"] >= reached, "intervals overlap")
        alone = strength == 0 and len(own) == 2 and own[0] == own[1] == 0
        require((own[1:] > own[:-1]).all() or alone, "the ends of the leaves do not increase")
        gaps += [interval["from"] - reached] if interval["from"] > reached else []
        reached = interval["to"]
        leaves.append(np.stack([own[:-1], own[1:]]))
        winners += [interval["class"]] * interval["leaves"]
    require(place == len(ends), "there are more ends than the intervals have")
    require(intervals[0]["from"] == 0 and reached == strength, "the intervals do not reach from 0 to the strength")
    sentence = f"class {label} wins at all strengths from 0 to {strength}"
    if header["claim"] == "safe":
        require(len(intervals) == 1 and intervals[0]["class"] == label, "safe is one interval, of the label")
    else:
        details |= {"gaps": len(gaps), "gap_length": sum(gaps)}
        sentence = f"{len(intervals)} intervals hold, {len(gaps)} gaps of length {sum(gaps):.3g} in all are left open"
    low, high = np.concatenate(leaves, axis=1)[..., None]
    return low, high, np.array(winners), sentence


def _tree(header: Header, arrays: Mapping[str, Array], details: dict[str, Any]) -> Leaves:
    """The leaves of a tree of cuts in preorder: they cover the whole box because the two sides of each cut do."""
    axes, cuts, strength = arrays["axes"], arrays["cuts"], header["strength"]
    require(axes.dtype == "|u1" and cuts.dtype == "<f8" and axes.ndim == cuts.ndim == 1, "the tree is not two lists")
    leaves, place, open_boxes = [], iter(cuts.tolist()), [((0.0,) * len(strength), tuple(strength))]
    for axis in axes.tolist():
        require(open_boxes, "the tree has more nodes than it needs")
        low, high = open_boxes.pop()
        if axis == 255:
            leaves.append((low, high))
            continue
        cut = next(place, math.nan)
        require(axis < len(strength) and low[axis] < cut < high[axis], "a cut is missing or outside its box")
        below, above = (*high[:axis], cut, *high[axis + 1 :]), (*low[:axis], cut, *low[axis + 1 :])
        open_boxes += [(above, high), (low, below)]  # the lower side comes next
    require(not open_boxes and next(place, None) is None, "the tree lacks nodes, or has more cuts than it needs")
    lows, highs = np.array(leaves).transpose(1, 0, 2)
    sentence = f"class {header['label']} wins at all strengths up to {strength}"
    return lows, highs, np.full(len(leaves), header["label"]), sentence


def _compared(image: Path, pixels: Array, header: Header) -> list[str]:
    """Refuse unless the image file is the one: .npy and .npz@INDEX pixel by pixel, others by the file's digest.

    Returns what should be said of it.
    """
    name, _, index = str(image).partition(".npz@")
    try:
        if image.suffix != ".npy" and not index.isdigit():
            same = hashlib.sha256(image.read_bytes()).hexdigest() == header["image"]["file_sha256"]
            require(same, "the image file is not the one whose digest the certificate gives")
            return ["the image file has the digest that the certificate gives; its pixels were not read"]
        file = np.load(name + ".npz" if index else image, allow_pickle=False)
        array = file["x"][int(index)] if index else file
        given = array.astype(np.float64) / (255.0 if array.dtype == np.uint8 else 1.0)
    except MALFORMED as error:
        raise Refused(f"the image {image} cannot be read ({' '.join(str(error).split())})") from error
    channels, height, width = pixels.shape
    layouts, last = [(channels, height, width), (height, width, channels)], header["channels_last"]
    long, *both = ([size for size in shape if size > 1] for shape in (given.shape, *layouts))
    order = last if len(long) < 2 else both.index(long) if long in both else None
    fits = array.dtype.kind in "fiub" and given.size == pixels.size and order is not None
    require(fits, "the image has another shape or type than the certificate's")
    given = np.moveaxis(given.reshape(layouts[1]), -1, 0) if order else given.reshape(pixels.shape)
    same = any((given.astype(kind) == pixels).all() for kind in (np.float64, np.float32))
    require(same, "the image has other pixels than the certificate")
    return []
