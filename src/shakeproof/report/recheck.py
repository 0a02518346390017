"""Re-checks a bundle from what is in it: python recheck.py. Needs Python and numpy, nothing else.

Certificates of enumerations speak of onnxruntime, and are checked with it. `python recheck.py FOLDER` checks another
bundle with the checker that lies beside this script; where shakeproof is installed, `python -m
shakeproof.report.recheck FOLDER` runs nothing that is in the bundle.

Exit code 0: every file is the one that was bundled, and certificates prove every verdict and every number that the
evidence and the page claim. 3: nothing is wrong, but some claims have no certificate that proves them. 1: something is
wrong. A report runs the same check of certificates when it is written.
"""

import sys

if __name__ == "__main__":
    # Nothing of the bundle is imported by its name: no json.py or numpy.py that lies beside this script.
    sys.dont_write_bytecode = True
    sys.path[:] = [own for own in sys.path if own not in ("", ".", __file__.replace("\\", "/").rpartition("/")[0])]

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
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:] = [own for own in sys.path if HERE not in (Path(own).resolve(), *Path(own).resolve().parents)]

MANIFEST, EVIDENCE, PAGE = "manifest.json", "evidence.json", "report.html"
ALWAYS = {PAGE, EVIDENCE, "README.txt", "store.db", "recheck.py"}
CHECKER = re.compile(r"checker/(shakeproof/(?:checker/)?\w+)\.py")
VERDICTS = ("safe", "unsafe", "misclassified")
# A certificate leaves a gap next to each change of class. A number may reach into it by so much.
GAP = 1e-6

Row = Mapping[str, Any]


class BundleError(Exception):
    """A bundle is not what it should be, in one line."""


class Examined(NamedTuple):
    """What a certificate proves of an item: all that is claimed (`holds`), less (`proves less`), or not even the
    verdict (`REFUSED`).
    """

    grade: str
    sentence: str

    @property
    def accepted(self) -> bool:
        return self.grade == "holds"

    @property
    def refused(self) -> bool:
        return self.grade == "REFUSED"

    def __str__(self) -> str:
        return f"{self.grade}: {self.sentence}"


# -- what certificates prove of items -------------------------------------------------------------------------------


def detailed(said: Mapping[str, Any]) -> str:
    """One digest of what a question has beside its text: kernels from files, and how pictures reach the network."""
    details = [said.get(key) for key in ("kernels", "mean", "std", "channels_last", "rounding")]
    return hashlib.sha256(json.dumps(details).encode()).hexdigest()


def examined(row: Row, certificate: bytes, model: bytes, image: Path | None = None) -> Examined:
    """Whether a certificate holds, is about the item of the evidence whose row this is, and proves what is claimed."""
    from shakeproof import checker

    outcome = checker.check(certificate, model, image, lambda share: None)
    if not outcome.accepted:
        return Examined("REFUSED", outcome.sentence)
    try:
        header, arrays = checker.unpack(certificate)
        certified, violated = proved_by(header, arrays)
        other, less = [*_other(row, header, certified, violated)], [*_less(row, certified, violated)]
    except (checker.Refused, *checker.MALFORMED) as error:
        other = [str(error)]
    if other:
        return Examined("REFUSED", f"is about something else: {'; '.join(other)}")
    return Examined("proves less", "; ".join(less)) if less else Examined("holds", outcome.sentence)


