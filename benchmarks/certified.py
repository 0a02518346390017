"""What is certified of EfficientNet-Lite0 from the left, in some minutes a query: five photographs, two blurs.

    python benchmarks/certified.py [--data DIR] [--minutes 5] [--jobs 2] [--samples 2000] [--only N,...] [--json FILE]

Each query is a command of its own, `--threads` each, so many at a time. Behind it, onnxruntime is asked at random
strengths below the certified one, where the label must win at each; and at strengths spread over [0, 1], for the first
at which it loses: the critical strength is between the two. `peak MiB` is the command's peak resident memory.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, Popen

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from speed import DATA

EFFICIENTNET = "networks/efficientnet_lite0_in01.onnx"
PERTURBATIONS = ("box-blur:size=5", "motion-blur:size=7,angle=45")
RESIZE, CROP = 256, 224
SPREAD = 512


def certified(model: Path, picture: Path, text: str, minutes: float, threads: int, memory: float) -> dict[str, object]:
    """The command's answer, and its peak of memory."""
    words = ["profile", str(model), str(picture), "-p", text, "--timeout", str(60 * minutes), "--json"]
    words += ["--threads", str(threads), "--memory", str(memory), "--label", picture.stem.rsplit("_", 1)[1]]
    words += ["--resize", str(RESIZE), "--crop", str(CROP)]
    process = Popen([sys.executable, "-m", "shakeproof", *words], stdout=PIPE, stderr=PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    said, wrong = process.stdout.read(), process.stderr.read()
    _, _, usage = os.wait4(process.pid, 0)
    if not said.strip():
        raise click.ClickException(wrong.strip()[-300:])
    answer: dict[str, object] = json.loads(said.splitlines()[-1])
    return answer | {"peak_mib": usage.ru_maxrss / 1024}


def lost(model: Path, picture: Path, text: str, label: int, strengths: Sequence[float]) -> list[float]:
    """The strengths at which onnxruntime does not give the label."""
    import onnxruntime
    import torch

    import shakeproof as sp

    network = sp.load(model).preprocessed(sp.Preprocessing(resize=RESIZE, crop=(CROP, CROP)))
    (query,) = sp.perturbed(network, [str(picture)], text, label)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    found = []
    for strength in strengths:
        given = query.path.runtime_inputs(torch.tensor([[strength]], dtype=torch.float64))
        scores = np.ravel(session.run(None, {name: given.reshape(session.get_inputs()[0].shape)})[0])
        if scores.argmax() != label or (scores == scores.max()).sum() > 1:
            found.append(float(strength))
    return found


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), default=DATA)
@click.option("--minutes", default=5.0, show_default=True, help="For each query.")
@click.option("--jobs", default=2, show_default=True, help="Queries at a time.")
@click.option("--threads", default=1, show_default=True, help="Of each.")
@click.option("--memory", default=2.0, show_default=True, help="Of each, in GiB.")
@click.option("--samples", default=2000, show_default=True, help="Strengths tried below the certified one.")
@click.option("--only", default="", help="Numbers of the photographs.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the answers here.")
def main(
    data: Path, minutes: float, jobs: int, threads: int, memory: float, samples: int, only: str, file: Path | None
) -> None:
    model, pictures = data / EFFICIENTNET, sorted((data / "data/imagenet").glob("*.jpg"))
    wanted = [pictures[int(number)] for number in only.split(",")] if only else pictures
    queries = [(picture, text) for picture in wanted for text in PERTURBATIONS]
    table = Table(title=f"certified in {minutes:g} minutes, {jobs} queries at a time on {os.cpu_count()} cores")
    for heading in (
        "picture",
        "perturbation",
        "certified",
        "lost below",
        "first loss",
        "pieces",
        "rounding",
        "MiB",
        "status",
    ):
        table.add_column(heading)
    answers, random = [], np.random.default_rng(0)
    with ThreadPoolExecutor(jobs) as pool:
        asked = [pool.submit(certified, model, *query, minutes, threads, memory) for query in queries]
        for future in asked:
            answers.append(answer := future.result())
            print(*(answer[key] for key in ("image", "perturbation", "certified_strength", "pieces")), flush=True)
    for (picture, text), answer in zip(queries, answers, strict=True):
        label, reached = int(str(answer["label"])), float(str(answer["certified_strength"]))
        below = lost(model, picture, text, label, random.uniform(0, reached, samples) if reached else [])
        first = next(iter(lost(model, picture, text, label, np.linspace(0, 1, SPREAD + 1))), None)
        answer |= {"lost_below": len(below), "first_loss": first}
        table.add_row(
            picture.stem, text, f"{reached:.6f}", f"{len(below)} of {samples}",
            "none" if first is None else f"{first:.3f}", str(answer["pieces"]), str(answer["rounding"]),
            f"{float(str(answer['peak_mib'])):.0f}", str(answer["status"]),
        )  # fmt: skip
    Console(width=140).print(table)
    if file is not None:
        file.write_text(json.dumps(answers, indent=1))


if __name__ == "__main__":
    main()
