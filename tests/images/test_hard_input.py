"""Files that are not what they seem: one line each, at once, and within memory."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import warnings
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from shakeproof.errors import InputError
from shakeproof.question import read_image

MEGABYTE = 2**20


def npy(shape: str, descr: str = "'|u1'", order: bool = False, data: bytes = b"") -> bytes:
    """An .npy file, with whatever its header says."""
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def refusal(word: object, **chosen: str) -> str:
    """The one line about a file; nothing large was ever held."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as caught:
            read_image(str(word), **chosen)
        assert tracemalloc.get_traced_memory()[1] < 64 * MEGABYTE
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert str(word).split("@")[0] in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (npy("(100000, 100000, 3)"), "promises 300000000"),
        (npy("(10**9,)"), "not a readable image"),
        (npy("(2, -3)"), "shape is"),
        (npy("(2, 3)", data=b"12345"), "promises"),
        (npy("(2,)", "'|O'", data=b"x" * 16), "Python objects"),
        (npy("'x'"), "not a readable image"),
        (npy("((2,"), "not a readable image"),
        (npy("(2,)", "'no type'"), "not a readable image"),
        (npy("(2,)", "(" * 300 + ")" * 300), "not a readable image"),
        (b"\x93NUMPY\x09\x00\x10\x00" + b" " * 16, "format"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "not a readable image"),
        (b"\x93NUMPY", "not a readable image"),
        (b"", "not a readable image"),
        (b"plain text", "not a readable image"),
    ],
)
def test_headers_that_lie(tmp_path, content, said):
    (tmp_path / "a.npy").write_bytes(content)
    assert said in refusal(tmp_path / "a.npy")
    assert said in refusal(f"{tmp_path}/a.npy@0")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    assert said in refusal(f"{tmp_path}/a.npz@0")


@pytest.mark.parametrize(("shape", "said"), [((2, 1_500_000_000), "larger than any"), ((2, 99_999_999), "too early")])
def test_archives_that_promise_gigabytes(tmp_path, shape, said):
    """The archive agrees with its array's header, and neither is true."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy(str(shape)))
    lie = bytearray(packed.getvalue())
    struct.pack_into("<I", lie, lie.index(b"PK\x01\x02") + 24, 3_000_000_200)
    (tmp_path / "bomb.npz").write_bytes(lie)
    assert said in refusal(f"{tmp_path}/bomb.npz@0")


def test_one_picture_of_a_large_archive_is_all_that_is_held(tmp_path):
    np.savez_compressed(
        tmp_path / "d.npz", x=np.arange(400, dtype=np.uint8)[:, None, None] * np.ones((512, 512), np.uint8)
    )
    tracemalloc.start()
    try:
        assert read_image(f"{tmp_path}/d.npz@399").array[0, 0] == 399 % 256
        assert tracemalloc.get_traced_memory()[1] < 40 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_archives_that_are_damaged(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 50, 50), np.uint8))
    whole = (tmp_path / "d.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert "not a readable image" in refusal(f"{tmp_path}/cut.npz@0")
    (tmp_path / "flipped.npz").write_bytes(whole[:300] + b"\x01" + whole[301:])
    assert "CRC" in refusal(f"{tmp_path}/flipped.npz@1")
    (tmp_path / "text.npz").write_text("no archive")
    assert "not a readable image" in refusal(f"{tmp_path}/text.npz")


def png(width: int, height: int) -> bytes:
    """A PNG whose header gives a size; its pixels are missing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_pictures_of_impossible_sizes(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in ((2**31 - 1, 2**31 - 1), (10_000, 10_000), (60_000, 60_000)):
            (tmp_path / "large.png").write_bytes(png(*size))
            assert "too large" in refusal(tmp_path / "large.png")
    for size in ((0, 5), (5, 5)):
        (tmp_path / "none.png").write_bytes(png(*size))
        refusal(tmp_path / "none.png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize(
    "name", ["pipe.png", "pipe.npy", "pipe.npz", "pipe.npz@0", "pipe.npy@0", "pipe.vnnlib", "pipe.vnnlib.gz"]
)
def test_a_named_pipe_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name.split("@")[0])
    assert "not a regular file" in refusal(tmp_path / name)


def test_libraries_that_talk_are_not_heard(tmp_path, capfd):
    Image.new("L", (64, 64)).save(tmp_path / "a.tif", compression="tiff_lzw")
    (tmp_path / "a.tif").write_bytes((tmp_path / "a.tif").read_bytes()[:-20])
    refusal(tmp_path / "a.tif")
    assert capfd.readouterr() == ("", "")


def test_names_that_cannot_be(tmp_path):
    for word in (f"{tmp_path}/" + "a" * 5000 + ".png", f"{tmp_path}/a\0.png", f"{tmp_path}/a\0.npz@0", f"{tmp_path}/"):
        refusal(word)


def test_formats_that_run_programs_are_not_read(tmp_path):
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "EPS")
    (tmp_path / "a.png").write_bytes(out.getvalue())
    assert "not a readable picture" in refusal(tmp_path / "a.png")


def test_pixels_of_kinds_that_are_no_numbers(tmp_path):
    np.save(tmp_path / "pairs.npy", np.zeros(4, dtype=[("a", "u1"), ("b", "u1")]))
    np.save(tmp_path / "when.npy", np.zeros((2, 2), dtype="datetime64[s]"))
    from shakeproof.question import ImageLayout

    for name in ("pairs.npy", "when.npy"):
        with pytest.raises(InputError, match="not numbers"):
            read_image(f"{tmp_path}/{name}").fitted(ImageLayout((1, 2, 2), (1, 1, 2, 2)))
