"""How narrow the brackets of critical strengths are, on the networks of the field. See docs/method.md.

    python benchmarks/brackets.py [--data DIR] [--before SRC] [--only NAME,...] [--images N] [--json FILE]

Each profile that is unsafe has a bracket: the label is proved to win up to its low end, and is proved or shown to lose
at its high end. The median and the largest width are printed for each network, and how often the reference runtime was
called for a profile, and on how many inputs. With `--before`, the `src` of another version (`git worktree add DIR
COMMIT`) answers the same queries.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rigour import DATA, NETWORKS

HERE = Path(__file__).resolve().parents[1]
# How many images of each network, the perturbations, and the largest strength where a whole sweep is long.
WHOLE = ("motion-blur:size=5,angle=45", "box-blur:size=9", "sharpen:size=3")
ASKED: dict[str, tuple[int, tuple[str, ...], float]] = {
    "mnist_fc_256x2": (15, WHOLE, 1.0),
    "mnist_fc_256x4": (15, WHOLE, 1.0),
    "mnist_fc_256x6": (15, WHOLE, 1.0),
    "oval21_base": (10, WHOLE, 1.0),
    "oval21_wide": (10, WHOLE, 1.0),
    "oval21_deep": (10, WHOLE, 1.0),
    "sri_resnet_b": (6, ("motion-blur:size=5,angle=45", "box-blur:size=5"), 1.0),
    "gtsrb_cnn": (10, ("motion-blur:size=15,angle=45", "box-blur:size=9"), 1.0),
    "cifar10_resnet20": (6, ("box-blur:size=5",), 0.4),
    "cifar10_resnet18": (8, ("motion-blur:size=5,angle=45", "box-blur:size=5"), 1.0),
}


class Counted:
    """A network's runtime, which counts how often it is called, and on how many inputs."""

    def __init__(self, runtime: Any) -> None:
        self.runtime, self.calls, self.inputs = runtime, 0, 0

    def __call__(self, inputs: Any) -> Any:
        self.calls, self.inputs = self.calls + 1, self.inputs + len(inputs)
        return self.runtime(inputs)


def answers(data: Path, name: str, images: int) -> list[dict[str, Any]]:
    """Every profile of a network, by the version that is imported here."""
    import torch

    import shakeproof as sp

    torch.set_num_threads(1)
    count, perturbations, strength = ASKED[name]
    model, place, _, _ = NETWORKS[name]
    network = sp.load(data / model)
    count = min(count, images)
    if place.endswith(".npz"):
        files = [f"{data / place}@{number}" for number in range(count)]
    else:
        files = [str(file) for file in sorted(data.glob(place))[:count]]
    found = []
    for file in files:
        image = sp.read_image(file).fitted(network.picture())
        for perturbation in perturbations:
            runtime = Counted(network.runtime)
            result = sp.profile(replace(network, runtime=runtime), image, perturbation, max_strength=strength)
            answer = {"file": file, "perturbation": perturbation, "status": result.status.value}
            bracket = {"critical_strength": result.critical_strength, "calls": runtime.calls, "inputs": runtime.inputs}
            found.append({**answer, **bracket})
    return found


def asked_of(source: Path, data: Path, name: str, images: int) -> list[dict[str, Any]]:
    """The same by any version, in a process of its own."""
    words = [sys.executable, __file__, "--data", str(data), "--only", name, "--images", str(images), "--answers"]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(done.stderr)
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def summary(found: list[dict[str, Any]]) -> str:
    """The widths of brackets, and the calls of the runtime."""
    unsafe = [answer for answer in found if answer["status"] == "unsafe"]
    widths = [high - low for low, high in (answer["critical_strength"] for answer in unsafe)]
    shown = f"median {statistics.median(widths):.1e}, largest {max(widths):.1e}" if widths else "no bracket"
    calls, inputs = (statistics.mean(answer[key] for answer in found) for key in ("calls", "inputs"))
    return f"{len(unsafe)} of {len(found)} unsafe, width {shown}; runtime calls {calls:.1f}, inputs {inputs:.1f}"


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), default=DATA, help="Networks and images.")
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="The src folder of another version.")
@click.option("--only", default=",".join(ASKED), help="Which networks, comma-separated.")
@click.option("--images", default=1000, show_default=True, help="How many images of each at most.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write every answer here.")
@click.option("--answers", "plain", is_flag=True, hidden=True)
def main(data: Path, before: Path | None, only: str, images: int, file: Path | None, plain: bool) -> None:
    """Measure the widths of brackets."""
    chosen = only.split(",")
    if unknown := [name for name in chosen if name not in ASKED]:
        raise click.BadParameter(f"unknown networks {', '.join(unknown)}; choose from {', '.join(ASKED)}")
    if plain:
        click.echo(json.dumps([answer for name in chosen for answer in answers(data, name, images)]))
        return
    versions = {"now": HERE / "src"} | ({} if before is None else {"before": before.resolve()})
    found: dict[str, dict[str, Any]] = {}
    for name in chosen:
        found[name] = {version: asked_of(source, data, name, images) for version, source in versions.items()}
        for version, own in found[name].items():
            click.echo(f"{name}, {version}: {summary(own)}")
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
