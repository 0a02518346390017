"""The deployed runtime that a network is compared with: onnxruntime."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from shakeproof.errors import InputError
from shakeproof.model.onnx_model import first_line, inlined, needed, plain
from shakeproof.question import OutputPart, output_part

# Outputs of float32 inputs (n, *input_shape) as the deployed runtime computes them, each flattened, one after another:
# (n, outputs), float32.
Reference = Callable[[NDArray[np.float32]], NDArray[np.float32]]
# What networks may take in place of float32.
INPUT_TYPES: Mapping[str, type[np.generic]] = {
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
}

# Outputs of a picture alone and among others are the same up to these shares of their spread and of their size.
SAME = np.array([[1e-4], [1e-5]])


@runtime_checkable
class Runtime(Protocol):
    """A deployed runtime, with its version and settings. `in_batches`: it takes several inputs at once."""

    in_batches: bool

    def __call__(self, x: NDArray[np.float32], /) -> NDArray[np.float32]: ...

    def one_by_one(self, x: NDArray[np.float32], /) -> NDArray[np.float32]:
        """The same, but each input is run alone."""

    def on_one_thread(self) -> Runtime:
        """The same for whoever has threads of his own, and wants to know how many inputs are run at once: where that
        cannot be, it is an error.
        """

    def deployment(self, batch: int) -> Deployment:
        """What computes so many at once."""


@dataclass(frozen=True, eq=False)
class OnnxRuntime:
    """A model in onnxruntime: many images at once where it takes them, one at a time where its batch size is fixed.

    Where it matters which of both it is, `falls_back` is false, and a batch that fails is an error.
    """

    name: str
    session: Any
    in_batches: bool
    data: bytes
    falls_back: bool = True

    def on_one_thread(self) -> OnnxRuntime:
        """The same model, computed by whatever thread calls it, and by no other; all that it is given at once."""
        return self._on_one_thread

    @cached_property
    def _on_one_thread(self) -> OnnxRuntime:
        session = self.session if self._threads == 1 else _session(self.data, threads=1)
        return replace(self, session=session, falls_back=False)

    @property
    def _threads(self) -> int:
        return int(self.session.get_session_options().intra_op_num_threads)

    def deployment(self, batch: int) -> Deployment:
        """What runs so many pictures at once."""
        import onnxruntime

        version = f"onnxruntime {onnxruntime.__version__}"
        return Deployment(version, self.session.get_providers()[0], batch, self._threads, processor())

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self.in_batches or len(x) == 1:
            return self.one_by_one(x)
        scores = self.batch(x)
        if scores is None and not self.falls_back:
            raise InputError(f"{self.name}: onnxruntime cannot run {len(x)} pictures at once")
        return self.one_by_one(x) if scores is None else scores

    def one_by_one(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        rows, run, name = self._converted(x), self.session.run, self._input.name
        try:
            scores = [_joined(run(None, {name: row}), 1) for row in rows]
            return np.concatenate(scores) if scores else np.zeros((0, 0), np.float32)
        except _failures() as error:
            raise InputError(f"{self.name}: onnxruntime cannot run the network ({first_line(error)})") from error

    def batch(self, x: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """All images at once; None if a batch size is fixed within the network, whatever its input says."""
        try:
            rows = self._converted(x.reshape(len(x), *x.shape[2:]))
            return _joined(self.session.run(None, {self._input.name: rows}), len(x))
        except _failures():
            return None

    def mixes(self, x: NDArray[np.float32]) -> bool:
        """Whether what an image gets depends on the others in its batch: a network that reduces over the batch.

        Batches of two sizes, as a network may work by chance for one that its file mentions.
        """
        alone = self.one_by_one(x).astype(np.float64)
        told: NDArray[np.bool_] = np.all(np.isfinite(alone), axis=1)
        natural = alone[:-1][told[:-1]]  # the last is of pixels in 0..255
        usual = np.append(np.ptp(natural), np.abs(natural).max()) if len(natural) else np.zeros(2)
        for count in (len(x), len(x) - 1):
            together = self.batch(x[:count])
            if together is None:
                continue
            if together.shape != alone[:count].shape:
                return True
            single, mixed = alone[:count][told[:count]], together[told[:count]]
            sizes = np.maximum(usual, np.stack([np.ptp(single, axis=1), np.abs(single).max(1)], 1))
            if not (np.abs(single - mixed) <= sizes @ SAME).all():
                return True
        return False

    def _converted(self, inputs: NDArray[np.float32]) -> NDArray[Any]:
        """In the type of numbers that the model takes."""
        dtype = INPUT_TYPES.get(self._input.type, np.float32)
        values = np.rint(inputs * 255) if dtype is np.uint8 else inputs  # bytes are grey levels
        return values.astype(dtype, copy=False)

    @cached_property
    def _input(self) -> Any:
        return self.session.get_inputs()[0]

    def parts(self, x: NDArray[np.float32]) -> tuple[OutputPart, ...]:
        """The outputs, as they are for the first of some inputs."""
        values = self.session.run(None, {self._input.name: self._converted(x)[0]})
        outputs = zip(self.session.get_outputs(), values, strict=True)
        return tuple(output_part(output.name, np.shape(value)) for output, value in outputs)


def _joined(outputs: Sequence[Any], count: int) -> NDArray[np.float32]:
    """Outputs for so many inputs, each flattened, one after another: (count, outputs)."""
    return np.concatenate([np.asarray(one, dtype=np.float32).reshape(count, -1) for one in outputs], axis=1)


def _failures() -> tuple[type[Exception], ...]:
    """What onnxruntime raises while it runs: its exceptions share no base class of their own."""
    from onnxruntime.capi import onnxruntime_pybind11_state as states

    return states.InvalidArgument, states.RuntimeException, states.Fail, states.NotImplemented, ValueError


class NoKernelError(InputError):
    """A network of onnxruntime's operators, but in numbers that it does not compute some of them in."""


