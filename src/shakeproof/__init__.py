"""How much camera shake, blur or sharpening can this image take before this network changes its mind?

import shakeproof as sp
network = sp.load("model.onnx")
result = sp.profile(network, "image.png", sp.motion_blur(size=9, angle=45))
print(result.status, result.critical_strength)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shakeproof.analysis import analyse, answers, profile, verify, verify_specification
    from shakeproof.asserting import assert_safe
    from shakeproof.comparing import Agreement, Compared, Disagreement, compare
    from shakeproof.errors import ShakeproofError
    from shakeproof.exporting import Exported, export
    from shakeproof.model import Deployed, Network, load, load_deployed, read_images
    from shakeproof.proof import Counterexample, Interval, Reason, Record, Result, Status
    from shakeproof.question import (
        AnyKernel,
        Image,
        KernelSet,
        Perturbation,
        Preprocessing,
        Query,
        Specification,
        all_kernels,
        any_kernel,
        box_blur,
        brightness,
        chromatic_blur,
        contrast,
        custom,
        defocus,
        downsample,
        gaussian_blur,
        haze,
        identity,
        linear,
        motion_blur,
        parse,
        perturbed,
        psf,
        psf_hull,
        read_image,
        read_preprocessing,
        read_specification,
        rolling_shutter,
        rotation_blur,
        sharpen,
        specified,
        unsharp,
        varying_blur,
        vignetting,
        write_linear,
        zoom_blur,
    )
    from shakeproof.settings import Settings
    from shakeproof.store import Store

__version__ = "0.1.0"

# Where public names live, imported on first use: torch takes a second, which `shakeproof --help` must not.
_ROOMS = (
    "errors",
    "settings",
    "question",
    "proof",
    "asserting",
    "model",
    "analysis",
    "comparing",
    "exporting",
    "store",
)

__all__ = [
    "Agreement",
    "AnyKernel",
    "Compared",
    "Counterexample",
    "Deployed",
    "Disagreement",
    "Exported",
    "Image",
    "Interval",
    "KernelSet",
    "Network",
    "Perturbation",
    "Preprocessing",
    "Query",
    "Reason",
    "Record",
    "Result",
    "Settings",
    "ShakeproofError",
    "Specification",
    "Status",
    "Store",
    "all_kernels",
    "analyse",
    "answers",
    "any_kernel",
    "assert_safe",
    "box_blur",
    "brightness",
    "chromatic_blur",
    "compare",
    "contrast",
    "custom",
    "defocus",
    "downsample",
    "export",
    "gaussian_blur",
    "haze",
    "identity",
    "linear",
    "load",
    "load_deployed",
    "motion_blur",
    "parse",
    "perturbed",
    "profile",
    "psf",
    "psf_hull",
    "read_image",
    "read_images",
    "read_preprocessing",
    "read_specification",
    "rolling_shutter",
    "rotation_blur",
    "sharpen",
    "specified",
    "unsharp",
    "varying_blur",
    "verify",
    "verify_specification",
    "vignetting",
    "write_linear",
    "zoom_blur",
]


def __getattr__(name: str) -> Any:
    for room in _ROOMS if name in __all__ else ():
        module = import_module(f"shakeproof.{room}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module 'shakeproof' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What users need; modules that happen to be imported stay out of sight."""
    return [*__all__, "__version__"]
