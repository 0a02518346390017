"""Pictures, arrays and kernels, and what can be wrong inside of them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import ExifTags, Image
from scipy.io import savemat

from fuzzing.changes import WHOLE, Random, one_of

Array = np.ndarray[Any, Any]
SIDE = 4
# By format: the modes in which it keeps pixels.
MODES = {
    "PNG": ("L", "RGB", "I;16", "1", "P", "RGBA", "LA"),
    "JPEG": ("L", "RGB", "CMYK"),
    "GIF": ("L", "P"),
    "BMP": ("L", "RGB", "1", "P"),
    "TIFF": ("L", "RGB", "I;16", "F", "I", "1", "CMYK", "LAB", "RGBA"),
    "PPM": ("L", "RGB", "1", "I;16"),
    "TGA": ("L", "RGB", "P"),
    "WEBP": ("RGB", "RGBA"),
    "JPEG2000": ("L", "RGB"),
}


def small_picture(form: str) -> Callable[[Random], bytes]:
    """What makes a picture in a format: of any of its modes, sometimes with an EXIF orientation or several frames."""

    def make(random: Random) -> bytes:
        mode = one_of(MODES[form], random)
        picture = _of_mode(random.integers(0, 256, (SIDE + 2, SIDE + 2, 3), np.uint8), mode)
        options: dict[str, Any] = {}
        if form in ("PNG", "JPEG", "TIFF", "WEBP") and random.integers(2):
            exif = Image.Exif()
            exif[ExifTags.Base.Orientation] = int(random.integers(1, 9))
            options["exif"] = exif.tobytes()
        if form in ("GIF", "TIFF", "PNG") and not random.integers(4):
            options |= {"save_all": True, "append_images": [picture] * 2}
        if form in ("TIFF", "TGA") and random.integers(2):
            options["compression"] = "tga_rle" if form == "TGA" else one_of(("tiff_lzw", "packbits"), random)
        held = io.BytesIO()
        picture.save(held, form, **options)
        return held.getvalue()

    return make


def _of_mode(pixels: Array, mode: str) -> Image.Image:
    deep = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
    if mode in deep:
        grey = pixels[..., 0].astype(deep[mode])
        return Image.fromarray(grey / np.float32(255) if mode == "F" else grey)
    picture = Image.fromarray(pixels)
    if mode == "LAB":
        return Image.frombytes("LAB", picture.size, picture.tobytes())
    return picture.convert("L").convert(mode) if mode in ("LA", "P") else picture.convert(mode)


def with_a_chunk_changed(data: bytes, random: Random) -> bytes:
    """A PNG with another chunk in the place of one, or one more or less, whose sums are right again."""
    chunks, place = [], 8
    while place + 12 <= len(data):
        (size,) = struct.unpack_from(">I", data, place)
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + size]))
        place += 12 + size
    if not chunks:
        return data
    at = random.integers(len(chunks))
    name, body = chunks[at]
    held = bytearray(body)
    if held and random.integers(3):
        held[random.integers(len(held))] = one_of((0, 1, 2, 3, 6, 8, 16, 127, 255), random)
    names = (name, name, name, b"tRNS", b"PLTE", b"zTXt", b"iCCP", b"eXIf", b"IDAT", b"fcTL", b"acTL", b"iTXt")
    chunks[at : at + 1] = [(one_of(names, random), bytes(held))] * one_of((1, 1, 1, 0, 2), random)
    summed = (name + body for name, body in chunks)
    return data[:8] + b"".join(
        struct.pack(">I", len(own) - 4) + own + struct.pack(">I", zlib.crc32(own)) for own in summed
    )


# -- arrays ---------------------------------------------------------------------------------------------------------


def small_array(random: Random) -> bytes:
    pixels = random.random((1, SIDE, SIDE))
    return npy(one_of((pixels, pixels[0], pixels.astype(np.float32), (pixels * 255).astype(np.uint8)), random))


def small_archive(random: Random) -> bytes:
    """Three pictures and their labels."""
    held = io.BytesIO()
    save = one_of((np.savez, np.savez_compressed), random)
    save(held, x=random.random((3, 1, SIDE, SIDE)), y=random.integers(0, 3, 3))
    return held.getvalue()


def npy(array: Array) -> bytes:
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue()


TYPES = ("'<f4'", "'>f8'", "'|u1'", "'<u2'", "'<i8'", "'|b1'", "'<f2'", "'|O'", "'<U3'", "'<M8[s]'", "'<c8'", "'|V4'",
         "[('a', '<f4')]", "'<f8,<f8'", "''", "'<f16'", "'|S0'", "'" + "f" * 300 + "'", "None", "{}", "7")  # fmt: skip


def with_a_header_changed(data: bytes, random: Random) -> bytes:
    """An .npy file whose header says something else than what follows."""
    end = data.find(b"\n") + 1
    if not data.startswith(b"\x93NUMPY") or not end:
        return data
    sizes = [str(one_of((*WHOLE, SIDE, SIDE, 1), random)) for _ in range(random.integers(0, 6))]
    shape = one_of((f"({', '.join(sizes)},)", f"({SIDE}, {SIDE})", "()", "(4.0,)", "[4, 4]", "(True,)", "None"), random)
    order = one_of(("False", "False", "True", "0", "None"), random)
    said = {"'descr'": one_of((*TYPES, "'<f8'", "'<f8'", "'<f8'"), random), "'fortran_order'": order, "'shape'": shape}
    if not random.integers(8):
        del said[one_of(list(said), random)]
    text = f"{{{', '.join(f'{key}: {value}' for key, value in said.items())}, }}".encode().ljust(117) + b"\n"
    version = one_of((1, 1, 1, 2, 3, 0, 255), random)
    return (
        b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version < 2 else "<I", len(text)) + text + data[end:]
    )


# -- kernels --------------------------------------------------------------------------------------------------------


def kernel_array(random: Random) -> bytes:
    return npy(_kernel(random))


def kernel_archive(random: Random) -> bytes:
    held = io.BytesIO()
    np.savez(held, _kernel(random), random.random((5, 5)))
    return held.getvalue()


def kernel_variables(random: Random) -> bytes:
    cells = np.empty((1, 2), dtype=object)
    cells[0] = [_kernel(random), random.random((5, 5))]
    several = one_of(({"k": _kernel(random)}, {"k": cells}, {"k": random.random((3, 3, 2))}), random)
    held = io.BytesIO()
    savemat(held, several, do_compression=bool(random.integers(2)))
    return held.getvalue()


def kernel_table(random: Random) -> bytes:
    return "\n".join(",".join(f"{entry:.4f}" for entry in row) for row in _kernel(random)).encode()


def kernel_picture(random: Random) -> bytes:
    held = io.BytesIO()
    Image.fromarray((_kernel(random) * 255).astype(one_of((np.uint8, np.uint16), random))).save(held, "PNG")
    return held.getvalue()


def _kernel(random: Random) -> Array:
    return random.random((3, 3))
