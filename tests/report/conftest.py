"""A small store of every kind of answer, with names that would like to be more than names."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from processes import HANGING

import shakeproof as sp
from shakeproof import demo
from shakeproof.budget import no_progress
from shakeproof.question import ClassNames, read_image
from shakeproof.report import gathered
from shakeproof.settings import Settings
from shakeproof.store import NamedRequirement, Store, StoredProfile, StoreWriter, flat, keep
from shakeproof.store.flat import TYPES, with_claim

HOSTILE = "</script><img src=x onerror=document.title='broken'>"
PERTURBATIONS = {
    "motion-blur:size=9,angle=90": 1.0,
    "motion-blur:size=9,angle=0": 1.0,
    "box-blur:size=4,padding=zeros": 1.0,
    "sharpen:size=5,clip=0.2..0.7": 1.0,
    "haze:colour=0.8": 1.0,
    "box-blur:size=5,padding=circular+brightness:max=0.1": (0.2, 0.1),
    "zoom-blur:by=1.3+haze:colour=0.8": (0.1, 0.1),
}


def changed(one: StoredProfile, **values) -> StoredProfile:
    """An answer as the store would have it if its JSON were another."""
    answer = {**one.said, **values}
    columns = dict(zip(TYPES, flat(with_claim(answer), TYPES), strict=True))
    return replace(one, text=json.dumps(answer), values=columns)


@pytest.fixture(scope="session")
def hostile_network(demo_network):
    names = [f"{name} {HOSTILE}" if name == "warning" else name for name in demo.CLASSES]
    return demo_network.named(ClassNames.of(names))


@pytest.fixture(scope="session")
def results(hostile_network):
    paths = dict(demo.images()[:1] + [own for own in demo.images() if own[0].stem == "warning.1"])
    pictures = [
        replace(read_image(str(path)).fitted(hostile_network.picture()), name=f"signs/{path.stem}", label=label)
        for path, label in paths.items()
    ]
    pictures[1] = replace(pictures[1], name=f"signs/{HOSTILE}.png")
    found = [
        sp.profile(hostile_network, picture, text, max_strength=strength, timeout=HANGING)
        for text, strength in PERTURBATIONS.items()
        for picture in pictures
    ]
    return [*found, sp.profile(hostile_network, pictures[1], "box-blur:size=9", timeout=1e-6)]


@pytest.fixture(scope="session")
def store(hostile_network, results, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "signs.sqlite"
    requirement = NamedRequirement("REQ-7", f"Signs keep their class {HOSTILE}")
    keep(path, "Signs under shake", hostile_network, results, Settings(), requirement=requirement)
    with StoreWriter.open(path) as writer:  # one ends in an error
        writer.fail(1, "memory", f"a worker had too little memory {HOSTILE}")
        with writer.writing() as connection:
            connection.execute("DELETE FROM results WHERE query = 1")
            connection.execute("DELETE FROM answers WHERE query = 1")
    return path


@pytest.fixture(scope="session")
def reported(store):
    with Store.open(store) as opened:
        return gathered(opened, None, checks=True, advance=no_progress)
