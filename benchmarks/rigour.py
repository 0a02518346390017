"""What enclosed rounding and certificates cost and give, on the networks of the field.

    python benchmarks/rigour.py enclosures [--data DIR] [--only NAME,...]
    python benchmarks/rigour.py certificates [--data DIR] [--only NAME,...] [--every N]
    python benchmarks/rigour.py corruptions [--count 2000]

`enclosures` profiles images of each network and prints how many answers are safe, how many needed more than the sweep's
own errors, and the largest error beside the smallest margin. `certificates` writes a certificate for each query, has
the checker read it again, and prints both times and the bytes a piece takes. `corruptions` changes valid certificates
at random, with a fresh digest where that would otherwise notice, and counts which ones are accepted.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import shakeproof as sp
from shakeproof import checker, demo
from shakeproof.certificate import NoCertificateError, certificate, pack
from shakeproof.question import Image, read_image

DATA = Path(__file__).resolve().parents[2] / "shared"
FAMILIES = ("box-blur:size={}", "sharpen:size={}", *(f"motion-blur:size={{}},angle={a}" for a in (0, 45, 90, 135)))
MNIST, OVAL = "benchmarks/mnist_fc", "benchmarks/oval21"
CIFAR, GTSRB = "data/cifar10_test_first2000.npz", "data/gtsrb_test_first1000.npz"


# A model, where its images are (a pattern of files, or an archive and how many), and the sizes of kernels.
NETWORKS: dict[str, tuple[str, str, int, tuple[int, ...]]] = {
    **{f"mnist_fc_256x{n}": (f"{MNIST}/onnx/mnist-net_256x{n}.onnx", f"{MNIST}/vnnlib/prop_*_0.03.vnnlib*", 15, (3, 9))
       for n in (2, 4, 6)},
    **{f"oval21_{name}": (f"{OVAL}/onnx/cifar_{name}_kw.onnx", f"{OVAL}/vnnlib/cifar_{name}_kw*", 10, (3, 9))
       for name in ("base", "wide", "deep")},
    "sri_resnet_b": ("benchmarks/sri_resnet_b/onnx/resnet_3b2_bn_mixup_ssadv_4.0_bs128_lr-1_v2.onnx",
                     "benchmarks/sri_resnet_b/vnnlib/*_eps_0.00350.vnnlib.gz", 6, (5,)),
    "gtsrb_cnn": ("networks/gtsrb_cnn.onnx", GTSRB, 6, (5,)),
    "cifar10_resnet20": ("networks/cifar10_resnet20.onnx", CIFAR, 2, (3,)),
    "cifar10_resnet18": ("networks/cifar10_resnet18.onnx", CIFAR, 4, (3,)),
}  # fmt: skip


def queries(data: Path, name: str, most: int = 10**6) -> Iterator[tuple[sp.Network, Image, str]]:
    """Every image of a network, or the first ones, with every perturbation."""
    model, place, count, sizes = NETWORKS[name]
    count = min(count, most)
    network = sp.load(data / model)
    files: Sequence[str] = (
        [f"{data / place}@{i}" for i in range(count)]
        if place.endswith(".npz")
        else [str(file) for file in sorted(data.glob(place))[:count]]
    )
    for file in files:
        image = read_image(file).fitted(network.picture())
        for family in FAMILIES:
            for size in sizes:
                yield network, image, family.format(size)


@click.group()
def main() -> None:
    """Choose what to measure."""


def names(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    chosen = value.split(",")
    if unknown := [name for name in chosen if name not in NETWORKS]:
        raise click.BadParameter(f"unknown networks {', '.join(unknown)}; choose from {', '.join(NETWORKS)}")
    return chosen


data_option = click.option("--data", type=click.Path(exists=True, path_type=Path), default=DATA)
only_option = click.option("--only", callback=names, default=",".join(NETWORKS), help="Networks, comma-separated.")
json_option = click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")


@main.command()
@data_option
@only_option
@json_option
@click.option("--images", default=10**6, help="At most so many images for each network.")
def enclosures(data: Path, only: list[str], file: Path | None, images: int) -> None:
    """How far proofs reach, and by what."""
    rows = []
    for name in only:
        row: dict[str, Any] = {
            "network": name,
            "queries": 0,
            "safe": 0,
            "unsafe": 0,
            "undecided": 0,
            "misclassified": 0,
            "rigorous": 0,
        }
        row |= {
            "refined": 0,
            "refined_pieces": 0,
            "error": 0.0,
            "margin": np.inf,
            "least_of_refined": np.inf,
            "seconds": 0.0,
        }
        for network, image, text in queries(data, name, images):
            started = time.perf_counter()
            result = sp.profile(network, image, text)
            row["seconds"] += time.perf_counter() - started
            row["queries"] += 1
            row[result.status.value] += 1
            if result.status is not sp.Status.SAFE:
                continue
            row["rigorous"] += result.rounding == "rigorous"
            curve = result.curve
            margin = curve.margin(result.label)
            weak = np.minimum(margin[:-1], margin[1:]) <= 2**0.5 * curve.error
            row["refined"] += bool(weak.any())
            row["refined_pieces"] += int(weak.sum())
            row["error"] = max(row["error"], float(2**0.5 * curve.error.max(initial=0)))
            row["margin"] = min(row["margin"], float(margin.min()))
            if weak.any():
                row["least_of_refined"] = min(row["least_of_refined"], float(margin.min()))
        rows.append(row)
        Console(stderr=True).print(f"{name} done")
    show("rounding enclosed", rows)
    if file is not None:
        file.write_text(json.dumps(rows, indent=1))


@main.command()
@data_option
@only_option
@json_option
@click.option("--every", default=1, show_default=True, help="Take every so many-th query.")
def certificates(data: Path, only: list[str], file: Path | None, every: int) -> None:
    """A certificate for each query, checked."""
    rows = []
    for name in only:
        row: dict[str, Any] = {
            "network": name,
            "queries": 0,
            "certificates": 0,
            "accepted": 0,
            "none": 0,
            "pieces": 0,
            "leaves": 0,
        }
        row |= {"leaf_bytes": 0, "all_bytes": 0, "prover": 0.0, "writing": 0.0, "checker": 0.0}
        asked = list(queries(data, name))[::every]
        model = Path(asked[0][0].name).read_bytes()
        with Progress(transient=True) as progress:
            for network, image, text in progress.track(asked, description=name):
                row["queries"] += 1
                started = time.perf_counter()
                result = sp.profile(network, image, text, whole_curve=True)
                row["prover"] += time.perf_counter() - started
                started = time.perf_counter()
                try:
                    made = certificate(network, result, profile=True)
                except NoCertificateError as problem:
                    progress.console.print(f"no certificate: {problem}")
                    row["none"] += 1
                    continue
                finally:
                    row["writing"] += time.perf_counter() - started
                row["certificates"] += 1
                started = time.perf_counter()
                row["accepted"] += checker.check(made, model).accepted
                row["checker"] += time.perf_counter() - started
                arrays = checker.unpack(made)[1]
                row["pieces"] += result.pieces
                row["leaves"] += len(arrays["cuts"]) + 1
                row["leaf_bytes"] += sum(array.nbytes for name, array in arrays.items() if name != "pixels")
                row["all_bytes"] += len(made)
        row["bytes_a_piece"] = row["leaf_bytes"] / max(row["pieces"], 1)
        rows.append(row)
    show("certificates", rows)
    if file is not None:
        file.write_text(json.dumps(rows, indent=1))


@main.command()
@click.option("--count", default=2000, show_default=True)
@click.option("--seed", default=0, show_default=True)
def corruptions(count: int, seed: int) -> None:
    """Changed certificates, none of which may be accepted unless it says the same."""
    random = np.random.default_rng(seed)
    network = sp.load(demo.MODEL)
    model = Path(network.name).read_bytes()
    made, pictures = [], []
    folder = Path(tempfile.mkdtemp())
    for number, (file, _) in enumerate(demo.images()[:2]):
        image = read_image(str(file)).fitted(network.picture())
        np.save(folder / f"{number}.npy", image.pixels.numpy())
        for text in ("box-blur:size=3", "motion-blur:size=3,angle=45", "sharpen:size=3"):
            made.append(certificate(network, sp.profile(network, image, text, whole_curve=True), profile=True))
            pictures.append(folder / f"{number}.npy")
    kinds: dict[str, list[int]] = {}
    with Progress(transient=True) as progress:
        for _ in progress.track(range(count), description="corrupting"):
            chosen = int(random.integers(len(made)))
            valid = made[chosen]
            kind, changed = corrupted(valid, made, random)
            tally = kinds.setdefault(kind, [0, 0, 0])
            tally[0] += 1
            if changed == valid:
                tally[1] += 1
            elif checker.check(changed, model, pictures[chosen]).accepted and not equivalent(changed, valid):
                tally[2] += 1
    show(
        "corruptions",
        [{"kind": kind, "tried": a, "unchanged": b, "accepted": c} for kind, (a, b, c) in sorted(kinds.items())],
    )
    print(f"accepted though not equivalent: {sum(c for _, _, c in kinds.values())} of {count}")


def corrupted(valid: bytes, others: Sequence[bytes], random: np.random.Generator) -> tuple[str, bytes]:
    """A certificate with something wrong in it, and what that is."""
    kind = str(
        random.choice(["byte", "byte, digest renewed", "truncated", "leaf", "header", "claims", "pixels", "mixed"])
    )
    if kind == "truncated":
        return kind, valid[: random.integers(len(valid))]
    if kind.startswith("byte"):
        data = bytearray(valid)
        data[random.integers(len(data) - 32)] ^= int(random.integers(1, 256))
        return kind, bytes(data) if kind == "byte" else renewed(bytes(data))
    header, arrays = checker.unpack(valid)
    header, arrays = json.loads(json.dumps(header)), {name: array.copy() for name, array in arrays.items()}
    cuts, winners = arrays["cuts"], winners_of(header, arrays).copy()
    if kind == "leaf":
        place = int(random.integers(len(cuts)))
        match random.integers(4):
            case 0:
                arrays["cuts"] = np.delete(cuts, place)
                arrays |= {"winners": np.delete(winners, place)} if "winners" in arrays else {}
            case 1:
                cuts[place] = random.uniform(0, 1)
            case 2:
                cuts[place] = np.nan
            case _:
                arrays["cuts"] = np.sort(np.append(cuts, random.uniform(-0.5, 1.5)))
                arrays |= {"winners": np.insert(winners, place, winners[place])} if "winners" in arrays else {}
    elif kind == "pixels":
        flat = arrays["pixels"].reshape(-1)
        flat[random.integers(len(flat))] += np.float32(random.choice([1.0, np.nan, 1e-3]))
        if random.random() < 0.5:
            wide = arrays["pixels"].astype("<f8")
            header["image_sha256"] = hashlib.sha256(wide.tobytes()).hexdigest()
    elif kind == "claims":
        winners[random.integers(len(winners)) :] = random.integers(-1, winners.max() + 2)
        arrays |= {"winners": winners} if "winners" in arrays or random.random() < 0.5 else {}
        header["label"] = int(random.integers(winners.max() + 2))
    elif kind == "mixed":
        other = checker.unpack(others[random.integers(len(others))])
        arrays = {"pixels": arrays["pixels"], **{name: given for name, given in other[1].items() if name != "pixels"}}
    else:
        key = str(random.choice([k for k in header if k != "arrays"]))
        header[key] = [None, 0, 1.0, "zeros", [], {}, [0.5]][random.integers(7)]
    try:
        return kind, pack(header, arrays)
    except (ValueError, TypeError, KeyError):
        return kind, valid[:-1]


def winners_of(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Who is said to win on each leaf: of a safe answer, the label."""
    return arrays.get("winners", np.full(len(arrays["cuts"]) + 1, header["label"], dtype="<i2"))


