"""A campaign file: which models, images and perturbations, and how they are analysed. All of it is checked at once."""

from __future__ import annotations

import csv
import io
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatch
from glob import glob, has_magic
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from shakeproof.certificate import CERTIFICATE_SECONDS
from shakeproof.errors import InputError
from shakeproof.files import read_text
from shakeproof.question import (
    FAMILIES,
    LABEL,
    PRESETS,
    ClassNames,
    Perturbation,
    Preprocessing,
    Requirement,
    Source,
    one_source,
    parse_path,
    parse_requirement,
    read_class_names,
    read_preprocessing,
    sources,
)
from shakeproof.settings import Settings, asked
from shakeproof.store.rows import CampaignRequirement, NamedRequirement

Table = Mapping[str, Any]
# What a file may hold, and what of that are tables; what follows from it is in docs/reference/campaign.md.
KEYS = ("name", "store", "models", "strengths", "certificates", "certificate_timeout", "perturbations")
TABLES = {
    "images": ("paths", "csv", "benchmark", "only", "array", "labels"),
    "preprocessing": ("file", "colour", "resize", "resample", "crop", "scale", "mean", "std"),
    "network": ("image_shape", "output_name", "classes"),
    "analysis": (*asked(), "whole_curves", "windows"),
    "requirement": ("id", "text"),
}
# What each of several requirements may hold, which are judged.
REQUIREMENT = ("id", "text", "require", "perturbations", "strength", "share", "confidence")
CONFIDENCE = 0.95
# What a file could hold before, and why it no longer does.
REMOVED = {"shortcuts": "it was removed, every 8-bit picture is run; leave it out"}
# How values are called where one is wrong.
KINDS: Mapping[type, str] = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
MOST_PERTURBATIONS, MOST_WINDOWS = 10_000, 1024
# The heading that a list of pictures may begin with.
HEADING = ("path", "label")


@dataclass(frozen=True, eq=False)
class PicturesAsked:
    """A model's file, and the pictures that it is asked about; `labels` has those that a list gives them."""

    model: str
    sources: Sequence[Source]
    labels: Sequence[int | str | None] = field(default_factory=list)


@dataclass(frozen=True)
class Campaign:
    """A parsed campaign file. `asked` has each model's pictures, before any is read.

    `certificates`: how many seconds each may take, if they are wanted. `requirements` are those that are judged: if
    there are any, nothing else is asked.
    """

    file: Path
    toml: str
    name: str
    store: Path
    asked: tuple[PicturesAsked, ...]
    perturbations: tuple[Perturbation, ...]
    strengths: tuple[float, ...]
    settings: Settings
    certificates: float | None = None
    windows: int = 1
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    image_shape: tuple[int, int, int] | None = None
    output_name: str | None = None
    class_names: ClassNames | None = None
    requirement: NamedRequirement = field(default_factory=NamedRequirement)
    requirements: tuple[CampaignRequirement, ...] = ()
    reach: float = 0.0

    def questions(self) -> dict[tuple[Requirement, Perturbation], float]:
        """What is required of each picture under each perturbation, up to which strength, which is `reach` at least.

        One profile up to the largest strength answers all others.
        """
        if not self.requirements:
            return {(LABEL, kernel): self.reach for kernel in self.perturbations}
        kernels = {str(kernel): kernel for kernel in self.perturbations}
        questions: dict[tuple[Requirement, Perturbation], float] = {}
        for wanted in self.requirements:
            for text in wanted.perturbations:
                key = parse_requirement(wanted.require), kernels[text]
                questions[key] = max(questions.get(key, self.reach), wanted.strength)
        return questions


def read_campaign(path: str | Path) -> Campaign:
    """A campaign file, checked as a whole; models and pictures are found, but not yet read."""
    file = Path(path)
    text = read_text(file)
    try:
        section = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{file}: is not valid TOML ({error})") from error
    return _Reader(file, text).campaign(section)