def onnx_runtime(data: bytes, name: str, inputs: NDArray[np.float32]) -> tuple[OnnxRuntime, bool]:
    """A serialised model in onnxruntime, and whether it mixes the images of a batch, so that each is run alone."""
    from onnxruntime.capi import onnxruntime_pybind11_state as states

    try:
        session = _session(data, torch.get_num_threads())
    except states.NotImplemented as error:
        raise NoKernelError(f"{name}: onnxruntime cannot run the network ({first_line(error)})") from error
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise InputError(f"{name}: onnxruntime cannot load the network ({first_line(error)})") from error
    shape = session.get_inputs()[0].shape
    runtime = OnnxRuntime(name, session, len(shape) > 1 and not isinstance(shape[0], int), data)
    mixes = runtime.in_batches and runtime.mixes(inputs)
    return replace(runtime, in_batches=runtime.in_batches and not mixes), mixes


def _session(data: bytes, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    # threads that spin while they wait would take the cores from torch's, run after run
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


# -- what exactly computes the scores ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deployment:
    """A runtime and its version, on what it runs, how many pictures it is given at once, on how many threads."""

    runtime: str
    provider: str
    batch: int
    threads: int
    processor: str

    def __str__(self) -> str:
        batch = "one picture at a time" if self.batch == 1 else f"{self.batch} pictures at a time"
        threads = "one thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.runtime} ({self.provider}), {batch}, on {threads} of {self.processor}"


def processor() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


# -- ONNX's reference implementation, where onnxruntime has no kernels ------------------------------------------------


def reference_runtime(data: bytes) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """ONNX's reference implementation of a float64 network, in place of a runtime that has no kernels for it."""
    scores = evaluator(onnx.load_from_string(data))
    return lambda x: scores(x.astype(np.float64)).astype(np.float32)


def evaluator(model: onnx.ModelProto) -> Callable[[NDArray[Any]], NDArray[np.float64]]:
    """ONNX's reference implementation of a model with one input; its outputs flattened, one after another.

    It gives scores (n, classes) of inputs (n, *input_shape), whatever their type.
    """
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    model = plain(inlined(model, "model"))
    nodes = needed(model.graph)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    weights = {tensor.name for tensor in model.graph.initializer}
    (name,) = (value.name for value in model.graph.input if value.name not in weights)

    class BatchNormalization(OpRun):
        """As runtimes have it; before opset 14 the reference takes it for training."""

        def _run(self, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float, **_: Any) -> Any:
            scale, bias, mean, variance = (v.reshape(-1, *(1,) * (x.ndim - 2)) for v in (scale, bias, mean, variance))
            return (scale * (x - mean) / np.sqrt(variance + epsilon) + bias,)

    class HardSwish(OpRun):
        """As it is defined; the reference takes the sixth in float32."""

        def _run(self, x: Any) -> Any:
            return (x * np.clip(x / 6 + 0.5, 0, 1).astype(x.dtype),)

    reference = ReferenceEvaluator(model, new_ops=[BatchNormalization, HardSwish])

    def scores(x: NDArray[Any]) -> NDArray[np.float64]:
        with np.errstate(all="ignore"):
            outputs: list[Any] = [reference.run(None, {name: row}) for row in x]
        return np.asarray([np.concatenate([*map(np.ravel, values)]) for values in outputs], dtype=np.float64)

    return scores
