"""Makes four small networks that look at drawn roads, and pictures to try them on, for `shakeproof demo --files`.

    python tools/make_road.py [--output src/shakeproof/demo/road] [--only segmenter]

- segmenter.onnx: a U-Net, the class of each pixel (sky, grass, road), with transposed convolutions;
- detector.onnx: a head in the manner of SSD, YOLO and FCOS: by position, scores of two kinds of things, and a box;
- steering.onnx: a regressor in the manner of DAVE-2: how the road bends, in degrees;
- pedestrian.onnx: one output, the probability that somebody is on the picture.

Every run draws the same scenes and trains the same way (fixed seeds). Prints how good the networks are on scenes that
were not trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional

SIDE, OVERSAMPLING, STRIDE = 32, 4, 4
CELLS = SIDE // STRIDE
KINDS = ("pedestrian", "sign")
SKY, GRASS, ROAD = range(3)
DEGREES = 40.0

Point = tuple[float, float]
Box = tuple[float, float, float, float]


# -- scenes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """A picture (side, side, 3), the class of each pixel, how the road bends, and what stands on it: kind and box."""

    picture: NDArray[np.uint8]
    mask: NDArray[np.int64]
    degrees: float
    things: Sequence[tuple[int, Box]]


class Canvas:
    """A drawing in a scene's own coordinates, several times as fine."""

    def __init__(self, colour: Sequence[int]) -> None:
        self.image = Image.new("RGB", (SIDE * OVERSAMPLING,) * 2, tuple(colour))
        self.draw = ImageDraw.Draw(self.image)

    def polygon(self, points: Sequence[Point], colour: Sequence[int]) -> None:
        self.draw.polygon([(x * OVERSAMPLING, y * OVERSAMPLING) for x, y in points], fill=tuple(colour))

    def rectangle(self, box: Box, colour: Sequence[int]) -> None:
        self.draw.rectangle([side * OVERSAMPLING for side in box], fill=tuple(colour))

    def ellipse(self, box: Box, colour: Sequence[int]) -> None:
        self.draw.ellipse([side * OVERSAMPLING for side in box], fill=tuple(colour))

    def pixels(self) -> NDArray[np.float64]:
        fine = np.asarray(self.image, dtype=np.float64)
        return fine.reshape(SIDE, OVERSAMPLING, SIDE, OVERSAMPLING, 3).mean((1, 3))


def shade(random: np.random.Generator, colour: Sequence[int], spread: int = 25) -> list[int]:
    return [int(c) for c in np.clip(np.array(colour) + random.integers(-spread, spread + 1, 3), 0, 255)]


def scene(random: np.random.Generator) -> Scene:
    """A road that bends, below a sky; at times somebody on it, and a sign beside it."""
    horizon, bend = random.uniform(9, 13), random.uniform(-0.6, 0.6)
    near, lean, wide = random.uniform(12, 20), random.uniform(-3, 3), random.uniform(9, 13)

    def centre(y: float) -> float:
        far = 1 - (y - horizon) / (SIDE - horizon)
        return near + lean * far + 16 * bend * far**2

    def half(y: float) -> float:
        return 0.8 + wide * (y - horizon) / (SIDE - horizon)

    canvas = Canvas(shade(random, (120, 170, 220)))
    canvas.rectangle((0, horizon, SIDE, SIDE), shade(random, (70, 130, 60)))
    rows = np.linspace(horizon, SIDE, 24)
    edge = [(centre(y) - half(y), y) for y in rows] + [(centre(y) + half(y), y) for y in rows[::-1]]
    canvas.polygon(edge, shade(random, (100, 100, 104), 10))
    for y in np.arange(horizon + 2, SIDE, 4):
        canvas.polygon([(centre(v) + s * 0.06 * half(v), v) for v, s in ((y, -1), (y, 1), (y + 2, 1), (y + 2, -1))],
                       (235, 235, 225))  # fmt: skip
    things = [
        (kind, draw(canvas, random, centre, half)) for kind, draw in enumerate((person, sign)) if random.random() < 0.5
    ]
    noisy = canvas.pixels() * random.uniform(0.75, 1.1) + random.normal(0, 4, (SIDE, SIDE, 3))
    x, y = np.meshgrid(np.arange(SIDE) + 0.5, np.arange(SIDE) + 0.5)
    on_road = np.vectorize(lambda x, y: y > horizon and abs(x - centre(y)) < half(y))(x, y)
    mask = np.where(on_road, ROAD, np.where(y > horizon, GRASS, SKY))
    return Scene(np.clip(noisy, 0, 255).astype(np.uint8), mask, DEGREES * bend, things)


