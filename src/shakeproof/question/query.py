"""The question: where inputs come from, what must hold of the outputs, and the image and label if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from operator import index
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.errors import InputError, kind_of
from shakeproof.question.class_names import ClassNames
from shakeproof.question.families import as_perturbation
from shakeproof.question.image_files import read_image
from shakeproof.question.images import Image, RawImage, as_picture
from shakeproof.question.inputs import InputBox, InputKernels, InputPath, InputSet, Path
from shakeproof.question.perturbation import AnyKernel, AnyPerturbation, KernelSet, Perturbation
from shakeproof.question.photographs import Photograph
from shakeproof.question.properties import Property, Specification
from shakeproof.question.requirement import LABEL, OutputContext, Requirement, as_requirement

if TYPE_CHECKING:
    from shakeproof.model import Deployed, Network

Strength = float | tuple[float, ...]
"""One number for a perturbation with one parameter, a number each for one with several."""

Picture = Image | RawImage | NDArray[Any] | Tensor | str | FilePath
"""Pixels (channels, height, width), or what names them."""

# So many numbers of pictures are evaluated at once where their labels have to be predicted.
PREDICTED_AT_ONCE = 2**24


@dataclass(frozen=True, eq=False)
class Obligation:
    """The property holds of the outputs for every input of the set."""

    inputs: InputSet
    property: Property


@dataclass(frozen=True, eq=False)
class Query:
    """Do all obligations hold? A perturbed image has one; a specification has one for each of its boxes.

    Of a perturbed image: `perturbation`, and up to which `strengths` it may go; `label_predicted` says that the label
    is what the network made of the image; `requirement`, what is required, which a specification says in its own words;
    `start`, the runtime's outputs at strength 0, where the requirement takes them as constants.
    """

    name: str
    obligations: tuple[Obligation, ...]
    image: Image | None = None
    label: int | None = None
    perturbation: AnyPerturbation | None = None
    strengths: tuple[float, ...] = ()
    label_predicted: bool = False
    requirement: Requirement | None = LABEL
    start: NDArray[np.float64] | None = None
    class_names: ClassNames = field(default_factory=ClassNames)

    def __repr__(self) -> str:
        under = "" if self.perturbation is None else f" under {self.perturbation} up to {self.strengths}"
        label = "" if self.label is None else f", label {self.label}"
        return f"<Query {self.name}{under}{label}>"

    @property
    def path(self) -> InputPath | None:
        """Where the inputs come from, if that is a path of images."""
        inputs = self.obligations[0].inputs
        return inputs if isinstance(inputs, InputPath) else None

    @property
    def follows_curve(self) -> bool:
        """Whether a curve is meant that its path is only near to."""
        return self.path is not None and self.path.curve is not None

    @property
    def parameters(self) -> int:
        """How many strengths vary on their own along a path; 0 where there is none."""
        return 0 if self.path is None else self.path.path.parameters

    @property
    def photograph(self) -> Photograph | None:
        """What the perturbation acts on, if that is a photograph before it is resized."""
        at_original = isinstance(self.perturbation, Perturbation) and self.perturbation.at_original
        return self.image.photograph if at_original and self.image is not None else None

    def picture(self, *strengths: float) -> Tensor | None:
        """The perturbed picture (channels, height, width), if there is a path of pictures."""
        return None if self.path is None else self.path.layout.from_input(self.path.path.image(*strengths))


def perturbed(
    network: Deployed,
    images: Sequence[Picture],
    perturbation: AnyPerturbation | str,
    label: int | str | None = None,
    strength: Strength = 1.0,
    requirement: Requirement | str = LABEL,
) -> list[Query]:
    """Does a requirement hold for every strength in [0, strength] of a perturbation, for each of some images?

    `label` is a class or its name; without, an image's own is meant, or else the class that is predicted at strength 0.
    A requirement that names no label takes none. Images that share a perturbation are convolved together.
    """
    if not isinstance(images, Sequence) or isinstance(images, str):
        raise InputError(f"images are a list, even if it is one image, not {kind_of(images)}")
    perturbation = as_perturbation(perturbation)
    strengths = perturbation.strengths(strength)
    if not images:
        return []
    requirement, label = as_requirement(requirement), class_number(network, label)
    at_original = isinstance(perturbation, Perturbation) and perturbation.at_original
    pictures = [fitting(network, image, at_original) for image in images]
    check_requirement(network, requirement, label)
    for picture in pictures:
        check_image(network, picture, label, requirement)
    sets: list[InputSet]
    if isinstance(perturbation, AnyKernel):
        layout = network.picture()
        boxes = (perturbation.box(picture.pixels, strengths[0]) for picture in pictures)
        sets = [InputBox(layout.to_input(low), layout.to_input(high), layout) for low, high in boxes]
        starts = layout.to_input(torch.stack([picture.pixels for picture in pictures]))
    else:
        layout, each = network.picture(), _paths(perturbation, pictures)
        if isinstance(perturbation, KernelSet):
            sets = [InputKernels(path.mapped(layout.to_input), strengths[0], layout) for path in each]
        else:
            paths = (InputPath.of_pictures(path, strengths, layout) for path in each)
            sets = [_on_curve(perturbation, *of) for of in zip(paths, pictures, strict=True)]
        starts = torch.stack([path.clipped(layout.to_input(path.base)) for path in each])
    labels: list[int | None] = [None] * len(pictures)
    predicted: dict[int, int] = {}
    if requirement.needs_label:
        labels = [class_number(network, picture.label) if label is None else label for picture in pictures]
        unlabelled = [number for number, known in enumerate(labels) if known is None]
        predicted = dict(zip(unlabelled, _predicted(network, starts[unlabelled]), strict=True))
        labels = [predicted.get(number, known) for number, known in enumerate(labels)]
    at_start = [*_at_start(network, starts)] if requirement.needs_start else [None] * len(pictures)
    properties = _resolved(network, requirement, labels, at_start)
    return [
        Query(
            name=picture.name,
            obligations=(Obligation(inputs, about),),
            image=picture,
            label=own_label,
            perturbation=perturbation,
            strengths=strengths,
            label_predicted=number in predicted,
            requirement=requirement,
            start=start,
            class_names=network.class_names,
        )
        for number, (picture, inputs, own_label, about, start) in enumerate(
            zip(pictures, sets, labels, properties, at_start, strict=True)
        )
    ]


def _on_curve(perturbation: Perturbation, inputs: InputPath, picture: Image) -> InputPath:
    """The same, with the curve's own pictures, where that and not its chords is what is meant."""
    if not perturbation.scale.included:
        return inputs
    if perturbation.at_original:
        raise InputError(f"{perturbation}: remainder=include is not possible at=original yet; leave one of them out")

    def curve(strengths: torch.Tensor) -> torch.Tensor:
        return inputs.layout.to_input(perturbation.on_curve(picture.pixels, strengths))

    return replace(inputs, curve=curve)


