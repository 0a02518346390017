"""The families of perturbations: of each its end kernel, its text and what it means, in one place.

A family is a kernel that goes from the identity at strength 0 to an end kernel at strength 1, or a change of tone. Its
text form is `FAMILY:key=value,...`, or several of these joined by `+`; parsing and printing round-trip. The keys are
the arguments of the family's function.

Reference: Brückner & Lomuscio, "Verification of Neural Networks Against Convolutional Perturbations via
Parameterised Kernels", AAAI 2025, Section 3 and appendix (even sizes included).
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from operator import add
from pathlib import Path
from typing import Any

from shakeproof.errors import InputError, kind_of
from shakeproof.question.chains import exposed, growing_line, turning_line
from shakeproof.question.curves import widening_disk, widening_gaussian
from shakeproof.question.kernel_matrices import (
    FREQUENCIES,
    HIGHEST,
    check_size,
    disk,
    gaussian,
    motion_line,
    normalised,
    resized,
    spread_matrix,
    transferred,
)
from shakeproof.question.perturbation import (
    LARGEST_ENTRY,
    LARGEST_SIZE,
    AnyKernel,
    AnyPerturbation,
    ClipRange,
    Degradation,
    KernelSet,
    Matrix,
    ParameterisedKernel,
    Part,
    Perturbation,
    Tone,
    identity_matrix,
    plain,
)
from shakeproof.question.text_form import (
    BETWEEN_OPTIONS,
    Key,
    Reader,
    read_flag,
    read_interval,
    read_number,
    read_number_or_interval,
    read_options,
    read_whole,
)

Span = tuple[float, float]
"""From a value to a larger one."""
# How far chords may be from a curve of kernels, in the sum of all entries, unless something else is said.
TOLERANCE = 0.01
# How downsample resizes.
FILTERS = ("box", "bilinear", "bicubic", "lanczos")


def identity(padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """No change: the control experiment."""
    return _to_kernel("identity", identity_matrix(1, 1), padding, clip)


def box_blur(size: int, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Blur: the mean over a size x size square."""
    check_size(size)
    end = tuple((Fraction(1, size * size),) * size for _ in range(size))
    return _to_kernel("box-blur", end, padding, clip, size=size)


