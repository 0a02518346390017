"""Enumerations: every 8-bit picture of a path is made again, in fractions, and run again, by the installed runtime.

The one file that needs more than numpy: such a certificate speaks of onnxruntime, so that is what is asked.
"""

import math
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import chain, islice, pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from shakeproof.checker.budget import Array, Refused, Unknown, require, spend
from shakeproof.checker.kernels import Added, identity, understood, windows
from shakeproof.checker.picture import arranged, compared, input_shape
from shakeproof.checker.wire import unzipped

HALF, BLACK, WHITE = Fraction(1, 2), Fraction(0), Fraction(255)
ROUNDED: Mapping[str, Callable[[Fraction], int]] = {"half-even": round, "half-up": lambda x: math.floor(x + HALF)}
# What models take, as onnxruntime calls it.
TAKEN = {"tensor(float)": "<f4", "tensor(double)": "<f8", "tensor(float16)": "<f2", "tensor(uint8)": "|u1"}
# What the header of such a certificate has besides.
HEADER = {"rounding": str, "input_shape": list, "deployment": dict, "pictures": int, "kept": int, "intervals": list}
MOST_BITS = 2**13  # of the common denominator of a kernel
CHANGE, CHANGE_ENTRIES = 1e4, 16  # what a pixel's change of level costs, in multiplications and in entries
Details = dict[str, Any]
Progress = Callable[[float], None]


