"""A loaded network: its graph, the reference runtime it was compared with, and how its input is a picture."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.errors import InputError, NetworkMismatchError, UnsupportedNetworkError
from shakeproof.network.graph import Graph
from shakeproof.network.layout import ImageLayout, image_layout
from shakeproof.operators import Scale

if TYPE_CHECKING:
    from shakeproof.network.onnx_reader import Reading

# Scores of float32 inputs (n, *input_shape) as the deployed runtime computes them: (n, classes), float32.
Reference = Callable[[NDArray[np.float32]], NDArray[np.float32]]

# How far the float32 runtime may be from the float64 graph: shares of how much a score varies, of its size, and of the
# largest score.
TOLERANCE_OF_SPREAD, TOLERANCE_OF_SIZE, TOLERANCE_OF_REST = 1e-3, 1e-5, 3e-6


@dataclass(frozen=True, eq=False)
class Network:
    """What `load` gives: everything an analysis needs to know of a model."""

    name: str
    graph: Graph
    reference: Reference
    layout: ImageLayout | None
    output_shape: tuple[int, ...]
    dropped: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about how the network was read."""
        softmax = f"the final {self.dropped} is left out: it does not change which class wins" if self.dropped else None
        return tuple(filter(None, (softmax, self.layout.note if self.layout else None)))

    def picture(self) -> ImageLayout:
        """How the input is a picture; an error if it is flat and nothing has said so."""
        if self.layout is None:
            raise InputError(
                f"{self.name}: the input has shape {list(self.graph.input_shape)}; say how it is a picture with"
                " --image-shape C,H,W (image_shape=(C, H, W) in Python)"
            )
        return self.layout

    def check_classifies(self) -> None:
        """Refuse a network whose outputs are not one score for each of several classes."""
        classes = self.graph.classes
        if max(self.output_shape, default=1) != classes or classes < 2:
            shape = list(self.output_shape)
            raise InputError(f"{self.name}: the output has shape {shape}; a classifier gives one score per class")

    def with_image_shape(self, shape: tuple[int, int, int]) -> Network:
        """The same network, its input read as a picture of (channels, height, width)."""
        try:
            return replace(self, layout=image_layout(self.graph.input_shape, shape))
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None

    def normalised(self, mean: Sequence[float], std: Sequence[float]) -> Network:
        """The network behind a normalisation (x - mean) / std per channel: its pictures are then unnormalised."""
        layout = self.picture()
        channels = layout.image_shape[0]
        possible = all(map(isfinite, mean)) and all(isfinite(s) and s > 0 and isfinite(1 / s) for s in std)
        if len(mean) not in (1, channels) or len(std) not in (1, channels) or not possible:
            raise InputError(
                f"mean and std need 1 or {channels} finite numbers (std positive), not {list(mean)} and {list(std)}"
            )
        centre, spread = (
            layout.to_input(torch.tensor(v, dtype=torch.float64).reshape(-1, 1, 1).expand(layout.image_shape))
            for v in (mean, std)
        )
        inner, centre32, spread32 = self.reference, centre.float().numpy(), spread.float().numpy()
        return replace(
            self,
            graph=self.graph.after(Scale(1 / spread, -centre / spread)),
            reference=lambda x: inner((x - centre32) / spread32),
        )

    def scores(self, inputs: Tensor) -> Tensor:
        """Class scores in float64; inputs (n, *input_shape)."""
        with torch.inference_mode():
            return self.graph.run(inputs)