@dataclass(frozen=True)
class _Reader:
    """Reads the parts of a file; names of files in it are relative to its folder."""

    file: Path
    text: str

    def campaign(self, section: Table) -> Campaign:
        self.check_keys(section, (*KEYS, *TABLES), "")
        judged: list[Any] = section["requirement"] if isinstance(section.get("requirement"), list) else []
        tables = {key: value for key, value in section.items() if key != "requirement" or not judged}
        for name, keys in TABLES.items():
            self.check_keys(self.value(tables, name, dict, {}), keys, f" in [{name}]")
        network, requirement = section.get("network", {}), tables.get("requirement", {})
        shape = self.numbers(network, "image_shape", "network", whole=True)
        if shape is not None and len(shape) != 3:
            self.refuse("[network] image_shape is channels, height and width, e.g. [3, 32, 32]")
        classes = self.value(network, "classes", str, None)
        settings = self.settings(section.get("analysis", {}))
        strengths = self.strengths(section)
        kernels, requirements = self.required(section, judged, strengths)
        return Campaign(
            file=self.file,
            toml=self.text,
            name=self.value(section, "name", str, self.file.stem),
            store=self.beside(self.value(section, "store", str, f"{self.file.stem}.db")),
            asked=self.asked(section, self.value(section, "images", dict, {})),
            perturbations=kernels,
            strengths=strengths or tuple(sorted({wanted.strength for wanted in requirements})),
            settings=settings,
            certificates=self.certificates(section),
            windows=self.windows(section.get("analysis", {})),
            preprocessing=self.preprocessing(section.get("preprocessing", {})),
            image_shape=None if shape is None else (int(shape[0]), int(shape[1]), int(shape[2])),
            output_name=self.value(network, "output_name", str, None),
            class_names=None if classes is None else read_class_names(self.beside(classes)),
            requirement=NamedRequirement(*(self.value(requirement, key, str, "") for key in ("id", "text"))),
            requirements=requirements,
            reach=max(strengths, default=0.0),
        )

    # -- the parts ----------------------------------------------------------------------------------------------------

    def asked(self, section: Table, images: Table) -> tuple[PicturesAsked, ...]:
        models = [str(self.beside(word)) for word in self.words(section, "models")]
        paths = [str(self.beside(word)) for word in self.words(images, "paths")]
        listed, benchmark, only = (self.value(images, key, str, None) for key in ("csv", "benchmark", "only"))
        if sum(map(bool, (paths, listed, benchmark))) != 1:
            self.refuse("say which images are meant: [images] has either paths, or csv, or benchmark")
        if benchmark is not None:
            if models:
                self.refuse("a benchmark says itself which models it is about; leave out models")
            return asked_of_benchmark(self.beside(benchmark), only)
        if not models:
            self.refuse('say which models are meant, e.g. models = ["model.onnx"]')
        arrays = [self.value(images, key, str, None) for key in ("array", "labels")]
        return asked_of_models(models, paths, None if listed is None else self.beside(listed), only, *arrays)

    def required(
        self, section: Table, judged: Sequence[Any], strengths: Sequence[float]
    ) -> tuple[tuple[Perturbation, ...], tuple[CampaignRequirement, ...]]:
        """All perturbations that are asked about, and the requirements that are judged."""
        if not judged:
            return self.perturbations(section.get("perturbations", [])), ()
        kernels: dict[str, Perturbation] = {}
        requirements: dict[str, CampaignRequirement] = {}
        for entry in judged:
            if not isinstance(entry, dict):
                self.refuse(f"[[requirement]] is a table with an id, not {entry!r}")
            self.check_keys(entry, REQUIREMENT, " in [[requirement]]")
            own = self.perturbations(entry.get("perturbations", section.get("perturbations", [])))
            kernels |= {str(kernel): kernel for kernel in own}
            wanted = self.requirement(entry, tuple(map(str, own)), max(strengths, default=1.0))
            if wanted.id in requirements:
                self.refuse(f"two requirements have the id {wanted.id!r}; give each its own")
            requirements[wanted.id] = wanted
        return tuple(kernels.values()), tuple(requirements.values())

    def requirement(self, entry: Table, kernels: tuple[str, ...], otherwise: float) -> CampaignRequirement:
        name = self.value(entry, "id", str, "")
        if not name:
            self.refuse('each [[requirement]] has an id, e.g. id = "SR-12"')
        strength, share = (
            float(self.value(entry, key, float, n)) for key, n in (("strength", otherwise), ("share", 1))
        )
        confidence = None if share == 1 else float(self.value(entry, "confidence", float, CONFIDENCE))
        where = f"[[requirement]] {name}:"
        if not 0 <= strength <= 1:
            self.refuse(f"{where} strength is between 0 and 1, not {strength:g}")
        if not 0 < share <= 1:
            self.refuse(f"{where} share is above 0 and at most 1, not {share:g}")
        if share == 1 and "confidence" in entry:
            self.refuse(f"{where} no number of pictures shows that all there are hold; name a share below 1")
        if confidence is not None and not 0.5 <= confidence < 1:
            self.refuse(f"{where} confidence is at least 0.5 and below 1, not {confidence:g}")
        try:
            require = str(parse_requirement(self.value(entry, "require", str, str(LABEL))))
        except InputError as error:
            self.refuse(f"{where} {error}")
        text = self.value(entry, "text", str, "")
        return CampaignRequirement(name, text, require, kernels, strength, share, confidence)

    def perturbations(self, entries: object) -> tuple[Perturbation, ...]:
        kernels: dict[str, Perturbation] = {}
        if not isinstance(entries, list) or not entries:
            self.refuse('say what happens to the images, e.g. perturbations = ["box-blur:size=5"]')
        for entry in entries:
            for text in self.texts(entry):
                kernel = parse_path(text)
                kernel.check_straight("campaigns are run")
                kernel.check_of_pictures("campaigns are run")
                kernels[str(kernel)] = kernel
            if len(kernels) > MOST_PERTURBATIONS:
                self.refuse(f"there are more than {MOST_PERTURBATIONS} perturbations; take fewer")
        return tuple(kernels.values())

    def texts(self, entry: object) -> list[str]:
        """The texts of an entry: a text, or a table whose lists give all combinations of their values."""
        if isinstance(entry, str):
            folder = self.file.parent
            return [re.sub(r"(?<=\bfile=)(?!/)", f"{folder}/" if folder != Path() else "", entry)]
        if not isinstance(entry, dict):
            self.refuse(f"a perturbation is a text like 'box-blur:size=5', or a table with a family, not {entry!r}")
        family = str(entry.get("family"))
        if family not in FAMILIES:
            near = get_close_matches(family, FAMILIES, 1)
            hint = f"; do you mean {near[0]!r}?" if near else f"; the families are {', '.join(FAMILIES)}"
            self.refuse(f"[[perturbations]]: the family {family!r} is not known{hint}")
        options = {key: value for key, value in entry.items() if key != "family"}
        known = ("family", *FAMILIES[family].keys)
        self.check_keys(entry, known, f" in [[perturbations]] of the family {family}")
        lists = [value if isinstance(value, list) else [value] for value in options.values()]
        combinations = [dict(zip(options, values, strict=True)) for values in product(*lists)]
        return [
            ":".join(filter(None, (family, ",".join(map(self.option, combination, combination.values())))))
            for combination in combinations
        ]

    def option(self, key: str, value: object) -> str:
        if isinstance(value, bool):
            return f"{key}={'yes' if value else 'no'}"
        if not isinstance(value, (int, float, str)):
            self.refuse(f"[[perturbations]]: {key} is a number or a text, or a list of them, not {value!r}")
        return f"{key}={self.beside(str(value)) if key == 'file' else value}"

    def strengths(self, section: Table) -> tuple[float, ...]:
        judged = isinstance(section.get("requirement"), list)
        numbers = self.numbers(section, "strengths", "", whole=False) or (() if judged else (1.0,))
        if not all(0 <= strength <= 1 for strength in numbers):
            self.refuse(f"strengths are between 0 and 1, not {list(numbers)}")
        return tuple(sorted(set(numbers)))

    def settings(self, section: Table) -> Settings:
        known = {key: setting.metadata["type"] for key, setting in asked().items()}
        values: dict[str, Any] = {key: self.value(section, key, known[key], None) for key in known if key in section}
        values["whole_curve"] = self.value(section, "whole_curves", bool, False)
        try:
            return Settings(**values)
        except InputError as error:
            self.refuse(f"[analysis]: {error}")

    def certificates(self, section: Table) -> float | None:
        seconds = float(self.value(section, "certificate_timeout", float, CERTIFICATE_SECONDS))
        if not seconds > 0:
            self.refuse(f"certificate_timeout is a positive number of seconds, not {seconds:g}")
        return seconds if self.value(section, "certificates", bool, False) else None

    def windows(self, section: Table) -> int:
        windows = int(self.value(section, "windows", int, 1))
        if not 1 <= windows <= MOST_WINDOWS:
            self.refuse(f"[analysis] windows is a number from 1 to {MOST_WINDOWS}, not {windows}")
        return windows

    def preprocessing(self, section: Table) -> Preprocessing:
        if "file" in section:
            both = [key for key in ("resize", "resample", "crop", "mean", "std") if key in section]
            if both:
                self.refuse(f"[preprocessing] file says all that is done to pictures; leave out {' and '.join(both)}")
        scale = self.numbers(section, "scale", "preprocessing")
        if scale is not None and len(scale) != 2:
            self.refuse("[preprocessing] scale has the numbers that are black and white, e.g. [0, 255]")
        more: dict[str, Any] = {"scale": scale, "colour": self.value(section, "colour", str, None)}
        if more["colour"] not in (None, "rgb", "grey"):
            self.refuse(f'[preprocessing] colour is "rgb" or "grey", not {more["colour"]!r}')
        try:
            if "file" in section:
                read = read_preprocessing(self.beside(self.value(section, "file", str, "")))
                return replace(read, **{key: value for key, value in more.items() if value is not None})
            mean, std = (self.normalisation(section, key, side) for side, key in enumerate(("mean", "std")))
            if isinstance(section.get("mean"), str) and std is None:
                std = PRESETS[section["mean"]][1]
            crop = self.sides(section, "crop")
            return Preprocessing(
                resize=self.sides(section, "resize"),
                crop=(crop, crop) if isinstance(crop, int) else crop,
                resample=self.value(section, "resample", str, "bilinear"),
                mean=mean,
                std=std,
                **more,
            )
        except InputError as error:
            self.refuse(f"[preprocessing]: {error}")

    def sides(self, section: Table, key: str) -> int | tuple[int, int] | None:
        """One side, or height and width."""
        if isinstance(side := section.get(key), int) and not isinstance(side, bool):
            return side
        numbers = self.numbers(section, key, "preprocessing", whole=True)
        if numbers is not None and len(numbers) != 2:
            self.refuse(f"[preprocessing] {key} is a number, or height and width, e.g. [224, 224]")
        return None if numbers is None else (int(numbers[0]), int(numbers[1]))

    def normalisation(self, section: Table, key: str, side: int) -> tuple[float, ...] | None:
        """Numbers, or the name of a preset."""
        if isinstance(section.get(key), str):
            if section[key] not in PRESETS:
                self.refuse(f"[preprocessing] {key} is numbers or one of {', '.join(PRESETS)}, not {section[key]!r}")
            return PRESETS[section[key]][side]
        return self.numbers(section, key, "preprocessing")

    # -- values -------------------------------------------------------------------------------------------------------

    def value(self, section: Table, key: str, kind: type, otherwise: Any) -> Any:
        """A value of a kind; whole numbers are numbers."""
        value = section.get(key, otherwise)
        if key in section and (
            not isinstance(value, (int, float) if kind is float else kind)
            or (isinstance(value, bool) and kind is not bool)
        ):
            self.refuse(f"{key} is {KINDS.get(kind, 'a table')}, not {value!r}")
        return value

    def words(self, section: Table, key: str) -> list[str]:
        """A text, or a list of them."""
        entry = section.get(key, [])
        words = [entry] if isinstance(entry, str) else entry
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
            self.refuse(f"{key} is a list of texts, not {entry!r}")
        return words

    def numbers(self, section: Table, key: str, table: str, whole: bool = False) -> tuple[float, ...] | None:
        entry = section.get(key)
        if entry is None:
            return None
        numbers = entry if isinstance(entry, list) else [entry]
        plain = [number for number in numbers if isinstance(number, int if whole else (int, float))]
        if not numbers or len(plain) < len(numbers) or any(isinstance(number, bool) for number in numbers):
            where = f"[{table}] " if table else ""
            self.refuse(f"{where}{key} is {'whole ' * whole}numbers, e.g. [1, 2], not {entry!r}")
        return tuple(plain if whole else map(float, plain))

    def beside(self, name: str) -> Path:
        return self.file.parent / name

    def check_keys(self, section: Table, known: Sequence[str], where: str) -> None:
        for key in section:
            if key not in known:
                near = get_close_matches(key, known, 1)
                elsewhere = [f"[{table}]" for table, keys in TABLES.items() if key in keys]
                hint = (
                    f"; {REMOVED[key]}"
                    if key in REMOVED
                    else f"; do you mean {near[0]!r}?"
                    if near
                    else f"; it belongs to {elsewhere[0]}"
                    if elsewhere
                    else f"; known are {', '.join(known)}"
                )
                self.refuse(f"the key {key!r}{where} is not known{hint}")

    def refuse(self, problem: str) -> NoReturn:
        raise InputError(f"{self.file}: {problem}")


