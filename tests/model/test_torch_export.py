"""PyTorch modules by way of ONNX: what is read is what the module computes, and what cannot be read says so."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections import defaultdict

import numpy as np
import onnx
import pytest
import torch
from models import random_module
from torch import nn
from torch.nn import functional

import shakeproof as sp
from shakeproof import checker
from shakeproof.certificate import NoCertificateError, certificate
from shakeproof.errors import InputError, NetworkMismatchError, UnsupportedNetworkError

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
    "softplus": (lambda x: functional.softplus(x * 30), PICTURE),
    "softplus with a factor": (lambda x: functional.softplus(x, beta=3.0), PICTURE),
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
    "adaptive max pool to one": (lambda x: functional.adaptive_max_pool2d(x, 1), PICTURE),
    "adaptive average pool 1d": (lambda x: functional.adaptive_avg_pool1d(x, 3), (1, 3, 7)),
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
AT_ONCE = 12  # an export takes as long for a dozen functions as for one


class Several(nn.Module):
    """What several functions make of an input, one after another."""

    def __init__(self, *functions):
        super().__init__()
        self.functions = functions

    def forward(self, x):
        return torch.cat([function(x).reshape(1, -1) for function in self.functions], 1)


def groups():
    by_shape = defaultdict(list)
    for name, (_, shape) in WORDS.items():
        by_shape[shape].append(name)
    for shape, names in by_shape.items():
        for start in range(0, len(names), AT_ONCE):
            yield pytest.param(shape, names[start : start + AT_ONCE], id=f"{shape} {names[start]}")


@pytest.mark.parametrize(("shape", "names"), [*groups()])
def test_functions_like_torch(shape, names):
    functions = [WORDS[name][0] for name in names]
    network = sp.load(Several(*functions), torch.zeros(shape))
    torch.manual_seed(1)
    x, start = torch.randn(shape), 0
    scores = network.scores(torch.stack([x, 2 * x]).double())[0]
    for name, function in zip(names, functions, strict=True):
        theirs = function(x).reshape(-1).double()
        ours = scores[start : start + len(theirs)]
        start += len(theirs)
        assert (ours - theirs).abs().max() < 1e-5 * max(1.0, float(theirs.abs().max())), name
    assert start == len(scores)


# -- what is refused --------------------------------------------------------------------------------------------------


class Within(nn.Module):
    """A function in a part of a network."""

    def __init__(self, function):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 1), Several(function))

    def forward(self, x):
        return self.inner(x)


def branching(x):
    return x * 2 if x.sum() > 0 else x


REFUSED = {
    "no operator in ONNX": (
        lambda x: functional.adaptive_max_pool2d(x, (3, 4)),
        r"aten\.adaptive_max_pool2d \(in inner\.1\)",
    ),
    "a branch": (branching, "its code branches on numbers that it computes"),
    "truth values": (lambda x: x > 0, "gives no tensor of floating-point numbers"),
    "another size": (lambda x: x @ torch.zeros(2, 2), r"does not run on the example input of shape \[1, 4, 7, 6\]"),
    "an operator": (lambda x: x.sort(-1).values, r"TopK \(inner\.1/sort:\d\): not supported"),
    "a computed choice": (lambda x: torch.where(x > 0, x, x.tanh()), "a computed choice between computed values"),
    "a sum of truth values": (lambda x: torch.where((x > 0) + (x > 1), 1.0, -1.0), "onnxruntime cannot load"),
    "an early identity": (lambda x: functional.softplus(x, threshold=3), "a computed choice between computed values"),
    "counting": (lambda x: (x > 0).sum(1) / 3 + x.sum(1), "a cast of computed values to integers"),
    "whole numbers": (lambda x: x.to(torch.int64) + x, "a cast of computed values to integers"),
    "16 bits": (lambda x: torch.softmax(x, 1, dtype=torch.bfloat16).float(), "integers or 16 bits, which rounds them"),
    "random numbers": (lambda x: x + 1e-9 * torch.rand(6), "random numbers|differs from the module|cannot be analysed"),
    "dropout": (lambda x: functional.dropout(x, 0.5, training=True), "training mode|differs from the module|Random"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_one_line(name):
    function, words = REFUSED[name]
    with pytest.raises((InputError, UnsupportedNetworkError, NetworkMismatchError), match=words) as error:
        sp.load(Within(function), torch.zeros(PICTURE))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (None, "needs an example input"),
        ([0.0], "must be a tensor"),
        (torch.zeros(0, 1, 8, 8), "must be a tensor"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), r"of type torch\.uint8; give float32 or float64"),
    ],
)
def test_examples_that_are_none(example, words):
    with pytest.raises(InputError, match=words):
        sp.load(random_module(0), example)


class TwoFaced(nn.Module):
    """A module that is another one while it is exported."""

    def __init__(self, off):
        super().__init__()
        self.last, self.off = nn.Linear(16, 3), off

    def forward(self, x):
        return self.last(x.flatten(1)) + (self.off if torch.compiler.is_exporting() else 0.0)


def test_an_export_that_differs_from_its_module_is_refused(tmp_path):
    with pytest.raises(NetworkMismatchError, match="the ONNX export differs from the PyTorch module by") as error:
        sp.load(TwoFaced(0.01), torch.zeros(1, 1, 4, 4), save=tmp_path / "m.onnx")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "m.onnx").exists()
    assert sp.load(TwoFaced(0.0), torch.zeros(1, 1, 4, 4)).graph.classes == 3


# -- the file ---------------------------------------------------------------------------------------------------------


def test_the_file_is_what_is_verified(tmp_path):
    """Its bytes are the network's identity, the same for the same module; a certificate is about them."""
    module, path = random_module(0), tmp_path / "model.onnx"
    network = sp.load(module, torch.zeros(5, 1, 8, 8), save=path)
    again = sp.load(path)
    x = torch.rand(5, 1, 1, 8, 8).double()
    assert network.identity == again.identity == hashlib.sha256(path.read_bytes()).hexdigest()
    assert torch.equal(network.scores(x), again.scores(x))
    assert (network.name, network.runtime.in_batches) == (str(path), True)
    assert sp.load(module, torch.zeros(1, 1, 8, 8)).identity == network.identity
    image = np.full((1, 8, 8), 0.5)
    result = sp.verify(network, image, "brightness:max=0.01", strength=1.0)
    assert result.status is sp.Status.SAFE
    assert checker.check(certificate(network, result), path.read_bytes()).accepted


