"""The report as one HTML file that needs nothing else: text, style, program and data.

The page gets numbers, not rules: two of them, `proved` and `lost`, say what an answer claims at every strength. What is
only drawn (pictures and curves) is packed, and kept as far as there is room.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from math import ceil, floor, inf, prod
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shakeproof import __version__
from shakeproof.files import readable_name
from shakeproof.report import recheck
from shakeproof.report.gathering import Reported, described, image_key
from shakeproof.store import DrawnCurve, StoredError, StoredImage, StoredProfile

# The page's program: each part uses those before it.
SCRIPTS = (
    *("data", "picture", "marks", "kernel", "selection", "requirements", "accuracy", "summary", "list", "curves"),
    *("detail", "evidence", "main"),
)
# A page takes 10 MB at most: so many characters are for its data, the rest is for its program.
ROOM = 9_800_000
# In a table of evidence on the page.
MOST_ROWS = 1000
# In a page of more answers than this, digests are cut to their first digits.
MANY, SHORT = 20_000, 16
# Characters of base64 for each byte, with some to spare; and what it takes to say where something is.
GROWTH, PLACE = 1.4, 150
# So many bytes are unpacked at once, when the first of them is needed.
BLOCK = 2**20
CONFIDENCE = 0.95


def html_page(reported: Reported, evidence: Mapping[str, Any], title: str) -> str:
    """The whole page.

    Names that people chose come in as base64, or escaped, and are only ever shown as text. The policy lets the browser
    run and use only the program and the style of this page, by their digests, and fetch nothing: a name that broke out
    would do nothing.
    """
    parts = files("shakeproof.report") / "assets"
    style = (parts / "page.css").read_text("utf-8")
    program = "\n".join((parts / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{program}\n}})();\n'
    data = "\n".join(
        f'<script type="application/octet-stream" id="{name}">{text}</script>'
        for name, text in blocks(reported, evidence).items()
    )
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    return Template((parts / "page.html").read_text("utf-8")).substitute(
        title=escape(readable_name(title)),
        tool=escape(f"shakeproof {__version__}"),
        policy="default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'".format(*digests),
        style=style,
        script=script,
        blobs=data,
    )


# -- the data ---------------------------------------------------------------------------------------------------------


def blocks(reported: Reported, evidence: Mapping[str, Any], room: int = ROOM) -> dict[str, str]:
    """The blocks of the page by their names: `contents` is JSON, `drawings` says where the numbers of the others are.

    Pictures and curves are kept as far as there is room: first those of the answers that lose their label first.
    """
    sections = {section["heading"]: section["rows"] for section in evidence["sections"]}
    answers = _answers(reported, sections)
    covered = {row["what"]: row["count"] for row in sections["Coverage"]}
    contents = {
        "lead": recheck.lead(sections["Results"], sum(answers["pieces"]), sum(answers["seconds"])),
        "notices": list(recheck.notices(covered, sum(answers["label_predicted"]))),
        "strengths": list(reported.strengths),
        "models": [
            {
                "name": readable_name(model.name),
                "sha256": model.identity,
                "classes": [readable_name(model.class_names.shown(n)) for n in range(len(model.class_names))],
            }
            for model in reported.models
        ],
        "images": [
            {
                "name": readable_name(image.name),
                "sha256": _digest(image.digest, len(reported.asked)),
                "shape": list(image.shape),
            }
            for image in reported.images
        ],
        "perturbations": [described(kind) for kind in reported.perturbations],
        "answers": {key: values for key, values in answers.items() if key != "profile"},
        "bands": _bands(answers),
        "evidence": {**evidence, "sections": [_shortened(section) for section in evidence["sections"]]},
    }
    text = json.dumps(contents, separators=(",", ":"), allow_nan=False)
    # profiles are JSON already
    start, end = text.split('"answers":{', 1)
    packed = _packed(f'{start}"answers":{{"profile":[{",".join(answers["profile"])}],{end}'.encode())
    return {"contents": packed, **_drawings(reported, answers["image"], room - len(packed))}


def _shortened(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first rows of a long table."""
    left = len(section["rows"]) - MOST_ROWS
    if left <= 0:
        return section
    more = f"{left:,} more rows are in the evidence file."
    return {**section, "rows": section["rows"][:MOST_ROWS], "sentences": [*section["sentences"], more]}


