"""Perturbations: kernels, degradations and tone changes with a strength each; clipped afterwards or not.

Applied to an image, kernels K(z) = sum_i A_i z_i + B give the affine path x(z) = sum_i R_A_i z_i + R_B (Theorem 1 of
the paper: m + 1 ordinary convolutions), and so does whatever is linear in the image. Any kernel of a size gives a box
of images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import accumulate, chain, pairwise, product
from typing import TYPE_CHECKING, Any

from shakeproof.errors import InputError
from shakeproof.question.scale import STRENGTH, ParameterScale

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from shakeproof.question.inputs import Path
    from shakeproof.question.linear_maps import LinearMap

    Whole = NDArray[Any]
    """Python's whole numbers, of any size, in an array."""

Matrix = tuple[tuple[Fraction, ...], ...]
ClipRange = tuple[float, float]
# Our word for a padding, and torch's.
PADDINGS = {"reflect": "reflect", "zeros": "constant", "replicate": "replicate", "circular": "circular"}
MOST_PARTS = 8
# What rounding may add to a product of two numbers, and more.
SLIGHTLY = 2.0**-40
# Products of two numbers that are no smaller do not underflow, nor does what they are off by.
SMALL = 2.0**-400
LARGEST_SIZE, LARGEST_ENTRY = 999, 1e100  # of kernels
# So few pixels are added up one after another, faster than torch convolves float64.
FEW_TAPS = 24
# torch writes out what each pixel of a convolution reads: so many numbers are made at once, however large it is.
MOST_READ = 2**25


