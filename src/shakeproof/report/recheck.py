"""Checks a bundle again from its own files: python recheck.py. Needs only Python and numpy.

Certificates of enumerations speak of onnxruntime, and are checked with it. `python recheck.py FOLDER` checks another
bundle with the checker that lies beside this script; where shakeproof is installed, `python -m
shakeproof.report.recheck FOLDER` runs nothing that is in the bundle.

Exit code 0: every file is the one that was bundled, and certificates prove every verdict and every number that the
evidence and the page claim, but for what is printed as not checked. 3: nothing is wrong, but some claims have no
certificate that proves them. 1: something is wrong. A report runs the same check of certificates when it is written.
"""

import sys

if __name__ == "__main__":
    # Nothing of the bundle is imported by its name: no json.py or numpy.py that lies beside this script.
    sys.dont_write_bytecode = True
    _here = ("", ".", __file__.replace("\\", "/").rpartition("/")[0])
    sys.path[:] = [entry for entry in sys.path if entry not in _here]

import argparse
import base64
import hashlib
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import takewhile
from math import exp, lgamma, log, log1p
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if HERE not in (Path(entry).resolve(), *Path(entry).resolve().parents)]

MANIFEST, EVIDENCE, PAGE = "manifest.json", "evidence.json", "report.html"
ALWAYS = {PAGE, EVIDENCE, "README.txt", "store.db", "recheck.py"}
CHECKER = re.compile(r"checker/(shakeproof/(?:checker/)?\w+)\.py")
VERDICTS = ("safe", "unsafe", "misclassified")
# What is required where nothing else is said; and what stands for that another requirement holds.
LABEL, HOLDS = "label", 0
# A certificate leaves a gap next to each change of class. A number may reach into it by so much.
GAP = 1e-6
# A verdict on a requirement leaves so much to spare.
SLACK = 1e-9

UNCHECKED = (
    "not checked: prose, names of classes, and the page's program, pictures and curves; margins, but for their signs;"
    " pieces and seconds; how much the campaign asked, and the words and targets of its requirements; who wins where a"
    " profile is not proved"
)

Row = Mapping[str, Any]
# What an answer of the page calls the numbers in its row of the evidence.
SAME = {
    "status": "verdict",
    "proved": "certified_strength",
    "lost": "violated_from",
    "label": "label",
    "strength": "strength",
    "method": "method",
    "arithmetic": "arithmetic",
    "requirement": "requirement",
    "certificate": "certificate_sha256",
    "checked": "checker",
}

# What each method goes through.
WORKED_ON = {"exact": "linear regions", "bounds": "parts", "enumeration": "8-bit pictures"}

# What each method goes through.
WORKED_ON = {"exact": "linear regions", "bounds": "parts", "enumeration": "8-bit pictures"}


class BundleError(Exception):
    """A bundle is not what it should be, in one line."""


# -- what certificates prove of items -------------------------------------------------------------------------------


def detailed(question: Mapping[str, Any]) -> str:
    """One digest of what a question has beside its text: kernels from files, and how pictures reach the network."""
    details = [question.get(key) for key in ("kernels", "mean", "std", "channels_last", "rounding")]
    return hashlib.sha256(json.dumps(details).encode()).hexdigest()


class Proven(NamedTuple):
    """What a certificate that holds proves: which class wins from where to where (-1: nothing is proved), or that a
    rival beats the label at the strengths of a counterexample. Of another requirement than a label, class 0 stands for
    that it holds, and -1 for that it fails.
    """

    stretches: Sequence[tuple[float, float, int]]
    counterexample: Sequence[float] = ()
    rival: int = -1

    def certified(self, label: int) -> float | None:
        """The strength up to which the label wins."""
        kept = [*takewhile(lambda part: part[2] == label, self.stretches)]
        return kept[-1][1] if kept else None

    def violated(self, label: int) -> float | None:
        """Where the label is first shown to lose."""
        lost = (start for start, _, winner in self.stretches if winner not in (label, -1))
        return next(lost, max(self.counterexample, default=None))

    def wins(self, winner: int, low: float, high: float) -> bool:
        """Whether a class wins from one strength to another, except in the gaps at both ends."""
        reached, touched = low + GAP, False
        for start, stop, wins in self.stretches:
            if wins == winner != -1 and start <= high + GAP and stop >= low - GAP:
                touched = True
                if start <= reached:
                    reached = max(reached, stop)
        return touched and reached >= high - GAP

    def beats(self, rival: int, label: int, strengths: Sequence[float]) -> bool:
        """Whether a class is shown to beat the label at some strengths, or at the other end of a gap."""
        if self.counterexample:
            return (rival, [*strengths]) == (self.rival, [*self.counterexample])
        near = [winner for start, stop, winner in self.stretches if start - GAP <= max(strengths) <= stop + GAP]
        return rival != label and rival in near