def _answers(reported: Reported, sections: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Any]]:
    """The page's data for each answer, then each error, as columns: the claims of its row of the evidence,
    and what else is shown. Profiles are JSON.
    """
    rows, asked = sections["Results"], reported.asked
    models = {model.digest: number for number, model in enumerate(reported.models)}
    numbers = {image_key(image): number for number, image in enumerate(reported.images)}
    images = {id(image): numbers[image_key(image)] for image in {id(one.image): one.image for one in asked}.values()}
    places = {perturbation: number for number, perturbation in enumerate(reported.perturbations)}
    perturbations = {definition: places[perturbation] for definition, perturbation in reported.kinds.items()}
    why = {row["item"]: row["why"] for row in sections["Undecided"]}
    columns = {name: [row[key] for row in rows] for name, key in recheck.SAME.items()}
    values = [one.values for one in reported.profiles]
    columns |= {
        key: [value[key] for value in values] for key in ("predicted", "profile", "pieces", "rounding", "seconds")
    }
    columns |= {
        "counterexample": [*map(_counterexample, values)],
        "min_margin": [_rounded(value["min_margin"]) for value in values],
        "label_predicted": [one.label_predicted for one in reported.profiles],
        "unproved": [one.unproved and readable_name(one.unproved) for one in reported.profiles],
    }
    for number, error in enumerate(reported.errors, start=len(values)):
        for name, value in _failed(error).items():
            columns[name][number : number + 1] = [value]
    return columns | {
        "certificate": [_digest(certificate, len(asked)) for certificate in columns["certificate"]],
        "model": [models[one.model.digest] for one in asked],
        "image": [images[id(one.image)] for one in asked],
        "perturbation": [perturbations[one.definition] for one in asked],
        "why": [why.get(one.number) for one in asked],
    }


def _counterexample(values: Mapping[str, Any]) -> dict[str, Any] | None:
    if values["counterexample_strength"] is None:
        return None
    strength, replayed = values["counterexample_strength"], values["counterexample_replayed"]
    return {
        "strength": json.loads(strength) if isinstance(strength, str) else strength,
        "class": values["counterexample_class"],
        "margin": _rounded(values["counterexample_margin"]),
        "replayed": replayed == "true",
    }


def _failed(one: StoredError) -> dict[str, Any]:
    """The fields of an error on the page; its kind stands for the method."""
    return {
        **dict.fromkeys(("predicted", "counterexample", "min_margin", "unproved", "checked")),
        "status": "error",
        "method": one.kind,
        "requirement": one.asked,
        "rounding": "rigorous",
        "arithmetic": "-",
        "profile": "[]",
        "pieces": 0,
        "seconds": 0.0,
        "label_predicted": False,
    }


def _rounded(number: float | None) -> float | None:
    """A number that is only shown, with as many digits as are shown."""
    return None if number is None else float(f"{number:.5g}")


def _digest(digest: str | None, answers: int) -> str | None:
    """All of a digest, or its first digits in a page of many answers."""
    return digest if digest is None or answers <= MANY else f"{digest[:SHORT]}…"


def _bands(answers: Mapping[str, Sequence[Any]]) -> dict[str, list[list[float]]]:
    """For each number of images that a curve of a model, a requirement and a perturbation is over, which leaves
    misclassified ones out: the confidence bounds for each count of them.
    """
    curves = zip(*(answers[key] for key in ("status", "model", "requirement", "perturbation")), strict=True)
    sizes = {*Counter(curve[1:] for curve in curves if curve[0] != "misclassified").values()}
    return {
        str(size): [[floor(low * 1e6) / 1e6, ceil(high * 1e6) / 1e6] for low, high in confidence(size)]
        for size in sorted(sizes)
    }


