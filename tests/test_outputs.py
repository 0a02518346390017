"""Addresses of outputs: flat places by name and index, and back."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakeproof.errors import InputError
from shakeproof.question import OutputPart, one_place, output_part, places

PARTS = (OutputPart("boxes", (3, 4)), OutputPart("steering", ()), OutputPart("mask", (2, 2, 3)))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("7", 7),
        ("steering", 12),
        ("boxes[1,2]", 6),
        (" boxes[ -1, -1 ] ", 11),
        ("boxes[1]", [4, 5, 6, 7]),
        ("boxes[:,0]", [0, 4, 8]),
        ("boxes[1:,0:2]", [[4, 5], [8, 9]]),
        ("mask[0,1]", [16, 17, 18]),
        ("mask", np.arange(13, 25).reshape(2, 2, 3)),
    ],
)
def test_places(address, expected):
    assert np.array_equal(places(PARTS, address), expected)


def test_one_part_needs_no_name():
    assert one_place(PARTS[:1], "[1,2]") == 6
    assert one_place([OutputPart("7", (3,))], "7[2]") == 2


def address_of(parts, place):
    """The address of one output, for people."""
    for part in parts:
        if place < part.size:
            index = np.unravel_index(place, part.shape)
            return f"{part.name}[{','.join(map(str, index))}]" if part.size > 1 else part.name
        place -= part.size
    raise IndexError(place)


@given(st.integers(0, 24))
def test_addresses_lead_back(place):
    assert one_place(PARTS, address_of(PARTS, place)) == place


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("25", "25 outputs are numbered from 0 to 24"),
        ("wheel", "'wheel' is not among the analysed outputs: boxes [3, 4], steering [], mask [2, 2, 3]"),
        ("[0]", "'[0]' is not among"),
        ("boxes[3,0]", "outside of boxes, which is 3 x 4"),
        ("boxes[0,0,0]", "boxes [3, 4] takes up to 2 indices"),
        ("boxes[a]", "takes up to 2 indices: numbers, or ranges"),
        ("boxes[2:1]", "means none of the outputs"),
        ("boxes[0", "is not among"),
        ("", "is not among"),
    ],
)
def test_bad_addresses_are_one_line(address, message):
    with pytest.raises(InputError, match=re.escape(message)) as error:
        places(PARTS, address)
    assert "\n" not in str(error.value)


def test_an_address_of_several_is_not_of_one():
    with pytest.raises(InputError, match="means 4 outputs"):
        one_place(PARTS, "boxes[0]")


def test_the_axis_of_the_batch_is_left_out():
    assert output_part("y", [1, 3, 2]).shape == (3, 2)
    assert [output_part("y", shape).shape for shape in ([1], [5], [5, 2], [])] == [(1,), (5,), (5, 2), ()]
