"""Loads models: reads them into graphs, and refuses those that their own runtime computes differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.errors import InputError, NetworkMismatchError, ShakeproofError, UnsupportedNetworkError
from shakeproof.files import write_whole
from shakeproof.model.comparison import SHARE
from shakeproof.model.model_file import OpenedModel, explained, open_model, stored
from shakeproof.model.network import Deployed, Network
from shakeproof.model.onnx_model import RUNNABLE, image_input
from shakeproof.model.onnx_reader import Reading
from shakeproof.model.onnx_reader import read as read_graph
from shakeproof.model.runtimes import NoKernelError, Reference, onnx_runtime, reference_runtime
from shakeproof.model.torch_export import Export, exported
from shakeproof.question import (
    ClassNames,
    Preprocessing,
    image_layout,
    names_in_metadata,
    read_class_names,
    read_preprocessing,
)

# Of the inputs of the comparison, these are of the size of numbers in [0, 1]; one more is of pixels in 0..255.
NATURAL = 3
Shape = tuple[int, int, int]
AnyNetwork = TypeVar("AnyNetwork", bound=Deployed)
NO_KERNELS = "onnxruntime does not run this network in float64: it is compared with ONNX's reference implementation"
TELLS_NOTHING = (
    "float32 rounding may change this network's scores by {:.2g}, and they are only {:.2g} apart: the runtime would"
    " agree with another network as well, and no answer about real numbers is safe where that is so"
)


def load(
    source: str | Path | torch.nn.Module,
    example_input: Tensor | None = None,
    *,
    image_shape: Shape | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    output_name: str | None = None,
    picture: Shape | None = None,
    preprocess: Preprocessing | str | Path | None = None,
    classes: ClassNames | Sequence[str] | str | Path | None = None,
    save: str | Path | None = None,
) -> Network:
    """Load a network and compare it with its reference runtime.

    `source` is an ONNX file (.onnx, .onnx.gz), or a torch module with an example input. A module is exported to ONNX
    by PyTorch, in evaluation mode; `save` keeps that file, which certificates are about.
    `image_shape` (channels, height, width) says how a flat input, or one that leaves its size open, is a picture;
    `picture` is what it is where neither that nor the network says so. `output_name` names the output with the scores.
    `preprocess` is what is done to files of pictures, or a preprocessor_config.json; `mean` and `std` are a part of it.
    `classes` are what classes are called, or a file of that.
    """
    module: Export | None = None
    if isinstance(source, torch.nn.Module):
        module = exported(source, example_input, output_name)
        path, on_disk, output_name = Path(save or type(source).__name__), module.data, None
    elif save is not None:
        raise InputError(f"{source}: is a file already; save is for torch modules", option="save")
    else:
        path, on_disk = Path(source), stored(Path(source))
    network = _network(path, on_disk, output_name, image_shape or picture)
    is_open = network.layout is None or network.layout.note is not None
    if image_shape is None and picture is not None and is_open and prod(picture) == prod(network.input_shape):
        image_shape = picture
    if image_shape is not None:
        network = network.with_image_shape(image_shape)
    network = _compared(network)
    if module is not None:
        network = _compared_with_module(network, module)
    if save is not None:
        write_whole({Path(save): on_disk})
    return _prepared(network, mean, std, preprocess, classes)


def load_deployed(
    source: str | Path,
    *,
    image_shape: Shape | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    output_name: str | None = None,
    picture: Shape | None = None,
    preprocess: Preprocessing | str | Path | None = None,
    classes: ClassNames | Sequence[str] | str | Path | None = None,
) -> Deployed:
    """The same of a file, to be run only: any model that the runtime loads, whether its graph can be read or not.

    Models that take bytes are given grey levels from 0 to 255.
    """
    try:
        network: Deployed = load(source, image_shape=image_shape, output_name=output_name, picture=picture)
    except ShakeproofError:
        network = _runnable(Path(source), output_name, image_shape, picture)
    return _prepared(network, mean, std, preprocess, classes)


def _prepared(
    network: AnyNetwork,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    preprocess: Preprocessing | str | Path | None,
    classes: ClassNames | Sequence[str] | str | Path | None,
) -> AnyNetwork:
    """The network with its normalisation, its preprocessing and its classes' names, as far as they are known."""
    if mean is not None or std is not None:
        network = network.normalised(mean or [0.0], std or [1.0])
    if preprocess is not None:
        known = preprocess if isinstance(preprocess, Preprocessing) else read_preprocessing(preprocess)
        network = network.preprocessed(known)
    if classes is None:
        return network
    if isinstance(classes, (str, Path)):
        return network.named(read_class_names(classes))
    return network.named(classes if isinstance(classes, ClassNames) else ClassNames.of(classes))


def read(path: Path, output_name: str | None = None, picture: Shape | None = None) -> Reading:
    """What the reader makes of a model file; nothing is compared."""
    model = open_model(path, stored(path), output_name)
    with explained(path):
        reading = read_graph(model.proto, str(path), picture)
    return replace(reading, notes=(*model.notes, *reading.notes))


