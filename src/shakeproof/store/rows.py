"""The rows of a store as values: models, pictures, perturbations and answers; and each answer as one flat row.

Numbers are unpacked, and torch is imported, when they are first asked for: a table needs neither.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from shakeproof.proof import Claim, Status, strengths_of
from shakeproof.question import ClassNames
from shakeproof.store.flat import read_record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from shakeproof.model import Deployed
    from shakeproof.proof import Record
    from shakeproof.question import Degradation, Image, Matrix, ParameterisedKernel, Part, Perturbation, Tone
    from shakeproof.store.curves import DrawnCurve

# How pixels are kept, without loss: as grey levels where they are some, else in the shortest type that has them.
KINDS = {"grey": "u1", "float32": "<f4", "float64": "<f8"}
WHITE = 255.0


@dataclass(frozen=True)
class StoredModel:
    """A network that was asked about. `digest` is of all that its answers depend on, `identity` of its file alone.

    Pictures are (channels, height, width) = `image_shape`, and before the network (x - mean) / std, if these are given.
    """

    digest: str
    identity: str
    name: str
    image_shape: tuple[int, int, int]
    input_shape: tuple[int, ...]
    channels_last: bool
    classes: int
    class_names: ClassNames
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class StoredImage:
    """A picture, as it was perturbed; `label` is what came with it. Its pixels are `packed`, in one of the `KINDS`."""

    digest: str
    name: str
    label: int | None
    shape: tuple[int, int, int]
    kind: str
    packed: bytes

    @property
    def pixels(self) -> NDArray[np.float64]:
        """(channels, height, width) in float64."""
        import numpy as np

        pixels = np.frombuffer(zlib.decompress(self.packed), KINDS[self.kind]).reshape(self.shape).astype(np.float64)
        return pixels / WHITE if self.kind == "grey" else pixels

    def image(self) -> Image:
        """The picture to ask about."""
        import torch

        from shakeproof.question import Image

        return Image(self.name, torch.from_numpy(self.pixels), self.label)


@dataclass(frozen=True)
class NamedRequirement:
    """What a campaign shows, in its users' words."""

    id: str = ""
    text: str = ""


@dataclass(frozen=True)
class CampaignRequirement:
    """What a campaign judges: that what is required (`require`) holds under all perturbations up to a strength.

    So much is asked of a `share` of all pictures, with a `confidence`; of the campaign's own pictures, if that is None.
    """

    id: str
    text: str
    require: str
    perturbations: tuple[str, ...]
    strength: float
    share: float = 1.0
    confidence: float | None = None


def write_requirements(requirements: Iterable[CampaignRequirement]) -> str:
    return json.dumps([asdict(requirement) for requirement in requirements])


def read_requirements(text: str) -> tuple[CampaignRequirement, ...]:
    return tuple(
        CampaignRequirement(**{**values, "perturbations": tuple(values["perturbations"])})
        for values in json.loads(text)
    )


@dataclass(frozen=True)
class StoredCampaign:
    """A campaign file that was run: `toml` is its text, `strengths` the columns of its table. Times are UTC.

    It asks `asked` queries; `answered` of them have a result, `failed` ended in an error. `requirements` are those that
    it judges.
    """

    id: int
    name: str
    file: str
    toml: str
    requirement: NamedRequirement
    strengths: tuple[float, ...]
    requirements: tuple[CampaignRequirement, ...]
    tool: str
    started: str
    last_run: str
    asked: int
    answered: int
    failed: int

    @property
    def missing(self) -> int:
        return self.asked - self.answered - self.failed


@dataclass(frozen=True, eq=False)
class StoredProfile:
    """An answer, with what it is about. `number` is its place in the campaign, `query` its number in the store.

    `said` is the answer as JSON; `record` is the same with names and types, and `claim` what it says at which strength.
    `values` are its typed columns, for which no JSON is read.
    `perturbation` is the real one, made from the kernels in the store: `perturbation.kernel.at(z)` has the entries,
    `perturbation.apply(pixels)` the path of pictures. `settings` are how it was asked. `certificate` is the SHA-256 of
    the certificate, which `Store.certificate(query)` gives; else `unproved` says why there is none, if one was wanted.
    `requirement` is what the campaign requires, in its words; the record has numbers for the names of classes.
    """

    query: int
    number: int
    model: StoredModel
    image: StoredImage
    definition: str
    text: str
    values: Mapping[str, Any]
    packed_curve: bytes | None
    label_predicted: bool
    settings: Mapping[str, Any]
    certificate: str | None
    unproved: str | None
    finished: str
    requirement: str = "label"

    @property
    def perturbation(self) -> Perturbation:
        return read_perturbation(self.definition)

    @cached_property
    def said(self) -> Mapping[str, Any]:
        return read_record(self.text) | {"model": self.model.name, "image": self.image.name}

    @cached_property
    def record(self) -> Record:
        from shakeproof.proof import Record

        return Record.from_json(self.said)

    @cached_property
    def claim(self) -> Claim:
        """The claim, by `claim_of`, as it was when the answer was stored."""
        values = self.values
        return Claim(
            Status(values["verdict"]), strengths_of(self.strength), values["proved_up_to"], values["lost_from"]
        )

    @property
    def strength(self) -> Any:
        """How far it goes, as in JSON: a number, or a list of them."""
        strength = self.values["strength"]
        return json.loads(strength) if isinstance(strength, str) else strength

    @cached_property
    def curve(self) -> DrawnCurve | None:
        """What there is to draw; None where strengths are several, or nothing was found out."""
        from shakeproof.store.curves import DrawnCurve

        return None if self.packed_curve is None else DrawnCurve.unpacked(self.packed_curve)


