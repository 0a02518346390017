"""Whatever can change an answer changes its digest; what only changes how long it takes does not."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import shakeproof as sp
from shakeproof import demo
from shakeproof.cli.recording import question
from shakeproof.digests import content_digest, image_digest, network_digest, query_digest, question_digest
from shakeproof.question import ClassNames, InputBox, Obligation, Query, parse_path, perturbed, read_image, wins
from shakeproof.store import Store, keep

# Another value than the usual one for each of the settings.
OTHERWISE = {
    "timeout": 3.0,
    "memory": 1.5,
    "stop_early": True,
    "device": "cuda",
    "method": "bounds",
    "tolerance": 1e-3,
    "whole_curve": True,
    "arithmetic": "float32",
    "pixels": "8bit",
}
HARMLESS = {"timeout", "memory", "device", "whole_curve"}
SETTINGS = sp.Settings()
BLUR = parse_path("box-blur:size=3")


def test_settings_that_decide_and_those_that_do_not():
    assert OTHERWISE.keys() == {field.name for field in fields(sp.Settings)}
    usual = question_digest("network", "image", 1, BLUR, SETTINGS)
    for name, value in OTHERWISE.items():
        other = question_digest("network", "image", 1, BLUR, replace(SETTINGS, **{name: value}))
        assert (other == usual) == (name in HARMLESS), name
    assert (
        len({question_digest("n", "i", 1, BLUR, sp.Settings(pixels=p)) for p in ("8bit", "8bit,rounding=half-up")}) == 2
    )


def test_every_part_of_a_question_counts():
    texts = (
        "box-blur:size=5",
        "box-blur:size=3,padding=zeros",
        "box-blur:size=3,clip=0..1",
        "box-blur:size=3+haze:colour=0",
    )
    asked = [
        ("network", "image", 1, BLUR),
        ("another", "image", 1, BLUR),
        ("network", "another", 1, BLUR),
        ("network", "image", 2, BLUR),
        ("network", "image", None, BLUR),
        *(("network", "image", 1, parse_path(text)) for text in texts),
    ]
    assert len({question_digest(*one, SETTINGS) for one in asked}) == len(asked)


def test_a_kernel_from_a_file_is_what_is_in_it(tmp_path):
    """The same name, with other entries, is another question."""
    found = set()
    for entries in (np.eye(3), np.ones((3, 3))):
        np.save(tmp_path / "shake.npy", entries)
        shake = parse_path(f"psf:file={tmp_path / 'shake.npy'}")
        found.add(question_digest("network", "image", 1, shake, SETTINGS))
    assert len(found) == 2


def test_a_network_is_its_file_and_what_its_pictures_go_through(demo_network):
    networks = [
        demo_network,
        demo_network.normalised([0.5], [0.25]),
        demo_network.normalised([0.5], [0.5]),
        replace(demo_network, identity="another file, or another of its outputs"),
        replace(demo_network, layout=replace(demo_network.layout, channels_last=True)),
    ]
    assert len({network_digest(network, SETTINGS) for network in networks}) == len(networks)
    assert network_digest(demo_network, SETTINGS) == network_digest(replace(demo_network, name="a copy"), SETTINGS)
    deployed = sp.Settings(pixels="8bit")
    assert network_digest(demo_network, SETTINGS) != network_digest(demo_network, deployed)  # what runs it counts


def test_an_image_is_its_pixels():
    pixels = torch.linspace(0, 1, 27, dtype=torch.float64).view(3, 3, 3)
    nearly = pixels.clone()
    nearly[0, 0, 0] += 2.0**-60
    assert image_digest(pixels) == image_digest(pixels.clone()) != image_digest(nearly)


def test_a_question_has_one_digest_wherever_it_is_asked(demo_network, tmp_path):
    """A campaign, a store of answers that are there already, and a file of answers build on the same one."""
    path, label = demo.images()[0]
    for own in (None, label):
        picture = replace(read_image(str(path)).fitted(demo_network.picture()), label=own)
        (query,) = perturbed(demo_network, [picture], BLUR)
        model, image = network_digest(demo_network, SETTINGS), image_digest(picture.pixels)
        asked = question_digest(model, image, own, BLUR, SETTINGS)  # as a campaign asks it
        assert query_digest(demo_network, query, SETTINGS) == asked
        keep(tmp_path / "s.db", f"label {own}", demo_network, [sp.profile(demo_network, picture, BLUR)], SETTINGS)
        with Store.open(tmp_path / "s.db") as store:
            assert (asked,) in store.connection.execute("SELECT question FROM queries").fetchall()
        for change in ({"method": "bounds"}, {"tolerance": 1e-3}):
            other = replace(SETTINGS, **change)
            assert question(demo_network, query, SETTINGS) != question(demo_network, query, other)
        assert question(demo_network, query, SETTINGS) == question(demo_network, query, replace(SETTINGS, memory=1.0))


def test_a_class_by_its_name_is_the_class_that_is_meant(demo_network):
    """The same text about other names is another question, and one that takes other outputs at strength 0 as well."""
    path, _ = demo.images()[0]
    words, found = list(demo_network.class_names.words), {}
    for names in (words, words[::-1]):
        network = replace(demo_network, class_names=ClassNames(tuple(names)))
        for text in (f"score:class={words[0][0]},above=-100", "score:class=0,above=-100", "drift:index=0,by=3"):
            (query,) = perturbed(network, [str(path)], BLUR, requirement=text)
            found.setdefault(text, set()).add(query_digest(network, query, SETTINGS))
    by_name, *others = found.values()
    assert len(by_name) == 2
    assert {len(digests) for digests in others} == {1}
    assert others[0] < by_name
    again = replace(query, start=np.nextafter(query.start, 9))
    assert query_digest(demo_network, query, SETTINGS) != query_digest(demo_network, again, SETTINGS)


def test_a_store_keeps_no_answers_about_other_requirements(demo_network, tmp_path):
    path, _ = demo.images()[0]
    answer = sp.profile(demo_network, str(path), BLUR, require="top:k=2")
    with pytest.raises(sp.ShakeproofError, match="is about top:k=2; a store keeps which class wins"):
        keep(tmp_path / "s.db", "others", demo_network, [answer], SETTINGS)
    assert not (tmp_path / "s.db").exists()


def test_equal_questions_are_kept_once(demo_network, tmp_path):
    path, _ = demo.images()[0]
    answers = [sp.profile(demo_network, str(path), BLUR) for _ in range(2)]
    keep(tmp_path / "s.db", "twice", demo_network, answers, SETTINGS)
    with Store.open(tmp_path / "s.db") as store:
        assert store.connection.execute("SELECT count(*) FROM queries").fetchone() == (1,)


def test_boxes_are_told_apart_by_their_numbers(demo_network):
    box = InputBox(torch.zeros(3, 32, 32), torch.ones(3, 32, 32), demo_network.layout)
    wider = replace(box, high=2 * box.high)
    queries = [
        Query("box", (Obligation(inputs, wins(winner, demo_network.classes)),), None, winner)
        for inputs in (box, wider)
        for winner in (0, 1)
    ]
    assert len({content_digest(query) for query in queries}) == len(queries)
