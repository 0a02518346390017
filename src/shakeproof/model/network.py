"""A loaded network: its graph, the runtime it was compared with, and how its input is a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.errors import InputError, by
from shakeproof.graph import Graph
from shakeproof.model.comparison import TIMES, UNIT_FLOAT32, Floats, Rows, allowed, disagreement, float32_noise
from shakeproof.model.runtimes import Reference
from shakeproof.operators import Scale
from shakeproof.question import ClassNames, ImageLayout, OutputPart, Preprocessing, image_layout, listed

# What to do with outputs that are not class scores.
# Requirements that suit outputs that are no class scores.
OF_A_SEGMENTER = "of a segmenter, require that pixels keep their class, e.g. pixels:share=0.95"
OF_A_DETECTOR = (
    'of a detector, read scores and boxes as they are before non-maximum suppression (output name "*"), and require'
    " e.g. detection:box=0,score=0.5,drift=4"
)
OF_ANOTHER = "require something of its outputs, e.g. output:index=0,within=-0.1..0.1"
# What a softmax gives is told from 0 down to here.
LEAST = 2.0**-120


@dataclass(frozen=True)
class Normalisation:
    """What a network's pictures go through first, (x - mean) / std: one number for all channels, or one for each."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def check(self, channels: int) -> None:
        possible = all(map(math.isfinite, self.mean)) and all(
            math.isfinite(s) and s > 0 and math.isfinite(1 / s) for s in self.std
        )
        if len(self.mean) not in (1, channels) or len(self.std) not in (1, channels) or not possible:
            mean, std = list(self.mean), list(self.std)
            raise InputError(f"mean and std need 1 or {channels} finite numbers (std positive), not {mean} and {std}")

    def as_inputs(self, layout: ImageLayout) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every entry of an input, in float64."""
        mean, std = (
            layout.to_input(torch.tensor(v, dtype=torch.float64).reshape(-1, 1, 1).expand(layout.image_shape))
            for v in (self.mean, self.std)
        )
        return mean, std


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Deployed:
    """A model as it is deployed: the runtime that computes it, and how its input is a picture.

    `runtime` takes exactly what the model does: pictures (n, *input_shape) after their normalisation. `data` is the
    ONNX model that it was given: with all its weights, and the outputs that are meant. These are read as one vector,
    each flattened, one after another: `parts` are their names and shapes. `identity` is a digest of the model as it was
    given, and of which outputs are meant if not the first; `output_name` is what was asked for.
    `mixes_batches`: images must be run one at a time, and are. `remarks` are what its reader wants said.
    `preprocessing` is what is done to files of pictures that it is asked about, `class_names` what classes are called.
    """

    name: str
    runtime: Reference
    data: bytes
    input_shape: tuple[int, ...]
    parts: tuple[OutputPart, ...]
    layout: ImageLayout | None
    identity: str
    normalisation: Normalisation | None = None
    mixes_batches: bool = False
    remarks: tuple[str, ...] = ()
    output_name: str | None = None
    preprocessing: Preprocessing | None = None
    class_names: ClassNames = field(default_factory=ClassNames)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {', '.join(map(' '.join, self.facts.items()))}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        facts = {"model": self.name, **self.facts, "note": "; ".join(self.notes)}
        rows = (
            f"<tr><th style='text-align:left'>{name}</th><td style='text-align:left'>{escape(value)}</td></tr>"
            for name, value in facts.items()
            if value
        )
        return f"<table>{''.join(rows)}</table>"

    @property
    def facts(self) -> dict[str, str]:
        """What there is to say of it in a line or a small table."""
        taken = self.input_shape if self.layout is None else self.layout.image_shape
        facts = {"input": by(taken), "outputs": ", ".join(f"{by(part.shape)} ({part.name})" for part in self.parts)}
        if self.classifies or self.classes == 1:
            facts["outputs"] = str(self.classes)
        if self.normalisation is not None:
            facts["normalised by"] = f"mean {list(self.normalisation.mean)} and std {list(self.normalisation.std)}"
        return facts

    @property
    def classes(self) -> int:
        """How many outputs there are in all."""
        return sum(part.size for part in self.parts)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about how the network was read."""
        alone = "the network mixes the images of a batch: they are run one at a time" if self.mixes_batches else None
        prepared = self.preprocessing.note if self.preprocessing else None
        return tuple(filter(None, (*self.remarks, alone, self.layout.note if self.layout else None, prepared)))

    def picture(self) -> ImageLayout:
        """How the input is a picture; an error if it is flat and nothing has said so."""
        if self.layout is None:
            raise InputError(
                f"{self.name}: the input has shape {list(self.input_shape)};"
                " give its shape as a picture: channels, height, width",
                option="image_shape",
            )
        return self.layout

    @property
    def classifies(self) -> bool:
        """Whether the outputs are one score for each of several classes."""
        return len(self.parts) == 1 and max(self.parts[0].shape, default=1) == self.classes > 1

    def check_classifies(self) -> None:
        if len(self.parts) > 1:
            raise InputError(
                f"{self.name}: has {len(self.parts)} outputs, {listed(self.parts)}; {self.how_to_ask}; of a classifier,"
                " name the output with the class scores",
                option="output_name",
            )
        if not self.classifies:
            raise InputError(f"{self.name}: {self.no_classifier}", option="require")

    @property
    def no_classifier(self) -> str:
        """Why the network does not classify, and what can be asked of it."""
        shapes = listed(self.parts)
        return f"not a classifier, which has one score per class; its output is {shapes}; {self.how_to_ask}"

    @property
    def how_to_ask(self) -> str:
        """A requirement that suits outputs of these shapes."""
        shapes = [part.shape for part in self.parts]
        if len(shapes) == 1 and len(shapes[0]) == 3:
            return OF_A_SEGMENTER
        return OF_A_DETECTOR if all(len(shape) == 2 for shape in shapes) else OF_ANOTHER

    def with_image_shape(self, shape: tuple[int, int, int]) -> Self:
        """The same network, its input read as a picture of (channels, height, width)."""
        try:
            layout = image_layout(self.input_shape, shape)
        except InputError as error:
            raise InputError(f"{self.name}: {error}", option=error.option) from None
        if self.normalisation is not None and layout != self.layout:
            raise InputError(f"{self.name}: give the shape of the picture before normalising it by channel")
        return replace(self, layout=layout)

    def named(self, names: ClassNames) -> Self:
        """The network with names for its classes."""
        if names and len(names) != self.classes:
            raise InputError(f"{self.name}: has {self.classes} classes, and {len(names)} names were given for them")
        return replace(self, class_names=names)

    def preprocessed(self, preprocessing: Preprocessing) -> Self:
        """The network with its preprocessing: steps before the perturbation, and a normalisation after it."""
        normalises, mean, std = preprocessing.normalises, preprocessing.mean, preprocessing.std
        network = self.normalised(mean or (0.0,), std or (1.0,)) if normalises else self
        return replace(network, preprocessing=preprocessing)

    def normalised(self, mean: Sequence[float], std: Sequence[float]) -> Self:
        """The network behind a normalisation (x - mean) / std per channel: its pictures are then unnormalised."""
        if self.normalisation is not None:
            values = f"mean {list(self.normalisation.mean)} and std {list(self.normalisation.std)}"
            raise InputError(f"{self.name}: is already normalised, with {values}; normalise it once")
        normalisation = Normalisation(tuple(mean), tuple(std))
        normalisation.check(self.picture().image_shape[0])
        return replace(self, normalisation=normalisation)

    def prepared(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Pictures (n, *input_shape) as the model itself takes them: normalised, in float32."""
        if self._normalising is None:
            return x
        mean, std = self._normalising
        pixels = x - mean
        pixels /= std
        return pixels

    def reference(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores of pictures (n, *input_shape) as the deployed runtime computes them: (n, classes), float32."""
        return self.runtime(self.prepared(x))

    def predicted(self, inputs: Tensor) -> list[int]:
        """The class of each picture (n, *input_shape)."""
        return [int(winner) for winner in self.reference(inputs.float().numpy()).argmax(1)]

    @cached_property
    def _normalising(self) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        if self.normalisation is None:
            return None
        mean, std = self.normalisation.as_inputs(self.picture())
        return mean.float().numpy(), std.float().numpy()


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Network(Deployed):
    """What `load` gives: a model whose graph was read, and compared with its runtime. `graph` takes pictures, before
    their normalisation. `operators` counts the model's own. `ranks_only`: the model's own output has other values than
    the scores, in the same order.
    """

    graph: Graph
    operators: Mapping[str, int] = field(default_factory=dict)
    dropped: str | None = None
    ranks_only: bool = False

    @property
    def facts(self) -> dict[str, str]:
        smooth = ", ".join(self.graph.smooth_operators)
        kind = f"smooth by {smooth}: bounds" if smooth else "piecewise linear: exact"
        return super().facts | {"operators": f"{len(self.graph.nodes)} ({kind})"}

    @property
    def notes(self) -> tuple[str, ...]:
        softmax = f"the final {self.dropped} is left out: it does not change which class wins" if self.dropped else None
        return tuple(filter(None, (softmax, *super().notes)))

    def normalised(self, mean: Sequence[float], std: Sequence[float]) -> Self:
        """The network behind a normalisation (x - mean) / std per channel: its pictures are then unnormalised."""
        network = super().normalised(mean, std)
        assert network.normalisation is not None
        centre, spread = network.normalisation.as_inputs(self.picture())
        return replace(network, graph=self.graph.after(Scale(1 / spread, -centre / spread, roundings=1)))

    def scores(self, inputs: Tensor) -> Tensor:
        """Class scores in float64; inputs (n, *input_shape)."""
        with torch.inference_mode():
            return self.graph.run(inputs)

    def predicted(self, inputs: Tensor) -> list[int]:
        return [int(winner) for winner in self.scores(inputs).argmax(1)]

    def beside(
        self,
        scores: Tensor,
        theirs: NDArray[np.float32],
        inputs: NDArray[np.float32],
        tells: Callable[[Floats], Rows] = lambda within: np.ones(len(within), bool),
    ) -> tuple[Floats, Floats]:
        """The runtime's outputs and our scores, both (n, classes), for pictures (n, *input_shape).

        For each picture, the largest difference as a share of what is allowed (above 1, or NaN, they disagree); and
        what is allowed for each score. A final softmax is compared by its logarithm, which has all of what went in.
        """
        ours, reference = self._logarithms(scores.detach().double().cpu()).numpy(), theirs.astype(np.float64)
        if self.dropped == "Softmax":
            with np.errstate(invalid="ignore"):
                reference = np.log(np.maximum(reference, LEAST))  # NaN stays what it is

        def sampled(rows: Rows) -> Floats:
            with torch.inference_mode():
                noise = float32_noise(self.graph, torch.from_numpy(inputs[rows]).double(), self._logarithms)
            return noise if self.dropped is None else noise + TIMES * UNIT_FLOAT32 * (1 + np.abs(ours[rows]))

        within = allowed(ours, reference, sampled, tells)
        return disagreement(ours, reference, within), within

    def _logarithms(self, scores: Tensor) -> Tensor:
        """The values to compare: scores (n, classes), or logarithms of the final softmax that the graph omits."""
        if self.dropped is None:
            return scores
        logarithms = scores.log_softmax(1)
        return logarithms.clamp_min(math.log(LEAST)) if self.dropped == "Softmax" else logarithms

    def in_outputs(self, within: Floats, scores: Tensor) -> Floats:
        """What the model's own outputs may differ by where scores (n, classes) may by `within`."""
        return within * scores.softmax(1).numpy() if self.dropped == "Softmax" else within

    def with_softmax(self, scores: Tensor) -> Tensor:
        """The model's own outputs for our scores (n, classes): through the final softmax that the graph leaves out."""
        if self.dropped is None:
            return scores
        return scores.softmax(1) if self.dropped == "Softmax" else scores.log_softmax(1)