@dataclass(frozen=True, eq=False)
class StoredError:
    """A query that ended without an answer: `kind` is crash, memory, timeout or refused.

    `requirement` is what the campaign requires; `asked` has numbers for the names of classes.
    """

    query: int
    number: int
    model: StoredModel
    image: StoredImage
    definition: str
    kind: str
    message: str
    finished: str
    requirement: str = "label"
    asked: str = "label"

    @property
    def perturbation(self) -> Perturbation:
        return read_perturbation(self.definition)


def pack_pixels(pixels: Tensor) -> tuple[str, bytes]:
    """How pixels (channels, height, width) in float64 are kept, and the bytes."""
    import numpy as np

    exact = pixels.numpy()
    levels = np.rint(exact * WHITE)
    with np.errstate(over="ignore"):
        shorter = exact.astype(np.float32)
    if levels.min() >= 0 and levels.max() <= WHITE and (levels / WHITE == exact).all():
        kind, kept = "grey", levels
    else:
        kind, kept = ("float32", shorter) if (shorter == exact).all() else ("float64", exact)
    return kind, zlib.compress(kept.astype(KINDS[kind]).tobytes())


def model_facts(network: Deployed) -> str:
    """The stored facts about a network, besides its name and its digests."""
    layout, normalisation = network.picture(), network.normalisation
    return json.dumps(
        {
            "image_shape": layout.image_shape,
            "input_shape": layout.input_shape,
            "channels_last": layout.channels_last,
            "classes": network.classes,
            "class_names": network.class_names.words,
            "mean": None if normalisation is None else normalisation.mean,
            "std": None if normalisation is None else normalisation.std,
            "notes": network.notes,
        }
    )


def read_model(digest: str, identity: str, name: str, facts: str) -> StoredModel:
    values = json.loads(facts)
    names = ClassNames(tuple(map(tuple, values.pop("class_names"))))
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return StoredModel(digest, identity, name, class_names=names, **plain)


def read_image(digest: str, name: str, label: int | None, shape: str, kind: str, pixels: bytes) -> StoredImage:
    return StoredImage(digest, name, label, tuple(json.loads(shape)), kind, pixels)


def write_perturbation(perturbation: Perturbation) -> str:
    """Its text, and what that stands for, in fractions: kernels from files are known even where these are gone."""
    parts = [
        {"family": part.family, "options": part.options, "padding": part.padding, **_effect(part.effect)}
        for part in perturbation.parts
    ]
    return json.dumps({"text": str(perturbation), "clip": perturbation.clip, "parts": parts})


def _effect(effect: ParameterisedKernel | Tone | Degradation) -> dict[str, Any]:
    from shakeproof.question import Degradation, Tone

    if isinstance(effect, Degradation):
        options = [
            option if isinstance(option, int | float | str | tuple) else {"packed": option.packed()}
            for option in effect.options
        ]
        return {"matrix": effect.matrix, "options_of_matrix": options}
    if isinstance(effect, Tone):
        return {"gain": str(effect.gain), "offset": str(effect.offset)}
    (change,) = effect.coefficients
    return {"start": _written(effect.bias), "change": _written(change)}


def _written(matrix: Matrix) -> list[list[str]]:
    return [[str(entry) for entry in row] for row in matrix]


@cache
def read_perturbation(definition: str) -> Perturbation:
    from shakeproof.question import Perturbation

    values = json.loads(definition)
    return Perturbation(tuple(map(_part, values["parts"])), None if values["clip"] is None else tuple(values["clip"]))


def _part(values: Mapping[str, Any]) -> Part:
    from shakeproof.question import Degradation, ParameterisedKernel, Part, Tone

    effect: ParameterisedKernel | Tone | Degradation
    if "matrix" in values:
        effect = Degradation(values["matrix"], _frozen(values["options_of_matrix"]))
    elif "gain" in values:
        effect = Tone(Fraction(values["gain"]), Fraction(values["offset"]))
    else:
        start, change = (tuple(tuple(map(Fraction, row)) for row in values[key]) for key in ("start", "change"))
        effect = ParameterisedKernel((change,), start)
    return Part(values["family"], tuple((key, value) for key, value in values["options"]), effect, values["padding"])


def _frozen(value: Any) -> Any:
    """Options of a degradation as they were: lists were tuples, and a table is a matrix."""
    if isinstance(value, dict):
        from shakeproof.question import LinearMap

        return LinearMap.unpacked(value["packed"])
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