def shown(share: float) -> None:
    """Report progress."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{share:4.0%}" if share < 1 else "\r    \r")


class Pictures:
    """All pictures round(255 clip(x(z))) of a path, in order of z: the first, and what makes each of the one before.

    A moment is ((strength, behind), [(pixel, level), ...]): at a strength, or right behind it, pixels (in C order) take
    other grey levels.
    """

    def __init__(self, header: Mapping[str, Any], pixels: Array) -> None:
        (part,), clip, self.remarks = understood(header, pixels)
        self.end, nearest = Fraction(*header["strength"]), ROUNDED[header["rounding"]]
        low, high = (255 * Fraction(bound) for bound in clip or (0, 1))

        def grey(value: Fraction) -> int:
            return nearest(min(max(min(max(value, low), high), BLACK), WHITE))

        bases, slopes, unit = _line(pixels, part)
        stays = {(old, step): nearest(old + step * HALF) == old for old in range(256) for step in (-1, 1)}
        self.first, by_strength = np.zeros(pixels.shape, np.uint8), defaultdict[Any, list[tuple[int, int]]](list)
        changes = 0
        for pixel, (base, slope) in enumerate(zip(bases.flat, slopes.flat, strict=True)):
            now, last = grey(Fraction(base, unit)), grey((base + slope * self.end) / unit)
            self.first.flat[pixel], step = now, 1 if last > now else -1
            changes += abs(last - now)
            spend(CHANGE * (1 + abs(last - now)), CHANGE_ENTRIES * changes)
            for old in range(now, last, step):  # it is half way to the next level at one strength, and rounded there
                strength = Fraction((2 * old + step) * unit - 2 * base, 2 * slope)
                by_strength[strength.as_integer_ratio(), stays[old, step]].append((pixel, old + step))
        moments = [((Fraction(*ratio), behind), changes) for (ratio, behind), changes in by_strength.items()]
        # float64 keeps the order, and is compared quickly; where it cannot tell strengths apart, the fractions do
        self.moments = sorted(moments, key=lambda moment: (float(moment[0][0]), *moment[0]))

    def __len__(self) -> int:
        return len(self.moments) + 1

    def __iter__(self) -> Iterator[Array]:
        picture = self.first.copy()
        yield picture.copy()
        for _, changes in self.moments:
            for pixel, level in changes:
                picture.flat[pixel] = level
            yield picture.copy()

    def intervals(self, winners: Array) -> list[list[Any]]:
        """At which strengths the first pictures are to be seen, joined where one class wins: [["[0, 3/8)", 1], ...]."""
        starts = [0, *(np.flatnonzero(np.diff(winners)) + 1).tolist(), len(winners)]
        begins = [(BLACK, False), *(when for when, _ in self.moments), (self.end, True)]
        sides = [(begins[one], begins[other]) for one, other in pairwise(starts)]
        texts = [f"{'[('[out]}{low}, {high}{')]'[within]}" for (low, out), (high, within) in sides]
        return [[text, int(winners[start])] for text, start in zip(texts, starts, strict=False)]


def _line(pixels: Array, part: Added) -> tuple[Array, Array, int]:
    """x(z) = (base + slope z) / unit in grey levels, before any clipping, all in whole numbers."""
    levels, unit = _grey_levels(pixels)
    scale = 4
    for number in (255 * part.offset, *chain(*part.kernel)):
        scale = math.lcm(scale, number.denominator)
        require(scale.bit_length() <= MOST_BITS, "the kernel's fractions have no small common denominator", Unknown)
    spend(CHANGE * levels.size * np.size(part.kernel))
    base, full = (
        sum((int(scale * entry) * window for entry, window in windows(levels, kernel, part.padding)), 0 * levels)
        for kernel in (identity(*np.shape(part.kernel)), part.kernel)
    )
    return base, full - base + int(255 * scale * part.offset) * unit, unit * scale


def _grey_levels(pixels: Array) -> tuple[Array, int]:
    """Pixels in grey levels, as whole numbers of a unit. Where all are the float64 (or all the float32) numbers nearest
    to n / 255, that is what is meant; others mean what they are.
    """
    levels = np.rint(255 * pixels)
    near = [np.array_equal((levels / 255).astype(kind), pixels) for kind in (np.float64, np.float32)]
    if any(near) and levels.min() >= 0 and levels.max() <= 255:
        return levels.astype(int).astype(object), 1
    exact = [255 * Fraction(pixel) for pixel in pixels.ravel().tolist()]
    unit = math.lcm(*(pixel.denominator for pixel in exact))
    return np.array([int(pixel * unit) for pixel in exact], object).reshape(pixels.shape), unit


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or platform.machine()


class Installed:
    """The model in the onnxruntime that is installed here, given as many pictures at once as the certificate says."""

    def __init__(self, header: Mapping[str, Any], model: bytes, picture: Sequence[int]) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise Unknown("every picture must be run, and onnxruntime is not installed") from None
        self._header, self._batch, options = header, header["deployment"]["batch"], onnxruntime.SessionOptions()
        require(type(self._batch) is int and 0 < self._batch <= 4096, "so many pictures are not run at once")
        spend(0, self._batch * math.prod(picture))
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        # else it takes weights that the model keeps elsewhere from the current folder; the digest says nothing of these
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
        self._session = onnxruntime.InferenceSession(unzipped(model), options, providers=["CPUExecutionProvider"])
        (self._input, *more), (self._output, *_) = self._session.get_inputs(), self._session.get_outputs()
        self._type = TAKEN.get(self._input.type)
        fits = not more and self._type and not (self._type == "|u1" and header["mean"])
        require(fits, "the model takes something else than pictures, or bytes that are normalised", Unknown)
        sizes = [size if isinstance(size, int) and size >= 0 else None for size in self._input.shape]
        self.input_shape = input_shape(sizes, picture)
        require(header["input_shape"] == self.input_shape, f"the model takes such a picture as {self.input_shape}")
        self.deployment = {
            "runtime": f"onnxruntime {onnxruntime.__version__}",
            "provider": self._session.get_providers()[0],
            "batch": self._batch,
            "threads": 1,
            "processor": _processor(),
        }

    def winners(self, pictures: Iterator[Array], count: int, progress: Progress) -> Array:
        """The class that wins each of so many pictures (count,): some batches at a time, on all cores."""
        classes, workers = list[Array](), os.cpu_count() or 1
        shares = iter(lambda: [*islice(pictures, self._batch * max(1, 64 // self._batch))], [])
        with ThreadPoolExecutor(workers) as pool:
            while chosen := [*islice(shares, 4 * workers)]:
                classes += pool.map(self._winners, chosen)
                progress(sum(map(len, classes)) / count)
        return np.concatenate(classes)

    def _winners(self, pictures: list[Array]) -> Array:
        """The label if its score exceeds all others, else the first of those that score most."""
        label, filled = self._header["label"], np.stack(pictures + pictures[-1:] * (-len(pictures) % self._batch))
        batches = np.split(self._given(filled), len(filled) // self._batch)
        outputs = [self._session.run([self._output.name], {self._input.name: batch})[0] for batch in batches]
        scores = np.asarray(outputs, np.float32).reshape(len(filled), -1)[: len(pictures)]
        require(0 <= label < scores.shape[1] > 1, "the label is not a class")
        require(np.isfinite(scores).all(), "the runtime gives scores that are NaN")
        rivals = np.where(np.arange(scores.shape[1]) == label, -np.inf, scores)
        return np.asarray(np.where(scores[:, label] > rivals.max(1), label, rivals.argmax(1)))

    def _given(self, levels: Array) -> Array:
        """Pictures (n, channels, height, width) of grey levels as the model's input: n / 255, normalised, float32;
        where it takes bytes, n.
        """
        mean, std = (np.array(self._header[key], np.float32).reshape(-1, 1, 1) for key in ("mean", "std"))
        pixels = levels if self._type == "|u1" else levels.astype(np.float32) / np.float32(255)
        pixels, (first, *shape) = (pixels - mean) / std if mean.size else pixels, self.input_shape
        rows = arranged(pixels, self._header["channels_last"], [first, *shape])
        return rows.reshape(len(rows) * first, *shape).astype(self._type)


def checked(
    header: Mapping[str, Any], pixels: Array, model: bytes, image: Path | None, details: Details, progress: Progress
) -> list[str]:
    """What was found by running every picture that a certificate speaks of, in sentences."""
    require(header["arrays"].keys() == {"pixels"}, "a certificate of this kind has pixels, and no other arrays")
    pictures, label, claim, count = Pictures(header, pixels), *(header[key] for key in ("label", "claim", "pictures"))
    fits = count == len(pictures) or (claim == "unsafe" and 0 < count < len(pictures))
    require(fits, f"the path has {len(pictures)} pictures, the certificate speaks of {count}")
    try:
        runtime = Installed(header, model, pixels.shape)
        details["image_compared"], seen = compared(image, pixels, header, runtime.input_shape)
        winners = runtime.winners(islice(pictures, count), count, progress)
    except Refused:
        raise
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise Refused(f"onnxruntime does not run the model ({' '.join(str(error).split())[:200]})") from error
    stated, here = header["deployment"], runtime.deployment
    run, other = (", ".join(f"{key} {value}" for key, value in deployment.items()) for deployment in (here, stated))
    run = f"{count} pictures were run here ({run})"
    run += "" if here == stated else f", the certificate speaks of another deployment ({other})"
    details |= {"deployment": here, "stated": stated, "remarks": [run, *pictures.remarks, seen]}
    kept, intervals = int(np.append(winners != label, True).argmax()), pictures.intervals(winners)
    pairs = zip_longest(header["intervals"], intervals)
    wrong = [f"{claimed}, not {actual}" for claimed, actual in pairs if repr(claimed) != repr(actual)]
    require(not wrong, f"{len(wrong)} intervals are others, first: {''.join(wrong[:1])}; {run}")
    fits = {"safe": kept == count, "unsafe": kept + 1 == count, "profile": True}[claim]
    require(kept == header["kept"] and fits, f"{kept} pictures keep the label from 0 on; {run}")
    sentences = {
        "safe": f"class {label} wins on every picture from strength 0 to {pictures.end}",
        "unsafe": f"class {winners[-1]} beats {label} at the strengths {intervals[-1][0]}, and none does before",
        "profile": f"every stated class wins where it is stated to, in {len(intervals)} intervals",
    }
    return [sentences[claim], *details["remarks"]]
