"""Classifiers in torch, one for each way of building them that exporters meet: a name, a module, a picture's shape."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 5
Shape = tuple[int, int, int]


class Residual(nn.Module):
    """x + f(x), behind a final activation if there is one."""

    def __init__(self, *layers: nn.Module, last: nn.Module | None = None) -> None:
        super().__init__()
        self.layers, self.last = nn.Sequential(*layers), last or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.layers(x))


class SqueezeExcite(nn.Module):
    """Channels weighted by what is in all of them."""

    def __init__(self, channels: int, gate: nn.Module) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 4, 1), nn.ReLU(), nn.Conv2d(4, channels, 1), gate
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


def conv(inputs: int, outputs: int, act: nn.Module, stride: int = 1, groups: int = 1, size: int = 3) -> nn.Sequential:
    padding = size // 2
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(outputs), act
    )


def head(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def mobile(act: nn.Module, *excite: nn.Module) -> nn.Module:
    """Inverted residual blocks: wide, depthwise, narrow."""
    bottleneck = Residual(
        conv(8, 24, act, size=1), conv(24, 24, act, groups=24), *excite, nn.Conv2d(24, 8, 1), nn.BatchNorm2d(8)
    )
    return nn.Sequential(conv(3, 8, act, stride=2), bottleneck, conv(8, 16, act, stride=2), head(16))


def activated(act: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), act, nn.Conv2d(6, 8, 3, 2, 1), act, nn.Flatten(), nn.Linear(128, CLASSES)
    )


def normed(norm: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), norm(), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), norm(), nn.ReLU(), head(8)
    )


class PreActivation(nn.Module):
    """Batch normalisation that no convolution stands before, so that none can take it in."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.inner, self.last, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), head(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.inner(functional.relu(self.norm(x)))
        return self.head(functional.relu(self.last(x)))


class MaskedAttention(nn.Module):
    """Patches that look at themselves and at those before them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.mix, self.head = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 48), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        query, key, value = self.mix(tokens).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.head((tokens + seen.transpose(1, 2).flatten(2)).mean(1))


class UNet(nn.Module):
    """Down and up again, with a bridge, before it classifies."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner = conv(3, 6, nn.ReLU()), conv(6, 8, nn.ReLU())
        self.up, self.out, self.head = nn.Upsample(scale_factor=2, mode="bilinear"), conv(14, 6, nn.ReLU()), head(6)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down(x)
        inner = self.inner(functional.max_pool2d(first, 2))
        return self.head(self.out(torch.cat([first, self.up(inner)], 1)))


class TwoOutputs(nn.Module):
    """Scores, and the features they come from."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(conv(3, 6, nn.ReLU(), 2), conv(6, 8, nn.ReLU(), 2)), head(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return self.head(features), features


class HalfWeights(nn.Module):
    """float16 in the file, float32 at work."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter((torch.randn(6, 3, 3, 3) / 5).half())
        self.weight = nn.Parameter((torch.randn(CLASSES, 6 * 16) / 5).half())

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(functional.conv2d(x, self.filters.float(), stride=4, padding=1))
        return functional.linear(hidden.flatten(1), self.weight.float())


class Maxout(nn.Module):
    """The larger of two branches, and the smaller of two more."""

    def __init__(self) -> None:
        super().__init__()
        self.branches, self.head = nn.ModuleList(nn.Conv2d(3, 6, 3, 2, 1) for _ in range(4)), head(6)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = (branch(x) for branch in self.branches)
        return self.head(torch.maximum(a, b) + torch.minimum(c, d))


class Cosine(nn.Module):
    """Features of length 1 beside prototypes, by einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 16), nn.ReLU())
        self.prototypes = nn.Parameter(torch.randn(CLASSES, 16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bf,cf->bc", functional.normalize(self.body(x), dim=1), self.prototypes)


class Sign(nn.Module):
    """-1 or 1."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sign(x)


