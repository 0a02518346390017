"""Loads models, and the pictures that they are asked about; refuses what its own runtime computes differently."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.errors import (
    InputError,
    NetworkMismatchError,
    Refusal,
    ShakeproofError,
    UnsupportedNetworkError,
    strictly,
)
from shakeproof.files import write_whole
from shakeproof.model.comparison import SHARE
from shakeproof.model.model_file import OpenedModel, explained, open_model, stored
from shakeproof.model.network import Deployed, Network
from shakeproof.model.onnx_model import CHOOSE, RUNNABLE, image_input
from shakeproof.model.onnx_reader import Reading
from shakeproof.model.onnx_reader import read as read_graph
from shakeproof.model.runtimes import NoKernelError, Reference, onnx_runtime, reference_runtime
from shakeproof.question import (
    ClassNames,
    Image,
    Preprocessing,
    RawImage,
    Source,
    Specification,
    Subfolder,
    image_layout,
    names_in_metadata,
    read_class_names,
    read_preprocessing,
    sources,
)

if TYPE_CHECKING:
    from shakeproof.model.torch_export import Export

# So many names are listed in a note.
LISTED = 8
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
    `picture` is what it is where neither that nor the network says so. `output_name` names the output with the scores,
    or several outputs ("boxes,scores", or "*" for all): without, the one that can be meant, or else all of them.
    `preprocess` is what is done to files of pictures, or a preprocessor_config.json; `mean` and `std` are a part of it.
    `classes` are what classes are called, or a file of that.
    """
    module: Export | None = None
    if isinstance(source, torch.nn.Module):
        from shakeproof.model.torch_export import exported

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
        preprocessing = preprocess if isinstance(preprocess, Preprocessing) else read_preprocessing(preprocess)
        network = network.preprocessed(preprocessing)
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
        several = len(model.proto.graph.output) > 1
        way_out = f"{CHOOSE} (output_name)" if several else "on 8-bit pictures, any model that its runtime loads is run"
        raise UnsupportedNetworkError(f"{path}: {reading.refusal}; {way_out}", option="pixels")
    runtime: Reference
    try:
        runtime, mixes = onnx_runtime(model.data, str(path), _inputs(graph.input_shape))
    except NoKernelError:
        if not reading.is_double:
            raise
        runtime, mixes, notes = reference_runtime(model.data), False, (*notes, NO_KERNELS)
    return Network(
        name=str(path),
        runtime=runtime,
        data=model.data,
        input_shape=tuple(graph.input_shape),
        parts=reading.parts,
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
    inputs = torch.rand(4, *image.shape, generator=torch.Generator().manual_seed(0)).numpy()
    runtime, mixes = onnx_runtime(model.data, str(path), inputs)
    parts = runtime.parts(inputs)
    return Deployed(
        name=str(path),
        runtime=runtime,
        data=model.data,
        input_shape=tuple(image.shape),
        parts=parts,
        layout=image_layout(image.shape, image_shape),
        identity=model.identity,
        mixes_batches=mixes,
        remarks=(*model.notes, *filter(None, [image.note])),
        output_name=output_name,
        class_names=_class_names(model, sum(part.size for part in parts)),
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
            f"{network.name}: the ONNX export differs from the PyTorch module by"
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


# -- the pictures that a network is asked about: each explains what the other leaves open -----------------------------


def pictures_for(
    model: str,
    images: Sequence[Source],
    preprocessing: Preprocessing,
    names: ClassNames | None = None,
    *,
    image_shape: tuple[int, int, int] | None = None,
    output_name: str | None = None,
    deployed: bool = False,
    with_photographs: bool = False,
) -> tuple[Deployed, Iterator[Image | Refusal]]:
    """The network, and the images as its pictures when their turn comes; an input that leaves its size open is of the
    first image's, and a flat one is explained by the first image that can. `deployed`: only the runtime is wanted;
    `with_photographs`: so is what images are before they are resized.
    """
    raw = _raw_images(images)
    first = next(raw)
    size = None if isinstance(first, Refusal) else first.own_shape(preprocessing)
    loaded: Callable[..., Deployed] = load_deployed if deployed else load
    network = loaded(model, image_shape=image_shape, output_name=output_name, picture=size, classes=names)
    raw = chain([first], raw)
    if image_shape is None and (network.layout is None or network.layout.note is not None):
        network, raw = _explained(network, raw, preprocessing)
    if not network.class_names:
        network = network.named(subfolder_names(images, network.classes))
    network = network.preprocessed(preprocessing)
    network.picture()
    pairs = zip(raw, images, strict=True)
    return network, (_fitted(network, picture, source, with_photographs) for picture, source in pairs)


def _raw_images(images: Iterable[Source]) -> Iterator[RawImage | Refusal]:
    """What sources hold, each read when its turn comes."""
    for source in images:
        try:
            yield source.read()
        except InputError as error:
            yield Refusal(source.name, error)


def _explained(
    network: Deployed, raw: Iterator[RawImage | Refusal], preprocessing: Preprocessing
) -> tuple[Deployed, Iterator[RawImage | Refusal]]:
    """The network with its flat input read as a picture, and the images again."""
    seen: list[RawImage | Refusal] = []
    picture_shape = None
    while picture_shape is None and (more := next(raw, None)) is not None:
        seen.append(more)
        picture_shape = None if isinstance(more, Refusal) else more.own_shape(preprocessing)
    if picture_shape is None and all(isinstance(image, Refusal) for image in seen):
        list(strictly(seen))  # what is wrong with the first says more than that nothing explains the input
    if picture_shape is not None and prod(picture_shape) == prod(network.input_shape):
        network = network.with_image_shape(picture_shape)
    return network, chain(seen, raw)


def _fitted(network: Deployed, raw: RawImage | Refusal, source: Source, with_photograph: bool) -> Image | Refusal:
    if isinstance(raw, Refusal):
        return raw
    directives = raw.array.directives if isinstance(raw.array, Specification) else {}
    try:
        if network.normalisation is None and ("mean" in directives or "std" in directives):
            options = " and ".join(f"{key} {directives[key]}" for key in ("mean", "std") if key in directives)
            raise InputError(
                f"{raw.name}: holds the image before it is normalised; give the network {options}", option="mean"
            )
        labelled_image = labelled(raw, source.subfolder, network)
        return labelled_image.fitted(network.picture(), network.preprocessing, with_photograph)
    except InputError as error:
        return Refusal(raw.name, error)


def read_images(network: Deployed, *words: str, array: str | None = None, labels: str | None = None) -> Iterator[Image]:
    """The pictures that words stand for (see `sources`), preprocessed for a network, one after another."""
    for source in sources(words, array, labels):
        raw = labelled(source.read(), source.subfolder, network)
        yield raw.fitted(network.picture(), network.preprocessing)


def labelled(raw: RawImage, place: Subfolder | None, network: Deployed) -> RawImage:
    """An image with the label that its place says, if it has one."""
    if place is None:
        return raw
    label, note = subfolder_label(place, network.class_names, network.classes)
    return replace(raw, label=label, notes=(*raw.notes, note))


@cache
def subfolder_label(place: Subfolder, names: ClassNames, classes: int) -> tuple[int, str]:
    """The class that a subfolder stands for, and what its user should know of how that was found.

    By its name, if all go by names of classes; by its number, if all are numbers; else by its place in the order of the
    alphabet, as torchvision's ImageFolder counts them.
    """
    numbers = {name: names.find(name) for name in place.siblings}
    unknown = [name for name, number in numbers.items() if number is None]
    number = numbers[place.name]
    if number is not None and not unknown:
        return number, f"{place.folder}: labels are the classes that subfolders are named after"
    if len(unknown) < len(numbers):
        raise InputError(f"{place.folder}: no class is called {', '.join(unknown[:LISTED])}, as subfolders are")
    if all(name.isdecimal() for name in place.siblings):
        if (last := max(map(int, place.siblings))) >= classes:  # the others may be counted from 1 as well
            raise InputError(
                f"{place.folder}: subfolders are numbered up to {last}, the network's classes from 0 to {classes - 1};"
                " name them by the classes' numbers, or their names"
            )
        return int(place.name), f"{place.folder}: labels are the numbers that subfolders are named by"
    if len(place.siblings) > classes:
        raise InputError(f"{place.folder}: has {len(place.siblings)} subfolders, the network {classes} classes")
    listed = ", ".join(f"{n} {name}" for n, name in enumerate(place.siblings[:LISTED]))
    more = ", ..." if len(place.siblings) > LISTED else ""
    fewer = f"; the network has {classes} classes: to mean others, name them by number" * (len(numbers) < classes)
    return place.siblings.index(place.name), (
        f"{place.folder}: labels are the places of subfolders in the alphabet ({listed}{more}){fewer}"
    )


def subfolder_names(images: Iterable[Source], classes: int) -> ClassNames:
    """What classes are called if one folder has a subfolder for each, and these are no numbers."""
    folders = {source.subfolder.siblings for source in images if source.subfolder is not None}
    if len(folders) == 1 and len(names := folders.pop()) == classes and not all(name.isdecimal() for name in names):
        return ClassNames.of(names)
    return ClassNames()
