"""What classes are called, in every form that people have names in."""

from __future__ import annotations

import json

import pytest

from shakeproof.errors import InputError
from shakeproof.question import ClassNames, names_in_metadata, read_class_names
from shakeproof.question.class_names import parse_class_names

PETS = ("cat", "dog", "pony")


def shown(names: ClassNames) -> tuple[str, ...]:
    return tuple(names.shown(number) for number in range(len(names)))


@pytest.mark.parametrize(
    "text",
    [
        "cat\ndog\npony\n",
        "\ufeffcat\r\ndog\r\npony",
        json.dumps(PETS),
        json.dumps({"0": "cat", "2": "pony", "1": "dog"}),
        json.dumps({"cat": 0, "pony": 2, "dog": 1}),
        json.dumps({"architectures": ["ViT"], "id2label": {"0": "cat", "1": "dog", "2": "pony"}, "label2id": {}}),
        json.dumps({"0": ["n1", "cat"], "1": ["n2", "dog"], "2": ["n3", "pony"]}),
        "{0: 'cat', 1: 'dog', 2: 'pony'}",
        "0: cat\n1: dog\n2: pony",
        "2 pony\n0 cat\n1 dog",
        "n00000001 cat, house cat\nn00000002 dog\nn00000003 pony",
    ],
)
def test_every_form(tmp_path, text):
    (tmp_path / "names").write_text(text)
    names = read_class_names(tmp_path / "names")
    assert shown(names) == PETS
    assert names.number("dog") == 1


def test_lines_that_begin_with_numbers_are_names():
    assert shown(parse_class_names("20 km/h\n30 km/h\n50 km/h")) == ("20 km/h", "30 km/h", "50 km/h")


def test_synonyms_and_doubles():
    names = ClassNames.of(["tench, Tinca tinca", "crane", "tabby_cat", ["n01", "crane"]])
    assert shown(names) == ("tench", "crane (1)", "tabby_cat", "crane (3)")
    assert [names.find(word) for word in ("Tinca tinca", "TENCH", "tabby cat", "Tabby-Cat", "n01")] == [0, 0, 2, 2, 3]
    assert names.find("crane") is None
    assert names.number("crane (3)") == 3
    with pytest.raises(InputError, match=r"or several; the classes are crane \(1\), crane \(3\)"):
        names.number("crane")
    with pytest.raises(InputError, match="tench"):
        names.number("tenhc")
    with pytest.raises(InputError, match="no names") as caught:
        ClassNames().number("cat")
    assert caught.value.option == "classes"
    assert ClassNames().shown(7) == "7"
    assert ClassNames().shown(7, "class {}") == "class 7"


@pytest.mark.parametrize(
    "text",
    ["", "cat\n\ndog", "[1, [[2]]]", '{"1": "cat"}', '{"0": "cat", "x": 1.5}', "[" * 500, '{"0": ""}', "{1, 2}", "[]]"],
)
def test_what_is_no_list_of_names(tmp_path, text):
    (tmp_path / "names").write_text(text)
    with pytest.raises(InputError, match=str(tmp_path)) as caught:
        read_class_names(tmp_path / "names")
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("gone", "bytes", "."):
        with pytest.raises(InputError, match=str(tmp_path)):
            read_class_names(tmp_path / name)


def test_names_print_on_one_line():
    assert shown(ClassNames.of(["a\nb", "c\x1b[31m"])) == ("a b", "c [31m")


def test_metadata():
    assert shown(names_in_metadata({"names": "{0: 'person', 1: 'car'}", "stride": "32"})) == ("person", "car")
    assert shown(names_in_metadata({"names": "{broken", "id2label": '{"0": "cat"}'})) == ("cat",)
    assert shown(names_in_metadata({"classes": "cat\ndog"})) == ("cat", "dog")
    assert shown(names_in_metadata({"classes": "cat,dog"})) == ("cat", "dog")
    assert not names_in_metadata({"producer": "someone", "stride": "32"})
