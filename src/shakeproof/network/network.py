"""A loaded network: its graph, the runtime it was compared with, and how its input is a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.errors import InputError
from shakeproof.network.agreement import Usual, disagreement
from shakeproof.network.graph import Graph
from shakeproof.network.layout import ImageLayout, image_layout
from shakeproof.network.runtimes import Reference
from shakeproof.operators import Scale


@dataclass(frozen=True)
class Normalisation:
    """What a network's pictures go through first, (x - mean) / std: one number for all channels, or one for each."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def check(self, channels: int) -> None:
        possible = all(map(isfinite, self.mean)) and all(isfinite(s) and s > 0 and isfinite(1 / s) for s in self.std)
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


@dataclass(frozen=True, eq=False)
class Network:
    """What `load` gives: everything an analysis needs to know of a model.

    `graph` takes pictures, before their normalisation; `runtime` takes exactly what the model does. `identity` is a
    digest of the model as it was given. `mixes_batches`: images must be run one at a time, and are.
    """

    name: str
    graph: Graph
    runtime: Reference
    layout: ImageLayout | None
    output_shape: tuple[int, ...]
    identity: str
    dropped: str | None = None
    normalisation: Normalisation | None = None
    mixes_batches: bool = False
    usual: Usual = field(default_factory=Usual)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about how the network was read."""
        softmax = f"the final {self.dropped} is left out: it does not change which class wins" if self.dropped else None
        alone = "the network mixes the images of a batch: they are run one at a time" if self.mixes_batches else None
        return tuple(filter(None, (softmax, alone, self.layout.note if self.layout else None)))

    def picture(self) -> ImageLayout:
        """How the input is a picture; an error if it is flat and nothing has said so."""
        if self.layout is None:
            raise InputError(
                f"{self.name}: the input has shape {list(self.graph.input_shape)};"
                " say how it is a picture: how many channels, how high and how wide",
                option="image_shape",
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
            layout = image_layout(self.graph.input_shape, shape)
        except InputError as error:
            raise InputError(f"{self.name}: {error}", option=error.option) from None
        if self.normalisation is not None and layout != self.layout:
            raise InputError(f"{self.name}: say how the input is a picture before it is normalised by channel")
        return replace(self, layout=layout)

    def normalised(self, mean: Sequence[float], std: Sequence[float]) -> Network:
        """The network behind a normalisation (x - mean) / std per channel: its pictures are then unnormalised."""
        if self.normalisation is not None:
            given = f"mean {list(self.normalisation.mean)} and std {list(self.normalisation.std)}"
            raise InputError(f"{self.name}: is already normalised, with {given}; normalise it once")
        layout, normalisation = self.picture(), Normalisation(tuple(mean), tuple(std))
        normalisation.check(layout.image_shape[0])
        centre, spread = normalisation.as_inputs(layout)
        graph = self.graph.after(Scale(1 / spread, -centre / spread, roundings=1))
        return replace(self, graph=graph, normalisation=normalisation)

    def scores(self, inputs: Tensor) -> Tensor:
        """Class scores in float64; inputs (n, *input_shape)."""
        with torch.inference_mode():
            return self.graph.run(inputs)

    def prepared(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Pictures (n, *input_shape) as the model itself takes them: normalised, in float32."""
        if self._normalising is None:
            return x
        mean, std = self._normalising
        return (x - mean) / std

    def reference(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores of pictures (n, *input_shape) as the deployed runtime computes them: (n, classes), float32."""
        return self.runtime(self.prepared(x))

    def disagreement(self, scores: Tensor, theirs: NDArray[np.float32]) -> NDArray[np.float64]:
        """How far the runtime's outputs are from our scores, both (n, classes): 1 is as far as float32 explains.

        For each row the largest difference, as a share of what is allowed; above 1, or NaN, they disagree.
        """
        ours = self.with_softmax(scores.detach().double().cpu()).numpy()
        # a softmax is computed from numbers around 1, however small its results
        return disagreement(ours, theirs, self.usual, least=1.0 if self.dropped else 0.0)

    def with_softmax(self, scores: Tensor) -> Tensor:
        """The model's own outputs for our scores (n, classes): through the final softmax that the graph leaves out."""
        if self.dropped is None:
            return scores
        return scores.softmax(1) if self.dropped == "Softmax" else scores.log_softmax(1)

    @cached_property
    def _normalising(self) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        if self.normalisation is None:
            return None
        mean, std = self.normalisation.as_inputs(self.picture())
        return mean.float().numpy(), std.float().numpy()