def _paths(perturbation: Perturbation | KernelSet, pictures: Sequence[Image]) -> list[Path]:
    """The path of each picture. Photographs may be of any sizes; what is of one size is convolved together."""
    if not isinstance(perturbation, Perturbation) or not perturbation.at_original:
        paths = perturbation.apply(torch.stack([picture.pixels for picture in pictures]))
        return [paths.numbered(number) for number in range(len(pictures))]
    photographs = [picture.photograph for picture in pictures]
    for picture, photograph in zip(pictures, photographs, strict=True):
        if photograph is None:
            raise InputError(
                f"{picture.name}: at=original is about a photograph before it is resized; name its file, not its pixels"
            )
    known = [photograph for photograph in photographs if photograph is not None]
    return [photograph.resizing.path(perturbation.apply(photograph.pixels)) for photograph in known]


def output_context(
    network: Deployed, label: int | None = None, start: NDArray[np.float64] | None = None
) -> OutputContext:
    """A network's outputs, as requirements are about them."""
    return OutputContext(network.parts, network.class_names.number, label, start)


def _resolved(
    network: Deployed,
    requirement: Requirement,
    labels: Sequence[int | None],
    starts: Sequence[NDArray[np.float64] | None],
) -> list[Property]:
    """The property that a requirement is for each picture: one object for all that have the same."""

    def property_of(label: int | None, start: NDArray[np.float64] | None = None) -> Property:
        about = requirement.resolved(output_context(network, label, start))
        about.check()
        return about

    if requirement.needs_start:
        return [property_of(label, start) for label, start in zip(labels, starts, strict=True)]
    shared = {label: property_of(label) for label in set(labels)}
    return [shared[label] for label in labels]