def sharpen(size: int, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Sharpening: the image plus its difference from the mean over a diamond around each pixel.

    At an even size the diamond surrounds the four centre entries (the drawing in the paper's appendix).
    """
    check_size(size)
    centre = identity_matrix(size, size)
    reach = (size - 1) // 2

    def outside(i: int) -> int:
        """How far a row or column is from the middle (from the nearer of two middles at an even size)."""
        return max(reach - i, i - size // 2, 0)

    diamond = [[outside(i) + outside(j) <= reach and not centre[i][j] for j in range(size)] for i in range(size)]
    weight = Fraction(1, sum(map(sum, diamond)))
    end = tuple(tuple(2 * centre[i][j] - weight * diamond[i][j] for j in range(size)) for i in range(size))
    return _to_kernel("sharpen", end, padding, clip, size=size)


def motion_blur(size: int, angle: float, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Camera shake: the mean along a line; `angle` is a bearing (0 is up, clockwise), equal modulo 180.

    The line goes through the centre and is clipped to the size x size square. Each entry of the end kernel is
    proportional to the line's length inside that pixel.
    """
    reduced = _bearing("motion-blur", angle)
    check_size(size)
    return _to_kernel("motion-blur", motion_line(size, float(angle)), padding, clip, size=size, angle=reduced)


def _bearing(family: str, value: float) -> float:
    angle = _number(family, "angle", value)
    if not math.isfinite(angle):
        raise InputError(f"{family}: angle must be a finite number of degrees, not {angle}")
    return angle % 180 % 180  # a tiny negative angle modulo 180 rounds to 180 itself, hence twice


def motion_length(angle: float, upto: float, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Camera shake that grows: the mean along a line of 0 to `upto` pixels; exact at every length."""
    angle = _bearing("motion-length", angle)
    upto = _between("motion-length", "upto", upto, 1, LARGEST_SIZE)
    return _chain("motion-length", growing_line(angle, upto), padding, clip, angle=angle, upto=upto)


def motion_angle(
    size: int, from_: float, to: float, strength: float = 1.0, padding: str = "reflect", clip: ClipRange | None = None
) -> Perturbation:
    """Camera shake of one strength in every direction: motion blur whose angle turns; exact at every angle."""
    _check_odd("motion-angle", size)
    start, end = (_between("motion-angle", key, value, -360, 360) for key, value in (("from", from_), ("to", to)))
    strength = _between("motion-angle", "strength", strength, 0, 1)
    if start == end:
        raise InputError(
            f"motion-angle: from and to are the same angle; ask about motion-blur:size={size},angle={start:g}"
        )
    options = {"size": size, "from": start, "to": end} | ({} if strength == 1 else {"strength": strength})
    return _chain("motion-angle", turning_line(size, start, end, Fraction(plain(strength))), padding, clip, **options)


def exposure(
    trajectory: str | Path,
    upto: float,
    focal: float | None = None,
    padding: str = "reflect",
    clip: ClipRange | None = None,
) -> Perturbation:
    """Measured motion while exposing: the mean over 0 to `upto` seconds of a sampled trajectory; exact at every time.

    The file has the columns time, x and y, in seconds and pixels to the right and down; or time, wx and wy, a
    gyroscope's rad/s, with the `focal` length in pixels. Each sample holds until the next one.
    """
    from shakeproof.question.trajectories import read_trajectory

    lengths = None if focal is None else _between("exposure", "focal", focal, 1, 1e6)
    samples = read_trajectory(Path(trajectory), None if lengths is None else Fraction(plain(lengths)))
    upto = _between("exposure", "upto", upto, 0, float(samples[-1].time))
    if not upto:
        raise InputError("exposure: upto must be a time above 0, in seconds")
    options = _file_options(trajectory, key="trajectory") | {"upto": upto}
    options |= {} if lengths is None else {"focal": lengths}
    kernel = exposed(samples, upto)
    return _chain("exposure", kernel, padding, clip, **options)


def gaussian_blur(
    size: int,
    sigma: float | Span,
    padding: str = "reflect",
    clip: ClipRange | None = None,
    tolerance: float | None = None,
    remainder: str = "exclude",
) -> Perturbation:
    """Soft blur: a Gaussian with a standard deviation of sigma pixels, cut off at a size x size square.

    Of a range of deviations (0..3), the blur goes through all of them: by chords within a `tolerance`, 0.01 if you name
    none; `remainder=include` is about the curve.
    """
    if not isinstance(sigma, tuple):
        _check_no_tolerance("gaussian-blur", tolerance, remainder, "sigma=0..3")
        sigma = _sigma("gaussian-blur", size, sigma)
        return _to_kernel("gaussian-blur", gaussian(size, sigma), padding, clip, size=size, sigma=sigma)
    check_size(size)
    span, near = _span("gaussian-blur", "sigma", sigma, LARGEST_SIZE), _tolerance("gaussian-blur", tolerance)
    kernel = widening_gaussian(size, *span, near.get("tolerance", TOLERANCE))
    return _along_curve("gaussian-blur", kernel, remainder, padding, clip, size=size, sigma=_written(span), **near)


def _span(family: str, key: str, values: Span, most: float) -> Span:
    """A range to go through, checked."""
    low, high = (_between(family, key, value, 0, most) for value in values)
    if not low < high:
        raise InputError(f"{family}: {key} must be LOW..HIGH with LOW below HIGH, e.g. {key}=0..3")
    return low, high


def _written(span: Span) -> str:
    return "..".join(map(plain, span))


def _tolerance(family: str, tolerance: float | None) -> dict[str, float]:
    if tolerance is None or tolerance == TOLERANCE:
        return {}
    return {"tolerance": _between(family, "tolerance", tolerance, 1e-6, 0.5)}


def _check_no_tolerance(family: str, tolerance: float | None, remainder: str, example: str) -> None:
    if tolerance is not None or remainder != "exclude":
        raise InputError(
            f"{family}: tolerance and remainder are about a curve of kernels, e.g. {example}; leave them out"
        )


def _along_curve(
    family: str,
    kernel: ParameterisedKernel,
    remainder: str,
    padding: str,
    clip: ClipRange | None,
    **options: str | float,
) -> Perturbation:
    """A chain of chords; with its remainder included, the curve itself."""
    if remainder not in ("exclude", "include"):
        raise InputError(f"{family}: remainder must be exclude or include, not {remainder!r}")
    if remainder == "include":
        kernel = replace(kernel, scale=replace(kernel.scale, included=True))
        options |= {"remainder": remainder}
    return _chain(family, kernel, padding, clip, **options)


def unsharp(size: int, sigma: float, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Unsharp masking: the image plus its difference from its Gaussian blur."""
    sigma = _sigma("unsharp", size, sigma)
    rows = zip(identity_matrix(size, size), gaussian(size, sigma), strict=True)
    end = tuple(tuple(2 * same - blur for same, blur in zip(*pair, strict=True)) for pair in rows)
    return _to_kernel("unsharp", end, padding, clip, size=size, sigma=sigma)


def _sigma(family: str, size: int, value: float) -> float:
    """The width of a Gaussian, checked like its size."""
    sigma = _number(family, "sigma", value)
    check_size(size)
    if not 0 < sigma < math.inf:
        raise InputError(f"{family}: sigma must be a number of pixels above 0, not {sigma:g}")
    return sigma


def defocus(
    radius: float | Span,
    padding: str = "reflect",
    clip: ClipRange | None = None,
    size: int | None = None,
    tolerance: float | None = None,
    remainder: str = "exclude",
) -> Perturbation:
    """Out of focus: the mean over a disk with a radius in pixels.

    Each entry of the end kernel is proportional to the disk's area in its pixel. Of a range of radii (0..4), the blur
    goes through all of them, within a `tolerance` of 0.01 if you say no other; `size` makes its kernels larger.
    """
    if isinstance(radius, tuple):
        span, near = _span("defocus", "radius", radius, LARGEST_SIZE / 2), _tolerance("defocus", tolerance)
        if not span[1] > 0.5:
            raise InputError("defocus: radius must reach beyond 0.5, or all disks are inside one pixel")
        kernel = widening_disk(*span, near.get("tolerance", TOLERANCE), size)
        sized = {} if size is None else {"size": size}
        return _along_curve("defocus", kernel, remainder, padding, clip, **sized, radius=_written(span), **near)
    _check_no_tolerance("defocus", tolerance, remainder, "radius=0..4")
    if size is not None:
        raise InputError("defocus: size is about a range of radii, e.g. size=9,radius=0..4; leave it out")
    radius = _number("defocus", "radius", radius)
    if not 0.5 < radius <= LARGEST_SIZE / 2:
        raise InputError(
            f"defocus: radius must be above 0.5, or the disk is inside one pixel, and at most {LARGEST_SIZE / 2},"
            f" not {radius:g}"
        )
    return _to_kernel("defocus", disk(radius), padding, clip, radius=radius)


def otf(
    size: int,
    jitter: float | None = None,
    vertical: float | None = None,
    defocus: float | None = None,
    aperture: float | None = None,
    turbulence: float | None = None,
    padding: str = "reflect",
    clip: ClipRange | None = None,
) -> Perturbation:
    """Optical transfer functions, multiplied: jitter, defocus, an aperture, turbulence of the air.

    `jitter` is the standard deviation of the line of sight in pixels, `vertical` that of its ups and downs if it is
    another; `defocus` the width of a Gaussian blur spot in pixels. In cycles per pixel, `aperture` is the frequency at
    which a lens passes nothing any more, the aperture's diameter by the wavelength, and `turbulence` the coherence
    diameter r0 by the wavelength. The kernel is what a point becomes, cut off at a size x size square.
    """
    _check_odd("otf", size)
    if size >= FREQUENCIES // 2:
        raise InputError(f"otf: size must be at most {FREQUENCIES // 2 - 1}, not {size}")
    across = 0.0 if jitter is None else _jitter("jitter", jitter)
    down = across if vertical is None else _jitter("vertical", vertical)
    jitters = {"jitter": across} | ({} if vertical is None else {"vertical": down}) if across or down else {}
    limits = {"defocus": (0.7, 60), "aperture": (0.05, HIGHEST), "turbulence": (0.05, 1)}
    options = {"defocus": defocus, "aperture": aperture, "turbulence": turbulence}
    others = {key: _between("otf", key, value, *limits[key]) for key, value in options.items() if value is not None}
    given = jitters | others
    if not given:
        raise InputError("otf: say at least one of jitter, vertical, defocus, aperture and turbulence")
    return _to_kernel("otf", transferred(size, (across, down), **others), padding, clip, size=size, **given)


def _jitter(key: str, value: float) -> float:
    """None at all, or enough to be seen between pixels."""
    return 0.0 if value == 0 else _between("otf", key, value, 0.3, 30)


def psf(
    file: str | Path,
    index: str | int | None = None,
    scale: float = 1.0,
    padding: str = "reflect",
    clip: ClipRange | None = None,
) -> Perturbation:
    """Measured shake: a point spread function from a file, centred and normalised; `index` says which.

    The centre is the pixel nearest to the centre of mass: blur stays, the shift of the whole image goes. Empty borders
    are cut off, and what is shorter on one side of the centre is padded, so that both sides are odd. A point spread
    function is what a point becomes; to be cross-correlated with, it is turned by 180 degrees. `scale` makes it as many
    times as large: 0.5 where pictures have half the sides that they had when the shake was measured.
    """
    options, spread = _from_file(file, index)
    end = spread_matrix(resized(spread, _scale("psf", scale)), file)
    return _to_kernel("psf", end, padding, clip, **options, **_scale_option("psf", scale))


def _scale(family: str, scale: float) -> Fraction:
    """The decimals as they are written."""
    return Fraction(plain(_between(family, "scale", scale, 0.01, 100)))


def _scale_option(family: str, scale: float) -> dict[str, str]:
    return {} if scale == 1 else {"scale": plain(_between(family, "scale", scale, 0.01, 100))}


def custom(
    file: str | Path,
    index: str | int | None = None,
    normalise: bool = False,
    padding: str = "reflect",
    clip: ClipRange | None = None,
) -> Perturbation:
    """From the identity to your own kernel, as it is; `normalise` divides it by its sum."""
    options, end = _from_file(file, index)
    if normalise:
        options, end = options | {"normalise": "yes"}, normalised(end, file)
    return _to_kernel("custom", end, padding, clip, **options)


def haze(colour: float, clip: ClipRange | None = None) -> Perturbation:
    """Haze, fog, smoke: the picture mixed with one grey level; at strength 1 only grey is left."""
    colour = _number("haze", "colour", colour)
    if not abs(colour) <= LARGEST_ENTRY:
        raise InputError(f"haze: colour must be a number of at most {LARGEST_ENTRY:g} either way, not {colour:g}")
    return _tone("haze", Tone(gain=Fraction(-1), offset=Fraction(plain(colour))), clip, colour=colour)


def brightness(max: float, clip: ClipRange | None = None) -> Perturbation:
    """Brighter: max is added to every pixel (darker if it is negative)."""
    most = _limit("brightness", max)
    return _tone("brightness", Tone(offset=Fraction(plain(most))), clip, max=most)


def contrast(max: float, clip: ClipRange | None = None) -> Perturbation:
    """More contrast: every pixel times 1 + max (less if it is negative)."""
    most = _limit("contrast", max)
    if not most > -1:
        raise InputError(f"contrast: max must be above -1, where nothing is left of the image, not {plain(most)}")
    return _tone("contrast", Tone(gain=Fraction(plain(most))), clip, max=most)


def linear(file: str | Path, clip: ClipRange | None = None) -> Perturbation:
    """Any linear change: a matrix over the pixels, from a scipy file; `write_linear` makes one."""
    from shakeproof.question.own_matrices import read_sparse

    options = _file_options(file)
    return _degrade("linear", Degradation("as_it_is", (read_sparse(Path(file)),)), "reflect", clip, **options)


def varying_blur(
    file: str | Path, across: int, padding: str = "reflect", clip: ClipRange | None = None
) -> Perturbation:
    """Blur that differs over the image: a point spread function per region, `across` side by side, blended."""
    from shakeproof.question.kernel_files import read_matrices

    options, spreads = _file_options(file), read_matrices(Path(file))
    if not isinstance(across, int) or across < 1 or not spreads or len(spreads) % across:
        raise InputError(f"varying-blur: the {len(spreads)} kernels of {file} cannot be laid out {across} side by side")
    kernels = tuple(tuple(tuple(map(float, row)) for row in spread_matrix(spread, file)) for spread in spreads)
    degradation = Degradation("by_regions", (kernels, across))
    return _degrade("varying-blur", degradation, padding, clip, **options, across=across)


def zoom_blur(by: float, clip: ClipRange | None = None) -> Perturbation:
    """Zoom during exposure: the mean over magnifications from 1 to `by`, about the centre."""
    by = _between("zoom-blur", "by", by, 1, 4)
    return _degrade("zoom-blur", Degradation("zooming", (by,)), "reflect", clip, by=by)


def rotation_blur(angle: float, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Camera roll during exposure: the mean over rotations by up to half of `angle` degrees either way."""
    angle = _between("rotation-blur", "angle", angle, 0, 180)
    return _degrade("rotation-blur", Degradation("turning", (angle,)), padding, clip, angle=angle)


def rolling_shutter(
    size: int, top: float, bottom: float, padding: str = "reflect", clip: ClipRange | None = None
) -> Perturbation:
    """Vibration under a rolling shutter: motion blur whose angle goes from `top` in the first row to `bottom`.

    Rows are exposed one after another, so each has a motion of its own.
    """
    _check_odd("rolling-shutter", size)
    top, bottom = (
        _between("rolling-shutter", key, angle, -3600, 3600) for key, angle in (("top", top), ("bottom", bottom))
    )
    degradation = Degradation("by_rows", (size, top, bottom))
    return _degrade("rolling-shutter", degradation, padding, clip, size=size, top=top, bottom=bottom)


def chromatic_blur(
    size: int, red: float, green: float, blue: float, padding: str = "reflect", clip: ClipRange | None = None
) -> Perturbation:
    """A lens that focuses colours apart: a Gaussian for each, with a standard deviation in pixels; 0 is sharp."""
    _check_odd("chromatic-blur", size)
    sigmas = {"red": red, "green": green, "blue": blue}
    sigmas = {colour: _between("chromatic-blur", colour, sigma, 0, 1e6) for colour, sigma in sigmas.items()}
    degradation = Degradation("by_channels", (size, *sigmas.values()))
    return _degrade("chromatic-blur", degradation, padding, clip, size=size, **sigmas)


def vignetting(corner: float, clip: ClipRange | None = None) -> Perturbation:
    """Darker towards the corners, where the share `corner` of the light remains: cos^4 law."""
    corner = _between("vignetting", "corner", corner, 0.01, 1)
    return _degrade("vignetting", Degradation("vignette", (corner,)), "reflect", clip, corner=corner)


def downsample(factor: float, resample: str = "bilinear", clip: ClipRange | None = None) -> Perturbation:
    """Low resolution: shrunk by a factor and enlarged again, with one of Pillow's filters."""
    factor = _between("downsample", "factor", factor, 1, 64)
    if resample not in FILTERS:
        raise InputError(f"downsample: resample must be one of {', '.join(FILTERS)}, not {resample!r}")
    options = {"factor": factor} | ({} if resample == "bilinear" else {"resample": resample})
    return _degrade("downsample", Degradation("resampled", (factor, resample)), "reflect", clip, **options)


def any_kernel(size: int, clip: ClipRange | None = None) -> AnyKernel:
    """Each pixel anywhere between the least and the greatest of its neighbourhood: only for `verify`."""
    return AnyKernel(size, clip)


def all_kernels(size: int, padding: str = "reflect", clip: ClipRange | None = None) -> KernelSet:
    """Any kernel, the same for all pixels, with entries from 0 to 1 that sum to 1: only for `verify`."""
    if size != 3:
        raise InputError(f"all-kernels: size must be 3, not {size!r}")
    places = [place for place in range(size * size) if place != size * size // 2]
    cells = range(size)
    ends = (tuple(tuple(Fraction(size * i + j == place) for j in cells) for i in cells) for place in places)
    return KernelSet("all-kernels", (("size", str(size)),), tuple(ends), padding, clip)


def psf_hull(
    file: str | Path, scale: float = 1.0, padding: str = "reflect", clip: ClipRange | None = None
) -> KernelSet:
    """Measured shakes and every mixture of them: all point spread functions of a file, up to 8: only for `verify`."""
    from shakeproof.question.kernel_files import read_matrices

    options, factor = _file_options(file) | _scale_option("psf-hull", scale), _scale("psf-hull", scale)
    ends = tuple(spread_matrix(resized(spread, factor), file) for spread in read_matrices(Path(file)))
    return KernelSet("psf-hull", _texts(options), ends, padding, clip)


def _to_kernel(family: str, end: Matrix, padding: str, clip: ClipRange | None, **options: str | float) -> Perturbation:
    """From the identity to an end kernel (the paper's Example 1); `options` are the keys of its text."""
    return _chain(family, ParameterisedKernel.towards(end), padding, clip, **options)


def _chain(
    family: str, kernel: ParameterisedKernel, padding: str, clip: ClipRange | None, **options: str | float
) -> Perturbation:
    return Perturbation((Part(family, _texts(options), kernel, padding),), clip)


def _tone(family: str, tone: Tone, clip: ClipRange | None, **options: float) -> Perturbation:
    return Perturbation((Part(family, _texts(options), tone),), clip)


def _degrade(
    family: str, degradation: Degradation, padding: str, clip: ClipRange | None, **options: str | float
) -> Perturbation:
    return Perturbation((Part(family, _texts(options), degradation, padding),), clip)


def _texts(options: Mapping[str, str | float]) -> tuple[tuple[str, str], ...]:
    return tuple((key, value if isinstance(value, str) else plain(value)) for key, value in options.items())


def _from_file(file: str | Path, index: str | int | None) -> tuple[dict[str, str], Matrix]:
    """The options that name a kernel in a file, and the kernel."""
    from shakeproof.question.kernel_files import read_matrix

    options = _file_options(file, index)
    return options, read_matrix(Path(file), options.get("index"))


def _file_options(file: str | Path, index: str | int | None = None, key: str = "file") -> dict[str, Any]:
    """The options that name a file, or an array in it."""
    if not isinstance(file, (str, Path)):
        raise InputError(f"a {'kernel' if key == 'file' else key}'s file is given by its name, not by {kind_of(file)}")
    options = {key: str(file)} | ({} if index is None else {"index": str(index)})
    for name, text in options.items():
        if _BETWEEN_PARTS.search(text) or BETWEEN_OPTIONS.search(text):
            what = "file" if name == key else "array"
            raise InputError(f"{text}: this {what} name would be read as part of a perturbation; rename the {what}")
    return options


def _number(family: str, key: str, value: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{family}: {key} must be a number, not {value!r}") from None


def _between(family: str, key: str, value: float, least: float, most: float) -> float:
    number = _number(family, key, value)
    if not least <= number <= most:
        raise InputError(f"{family}: {key} must be a number from {least:g} to {most:g}, not {number:g}")
    return number


def _check_odd(family: str, size: int) -> None:
    check_size(size)
    if size % 2 == 0:
        raise InputError(f"{family}: size must be odd, so that a pixel is in the middle, not {size}")


def _limit(family: str, value: float) -> float:
    """Check the largest change of brightness or contrast."""
    largest = _number(family, "max", value)
    if not 0 < abs(largest) <= LARGEST_ENTRY:
        raise InputError(
            f"{family}: max must be a number other than 0, of at most {LARGEST_ENTRY:g} either way, not {largest:g}"
        )
    return largest


# -- text -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """A family by its function, and an example of its text. The function's arguments are the keys of the text."""

    make: Callable[..., AnyPerturbation]
    example: str
    group: str

    @cached_property
    def keys(self) -> Mapping[str, inspect.Parameter]:
        """The keys of its text: the function's arguments, without the line that keeps `from_` apart from a keyword."""
        return {name.rstrip("_"): argument for name, argument in inspect.signature(self.make).parameters.items()}

    @property
    def reads_files(self) -> bool:
        """Whether what it does is in a file."""
        return any(key.annotation == "str | Path" for key in self.keys.values())

    @property
    def summary(self) -> str:
        return (self.make.__doc__ or "").splitlines()[0]


# What a family is an effect of.
GROUPS: Mapping[str, tuple[tuple[Callable[..., AnyPerturbation], str], ...]] = {
    "optical": (
        (gaussian_blur, "gaussian-blur:size=7,sigma=1.5"),
        (box_blur, "box-blur:size=5"),
        (defocus, "defocus:radius=3"),
        (otf, "otf:size=9,jitter=0.6,aperture=0.5,turbulence=0.4"),
        (chromatic_blur, "chromatic-blur:size=9,red=0,green=1,blue=2"),
        (varying_blur, "varying-blur:file=shakes.npz,across=2"),
        (vignetting, "vignetting:corner=0.2"),
    ),
    "motion": (
        (motion_blur, "motion-blur:size=9,angle=45"),
        (motion_length, "motion-length:angle=30,upto=15"),
        (motion_angle, "motion-angle:size=9,from=0,to=180,strength=0.6"),
        (exposure, "exposure:trajectory=shake.csv,upto=0.1"),
        (psf, "psf:file=shakes.npz,index=3"),
        (psf_hull, "psf-hull:file=shakes.npz"),
        (zoom_blur, "zoom-blur:by=1.25"),
        (rotation_blur, "rotation-blur:angle=15"),
        (rolling_shutter, "rolling-shutter:size=9,top=0,bottom=90"),
    ),
    "sensor": (
        (sharpen, "sharpen:size=5"),
        (unsharp, "unsharp:size=5,sigma=1"),
        (downsample, "downsample:factor=3"),
        (brightness, "brightness:max=0.2"),
        (contrast, "contrast:max=0.2"),
    ),
    "atmosphere": ((haze, "haze:colour=0.8"),),
    "yours": (
        (custom, "custom:file=kernel.npy,normalise=yes"),
        (linear, "linear:file=matrix.npz"),
        (all_kernels, "all-kernels:size=3"),
        (any_kernel, "any-kernel:size=3"),
        (identity, "identity"),
    ),
}
FAMILIES: Mapping[str, Family] = {
    example.partition(":")[0]: Family(make, example, group)
    for group, families in GROUPS.items()
    for make, example in families
}
_OF_FILES = tuple(f"{name}:" for name, family in FAMILIES.items() if family.reads_files)
_BETWEEN_PARTS = re.compile(rf"\s*\+\s*(?=(?:{'|'.join(FAMILIES)})(?:[:+]|$))")


def parse(text: str) -> AnyPerturbation:
    """The perturbation that a text describes, e.g. `motion-blur:size=9,angle=45,padding=zeros+brightness:max=0.2`."""
    if not isinstance(text, str):
        raise InputError(f"a perturbation is a text, not {kind_of(text)}")
    parts = [(_parse_single if part.startswith(_OF_FILES) else _parsed)(part) for part in _split(text.strip())]
    if len(parts) == 1:
        return parts[0]
    sets = [part for part in parts if not isinstance(part, Perturbation)]
    if sets:
        raise InputError(
            f"{text}: {_name(sets[0])} is a set of images, to which nothing can be added; ask about it alone"
        )
    return reduce(add, parts)


def _name(perturbation: AnyPerturbation) -> str:
    return str(perturbation).partition(":")[0]


def as_perturbation(perturbation: AnyPerturbation | str) -> AnyPerturbation:
    """A perturbation as it is, or what a text describes."""
    if isinstance(perturbation, str):
        return parse(perturbation)
    if not isinstance(perturbation, AnyPerturbation):
        raise InputError(
            f"a perturbation is a text like motion-blur:size=9,angle=45, or what a family's function gives,"
            f" not {kind_of(perturbation)}"
        )
    return perturbation


def parse_path(perturbation: AnyPerturbation | str) -> Perturbation:
    """The same, for what needs a path of images."""
    parsed = as_perturbation(perturbation)
    if not isinstance(parsed, Perturbation):
        raise InputError(
            f"{perturbation}: {_name(parsed)} is a set of images, without one kernel or a path; only `verify` takes it"
        )
    return parsed


def _split(text: str) -> list[str]:
    """The texts of the parts. A + belongs to a kernel's file name unless a family's name comes next."""
    return [
        part
        for piece in _BETWEEN_PARTS.split(text)
        # Elsewhere no value holds a + and a letter: what follows is a misspelt family, and to be called so.
        for part in ([piece] if piece.startswith(_OF_FILES) else re.split(r"\s*(?<!=)\+\s*(?=[A-Za-z])", piece))
    ]


def _parse_single(text: str) -> AnyPerturbation:
    name = text.partition(":")[0]
    family = FAMILIES.get(name)
    if family is None:
        raise InputError(f"unknown perturbation {name!r}; the families are {', '.join(FAMILIES)}")
    if "padding" not in family.keys and re.search(r"[:,]padding=", text):
        raise InputError(
            f"{text!r}: {name} looks at no pixels outside the image, so padding means nothing; leave it out"
        )
    keys = {key: Key(READERS[kind.annotation], kind.default is not kind.empty) for key, kind in family.keys.items()}
    options = read_options(text, keys | {"at": Key(_read_at, optional=True)}, family.example)
    at_original = options.pop("at", False)
    made = family.make(**{family.keys[key].name: value for key, value in options.items()})
    if not at_original:
        return made
    if not isinstance(made, Perturbation):
        raise InputError(f"{text!r}: {name} is a set of images; at=original is for what follows one path")
    return made.of_photograph()


# What names no file means the same every time.
_parsed = lru_cache(maxsize=128)(_parse_single)


def _read_at(text: str) -> bool:
    """Whether it is the photograph that something happens to, before it is resized."""
    if text not in ("original", "network"):
        raise ValueError("must be original (the photograph as taken) or network (the picture that it becomes)")
    return text == "original"


# How the value of a key is read, by the type that its function is annotated with.
READERS: Mapping[str, Reader] = {
    "int": read_whole,
    "float": read_number,
    "float | None": read_number,
    "float | Span": read_number_or_interval,
    "int | None": read_whole,
    "bool": read_flag,
    "str": str,
    "str | Path": str,
    "str | int | None": str,
    "ClipRange | None": read_interval,
}