def person(canvas: Canvas, random: np.random.Generator, centre: Callable[[float], float], half: Any) -> Box:
    feet, tall = random.uniform(22, 30), random.uniform(10, 14)
    x, top, wide = centre(feet) + random.uniform(-0.7, 0.7) * half(feet), feet - tall, 0.18 * tall
    dark = shade(random, (45, 35, 60))
    canvas.ellipse((x - 0.6 * wide, top, x + 0.6 * wide, top + 1.3 * wide), shade(random, (215, 170, 140)))
    canvas.rectangle((x - wide, top + 1.2 * wide, x + wide, top + 0.6 * tall), shade(random, (205, 60, 150)))
    for side in (-1, 1):
        leg = x + side * 0.55 * wide
        canvas.rectangle((leg - 0.3 * wide, top + 0.6 * tall, leg + 0.3 * wide, feet), dark)
    return x - wide, top, x + wide, feet


def sign(canvas: Canvas, random: np.random.Generator, centre: Callable[[float], float], half: Any) -> Box:
    x, y, size = random.choice([random.uniform(3, 8), random.uniform(24, 29)]), random.uniform(7, 14), 2.8
    canvas.rectangle((x - 0.3, y, x + 0.3, y + 12), (120, 120, 120))
    canvas.ellipse((x - size, y - size, x + size, y + size), (240, 240, 240))
    canvas.ellipse((x - 0.8 * size, y - 0.8 * size, x + 0.8 * size, y + 0.8 * size), shade(random, (210, 30, 35), 12))
    return x - size, y - size, x + size, y + size


def tensor_of(scenes: Sequence[Scene]) -> Tensor:
    return torch.from_numpy(np.stack([one.picture for one in scenes])).permute(0, 3, 1, 2).float() / 255


# -- networks ---------------------------------------------------------------------------------------------------------


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2), nn.ReLU())


class Segmenter(nn.Module):
    """A U-Net with two steps down and two up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.deepest = convolution(3, 6), convolution(6, 10), convolution(10, 16)
        self.up, self.last_up = nn.ConvTranspose2d(16, 10, 2, 2), nn.ConvTranspose2d(10, 6, 2, 2)
        self.third, self.fourth = convolution(20, 10), convolution(12, 6)
        self.classes = nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.first(x)
        middle = self.second(functional.max_pool2d(fine, 2))
        deep = self.deepest(functional.max_pool2d(middle, 2))
        middle = self.third(torch.cat([self.up(deep), middle], 1))
        return self.classes(self.fourth(torch.cat([self.last_up(middle), fine], 1)))


class Detector(nn.Module):
    """By position on a grid: scores (positions, kinds), and a box's left, top, right and bottom in pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            convolution(3, 8, stride=2), convolution(8, 16, stride=2), convolution(16, 16), convolution(16, 16)
        )
        self.kinds, self.sides = nn.Conv2d(16, len(KINDS), 1), nn.Conv2d(16, 4, 1)
        places = (torch.arange(CELLS) + 0.5) * STRIDE
        y, x = torch.meshgrid(places, places, indexing="ij")
        self.register_buffer("centres", torch.stack([x, y, x, y], -1).view(1, -1, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x)
        sides = self.sides(features).flatten(2).transpose(1, 2)
        return self.kinds(features).flatten(2).transpose(1, 2), self.centres + STRIDE * sides


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def steering() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 12, 5, 2), nn.ReLU(), nn.Conv2d(12, 16, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 10), nn.ReLU(), nn.Linear(10, 1), Scaled(10.0),
    )  # fmt: skip


def pedestrian() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 1),
    )  # fmt: skip


# -- training ---------------------------------------------------------------------------------------------------------


