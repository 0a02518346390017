"""Certificates: what they must look like, and whether what they claim holds."""

import hashlib
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import shakeproof.checker.enumeration as enumeration
from shakeproof.checker.budget import Array, Refused, Unknown, limited, require
from shakeproof.checker.enumeration import Details, Progress, shown
from shakeproof.checker.picture import compared
from shakeproof.checker.question import Question

MAGIC = b"shakeproof certificate 1\n"
# fmt: off
HEADER = {
    "tool": str, "model": str, "model_sha256": str, "image": str, "image_sha256": str, "file_sha256": str,
    "channels_last": bool, "perturbation": str, "kernels": list, "mean": list, "std": list, "label": int,
    "strength": list, "arithmetic": str, "claim": str, "arrays": dict}
REQUIRED = {"requirement": str, "start": list}  # where that is not a label
# What Python raises when a file means something impossible.
MALFORMED = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
    struct.error, zipfile.BadZipFile, zlib.error)
# fmt: on
LEAF = 255  # in a tree of cuts, where other nodes have an axis
OPEN = -1  # in a profile's winners: nothing is claimed of this leaf


class Outcome(NamedTuple):
    """Whether a certificate holds, why in one sentence, and what was found on the way."""

    accepted: bool
    sentence: str
    details: Details