def _network(path: Path, on_disk: bytes, output_name: str | None, picture: Shape | None) -> Network:
    """A model's graph and its runtime; they are still to be compared."""
    model = open_model(path, on_disk, output_name)
    with explained(path):
        reading = read_graph(model.proto, str(path), picture)
    graph, notes = reading.graph, (*model.notes, *reading.notes)
    if graph is None:
        raise UnsupportedNetworkError(
            f"{path}: {reading.refusal}; on 8-bit pictures, any model that its runtime loads is run", option="pixels"
        )
    runtime: Reference
    try:
        runtime = onnx_runtime(model.data, str(path))
        mixes = runtime.in_batches and runtime.mixes(_inputs(graph.input_shape))
        runtime = replace(runtime, in_batches=runtime.in_batches and not mixes)
    except NoKernelError:
        if not reading.is_double:
            raise
        runtime, mixes, notes = reference_runtime(model.data), False, (*notes, NO_KERNELS)
    return Network(
        name=str(path),
        runtime=runtime,
        data=model.data,
        input_shape=tuple(graph.input_shape),
        output_shape=reading.output_shape,
        layout=image_layout(graph.input_shape),
        identity=model.identity,
        mixes_batches=mixes,
        remarks=notes,
        output_name=output_name,
        class_names=_class_names(model, graph.classes),
        graph=graph,
        operators=reading.operators,
        dropped=reading.dropped,
        ranks_only=model.ranks_only,
    )


def _runnable(path: Path, output_name: str | None, image_shape: Shape | None, picture: Shape | None) -> Deployed:
    """A model that is only run, with its runtime."""
    model = open_model(path, stored(path), output_name)
    image = image_input(model.proto, str(path), image_shape or picture, RUNNABLE)
    runtime = onnx_runtime(model.data, str(path))
    inputs = torch.rand(4, *image.shape, generator=torch.Generator().manual_seed(0)).numpy()
    mixes = runtime.in_batches and runtime.mixes(inputs)
    scores = runtime.one_by_one(inputs[:1])
    return Deployed(
        name=str(path),
        runtime=replace(runtime, in_batches=runtime.in_batches and not mixes),
        data=model.data,
        input_shape=tuple(image.shape),
        output_shape=scores.shape[1:],
        layout=image_layout(image.shape, image_shape),
        identity=model.identity,
        mixes_batches=mixes,
        remarks=(*model.notes, *filter(None, [image.note])),
        output_name=output_name,
        class_names=_class_names(model, scores.shape[1]),
    )


def _class_names(model: OpenedModel, classes: int) -> ClassNames:
    """What the model's metadata call its classes, if they name each of them."""
    names = names_in_metadata({entry.key: entry.value for entry in model.proto.metadata_props})
    return names if len(names) == classes else ClassNames()


# -- the comparison: a network that was misread is refused ------------------------------------------------------------


def _compared(network: Network) -> Network:
    """The network, with a note if its comparison with the runtime could not have failed; refused where it does."""
    inputs = _inputs(network.input_shape)
    ours, theirs = network.scores(torch.from_numpy(inputs).double()), network.reference(inputs)
    if theirs.shape != tuple(ours.shape):
        raise NetworkMismatchError(
            f"{network.name}: read as {ours.shape[1]} classes, the reference runtime gives {theirs.shape[1]}"
        )
    if not np.isfinite(theirs[:NATURAL]).all():
        raise InputError(f"{network.name}: the scores of a random picture are not finite; check the network's weights")
    told = np.isfinite(theirs).all(1) & torch.isfinite(ours).all(1).numpy()  # it may not be made for large pixels
    shares, within = network.beside(ours[told], theirs[told], inputs[told])
    if not (shares <= 1).all():
        raise NetworkMismatchError(
            f"{network.name}: the network as read differs from the reference runtime by {shares.max():.3g} times what"
            " rounding explains, so nothing can be proved about it; if no node of the file computes weights, or resizes"
            " with extreme numbers, please report it"
        )
    natural = np.flatnonzero(told) < NATURAL
    noise = float(within[natural].max(1).min(initial=np.inf))
    apart = float(np.ptp(ours[told].numpy()[natural])) if natural.any() else 0.0
    if noise <= SHARE * apart:
        return network
    return replace(network, remarks=(*network.remarks, TELLS_NOTHING.format(noise, apart)))


def _compared_with_module(network: Network, module: Export) -> Network:
    """The network; refused where the module that it was exported from gives something else."""
    inputs = _inputs(network.input_shape)
    ours, theirs = network.scores(torch.from_numpy(inputs).double()), module.scores(inputs)
    told = np.isfinite(theirs).all(1) & torch.isfinite(ours).all(1).numpy()
    shares = network.beside(ours, theirs, inputs)[0][told]
    if not (told[:NATURAL].all() and (shares <= 1).all()):
        raise NetworkMismatchError(
            f"{network.name}: what PyTorch exported to ONNX differs from the module by"
            f" {shares.max(initial=0.0):.3g} times what rounding explains"
        )
    return replace(network, remarks=(*filter(None, [module.note]), *network.remarks))


def _inputs(input_shape: Sequence[int]) -> NDArray[np.float32]:
    """The inputs of the comparison: pixels in [0, 1], normalised ones, none, and pixels in 0..255.

    Many networks are for the last, and nearly constant on the others.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (1, *input_shape)
    rand, randn = (partial(make, generator=generator, dtype=torch.float32) for make in (torch.rand, torch.randn))
    inputs = [rand(shape), randn(shape), torch.zeros(shape, dtype=torch.float32), 255 * rand(shape)]
    return torch.cat(inputs).numpy()
