"""The evaluation of Brückner & Lomuscio (AAAI 2025) from VNN-COMP benchmark folders, beside the paper's figures.

    make paper                                     # mnist_fc and oval21: 240 cells
    python benchmarks/paper_tables.py mnist_fc oval21 --data DIR [--sizes 3,5,7,9]

DIR holds a folder for each benchmark: instances.csv, onnx/, vnnlib/. One exact profile of [0, 1] per instance and
kernel answers all strengths at once; the seconds are what the cell's profiles took together. With `--method bounds`
the same table comes from bounds and input splitting alone, which leave a critical strength within 1e-4.
The paper's counts are in paper_tables.csv beside this file.

    python benchmarks/paper_tables.py mnist_fc oval21 --ablation

asks about any kernel instead (the paper's ablation study): each pixel anywhere between the least and the greatest of
its neighbourhood. A counterexample for one size is one for every larger size; it is checked, not searched again.

    python benchmarks/paper_tables.py resnet18 --images 50

runs the paper's experiment on a ResNet18 of ours, networks/cifar10_resnet18.onnx beside DIR, on the first correctly
classified images of data/cifar10_test_first2000.npz. (It is another network than the paper's: its counts differ.)
"""

from __future__ import annotations

import csv
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import shakeproof as sp
from shakeproof.budget import keep_freed_memory
from shakeproof.question import RawImage, as_picture, read_image
from shakeproof.settings import Method

PERTURBATIONS = {
    "box-blur": "box-blur:size={}",
    "sharpen": "sharpen:size={}",
    "motion-blur-0": "motion-blur:size={},angle=0",
    "motion-blur-45": "motion-blur:size={},angle=45",
    "motion-blur-90": "motion-blur:size={},angle=90",
    "motion-blur-135": "motion-blur:size={},angle=135",
}
STRENGTHS = (0.2, 0.4, 0.6, 0.8, 1.0)
# mnist_fc lists each image twice, in two box sizes; the paper used each once.
ONLY_FILES = {"mnist_fc": "_0.03.vnnlib"}


STATUSES = {"safe": "verified", "unsafe": "unsafe", "misclassified": "unsafe"}


@dataclass(frozen=True)
class Cell:
    """One entry of the paper's table: how many instances are verified, unsafe, undecided, and the seconds taken."""

    verified: int
    unsafe: int
    undecided: int
    seconds: float

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.verified, self.unsafe, self.undecided

    def __str__(self) -> str:
        return "/".join(map(str, self.counts))


CellKey = tuple[str, int, float]


def instances(folder: Path, name: str) -> Mapping[Path, list[Path]]:
    """The benchmark's images for each of its networks."""
    found: dict[Path, list[Path]] = defaultdict(list)
    with (folder / "instances.csv").open(newline="") as file:
        for row in csv.reader(file):
            if len(row) >= 2 and row[1].endswith(ONLY_FILES.get(name, "")):
                found[existing(folder / row[0])].append(existing(folder / row[1]))
    return found


def resnet18(folder: Path, count: int) -> Mapping[Path, list[str]]:
    """The network, and the first `count` test images that it classifies correctly."""
    model, archive = folder / "networks" / "cifar10_resnet18.onnx", folder / "data" / "cifar10_test_first2000.npz"
    network = sp.load(model)
    with np.load(archive) as data:
        pixels, labels = data["x"], data["y"]
    chosen: list[str] = []
    for index, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        image = as_picture(picture, network.picture().image_shape)
        if len(chosen) < count and int(network.scores(network.picture().to_input(image)[None]).argmax()) == label:
            chosen.append(f"{archive}@{index}")
        if len(chosen) == count:
            break
    return {model: chosen}


def existing(path: Path) -> Path:
    """The file itself, or its compressed form."""
    return path if path.exists() else path.with_name(path.name + ".gz")


@cache
def image_at(file: Path | str) -> RawImage:
    """An instance's image; the networks of a benchmark share many."""
    return read_image(str(file))


def evaluate(
    networks: Mapping[Path, Sequence[Path | str]],
    sizes: Sequence[int],
    settings: sp.Settings,
    progress: Callable[[float], None],
) -> tuple[Mapping[CellKey, Cell], list[float]]:
    """All cells of a benchmark's table, and the seconds of each profile."""
    outcomes: dict[CellKey, list[str]] = defaultdict(list)
    seconds: dict[CellKey, float] = defaultdict(float)
    kernels = {(name, size): sp.parse(text.format(size)) for size in sizes for name, text in PERTURBATIONS.items()}
    times: list[float] = []
    for model, files in networks.items():
        network = sp.load(model)
        pictures = [image_at(file).fitted(network.picture()) for file in files]
        queries = [query for kernel in kernels.values() for query in sp.perturbed(network, pictures, kernel)]
        results = sp.analyse(network, queries, settings, progress)
        times += [result.seconds for result in results]
        for (key, _), result in zip(((key, image) for key in kernels for image in pictures), results, strict=True):
            for strength in STRENGTHS:
                outcomes[(*key, strength)].append(outcome(result, strength))
                seconds[(*key, strength)] += result.seconds
    cells = {
        key: Cell(*(found.count(kind) for kind in ("verified", "unsafe", "undecided")), seconds[key])
        for key, found in outcomes.items()
    }
    return cells, times


