"""Networks that run on cameras, with random weights: MobileNetV2 and V3, and a ResNet50, at 32 x 32 and 224 x 224."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

# Expansion, channels, blocks, stride of the first (M. Sandler and others: MobileNetV2. CVPR 2018, table 2).
V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
# Kernel, expanded and plain channels, squeezed, hard swish, stride (A. Howard and others: MobileNetV3. ICCV 2019).
V3 = (
    (3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1), (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1), (5, 120, 48, True, True, 1), (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2), (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
)  # fmt: skip


def layer(
    before: int, after: int, kernel: int, stride: int = 1, groups: int = 1, *, act: type | None = None
) -> nn.Module:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), *([act()] if act else []))


class Added(nn.Module):
    """A branch, added to its input or to a shortcut of it, and what comes after that."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, then: nn.Module | None = None) -> None:
        super().__init__()
        self.branch, self.shortcut, self.then = branch, shortcut or nn.Identity(), then or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.then(self.shortcut(x) + self.branch(x))
        return found


class Squeezed(nn.Module):
    """Channels scaled by what the mean of the picture says (squeeze and excitation)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        small = max(8, channels // 4)
        steps = nn.Conv2d(channels, small, 1), nn.ReLU(), nn.Conv2d(small, channels, 1), nn.Hardsigmoid()
        self.scale = nn.Sequential(nn.AdaptiveAvgPool2d(1), *steps)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x * self.scale(x)
        return found


def head(channels: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def mobilenet_v2(size: int) -> nn.Module:
    small = size <= 64
    layers, channels = [layer(3, 32, 3, 1 if small else 2, act=nn.ReLU6)], 32
    for number, (expansion, after, count, stride) in enumerate(V2):
        for step in range(count):
            moves = stride if step == 0 and not (small and number < 3) else 1
            wide = channels * expansion
            widened = [layer(channels, wide, 1, act=nn.ReLU6)] if expansion > 1 else []
            branch = nn.Sequential(*widened, layer(wide, wide, 3, moves, wide, act=nn.ReLU6), layer(wide, after, 1))
            layers.append(Added(branch) if moves == 1 and channels == after else branch)
            channels = after
    return nn.Sequential(*layers, layer(channels, 1280, 1, act=nn.ReLU6), *head(1280, 10 if small else 1000))


def mobilenet_v3(size: int) -> nn.Module:
    small = size <= 64
    layers, channels = [layer(3, 16, 3, 1 if small else 2, act=nn.Hardswish)], 16
    for number, (kernel, wide, after, squeezed, swish, stride) in enumerate(V3):
        act, moves = nn.Hardswish if swish else nn.ReLU, 1 if small and number < 2 else stride
        middle = [layer(wide, wide, kernel, moves, wide, act=act), *([Squeezed(wide)] if squeezed else [])]
        branch = nn.Sequential(layer(channels, wide, 1, act=act), *middle, layer(wide, after, 1))
        layers.append(Added(branch) if moves == 1 and channels == after else branch)
        channels = after
    return nn.Sequential(*layers, layer(channels, 576, 1, act=nn.Hardswish), *head(576, 10 if small else 1000))


def resnet50(size: int) -> nn.Module:
    layers: list[nn.Module] = [layer(3, 64, 7, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for number, count in enumerate((3, 4, 6, 3)):
        for step in range(count):
            thin, stride = 64 * 2**number, 2 if step == 0 and number else 1
            steps = (
                layer(channels, thin, 1, act=nn.ReLU),
                layer(thin, thin, 3, stride, act=nn.ReLU),
                layer(thin, 4 * thin, 1),
            )
            shortcut = layer(channels, 4 * thin, 1, stride) if step == 0 else None
            layers.append(Added(nn.Sequential(*steps), shortcut, nn.ReLU()))
            channels = 4 * thin
    return nn.Sequential(*layers, *head(channels, 1000))


MAKERS: dict[str, tuple[Callable[[int], nn.Module], int]] = {
    "mobilenet_v2_32": (mobilenet_v2, 32),
    "mobilenet_v3_32": (mobilenet_v3, 32),
    "mobilenet_v2_224": (mobilenet_v2, 224),
    "mobilenet_v3_224": (mobilenet_v3, 224),
    "resnet50_224": (resnet50, 224),
}


def write(name: str, folder: Path) -> Path:
    """The network as an ONNX file; the same weights each time."""
    make, size = MAKERS[name]
    torch.manual_seed(0)
    network, path = make(size).eval(), folder / f"{name}.onnx"
    for module in network.modules():  # so that neurons are on and off, and reach 6
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias)
    torch.onnx.export(network, torch.zeros(1, 3, size, size), path, dynamo=False, opset_version=17)
    return path
