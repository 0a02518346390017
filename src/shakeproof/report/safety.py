"""Evidence for a safety case: what was claimed, what it rests on, and what is left open, as plain data.

The headings follow what ISO/IEC 24029-2 asks of a statement about a network's robustness.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import shakeproof
from shakeproof.campaign import StoredError, StoredProfile
from shakeproof.certificate import written_kernels
from shakeproof.proof import Status
from shakeproof.report import recheck
from shakeproof.report.contents import described
from shakeproof.report.names import shown
from shakeproof.report.reported import Reported, checked
from shakeproof.settings import Settings

FORMAT = "shakeproof evidence 2"
Rows = Sequence[Mapping[str, Any]]
LIBRARIES = ("numpy", "torch", "onnx", "onnxruntime")
METHODS = {
    "exact": (
        "every linear piece of the network along the path, or a proof that none of them matters",
        "complete for piecewise-linear networks and one strength: it ends with a verdict, but for margins that"
        " rounding might explain, and the time limit",
    ),
    "bounds": (
        "linear bounds on parts of the domain, split until all is proved or the time is up",
        "sound; complete only in the limit: where it ends without a proof, the item is undecided",
    ),
    "enumeration": (
        "every 8-bit picture of the path is run in the runtime, but for those of which bounds prove the outcome",
        "complete: there are finitely many pictures",
    ),
}
# What a row says of an answer beside what it is about; nothing of an error.
CLAIMED = (
    *("strength", "verdict", "certified_strength", "violated_from", "critical_strength", "method", "arithmetic"),
    *("details_sha256", "certificate_sha256"),
)
ARITHMETIC = {
    "real": "the network as a function on the real numbers, with the weights in the file",
    "float32": "every float32 evaluation of the network, in any order of summation (not Winograd's method, not TF32)",
    "deployed": "what the named runtime computes, on its machine, for each picture",
}


def safety_case(reported: Reported) -> dict[str, Any]:
    """The whole of it: sections with sentences for people and rows for programs."""
    makers = (
        *(_claim, _domain, _property, _criterion, _arithmetic, _method),
        *(_identity, _images, _results, _check, _coverage, _undecided, _assumptions),
    )
    campaign = reported.campaign
    found = [*_rows(reported)]
    return {
        "format": FORMAT,
        "campaign": shown(campaign.name),
        "requirement": {"id": shown(campaign.requirement.id), "text": shown(campaign.requirement.text)},
        "sections": [maker(reported, found) for maker in makers],
    }


def written(evidence: Mapping[str, Any]) -> str:
    """The evidence as a file: JSON with a line for each sentence and each row."""
    lines = []
    for section in evidence["sections"]:
        parts = {key: _lines(own) if isinstance(own, list) else json.dumps(own) for key, own in section.items()}
        lines.append(",\n".join(f"  {json.dumps(key)}: {text}" for key, text in parts.items()))
    head = "".join(f" {json.dumps(key)}: {json.dumps(evidence[key])},\n" for key in evidence if key != "sections")
    return f'{{\n{head} "sections": [\n {{\n' + "\n },\n {\n".join(lines) + "\n }\n ]\n}\n"


def _lines(values: Sequence[Any]) -> str:
    return "[" + ",".join(f"\n   {json.dumps(value, allow_nan=False)}" for value in values) + "]"


def _section(
    heading: str, asks: str, sentences: Sequence[str] = (), rows: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    return {"heading": heading, "asks": asks, "sentences": list(sentences), "rows": list(rows)}


def _claim(reported: Reported, found: Rows) -> dict[str, Any]:
    campaign = reported.campaign
    wanted = campaign.requirement
    named = shown(f"{wanted.id}: {wanted.text}".strip(": ")) or "The campaign file names no requirement."
    file = f"Campaign {shown(campaign.name)}" + (f", from {shown(campaign.file)}" if campaign.file else "")
    when = f"{file}, started {campaign.started}, last run {campaign.last_run}."
    rows = [{"strength": strength, **recheck.counts(found, strength)} for strength in reported.strengths]
    return _section("Claim", "What the results are evidence for.", (named, when), rows)


def _domain(reported: Reported, found: Rows) -> dict[str, Any]:
    largest: dict[str, set[Any]] = {}
    for row in found:
        if row["strength"] is not None:
            ends = row["strength"]
            largest.setdefault(row["perturbation"], set()).add(tuple(ends) if isinstance(ends, list) else ends)
    rows = [
        {
            "perturbation": said["text"],
            "in words": said["words"],
            "kernel": " x ".join(map(str, perturbation.kernel.shape)),
            "strengths from 0 to": sorted(largest.get(said["text"], {"-"}), key=str),
            "padding": ", ".join(perturbation.paddings) or "-",
            "clipping": "-" if perturbation.clip is None else "{:g} to {:g}".format(*perturbation.clip),
        }
        for perturbation in reported.perturbations
        for said in [described(perturbation)]
    ]
    words = (
        "For each image, all pictures that a perturbation makes of it: x(z) = A z + B for every real strength z from 0"
        " (the image itself; for kernels of even size its mean over 2 x 2 pixels) to the largest one, where A and B are"
        " the image convolved with the kernel's entries, with the same kernel on every channel.",
        f"{len(reported.images):,} images, listed below by the digests of their pixels.",
    )
    return _section("Domain", "The set of inputs that the statement is about.", words, rows)


def _property(reported: Reported, found: Rows) -> dict[str, Any]:
    words = (
        "The network's score for the label is greater than its scores for all other classes, at every strength of the"
        " domain. A tie counts as a loss.",
        "The label is the one that came with the image; where none did, the class that the network predicts for it.",
    )
    return _section("Property", "What must hold for every input of the domain.", words)


def _criterion(reported: Reported, found: Rows) -> dict[str, Any]:
    words = (
        "Certified: a proof covers every strength from 0 on, with a margin that exceeds what rounding may have done,"
        " and the reference runtime gave the same outputs on the item's own pictures.",
        "Violated: a picture was found for which the runtime itself gives another class, or for which another class"
        " provably wins in real numbers. Misclassified: that is so at strength 0.",
        "Everything else is undecided, with a reason, and never counted as certified. So is what ended in an error.",
    )
    return _section("Criterion", "When an item passes, and when it fails.", words)


def _arithmetic(reported: Reported, found: Rows) -> dict[str, Any]:
    asked = Counter(
        (one.said["arithmetic"], one.said["rounding"], str(one.settings.get("pixels", "real")))
        for one in reported.profiles
    )
    rows = [
        {
            "arithmetic": arithmetic,
            "about": ARITHMETIC.get(arithmetic, "-"),
            "rounding": "enclosed" if rounding == "rigorous" else "not looked at: no proof",
            "pixels": pixels,
            "items": count,
        }
        for (arithmetic, rounding, pixels), count in asked.items()
    ]
    words = (
        "Proofs are computed in float64, and what float64 may be off by is part of them; searches may use float32.",
    )
    return _section("Arithmetic", "Real numbers, or those of a computer.", words, rows)


def _method(reported: Reported, found: Rows) -> dict[str, Any]:
    used = Counter(one.said["method"] for one in reported.profiles)
    rows = [
        {"method": method, "how": METHODS[method][0], "completeness": METHODS[method][1], "items": count}
        for method, count in used.items()
    ]
    words = ("Sound, and deterministic but for time limits: the same question gets the same verdict.",)
    return _section("Method", "Whether it is sound, complete and deterministic.", words, rows)


def _identity(reported: Reported, found: Rows) -> dict[str, Any]:
    rows = [
        {"what": "tool that ran the campaign", "name": reported.campaign.tool, "sha256": "-"},
        {"what": "tool that wrote this", "name": f"shakeproof {shakeproof.__version__}", "sha256": tool_digest()},
        {"what": "Python", "name": platform.python_version(), "sha256": "-"},
        *({"what": "library", "name": f"{name} {_version(name)}", "sha256": "-"} for name in LIBRARIES),
        *({"what": "network", "name": shown(model.name), "sha256": model.identity} for model in reported.models),
    ]
    words = (
        "Digests are SHA-256: of a network's file; of the tool's source files, each by path and content. Versions of"
        " Python and the libraries are those where this was written.",
    )
    return _section("Identity", "Which networks and tools this is about.", words, rows)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "is not installed"


def tool_digest() -> str:
    """The SHA-256 of the installed package: of its source files, by path and content."""
    root = Path(shakeproof.__file__).parent
    whole = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        whole.update(f"{path.relative_to(root).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def _images(reported: Reported, found: Rows) -> dict[str, Any]:
    rows = [
        {
            "image": shown(image.name),
            "label": image.label,
            "shape": " x ".join(map(str, image.shape)),
            "pixels_sha256": image.digest,
        }
        for image in reported.images
    ]
    words = ("Pixels as they were perturbed: channels, height, width in float64, after any resizing and cropping.",)
    return _section("Images", "Which pictures this is about.", words, rows)


def _results(reported: Reported, found: Rows) -> dict[str, Any]:
    words = (
        "Verdicts are about all strengths from 0 to the item's own. A certified strength is the largest up to which the"
        " label was proved to win, violated_from the smallest at which it was shown to lose; the critical strength, at"
        " which it loses first, lies between the two. Of several strengths, each is at most that.",
    )
    return _section("Results", "Verdict and certificate for each item.", words, found)


def _rows(reported: Reported) -> Iterator[dict[str, Any]]:
    known: dict[Any, Any] = {}
    for one in reported.profiles:
        yield item_row(one, known) | {"checker": checked(one, reported)}
    for failed in reported.errors:
        yield {
            "item": failed.number,
            **_about(failed, known),
            "label": failed.image.label,
            **dict.fromkeys(CLAIMED),
            "verdict": f"error ({failed.kind})",
            "checker": shown(failed.message),
        }


def item_row(one: StoredProfile, known: dict[Any, Any] | None = None) -> dict[str, Any]:
    """What the evidence says of an answer. What many answers share is worked out once, and kept in `known`."""
    known = {} if known is None else known
    said, claim = one.said, one.claim
    key = id(one.model), id(one.perturbation), id(one.settings)
    if key not in known:
        known[key] = _details(one)
    return {
        "item": one.number,
        **_about(one, known),
        "label": said["label"],
        "strength": said["strength"],
        "verdict": claim.verdict.value,
        "certified_strength": claim.proved,
        "violated_from": claim.lost,
        "critical_strength": None if claim.critical is None else [*claim.critical],
        "method": said["method"],
        "arithmetic": said["arithmetic"],
        "details_sha256": known[key],
        "certificate_sha256": one.certificate,
    }


def _about(one: StoredProfile | StoredError, known: dict[Any, Any]) -> dict[str, Any]:
    """Which item a row is about."""
    if id(one.perturbation) not in known:
        known[id(one.perturbation)] = shown(str(one.perturbation))
    return {
        "image": shown(one.image.name),
        "image_sha256": one.image.digest,
        "model_sha256": one.model.identity,
        "perturbation": known[id(one.perturbation)],
    }


def _details(one: StoredProfile) -> str:
    """What was asked beside all that, by a digest, as it is in certificates."""
    model = one.model
    return recheck.detailed(
        {
            "kernels": written_kernels(one.perturbation),
            "mean": [*map(float, model.mean or ())],
            "std": [*map(float, model.std or ())],
            "channels_last": model.channels_last,
            "rounding": Settings(pixels=one.settings["pixels"]).pixel_rounding,
        }
    )


def _check(reported: Reported, found: Rows) -> dict[str, Any]:
    words = [
        "The independent checker (shakeproof.checker, which shares no code with the prover and needs numpy only) ran"
        f" for this report, with numpy {_version('numpy')} on Python {platform.python_version()}. The numbers of"
        " certificates that hold, prove less than is claimed, or were refused are under Coverage.",
    ]
    words += [f"{count:,} certificates: {why}" for why, count in Counter(reported.unchecked.values()).items()]
    rows = [
        {"item": one.number, "certificate_sha256": one.certificate, "checker": checked(one, reported)}
        for one in reported.profiles
        if one.query in reported.checks and not reported.checks[one.query].accepted
    ]
    return _section("Check", "Who verified the results, apart from the tool that found them.", words, rows)


def _coverage(reported: Reported, found: Rows) -> dict[str, Any]:
    campaign = reported.campaign
    counts = {"queries of the campaign": campaign.asked, "not run yet": campaign.missing, **recheck.coverage(found)}
    rows = [{"what": what, "count": count} for what, count in counts.items()]
    words = ("A certified item covers all of its domain: no strength in between was left out or sampled.",)
    return _section("Coverage", "How much of what was asked is answered, certified and checked.", words, rows)


def _undecided(reported: Reported, found: Rows) -> dict[str, Any]:
    why = {one.number: _why(one) for one in reported.profiles if one.claim.verdict is Status.UNDECIDED}
    why |= {failed.number: f"error ({failed.kind}): {shown(failed.message)}" for failed in reported.errors}
    rows = [
        {
            **{key: row[key] for key in ("item", "image", "perturbation")},
            "proved up to": row["certified_strength"],
            "why": why[row["item"]],
        }
        for row in found
        if row["item"] in why
    ]
    return _section("Undecided", "Everything of which nothing is claimed.", () if rows else ("Nothing.",), rows)


def _why(one: StoredProfile) -> str:
    if one.said["rounding"] == "nominal":
        return "rounding was not looked at, as was asked for"
    return one.record.why


def _assumptions(reported: Reported, found: Rows) -> dict[str, Any]:
    paddings = ", ".join(sorted({pad for kind in reported.perturbations for pad in kind.paddings})) or "none"
    clipped = sum(kind.clip is not None for kind in reported.perturbations)
    pixels = ", ".join(sorted({str(one.settings.get("pixels", "real")) for one in reported.profiles}))
    words = [
        f"Outside an image, pixels are what the padding says: {paddings} (reflect does not repeat the edge).",
        f"{clipped} of {len(reported.perturbations)} perturbations clip pixels; the others may leave the usual range.",
        f"Pixels: {pixels}. Real ones take every value between grey levels; 8bit ones are rounded as a file would.",
        "The real camera is as close to the domain as its perturbations are: that is an argument to be made elsewhere.",
        "The weights are those in the file with the digest above, and the deployed runtime computes the graph in it.",
    ]
    for model in reported.models:
        order = "height, width, channels" if model.channels_last else "channels, height, width"
        normal = f"; (x - {list(model.mean)}) / {list(model.std or ())} before it" if model.mean else ""
        words.append(
            f"{shown(model.name)}: pictures of {' x '.join(map(str, model.image_shape))}, given as {order}{normal}."
        )
        words += [f"{shown(model.name)}: {shown(note)}" for note in model.notes]
    return _section("Assumptions", "What must be true outside of this for the claim to hold.", words)