def cells(scenes: Sequence[Scene]) -> tuple[Tensor, Tensor]:
    """What a detector should say: kinds (n, positions, kinds) and boxes (n, positions, 4), by the cell of a centre."""
    kinds, boxes = (torch.zeros(len(scenes), CELLS, CELLS, last) for last in (len(KINDS), 4))
    for number, one in enumerate(scenes):
        for kind, (left, top, right, bottom) in one.things:
            x, y = (int(np.clip((a + b) / 2 // STRIDE, 0, CELLS - 1)) for a, b in ((left, right), (top, bottom)))
            kinds[number, y, x, kind] = 1
            boxes[number, y, x] = torch.tensor([left, top, right, bottom])
    return kinds.flatten(1, 2), boxes.flatten(1, 2)


def detection_loss(outputs: tuple[Tensor, Tensor], kinds: Tensor, boxes: Tensor) -> Tensor:
    is_there = kinds.amax(2) > 0
    weight = torch.full((len(KINDS),), 8.0)
    scored = functional.binary_cross_entropy_with_logits(outputs[0], kinds, pos_weight=weight)
    return 20 * scored + functional.smooth_l1_loss(outputs[1][is_there], boxes[is_there])


@dataclass(frozen=True)
class Task:
    """A network, what it should say of scenes, the loss, and a sentence on how good it is; its outputs' names, and what
    comes behind it when it is saved.
    """

    network: Callable[[], nn.Module]
    targets: Callable[[Sequence[Scene]], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]
    quality: Callable[..., str]
    outputs: tuple[str, ...]
    behind: type[nn.Module] = nn.Identity


def degrees(scenes: Sequence[Scene]) -> tuple[Tensor, ...]:
    return (torch.tensor([[one.degrees] for one in scenes], dtype=torch.float32),)


def presence(scenes: Sequence[Scene]) -> tuple[Tensor, ...]:
    return (torch.tensor([[float(any(kind == 0 for kind, _ in one.things))] for one in scenes]),)


TASKS = {
    "segmenter": Task(
        Segmenter,
        lambda scenes: (torch.from_numpy(np.stack([one.mask for one in scenes])),),
        functional.cross_entropy,
        lambda out, mask: f"{(out.argmax(1) == mask).float().mean():.1%} of the pixels are right",
        ("classes",),
    ),
    "detector": Task(
        Detector,
        cells,
        detection_loss,
        lambda out, kinds, boxes: (
            f"{((out[0] > 0) == (kinds > 0)).float().mean():.1%} of the scores are right, boxes are off by"
            f" {(out[1] - boxes).abs()[kinds.amax(2) > 0].mean():.2f} pixels"
        ),
        ("scores", "boxes"),
    ),
    "steering": Task(
        steering,
        degrees,
        functional.smooth_l1_loss,
        lambda out, angle: f"off by {(out - angle).abs().mean():.2f} degrees on average",
        ("angle",),
    ),
    "pedestrian": Task(
        pedestrian,
        presence,
        functional.binary_cross_entropy_with_logits,
        lambda out, there: f"{((out > 0) == (there > 0)).float().mean():.1%} right",
        ("pedestrian",),
        nn.Sigmoid,
    ),
}


def trained(task: Task, scenes: Sequence[Scene], epochs: int) -> nn.Module:
    torch.manual_seed(0)
    network, pictures, targets = task.network(), tensor_of(scenes), task.targets(scenes)
    optimiser = torch.optim.AdamW(network.parameters(), lr=4e-3, weight_decay=1e-4)
    batches = len(pictures) // 64
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 6e-3, total_steps=epochs * batches)
    for _ in range(epochs):
        for rows in torch.randperm(len(pictures))[: batches * 64].view(batches, 64):
            loss = task.loss(network(pictures[rows]), *(target[rows] for target in targets))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return network.eval()


def save(network: nn.Module, outputs: tuple[str, ...], path: Path) -> None:
    names = ["image", *outputs]
    torch.onnx.export(
        network,
        (torch.zeros(1, 3, SIDE, SIDE),),
        path,
        input_names=names[:1],
        output_names=names[1:],
        dynamic_axes={name: {0: "batch"} for name in names},
        opset_version=17,
        dynamo=False,
    )


def shown(scenes: Sequence[Scene]) -> dict[str, Scene]:
    """Pictures for the examples: a road that bends, one with somebody on it, and one with a sign too."""
    wanted = {"road": [], "pedestrian": [0], "crossing": [0, 1]}
    return {
        name: next(one for one in scenes if [kind for kind, _ in one.things] == kinds and abs(one.degrees) > 8)
        for name, kinds in wanted.items()
    }


@click.command(help=__doc__)
@click.option("--output", type=click.Path(path_type=Path), default=Path("src/shakeproof/demo/road"))
@click.option("--only", type=click.Choice([*TASKS]), help="One of the networks.")
@click.option("--scenes", "count", default=3000, show_default=True)
@click.option("--epochs", default=25, show_default=True)
def main(output: Path, only: str | None, count: int, epochs: int) -> None:
    output.mkdir(parents=True, exist_ok=True)
    learned, unseen = ([scene(random) for _ in range(n)] for random, n in zip(
        map(np.random.default_rng, (0, 1)), (count, 500), strict=True))  # fmt: skip
    for name, one in shown(unseen).items():
        Image.fromarray(one.picture).save(output / f"{name}.png")
    for name, task in TASKS.items():
        if only in (None, name):
            network = trained(task, learned, epochs)
            save(nn.Sequential(network, task.behind()), task.outputs, output / f"{name}.onnx")
            with torch.no_grad():
                click.echo(f"{name}: {task.quality(network(tensor_of(unseen)), *task.targets(unseen))}")


if __name__ == "__main__":
    main()