class Examined(NamedTuple):
    """What a certificate proves of an item: all that is claimed (`holds`), less (`proves less`), or not even the
    verdict (`REFUSED`). If it is not refused, `proof` is what.
    """

    grade: str
    sentence: str
    proof: Proven | None = None

    @property
    def accepted(self) -> bool:
        return self.grade == "holds"

    @property
    def refused(self) -> bool:
        return self.grade == "REFUSED"

    def __str__(self) -> str:
        return f"{self.grade}: {self.sentence}"


def examined(
    row: Row, answer: Row, certificate: bytes, model: bytes, image: Path | None = None, effort: float = 1.0
) -> Examined:
    """Whether a certificate holds, is about an item, and proves what its row of the evidence and its answer claim."""
    from shakeproof import checker

    outcome = checker.check(certificate, model, image, lambda share: None, effort)
    if not outcome.accepted:
        return Examined("REFUSED", outcome.sentence)
    try:
        header, arrays = checker.unpack(certificate)
        proof = proved_by(header, arrays)
        other, less = [*_other(row, header, proof)], [*_less(row, proof), *_less_shown(row, answer, proof)]
    except (checker.Refused, *checker.MALFORMED) as error:
        other = [str(error)]
    if other:
        return Examined("REFUSED", f"is about something else: {'; '.join(other)}")
    return Examined("proves less", "; ".join(less), proof) if less else Examined("holds", outcome.sentence, proof)