def resnet() -> nn.Module:
    block = [
        Residual(conv(8, 8, nn.ReLU()), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), last=nn.ReLU())
        for _ in range(2)
    ]
    return nn.Sequential(conv(3, 8, nn.ReLU(), 2), *block, head(8))


def lenet() -> nn.Module:
    first, second = nn.Conv2d(1, 4, 5, padding=2), nn.Conv2d(4, 8, 5)
    return nn.Sequential(
        *(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, CLASSES)),
    )


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(144, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, CLASSES)
    )


def shuffled() -> nn.Module:
    return nn.Sequential(conv(3, 12, nn.ReLU(), 2), nn.PixelShuffle(2), conv(3, 6, nn.ReLU()), head(6))


def adaptive() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(24, CLASSES)),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "mlp": (mlp, (1, 12, 12)),
    "lenet": (lenet, (1, 16, 16)),
    "resnet": (resnet, (3, 16, 16)),
    "batchnorm": (PreActivation, (3, 12, 12)),
    "mobilenet_v2": (lambda: mobile(nn.ReLU6()), (3, 16, 16)),
    "mobilenet_v3": (lambda: mobile(nn.Hardswish(), SqueezeExcite(24, nn.Hardsigmoid())), (3, 16, 16)),
    "efficientnet": (lambda: mobile(nn.SiLU(), SqueezeExcite(24, nn.Sigmoid())), (3, 16, 16)),
    "groupnorm": (lambda: normed(lambda: nn.GroupNorm(2, 8)), (3, 16, 16)),
    "instancenorm": (lambda: normed(lambda: nn.InstanceNorm2d(8, affine=True)), (3, 16, 16)),
    "masked_attention": (MaskedAttention, (3, 16, 16)),
    "elu": (lambda: activated(nn.ELU()), (3, 16, 16)),
    "selu": (lambda: activated(nn.SELU()), (3, 16, 16)),
    "celu": (lambda: activated(nn.CELU(0.5)), (3, 16, 16)),
    "mish": (lambda: activated(nn.Mish()), (3, 16, 16)),
    "unet": (UNet, (3, 12, 12)),
    "pixelshuffle": (shuffled, (3, 12, 12)),
    "adaptive_pooling": (adaptive, (3, 16, 16)),
    "dynamic_size": (lambda: nn.Sequential(conv(3, 6, nn.ReLU(), 2), conv(6, 8, nn.ReLU(), 2), head(8)), (3, 18, 14)),
    "two_outputs": (TwoOutputs, (3, 16, 16)),
    "float16_weights": (HalfWeights, (3, 16, 16)),
    "float64": (lambda: activated(nn.ReLU()).double(), (3, 16, 16)),
    "maxout": (Maxout, (3, 12, 12)),
    "cosine": (Cosine, (3, 8, 8)),
    "binarised": (lambda: activated(Sign()), (3, 16, 16)),
}


def made(name: str) -> tuple[nn.Module, Shape]:
    """A network with random weights, and statistics as if it had seen data; the same each time."""
    torch.manual_seed(sum(map(ord, name)))
    if name in MODELS:
        build, shape = MODELS[name]
        module = build()
    else:
        from .transformers_models import built

        module, shape = built(name)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, 0, 0.3)
            nn.init.uniform_(part.running_var, 0.3, 1.5)
    return balanced(module.eval(), shape), shape


@torch.no_grad()
def balanced(module: nn.Module, shape: Shape) -> nn.Module:
    """The network with scores that are zero on average, so that its classes compete."""
    last = [part for part in module.modules() if isinstance(part, nn.Linear) and part.out_features == CLASSES]
    if last:
        weight = last[-1].weight
        pictures = torch.rand(32, *shape, dtype=weight.dtype)
        found = module(pictures)
        scores = found[0] if isinstance(found, tuple) else found
        last[-1].bias -= scores.mean(0)
        spread = (scores - scores.mean(0)).abs().max()
        last[-1].weight /= spread
        last[-1].bias /= spread
    return module