# -- lists of pictures ------------------------------------------------------------------------------------------------


def asked_of_models(
    models: Sequence[str],
    paths: Sequence[str],
    listed: Path | None,
    only: str | None,
    array: str | None,
    labels: str | None,
) -> tuple[PicturesAsked, ...]:
    """Every model about the same pictures: all that some words stand for, or that a list names."""
    files = [file for word in models for file in _model_files(word)]
    rows = [] if listed is None else _rows(listed, array, labels)
    candidates = [(source, None) for source in sources(paths, array, labels)] if listed is None else rows
    chosen = [candidate for candidate in candidates if only is None or fnmatch(candidate[0].name, only)]
    if not chosen:
        raise InputError(f"{listed or ', '.join(paths)}: no picture there has a name like {only!r}")
    of_all = [source for source, _ in chosen]
    return tuple(PicturesAsked(file, of_all, [label for _, label in chosen]) for file in dict.fromkeys(files))


def asked_of_benchmark(folder: Path, only: str | None) -> tuple[PicturesAsked, ...]:
    """A VNN-COMP benchmark: a model and a query on each line of instances.csv, and the pictures that the queries hold;
    `only` those with such names.
    """
    instances = folder / "instances.csv"
    queries_of: dict[str, dict[str, None]] = {}
    for number, row in enumerate(_table(instances), start=1):
        if len(row) < 2:
            raise InputError(f"{instances}: line {number} does not name a model and a query")
        if only is None or fnmatch(row[1], only):
            queries_of.setdefault(_packed_or_not(folder / row[0]), {})[_packed_or_not(folder / row[1])] = None
    if not queries_of:
        raise InputError(f"{instances}: lists nothing{'' if only is None else f' with a name like {only!r}'}")
    return tuple(
        PicturesAsked(model, [one_source(query) for query in queries]) for model, queries in queries_of.items()
    )


