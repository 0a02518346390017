"""Networks of the shapes that people download: in both forms that torch exports, read alike, and verified.

Swin's shifted windows under a mask, ConvNeXt V2's response normalisation, PoolFormer's pooling between group norms,
RegNet's gates and groups, attention to what came before, a U-Net's way up: built small, of the same operators.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models import network_of
from torch import nn
from torch.nn import functional

import shakeproof as sp

SIDE, WIDTH = 16, 8


class Windows(nn.Module):
    """Attention within windows of a picture that was rolled; a mask keeps apart what was not neighbouring before."""

    def __init__(self, size: int = 2, shift: int = 1) -> None:
        super().__init__()
        self.size, self.shift, self.heads = size, shift, 2
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(0.3 * torch.randn((2 * size - 1) ** 2, self.heads))
        rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        places = torch.stack([rows.flatten(), columns.flatten()])
        apart = places[:, :, None] - places[:, None] + size - 1
        self.register_buffer("apart", apart[0] * (2 * size - 1) + apart[1])

    def parts(self, x):
        n, height, width, channels = x.shape
        split = x.view(n, height // self.size, self.size, width // self.size, self.size, channels)
        return split.permute(0, 1, 3, 2, 4, 5).reshape(-1, self.size**2, channels)

    def whole(self, parts, shape):
        n, height, width, channels = shape
        split = parts.view(n, height // self.size, width // self.size, self.size, self.size, channels)
        return split.permute(0, 1, 3, 2, 4, 5).reshape(shape)

    def mask(self, shape):
        regions = torch.zeros(1, *shape[1:3], 1)
        cuts = (slice(0, -self.size), slice(-self.size, -self.shift), slice(-self.shift, None))
        for number, (rows, columns) in enumerate((r, c) for r in cuts for c in cuts):
            regions[:, rows, columns] = number
        numbers = self.parts(regions).squeeze(-1)
        return torch.where(numbers[:, None] != numbers[:, :, None], -100.0, 0.0)

    def forward(self, x):
        rolled = torch.roll(self.norm(x), (-self.shift, -self.shift), (1, 2))
        parts = self.parts(rolled)
        q, k, v = self.qkv(parts).view(len(parts), -1, 3, self.heads, WIDTH // self.heads).permute(2, 0, 3, 1, 4)
        bias = self.bias[self.apart.view(-1)].view(self.size**2, self.size**2, -1).permute(2, 0, 1)
        scores = q @ k.transpose(-2, -1) * 0.5 + bias.unsqueeze(0) + self.mask(x.shape).unsqueeze(1)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(parts.shape)
        return x + torch.roll(self.whole(self.out(mixed), x.shape), (self.shift, self.shift), (1, 2))


class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.windows = nn.Conv2d(3, WIDTH, 4, stride=4), Windows()
        self.merge, self.norm = nn.Linear(4 * WIDTH, WIDTH, bias=False), nn.LayerNorm(WIDTH)
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = self.windows(self.patches(x).permute(0, 2, 3, 1))
        x = torch.cat([x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], -1)
        x = self.norm(self.merge(x).flatten(1, 2))
        return self.last(functional.adaptive_avg_pool1d(x.transpose(1, 2), 1).flatten(1))


class ConvNeXtV2(nn.Module):
    """A depthwise convolution, layer norm, GELU, and global response normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.deep = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)
        self.norm, self.wide, self.narrow = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.gamma, self.beta = (nn.Parameter(torch.randn(1, 1, 1, 16)) for _ in range(2))
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = self.patches(x)
        y = functional.gelu(self.wide(self.norm(self.deep(x).permute(0, 2, 3, 1))))
        size = torch.linalg.vector_norm(y, ord=2, dim=(1, 2), keepdim=True)
        y = self.gamma * (y * (size / (size.mean(-1, keepdim=True) + 1e-6))) + self.beta + y
        return self.last((x + self.narrow(y).permute(0, 3, 1, 2)).mean((-2, -1)))