def outcome(result: sp.Result, strength: float) -> str:
    """What one profile over [0, 1] says about [0, strength]."""
    if result.status is sp.Status.MISCLASSIFIED:
        return "unsafe"
    if result.status is sp.Status.SAFE:
        return "verified"
    if result.critical_strength is not None and result.critical_strength[0] > strength:
        return "verified"
    lost = result.critical_strength is not None and result.critical_strength[1] <= strength
    return "unsafe" if lost and result.status is sp.Status.UNSAFE else "undecided"


def ablation(
    networks: Mapping[Path, Sequence[Path | str]],
    sizes: Sequence[int],
    settings: sp.Settings,
    progress: Callable[[float], None],
) -> Mapping[int, Cell]:
    """For each size, how many instances are safe from any kernel of it."""
    outcomes: dict[int, list[str]] = defaultdict(list)
    seconds: dict[int, float] = defaultdict(float)
    count, done = sum(len(files) for files in networks.values()), 0
    for model, files in networks.items():
        network = sp.load(model)
        for file in files:
            image = image_at(file).fitted(network.picture())
            known: sp.Counterexample | None = None
            for size in sorted(sizes):
                started = time.perf_counter()
                (query,) = sp.perturbed(network, [image], sp.any_kernel(size))
                if known is None or not replays(network, query, known):
                    (result,) = sp.analyse(network, [query], settings)
                    known = result.counterexample if result.status is sp.Status.UNSAFE else None
                    outcomes[size].append(STATUSES.get(result.status.value, "undecided"))
                else:
                    outcomes[size].append("unsafe")
                seconds[size] += time.perf_counter() - started
            done += 1
            progress(done / count)
    return {
        size: Cell(*(found.count(kind) for kind in ("verified", "unsafe", "undecided")), seconds[size])
        for size, found in outcomes.items()
    }


def replays(network: sp.Network, query: sp.Query, known: sp.Counterexample) -> bool:
    """Whether an input is a counterexample to a query in the reference runtime."""
    (obligation,) = query.obligations
    box, given = obligation.inputs, known.input.astype(np.float64)
    inside = bool((box.low.numpy() <= given).all() and (given <= box.high.numpy()).all())
    return inside and bool(obligation.property.fails(network.reference(known.input[None]))[0])


def print_ablation(console: Console, tables: Mapping[str, Mapping[int, Cell]]) -> None:
    """The paper's ablation table: sizes down, benchmarks across."""
    table = Table(title="any kernel: verified/unsafe/undecided, seconds")
    for heading in ("s", *tables):
        table.add_column(heading, justify="right")
    for size in sorted({size for cells in tables.values() for size in cells}):
        table.add_row(str(size), *(f"{cells[size]} {cells[size].seconds:.1f}" for cells in tables.values()))
    console.print(table)
    cells = [cell for column in tables.values() for cell in column.values()]
    verified, unsafe, undecided = (sum(cell.counts[kind] for cell in cells) for kind in range(3))
    console.print(f"ablation: {verified} verified, {unsafe} unsafe, {undecided} undecided")


def read_paper(path: Path) -> Mapping[tuple[str, CellKey], tuple[int, int, int]]:
    """The paper's counts by benchmark and cell, except for resnet18: its network is not public."""
    with path.open(newline="") as file:
        return {
            (row["benchmark"], (row["perturbation"], int(row["size"]), float(row["strength"]))): (
                int(row["verified"]),
                int(row["unsafe"]),
                int(row["timeout"]),
            )
            for row in csv.DictReader(file)
            if row["benchmark"] != "resnet18"
        }