def unpack(certificate: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and arrays. Written again, the header must give the same bytes: no key is repeated, nothing is NaN."""
    require(certificate.startswith(MAGIC), "this is not a certificate of version 1")
    body, digest = certificate[:-32], certificate[-32:]
    require(hashlib.sha256(body).digest() == digest, "the certificate was changed or cut short")
    line, _, rest = body[len(MAGIC) :].partition(b"\n")
    data = memoryview(rest)
    header, arrays = json.loads(line), dict[str, Array]()
    plain = json.dumps(header, ensure_ascii=False, allow_nan=False).encode() == line
    keys = HEADER | (REQUIRED if "requirement" in header else {}) | ({"nodes": list} if "nodes" in header else {})
    keys = HEADER | enumeration.HEADER if header.get("arithmetic") == "deployed" else keys
    typed = plain and {key: type(value) for key, value in header.items()} == keys
    require(typed, "the header is not written as it must be, or has other keys, or values of other types")
    for name, (dtype, *shape) in header["arrays"].items():
        require(
            dtype in ("<f4", "<f8", "<i2", "|u1") and min(shape, default=0) >= 0, "an array has an unsupported type"
        )
        length = math.prod(shape) * int(dtype[2])
        arrays[name], data = np.frombuffer(data[:length], dtype).reshape(shape), data[length:]
    require(not data, "the file is longer than its arrays")
    return header, arrays


def check(
    certificate: bytes, model: bytes, image: Path | None = None, progress: Progress = shown, effort: float = 1.0
) -> Outcome:
    """Whether everything that the certificate claims was proved here and now, from the model's own bytes.

    What it may cost is limited (docs/checker.md); `effort` multiplies the limits.
    """
    details: Details = {}
    try:
        header, arrays = unpack(certificate)
        leaves = arrays.get("pixels" if header["arithmetic"] == "deployed" else "cuts", np.zeros(0)).size
        with limited(leaves, len(model), effort):
            return Outcome(True, "; ".join(_checked(header, arrays, model, image, details, progress)), details)
    except Refused as problem:
        return Outcome(False, f"{'cannot be checked: ' if isinstance(problem, Unknown) else ''}{problem}", details)
    except MALFORMED as error:
        return Outcome(False, f"malformed ({type(error).__name__}: {' '.join(str(error).split())[:200]})", details)


def _checked(
    header: dict[str, Any],
    arrays: dict[str, Array],
    model: bytes,
    image: Path | None,
    details: Details,
    progress: Progress,
) -> list[str]:
    """What was proved, in sentences; fills in the details."""
    details |= {key: value for key, value in header.items() if key not in ("kernels", "nodes", "arrays")}
    claim, label, strength = (header[key] for key in ("claim", "label", "strength"))
    pixels = arrays["pixels"].astype("<f8")
    require(_digest(model) == header["model_sha256"], "the certificate is about another model")
    require(_digest(pixels.tobytes()) == header["image_sha256"], "the pixels are not those of the image")
    required = header.get("requirement")
    require(claim in ("safe", "unsafe") or (claim == "profile" and not required), f"the claim {claim!r} is not known")
    if header["arithmetic"] == "deployed":
        return enumeration.checked(header, pixels, model, image, details, progress)
    question = Question(header, pixels, model)
    details["image_compared"], seen = compared(image, pixels, header, question.input_shape)
    details["remarks"] = [*question.remarks, seen]
    where = {"witness"} if claim == "unsafe" else {"cuts"} if len(strength) == 1 else {"axes", "cuts"}
    names = where | {"pixels"} | (set() if claim == "safe" or required else {"winners"})
    require(arrays.keys() == names, f"a certificate of this kind has the arrays {sorted(names)}")
    low, high = _leaves(strength, arrays)
    winners = arrays.get("winners", np.full(len(low), 0 if required else label)).astype(int)
    require(winners.shape == (len(low),), "there must be one winner for each leaf")
    claimed = winners != OPEN
    require(claimed.all() or (claim == "profile" and claimed.any()), "nothing is claimed")
    left = (high - low)[~claimed].prod(1)
    low, high, winners = low[claimed], high[claimed], winners[claimed]
    margins = question.margins(low, high, winners, over=label if claim == "unsafe" else None)
    failed = np.flatnonzero(~(margins > 0)).tolist()
    details |= {"leaves": len(low), "failed": len(failed), "least_margin": float(margins.min())}
    details |= {"gaps": len(left), "gap_length": float(left.sum())}
    first = "".join(f"{low[i].tolist()} to {high[i].tolist()} ({margins[i]:.3g})" for i in failed[:1])
    require(not failed, f"not proved on {len(failed)} of {len(low)} leaves, first {first}")
    about = f"{required}, of label {label}," if label >= 0 else required
    holds = f"{about} holds" if required else f"class {label} wins"
    broken = f"{about} fails" if required else f"class {winners[0]} beats {label}"
    sentences = {
        "safe": f"{holds} at all strengths from 0 to {strength}",
        "unsafe": f"{broken} at strength {low[0].tolist()}",
        "profile": f"every stated class wins where it is stated to; gaps: {len(left)}, {left.sum():.3g} wide in total",
    }
    return [f"{sentences[claim]}; parts proved: {len(low)}, margin at least {margins.min():.3g}", *details["remarks"]]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _leaves(strength: Sequence[float], arrays: Mapping[str, Array]) -> tuple[Array, Array]:
    """The boxes (n, m) that the claim is about, by their corners: a witness is one; others cover all strengths."""
    places = arrays["witness" if "witness" in arrays else "cuts"]
    require(places.dtype == "<f8" and places.ndim == 1, "cuts and a witness are lists of float64 numbers")
    if "witness" in arrays:
        require(((places >= 0) & (places <= strength)).all(), "the witness is not inside")
        return places[None], places[None]
    if "axes" in arrays:
        return _tree(strength, arrays["axes"], places)
    ends = np.concatenate([[0.0], places, strength])
    require((ends[1:] > ends[:-1]).all() or len(ends) == 2, "the cuts do not increase from 0 to the strength")
    return ends[:-1, None], ends[1:, None]


def _tree(strength: Sequence[float], axes: Array, cuts: Array) -> tuple[Array, Array]:
    """The leaves of a tree of cuts in preorder: they cover the whole box because the two sides of each cut do."""
    require(axes.dtype == "|u1" and axes.ndim == 1, "the axes are not a list of bytes")
    leaves, place, open_boxes = [], iter(cuts.tolist()), [([0.0] * len(strength), list(strength))]
    for axis in axes.tolist():
        require(open_boxes, "the tree has more nodes than it needs")
        low, high = open_boxes.pop()
        if axis == LEAF:
            leaves.append((low, high))
            continue
        cut = next(place, math.nan)
        require(axis < len(strength) and low[axis] < cut < high[axis], "a cut is missing or outside its box")
        below, above = high.copy(), low.copy()
        below[axis] = above[axis] = cut
        open_boxes += [(above, high), (low, below)]  # the lower side comes next
    require(not open_boxes and next(place, None) is None, "the tree lacks nodes, or has more cuts than it needs")
    lows, highs = np.array(leaves).transpose(1, 0, 2)
    return lows, highs