def _model_files(word: str) -> list[str]:
    if not has_magic(word) or Path(word).exists():
        return [word]
    matches = sorted(glob(word, recursive=True))
    if not matches:
        raise InputError(f"{word}: no model matches")
    return matches


def _rows(file: Path, array: str | None, labels: str | None) -> list[tuple[Source, int | str | None]]:
    """The pictures of a list and their labels: a path on each line, relative to the list, and a class or its name."""
    rows: list[tuple[Source, int | str | None]] = []
    for number, row in enumerate(_table(file), start=1):
        if number == 1 and tuple(word.strip().lower() for word in row[:2]) == HEADING:
            continue
        if not 1 <= len(row) <= 2 or not row[0]:
            raise InputError(f"{file}: line {number} is not a path and a label with a comma between them")
        label = row[1].strip() if len(row) > 1 else ""
        source = one_source(str(file.parent / row[0]), array, labels)
        rows.append((source, int(label) if label.isdecimal() else label or None))
    return rows


def _table(file: Path) -> list[list[str]]:
    try:
        return [row for row in csv.reader(io.StringIO(read_text(file))) if row]
    except csv.Error as error:
        raise InputError(f"{file}: is not valid CSV ({error})") from error


def _packed_or_not(path: Path) -> str:
    """The file itself, or its packed form."""
    packed = path.with_name(f"{path.name}.gz")
    return str(packed if packed.exists() and not path.exists() else path)
