"""Write a VNN-COMP benchmark: classifiers under blur, with truths that are known exactly.

    python benchmarks/vnncomp_blur.py FOLDER [--seed 1] [--cases 3] [--spikes 2] [--data ../shared] [--only demo]

The input of each network is one strength of blur. For each case (a network, an image, a kernel) the exact method
gives the critical strength, the smallest at which the label loses. Two instances follow: strengths up to 0.9 times the
critical one (unsat) and up to 1.1 times (sat).

*Spikes* are cases in which the label loses on a short interval only, and wins again after it. They do not occur in the
networks at hand, so they are planted: next to the network, one neuron measures the strength of the blur, and a small
hat function of it adds to a rival's score. Samples of the strength miss the interval.

FOLDER then has, as VNN-COMP lays it out, `1.0` and `2.0` (instances.csv, onnx, vnnlib), and besides `truth.csv`,
`networks` (the classifiers themselves) and `certificates` (about these classifiers; `shakeproof check` reads them).
Every instance is read back: `shakeproof verify` of the written files must give the known truth, or nothing is kept.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import onnx
from onnx import helper, numpy_helper
from rich.console import Console

import shakeproof as sp
from shakeproof import demo
from shakeproof.certificate import NoCertificateError, certificate
from shakeproof.files import write_whole
from shakeproof.question import Query

KERNELS = (
    *(f"box-blur:size={size}" for size in (3, 5, 7, 9, 11)),
    *(f"motion-blur:size={size},angle={angle}" for size in (5, 7, 9, 11) for angle in (0, 45, 90, 135)),
)
# Networks and images below --data; the images of VNN-LIB files are the centres of their boxes.
SOURCES = {
    "mnist-256x2": ("benchmarks/mnist_fc/onnx/mnist-net_256x2.onnx", "benchmarks/mnist_fc/vnnlib/*_0.03.vnnlib*"),
    "mnist-256x4": ("benchmarks/mnist_fc/onnx/mnist-net_256x4.onnx", "benchmarks/mnist_fc/vnnlib/*_0.03.vnnlib*"),
    "cifar-base": ("benchmarks/oval21/onnx/cifar_base_kw.onnx", "benchmarks/oval21/vnnlib/*base*"),
    "cifar-deep": ("benchmarks/oval21/onnx/cifar_deep_kw.onnx", "benchmarks/oval21/vnnlib/*deep*"),
    "cifar-resnet": (
        "benchmarks/sri_resnet_b/onnx/resnet_3b2_bn_mixup_ssadv_4.0_bs128_lr-1_v2.onnx",
        "benchmarks/sri_resnet_b/vnnlib/*",
    ),
    "gtsrb-cnn": ("networks/gtsrb_cnn.onnx", "data/gtsrb_test_first1000.npz@0:100"),
}
BELOW, ABOVE = 0.9, 1.1
# A critical strength is used if 1.1 times it is at most 1, and if it is not so small that digits would matter.
SMALLEST, LARGEST = 0.05, 1 / ABOVE
PROFILES_AT_ONCE, MOST_PROFILES = 16, 320
HALF_WIDTHS = (-4, -2.3)  # of spikes, powers of 10
WORDS = {"unsat": sp.Status.SAFE, "sat": sp.Status.UNSAFE}


@dataclass(frozen=True)
class Source:
    """A network and the images that it is asked about, each with its label."""

    name: str
    model: Path
    images: Sequence[sp.Image]


@dataclass(frozen=True)
class Case:
    """A network, an image and a kernel, with the strengths at which the label starts and stops losing."""

    name: str
    model: Path
    query: Query
    critical: tuple[float, float]
    wins_again: float | None


@dataclass(frozen=True)
class Instance:
    """A written query, and what is known of it: a row of truth.csv."""

    onnx: str
    vnnlib: str
    truth: str
    strength: float
    critical_low: float
    critical_high: float
    wins_again: float | None
    network: str
    image: str
    label: int
    perturbation: str
    certificate: str


# -- cases ------------------------------------------------------------------------------------------------------------


def sources(data: Path, only: Sequence[str]) -> Iterator[Source]:
    """The bundled network, and those that are found below `data`."""
    if not only or "demo" in only:
        labels = {str(path): label for path, label in demo.images()}
        images = sp.read_images(sp.load(demo.MODEL), *labels)
        yield Source("demo", demo.MODEL, [sp.Image(Path(i.name).name, i.pixels, labels[i.name]) for i in images])
    for name, (model, words) in SOURCES.items():
        if (data / model).exists() and (not only or name in only):
            yield Source(name, data / model, list(sp.read_images(sp.load(data / model), str(data / words))))


def losing_cases(source: Source, random: np.random.Generator) -> Iterator[Case]:
    """Random cases in which the label wins at strength 0 and loses later."""
    number = 0
    for result in random_profiles(source, random):
        critical = result.critical_strength
        if critical is not None and critical[0] >= SMALLEST and critical[1] <= LARGEST:
            number += 1
            yield Case(f"{source.name}-{number}", source.model, result.query, critical, wins_again(result))


def spiked_cases(source: Source, random: np.random.Generator, folder: Path) -> Iterator[Case]:
    """Random cases in which the label loses on a short planted interval; their networks are in `folder`."""
    number = 0
    for result in random_profiles(source, random):
        if result.certified_strength < 0.5:
            continue
        query, name = result.query, f"{source.name}-spike-{number + 1}"
        centre = random.uniform(0.2, result.certified_strength / (ABOVE * 1.05))
        model = folder / f"{name}.onnx"
        onnx.save(planted(source.model, query, centre, half_width=10 ** random.uniform(*HALF_WIDTHS)), model)
        spiked = sp.profile(sp.load(model), query.image, str(query.perturbation), label=query.label)
        critical, end = spiked.critical_strength, wins_again(spiked)
        if critical is not None and end is not None and end < ABOVE * critical[0]:
            number += 1
            yield Case(name, model, spiked.query, critical, end)


def random_profiles(source: Source, random: np.random.Generator) -> Iterator[sp.Result]:
    """Decided profiles of images under kernels, all pairs in a random order; none of a misclassified image."""
    network = sp.load(source.model)
    pairs = [(image, kernel) for image in source.images for kernel in KERNELS]
    order = random.permutation(len(pairs))[:MOST_PROFILES]
    for numbers in np.array_split(order, -(-len(order) // PROFILES_AT_ONCE)):
        chosen = (pairs[number] for number in numbers)
        queries = [query for image, kernel in chosen for query in sp.perturbed(network, [image], kernel)]
        for result in sp.analyse(network, queries):
            if result.status in (sp.Status.SAFE, sp.Status.UNSAFE):
                yield result


def wins_again(result: sp.Result) -> float | None:
    """The strength from which on the label provably wins after it lost for the first time."""
    if result.critical_strength is None:
        return None
    lost = result.critical_strength[1]
    return next((p.start for p in result.profile if p.proved and p.winner == result.label and p.start >= lost), None)


def planted(path: Path, query: Query, centre: float, half_width: float) -> onnx.ModelProto:
    """The network with a hat function of the strength on a rival's score.

    On the path x(z) = slope z + base, the neuron u = <slope, x - base> / <slope, slope> is z. The hat is 0 outside
    centre +- half_width and rises to 1.5 times the label's lead at the centre, so the rival wins close to it.
    """
    assert query.path is not None
    label = query.label
    assert label is not None
    line = query.path.path
    slope, base = line.slopes.reshape(-1).numpy(), line.base.reshape(-1).numpy()
    direction = slope / (slope @ slope)
    network = sp.load(path)
    shape = (1, *network.graph.input_shape)
    scores = network.reference((slope * centre + base).astype(np.float32).reshape(shape)).reshape(-1)
    rival = int(np.argsort(np.delete(scores, label))[-1])
    rival += rival >= label
    peak = 1.5 * float(scores[label] - scores[rival])
    knees = np.array([centre - half_width, centre, centre + half_width])
    to_scores = np.zeros((3, len(scores)))
    to_scores[:, rival] = peak * np.array([1, -2, 1])
    constants = {
        "spike_direction": direction[:, None],
        "spike_offset": -np.array([direction @ base]),
        "spike_slopes": np.full((1, 3), 1 / half_width),
        "spike_knees": -knees / half_width,
        "spike_to_scores": to_scores,
    }
    model = onnx.load(path)
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    (image,) = (value.name for value in graph.input if value.name not in weights)
    output = graph.output[0].name
    for node in graph.node:
        node.output[:] = ["scores_without_spike" if name == output else name for name in node.output]
    graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), name) for name, a in constants.items())
    graph.node.extend(
        (
            helper.make_node("Flatten", [image], ["spike_pixels"]),
            helper.make_node("Gemm", ["spike_pixels", "spike_direction", "spike_offset"], ["spike_strength"]),
            helper.make_node("Gemm", ["spike_strength", "spike_slopes", "spike_knees"], ["spike_lines"]),
            helper.make_node("Relu", ["spike_lines"], ["spike_ramps"]),
            helper.make_node("MatMul", ["spike_ramps", "spike_to_scores"], ["spike_scores"]),
            helper.make_node("Add", ["scores_without_spike", "spike_scores"], [output]),
        )
    )
    return model


# -- files ------------------------------------------------------------------------------------------------------------


def write_case(case: Case, folder: Path, timeout: float) -> Iterator[Instance]:
    """The two instances of a case, read back from the files that other tools will read."""
    query, network = case.query, sp.load(case.model)
    shared = folder / "networks" / case.model.name
    if not shared.exists():
        shutil.copy(case.model, shared)
    for truth, strength in (("unsat", BELOW * case.critical[0]), ("sat", ABOVE * case.critical[1])):
        name = f"{case.name}-{strength:.6f}"
        with TemporaryDirectory() as temporary:
            written = sp.export(
                case.model, query.image, str(query.perturbation), strength, temporary, label=query.label
            )
            assert written.augmented is not None
            standard = version2(onnx.load(written.augmented), strength, written.label)
            for version, text in (("1.0", written.query.read_text()), ("2.0", standard)):
                files = folder / version / "onnx" / f"{case.name}.onnx", folder / version / "vnnlib" / f"{name}.vnnlib"
                write_whole({files[0]: written.augmented.read_bytes(), files[1]: text.encode()})
                answer = sp.verify_specification(sp.load(files[0]), files[1], timeout=timeout)
                if answer.status is not WORDS[truth]:
                    raise click.ClickException(f"{files[1]}: is {truth}, but reads back as {answer.status.value}")
        certified = f"certificates/{name}.cert"
        (result,) = sp.verify(network, [query.image], str(query.perturbation), strength, label=query.label)
        try:
            write_whole({folder / certified: certificate(network, result, timeout=timeout)})
        except NoCertificateError as problem:
            certified = f"none: {problem}"
        yield Instance(
            f"onnx/{case.name}.onnx", f"vnnlib/{name}.vnnlib", truth, strength, *case.critical, case.wins_again,
            f"networks/{shared.name}", query.name, written.label, str(query.perturbation), certified,
        )  # fmt: skip


def version2(model: onnx.ModelProto, strength: float, label: int) -> str:
    """The same query in VNN-LIB 2.0."""
    shapes = [
        [d.dim_value for d in value.type.tensor_type.shape.dim] for value in (*model.graph.input, *model.graph.output)
    ]
    declared = [f"{name} float32 [{','.join(map(str, shape))}]" for name, shape in zip("XY", shapes, strict=True)]
    scores = [f"Y[{','.join(map(str, index))}]" for index in np.ndindex(*shapes[1])]
    return "\n".join(
        (
            "; X is the strength of the blur, Y the class scores. unsat: the label wins at all strengths.",
            "(vnnlib-version <2.0>)",
            "",
            f"(declare-network N\n  (declare-input {declared[0]})\n  (declare-output {declared[1]})\n)",
            "",
            f"(assert (>= X[0,0] 0.0))\n(assert (<= X[0,0] {np.format_float_positional(strength)}))",
            "(assert (or",
            *(f"  (>= {score} {scores[label]})" for score in scores if score != scores[label]),
            "))\n",
        )
    )


def write_tables(folder: Path, instances: Sequence[Instance], timeout: float) -> None:
    """instances.csv of both versions, as VNN-COMP reads it, and truth.csv."""
    for version in ("1.0", "2.0"):
        with (folder / version / "instances.csv").open("w", newline="") as file:
            csv.writer(file).writerows((row.onnx, row.vnnlib, f"{timeout:g}") for row in instances)
    with (folder / "truth.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, [field.name for field in fields(Instance)])
        table.writeheader()
        table.writerows(asdict(row) for row in instances)


DATA = Path(__file__).resolve().parents[2] / "shared"


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--seed", default=1, help="Chooses images, kernels and spikes.")
@click.option("--cases", default=3, help="Cases for each network; two instances each.")
@click.option("--spikes", default=2, help="Cases with a planted spike for each network; two instances each.")
@click.option("--data", type=click.Path(path_type=Path), default=DATA, help="Where networks and images are.")
@click.option(
    "--only", multiple=True, type=click.Choice(["demo", *SOURCES]), help="Only this network; may be repeated."
)
@click.option("--timeout", default=100.0, help="Seconds for each instance, and for reading one back.")
def main(folder: Path, seed: int, cases: int, spikes: int, data: Path, only: Sequence[str], timeout: float) -> None:
    """Write the benchmark to FOLDER, which must not exist yet."""
    if folder.exists():
        raise click.ClickException(f"{folder}: is there already; choose another name")
    console = Console(highlight=False)
    instances: list[Instance] = []
    with TemporaryDirectory() as temporary:
        built = Path(temporary) / "benchmark"
        for name in ("1.0/onnx", "1.0/vnnlib", "2.0/onnx", "2.0/vnnlib", "networks", "certificates"):
            (built / name).mkdir(parents=True)
        for number, source in enumerate(sources(data, only)):
            random = np.random.default_rng([seed, number])
            chosen = [
                *islice(losing_cases(source, random), cases),
                *islice(spiked_cases(source, random, Path(temporary)), spikes),
            ]
            written = [row for case in chosen for row in write_case(case, built, timeout)]
            instances += written
            certified = sum(not row.certificate.startswith("none") for row in written)
            console.print(
                f"{source.name}: {len(chosen)} cases, {len(written)} instances read back, {certified} certificates"
            )
        write_tables(built, instances, timeout)
        shutil.move(built, folder)
    console.print(f"wrote {folder}: {len(instances)} instances")


if __name__ == "__main__":
    main()
