"""Evidence for a safety case as plain data: the claims, their basis, and what is open; and a folder
with all that it takes to check it elsewhere.

The headings follow what ISO/IEC 24029-2 asks of a statement about a network's robustness.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

import shakeproof
from shakeproof import checker
from shakeproof.errors import InputError
from shakeproof.files import readable_name
from shakeproof.proof import Status
from shakeproof.question import Perturbation
from shakeproof.report import recheck
from shakeproof.report.gathering import Reported, evidence_rows, model_files, perturbation_words
from shakeproof.store import Judged, Store

FORMAT = "shakeproof evidence 3"
Rows = Sequence[Mapping[str, Any]]
LIBRARIES = ("numpy", "torch", "onnx", "onnxruntime")
METHODS = {
    "exact": (
        "every linear piece of the network along the path, or a proof that it does not matter",
        "complete for piecewise-linear networks and one strength: it ends with a verdict, except where rounding might"
        " explain a margin, or where the time limit ends it",
    ),
    "bounds": (
        "linear bounds on parts of the domain, split until all of them are proved or the time is up",
        "sound; complete only in the limit: where it ends without a proof, the item is undecided",
    ),
    "enumeration": (
        "every 8-bit picture of the path is run in the runtime",
        "complete: there are finitely many pictures",
    ),
}
ARITHMETIC = {
    "real": "the network as a function on the real numbers, with the weights in the file",
    "float32": "every float32 evaluation of the network, in any order of summation (not Winograd's method, not TF32)",
    "deployed": "what the named runtime computes, on its machine, for each picture",
}
DOMAIN = (
    "For each image, all pictures that a perturbation makes of it: x(z) = A z + B for every real strength z from 0"
    " (the image itself; for kernels of even size its mean over 2 x 2 pixels) to the largest one. A and B are the image"
    " convolved with the kernel's entries, with the same kernel on every channel."
)
REQUIREMENTS = (
    "Each row is a claim: an ML safety requirement (AMLAS, artefact H) is satisfied by a network (G5.1). In the words"
    " of ISO/IEC 24029-2, its property is what the requirement says of the outputs, its domain is that of its"
    " perturbations up to its strength, and its criterion is the share of pictures, with a confidence.",
    "A picture holds where the property is proved on the whole domain, fails where a counterexample was shown, and is"
    " undecided else. Pictures that fail at strength 0 are left out. Pictures with the same pixels are one.",
    "MET: with the confidence that is asked, at least the share that is asked holds, even if all that is undecided"
    " fails. NOT MET: with that confidence less than that share holds, even if all that is undecided holds. NOT SHOWN"
    " is everything else. Bounds are Clopper and Pearson's, on one side each, for the population from which the"
    " pictures were drawn at random. A share of 1 is about these pictures alone, without confidence.",
    "By certificates: the same, if whatever the checker has not accepted a certificate of is undecided.",
)
ARGUMENT = (
    "The strategy is formal verification (AMLAS S5.1): a requirement rests on its pictures, a picture on its items, and"
    " an item on its verdict under Results and on its certificate, which the independent checker examines. Results and"
    " certificates are ML verification results (artefact Z), this file is the verification log (AA). That the"
    " requirement is the right one, and that pictures and perturbations are those of the road, are claims of their own,"
    " which are shown elsewhere.",
)
PROPERTY = (
    "Where the requirement is the label, its score is greater than those of all other classes, at every strength of the"
    " domain. A tie counts as a loss. Another requirement holds at every strength of the domain.",
    "The label is the one that came with the image; if none did, it is the class that the network predicts.",
)
CRITERION = (
    "Certified: a proof covers every strength from 0 on, with a margin that exceeds the possible rounding error, and"
    " the reference runtime gave the same outputs on the item's own pictures.",
    "Violated: the runtime gives another class for some picture of the domain, or outputs that fail the requirement; or"
    " that is proved there in real numbers. Misclassified: that is so at strength 0.",
    "Everything else is undecided, with a reason, and never counted as certified. So is an item that ended in an"
    " error.",
)
TESTED = (
    "Where strengths were drawn at random and run in the runtime, the share of strengths that lose is bounded by"
    " Clopper and Pearson's method (one-sided, confidence 99.9 %). That is a test, and counts nowhere as a proof."
)
RESULTS = (
    "Verdicts are about all strengths from 0 to the item's own. The certified strength is the largest up to which the"
    " requirement was proved to hold; violated_from is the smallest at which it was shown to fail. The critical"
    " strength, at which it first fails, lies between the two. Of several strengths, each is at most the number given."
    " Of the requirement label, holding is that the label wins."
)


def safety_case(reported: Reported) -> dict[str, Any]:
    """The whole evidence: sections with sentences for people and rows for programs."""
    campaign, rows = reported.campaign, [*evidence_rows(reported)]
    return {
        "format": FORMAT,
        "campaign": readable_name(campaign.name),
        "requirement": {
            "id": readable_name(campaign.requirement.id),
            "text": readable_name(campaign.requirement.text),
        },
        "sections": [
            _claim(reported, rows),
            *_requirements(reported, rows),
            _domain(reported, rows),
            _section("Property", "What must hold for every input of the domain.", PROPERTY),
            _section("Criterion", "When an item passes, and when it fails.", CRITERION),
            _arithmetic(reported),
            _method(reported),
            _identity(reported),
            _images(reported),
            _section("Results", "Verdict and certificate for each item.", (RESULTS,), rows),
            _check(reported),
            _coverage(reported, rows),
            _undecided(reported, rows),
            _assumptions(reported),
        ],
    }


def written(evidence: Mapping[str, Any]) -> str:
    """The evidence as a file: JSON with a line for each sentence and each row."""
    sections = []
    for section in evidence["sections"]:
        parts = {key: _lines(value) if isinstance(value, list) else json.dumps(value) for key, value in section.items()}
        sections.append(",\n".join(f"  {json.dumps(key)}: {text}" for key, text in parts.items()))
    head = "".join(f" {json.dumps(key)}: {json.dumps(evidence[key])},\n" for key in evidence if key != "sections")
    return f'{{\n{head} "sections": [\n {{\n' + "\n },\n {\n".join(sections) + "\n }\n ]\n}\n"


def _lines(values: Sequence[Any]) -> str:
    encoded = json.JSONEncoder(allow_nan=False).encode
    return "[" + ",".join(f"\n   {encoded(value)}" for value in values) + "]"


def _section(heading: str, asks: str, sentences: Sequence[str] = (), rows: Rows = ()) -> dict[str, Any]:
    return {"heading": heading, "asks": asks, "sentences": list(sentences), "rows": list(rows)}


def _claim(reported: Reported, items: Rows) -> dict[str, Any]:
    campaign = reported.campaign
    wanted = campaign.requirement
    judged = "What is judged is under Requirements." if reported.campaign.requirements else ""
    requirement = f"{wanted.id}: {wanted.text}".strip(": ") or judged or "The campaign file names no requirement."
    file = f"Campaign {campaign.name}" + (f", from {campaign.file}" if campaign.file else "")
    sentences = (requirement, f"{file}, started {campaign.started}, last run {campaign.last_run}.")
    rows = [{"strength": strength, **recheck.counts(items, strength)} for strength in reported.strengths]
    return _section("Claim", "What the results are evidence for.", [*map(readable_name, sentences)], rows)


def _requirements(reported: Reported, items: Rows) -> list[dict[str, Any]]:
    """What is judged, and what that rests on; no rows where a campaign judges nothing, or answers were left out."""
    proofs = {
        one.number: examined.proof
        for one in reported.profiles
        if (examined := reported.checks.get(one.query)) is not None and examined.proof is not None
    }
    entries = [_judged(one) for one in reported.judged]
    for entry in entries:
        alone = recheck.by_certificates(entry, items, proofs)
        entry |= dict.fromkeys(alone) if reported.unchecked else alone
    argument = [row for entry in entries for row in recheck.argument(entry, items)]
    none = () if entries else ("The campaign judges no requirement, or this is about some of its answers only.",)
    return [
        _section(
            "Requirements", "What is required of the network, and whether it is shown.", none or REQUIREMENTS, entries
        ),
        _section("Argument", "What each requirement rests on, picture by picture.", none or ARGUMENT, argument),
    ]


def _judged(one: Judged) -> dict[str, Any]:
    """A requirement, and whether it is met."""
    wanted, counts = one.requirement, one.counts
    return {
        "id": readable_name(wanted.id),
        "judgement": one.outcome.value,
        "text": readable_name(wanted.text),
        "why": one.sentence,
        "requirement": one.asked,
        "written": readable_name(wanted.require),
        "perturbations": [*map(readable_name, wanted.perturbations)],
        "strength": wanted.strength,
        "share": wanted.share,
        "confidence": wanted.confidence,
        "hold": counts.hold,
        "fail": counts.fail,
        "undecided": counts.undecided,
        "fail at strength 0": counts.misclassified,
        "share at least": one.at_least,
        "share at most": one.at_most,
        "model_sha256": one.model.identity,
    }


def _domain(reported: Reported, items: Rows) -> dict[str, Any]:
    largest: dict[str, set[Any]] = {}
    for row in items:
        if row["strength"] is not None:
            ends = row["strength"]
            largest.setdefault(row["perturbation"], set()).add(tuple(ends) if isinstance(ends, list) else ends)
    rows = [
        {
            "perturbation": text,
            "in words": perturbation_words(perturbation),
            "kernel": _size(perturbation),
            "strengths from 0 to": sorted(largest.get(text, {"-"}), key=str),
            "padding": ", ".join(perturbation.paddings) or "-",
            "clipping": "-" if perturbation.clip is None else "{:g} to {:g}".format(*perturbation.clip),
        }
        for perturbation in reported.perturbations
        for text in [readable_name(str(perturbation))]
    ]
    images = f"{len(reported.images):,} images, listed below by the digests of their pixels."
    return _section("Domain", "The set of inputs that the statement is about.", (DOMAIN, images), rows)


def _size(perturbation: Perturbation) -> str:
    if perturbation.degradations:
        return "another for each pixel"
    return " x ".join(map(str, perturbation.kernel.shape))


def _arithmetic(reported: Reported) -> dict[str, Any]:
    asked = Counter(
        (one.values["arithmetic"], one.values["rounding"], str(one.settings.get("pixels", "real")))
        for one in reported.profiles
    )
    rows = [
        {
            "arithmetic": arithmetic,
            "about": ARITHMETIC.get(arithmetic, "-"),
            "rounding": "enclosed" if rounding == "rigorous" else "not considered: no proof",
            "pixels": pixels,
            "items": count,
        }
        for (arithmetic, rounding, pixels), count in asked.items()
    ]
    words = ("Proofs are computed in float64, and its rounding error is part of them; searches may use float32.",)
    return _section("Arithmetic", "Real numbers, or those of a computer.", words, rows)


def _method(reported: Reported) -> dict[str, Any]:
    used = Counter(one.values["method"] for one in reported.profiles)
    rows = [
        {"method": method, "how": METHODS[method][0], "completeness": METHODS[method][1], "items": count}
        for method, count in used.items()
    ]
    words = ("Sound, and deterministic except for time limits: the same question gets the same verdict.",)
    return _section("Method", "Whether it is sound, complete and deterministic.", words, rows)


def _identity(reported: Reported) -> dict[str, Any]:
    rows = [
        {"what": "tool that ran the campaign", "name": reported.campaign.tool, "sha256": "-"},
        {"what": "tool that wrote this", "name": f"shakeproof {shakeproof.__version__}", "sha256": tool_digest()},
        {"what": "Python", "name": platform.python_version(), "sha256": "-"},
        *({"what": "library", "name": f"{name} {_version(name)}", "sha256": "-"} for name in LIBRARIES),
        *(
            {"what": "network", "name": readable_name(model.name), "sha256": model.identity}
            for model in reported.models
        ),
    ]
    words = (
        "Digests are SHA-256: of a network's file; of the tool's source files, each by path and content. Versions of"
        " Python and the libraries are those of the machine that wrote this.",
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
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _images(reported: Reported) -> dict[str, Any]:
    rows = [
        {
            "image": readable_name(image.name),
            "label": image.label,
            "shape": " x ".join(map(str, image.shape)),
            "pixels_sha256": image.digest,
        }
        for image in reported.images
    ]
    words = ("Pixels before the perturbation: channels, height, width in float64, after any resizing and cropping.",)
    return _section("Images", "Which pictures this is about.", words, rows)


def _check(reported: Reported) -> dict[str, Any]:
    words = [
        "The independent checker (shakeproof.checker, which shares no code with the prover and needs numpy only) ran"
        f" for this report, with numpy {_version('numpy')} on Python {platform.python_version()}. Coverage has the"
        " numbers of certificates that hold, prove less than is claimed, or were refused.",
    ]
    words += [f"{count:,} certificates: {why}" for why, count in Counter(reported.unchecked.values()).items()]
    rows = [
        {"item": one.number, "certificate_sha256": one.certificate, "checker": reported.checked(one)}
        for one in reported.profiles
        if one.query in reported.checks and not reported.checks[one.query].accepted
    ]
    return _section("Check", "Who verified the results, apart from the tool that found them.", words, rows)


def _coverage(reported: Reported, items: Rows) -> dict[str, Any]:
    campaign = reported.campaign
    counts = {"queries of the campaign": campaign.asked, "not run yet": campaign.missing, **recheck.coverage(items)}
    rows = [{"what": what, "count": count} for what, count in counts.items()]
    words = ("A certified item covers all of its domain: no strength in between was left out or sampled.",)
    return _section("Coverage", "How much of what was asked is answered, certified and checked.", words, rows)


def _undecided(reported: Reported, items: Rows) -> dict[str, Any]:
    why = {
        one.number: one.record.why if one.values["rounding"] == "rigorous" else "rounding was not considered"
        for one in reported.profiles
        if one.claim.verdict is Status.UNDECIDED
    }
    why |= {failed.number: f"error ({failed.kind}): {readable_name(failed.message)}" for failed in reported.errors}
    rows = [
        {
            **{key: row[key] for key in ("item", "image", "perturbation")},
            "proved up to": row["certified_strength"],
            "why": why[row["item"]],
        }
        for row in items
        if row["item"] in why
    ]
    return _section("Undecided", "Items without a verdict.", (TESTED,) if rows else ("None.",), rows)


def _assumptions(reported: Reported) -> dict[str, Any]:
    paddings = ", ".join(sorted({pad for kind in reported.perturbations for pad in kind.paddings})) or "none"
    clipped = sum(kind.clip is not None for kind in reported.perturbations)
    pixels = ", ".join(sorted({str(one.settings.get("pixels", "real")) for one in reported.profiles}))
    words = [
        f"Outside an image, the padding defines the pixels: {paddings} (reflect does not repeat the edge).",
        f"{clipped} of {len(reported.perturbations)} perturbations clip pixels; the others may leave the usual range.",
        f"Pixels: {pixels}. Real ones take every value between grey levels; 8bit ones are rounded as in a file.",
        "How close the real camera is to the domain must be argued elsewhere.",
        "The weights are those in the file with the digest above, and the deployed runtime computes the graph in it.",
    ]
    for model in reported.models:
        order = "height, width, channels" if model.channels_last else "channels, height, width"
        normal = f"; (x - {list(model.mean)}) / {list(model.std or ())} before it" if model.mean else ""
        words.append(f"{model.name}: pictures of {' x '.join(map(str, model.image_shape))}, given as {order}{normal}.")
        words += [f"{model.name}: {note}" for note in model.notes]
    return _section("Assumptions", "What must be true elsewhere for the claim to hold.", [*map(readable_name, words)])


# -- a bundle -------------------------------------------------------------------------------------------------------

README = """\
report.html     the report, for any browser; it makes no network requests
evidence.json   the same facts for programs: claims, domains, digests, verdicts, what is undecided
store.db        the answers; shakeproof's own commands read it
certificates/   what is needed to prove the verdicts again, named by their SHA-256
models/         the networks that they are about
images/         the pixels, as numpy arrays (channels, height, width), named by their SHA-256
checker/        the program that checks certificates: Python and numpy, nothing else
recheck.py      checks everything again: python recheck.py
manifest.json   the SHA-256 of every file
"""
STORE = "store.db"


def write_bundle(folder: Path, store: Store, reported: Reported, evidence: Mapping[str, Any], page: str) -> None:
    """Write the folder, whole or not at all."""
    check_new(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _fill(draft, store, reported, {recheck.PAGE: page, recheck.EVIDENCE: written(evidence)})
            draft.chmod(0o755)
            draft.replace(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except (OSError, sqlite3.Error) as error:
        raise InputError(f"{folder}: cannot be written ({error}); choose a folder with enough space") from error


def check_new(folder: Path) -> None:
    """Refuse a folder that is not empty: its files would be mixed up with the bundle's."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: exists already; name a new or empty folder")


