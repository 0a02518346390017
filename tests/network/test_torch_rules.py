"""Every word of torch.export against torch itself, in float64, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from shakeproof.network.torch_reader import read

PICTURE, TOKENS = (1, 4, 7, 6), (1, 2, 5, 3)
torch.manual_seed(0)
VECTOR, CHANNELS, MASK = torch.randn(6), torch.randn(4), torch.rand(7, 6) > 0.5
NOTHING_LEFT = torch.rand(5, 5) > 0.5
NOTHING_LEFT[1] = False
TABLE = torch.tensor([[0, 3], [-1, 2]])
window = {"kernel_size": 3, "stride": 2, "padding": 1}


def masked(x, mask, value=-torch.inf):
    return (x @ x.transpose(-1, -2)).masked_fill(mask, value)


def guarded(shares):
    return torch.where(shares.isnan(), 0.0, shares)


def put(x, *updates):
    """An assignment to a part of a value."""
    y = x.clone()
    for place, values in updates:
        y[place] = values(x) if callable(values) else values
    return y


# name: (function, input shape)
WORDS = {
    "elu": (lambda x: functional.elu(x, 0.7), PICTURE),
    "elu in place": (lambda x: functional.elu(x * 2, 0.7, inplace=True), PICTURE),
    "selu": (functional.selu, PICTURE),
    "celu": (lambda x: functional.celu(x, 0.4), PICTURE),
    "mish": (functional.mish, PICTURE),
    "hard sigmoid": (functional.hardsigmoid, PICTURE),
    "hard swish": (functional.hardswish, PICTURE),
    "log": (lambda x: torch.log(x.abs() + 0.5), PICTURE),
    "log sigmoid": (functional.logsigmoid, PICTURE),
    "gelu tanh": (lambda x: functional.gelu(x, approximate="tanh"), PICTURE),
    "group norm": (lambda x: functional.group_norm(x, 2, CHANNELS, CHANNELS), PICTURE),
    "group norm bare": (lambda x: functional.group_norm(x, 4), PICTURE),
    "instance norm": (lambda x: functional.instance_norm(x, weight=CHANNELS, bias=CHANNELS), PICTURE),
    "instance norm by constants": (
        lambda x: functional.instance_norm(x, CHANNELS, CHANNELS**2, use_input_stats=False), PICTURE),
    "rms norm": (lambda x: functional.rms_norm(x, (6,), VECTOR, 0.1), PICTURE),
    "rms norm without epsilon": (lambda x: functional.rms_norm(x * 1e-4, (6,)), PICTURE),
    "rms norm in float64": (lambda x: functional.rms_norm(x.double(), (6,), eps=0.1), PICTURE),
    "counting": (lambda x: (x > 0).sum(1) / 3 + x.sum(1), PICTURE),
    "normalize": (functional.normalize, PICTURE),
    "vector norm": (lambda x: torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True), PICTURE),
    "vector norm of order 1": (lambda x: torch.linalg.vector_norm(x, 1, dim=-1), PICTURE),
    "largest size": (lambda x: torch.linalg.vector_norm(x, torch.inf, dim=-1), PICTURE),
    "maximum": (lambda x: torch.maximum(x, x.tanh()), PICTURE),
    "maximum of a constant": (lambda x: torch.maximum(VECTOR, x), PICTURE),
    "minimum": (lambda x: torch.minimum(x, x.mean(1, keepdim=True)), PICTURE),
    "minimum of a constant": (lambda x: torch.minimum(x, VECTOR), PICTURE),
    "max of two": (lambda x: torch.max(x, x.flip(1)), PICTURE),
    "max of an axis": (lambda x: x.max(1).values, PICTURE),
    "max of all": (lambda x: x.max() - x.min(), PICTURE),
    "amax": (lambda x: x.amax((2, 3)) - x.amin((2, 3)), PICTURE),
    "maxout": (lambda x: x.view(1, 2, 2, 7, 6).amax(2), PICTURE),
    "clamp": (lambda x: x.clamp(VECTOR, VECTOR + 0.3), PICTURE),
    "clamp below": (lambda x: x.clamp_min(0.1).clamp_max(0.4), PICTURE),
    "logsumexp": (lambda x: x.logsumexp((1, 2), keepdim=True), PICTURE),
    "log softmax": (lambda x: functional.log_softmax(x, 1) * 0.5, PICTURE),
    "where": (lambda x: torch.where(MASK, x, 0.5), PICTURE),
    "where of two": (lambda x: torch.where(MASK, x, x.tanh()), PICTURE),
    "masked fill": (lambda x: x.masked_fill(MASK, 0.3), PICTURE),
    "masked softmax": (lambda x: masked(x, NOTHING_LEFT.T & torch.eye(5).bool()).softmax(-1), TOKENS),
    "masked softmax, guarded": (lambda x: guarded(masked(x, ~NOTHING_LEFT).softmax(-1)), TOKENS),
    "masked softmax, in numbers": (lambda x: masked(x, torch.ones(5, 5).triu(1).bool(), -3e38).softmax(-1), TOKENS),
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x, x.tanh(), scale=0.7), TOKENS),
    "causal attention": (lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True), TOKENS),
    "attention with a mask": (
        lambda x: functional.scaled_dot_product_attention(x, x, x, attn_mask=NOTHING_LEFT), TOKENS),
    "attention with a bias": (
        lambda x: functional.scaled_dot_product_attention(x, x, x, attn_mask=NOTHING_LEFT.to(x.dtype)), TOKENS),
    "attention with a computed bias": (
        lambda x: functional.scaled_dot_product_attention(x, x, x, attn_mask=x @ x.mT), TOKENS),
    "einsum": (lambda x: torch.einsum("bchw,cd->bdhw", x, CHANNELS.outer(CHANNELS[:2]).to(x.dtype)), PICTURE),
    "einsum of two": (lambda x: torch.einsum("bhid,bhjd->bhij", x, x.tanh()), TOKENS),
    "einsum with the rest": (lambda x: torch.einsum("...ij,...kj->...ik", x, x), TOKENS),
    "nearest": (lambda x: functional.interpolate(x, scale_factor=2), PICTURE),
    "nearest to a size": (lambda x: functional.interpolate(x, (11, 4)), PICTURE),
    "nearest exactly": (lambda x: functional.interpolate(x, (5, 9), mode="nearest-exact"), PICTURE),
    "bilinear": (lambda x: functional.interpolate(x, scale_factor=(2, 1.5), mode="bilinear"), PICTURE),
    "bilinear to a size": (lambda x: functional.interpolate(x, (5, 9), mode="bilinear"), PICTURE),
    "bilinear corners": (lambda x: functional.interpolate(x, (5, 9), mode="bilinear", align_corners=True), PICTURE),
    "bicubic": (lambda x: functional.interpolate(x, (9, 5), mode="bicubic"), PICTURE),
    "linear": (lambda x: functional.interpolate(x, 9, mode="linear"), (1, 3, 7)),
    "nearest 1d": (lambda x: functional.interpolate(x, 9), (1, 3, 7)),
    "adaptive average pool": (lambda x: functional.adaptive_avg_pool2d(x, (3, 4)), PICTURE),
    "adaptive average pool to more": (lambda x: functional.adaptive_avg_pool2d(x, (9, None)), PICTURE),
    "adaptive max pool": (lambda x: functional.adaptive_max_pool2d(x, (3, 4)), PICTURE),
    "adaptive max pool to one": (lambda x: functional.adaptive_max_pool2d(x, 1), PICTURE),
    "adaptive average pool 1d": (lambda x: functional.adaptive_avg_pool1d(x, 3), (1, 3, 7)),
    "adaptive max pool 1d": (lambda x: functional.adaptive_max_pool1d(x, 3), (1, 3, 7)),
    "average pool 1d": (lambda x: functional.avg_pool1d(x, **window), (1, 3, 7)),
    "max pool 1d": (lambda x: functional.max_pool1d(x, **window), (1, 3, 7)),
    "conv 1d": (lambda x: functional.conv1d(x, VECTOR.view(1, 2, 3).repeat(2, 1, 1).to(x.dtype), padding=1, stride=2),
                (1, 2, 7)),
    "pixel shuffle": (lambda x: functional.pixel_shuffle(x, 2), (1, 8, 3, 2)),
    "pixel unshuffle": (lambda x: functional.pixel_unshuffle(x, 2), (1, 3, 4, 6)),
    "channel shuffle": (lambda x: functional.channel_shuffle(x, 2), PICTURE),
    "roll": (lambda x: x.roll((-2, 1), (2, 3)), PICTURE),
    "roll flat": (lambda x: x.roll(5), PICTURE),
    "flip": (lambda x: x.flip(1, 3), PICTURE),
    "repeat": (lambda x: x.repeat(2, 1, 1, 3, 1), PICTURE),
    "tile": (lambda x: x.tile(2, 3), PICTURE),
    "repeat interleave": (lambda x: x.repeat_interleave(3, 2), PICTURE),
    "movedim": (lambda x: x.movedim((1, 3), (0, 1)), PICTURE),
    "narrow": (lambda x: x.narrow(2, 1, 3), PICTURE),
    "index by tables": (lambda x: x[:, TABLE, torch.tensor([1, -2])], PICTURE),
    "gather": (lambda x: x.gather(2, torch.tensor([0, 3, 2]).view(1, 1, 3, 1).expand(1, 4, 3, 6)), PICTURE),
    "scatter": (lambda x: x.scatter(1, torch.tensor([[[[2, 0, 1]]]]), x.tanh()[:, :1, :1, :3]), PICTURE),
    "assignment to a part": (lambda x: put(x, ((0, 1), 0.5), ((0, slice(2, 4)), lambda x: x[0, :2].tanh())), PICTURE),
    "assignment by indices": (lambda x: put(x, ((0, torch.tensor([2, 0])), lambda x: x[0, :2].tanh())), PICTURE),
    "constants of a value's shape": (lambda x: torch.zeros_like(x) + torch.ones_like(x) * 0.5 + x, PICTURE),
    "pad reflect": (lambda x: functional.pad(x, (1, 2, 0, 3), mode="reflect"), PICTURE),
    "pad replicate": (lambda x: functional.pad(x, (1, 2, 0, 3), mode="replicate"), PICTURE),
    "pad circular": (lambda x: functional.pad(x, (1, 2, 0, 3), mode="circular"), PICTURE),
    "pad that crops": (lambda x: functional.pad(x, (1, -2)), PICTURE),
    "conversions": (lambda x: x.to(torch.float64).type_as(x), PICTURE),
}  # fmt: skip


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def reading(function, shape):
    module = Function(function)
    return read(torch.export.export(module, (torch.zeros(shape),)), "function")


@pytest.mark.parametrize("name", WORDS)
def test_words_like_torch(name):
    function, shape = WORDS[name]
    found = reading(function, shape)
    assert found.graph is not None, found.problems
    torch.manual_seed(1)
    x = torch.randn(shape)
    ours = found.graph.run(torch.stack([x, 2 * x]).double())[0]
    theirs = function(x).reshape(-1).double()
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < 1e-5 * max(1.0, float(theirs.abs().max()))


REFUSED = {
    "computed condition": (lambda x: torch.where(x > 0, x, 0.5), "a computed choice between computed values"),
    "comparison": (lambda x: torch.where(x == 1, x, 0.5), "a comparison of computed values"),
    "indices of a maximum": (lambda x: x + x.max(1, keepdim=True).indices, "an output other than the first"),
    "indices of a pool": (lambda x: functional.max_pool2d(x, 2, return_indices=True)[1], "other than the first"),
    "adding up": (lambda x: x.index_put((torch.tensor([0, 0]),), x, accumulate=True), "adding up entries"),
    "norm of another order": (lambda x: torch.linalg.vector_norm(x, 3), "a norm of order 3"),
    "smoothing": (lambda x: functional.interpolate(x, (3, 3), mode="bilinear", antialias=True), "_aa"),
    "minus infinity": (lambda x: x.masked_fill(MASK, -torch.inf) * 0.5, "other than under a softmax"),
    "minus infinity in a product": (lambda x: x.masked_fill(MASK, -torch.inf) @ x.mT, "other than under a softmax"),
    "minus infinity in a curve": (lambda x: x.masked_fill(MASK, -torch.inf).exp(), "other than under a softmax"),
    "infinity": (lambda x: (-x.masked_fill(MASK, -torch.inf)).softmax(-1), "other than under a softmax"),
    "nothing left, in numbers": (lambda x: (x + torch.full((6,), -3e38)).softmax(-1), "that leaves nothing"),
    "a mask that is scaled away": (lambda x: (x + torch.full((6,), -3e38)) * 1e-20, "other than under a softmax"),
    "nothing left": (
        lambda x: x.masked_fill(torch.ones(6).bool(), -torch.inf).softmax(-1),
        "other than under a softmax",
    ),
    "dropout": (lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1), "attention with dropout"),
    "a computed mask": (
        lambda x: functional.scaled_dot_product_attention(x, x, x, x @ x.mT > -9),
        "a computed choice of what takes",
    ),
    "elu of scaled numbers": (lambda x: torch.ops.aten.elu(x - 300, 1.0, 1.0, 0.5), "input_scale=0.5"),
    "floats written among whole numbers": (
        lambda x: torch.zeros(PICTURE, dtype=torch.int64).copy_(x.clamp(0, 0)) + x,
        "a result of type torch.int64",
    ),
    "truth values by another's type": (lambda x: x.type_as(x > 0) * x, "a result of type torch.bool"),
    "rms norm in float64": (lambda x: functional.rms_norm(x.double(), (6,)), "without an epsilon, in torch.float64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_words_that_are_refused(name):
    function, words = REFUSED[name]
    found = reading(function, PICTURE)
    assert found.graph is None
    assert words in "; ".join(map(str, found.problems))
