"""The question: x(z) on boxes of strengths, and by how much a class is proved to win on them."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from shakeproof.checker.budget import Array, require, spend
from shakeproof.checker.enclosure import U64, Tube, clipped, norm, scaled, up
from shakeproof.checker.kernels import path, understood
from shakeproof.checker.operators import Program
from shakeproof.checker.picture import PictureLayout, arranged, input_shape, require_layout
from shakeproof.checker.requirement import cases, required
from shakeproof.checker.wire import read_model

MEMORY = 2**27  # bytes that a batch of leaves may take


@lru_cache(maxsize=2)
def _program(model: bytes) -> Program:
    """Kept for the next question about the same bytes: the norms of a large network take seconds."""
    return Program(read_model(model))


class Question:
    """An image's path through a network: what can be proved of the scores on boxes of strengths."""

    @np.errstate(all="ignore")
    def __init__(self, header: Mapping[str, Any], pixels: Array, model: bytes) -> None:
        """Refused where this is not a question, Unknown where the network has an operator without a rule.

        Any of MALFORMED where the model or the header is nonsense.
        """
        require(header["arithmetic"] in ("real", "float32"), "the arithmetic is neither real nor float32")
        parts, self._clip, self.remarks = understood(header, pixels)
        self._float32, self._channels_last = header["arithmetic"] == "float32", header["channels_last"]
        self._mean, self._std = (np.array(values).reshape(-1, 1, 1) for values in (header["mean"], header["std"]))
        self._base, self._slopes, self._error = path(np.asarray(pixels, dtype=np.float64), parts)
        self._nodes = np.array(header.get("nodes", [0.0, 1.0]))
        self._starts = self._base + np.concatenate([self._slopes[:1] * 0, self._slopes[:-1].cumsum(0)])
        self._strengths = len(header["strength"])
        self._program = _program(bytes(model))
        self.input_shape = input_shape(self._program.model.input_shape, pixels.shape)
        require_layout(PictureLayout(pixels.shape, self._channels_last), self.input_shape)
        nowhere = np.zeros((1, self._strengths))
        start, last = self.scores(nowhere, nowhere), self._program.model.operations[-1].kind
        self.classes, self._cases = start.radius.shape[1], cases(header, start, last)

    @np.errstate(all="ignore")  # what is not finite is looked at in the end
    def margins(self, low: Array, high: Array, winner: int | Array, over: int | None = None) -> Array:
        """For each box (n, m) a lower bound of how far the winner's score is above all others, or `over` one of them.

        NaN proves nothing, and is what a class leads itself by. If something is required, by how much that holds; or,
        `over` anything, by how much it fails.
        """
        low, high = (np.atleast_2d(np.asarray(side, dtype=np.float64)) for side in (low, high))
        winners = np.broadcast_to(np.asarray(winner), len(low))
        require(low.shape == high.shape == (len(low), self._strengths), "a leaf is not a box of all strengths")
        require(((low >= 0) & (low <= high) & (high <= 1)).all(), "a leaf is not a box in [0, 1]")
        require(((winners >= 0) & (winners < self.classes)).all(), "a winner is not a class")
        classes, margins = np.arange(self.classes), np.full(len(low), np.nan)
        step = max(1, min(4096, MEMORY // (8 * 12 * (self._strengths + 2) * self._program.largest)))
        for batch in (slice(first, first + step) for first in range(0, len(low), step)):
            if self._cases:
                margins[batch] = required(self.scores(low[batch], high[batch]), self._cases, over is not None)
                continue
            leads = self._leads(low[batch], high[batch], winners[batch])
            rivals = (classes != winners[batch, None]) & (over is None or classes == over)
            margins[batch] = np.where(rivals.any(1), np.where(rivals, leads, np.inf).min(1), np.nan)
        return margins

    def _leads(self, low: Array, high: Array, winners: Array) -> Array:
        """At most score[winner] - score[j] on each leaf, for all j: the affine parts' difference, and both errors.

        Errors of two entries add up to at most radius + radius, and to at most sqrt(2) times the norm.
        """
        scores, rows = self.scores(low, high), np.arange(len(winners))
        apart = scores.lines[:, rows, winners][:, :, None] - scores.lines
        error = np.minimum(scores.radius[rows, winners][:, None] + scores.radius, 1.5 * scores.norm[:, None])
        error = error + np.abs(apart[1:]).sum(0)
        return np.asarray(apart[0] - up(error + 8 * U64 * np.abs(apart[0])))  # both differences are rounded

    def scores(self, low: Array, high: Array) -> Tube:
        """All class scores (leaves, classes)."""
        scores = self._program.run(self._input(low, high))
        return scores.each(lambda array: array.reshape(*array.shape[: array.ndim - len(scores.shape)], -1))

    def _input(self, low: Array, high: Array) -> Tube:
        """x(z) on boxes: z = middle + t * half, with halves that reach at least to both ends, whatever rounding did."""
        spend(0, (self._strengths + 2) * len(low) * self._base.size)
        start, slopes, rounded = self._base, self._slopes[:, None], 0.0
        if len(self._nodes) > 2:  # each leaf is on one segment, and z its share of that
            segment = np.clip(np.searchsorted(self._nodes, low[:, 0], "right") - 1, 0, len(self._slopes) - 1)
            first, last = self._nodes[segment, None], self._nodes[segment + 1, None]
            require((high <= last).all(), "a leaf reaches over the end of its segment")
            low, high, rounded = (low - first) / (last - first), (high - first) / (last - first), 8 * U64
            start, slopes = self._starts[segment], self._slopes[None, segment]
        middle = low / 2 + high / 2
        half = np.maximum(high - middle, middle - low) * (1 + 4 * U64) + rounded
        at = middle.T[..., None, None, None] * slopes
        lines = np.concatenate([[start + at.sum(0)], half.T[..., None, None, None] * slopes])
        radius = np.broadcast_to(self._error, lines[0].shape)
        x = Tube(lines, radius, norm(radius), self._float32)
        x = clipped(x, *self._clip) if self._clip else x
        x = scaled(x, np.ones(()), 1) if self._float32 else x  # pixels are stored as float32
        if self._mean.size:  # divided before it is subtracted; runtimes do it after: `unit` has room for both
            shift = self._mean / self._std
            x = scaled(x, 1 / self._std, 8, -shift, np.abs(shift))
        return x.each(lambda array: arranged(array, self._channels_last, self.input_shape))