def load(
    source: str | Path | torch.nn.Module,
    example_input: Tensor | None = None,
    *,
    image_shape: tuple[int, int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Network:
    """Load a network and compare it with its reference runtime.

    `source` is an ONNX file (.onnx, .onnx.gz), a torch.export file (.pt2), or a torch module with an example input.
    """
    if isinstance(source, torch.nn.Module):
        network = _from_module(source, example_input)
    else:
        path = Path(source)
        network = _from_exported_file(path) if path.suffix == ".pt2" else _from_onnx(path)
    if image_shape is not None:
        network = network.with_image_shape(image_shape)
    _compare(network)
    if mean is not None or std is not None:
        network = network.normalised(mean or [0.0], std or [1.0])
    return network


def read_onnx(path: Path) -> tuple[bytes, Reading]:
    """An ONNX file's bytes and what the reader made of it."""
    import onnx
    from google.protobuf.message import DecodeError

    from shakeproof.network import onnx_reader

    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        model = onnx.load_from_string(data)
        uses_files = any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer)
        if uses_files and path.suffix != ".gz":
            model = onnx.load(path)
            data = model.SerializeToString()
        if not model.graph.node:
            raise ValueError("it holds no operators")
        return data, onnx_reader.read(model, str(path))
    except OSError as error:
        raise InputError(f"{path}: cannot read the network ({error.strerror or error})") from error
    except (DecodeError, EOFError, zlib.error, ValueError, onnx.checker.ValidationError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: not a complete ONNX model ({reason})") from error


def _from_onnx(path: Path) -> Network:
    data, reading = read_onnx(path)
    if reading.graph is None:
        listed = "; ".join(map(str, reading.problems))
        raise UnsupportedNetworkError(f"{path}: {len(reading.problems)} operators cannot be analysed: {listed}")
    reference = _onnxruntime(data, str(path))
    layout = image_layout(reading.graph.input_shape)
    return Network(str(path), reading.graph, reference, layout, reading.output_shape, reading.dropped)


def _onnxruntime(data: bytes, name: str) -> Reference:
    """The model in onnxruntime, one image at a time where its batch size is fixed."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as states

    onnxruntime_errors = (states.InvalidArgument, states.RuntimeException, states.Fail)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session: Any = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise InputError(f"{name}: onnxruntime cannot load the network ({str(error).splitlines()[0]})") from error
    wanted = session.get_inputs()[0]
    any_batch = len(wanted.shape) > 1 and not isinstance(wanted.shape[0], int)
    dtype = np.float64 if wanted.type == "tensor(double)" else np.float32

    def scores(x: NDArray[np.float32]) -> NDArray[np.float32]:
        inputs = x.astype(dtype)
        if any_batch and x.shape[1] == 1:
            try:
                found = session.run(None, {wanted.name: inputs.reshape(len(x), *x.shape[2:])})[0]
                return np.asarray(found, dtype=np.float32).reshape(len(x), -1)
            except onnxruntime_errors:  # a batch size fixed within the network, whatever its input says
                pass
        rows = [np.asarray(session.run(None, {wanted.name: row})[0]).reshape(-1) for row in inputs]
        return np.asarray(rows, dtype=np.float32)

    return scores


def _from_module(module: torch.nn.Module, example: Tensor | None) -> Network:
    if example is None:
        raise InputError("a torch module needs an example input: load(module, example_input)")
    was_training = module.training
    module.eval()
    try:
        exported = torch.export.export(module, (example[:1],))
    except Exception as error:  # torch.export raises whatever the module's code makes it meet
        raise InputError(
            f"{type(module).__name__}: torch.export cannot read it ({str(error).splitlines()[0]})"
        ) from error
    finally:
        module.train(was_training)
    return _from_exported(exported, type(module).__name__)


def _from_exported_file(path: Path) -> Network:
    try:
        exported = torch.export.load(path)
    except Exception as error:  # torch.export raises whatever its unpickling meets
        raise InputError(f"{path}: not a torch.export file ({str(error).splitlines()[0][:200]})") from error
    return _from_exported(exported, str(path))


def _from_exported(exported: torch.export.ExportedProgram, name: str) -> Network:
    from shakeproof.network import torch_reader

    reading = torch_reader.read(exported, name)
    module = exported.module()

    def scores(x: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.inference_mode():
            rows = [module(row).reshape(-1) for row in torch.from_numpy(x).to(reading.dtype)]
        return torch.stack(rows).float().numpy()

    layout = image_layout(reading.graph.input_shape)
    return Network(name, reading.graph, scores, layout, reading.output_shape, reading.dropped)


def _compare(network: Network) -> None:
    """Refuse to go on where graph and reference runtime disagree on random inputs."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, *network.graph.input_shape)
    inputs = torch.cat(
        [torch.rand(shape, generator=generator), torch.randn(shape, generator=generator), torch.zeros(shape)]
    )
    ours = network.scores(inputs.double())
    theirs = torch.from_numpy(network.reference(inputs.numpy()).astype(np.float64))
    if theirs.shape != ours.shape:
        raise NetworkMismatchError(
            f"{network.name}: read as {ours.shape[1]} classes, the reference runtime gives {theirs.shape[1]}"
        )
    if not bool(theirs.isfinite().all()):
        raise InputError(f"{network.name}: the scores of a random picture are not finite; check the network's weights")
    if network.dropped is not None:
        ours = ours.softmax(1) if network.dropped == "Softmax" else ours.log_softmax(1)
    difference = (ours - theirs).abs().amax(0)
    spread, largest = theirs.amax(0) - theirs.amin(0), theirs.abs().amax(0)
    # float32 rounds relative to what a sum is made of: at least the other scores, and 1 where a softmax came last
    floor = max(theirs.abs().max().item(), 1.0 if network.dropped else 0.0)
    allowed = TOLERANCE_OF_SPREAD * spread + TOLERANCE_OF_SIZE * largest + TOLERANCE_OF_REST * floor
    if not bool((difference <= allowed).all()):
        raise NetworkMismatchError(
            f"{network.name}: the network as read differs from the reference runtime by {difference.max().item():.3g};"
            " this is a bug in shakeproof or in the file, please report it"
        )
