"""Families of networks, each made to fool verifiers in one way; all but the controls are one-dimensional inside.

A family takes a source of randomness and returns a `Case`. Its docstring says what it does to a verifier. The margins
are placed on both sides of zero where that can be, so that every family has safe and unsafe members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import onnx

from .networks import Builder, Line, Random, Scene, scene, scored, single


@dataclass(frozen=True)
class Case:
    """A network and what it is asked; the label is the class that wins at strength 0 where it is None, or has lost."""

    model: onnx.ModelProto
    scene: Scene
    label: int | None
    irrational: bool = False  # some kernels are known to 1e-30 only: truths closer to a tie are not asked


Family = Callable[[Random], Case]
FAMILIES: dict[str, Family] = {}


def family(make: Family) -> Family:
    FAMILIES[make.__name__.replace("_", "-")] = make
    return make


def started(random: Random, **options: bool) -> tuple[Scene, Builder, Line]:
    about = scene(random, **options)
    builder = Builder(about.shape)
    return about, builder, Line(random, about, builder, exactly=options.get("dyadic", False))


def finished(
    random: Random, about: Scene, builder: Builder, x: str, row: Sequence[float], bias: float, against: float = 0.0
) -> Case:
    output, label = scored(random, builder, x, row, bias, against)
    return Case(builder.model(output), about, label)


def near_zero(random: Random, least: float) -> float:
    """A power of two of either sign, or 0: a margin that is hard to tell."""
    return float(random.choice([-1, 1, 1, 0])) * 2.0 ** -int(random.integers(1, int(-np.log2(least)) + 1))


def distances(builder: Builder, line: Line, places: Sequence[float], gains: Sequence[float]) -> str:
    """relu(g (t - p)) and relu(g (p - t)) of each place, one after the other, exactly as written."""
    moved = builder.linear(line.name, [[1.0]] * len(places), [-p for p in places])
    rows = np.zeros((2 * len(places), len(places)))
    for i, gain in enumerate(gains):
        rows[2 * i, i], rows[2 * i + 1, i] = gain, -gain
    return builder.relu(builder.linear(moved, rows))


def pulses(builder: Builder, line: Line, places: Sequence[float], widths: Sequence[float]) -> str:
    """Hats of height 1 and half width w around each place; 0 elsewhere."""
    gains = [single(1 / w) for w in widths]
    apart = distances(builder, line, places, gains)
    pairs = -np.kron(np.eye(len(places)), np.ones(2))
    return builder.relu(builder.linear(apart, pairs, np.ones(len(places))))


# -- where nothing is sampled -----------------------------------------------------------------------------------------


def spiked(random: Random, narrow: int, wide: int) -> Case:
    about, builder, line = started(random)
    count = int(random.integers(1, 7))
    widths = 10.0 ** -random.uniform(narrow, wide, count)
    hats = pulses(builder, line, line.places(count), widths)
    depth = float(random.choice([0.5, 0.999, 1.0, 1.001, 1.5, 3.0]))
    return finished(random, about, builder, hats, [-single(depth)] * count, 1.0)


@family
def spikes(random: Random) -> Case:
    """The label loses, or nearly, on stretches of 1e-7 to 1e-3: nothing that samples strengths sees them."""
    return spiked(random, 3, 7)


@family
def needles(random: Random) -> Case:
    """The same on stretches of 1e-15 to 1e-8, down to neighbouring float64 numbers."""
    return spiked(random, 8, 15)


@family
def tents(random: Random) -> Case:
    """The tent map after itself, k times: 2^k pieces, and the margin comes down to the same hair at every other one."""
    about, builder, line = started(random)
    x = builder.clip(line.name, 0.0, 1.0)
    for _ in range(int(random.integers(2, 9))):
        bent = builder.relu(builder.linear(x, [[1.0], [1.0]], [0.0, -0.5]))
        x = builder.linear(bent, [[2.0, -4.0]], [0.0])
    return finished(random, about, builder, x, [-1.0], 1.0, near_zero(random, 2.0**-20))


@family
def stairs(random: Random) -> Case:
    """Many bends in one layer, at random places and gains, above a floor close to zero."""
    about, builder, line = started(random)
    count = int(random.integers(8, 30))
    apart = distances(builder, line, [single(random.uniform(-0.5, 1.5)) for _ in range(count)], [1.0] * count)
    steps = random.integers(-3, 4, 2 * count).astype(float)
    level = float(random.uniform(0, 1))
    return finished(random, about, builder, apart, steps.tolist(), single(level * np.abs(steps).sum() / 8))


# -- next to a tie ----------------------------------------------------------------------------------------------------


@family
def hairlines(random: Random) -> Case:
    """A valley whose bottom is 1e-9 or less above or below zero."""
    about, builder, line = started(random)
    place = line.place()
    apart = distances(builder, line, [place, line.place()], [single(random.uniform(0.5, 8)), 1.0])
    hair = float(random.choice([-1, 1])) * 2.0 ** -float(random.integers(28, 44))
    return finished(random, about, builder, apart, [1.0, 1.0, 0.0, 0.0], hair)


@family
def ties(random: Random) -> Case:
    """Label and rival meet at one strength, exactly, and part again; or they miss each other by 2^-40."""
    about, builder, line = started(random, dyadic=True)
    start, end = line.ends()
    place = single(start + (end - start) * Fraction(int(random.integers(1, 16)), 16))
    apart = distances(builder, line, [place], [float(random.integers(1, 5))])
    scores = builder.linear(apart, [[3.0, 2.0], [1.0, 1.0]], [float(random.choice([0, 0, 2.0**-40])), 0.0])
    return Case(builder.model(scores), about, 0)


@family
def plateaus(random: Random) -> Case:
    """A ReLU dies, and from there on the label ties with its rival, or leads by a hair for good."""
    about, builder, line = started(random)
    alive = builder.relu(
        builder.linear(line.name, [[-4.0], [4.0]], [single(4 * line.place()), single(-4 * line.place())])
    )
    row = [2.0, 0.0] if random.random() < 0.5 else [2.0, 1.0]
    level = float(random.choice([0.0, 0.0, 2.0**-30, -(2.0**-30), 2.0**-50]))
    scores = builder.linear(alive, [[3.0, row[1]], [1.0, 0.0]], [level, 0.0])
    return Case(builder.model(scores), about, 0)


@family
def borders(random: Random) -> Case:
    """Bends exactly at strength 0 or at the last one, where the margin is zero, a hair, or one step from either."""
    about, builder, line = started(random, dyadic=True)
    place = single(line.ends()[int(random.integers(0, 2))])
    apart = distances(builder, line, [place], [float(random.choice([1, 64, 2.0**20]))])
    hair = float(random.choice([0.0, 2.0**-30, -(2.0**-30), 2.0**-48, 1.0]))
    row = [float(random.choice([0, 1, -1])), float(random.choice([0, 1, -1]))]
    return finished(random, about, builder, apart, row, hair)


@family
def coinciding(random: Random) -> Case:
    """Many neurons bend at one strength, some of them copies of each other, and cancel but for a hair."""
    about, builder, line = started(random)
    place, count = line.place(), int(random.integers(3, 12))
    gains = [float(g) for g in random.integers(1, 9, count)]
    apart = distances(builder, line, [place] * count, gains)
    row = random.integers(-3, 4, 2 * count).astype(float)
    row[0] += 1 - (row[0::2] * gains).sum() / gains[0] if gains[0] in (1, 2, 4, 8) else 0.0
    return finished(random, about, builder, apart, row.tolist(), near_zero(random, 2.0**-34), 0.0)


# -- where float64 is not enough --------------------------------------------------------------------------------------


Disguise = Callable[[Random, Builder, str], str]


def disguised(disguise: Disguise) -> Disguise:
    """A family from a disguise: a few layers that, in real arithmetic, give back what they are given, or nearly.

    What they are given is a hat over t, from 0 to 1 and back, wide or narrow: the label leads by 1 - depth hat. Where
    the hat is 0 the layers are at rest, so that samples show nothing of what they do to rounding. Every other network
    has decoys as well: many pieces elsewhere, with a smaller margin that is easy to tell.
    """

    def make(random: Random) -> Case:
        about, builder, line = started(random)
        count = int(random.choice([0, int(random.integers(4, 24))]))
        places = [line.place(), *(single(place) for place in random.uniform(-0.5, 1.5, count))]
        widths = [10.0 ** -random.uniform(0.3, 4), *random.uniform(0.01, 0.2, count)]
        hats = pulses(builder, line, places, widths)
        close = 1 + near_zero(random, 2.0**-20)
        depth = single(random.choice([0.5, 0.99, 1.01, 2.0, close, close, 2.0]))
        x = disguise(random, builder, builder.linear(hats, [[1.0, *[0.0] * count]]) if count else hats)
        if not count:
            return finished(random, about, builder, x, [-depth], 1.0)
        decoys = builder.linear(hats, [[0.0, *[single(random.uniform(0.2, 0.9) / count)] * count]])
        return finished(random, about, builder, builder.add("Concat", x, decoys, axis=1), [-depth, -1.0], 1.0)

    make.__name__, make.__doc__ = disguise.__name__, disguise.__doc__
    family(make)
    return disguise


def amplified(builder: Builder, x: str, factor: float, times: int, limit: float = 64.0) -> str:
    for _ in range(times):
        x = builder.clip(builder.linear(x, [[factor]], [0.0]), -limit, limit)
    return x


@disguised
def amplification(random: Random, builder: Builder, x: str) -> str:
    """c + e h - c with e too small beside c, made large again by 20 to 40 layers of a factor 2 to 3."""
    factor, times = float(random.choice([2.0, 2.5, 3.0])), int(random.integers(20, 41))
    offset = float(random.choice([0.0, 1.0, 3.0, 1024.0]))
    both = builder.relu(builder.linear(x, [[single(factor**-times)], [0.0]], [offset, offset]))
    return amplified(builder, builder.linear(both, [[1.0, -1.0]]), factor, times)


@disguised
def steep_gains(random: Random, builder: Builder, x: str) -> str:
    """The same with two to six layers of a factor 32 to 1024."""
    power, times = int(random.integers(5, 11)), int(random.integers(2, 7))
    offset = float(random.choice([0.0, 1.0, 2.0, 1024.0]))
    both = builder.relu(builder.linear(x, [[2.0 ** -(power * times)], [0.0]], [offset, offset]))
    return amplified(builder, builder.linear(both, [[1.0, -1.0]]), 2.0**power, times)


@disguised
def cancellation(random: Random, builder: Builder, x: str) -> str:
    """Two neurons of 1e2 to 1e24 that differ by h, made by weights below 1,100."""
    factor = float(random.choice([128, 1000, 1024, 1089]))
    x = builder.linear(x, [[2.0], [1.0]])
    for _ in range(int(random.integers(1, 9))):
        x = builder.relu(builder.linear(x, [[1.0, factor - 1], [0.0, factor]], [0.0, 0.0]))
    return builder.linear(x, [[1.0, -1.0]])


@disguised
def residual_cancellation(random: Random, builder: Builder, x: str) -> str:
    """Branches that add and take away, h + f(h) - f(h), many times, with f much larger than h."""
    for _ in range(int(random.integers(2, 16))):
        gain = single(10.0 ** random.uniform(1, 6))
        branch = builder.relu(builder.linear(x, [[gain], [-gain]], [single(random.normal()), 0.0]))
        there = builder.add("Add", x, builder.linear(branch, [[1.0, 2.0]]))
        x = builder.add("Sub", there, builder.linear(branch, [[1.0, 2.0]]))
    return x


@disguised
def order_of_sums(random: Random, builder: Builder, x: str) -> str:
    """(2^53 + 1 - 2^53) h as one sum, in an order of its own: what float64 makes of it depends on who adds."""
    count = int(random.integers(3, 24))
    power = 2.0 ** float(random.integers(24, 58))
    small = random.choice([-1.0, 0.0, 1.0, 0.5], count)
    terms = np.concatenate([small, [1 - small.sum()], np.repeat([power, -power], (count + 1) // 2)])
    copies = builder.relu(builder.linear(x, np.ones((len(terms), 1))))
    return builder.linear(copies, [random.permutation(terms)])


@disguised
def huge_and_tiny(random: Random, builder: Builder, x: str) -> str:
    """Weights of 1e8, 1e-8 or 1e30 in one layer that the next takes back."""
    count = int(random.integers(2, 8))
    scale = np.float32(10.0 ** random.choice([8.0, -8.0, 30.0, -30.0, 20.0, -37.0, 12.0], count)).astype(float)
    shares = random.integers(-2, 4, count).astype(float)
    shares[-1] += 1 - shares.sum()
    large = builder.relu(builder.linear(x, scale[:, None]))
    return builder.linear(large, [np.float32(shares / scale).astype(float)])


@disguised
def underflow(random: Random, builder: Builder, x: str) -> str:
    """A value goes below what float64 can hold, or not quite, and comes back."""
    times = int(random.choice([2, 8, 9, 10]))
    for weight in (2.0**-120, 2.0**120):
        for _ in range(times):
            x = builder.relu(builder.linear(x, [[weight]]))
    return x


@disguised
def far_from_zero(random: Random, builder: Builder, x: str) -> str:
    """abs(h e + c) - c for a large c and a small e, made large again: float64 keeps some digits of h, or none."""
    up, down = int(random.integers(10, 40)), int(random.integers(0, 50))
    moved = builder.add("Abs", builder.linear(x, [[2.0**-down]], [2.0**up]))
    return builder.linear(builder.relu(builder.linear(moved, [[1.0]], [-(2.0**up)])), [[2.0**down]])


@disguised
def folded_constants(random: Random, builder: Builder, x: str) -> str:
    """h / 3 * 3 - h, and batch norms with factors that no float64 holds: 0, enlarged until it would show."""
    divisor = single(random.choice([3, 7, 0.3, 10]))
    pair = builder.linear(x, [[1.0], [1.0]])
    divided = builder.add("Div", pair, builder.constant([divisor]))
    if random.random() < 0.5:
        spread = np.array([1.5, 0.75])
        norm = ([1.0, 1.0], [0.0, 0.0], [0.0, 0.0], spread**2 - 2.0**-10)
        shaped = builder.reshape(divided, 1, 2, 1, 1)
        normed = builder.add("BatchNormalization", shaped, *map(builder.constant, norm), epsilon=2.0**-10)
        divided = builder.linear(builder.reshape(normed, 1, 2), np.diag(spread))
    rest = builder.add("Sub", builder.add("Mul", divided, builder.constant([divisor])), pair)
    nothing = builder.linear(rest, [[1.0, float(random.choice([0, -1, 1]))]])
    power = float(random.choice([8, 10]))
    return builder.add("Add", x, amplified(builder, nothing, 2.0**power, int(random.integers(2, 8)), 8.0))


@disguised
def merged_layers(random: Random, builder: Builder, x: str) -> str:
    """Linear layers in a row, whose product is 1 or cancels: whoever multiplies them out rounds."""
    width = int(random.integers(2, 9))
    weight = np.float32(random.normal(size=(width, 1)) * 10.0 ** random.uniform(0, 6)).astype(float)
    back = np.float32(random.normal(size=width) * 10.0 ** random.uniform(0, 3)).astype(float)
    inner = builder.linear(x, np.concatenate([weight, weight, [[1.0]]]))
    order = random.permutation(2 * width + 1)
    shuffled = builder.linear(inner, np.eye(2 * width + 1)[order])
    return builder.linear(shuffled, [np.concatenate([back, -back, [1.0]])[order]])


@disguised
def copies(random: Random, builder: Builder, x: str) -> str:
    """Neurons of a random layer, each twice, whose effects cancel exactly."""
    width, size = int(random.integers(4, 12)), int(np.prod(builder.shape))
    weight = np.float32(random.normal(size=(width, size))).astype(float)
    twice = builder.relu(builder.linear(builder.flat, np.concatenate([weight, weight])))
    effect = np.float32(random.normal(size=width) * 10.0 ** random.uniform(0, 4)).astype(float)
    return builder.add("Add", x, builder.linear(twice, [[*effect, *-effect]]))


@disguised
def pool_dips(random: Random, builder: Builder, x: str) -> str:
    """A maximum far from zero that moves by a few of its last bits; later layers enlarge that."""
    large, times = 2.0 ** float(random.integers(0, 12)), int(random.integers(2, 6))
    tiny = 2.0 ** (-10 * times)
    side = float(random.choice([-1, 1]))
    pair = builder.linear(x, [[side * tiny], [side * tiny / 2]], [large, large])
    moved = builder.linear(builder.largest(pair, 2, 2), [[1.0]], [-large])
    gained = amplified(builder, builder.clip(moved, -8.0, 8.0), 1024.0, times, 256.0)
    return builder.linear(gained, [[1.0 if side > 0 else -2.0]])


@disguised
def narrow_towers(random: Random, builder: Builder, x: str) -> str:
    """T h - (T - 1) h for a T of 1e6 to 1e21: large on the stretch of the hat, and nowhere else."""
    tower = 2.0 ** float(random.integers(20, 70))
    both = builder.relu(builder.linear(x, [[tower], [1.0]]))
    less = builder.relu(builder.linear(both, [[1.0, -1.0], [1.0, 0.0]]))
    return builder.linear(less, [[-1.0, 1.0]])


@family
def steep_pixels(random: Random) -> Case:
    """Pixels that end next to zero (0.3 - 0.3 z): the file's 0.3 and the text's 0.3 differ, and a weight shows it."""
    value = float(random.choice([0.3, 0.7, 0.1, 0.6]))
    shape = (1, 3, 3)
    images = [np.full(shape, value), np.full(shape, np.nextafter(value, 1)), np.full(shape, float(np.float32(value)))]
    about = Scene(
        images, [f"brightness:max={-value:g}", "contrast:max=-0.5", "box-blur:size=3", f"brightness:max={value:g}"], 1.0
    )
    builder = Builder(shape)
    gain = 2.0 ** float(random.integers(20, 60))
    below = builder.relu(builder.linear(builder.flat, [[-gain, *[0.0] * 8]]))
    return finished(random, about, builder, below, [-1.0], float(random.choice([1.0, 0.25, 4.0])))


# -- other operators --------------------------------------------------------------------------------------------------


@family
def pool_ties(random: Random) -> Case:
    """Max pooling over lines that are equal, meet in one point, or touch at an end."""
    about, builder, line = started(random, dyadic=bool(random.integers(0, 2)))
    start, end = line.ends()
    meet = single(start + (end - start) * Fraction(int(random.integers(0, 17)), 16))
    moved = builder.linear(line.name, [[1.0]], [-meet])
    slopes = random.integers(-3, 4, 8).astype(float)
    slopes[0], slopes[1], slopes[4] = -1.0, 1.0, slopes[5]
    pooled = builder.largest(builder.linear(moved, slopes[:, None]), 8, 4)
    return finished(random, about, builder, pooled, [1.0, float(random.choice([0, 0.5]))], near_zero(random, 1e-10))


@family
def leaky_chains(random: Random) -> Case:
    """Leaky ReLUs one after another, with slopes from -1 to 0.9, each bending what the last one bent."""
    about, builder, line = started(random)
    x = line.name
    for _ in range(int(random.integers(4, 14))):
        alpha = single(random.choice([0.01, 0.1, 0.3, 0.9, -0.5, -1.0]))
        x = builder.add("LeakyRelu", builder.linear(x, [[1.5]], [single(-random.uniform(0, 1))]), alpha=alpha)
    return finished(random, about, builder, x, [float(random.choice([-1, 1]))], single(random.uniform(-1, 2)))


@family
def clipped_edges(random: Random) -> Case:
    """Clips whose ends a value reaches exactly, starts from, or stays on, in the picture and inside."""
    about, builder, line = started(random, dyadic=True)
    start, end = sorted(map(float, line.ends()))
    low = float(random.choice([start, end, (start + end) / 2]))
    high = low + float(random.choice([2.0**-10, 0.5, 1.0, 4.0]))
    x = builder.clip(line.name, single(low), single(high))
    sign = float(random.choice([-1, 1]))
    level = float(random.choice([0.0, 2.0**-30, -(2.0**-30), 0.25]))
    return finished(
        random, about, builder, x, [sign], single(-sign * random.choice([single(low), single(high)])), -level
    )


# -- controls ---------------------------------------------------------------------------------------------------------


def normal(random: Random, *shape: int, fan: int) -> np.ndarray:
    return np.float32(random.normal(size=shape) * np.sqrt(2 / fan)).astype(float)


@family
def random_dense(random: Random) -> Case:
    """Plain random networks of one to four hidden layers, colours and any angle included."""
    about = scene(random, plain=True)
    builder = Builder(about.shape)
    x, inputs = builder.flat, int(np.prod(about.shape))
    for _ in range(int(random.integers(1, 5))):
        width = int(random.integers(8, 40))
        x = builder.relu(builder.linear(x, normal(random, width, inputs, fan=inputs), normal(random, width, fan=4)))
        inputs = width
    classes = int(random.integers(2, 8))
    weight = normal(random, classes, inputs, fan=inputs)
    return Case(builder.model(builder.linear(x, weight, normal(random, classes, fan=50))), about, None, irrational=True)


@family
def random_scaled(random: Random) -> Case:
    """Random networks whose weights are of very different sizes."""
    about = scene(random)
    builder = Builder(about.shape)
    x, inputs = builder.flat, int(np.prod(about.shape))
    for _ in range(int(random.integers(1, 4))):
        width = int(random.integers(6, 20))
        scale = 10.0 ** random.uniform(-6, 3, (width, 1))
        x = builder.relu(builder.linear(x, np.float32(normal(random, width, inputs, fan=inputs) * scale).astype(float)))
        inputs = width
    return Case(
        builder.model(builder.linear(x, normal(random, 3, inputs, fan=inputs), normal(random, 3, fan=50))), about, None
    )


@family
def random_convolutional(random: Random) -> Case:
    """Convolutions with padding and strides, batch norm, max and average pooling, a residual branch, all bends."""
    about = scene(random, plain=True, images=3)
    builder = Builder(about.shape)
    channels, side, _ = about.shape

    def convolved(x: str, inputs: int, outputs: int, size: int, stride: int = 1) -> str:
        weight = normal(random, outputs, inputs, size, size, fan=inputs * size * size)
        pad = size // 2
        return builder.add(
            "Conv", x, builder.constant(weight), builder.constant(normal(random, outputs, fan=8)),
            kernel_shape=[size, size], pads=[pad] * 4, strides=[stride, stride],
        )  # fmt: skip

    def bent(x: str) -> str:
        kind = random.integers(0, 4)
        if kind == 0:
            return builder.relu(x)
        if kind == 1:
            return builder.add("LeakyRelu", x, alpha=single(random.choice([0.01, 0.2])))
        return builder.clip(x, 0.0, 1.0) if kind == 2 else builder.add("Abs", x)

    width = int(random.integers(2, 5))
    x = convolved("x", channels, width, 3, stride := int(random.integers(1, 3)))
    side = (side + 1) // 2 if stride == 2 else side
    if random.random() < 0.6:
        spread = random.choice([0.5, 1.0, 1.5, 0.75], width)
        norm = [
            normal(random, width, fan=2),
            normal(random, width, fan=8),
            normal(random, width, fan=8),
            spread**2 - 2.0**-8,
        ]
        x = builder.add("BatchNormalization", x, *map(builder.constant, norm), epsilon=2.0**-8)
    x = bent(x)
    if random.random() < 0.6:
        x = bent(builder.add("Add", x, convolved(bent(convolved(x, width, width, 3)), width, width, 3)))
    if random.random() < 0.7 and side > 2:
        if random.random() < 0.7:
            pads = int(random.integers(0, 2))
            x = builder.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[pads] * 4)
            side = (side + 2 * pads - 3) // 2 + 1
        else:
            x = builder.add("AveragePool", x, kernel_shape=[3, 3], strides=[1, 1])
            side -= 2
    inputs = width * side * side
    output = builder.linear(builder.add("Flatten", x), normal(random, 3, inputs, fan=inputs), normal(random, 3, fan=50))
    return Case(builder.model(output), about, None, irrational=True)


@family
def random_jumping(random: Random) -> Case:
    """Sign, Floor, Ceil and Round between layers of few different weights: ties, jumps that coincide."""
    about = scene(random, images=3, perturbations=4)
    builder = Builder(about.shape)

    def numbers(*shape: int) -> np.ndarray:
        kind = random.integers(0, 4)
        if kind == 3:
            return np.float32(random.normal(size=shape)).astype(float)
        levels = ([-2.0, -1.0, 0.0, 1.0, 2.0], [-1.0, 1.0], [0.125, 0.25, -0.375, 0.5, 0.0])[kind]
        return random.choice(levels, shape)

    x, inputs = builder.flat, int(np.prod(about.shape))
    for layer in range(int(random.integers(1, 4))):
        weight = numbers(6, inputs)
        if random.random() < 0.3:
            weight[3:] = weight[:3] * random.choice([-1.0, 1.0, 2.0], (3, 1))
        before = builder.linear(x, weight, numbers(6) if random.random() < 0.6 else None)
        kind = random.choice(["Sign", "Sign", "Floor", "Ceil", "Round", "Relu", "Abs"])
        x = builder.add(str(kind), before)
        if layer and random.random() < 0.4:
            x = builder.add("Add", x, before)
        if random.random() < 0.3:
            x = builder.clip(x, -1.0, 2.0)
        inputs = 6
    classes = int(random.integers(2, 5))
    return Case(builder.model(builder.linear(x, numbers(classes, 6), numbers(classes))), about, None)