def identity_matrix(height: int, width: int) -> Matrix:
    """The kernel that leaves an image as it is; an even side has no centre and averages its two middle entries.

    An even square kernel is therefore a 2 x 2 box blur (1/4 each), the paper's even identity.
    """
    down, across = (
        [Fraction(place in ((size - 1) // 2, size // 2), 2 - size % 2) for place in range(size)]
        for size in (height, width)
    )
    return tuple(tuple(vertical * horizontal for horizontal in across) for vertical in down)


def centred(matrix: Matrix, height: int, width: int) -> Matrix:
    """A matrix in the middle of a larger one, or an equal one, between zeros."""
    above, left = (height - len(matrix)) // 2, (width - len(matrix[0])) // 2
    empty, beside = ((Fraction(0),) * width,) * above, (Fraction(0),) * left
    return (*empty, *((*beside, *row, *beside) for row in matrix), *empty)


@dataclass(frozen=True)
class ParameterisedKernel:
    """K(z) = sum_i A_i z_i + B: `coefficients` holds the A_i (m >= 1 of them), `bias` is B; all h x w.

    Of one strength, the `scale` may have several segments: then A_i is what the i-th of them changes. Where they are
    chords of a `curve`, that gives the curve's own kernel at a value.
    """

    coefficients: tuple[Matrix, ...]
    bias: Matrix
    scale: ParameterScale = field(default=STRENGTH, repr=False)
    curve: Callable[[float], Matrix] | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def towards(end: Matrix) -> ParameterisedKernel:
        """From the identity to an end kernel (the paper's Example 1)."""
        return ParameterisedKernel.through([identity_matrix(len(end), len(end[0])), end])

    @staticmethod
    def through(
        kernels: Sequence[Matrix],
        scale: ParameterScale = STRENGTH,
        curve: Callable[[float], Matrix] | None = None,
    ) -> ParameterisedKernel:
        """From a kernel to the next, in segments that meet at the nodes of a scale."""
        changes = []
        for pair in pairwise(kernels):
            rows = (zip(*lines, strict=True) for lines in zip(*pair, strict=True))
            changes.append(tuple(tuple(after - before for before, after in row) for row in rows))
        return ParameterisedKernel(tuple(changes), kernels[0], scale, curve)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.bias), len(self.bias[0])

    @cached_property
    def size(self) -> Matrix:
        """The sum of all coefficients' absolute entries."""
        lines = (zip(*rows, strict=True) for rows in zip(*self.coefficients, strict=True))
        return tuple(tuple(sum(map(abs, entries), Fraction(0)) for entries in line) for line in lines)

    def at(self, *strengths: Fraction | float) -> Matrix:
        """The kernel matrix K(z) for given strengths z_1, ..., z_m, exactly."""
        matrix, shares = self.bias, strengths if self.scale.segments == 1 else self.scale.shares(*strengths)
        for change, share in zip(self.coefficients, shares, strict=True):
            exact = Fraction(share)
            matrix = tuple(
                tuple(entry + exact * more for entry, more in zip(*rows, strict=True))
                for rows in zip(matrix, change, strict=True)
            )
        return matrix


@dataclass(frozen=True)
class Tone:
    """A change of every pixel on its own: x becomes x (1 + gain z) + offset z."""

    gain: Fraction = Fraction(0)
    offset: Fraction = Fraction(0)


@dataclass(frozen=True)
class Degradation:
    """Any linear change: x becomes (1 - z) x + z L x. `matrix` names what makes L, in `linear_maps.MATRICES`.

    It takes a picture's sizes, the padding around it, and the `options`.
    """

    matrix: str
    options: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Part:
    """The effect of one strength. Two parts are equal if their texts are; the effect follows from the text."""

    family: str
    options: tuple[tuple[str, str], ...]
    effect: ParameterisedKernel | Tone | Degradation = field(compare=False, repr=False)
    padding: str = "reflect"

    def __post_init__(self) -> None:
        if self.padding not in PADDINGS:
            raise InputError(f"{self.family}: padding must be one of {', '.join(PADDINGS)}, not {self.padding!r}")

    def __str__(self) -> str:
        return self.written()

    def written(self, *more: tuple[str, str]) -> str:
        """The text form, with more options at its end."""
        padding = [("padding", self.padding)] if self.padding != "reflect" else []
        options = ",".join(f"{key}={value}" for key, value in (*self.options, *padding, *more))
        return ":".join(filter(None, (self.family, options)))

    @property
    def scale(self) -> ParameterScale:
        return self.effect.scale if isinstance(self.effect, ParameterisedKernel) else STRENGTH

    def slopes(self, images: Tensor, base: Tensor) -> list[Tensor]:
        """What each segment adds, the first of them to `base`, the images at strength 0."""
        if isinstance(self.effect, Tone):
            return [float(self.effect.gain) * base + float(self.effect.offset)]
        if isinstance(self.effect, Degradation):
            return [self.linear_map(base.shape).applied(base) - base]
        return [self.convolved(images, change) for change in self.effect.coefficients]

    def magnitude(self, images: Tensor, base: Tensor) -> Tensor:
        """All slopes by the absolute values of the kernel's entries, or of gain and offset; images and base >= 0."""
        if isinstance(self.effect, Tone):
            return float(abs(self.effect.gain)) * base + float(abs(self.effect.offset))
        if isinstance(self.effect, Degradation):
            return self.linear_map(base.shape).magnitude.applied(base) + base
        return self.convolved(images, self.effect.size)

    def linear_map(self, shape: Sequence[int]) -> LinearMap:
        """The matrix L of a degradation, for images (..., channels, height, width)."""
        assert isinstance(self.effect, Degradation)
        channels, height, width = (1, *shape)[-3:]
        return _linear_map(self, self.effect, (channels, height, width))

    def taps(self, shape: Sequence[int]) -> int:
        """How many pixels of such an image, at most, one is made of."""
        if isinstance(self.effect, Tone):
            return 1
        if isinstance(self.effect, Degradation):
            return self.linear_map(shape).taps + 1
        return max(sum(map(bool, chain(*matrix))) for matrix in (*self.effect.coefficients, self.effect.bias))

    def numbers(self, shape: Sequence[int]) -> list[Fraction]:
        """The entries of its kernels, or its gain and offset; of a matrix, the smallest entry and the common unit."""
        if isinstance(self.effect, Tone):
            return [self.effect.gain, self.effect.offset]
        if isinstance(self.effect, Degradation):
            return self.linear_map(shape).extremes
        return [entry for matrix in (*self.effect.coefficients, self.effect.bias) for entry in chain(*matrix)]

    def convolved(self, images: Tensor, matrix: Matrix) -> Tensor:
        """Images (..., height, width), padded as this part is and convolved to their own size."""
        import torch
        from torch.nn import functional

        padded, (height, width) = self._padded(images, (len(matrix), len(matrix[0]))), images.shape[-2:]
        entries = [[float(entry) for entry in row] for row in matrix]
        taps = [(row, column) for row, line in enumerate(entries) for column, entry in enumerate(line) if entry]
        if len(taps) > FEW_TAPS:
            weight = torch.tensor(entries, dtype=images.dtype, device=images.device)
            rows = max(1, MOST_READ // (weight.numel() * (images.numel() // height)))
            starts = range(0, height, rows)
            parts = [padded[:, :, start : min(start + rows, height) + len(entries) - 1] for start in starts]
            return torch.cat([functional.conv2d(one, weight[None, None]) for one in parts], 2).view(images.shape)
        total = images.new_zeros(images.shape).view(-1, 1, height, width)
        for row, column in taps:
            total.add_(padded[..., row : row + height, column : column + width], alpha=entries[row][column])
        return total.view(images.shape)

    def spans(self, images: Tensor) -> Tensor:
        """The greatest less the least of the pixels that each pixel of (..., height, width) is made of."""
        from torch.nn import functional

        assert isinstance(self.effect, ParameterisedKernel)
        padded = self._padded(images, self.effect.shape)
        greatest, least = (side * functional.max_pool2d(side * padded, self.effect.shape, stride=1) for side in (1, -1))
        return (greatest - least).view(images.shape)

    def summed(self, pixels: Whole, entries: Sequence[Sequence[int]]) -> Whole:
        """The same of one image (channels, height, width) and a kernel of whole numbers, without rounding."""
        import numpy as np

        height, width = pixels.shape[-2:]
        padded = self.numbered(pixels.shape, (len(entries), len(entries[0])))
        known = np.append(np.zeros(1, object), pixels)  # padding with zeros is number 0
        total = np.zeros(pixels.shape, object)
        for row, column in product(range(len(entries)), range(len(entries[0]))):
            if entry := entries[row][column]:
                total += entry * known[padded[:, row : row + height, column : column + width]]
        return total

    def numbered(self, shape: Sequence[int], kernel: tuple[int, int]) -> NDArray[np.int64]:
        """Which pixel, from 1, each place of a padded image (channels, height, width) shows; 0 is none."""
        import torch

        numbers = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64).view(*shape)
        places: NDArray[np.int64] = self._padded(numbers, kernel)[:, 0].long().numpy()
        return places

    def _padded(self, images: Tensor, kernel: tuple[int, int]) -> Tensor:
        """Images (..., height, width) with the border that a kernel (height, width) reaches into, as (n, 1, ...).

        Convolved, they have their own size again; even kernels pad more at the end.
        """
        from torch.nn import functional

        height, width = images.shape[-2:]
        down, right = kernel[0] // 2, kernel[1] // 2
        # reflect leaves out the edge pixel itself, circular may use every pixel once
        limit = {"reflect": 1, "circular": 0}.get(self.padding)
        if limit is not None and (down > height - limit or right > width - limit):
            raise InputError(
                f"{self}: a {kernel[0]} x {kernel[1]} kernel is too large for an image of {height} x {width}"
                f" pixels with {self.padding} padding; use a smaller kernel or padding=replicate"
            )
        widths = ((kernel[1] - 1) // 2, right, (kernel[0] - 1) // 2, down)
        return functional.pad(images.reshape(-1, 1, height, width), widths, mode=PADDINGS[self.padding])


@lru_cache(maxsize=4)
def _linear_map(part: Part, effect: Degradation, shape: tuple[int, int, int]) -> LinearMap:
    """Kept for the next picture. Parts are equal if their texts are, so the effect is asked for too."""
    from shakeproof.question.linear_maps import MATRICES

    try:
        return MATRICES[effect.matrix](shape, partial(part.numbered, (1, *shape[1:])), *effect.options)
    except InputError as error:
        raise InputError(f"{part}: {error}") from None


@dataclass(frozen=True, eq=False)
class ExactPath:
    """x(z) = (base + sum_i slopes[i] z_i) / unit before clipping, in whole numbers of any size.

    Of one strength, the `scale` may have several segments: then slopes[i] is what the i-th of them adds.
    """

    slopes: Whole
    base: Whole
    unit: int
    scale: ParameterScale = STRENGTH


def as_whole(image: Tensor) -> tuple[Whole, int]:
    """An image's pixels as whole numbers of one unit, exactly."""
    import numpy as np

    ratios = [pixel.as_integer_ratio() for pixel in image.flatten().tolist()]
    unit = max(denominator for _, denominator in ratios)  # all are powers of 2
    whole = np.array([numerator * (unit // denominator) for numerator, denominator in ratios], object)
    return whole.reshape(image.shape), unit


@dataclass(frozen=True)
class Perturbation:
    """The change of an image as a function of strengths z in [0, 1], one for each part.

    x(z) is the image at strength 0 plus what each part adds to it, times its strength. That image is the original one,
    or its 2 x 2 mean if the kernels are of even size (the paper's even identity).

    `at_original`: it happens to the photograph as taken; resizing, cropping and the like follow, as in a camera.
    """

    parts: tuple[Part, ...]
    clip: ClipRange | None = None
    at_original: bool = False

    def __post_init__(self) -> None:
        text = "+".join(map(str, self.parts))
        if not 1 <= len(self.parts) <= MOST_PARTS:
            raise InputError(f"a perturbation has 1 to {MOST_PARTS} parts, not {len(self.parts)}; leave some out")
        _check_clip(text, self.clip)
        if len(self.parts) > 1 and any(part.scale != STRENGTH for part in self.parts):
            raise InputError(
                f"{text}: a path with a parameter of its own cannot be added to others yet; ask about it alone"
            )
        if self.at_original and self.clip is not None:
            raise InputError(
                f"{text}: a photograph that is clipped before it is resized follows no straight path; leave clip out"
                " (in 8-bit photographs, pixels stay between 0 and 255 anyway)"
            )
        if len(self.parts) > 1 and any(part.family == "identity" for part in self.parts):
            raise InputError(f"{text}: identity does nothing at any strength; leave it out of the sum")
        sides = {tuple(side % 2 for side in kernel.shape) for _, kernel in self._kernels()}
        if len(sides) > 1:
            raise InputError(
                f"{text}: odd and even kernel sizes cannot be added, since even ones start from a mean over the pixels"
                f" around the centre; make all sizes odd or all even"
            )
        if sides - {(1, 1)} and len(self.paddings) > 1:
            raise InputError(
                f"{text}: kernels of even size start from a mean that reaches into the padding, so they can only be"
                f" added with one padding; give all of them the same"
            )

    def __str__(self) -> str:
        last = _clip_option(self.clip) + ([("at", "original")] if self.at_original else [])
        return "+".join((*map(str, self.parts[:-1]), self.parts[-1].written(*last)))

    def __repr__(self) -> str:
        return f"<Perturbation {self}>"

    @property
    def blurs_at_zero(self) -> bool:
        """Whether strength 0 is not the image itself: as with kernels of even size, which start from a mean."""
        return self.start != identity_matrix(1, 1)

    @property
    def scale(self) -> ParameterScale:
        """What its only strength means; of several strengths, each is just that."""
        return self.parts[0].scale

    def check_straight(self, what: str) -> None:
        """Refuse a chain, of which something is not possible yet."""
        if self.scale != STRENGTH:
            raise InputError(f"{self}: is a chain of segments, and {what} along one plain segment only")

    def check_of_pictures(self, what: str) -> None:
        """Refuse what acts on photographs as taken, of which something is not possible yet."""
        if self.at_original:
            raise InputError(f"{self}: acts on photographs, and {what} with pictures as networks take them")

    def __add__(self, other: Perturbation) -> Perturbation:
        """Both at once, each with its own strengths; clipping, if any, comes after the sum."""
        if not isinstance(other, Perturbation):
            return NotImplemented
        if None not in (self.clip, other.clip) and self.clip != other.clip:
            raise InputError(f"{self} and {other}: clip applies to their sum; give it once, or the same on both")
        clip = other.clip if self.clip is None else self.clip
        return Perturbation(self.parts + other.parts, clip, self.at_original or other.at_original)

    def of_photograph(self) -> Perturbation:
        """The same, of the photograph as taken: sizes are in its pixels."""
        return replace(self, at_original=True)

    @property
    def parameters(self) -> int:
        """The number m of strengths."""
        return len(self.parts)

    @property
    def paddings(self) -> list[str]:
        """The paddings that its kernels use, without repetition."""
        return list(dict.fromkeys(part.padding for part, _ in self._kernels()))

    def strengths(self, values: float | Sequence[float]) -> tuple[float, ...]:
        """A strength for each part: one number is meant for all of them."""
        return _strengths(self, values, self.parameters)

    def apply(self, images: Tensor) -> Path:
        """The path of perturbed images; `images` (..., height, width), float64."""
        import torch

        from shakeproof.question.inputs import UNIT, Path

        base, absolute = self._base(images), images.abs()
        size = base if bool((images >= 0).all()) else self._base(absolute)
        slopes = torch.stack([slope for part in self.parts for slope in part.slopes(images, base)])
        # Each entry of a kernel, each product and each sum is rounded: those of the start, of the changes, of x(z).
        roundings = 2 * max(part.taps(images.shape) for part in self.parts) + len(slopes) + 8
        sizes = torch.stack([size, *(part.magnitude(absolute, size) for part in self.parts)]).sum(0)
        # Products of smaller numbers may be lost altogether; then nothing is known to be 0.
        faintest = torch.where(images == 0, 1.0, absolute).amin().item()
        numbers = chain(*(part.numbers(images.shape) for part in self.parts))
        smallest = min((abs(float(number)) for number in numbers if number), default=1.0)
        lost = SMALL if min(faintest, smallest) < SMALL else 0.0
        error = roundings * UNIT * (sizes + lost)
        if self.scale.included and self.scale.distance is not None:
            error += self.scale.distance / 2 * (1 + SLIGHTLY) * self.parts[0].spans(images)
        return Path(slopes, base, self.clip, error=error, nodes=self.scale.nodes)

    def on_curve(self, images: Tensor, strengths: Tensor) -> Tensor:
        """One image's pictures at some strengths (n), by the curve's own kernels and not by chords; before clipping."""
        import torch

        ((part, kernel),) = self._kernels()
        assert kernel.curve is not None
        values = [float(self.scale.value(z)) for z in strengths.tolist()]
        return torch.stack([part.convolved(images, kernel.curve(value)) for value in values])

    def _base(self, images: Tensor) -> Tensor:
        """The images at strength 0. Any of the kernels would do: those that are added start from the same image."""
        return next((part.convolved(images, self.start) for part, _ in self._kernels()), images)

    def exactly(self, pixels: Whole, unit: int = 1) -> ExactPath:
        """The path of the image pixels / unit (channels, height, width), before any rounding."""
        import numpy as np

        start = self.start
        numbers = [*chain(*start), *(number for part in self.parts for number in part.numbers(pixels.shape))]
        common = math.lcm(*(number.denominator for number in numbers))

        def whole(matrix: Matrix) -> list[list[int]]:
            return [[int(entry * common) for entry in row] for row in matrix]

        base = next((part.summed(pixels, whole(start)) for part, _ in self._kernels()), common * pixels)

        def slopes_of(part: Part) -> list[Whole]:
            if isinstance(part.effect, Tone):
                return [int(part.effect.gain * common) * base + int(part.effect.offset * common) * common * unit]
            if isinstance(part.effect, Degradation):
                moved: Whole = part.linear_map(pixels.shape).summed(base, common) - common * base
                return [moved]
            return [common * part.summed(pixels, whole(change)) for change in part.effect.coefficients]

        slopes = [slope for part in self.parts for slope in slopes_of(part)]
        base, unit = common * base, common * common * unit
        shared = math.gcd(unit, np.gcd.reduce(base, axis=None), np.gcd.reduce(slopes, axis=None))
        return ExactPath(np.stack(slopes) // shared, base // shared, unit // shared, self.scale)

    @property
    def kernel(self) -> ParameterisedKernel:
        """The kernels and gains as one kernel, which with `offset` says all; at the edges, paddings matter too.

        Smaller ones are centred in the largest: their sizes are all odd or all even. Refused if there is a degradation.
        """
        if self.degradations:
            raise InputError(f"{self}: has no kernel that is the same everywhere in the image")
        start, shapes = self.start, [kernel.shape for _, kernel in self._kernels()]
        height, width = map(max, zip((len(start), len(start[0])), *shapes, strict=True))
        changes: list[Matrix] = []
        for part in self.parts:
            if isinstance(part.effect, ParameterisedKernel):
                changes += part.effect.coefficients
            elif isinstance(part.effect, Tone):
                changes.append(tuple(tuple(entry * part.effect.gain for entry in row) for row in start))
        changes = [centred(change, height, width) for change in changes]
        return ParameterisedKernel(tuple(changes), centred(start, height, width), self.scale)

    @property
    def degradations(self) -> list[Part]:
        """The parts without a kernel that is the same everywhere."""
        return [part for part in self.parts if isinstance(part.effect, Degradation)]

    @property
    def content(self) -> object:
        """What its text stands for, as plain values."""
        if self.degradations:
            return [part.effect for part in self.parts]
        return self.kernel if self.scale == STRENGTH else (self.kernel, self.scale)

    def offset(self, *strengths: Fraction | float) -> Fraction:
        """What is added to every pixel, at given strengths."""
        return sum(
            (
                part.effect.offset * Fraction(z)
                for part, z in zip(self.parts, strengths, strict=True)
                if isinstance(part.effect, Tone)
            ),
            Fraction(0),
        )

    def _kernels(self) -> list[tuple[Part, ParameterisedKernel]]:
        return [(part, part.effect) for part in self.parts if isinstance(part.effect, ParameterisedKernel)]

    @cached_property
    def start(self) -> Matrix:
        """The smallest kernel that makes the image at strength 0."""
        first = next((kernel.bias for _, kernel in self._kernels()), identity_matrix(1, 1))
        height, width = len(first), len(first[0])
        is_identity = first == identity_matrix(height, width)
        return identity_matrix(2 - height % 2, 2 - width % 2) if is_identity else first


@dataclass(frozen=True)
class AnyKernel:
    """Every kernel of a size with entries from 0 to 1 that sum to 1, each pixel by one of its own.

    A box of images rather than a path: each pixel is anywhere between the least and the greatest of its neighbourhood
    (Mziou-Sallami & Adjed 2022). At strength z, it has gone the share z of the way there.
    """

    size: int
    clip: ClipRange | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1 or self.size % 2 == 0 or self.size > LARGEST_SIZE:
            raise InputError(
                f"any-kernel: size must be odd, so that a pixel is in the middle, and at most {LARGEST_SIZE},"
                f" not {self.size!r}"
            )
        _check_clip(str(self), self.clip)

    def __str__(self) -> str:
        return f"any-kernel:size={self.size}" + "".join(f",{key}={value}" for key, value in _clip_option(self.clip))

    def strengths(self, values: float | Sequence[float]) -> tuple[float, ...]:
        """The one strength."""
        return _strengths(self, values, 1)

    def box(self, image: Tensor, strength: float) -> tuple[Tensor, Tensor]:
        """The least and the greatest of each pixel of an image (channels, height, width); outside it is nothing."""
        import torch
        from torch.nn import functional

        def greatest(x: Tensor) -> Tensor:
            return functional.max_pool2d(x, self.size, stride=1, padding=self.size // 2)

        ends = (image * (1 - strength) + end * strength for end in (-greatest(-image), greatest(image)))
        # rounded outwards: nothing of the box is left out
        infinity = torch.full_like(image, torch.inf)
        ends = (
            torch.nextafter(torch.nextafter(end, side), side)
            for end, side in zip(ends, (-infinity, infinity), strict=True)
        )
        low, high = (end if self.clip is None else end.clamp(*self.clip) for end in ends)
        return low, high


@dataclass(frozen=True)
class KernelSet:
    """Every mixture of the identity and some end kernels, the same kernel for all pixels: a convex set.

    At strength z, at least 1 - z is the identity: K = (1 - z) I + z W with any mixture W. Pictures are x(w) = x +
    sum_k w_k (x under the end kernel k - x): no share w_k is negative, and all together are z at most. Two sets are
    equal if their texts are; the end kernels follow from the text.
    """

    family: str
    options: tuple[tuple[str, str], ...]
    ends: tuple[Matrix, ...] = field(compare=False, repr=False)
    padding: str = "reflect"
    clip: ClipRange | None = None

    def __post_init__(self) -> None:
        _check_clip(str(self), self.clip)
        if not 1 <= len(self.ends) <= MOST_PARTS:
            raise InputError(f"{self}: a set has 1 to {MOST_PARTS} kernels, not {len(self.ends)}")

    def __str__(self) -> str:
        return Part(self.family, self.options, Tone(), self.padding).written(*_clip_option(self.clip))

    @property
    def content(self) -> object:
        """What its text stands for, as plain values."""
        return self.ends

    def strengths(self, strengths: float | Sequence[float]) -> tuple[float, ...]:
        """The one strength."""
        return _strengths(self, strengths, 1)

    def apply(self, images: Tensor) -> Path:
        """The pictures x(w), with a slope for each share."""
        return self._sum.apply(images)

    def kernel(self, shares: Sequence[float]) -> tuple[tuple[float, ...], ...]:
        """The kernel that has these shares."""
        return tuple(tuple(map(float, row)) for row in self._sum.kernel.at(*shares))

    @property
    def _sum(self) -> Perturbation:
        kernels = (ParameterisedKernel.towards(end) for end in self.ends)
        numbered = (Part(f"{self.family} {number}", (), each, self.padding) for number, each in enumerate(kernels))
        return Perturbation(tuple(numbered), self.clip)


AnyPerturbation = Perturbation | AnyKernel | KernelSet


def _check_clip(text: str, clip: ClipRange | None) -> None:
    try:
        possible = clip is None or (len(clip) == 2 and all(map(math.isfinite, clip)) and clip[0] < clip[1])
    except TypeError:
        possible = False
    if not possible:
        raise InputError(f"{text}: clip must be LOW..HIGH with LOW below HIGH, e.g. clip=0..1")


def _clip_option(clip: ClipRange | None) -> list[tuple[str, str]]:
    return [] if clip is None else [("clip", "..".join(map(plain, clip)))]


def _strengths(of: object, values: float | Sequence[float], parameters: int) -> tuple[float, ...]:
    """A strength for each parameter, checked."""
    try:
        is_one = not isinstance(values, Iterable) or isinstance(values, str) or getattr(values, "ndim", 1) == 0
        numbers: Any = (values,) if is_one else values
        several = tuple(map(float, numbers))
    except (TypeError, ValueError):
        raise InputError(f"a strength is a number, not {values!r}") from None
    for strength in several:
        if not 0 <= strength <= 1:
            raise InputError(f"the strength must be between 0 and 1, not {strength:g}")
    if len(several) not in (1, parameters):
        ways = "one strength" if parameters == 1 else f"{parameters} strengths, or one for all parts"
        raise InputError(f"{of}: takes {ways}, not {len(several)}")
    return several * (parameters // len(several))


def plain(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(float(number))


def written_kernels(perturbation: Perturbation) -> list[list[list[str]]]:
    """The kernels of its parts in the form of certificates."""
    return [_at_full_strength(part.effect) for part in perturbation.parts if not isinstance(part.effect, Degradation)]


def written_chain(perturbation: Perturbation) -> list[list[list[str]]]:
    """A chain's kernels at its nodes, all of one square size, as certificates have them."""
    kernel, side = perturbation.kernel, max(perturbation.kernel.shape)
    matrices = accumulate(kernel.coefficients, _sum, initial=kernel.bias)
    return [[[str(entry) for entry in row] for row in centred(matrix, side, side)] for matrix in matrices]


def _sum(first: Matrix, second: Matrix) -> Matrix:
    return tuple(tuple(a + b for a, b in zip(*rows, strict=True)) for rows in zip(first, second, strict=True))


def _at_full_strength(effect: ParameterisedKernel | Tone) -> list[list[str]]:
    """The kernel at full strength; a tone's has one entry, and its offset is in the text."""
    if isinstance(effect, Tone):
        return [[str(1 + effect.gain)]]
    start, (change,) = effect.bias, effect.coefficients
    return [[str(a + b) for a, b in zip(*rows, strict=True)] for rows in zip(start, change, strict=True)]
