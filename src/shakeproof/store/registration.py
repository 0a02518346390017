"""From a campaign file to queries: networks and pictures are read, checked and stored by content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from shakeproof.analysis import check_applicable, queries_at_once
from shakeproof.budget import no_progress
from shakeproof.certificate import CERTIFICATE_SECONDS
from shakeproof.digests import query_digest, question_digest
from shakeproof.errors import InputError, strictly
from shakeproof.model import Deployed, Network, load, load_deployed, pictures_for
from shakeproof.proof import Result
from shakeproof.question import (
    Image,
    Perturbation,
    Requirement,
    check_image,
    class_number,
    output_context,
    perturbed,
)
from shakeproof.settings import Settings
from shakeproof.store.campaign_file import Campaign, PicturesAsked
from shakeproof.store.rows import NamedRequirement
from shakeproof.store.writer import Item, RequirementTexts, StoreWriter, certified, finding


@dataclass(frozen=True)
class ModelFile:
    """What is needed to load a network again in the same way; `digest` tells whether it is the same one.

    So many of its queries should be worked on `at_once`. `cuttable`: a path through it can be worked on in windows.
    """

    name: str
    digest: str
    image_shape: tuple[int, int, int]
    output_name: str | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    deployed: bool
    at_once: int = 1
    cuttable: bool = False

    def load(self, path: str | None = None) -> Deployed:
        """The network, from its own file or a copy of it."""
        loaded: Callable[..., Deployed] = load_deployed if self.deployed else load
        return loaded(
            path or self.name, image_shape=self.image_shape, output_name=self.output_name, mean=self.mean, std=self.std
        )


@dataclass(frozen=True)
class Registered:
    """A campaign in the store: its id, its models by the numbers of their rows, and what should be said of them."""

    id: int
    models: Mapping[int, ModelFile]
    notes: tuple[str, ...]


def register(campaign: Campaign, writer: StoreWriter, progress: Callable[[float], None] = no_progress) -> Registered:
    """Read all that a campaign asks about, and write down what it asks; an error if anything cannot be used."""
    kernels = {str(kernel): writer.add_perturbation(kernel) for kernel in campaign.perturbations}
    total, done = sum(len(asked.sources) for asked in campaign.asked), 0
    models: dict[int, ModelFile] = {}
    items: list[Item] = []
    notes: dict[str, None] = {}
    for asked in campaign.asked:
        network, pictures = _pictures(campaign, asked)
        model, digest = writer.add_model(network, campaign.settings)
        models[model] = _model_file(network, digest, campaign)
        notes |= dict.fromkeys(network.notes)
        for number, picture in enumerate(pictures):
            if not number:
                _check(campaign, network, picture)
            image, pixels = writer.add_image(picture)
            notes |= dict.fromkeys(picture.notes)
            for (requirement, kernel), strength in campaign.questions().items():
                question, text = _question(campaign, network, (digest, pixels), picture, requirement, kernel)
                asked_text = RequirementTexts(text, str(requirement))
                strengths = kernel.strengths(strength)
                items.append(Item(model, image, kernels[str(kernel)], question, strengths, asked_text))
            done += 1
            progress(done / total)
    number = writer.begin(
        campaign.name,
        str(campaign.file),
        campaign.toml,
        campaign.requirement,
        campaign.strengths,
        campaign.settings,
        items,
        campaign.requirements,
    )
    return Registered(number, models, tuple(notes))


def _pictures(campaign: Campaign, asked: PicturesAsked) -> tuple[Deployed, Iterator[Image]]:
    """A network, and its pictures when their turn comes."""
    network, unlabelled = pictures_for(
        asked.model,
        asked.sources,
        campaign.preprocessing,
        campaign.class_names,
        image_shape=campaign.image_shape,
        output_name=campaign.output_name,
        deployed=campaign.settings.pixel_rounding is not None,
    )

    def pictures() -> Iterator[Image]:
        for picture, word in zip_longest(strictly(unlabelled), asked.labels):
            label = picture.label if word is None else class_number(network, word)
            labelled = replace(picture, label=label)
            for requirement in {requirement for requirement, _ in campaign.questions()}:
                check_image(network, labelled, None, requirement)
            yield labelled

    return network, pictures()


def _check(campaign: Campaign, network: Deployed, picture: Image) -> None:
    """Whether one picture of a network's can be asked about at all, in every way that is wanted."""
    for (requirement, kernel), strength in campaign.questions().items():
        (query,) = perturbed(network, [picture], kernel, None, strength, requirement)
        check_applicable(network, query, campaign.settings)


def _question(
    campaign: Campaign,
    network: Deployed,
    digests: tuple[str, str],
    picture: Image,
    requirement: Requirement,
    kernel: Perturbation,
) -> tuple[str, str]:
    """By what a question is found again, and what is required, with numbers for names. What a requirement refers to at
    strength 0 is worked out for it.
    """
    if requirement.is_label:
        return question_digest(*digests, picture.label, kernel, campaign.settings), str(requirement)
    text = str(requirement.numbered(output_context(network)))
    if requirement.needs_start:
        (query,) = perturbed(network, [picture], kernel, None, 0.0, requirement)
        return query_digest(network, query, campaign.settings), text
    label = picture.label if requirement.needs_label else None
    return question_digest(*digests, label, kernel, campaign.settings, (text,)), text


def _model_file(network: Deployed, digest: str, campaign: Campaign) -> ModelFile:
    normalisation = network.normalisation
    return ModelFile(
        name=network.name,
        digest=digest,
        image_shape=network.picture().image_shape,
        output_name=network.output_name,
        mean=None if normalisation is None else normalisation.mean,
        std=None if normalisation is None else normalisation.std,
        deployed=campaign.settings.pixel_rounding is not None,
        at_once=queries_at_once(network, campaign.settings),
        cuttable=campaign.settings.pixel_rounding is not None
        or (
            isinstance(network, Network)
            and network.graph.is_piecewise_linear
            and not network.graph.jumping_operators
            and campaign.settings.method != "bounds"
        ),
    )


def keep(
    path: str | Path,
    name: str,
    network: Deployed,
    results: Sequence[Result],
    settings: Settings,
    certificates: bool = False,
    requirement: NamedRequirement | None = None,
) -> None:
    """Write answers about perturbed images into a store, as a campaign with a name; of equal questions the last one.

    A store counts images whose label wins: of another requirement, it keeps no answer.
    """
    for result in results:
        if not result.record.is_about_label:
            raise InputError(
                f"{result.query.name}: is about {result.query.requirement}; a store keeps which class wins"
            )
    answers = {query_digest(network, result.query, settings): result for result in results}
    with StoreWriter.open(path) as writer:
        model, _ = writer.add_model(network, settings)
        items = []
        for question, result in answers.items():
            query = result.query
            assert query.image is not None
            assert isinstance(query.perturbation, Perturbation)
            image, _ = writer.add_image(query.image)
            items.append(Item(model, image, writer.add_perturbation(query.perturbation), question, query.strengths))
        campaign = writer.begin(name, "", name, requirement or NamedRequirement(), (), settings, items)
        numbers = [waiting.query for waiting in writer.waiting(campaign, None, None)]
        answered = list(zip(numbers, answers.values(), strict=True))
        findings = [finding(number, network, result, network.name, certificates) for number, result in answered]
        writer.add(findings, settings.timeout)
        due = {answer.query for answer in findings if answer.is_due}
        limit = CERTIFICATE_SECONDS
        writer.certify([certified(n, network, result, limit) for n, result in answered if n in due], limit)