def _at_start(network: Deployed, inputs: Tensor) -> NDArray[np.float64]:
    """The runtime's outputs at strength 0, which become constants of the query."""
    step = max(1, PREDICTED_AT_ONCE // prod(network.input_shape))
    outputs = np.concatenate([network.reference(part.float().numpy()) for part in inputs.split(step)])
    if not np.isfinite(outputs).all():
        raise InputError(f"{network.name}: has outputs at strength 0 that are infinite or NaN")
    return outputs.astype(np.float64)


def check_requirement(network: Deployed, requirement: Requirement, label: int | None) -> None:
    """Refuse a label that a requirement does not ask for, or has no use for, and outputs that are not there."""
    if requirement.needs_label:
        check_label(network, label)
    elif label is not None:
        raise InputError(f"{requirement}: says nothing about a label; leave it out", option="label")
    if requirement.needs_start:  # what it is follows from the image
        requirement.numbered(output_context(network))
        compares_only = False
    else:
        compares_only = requirement.resolved(output_context(network, 0)).compares_only
    if getattr(network, "ranks_only", False) and not compares_only:
        raise InputError(
            f"{requirement}: says how large outputs are, and of {network.name} only their order is analysed, by the"
            " scores that its output is made from; ask which output is larger"
        )


def fitting(network: Deployed, image: Picture, with_photograph: bool = False) -> Image:
    """An image, or what names one, as the network's picture; if asked for, with what it was before it was resized."""
    layout = network.picture()
    if isinstance(image, (str, FilePath)):
        image = read_image(str(image))
    if isinstance(image, RawImage):
        return image.fitted(layout, network.preprocessing, with_photograph)
    if isinstance(image, Image):
        return image
    if isinstance(image, Tensor):
        image = image.detach().cpu()
        image = image.double() if image.is_floating_point() else image
    array = np.asarray(image)
    if array.dtype == object:
        raise InputError(f"an image is an array, a tensor or a file's name, not {kind_of(image)}")
    return Image("array", as_picture(array, layout.image_shape))


def _predicted(network: Deployed, inputs: torch.Tensor) -> list[int]:
    if not len(inputs):
        return []
    step = max(1, PREDICTED_AT_ONCE // prod(network.input_shape))
    return [winner for batch in inputs.split(step) for winner in network.predicted(batch)]


def specified(network: Network, name: str, specification: Specification) -> tuple[Network, Query]:
    """The query that a specification is, and the network it is about: with the normalisation that it names, if any."""
    size, classes = network.graph.input_shape.numel(), network.graph.classes
    if (specification.inputs, specification.outputs) != (size, classes):
        raise InputError(
            f"{name}: is about {specification.inputs} inputs and {specification.outputs} outputs,"
            f" {network.name} has {size} and {classes}"
        )
    try:
        specification.check()
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    if network.ranks_only and not all(about.compares_only for _, about in specification.parts):
        raise InputError(
            f"{name}: says how large outputs are, and of {network.name} only their order is analysed, by the scores"
            " that its output is made from; ask which output is larger"
        )
    if specification.directives:
        return _with_directives(network, name, specification)
    boxes = []
    for box, about in specification.parts:
        low, high = (torch.from_numpy(side).view(network.graph.input_shape) for side in box)
        boxes.append(Obligation(InputBox(low, high, network.layout), about))
    pictured = network.layout is not None and len(specification.parts) == 1
    image = RawImage(name, specification).fitted(network.picture()) if pictured else None
    names = network.class_names
    return network, Query(name, tuple(boxes), image, specification.label, requirement=None, class_names=names)


def _with_directives(network: Network, name: str, specification: Specification) -> tuple[Network, Query]:
    """The query that the comments of a file name: its image, perturbed."""
    directives = specification.directives

    def numbers(key: str, otherwise: str) -> list[float]:
        return [float(word) for word in directives.get(key, otherwise).split(",")]

    if "image-shape" in directives:
        channels, height, width = map(int, directives["image-shape"].split(","))
        network = network.with_image_shape((channels, height, width))
    if "mean" in directives or "std" in directives:
        network = network.normalised(numbers("mean", "0"), numbers("std", "1"))
    image = RawImage(name, specification, specification.label).fitted(network.picture())
    (query,) = perturbed(network, [image], directives["perturbation"], None, tuple(numbers("strength", "")))
    return network, query


def class_number(network: Deployed, label: int | str | None) -> int | None:
    """The class with this number (any integer type) or name."""
    if isinstance(label, str):
        return network.class_names.number(label)
    try:
        return None if label is None else index(label)
    except TypeError:
        raise InputError(f"a label is the number of a class, or its name, not {label!r}") from None


def check_label(network: Deployed, label: int | None, name: str = "") -> None:
    """Refuse a network that does not classify, and a label that is not one of its classes."""
    network.check_classifies()
    if label is not None and label not in range(network.classes):
        whose = f"{name}: " if name else ""
        raise InputError(f"{whose}label {label} is not one of the network's classes 0 to {network.classes - 1}")


def check_image(network: Deployed, image: Image, label: int | None, requirement: Requirement = LABEL) -> None:
    """Refuse an image that does not fit the network, or whose label is not one of its classes, if it is used."""
    if requirement.needs_label:
        check_label(network, image.label if label is None else label, image.name)
    if tuple(image.pixels.shape) != network.picture().image_shape:
        raise InputError(f"{image.name}: not a picture of the network's shape {network.picture().image_shape}")
    if not bool(torch.isfinite(image.pixels).all()):
        raise InputError(f"{image.name}: has pixels that are NaN or infinite")