def renewed(data: bytes) -> bytes:
    return data[:-32] + hashlib.sha256(data[:-32]).digest()


# What may differ between two certificates that claim the same of the same picture; of a profile, the label is a note.
NOTED = ("tool", "model", "image", "file_sha256", "arrays")


def equivalent(changed: bytes, valid: bytes) -> bool:
    """Whether one claims no more than the other: same question, and where it names winners, the same ones."""
    (one, arrays), (other, own) = map(checker.unpack, (changed, valid))
    noted = (*NOTED, *(["label"] if other["claim"] == "profile" else []))
    asked = [{key: said for key, said in header.items() if key not in noted} for header in (one, other)]
    if asked[0] != asked[1] or not np.array_equal(arrays["pixels"], own["pixels"]):
        return False
    ends = np.union1d(arrays["cuts"], own["cuts"])
    middles = np.convolve([0.0, *ends, *one["strength"]], [0.5, 0.5], "valid")
    sides = ((one, arrays), (other, own))
    named, truth = (winners_of(*side)[np.searchsorted(side[1]["cuts"], middles)] for side in sides)
    return bool(((named == truth) | (named == -1) | (truth == -1)).all())


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title=title)
    for heading in rows[0]:
        table.add_column(heading.replace("_", " "), justify="right" if heading not in ("network", "kind") else "left")
    for row in rows:
        table.add_row(*(format(value, {float: ".3g", int: ","}.get(type(value), "")) for value in row.values()))
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
