"""Questions: images, preprocessing, perturbations, sets of inputs, properties of outputs, and the query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shakeproof import names_on_first_use

if TYPE_CHECKING:
    from shakeproof.question.class_names import ClassNames, names_in_metadata, read_class_names
    from shakeproof.question.families import (
        FAMILIES,
        all_kernels,
        any_kernel,
        as_perturbation,
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
        parse_path,
        psf,
        psf_hull,
        rolling_shutter,
        rotation_blur,
        sharpen,
        unsharp,
        varying_blur,
        vignetting,
        zoom_blur,
    )
    from shakeproof.question.image_files import Source, Subfolder, one_source, read_image, sources
    from shakeproof.question.images import Image, ImageLayout, RawImage, as_picture, image_layout
    from shakeproof.question.inputs import InputBox, InputKernels, InputPath, InputSet, Path
    from shakeproof.question.linear_maps import LinearMap
    from shakeproof.question.outputs import OutputPart, listed, one_place, output_part, places
    from shakeproof.question.own_matrices import write_linear
    from shakeproof.question.perturbation import (
        MOST_PARTS,
        PADDINGS,
        AnyKernel,
        AnyPerturbation,
        ClipRange,
        Degradation,
        ExactPath,
        KernelSet,
        Matrix,
        ParameterisedKernel,
        Part,
        Perturbation,
        Tone,
        as_whole,
        written_chain,
        written_kernels,
    )
    from shakeproof.question.photographs import Photograph
    from shakeproof.question.preprocessing import PRESETS, Preprocessing, read_preprocessing
    from shakeproof.question.properties import Case, Property, Specification, by_boxes, margins, robustness, wins
    from shakeproof.question.query import (
        Obligation,
        Picture,
        Query,
        Strength,
        check_image,
        check_label,
        check_requirement,
        class_number,
        fitting,
        output_context,
        perturbed,
        specified,
    )
    from shakeproof.question.requirement import (
        KINDS,
        LABEL,
        OutputContext,
        Requirement,
        as_requirement,
        parse_requirement,
    )
    from shakeproof.question.scale import STRENGTH, ParameterScale
    from shakeproof.question.vnnlib import perturbed_directives, read_specification, written, written_perturbed

# To read a perturbation's text takes no torch.
__getattr__ = names_on_first_use(__name__, __file__)