class PoolFormer(nn.Module):
    """Pooling less itself between group norms, scaled layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norms = nn.Conv2d(3, WIDTH, 4, 4), nn.ModuleList(nn.GroupNorm(1, WIDTH) for _ in range(3))
        self.wide, self.narrow = nn.Conv2d(WIDTH, 16, 1), nn.Conv2d(16, WIDTH, 1)
        self.scales = nn.Parameter(torch.rand(2, WIDTH))
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = self.patches(x)
        y = self.norms[0](x)
        pooled = functional.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y
        x = x + self.scales[0].unsqueeze(-1).unsqueeze(-1) * pooled
        y = self.narrow(functional.gelu(self.wide(self.norms[1](x))))
        x = x + self.scales[1].unsqueeze(-1).unsqueeze(-1) * y
        return self.last(self.norms[2](x).mean([-2, -1]))


class RegNet(nn.Module):
    """Grouped convolutions and squeeze-and-excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, WIDTH, 3, 2, 1, bias=False), nn.BatchNorm2d(WIDTH)
        self.grouped = nn.Conv2d(WIDTH, WIDTH, 3, 2, 1, groups=4)
        self.squeeze, self.excite = nn.Conv2d(WIDTH, 2, 1), nn.Conv2d(2, WIDTH, 1)
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = functional.relu(self.grouped(functional.relu(self.norm(self.first(x)), inplace=True)))
        gate = self.excite(functional.relu(self.squeeze(functional.adaptive_avg_pool2d(x, 1)))).sigmoid()
        return self.last(functional.adaptive_avg_pool2d(x * gate, (1, 1)).flatten(1))


class Masked(nn.Module):
    """A transformer's block in which tokens see those before them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, WIDTH, 8, stride=8), nn.LayerNorm(WIDTH)
        self.qkv, self.last = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(4 * WIDTH, 3)
        self.register_buffer("mask", torch.tril(torch.ones(4, 4, dtype=torch.bool)))

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        q, k, v = (part.unsqueeze(1) for part in self.qkv(self.norm(x)).chunk(3, -1))
        return self.last(
            (x + functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask).squeeze(1)).flatten(1)
        )


class UpAndDown(nn.Module):
    """A way down and up again; no curve in it, so that the sweep is exact."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 16, 3, 2, 1)
        self.up, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(64, 3)

    def forward(self, x):
        high = functional.relu(self.down(x))
        low = functional.pixel_shuffle(functional.relu(self.low(high)), 2)
        wide = functional.interpolate(torch.maximum(low, self.up(high)), scale_factor=2, mode="bilinear")
        return self.last(functional.max_pool2d(wide, 4).flatten(1))


MODULES = (Swin, ConvNeXtV2, PoolFormer, RegNet, Masked, UpAndDown)


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def loaded(module: nn.Module, form: str) -> sp.Network:
    """By the older exporter of PyTorch, or by the newer one, as `sp.load` does."""
    if form == "legacy":
        return network_of(module, 3, SIDE, SIDE)
    return sp.load(module, torch.zeros(1, 3, SIDE, SIDE))


@pytest.fixture(scope="module")
def picture():
    steps = np.random.default_rng(0).normal(size=(3, SIDE, SIDE)).cumsum(1).cumsum(2)
    return np.clip(steps / 20 + 0.5, 0, 1).astype(np.float32)


@pytest.mark.parametrize("form", ["legacy", "dynamo"])
@pytest.mark.parametrize("kind", MODULES)
def test_every_form_is_the_module(kind, form):
    module = made(kind)
    network = loaded(module, form)
    x = torch.randn(5, 1, 3, SIDE, SIDE)
    with torch.no_grad():
        truth = torch.cat([module(row) for row in x]).double()
    assert (network.beside(network.scores(x.double()), network.reference(x.numpy()), x.numpy())[0] <= 1).all()
    assert (network.scores(x.double()) - truth).abs().max() < 1e-5 * max(1.0, float(truth.abs().max()))


@pytest.mark.parametrize("kind", MODULES)
def test_they_are_analysed(kind, picture):
    """Safe on a short path, as samples on it are."""
    module = made(kind)
    network = loaded(module, "legacy")
    with torch.no_grad():
        label = int(module(torch.from_numpy(picture)[None]).argmax())
    result = sp.verify(network, picture, "brightness:max=0.05", label=label, strength=1.0)
    assert result.status == sp.Status.SAFE, result.reason
    assert result.method == ("exact" if kind is UpAndDown else "bounds")
    lifted = torch.from_numpy(picture)[None] + 0.05 * torch.linspace(0, 1, 33).view(-1, 1, 1, 1)
    with torch.no_grad():
        assert all(int(module(row[None]).argmax()) == label for row in lifted)
