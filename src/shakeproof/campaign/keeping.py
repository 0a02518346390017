"""A store of answers that are there already, without a campaign file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shakeproof.campaign.findings import certified, finding
from shakeproof.campaign.ledger import Item, Ledger
from shakeproof.campaign.stored import Requirement
from shakeproof.certificate import CERTIFICATE_SECONDS
from shakeproof.digests import query_digest
from shakeproof.model import Deployed
from shakeproof.proof import Result
from shakeproof.question import Perturbation
from shakeproof.settings import Settings


def keep(
    path: str | Path,
    name: str,
    network: Deployed,
    results: Sequence[Result],
    settings: Settings,
    certificates: bool = False,
    requirement: Requirement | None = None,
) -> None:
    """Write answers about perturbed images into a store, as a campaign with a name; of equal questions the last one."""
    answers = {query_digest(network, result.query, settings): result for result in results}
    with Ledger.open(path) as ledger:
        model, _ = ledger.add_model(network, settings)
        items = []
        for question, result in answers.items():
            query = result.query
            assert query.image is not None
            assert isinstance(query.perturbation, Perturbation)
            image, _ = ledger.add_image(query.image)
            items.append(Item(model, image, ledger.add_perturbation(query.perturbation), question, query.strengths))
        campaign = ledger.begin(name, "", name, requirement or Requirement(), (), settings, items)
        numbers = [waiting.query for waiting in ledger.waiting(campaign, None, None)]
        answered = list(zip(numbers, answers.values(), strict=True))
        found = [finding(number, network, result, network.name, certificates) for number, result in answered]
        ledger.add(found, settings.timeout)
        due = {own.query for own in found if own.is_due}
        limit = CERTIFICATE_SECONDS
        ledger.certify([certified(n, network, result, limit) for n, result in answered if n in due], limit)