def test_a_file_that_was_not_kept_has_no_certificates():
    network = sp.load(random_module(0), torch.zeros(1, 1, 8, 8))
    result = sp.verify(network, np.full((1, 8, 8), 0.5), "brightness:max=0.01", strength=1.0)
    with pytest.raises(NoCertificateError, match=r"save='model\.onnx'"):
        certificate(network, result)


def test_the_file_does_not_say_where_it_was_made(tmp_path):
    path = tmp_path / "model.onnx"
    sp.load(random_module(0), torch.zeros(1, 1, 8, 8), save=path)
    assert b"site-packages" not in path.read_bytes()
    assert __file__.encode() not in path.read_bytes()
    names = [node.name for node in onnx.load(path).graph.node]
    assert {"second/conv2d_1", "last/linear"} <= set(names)
    assert len(set(names)) == len(names)


def test_only_modules_are_saved(tmp_path):
    path = tmp_path / "model.onnx"
    sp.load(random_module(0), torch.zeros(1, 1, 8, 8), save=path)
    with pytest.raises(InputError, match="save is for torch modules"):
        sp.load(path, save=tmp_path / "other.onnx")


def test_every_part_of_a_module_keeps_its_mode():
    module = random_module(0)
    module.train()
    module.norm.eval()
    before = [part.training for part in module.modules()]
    network = sp.load(module, torch.zeros(1, 1, 8, 8))
    assert [part.training for part in module.modules()] == before
    x = torch.rand(3, 1, 1, 8, 8)
    with torch.no_grad():
        theirs = torch.cat([module.eval()(row) for row in x])
    assert network.reference(x.numpy()) == pytest.approx(theirs.numpy(), abs=1e-5)


@pytest.mark.parametrize("function", [torch.tanh, branching])
def test_the_exporter_is_not_heard(function, capfd, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            sp.load(Within(function), torch.zeros(PICTURE))
        except InputError:
            assert function is branching
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelno >= logging.INFO]
    assert logging.root.manager.disable == logging.NOTSET


def test_a_module_for_one_image_is_run_one_by_one():
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(16, 3)

        def forward(self, x):
            return self.last(x.reshape(16)).reshape(1, 3)

    network = sp.load(One(), torch.zeros(1, 1, 4, 4))
    x = np.random.default_rng(0).random((5, 1, 1, 4, 4), np.float32)
    assert network.beside(network.scores(torch.from_numpy(x).double()), network.reference(x), x)[0].max() <= 1


def test_modules_in_float64():
    network = sp.load(random_module(0).double(), torch.zeros(1, 1, 8, 8, dtype=torch.float64))
    single = sp.load(random_module(0), torch.zeros(1, 1, 8, 8))
    x = torch.rand(3, 1, 1, 8, 8).double()
    assert (network.scores(x) - single.scores(x)).abs().max() < 1e-5
