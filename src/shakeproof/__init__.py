"""How much camera shake, blur or sharpening can this image take before this network changes its mind?

import shakeproof as sp
network = sp.load("model.onnx")
result = sp.profile(network, "image.png", sp.motion_blur(size=9, angle=45))
print(result.status, result.critical_strength)
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
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
        exposure,
        gaussian_blur,
        haze,
        identity,
        linear,
        motion_angle,
        motion_blur,
        motion_length,
        otf,
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
    from shakeproof.scanning import Scan, scan
    from shakeproof.settings import Settings
    from shakeproof.store import Store

__version__ = "0.1.0"

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
    "Scan",
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
    "exposure",
    "gaussian_blur",
    "haze",
    "identity",
    "linear",
    "load",
    "load_deployed",
    "motion_angle",
    "motion_blur",
    "motion_length",
    "otf",
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
    "scan",
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


def names_on_first_use(package: str, file: str) -> Callable[[str], Any]:
    """A package's `__getattr__`: its file imports names for type checkers only, and each is imported when it is needed.

    torch takes a second to import, which `shakeproof --help` and a table do not need.
    """
    imports = (node for node in ast.walk(ast.parse(Path(file).read_text())) if isinstance(node, ast.ImportFrom))
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}

    def imported(name: str) -> Any:
        if not homes.get(name, "").startswith("shakeproof."):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return imported


__getattr__ = names_on_first_use(__name__, __file__)


def __dir__() -> list[str]:
    """What users need; modules that happen to be imported stay out of sight."""
    return [*__all__, "__version__"]