def proved_by(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Up to which strength a certificate that holds proves the label to win, and where it shows it to lose first."""
    label, strength = header["label"], header["strength"]
    if header["claim"] == "safe":
        return min(strength), None
    if "witness" in arrays:
        return None, max(arrays["witness"].tolist())
    if "intervals" in header:
        ends = [float(Fraction(own)) for text, _ in header["intervals"] for own in re.findall(r"[\d/]+", text)]
        starts, stops, winners = ends[::2], ends[1::2], [winner for _, winner in header["intervals"]]
    else:
        cuts, winners = arrays["cuts"].tolist(), arrays["winners"].tolist()
        starts, stops = [0.0, *cuts], [*cuts, *strength]
    kept = next((number for number, winner in enumerate(winners) if winner != label), len(winners))
    lost = next((at for at, winner in zip(starts, winners, strict=True) if winner not in (label, -1)), None)
    return stops[kept - 1] if kept else None, lost


def _other(row: Row, header: Mapping[str, Any], certified: float | None, violated: float | None) -> Iterator[str]:
    """What a certificate says otherwise than the row."""
    said = {key: row[key] for key in ("model_sha256", "image_sha256", "perturbation", "label", "arithmetic")}
    said["strength"] = _several(row["strength"])
    yield from (f"{key} is {header[key]!r}, not {value!r}" for key, value in said.items() if header[key] != value)
    if detailed(header) != row["details_sha256"]:
        yield "its kernels, its mean and std, or how pictures are laid out or rounded are others"
    shown = {
        "safe": certified is not None and violated is None and certified >= min(said["strength"]),
        "unsafe": violated is not None,
        "misclassified": violated == 0,
    }
    if not shown.get(row["verdict"], False):
        yield f"its claim, {header['claim']}, does not show that the item is {row['verdict']}"


def _less(row: Row, certified: float | None, violated: float | None) -> Iterator[str]:
    """Which numbers of the row a certificate does not prove."""
    claimed, lost = row["certified_strength"], row["violated_from"]
    if claimed is not None and (certified is None or certified < claimed - GAP):
        yield f"the label is certified up to {claimed}, the certificate proves {certified or 'nothing'}"
    if lost is not None and (violated is None or violated > lost + GAP):
        yield f"the label is lost from {lost} on, the certificate shows {violated or 'nothing'}"


def _several(strength: Any) -> list[float]:
    return [*strength] if isinstance(strength, (list, tuple)) else [strength]


# -- what follows from the rows of the evidence: written by a report, found again by a check ------------------------


def counts(rows: Iterable[Row], strength: float) -> dict[str, int]:
    """How many items are certified up to a strength, are violated there, or neither."""
    found = Counter(_word(row, strength) for row in rows)
    return {word: found[word] for word in ("certified", "violated", "undecided")}


def _word(row: Row, strength: float) -> str:
    certified, violated = row["certified_strength"], row["violated_from"]
    if violated is not None and violated <= strength:
        return "violated"
    return "certified" if certified is not None and strength <= certified else "undecided"


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


def lead(rows: Sequence[Row]) -> str:
    """How many of what there are."""
    names = {
        "network": ("model_sha256",),
        "image": ("image_sha256", "image", "label"),
        "perturbation": ("perturbation",),
    }
    parts = [counted(len({tuple(row[key] for key in keys) for row in rows}), word) for word, keys in names.items()]
    answers = sum(not row["verdict"].startswith("error") for row in rows)
    return f"{', '.join(parts)}: {counted(answers, 'answer')}"


def counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


# -- a bundle -------------------------------------------------------------------------------------------------------


class Bundle:
    """A folder that has just the files that its manifest lists, each with its digest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = set(_files(folder))
        if MANIFEST not in found:
            raise BundleError(f"{folder}: has no {MANIFEST}")
        self.manifest = read_json((folder / MANIFEST).read_bytes())
        self.digests: dict[str, str] = self.manifest["files"]
        if not self.digests:
            raise BundleError("the manifest lists no files")
        for name in sorted({*found, *self.digests} - {MANIFEST}):
            if name not in self.digests:
                raise BundleError(f"{name}: is in the folder, but not in the manifest")
            if name not in found:
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

    def examined(self, row: Row) -> Examined:
        """What the item's certificate proves of it."""
        model, image = (self.manifest[kind].get(row[f"{kind[:-1]}_sha256"]) for kind in ("models", "images"))
        if model is None or image is None:
            return Examined("REFUSED", "its network or its image is not in the bundle")
        self.read(image)
        certificate = self.read(f"certificates/{row['certificate_sha256']}.cert")
        if hashlib.sha256(certificate).hexdigest() != row["certificate_sha256"]:
            return Examined("REFUSED", "its certificate has another digest")
        return examined(row, certificate, self.read(model), self.folder / image)


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
    """JSON that means one thing: no key twice, and no number that is none."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(found)) != len(found):
            raise BundleError("a file of JSON has a key twice")
        return dict(found)

    def constant(name: str) -> Any:
        raise BundleError(f"a file of JSON has the number {name}")

    return json.loads(data.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)


def only_once(rows: Sequence[Row], key: str) -> dict[Any, Row]:
    """Rows by what tells them apart. Of two with the same, readers would see one that nobody has checked."""
    found = {row[key]: row for row in rows}
    if len(found) != len(rows):
        raise BundleError(f"two rows of the evidence or the page have the same {key}")
    return found


class CheckerOnly(MetaPathFinder, Loader):
    """Imports the checker from some sources, and nothing else: no bytecode, no library, no folder takes their place."""

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
    """From beside this script, if there is one: as it was bundled, if this is the bundle's own."""
    if not (HERE / "checker").is_dir():
        return  # this is an installed shakeproof
    own = bundle if bundle.folder == HERE else Bundle(HERE)
    sources = {found[1]: own.read(name) for name in own.digests if (found := CHECKER.fullmatch(name))}
    sys.meta_path.insert(0, CheckerOnly(sources))


def differences(rows: Sequence[Row], sections: Mapping[str, Any], page: Mapping[str, Any]) -> Iterator[str]:
    """Where evidence and page say something else than the rows of the evidence do, or these contradict themselves."""
    if not rows or not sections["Claim"]["rows"]:
        yield "the evidence lists no items, or no strengths"
    if len({row["item"] for row in rows}) != len(rows):
        yield "an item is there twice"
    for row in rows:
        yield from (f"item {row['item']}: {word}" for word in _contradictions(row))
    for said in sections["Claim"]["rows"]:
        if counts(rows, said["strength"]) != {key: said[key] for key in ("certified", "violated", "undecided")}:
            yield f"the counts at strength {said['strength']} are not those of the items"
    told = {what: said["count"] for what, said in only_once(sections["Coverage"]["rows"], "what").items()}
    yield from (
        f"coverage: {what} is {n}, not {told.get(what)}" for what, n in coverage(rows).items() if told.get(what) != n
    )
    answered = [row for row in rows if not row["verdict"].startswith("error")]
    for heading, key in (("Method", "method"), ("Arithmetic", "arithmetic")):
        items = Counter[str]()
        for said in sections[heading]["rows"]:
            items[said[key]] += said["items"]
        if items != Counter(row[key] for row in answered):
            yield f"{heading}: the numbers of items are not those of the items"
    unsettled = {row["item"]: row["certified_strength"] for row in rows if row["verdict"] not in VERDICTS}
    undecided = only_once(sections["Undecided"]["rows"], "item")
    if {item: said["proved up to"] for item, said in undecided.items()} != unsettled:
        yield "the undecided items are others, or others are proved as far"
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
    if not page["lead"].startswith(lead(rows)):
        yield f"the page does not begin with: {lead(rows)}"
    if page["strengths"] != [said["strength"] for said in sections["Claim"]["rows"]]:
        yield "the page is about other strengths"
    answers = [dict(zip(page["answers"]["keys"], values, strict=True)) for values in page["answers"]["rows"]]
    if len(answers) != len(rows):
        yield f"the page has {len(answers)} answers, the evidence {len(rows)} items"
    for row, answer in zip(rows, answers, strict=False):
        said = {
            "verdict": answer["status"],
            "certified_strength": answer["proved"],
            "violated_from": answer["lost"],
            "label": answer["label"],
            "strength": answer["strength"],
            "model_sha256": page["models"][answer["model"]]["sha256"],
            "image_sha256": page["images"][answer["image"]]["sha256"],
            "certificate_sha256": answer["certificate"],
        }
        mine = {key: row[key] for key in said} | {"verdict": row["verdict"].partition(" ")[0]}
        yield from (
            f"item {row['item']}: the page says {key} {value!r}, the evidence {mine[key]!r}"
            for key, value in said.items()
            if value != mine[key] and not _is_short(value, mine[key])
        )
    shown = only_once(page["evidence"]["sections"], "heading")
    for heading in {**sections, **shown}:
        if heading not in sections or heading not in shown or not _is_start(shown[heading], sections[heading]):
            yield f"the page says something else under {heading}"


def _is_short(value: Any, whole: Any) -> bool:
    """The first digits of a digest, as a large page has them."""
    short = isinstance(value, str) and isinstance(whole, str) and value.endswith("…") and len(value) > 12
    return bool(short and whole.startswith(value[:-1]))


def _is_start(shown: Mapping[str, Any], whole: Mapping[str, Any]) -> bool:
    """Whether a section of the page is that of the evidence, or its start, and says so."""
    rows = len(shown["rows"])
    left = [] if rows == len(whole["rows"]) else [f"{len(whole['rows']) - rows:,} more rows are in the evidence file."]
    return {**whole, "rows": whole["rows"][:rows], "sentences": whole["sentences"] + left} == shown


def _contents(page: bytes) -> Any:
    found = re.findall(rb'id="contents">([^<]*)</script>', page)
    if len(found) != 1:
        raise BundleError("the page does not have its data once")
    return read_json(zlib.decompress(base64.b64decode(found[0])))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def check(folder: Path) -> int:
    """Check a bundle, and say what was found; the exit code."""
    bundle = Bundle(folder)
    evidence = read_json(bundle.read(EVIDENCE))
    sections = only_once(evidence["sections"], "heading")
    rows = sections["Results"]["rows"]
    bundle.check_names(rows)
    _use_checker(bundle)
    wrong = [*differences(rows, sections, _contents(bundle.read(PAGE)))]
    for line in wrong:
        _say(line)
    grades = Counter[str]()
    bare = 0
    for row in rows:
        if row["certificate_sha256"] is None:
            bare += row["verdict"] in VERDICTS or row["certified_strength"] is not None
            continue
        outcome = bundle.examined(row)
        grades[outcome.grade] += 1
        told = (row["checker"] or "").partition(":")[0]
        if told in ("holds", "proves less", "REFUSED") and told != outcome.grade:
            wrong.append(f"item {row['item']}: the evidence says that its certificate {told}")
            _say(wrong[-1])
        word = {"holds": "holds", "proves less": "PROVES LESS"}.get(outcome.grade, "DOES NOT HOLD")
        _say(f"item {row['item']}, {row['verdict']}: {word}: {outcome.sentence}")
    _say(
        f"{grades['holds']} of {grades.total()} certificates hold; {grades['proves less']} prove less than is claimed;"
        f" {bare} claims have none; these rest on the tool"
    )
    if wrong or grades["REFUSED"]:
        return 1
    return 3 if bare or grades["proves less"] else 0


def main() -> int:
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else HERE
    try:
        return check(folder)
    except BundleError as problem:
        _say(str(problem))
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError, zlib.error) as error:
        _say(f"{folder}: is not written as a bundle must be ({type(error).__name__}: {error})")
    return 1


if __name__ == "__main__":
    sys.exit(main())