def _fill(draft: Path, store: Store, reported: Reported, texts: Mapping[str, str]) -> None:
    networks = model_files(store, reported.campaign, reported.models)
    models = {identity: f"models/{identity[:12]}-{path.name}" for identity, path in networks.items()}
    images = {image.digest: f"images/{image.digest}.npy" for image in reported.images}

    def files() -> Iterator[tuple[str, bytes]]:
        yield from ((name, text.encode()) for name, text in {**texts, "README.txt": README}.items())
        yield "recheck.py", Path(recheck.__file__).read_bytes()
        yield "checker/shakeproof/__init__.py", b""
        for path in sorted(Path(checker.__file__).parent.glob("*.py")):
            yield f"checker/shakeproof/checker/{path.name}", path.read_bytes()
        for one in reported.profiles:
            if one.certificate is not None:
                yield f"certificates/{one.certificate}.cert", store.certificate(one.query) or b""
        for identity, name in models.items():
            yield name, networks[identity].read_bytes()
        for image in reported.images:
            np.save(pixels := BytesIO(), image.pixels)
            yield images[image.digest], pixels.getvalue()

    digests = {}
    for name, data in files():
        (draft / name).parent.mkdir(parents=True, exist_ok=True)
        (draft / name).write_bytes(data)
        digests[name] = hashlib.sha256(data).hexdigest()
    with closing(sqlite3.connect(draft / STORE)) as copy:
        store.connection.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, not three
    digests[STORE] = hashlib.sha256((draft / STORE).read_bytes()).hexdigest()
    manifest = {"files": digests, "models": models, "images": images}
    (draft / recheck.MANIFEST).write_text(json.dumps(manifest, indent=1))