def print_table(
    console: Console, name: str, cells: Mapping[CellKey, Cell], paper: Mapping[CellKey, tuple[int, int, int]]
) -> tuple[int, int]:
    """The table in the paper's form, cells that differ from the paper marked; returns (equal, compared)."""
    table = Table(title=f"{name}: verified/unsafe/undecided, seconds" + (" (paper's counts below)" if paper else ""))
    for heading in ("s", "strength", *PERTURBATIONS):
        table.add_column(heading, justify="right")
    equal = compared = 0
    sizes = sorted({size for _, size, _ in cells})
    for size in sizes:
        for strength in STRENGTHS:
            row = []
            for kind in PERTURBATIONS:
                cell, printed = cells[kind, size, strength], paper.get((kind, size, strength))
                text = f"{cell} {cell.seconds:.2f}"
                if printed is not None:
                    compared += 1
                    equal += cell.counts == printed
                    colour = "green" if cell.counts == printed else "red"
                    text += f"\n[{colour}]{'/'.join(map(str, printed))}[/]"
                row.append(text)
            table.add_row(str(size), str(strength), *row, end_section=strength == STRENGTHS[-1])
    console.print(table)
    return equal, compared


@contextmanager
def shown_progress(name: str) -> Iterator[Callable[[float], None]]:
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=1.0)
        yield lambda share: progress.update(task, completed=share)


DATA = Path(__file__).resolve().parents[2] / "shared" / "benchmarks"
PAPER = Path(__file__).with_name("paper_tables.csv")
REPOSITORIES = {
    "mnist_fc": ("ChristopherBrix/vnncomp2022_benchmarks",),
    "oval21": ("ChristopherBrix/vnncomp2022_benchmarks", "stanleybak/vnncomp2021"),
}


def find_benchmark(data: Path, name: str) -> Path:
    """The folder of a benchmark below `data`, which may be a clone of a VNN-COMP repository."""
    for folder in (data / name, data / "benchmarks" / name, *data.glob(f"*/benchmarks/{name}")):
        if (folder / "instances.csv").exists():
            return folder
    sources = REPOSITORIES.get(name, ())
    clone = f"git clone --depth 1 https://github.com/{sources[0]}" if sources else "clone a VNN-COMP repository"
    folder = Path(sources[0]).name if sources else "FOLDER"
    other = "".join(f" ({name} is also in {source})" for source in sources[1:])
    raise click.ClickException(
        f"the benchmark {name} is not in {data}\n"
        f"Get it:            {clone}{other}\n"
        f"Then say where:    make paper DATA={folder}"
    )


@click.command()
@click.argument("benchmarks", nargs=-1)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=DATA,
    help="Folder of the benchmarks, or of clones of VNN-COMP's repositories.",
)
@click.option("--sizes", default="3,5,7,9", help="Kernel sizes, comma-separated.")
@click.option(
    "--paper",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=PAPER,
    help="The paper's counts, as CSV.",
)
@click.option("--memory", default=1.5, help="Working memory in GiB.")
@click.option(
    "--method", type=click.Choice(["exact", "bounds"]), default="exact", help="By enumeration or by splitting."
)
@click.option("--images", default=50, help="How many images for resnet18.")
@click.option("--ablation", "any_kernels", is_flag=True, help="The ablation study: any kernel of a size.")
@click.option("--timeout", default=60.0, help="Seconds for each query of the ablation study.")
def main(
    benchmarks: Sequence[str],
    data: Path,
    sizes: str,
    paper: Path,
    memory: float,
    method: Method,
    images: int,
    any_kernels: bool,
    timeout: float,
) -> None:
    """Run the paper's evaluation on BENCHMARKS, folders below --data (mnist_fc and oval21 if none is named)."""
    keep_freed_memory()
    console = Console(width=200)
    printed = read_paper(paper)
    equal = compared = 0
    folders = {
        name: data if name == "resnet18" else find_benchmark(data, name)
        for name in benchmarks or ("mnist_fc", "oval21")
    }
    if any_kernels:
        tables = {}
        for name, folder in folders.items():
            networks = resnet18(folder.parent, images) if name == "resnet18" else instances(folder, name)
            with shown_progress(name) as advance:
                settings = sp.Settings(timeout=timeout, memory=memory)
                tables[name] = ablation(networks, [int(s) for s in sizes.split(",")], settings, advance)
        print_ablation(console, tables)
        return
    for name, folder in folders.items():
        started = time.perf_counter()
        with shown_progress(name) as advance:
            settings = sp.Settings(memory=memory, method=method)
            networks = resnet18(folder.parent, images) if name == "resnet18" else instances(folder, name)
            cells, times = evaluate(networks, [int(s) for s in sizes.split(",")], settings, advance)
        seconds = time.perf_counter() - started
        same, of = print_table(console, name, cells, {k: c for (b, k), c in printed.items() if b == name})
        equal, compared = equal + same, compared + of
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        console.print(
            f"{name}: {len(times)} profiles in {seconds:.1f} s, median {median(times):.3g} s,"
            f" longest {max(times):.3g} s, peak memory {peak:.2f} GiB"
        )
    if compared:
        console.print(f"{equal} of {compared} cells equal")
    if equal < compared:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