def proved_by(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Proven:
    """The content of a certificate, if it holds."""
    is_label = header.get("requirement", LABEL) == LABEL
    if header["claim"] == "safe":
        return Proven([(0.0, min(header["strength"]), header["label"] if is_label else HOLDS)])
    if "witness" in arrays:
        return Proven([], arrays["witness"].tolist(), int(arrays["winners"][0]) if is_label else -1)
    if "intervals" in header:
        ends = [float(Fraction(number)) for text, _ in header["intervals"] for number in re.findall(r"[\d/]+", text)]
        starts, stops, winners = ends[::2], ends[1::2], [winner for _, winner in header["intervals"]]
    else:
        cuts, winners = arrays["cuts"].tolist(), arrays["winners"].tolist()
        starts, stops = [0.0, *cuts], [*cuts, *header["strength"]]
    return Proven([*zip(starts, stops, winners, strict=True)])


def _other(row: Row, header: Mapping[str, Any], proof: Proven) -> Iterator[str]:
    """The differences between a certificate and the row."""
    claimed = {key: row[key] for key in ("model_sha256", "image_sha256", "perturbation", "arithmetic", "requirement")}
    claimed |= {"strength": _several(row["strength"]), "label": -1 if row["label"] is None else row["label"]}
    stated = {"requirement": LABEL, **header}
    yield from (f"{key} is {stated[key]!r}, not {value!r}" for key, value in claimed.items() if stated[key] != value)
    if detailed(header) != row["details_sha256"]:
        yield "its kernels, its mean and std, or how pictures are laid out or rounded are others"
    certified, violated = proof.certified(_winner(row)), proof.violated(_winner(row))
    shown = {
        "safe": certified is not None and violated is None and certified >= min(claimed["strength"]),
        "unsafe": violated is not None,
        "misclassified": violated == 0,
    }
    if not shown.get(row["verdict"], False):
        yield f"its claim, {header['claim']}, does not show that the item is {row['verdict']}"


def _less(row: Row, proof: Proven) -> Iterator[str]:
    """The numbers of the row that a certificate does not prove."""
    what = "the label" if row["requirement"] == LABEL else "the requirement"
    claimed, lost = row["certified_strength"], row["violated_from"]
    certified, violated = proof.certified(_winner(row)), proof.violated(_winner(row))
    if claimed is not None and (certified is None or certified < claimed - GAP):
        yield f"{what} is certified up to {claimed}, the certificate proves {certified or 'nothing'}"
    if lost is not None and (violated is None or violated > lost + GAP):
        yield f"{what} is lost from {lost} on, the certificate shows {violated or 'nothing'}"


def _winner(row: Row) -> int:
    """What stands for that the requirement of an item holds: its label, if that is to win."""
    return int(row["label"]) if row["requirement"] == LABEL else HOLDS


def _less_shown(row: Row, answer: Row, proof: Proven) -> Iterator[str]:
    """The other numbers on the page that a certificate does not prove."""
    if row["requirement"] != LABEL:
        shown = answer["counterexample"]
        if shown is not None and proof.counterexample and _several(shown["strength"]) != [*proof.counterexample]:
            yield f"it fails at strength {shown['strength']}, the certificate does not show it"
        return
    label = row["label"]
    for part in answer["profile"]:
        if part["proved"] is not False and not proof.wins(part["class"], part["from"], part["to"]):
            yield f"class {part['class']} wins from {part['from']} to {part['to']}, the certificate does not prove it"
    shown, first = answer["counterexample"], proof.stretches[0][2] if proof.stretches else -1
    if shown is not None and not proof.beats(shown["class"], label, _several(shown["strength"])):
        yield f"class {shown['class']} wins at strength {shown['strength']}, the certificate does not show it"
    if first != -1 and answer["predicted"] not in (None, first):
        yield f"class {answer['predicted']} is predicted, by the certificate it is {first}"


def _several(strength: Any) -> list[float]:
    return [*strength] if isinstance(strength, (list, tuple)) else [strength]


# -- requirements: judged by a report, and once more here, by what is in the rows ------------------------------------

# What is shown of a picture.
HELD, FAILED, OPEN, WRONG = "holds", "fails", "undecided", "fails at strength 0"
COUNTED = {HELD: "hold", FAILED: "fail", OPEN: "undecided", WRONG: "fail at strength 0"}


def shown_of_item(verdict: str, certified: float | None, violated: float | None, strength: float) -> str:
    """The verdict of an item up to a strength."""
    if violated is not None and violated <= strength:
        return WRONG if verdict == "misclassified" else FAILED
    return HELD if certified is not None and strength <= certified else OPEN


def shown_of_picture(items: Iterable[str], missing: bool) -> str:
    """What is shown by the items of a picture. `missing`: those under some perturbations are not there."""
    found = {*items, *[OPEN] * missing}
    if len(found) == 1:
        return found.pop()
    if FAILED in found or found == {HELD, WRONG}:  # which blurs at strength 0
        return FAILED
    return OPEN  # whether it fails, or is left out, depends on what is undecided


def pictures(entry: Row, rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The items of each picture that a requirement is about, by the digests of their pixels."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        same = all(row[key] == entry[key] for key in ("model_sha256", "requirement"))
        if same and row["perturbation"] in entry["perturbations"]:
            found.setdefault(row["image_sha256"], []).append(row)
    return found


def outcomes(entry: Row, rows: Iterable[Row], proofs: Mapping[int, Proven] | None = None) -> dict[str, str]:
    """What is shown of each picture: by the numbers of its items; or by what certificates prove, by these items."""

    def of_item(row: Row) -> str:
        if proofs is None:
            return shown_of_item(row["verdict"], row["certified_strength"], row["violated_from"], entry["strength"])
        proof = proofs.get(row["item"])
        numbers = (None, None) if proof is None else (proof.certified(_winner(row)), proof.violated(_winner(row)))
        certified = None if numbers[0] is None else numbers[0] + GAP
        return shown_of_item(row["verdict"], certified, numbers[1], entry["strength"])

    return {
        image: shown_of_picture(map(of_item, own), {row["perturbation"] for row in own} != {*entry["perturbations"]})
        for image, own in pictures(entry, rows).items()
    }


def judgement(entry: Row, hold: int, fail: int, undecided: int) -> str:
    """Whether a requirement is met, by its target and the numbers of pictures."""
    count, share, confidence = hold + fail + undecided, entry["share"], entry["confidence"]
    if not count:
        return "NOT SHOWN"
    if confidence is None:
        met, missed = hold >= share * count, hold + undecided < share * count
    else:
        doubt = 1 - confidence
        met = hold > 0 and _tail(hold, count, share + SLACK) <= doubt
        missed = fail > 0 and _tail(fail, count, 1 - share + SLACK) < doubt
    return "MET" if met else "NOT MET" if missed else "NOT SHOWN"


def _requirement_differences(rows: Sequence[Row], sections: Mapping[str, Any]) -> Iterator[str]:
    """Where requirements are judged otherwise than their items say."""
    unanswered = next(row["count"] for row in sections["Coverage"]["rows"] if row["what"] == "not run yet")
    argued = Counter(json.dumps(row, sort_keys=True) for row in sections["Argument"]["rows"])
    for entry in sections["Requirements"]["rows"]:
        about = f"requirement {entry['id']}"
        argued.subtract(json.dumps(row, sort_keys=True) for row in argument(entry, rows))
        found = Counter(outcomes(entry, rows).values())
        counts = {key: found[outcome] for outcome, key in COUNTED.items()}
        more = entry["undecided"] - counts["undecided"]
        if any(entry[key] != n for key, n in counts.items() if key != "undecided") or not 0 <= more <= unanswered:
            yield f"{about}: the numbers of pictures are not those of the items"
        numbers = [entry[key] for key in ("hold", "fail", "undecided")]
        if entry["judgement"] != judgement(entry, *numbers):
            yield f"{about}: is {judgement(entry, *numbers)}, not {entry['judgement']}"
        if not _are_bounds(entry, *numbers):
            yield f"{about}: the bounds of its share are others"
    if any(argued.values()):
        yield "the arguments are not those of the items"


def by_certificates(entry: Row, rows: Sequence[Row], proofs: Mapping[int, Proven]) -> dict[str, Any]:
    """Whether a requirement is met, and by how many pictures, if what has no certificate is undecided."""
    found = Counter(outcomes(entry, rows, proofs).values())
    hold, fail = found[HELD], found[FAILED]
    population = entry["hold"] + entry["fail"] + entry["undecided"] + entry["fail at strength 0"] - found[WRONG]
    alone = judgement(entry, hold, fail, population - hold - fail)
    return {"by certificates": alone, "hold by certificates": hold, "fail by certificates": fail}


def argument(entry: Row, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """What a requirement rests on, picture by picture: items, and their certificates."""
    found = outcomes(entry, rows)
    for image, own in pictures(entry, rows).items():
        yield {
            "id": entry["id"],
            "model_sha256": entry["model_sha256"],
            "image": own[0]["image"],
            "image_sha256": image,
            "shown": found[image],
            "items": [row["item"] for row in own],
            "certificates": [row["certificate_sha256"] for row in own if row["certificate_sha256"] is not None],
        }


def _are_bounds(entry: Row, hold: int, fail: int, undecided: int) -> bool:
    """Whether a requirement's bounds are Clopper and Pearson's, on one side each; or plain shares."""
    count, low, high = hold + fail + undecided, entry["share at least"], entry["share at most"]
    if not count:
        return (low, high) == (0, 1)
    if entry["confidence"] is None:
        return bool(abs(low - hold / count) + abs(high - (hold + undecided) / count) < SLACK)
    return all(
        _tail(n, count, bound - 1e-6) <= 1 - entry["confidence"] <= _tail(n, count, bound + 1e-6) if n else bound == 0
        for n, bound in ((hold, low), (fail, 1 - high))
    )


# -- what follows from the rows of the evidence: written by a report, found again by a check ------------------------


def counts(rows: Iterable[Row], strength: float) -> dict[str, int]:
    """How many items are certified up to a strength, are violated there, or neither."""
    tally = {"certified": 0, "violated": 0, "undecided": 0}
    words = {HELD: "certified", OPEN: "undecided"}
    for row in rows:
        numbers = row["verdict"], row["certified_strength"], row["violated_from"]
        tally[words.get(shown_of_item(*numbers, strength), "violated")] += 1
    return tally


def coverage(rows: Sequence[Row]) -> dict[str, int]:
    """How many items have what."""
    answered = [row for row in rows if not row["verdict"].startswith("error")]
    grades = Counter((row["checker"] or "").partition(":")[0] for row in answered)
    return {
        "in this report, with an answer": len(answered),
        "in this report, ended in an error": len(rows) - len(answered),
        "with a verdict": sum(row["verdict"] in VERDICTS for row in rows),
        "with a certificate": sum(row["certificate_sha256"] is not None for row in rows),
        "certificate accepted by the checker": grades["holds"],
        "certificate proves less than is claimed": grades["proves less"],
        "certificate refused by the checker": grades["REFUSED"],
    }


def lead(rows: Sequence[Row], pieces: int, seconds: float) -> str:
    """How many images, perturbations, networks and answers there are, and what the analysis took."""
    images = {(row["image_sha256"], row["image"]) for row in rows}
    networks, perturbations = ({row[key] for row in rows} for key in ("model_sha256", "perturbation"))
    several = {"image": images, "perturbation": perturbations, "network": networks}
    parts = [counted(len(values), word) for word, values in several.items()]
    answered = sum(not row["verdict"].startswith("error") for row in rows)
    kinds = {WORKED_ON.get(row["method"], "parts") for row in rows if row.get("method")} or {"parts"}
    times = f"{pieces:,} {' or '.join(sorted(kinds))} analysed in {seconds:,.1f} seconds"
    return f"{', '.join(parts)}. Each of {counted(answered, 'answer')} holds for all strengths at once. {times}."


def notices(covered: Mapping[str, int], predicted: int) -> Iterator[str]:
    """What a reader must not overlook: by the counts of the evidence's coverage, and of labels that are predicted."""
    refused, less = (covered[f"certificate {how}"] for how in ("refused by the checker", "proves less than is claimed"))
    missing, failed = covered["not run yet"], covered["in this report, ended in an error"]
    if covered["with a verdict"] and not covered["with a certificate"]:
        yield "No certificates: verdicts rest on the prover alone."
    if refused:
        yield f"The checker refused {counted(refused, 'certificate')}: see Evidence, and do not rely on them."
    if less:
        yield f"Proved in part: {counted(less, 'certificate')} prove less than is claimed, and are not counted."
    if missing:
        asked = covered["queries of the campaign"]
        yield f"Not run yet: {missing:,} of the campaign's {asked:,} queries. Run it again."
    if failed:
        yield f"Ended in an error: {counted(failed, 'answer')}, shown here and not counted as certified."
    if predicted:
        yield f"No label came with the image: {counted(predicted, 'answer')}, about what the network predicts for it."


def counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


# -- a bundle -------------------------------------------------------------------------------------------------------


class Bundle:
    """A folder that has just the files that its manifest lists, each with its digest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = set(_files(folder))
        if MANIFEST not in files:
            raise BundleError(f"{folder}: has no {MANIFEST}")
        self.manifest = read_json((folder / MANIFEST).read_bytes())
        self.digests: dict[str, str] = self.manifest["files"]
        if not self.digests:
            raise BundleError("the manifest lists no files")
        for name in sorted({*files, *self.digests} - {MANIFEST}):
            if name not in self.digests:
                raise BundleError(f"{name}: is in the folder, but not in the manifest")
            if name not in files:
                raise BundleError(f"{name}: is in the manifest, but not in the folder")
            self.read(name)

    def read(self, name: str) -> bytes:
        """The bytes of a file, which are those that were bundled."""
        if name not in self.digests:
            raise BundleError(f"{name}: is not in the manifest")
        data = (self.folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != self.digests[name]:
            raise BundleError(f"{name}: is not the file that was bundled")
        return data

    def check_names(self, rows: Iterable[Row]) -> None:
        """Refuse files that have no place in a bundle."""
        named = {f"certificates/{row['certificate_sha256']}.cert" for row in rows if row["certificate_sha256"]}
        named |= {*self.manifest["models"].values(), *self.manifest["images"].values(), *ALWAYS}
        for name in self.digests:
            if name not in named and not CHECKER.fullmatch(name):
                raise BundleError(f"{name}: is no part of a bundle")

    def examined(self, row: Row, answer: Row, effort: float) -> Examined:
        """What the item's certificate proves."""
        model, image = (self.manifest[kind].get(row[f"{kind[:-1]}_sha256"]) for kind in ("models", "images"))
        if model is None or image is None:
            return Examined("REFUSED", "its network or its image is not in the bundle")
        self.read(image)
        certificate = self.read(f"certificates/{row['certificate_sha256']}.cert")
        if hashlib.sha256(certificate).hexdigest() != row["certificate_sha256"]:
            return Examined("REFUSED", "its certificate has another digest")
        return examined(row, answer, certificate, self.read(model), self.folder / image, effort)


def _files(folder: Path) -> Iterator[str]:
    """All files below a folder, by their names; nothing there may be a link."""
    for place, folders, names in os.walk(folder):
        for path in (Path(place) / name for name in (*folders, *names)):
            name = path.relative_to(folder).as_posix()
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise BundleError(f"{name}: is no plain file or folder")
            if path.is_file():
                yield name


def read_json(data: bytes) -> Any:
    """Unambiguous JSON: no repeated keys, no NaN or infinity."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(items)) != len(items):
            raise BundleError("a file of JSON has a key twice")
        return dict(items)

    def constant(name: str) -> Any:
        raise BundleError(f"a file of JSON has the number {name}")

    return json.loads(data.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)


def only_once(rows: Sequence[Row], key: str) -> dict[Any, Row]:
    """Rows by their key; repeated keys are refused, since readers might see the row that was not checked."""
    unique = {row[key]: row for row in rows}
    if len(unique) != len(rows):
        raise BundleError(f"two rows of the evidence or the page have the same {key}")
    return unique


class CheckerOnly(MetaPathFinder, Loader):
    """Imports the checker from given sources only: bytecode, libraries and folders cannot replace them."""

    def __init__(self, sources: Mapping[str, bytes]) -> None:
        self.sources = {name.removesuffix("/__init__").replace("/", "."): data for name, data in sources.items()}
        self.packages = {name.removesuffix("/__init__").replace("/", ".") for name in sources if "/__init__" in name}

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "shakeproof":
            return None
        if fullname not in self.sources:
            raise BundleError(f"the checker of the bundle has no {fullname}")
        return ModuleSpec(fullname, self, is_package=fullname in self.packages)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        exec(compile(self.sources[name], f"<{name}>", "exec"), module.__dict__)


def _use_checker(bundle: Bundle) -> None:
    """Use the checker next to this script, if there is one; in a bundle, it must be the bundled one."""
    if not (HERE / "checker").is_dir():
        return  # this is an installed shakeproof
    source = bundle if bundle.folder == HERE else Bundle(HERE)
    sources = {match[1]: source.read(name) for name in source.digests if (match := CHECKER.fullmatch(name))}
    sys.meta_path.insert(0, CheckerOnly(sources))


def differences(rows: Sequence[Row], sections: Mapping[str, Any], page: Mapping[str, Any]) -> Iterator[str]:
    """Where evidence and page say something else than the rows of the evidence do, or these contradict themselves."""
    if not rows or not sections["Claim"]["rows"]:
        yield "the evidence lists no items, or no strengths"
    if len({row["item"] for row in rows}) != len(rows):
        yield "an item is there twice"
    for row in rows:
        yield from (f"item {row['item']}: {word}" for word in _contradictions(row))
    for entry in sections["Claim"]["rows"]:
        if counts(rows, entry["strength"]) != {key: entry[key] for key in ("certified", "violated", "undecided")}:
            yield f"the counts at strength {entry['strength']} are not those of the items"
    stated = {what: entry["count"] for what, entry in only_once(sections["Coverage"]["rows"], "what").items()}
    yield from (
        f"coverage: {what} is {n}, not {stated.get(what)}"
        for what, n in coverage(rows).items()
        if stated.get(what) != n
    )
    answered = [row for row in rows if not row["verdict"].startswith("error")]
    for heading, key in (("Method", "method"), ("Arithmetic", "arithmetic")):
        items = Counter[str]()
        for entry in sections[heading]["rows"]:
            items[entry[key]] += entry["items"]
        if items != Counter(row[key] for row in answered):
            yield f"{heading}: the numbers of items are not those of the items"
    unsettled = {row["item"]: row["certified_strength"] for row in rows if row["verdict"] not in VERDICTS}
    undecided = only_once(sections["Undecided"]["rows"], "item")
    if {item: entry["proved up to"] for item, entry in undecided.items()} != unsettled:
        yield "the undecided items are others, or others are proved as far"
    yield from _requirement_differences(rows, sections)
    yield from _page_differences(rows, sections, page)


def _contradictions(row: Row) -> Iterator[str]:
    """Numbers of an item that cannot all be true."""
    verdict, certified, violated = row["verdict"], row["certified_strength"], row["violated_from"]
    if verdict.startswith("error"):
        if (certified, violated) != (None, None):
            yield "claims something, and ended in an error"
        return
    ends = _several(row["strength"])
    right = {
        "safe": certified == min(ends) and violated is None,
        "unsafe": violated is not None and (certified is None or certified <= violated) and violated <= max(ends),
        "misclassified": certified is None and violated == 0,
        "undecided": violated is None and (certified is None or 0 < certified <= min(ends)),
    }
    if not right.get(verdict, False):
        yield f"{verdict}, certified up to {certified} and violated from {violated} on contradict each other"
    bracket = None if violated is None or len(ends) > 1 else [certified or 0.0, violated]
    if row["critical_strength"] != bracket:
        yield f"the critical strength {row['critical_strength']} is not {bracket}"


def _page_differences(rows: Sequence[Row], sections: Mapping[str, Any], page: Mapping[str, Any]) -> Iterator[str]:
    """Where the page says something else."""
    answers = page["answers"]
    pieces, seconds, predicted = (sum(a[key] for a in answers) for key in ("pieces", "seconds", "label_predicted"))
    if page["lead"] != lead(rows, pieces, seconds):
        yield f"the page does not begin with: {lead(rows, pieces, seconds)}"
    covered = {entry["what"]: entry["count"] for entry in sections["Coverage"]["rows"]}
    if page["notices"] != [*notices(covered, predicted)]:
        yield "the notices of the page are not those of the items"
    if page["strengths"] != [entry["strength"] for entry in sections["Claim"]["rows"]]:
        yield "the page is about other strengths"
    right = [answer for answer in answers if answer["status"] != "misclassified"]
    sizes = Counter((answer["model"], answer["requirement"], answer["perturbation"]) for answer in right).values()
    bands = page["bands"]
    if bands.keys() != {*map(str, sizes)} or not all(is_band(int(n), bounds) for n, bounds in bands.items()):
        yield "the confidence bands of the page are not those of so many images"
    why = {entry["item"]: entry["why"] for entry in sections["Undecided"]["rows"]}
    for row, answer in zip(rows, answers, strict=True):
        mine = {**row, "verdict": row["verdict"].partition(" ")[0], "why": why.get(row["item"])}
        words = [
            f"{key} {value!r}, the evidence {mine[key]!r}"
            for key, value in _said(answer, page).items()
            if value != mine[key] and not _is_short(value, mine[key])
        ]
        yield from (f"item {row['item']}: the page says {word}" for word in [*words, *_wrong_signs(row, answer)])
    shown = only_once(page["evidence"]["sections"], "heading")
    for heading in {**sections, **shown}:
        if heading not in sections or heading not in shown or not _is_start(shown[heading], sections[heading]):
            yield f"the page says something else under {heading}"


def _said(answer: Row, page: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer of the page says, under the names that the evidence has for it. An error has no method."""
    left_out = ("method", "arithmetic", "checked") if answer["status"] == "error" else ()
    image = page["images"][answer["image"]]
    return {key: answer[name] for name, key in SAME.items() if name not in left_out} | {
        "model_sha256": page["models"][answer["model"]]["sha256"],
        "image": image["name"],
        "image_sha256": image["sha256"],
        "perturbation": page["perturbations"][answer["perturbation"]]["text"],
        "why": answer["why"],
    }


def _wrong_signs(row: Row, answer: Row) -> Iterator[str]:
    """Margins whose sign contradicts the label's verdict; their size is not checked."""
    least, counterexample = answer["min_margin"], answer["counterexample"]
    if least is not None and row["verdict"] in VERDICTS and (least > 0) != (row["verdict"] == "safe"):
        yield f"that the smallest margin is {least}"
    if counterexample is not None and (row["verdict"] == "safe" or counterexample["margin"] > 0):
        yield f"that there is a counterexample with the margin {counterexample['margin']}"
    if row["verdict"] == "misclassified" and answer["predicted"] == row["label"]:
        yield "that the label is predicted"


def is_band(samples: int, bounds: Sequence[Sequence[float]]) -> bool:
    """Whether these are Clopper and Pearson's bounds for a share, for 0, 1, ... hits among so many: each leaves 2.5 %
    for what lies beyond it, up to its sixth digit.
    """
    hits, lows = [*range(samples + 1)] * 2, [low for low, _ in bounds] + [1 - high for _, high in reversed(bounds)]
    return len(lows) == len(hits) and all(
        _tail(n, samples, low - 1e-6) <= 0.025 <= _tail(n, samples, low + 2e-6) if n else low == 0
        for n, low in zip(hits, lows, strict=True)
    )


def _tail(hits: int, samples: int, share: float) -> float:
    """How likely so many hits are, or more."""
    if not 0 < share < 1 or not 0 < hits <= samples:
        return float(share >= 1 or hits <= 0)
    if hits < samples * share:  # the first terms would be too small for a float, and the sum is not
        return 1 - _tail(samples - hits + 1, samples, 1 - share)
    ways = lgamma(samples + 1) - lgamma(hits + 1) - lgamma(samples - hits + 1)
    term, total = exp(ways + hits * log(share) + (samples - hits) * log1p(-share)), 0.0
    while term > 1e-12 * total:
        total += term
        term *= (samples - hits) / (hits + 1) * share / (1 - share)
        hits += 1
    return total


def _is_short(value: Any, full: Any) -> bool:
    """The first digits of a digest, as a large page has them."""
    short = isinstance(value, str) and isinstance(full, str) and value.endswith("…") and len(value) > 12
    return bool(short and full.startswith(value[:-1]))


def _is_start(shown: Mapping[str, Any], section: Mapping[str, Any]) -> bool:
    """Whether a section of the page is that of the evidence, or its start, and says so."""
    rows = len(shown["rows"])
    left = len(section["rows"]) - rows
    more = [f"{left:,} more rows are in the evidence file."] if left else []
    return {**section, "rows": section["rows"][:rows], "sentences": section["sentences"] + more} == shown


def _contents(page: bytes) -> Any:
    blocks = re.findall(rb'id="contents">([^<]*)</script>', page)
    if len(blocks) != 1:
        raise BundleError("the page does not have its data once")
    contents = read_json(zlib.decompress(base64.b64decode(blocks[0])))
    columns = contents["answers"]
    return contents | {"answers": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def check(folder: Path, effort: float) -> int:
    """Check a bundle, and say what was found; the exit code."""
    bundle = Bundle(folder)
    evidence = read_json(bundle.read(EVIDENCE))
    sections = only_once(evidence["sections"], "heading")
    rows = sections["Results"]["rows"]
    bundle.check_names(rows)
    _use_checker(bundle)
    page = _contents(bundle.read(PAGE))
    answers = page["answers"]
    if len(answers) != len(rows):
        raise BundleError(f"the page has {len(answers)} answers, the evidence {len(rows)} items")
    wrong = [*differences(rows, sections, page)]
    for line in wrong:
        _say(line)
    grades = Counter[str]()
    proofs: dict[int, Proven] = {}
    bare = 0
    for row, answer in zip(rows, answers, strict=True):
        if row["certificate_sha256"] is None:
            proved = row["certified_strength"] is not None or any(
                part["proved"] is not False for part in answer["profile"]
            )
            bare += proved or row["verdict"] in VERDICTS
            continue
        outcome = bundle.examined(row, answer, effort)
        grades[outcome.grade] += 1
        if outcome.proof is not None:
            proofs[row["item"]] = outcome.proof
        stated = (row["checker"] or "").partition(":")[0]
        if stated in ("holds", "proves less", "REFUSED") and stated != outcome.grade:
            wrong.append(f"item {row['item']}: the evidence says that its certificate {stated}")
            _say(wrong[-1])
        word = {"holds": "holds", "proves less": "PROVES LESS"}.get(outcome.grade, "DOES NOT HOLD")
        _say(f"item {row['item']}, {row['verdict']}: {word}: {outcome.sentence}")
    for entry in sections["Requirements"]["rows"]:
        alone = by_certificates(entry, rows, proofs)
        _say(f"requirement {entry['id']}: {entry['judgement']}; by certificates alone, {alone['by certificates']}")
        if entry["by certificates"] is not None and any(entry[key] != value for key, value in alone.items()):
            wrong.append(f"requirement {entry['id']}: the evidence says that certificates show something else")
            _say(wrong[-1])
    _say(
        f"{grades['holds']} of {grades.total()} certificates hold; {grades['proves less']} prove less than is claimed;"
        f" {bare} claims have no certificate and rest on the tool alone"
    )
    _say(UNCHECKED)
    if wrong or grades["REFUSED"]:
        return 1
    return 3 if bare or grades["proves less"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks a bundle.")
    parser.add_argument("folder", nargs="?", type=Path, default=HERE, help="the bundle; else that of this script")
    parser.add_argument("--effort", type=float, default=1.0, help="multiplies what a check of a certificate may cost")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    try:
        return check(folder, arguments.effort)
    except BundleError as problem:
        _say(str(problem))
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError, zlib.error) as error:
        _say(f"{folder}: is not written as a bundle must be ({type(error).__name__}: {error})")
    return 1


if __name__ == "__main__":
    sys.exit(main())
