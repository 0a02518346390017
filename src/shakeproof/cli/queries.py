"""From words on the command line to queries, and from queries to answers: both as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shakeproof.budget import GIB, give_back
from shakeproof.errors import InputError, Refusal, strictly

if TYPE_CHECKING:
    from shakeproof.analysis import Begun
    from shakeproof.cli.options import InputOptions
    from shakeproof.model import Deployed, Network
    from shakeproof.proof import Result, Tell
    from shakeproof.question import AnyPerturbation, Image, Query, Source
    from shakeproof.settings import Settings

# Queries are made for as many pictures at once as their paths fit into so many bytes.
PATHS_AT_ONCE = 2**24
Q = TypeVar("Q")


@dataclass(frozen=True)
class Known:
    """How a query was answered before."""

    status: str


class Answer(NamedTuple):
    """A result, its network, and which of all queries it answers."""

    number: int
    network: Deployed
    result: Result


@dataclass(frozen=True)
class Asked:
    """What was asked: `names` has an image and a perturbation for each query, before any is made.

    Queries come with their networks, in the order of their names, or what is known stands in their place; a refusal is
    about all those with one image, of which there are `of_each`.
    """

    names: Sequence[tuple[str, str]]
    queries: Iterable[tuple[Deployed, Query] | Known | Refusal]
    of_each: int = 1

    def strictly(self) -> Asked:
        """The same, all made at once, if nothing is wrong with any."""
        return replace(self, queries=list(strictly(self.queries)))


def unanswered(
    queries: Iterable[Q | Known | Refusal],
    of_each: int,
    waiting: deque[int],
    settle: Callable[[range, Known | Refusal], None],
) -> Iterator[Q]:
    """The queries that need an answer, as they are taken: their numbers join those `waiting`. Whoever asks is told of
    the others.
    """
    number = 0
    for query in queries:
        numbers = range(number, number + (of_each if isinstance(query, Refusal) else 1))
        number = numbers.stop
        if isinstance(query, (Known, Refusal)):
            settle(numbers, query)
        else:
            waiting.extend(numbers)
            yield query


def load_pictures(
    model: str,
    sources: Sequence[Source],
    inputs: InputOptions,
    deployed: bool = False,
    kernels: Sequence[AnyPerturbation] = (),
) -> tuple[Deployed, Iterator[Image | Refusal]]:
    """The network, and the images as its pictures when their turn comes, all as the options say.

    `deployed`: a network of which only the runtime is wanted. Some `kernels` act on photographs as taken.
    """
    from shakeproof.model import pictures_for

    return pictures_for(
        model,
        sources,
        inputs.preprocessing(),
        inputs.class_names(),
        image_shape=inputs.image_shape,
        output_name=inputs.output_name,
        deployed=deployed,
        with_photographs=any(getattr(kernel, "at_original", False) for kernel in kernels),
    )


def perturbed_pictures(
    model: str,
    images: Sequence[str],
    kernels: Sequence[AnyPerturbation],
    strength: Sequence[float],
    inputs: InputOptions,
    deployed: bool,
    require: str | None,
) -> Asked:
    """Every image under every perturbation. Those that share one are convolved together, a batch at a time."""
    from shakeproof.question import (
        LABEL,
        check_image,
        check_requirement,
        class_number,
        parse_requirement,
        perturbed,
        sources,
    )

    files = list(sources(images, inputs.array, inputs.labels))
    network, pictures = load_pictures(model, files, inputs, deployed, kernels)
    label = class_number(network, inputs.label)
    requirement = LABEL if require is None else parse_requirement(require)
    check_requirement(network, requirement, label)
    at_once = max(1, PATHS_AT_ONCE // (16 * prod(network.input_shape) * len(kernels)))

    def checked(picture: Image | Refusal) -> Image | Refusal:
        if isinstance(picture, Refusal):
            return picture
        try:
            check_image(network, picture, label, requirement)
        except InputError as error:
            return Refusal(picture.name, error)
        return picture

    def queries() -> Iterator[tuple[Deployed, Query] | Refusal]:
        while batch := [*map(checked, islice(pictures, at_once))]:
            usable = [picture for picture in batch if not isinstance(picture, Refusal)]
            by_kernel = [perturbed(network, usable, kernel, label, tuple(strength), requirement) for kernel in kernels]
            by_picture = zip(*by_kernel, strict=True)
            for picture in batch:
                if isinstance(picture, Refusal):
                    yield picture
                else:
                    yield from ((network, query) for query in next(by_picture))

    names = [(source.name, str(kernel)) for source in files for kernel in kernels]
    return Asked(names, queries(), len(kernels))


def specified(model: str, files: Sequence[str], plot: Path | None, inputs: InputOptions) -> Asked:
    """Queries from files, each with its network."""
    from shakeproof.model import load
    from shakeproof.question import sources

    files = [source.name for source in sources(files)]
    for file in files:
        if not file.endswith((".vnnlib", ".vnnlib.gz")):
            raise InputError(f"{file}: name the perturbation: -p PERTURBATION --strength Z")
    if inputs.label is not None:
        raise InputError("--label: the query file names the class that should win; omit the option")
    preprocessing = inputs.preprocessing()
    if preprocessing.moves or preprocessing.scale is not None:
        raise InputError("--resize, --crop, --colour and --scale are about pictures, not about queries; leave them out")
    network = load(
        model,
        image_shape=inputs.image_shape,
        output_name=inputs.output_name,
        preprocess=preprocessing,
        classes=inputs.class_names(),
    )
    queries = (_specified_query(network, file, plot, preprocessing.normalises) for file in files)
    return Asked([(file, "-") for file in files], queries)


def _specified_query(
    network: Network, file: str, plot: Path | None, normalised: bool
) -> tuple[Network, Query] | Refusal:
    from shakeproof.question import read_specification, specified

    try:
        specification = read_specification(Path(file))
        if specification.directives and normalised:
            raise InputError(f"{file}: gives its own normalisation; omit --mean and --std")
        if plot is not None and not specification.directives:
            raise InputError(f"{file}: --plot draws strengths, and this query has none; leave it out")
        return specified(network, file, specification)
    except InputError as error:
        return Refusal(file, error)


def answered(
    asked: Asked,
    settings: Settings,
    settle: Callable[[range, Known | Refusal], None],
    advance: Callable[[float], None],
    expect: Tell | None = None,
    begun: Callable[[Deployed, Query], Begun | None] | None = None,
) -> Iterator[Answer]:
    """Answers as they come, in order; whoever asks is told what needs no answer, how many queries are answered, and
    what to expect of one whose pictures are run, and may say what was done before for one whose time was up.
    """
    from shakeproof.analysis import answers

    waiting: deque[int] = deque()
    done = 0
    questions = unanswered(asked.queries, asked.of_each, waiting, settle)
    for network, same in groupby(questions, key=lambda question: question[0]):

        def progress(share: float, before: int = done) -> None:
            give_back(settings.memory * GIB)
            advance(before + share)

        window_of = None if begun is None else partial(begun, network)
        for result in answers(network, (query for _, query in same), settings, progress, expect, window_of):
            done += 1
            yield Answer(waiting.popleft(), network, result)