def confidence(samples: int) -> list[tuple[float, float]]:
    """Clopper-Pearson bounds for a share, for 0, 1, ... hits among so many samples."""
    from scipy.special import betaincinv

    hits, tail = np.arange(samples + 1), (1 - CONFIDENCE) / 2
    with np.errstate(invalid="ignore"):
        low = np.nan_to_num(betaincinv(hits, samples - hits + 1, tail), nan=0.0)
        high = np.nan_to_num(betaincinv(hits + 1, samples - hits, 1 - tail), nan=1.0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


# -- pictures and curves ----------------------------------------------------------------------------------------------


class Blocks:
    """Bytes that are put into the page, deflated, in blocks of about one size."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self.parts = prefix, [bytearray()]

    def add(self, numbers: NDArray[np.float64], bits: int, low: float, high: float) -> dict[str, Any]:
        """Keep numbers between `low` and `high` as whole numbers of so many bits; returns where they are."""
        if len(self.parts[-1]) > BLOCK:
            self.parts.append(bytearray())
        levels = np.rint((numbers - low) / ((high - low) or 1.0) * (2**bits - 1))
        place = {"block": f"{self.prefix}{len(self.parts) - 1}", "at": len(self.parts[-1]), "count": numbers.size}
        self.parts[-1] += levels.astype("<u2" if bits == 16 else "u1").tobytes()
        return place | {"bits": bits, "low": low, "high": high}

    def packed(self) -> dict[str, str]:
        return {f"{self.prefix}{number}": _packed(part) for number, part in enumerate(self.parts)}


def _packed(data: bytes | bytearray) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def _packed_json(value: Mapping[str, Any]) -> str:
    return _packed(json.dumps(value, separators=(",", ":"), allow_nan=False).encode())


def _drawings(reported: Reported, images: Sequence[int], room: int) -> dict[str, str]:
    """The data for drawing: curves by answer number (answers have these `images`), and pictures by image number."""
    pictures, curves = Blocks("pictures"), Blocks("curves")
    weakest = _weakest(reported)
    curve_sizes = {number: len(kept) for number in weakest if (kept := reported.profiles[number].packed_curve)}
    order = dict.fromkeys([*(images[number] for number in weakest), *range(len(reported.images))])
    picture_sizes = {number: len(reported.images[number].packed) for number in order}
    degraded = {definition for definition, kind in reported.kinds.items() if kind.degradations}
    moving = [number for number in weakest if degraded and reported.profiles[number].definition in degraded]
    slope_sizes = {number: _bytes_of_slopes(reported.profiles[number]) for number in moving}
    share = room / (3 if slope_sizes else 2)
    drawn, pictured, moved = (_fitting(sizes, share) for sizes in (curve_sizes, picture_sizes, slope_sizes))
    contents = {
        "margins": {number: _margins(reported.profiles[number].curve, curves) for number in drawn},
        "pixels": {number: _pixels(reported.images[number], pictures) for number in pictured},
        "slopes": {number: _slopes(reported.profiles[number], pictures) for number in moved},
        "notices": [
            f"Left out, to keep the page small: {recheck.counted(count, what)}. The store has them."
            for what, count in (
                ("curve", len(curve_sizes) - len(drawn)),
                ("picture", len(picture_sizes) - len(pictured)),
                ("perturbed picture", len(slope_sizes) - len(moved)),
            )
            if count
        ],
    }
    return {"drawings": _packed_json(contents), **pictures.packed(), **curves.packed()}


def _weakest(reported: Reported) -> list[int]:
    """The numbers of the answers, in the order in which the page lists them at first."""

    def key(number: int) -> tuple[float, float]:
        claim = reported.profiles[number].claim
        return inf if claim.lost is None else claim.lost, claim.proved or 0.0

    return sorted(range(len(reported.profiles)), key=key)


def _fitting(sizes: Mapping[int, int], room: float) -> list[int]:
    """The first of these that there is room for, by their sizes in the store, which are about those in the page."""
    fitting = []
    for number, size in sizes.items():
        room -= GROWTH * size + PLACE
        if room < 0:
            break
        fitting.append(number)
    return sorted(fitting)


def _pixels(image: StoredImage, pictures: Blocks) -> dict[str, Any]:
    """Grey levels where the pixels are some; else far finer ones."""
    pixels, levels = image.pixels, np.rint(image.pixels * 255)
    is_grey = bool((levels == pixels * 255).all()) and levels.min() >= 0 and levels.max() <= 255
    low, high = (0.0, 1.0) if is_grey else (float(pixels.min()), float(pixels.max()))
    return pictures.add(pixels, 8 if is_grey else 16, low, high)


def _bytes_of_slopes(one: StoredProfile) -> int:
    """What `_slopes` takes, about."""
    return 2 * len(one.perturbation.degradations) * prod(one.image.shape)


def _slopes(one: StoredProfile, pictures: Blocks) -> list[dict[str, Any] | None]:
    """What the full strength of each part adds to the picture, where pixels have kernels of their own; else None."""
    import torch

    perturbation = one.perturbation
    slopes = perturbation.apply(torch.from_numpy(one.image.pixels.astype(np.float64))).slopes.numpy()
    return [
        pictures.add(slope, 16, float(slope.min()), float(slope.max())) if part in perturbation.degradations else None
        for part, slope in zip(perturbation.parts, slopes, strict=True)
    ]


def _margins(curve: DrawnCurve | None, curves: Blocks) -> dict[str, Any] | None:
    if curve is None or len(curve.z) < 2:
        return None
    return {
        "rivals": [{"class": int(rival)} for rival in curve.rivals],
        "z": curves.add(curve.z, 16, 0.0, float(curve.z[-1])),
        "leads": curves.add(curve.leads, 16, float(curve.leads.min()), float(curve.leads.max())),
    }
