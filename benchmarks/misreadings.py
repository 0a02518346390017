"""Networks that are read wrongly on purpose: how many the comparison with the runtime notices.

    python benchmarks/misreadings.py [--random 2000] [--built 200] [--against SRC]

Each network is read with one misreading (a weight, padding, an axis, an epsilon, ...) and compared with onnxruntime,
which runs the file: at load, and on a picture under blur. What is *noticed* is refused at load or disagrees on the
picture. Where the runtime could not have disagreed, the answer is *undecided*. The rest is *missed*. A misreading
*shows* if it moves the scores, in a place that was looked at, by more than 4 times what the runtime itself is off by;
others cannot be noticed. It is *false* if it changes which class wins at one of 65 strengths. Networks that are read as
they are must neither be refused nor disagree (`false alarms`); some of the built ones may be undecided.

With `--against`, the `src` of another version (`git worktree add DIR COMMIT`) judges the same misreadings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np
import onnx
import torch
from misreading_suite.misreadings import misread
from misreading_suite.networks import built, everyday
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import shakeproof as sp
from shakeproof.budget import Budget
from shakeproof.errors import NetworkMismatchError, ShakeproofError
from shakeproof.model import Network, loading
from shakeproof.proof.replay import compared, places

MADE = {"random": everyday, "built": built}
BLUR, FINE, TIMES = "box-blur:size=3", 65, 4.0


@dataclass(frozen=True)
class Judged:
    """What became of one misreading, and of the same network read as it is."""

    kind: str
    judged: str
    shows: bool
    false: bool
    right: str


def answers(name: str, count: int, first: int = 0) -> Iterator[Judged]:
    """One misreading for each of so many networks."""
    with tempfile.TemporaryDirectory() as folder:
        number, left = first, count
        while left:
            found = judge(name, number, Path(folder))
            number, left = number + 1, left - (found is not None)
            if found is not None:
                yield found


def judge(name: str, number: int, folder: Path) -> Judged | None:
    """What is made of one network; None where shapes do not fit or outputs are not finite."""
    random, model = np.random.default_rng([3, number]), MADE[name](number)
    kind, wrong = misread(model, random)
    try:
        right, read = (_read(folder / file, own) for file, own in (("right.onnx", model), ("wrong.onnx", wrong)))
    except ShakeproofError:
        return None
    if read.graph.classes != right.graph.classes or read.dropped != right.dropped or right.graph.classes < 2:
        return None
    misread_as = replace(right, graph=read.graph)
    picture = random.random(right.picture().image_shape)
    given = _inputs(right, picture)
    theirs, ours, seen = right.reference(given), *(_outputs(own, given) for own in (right, misread_as))
    if not all(np.isfinite(own).all() for own in (theirs, ours, seen)):
        return None
    noise = np.abs(ours - theirs).max(1) + 1e-7 * np.ptp(ours, axis=1)
    shows = bool((np.abs(seen - ours).max(1) > TIMES * noise).any())
    false = bool((ours.argmax(1) != seen.argmax(1)).any())
    return Judged(kind, _judged(misread_as, picture), shows, false, _judged(right, picture))


def _read(path: Path, model: onnx.ModelProto) -> Network:
    data = model.SerializeToString()
    path.write_bytes(data)
    return loading._network(path, data, None, None)


def _outputs(network: Network, given: NDArray[np.float32]) -> NDArray[np.float64]:
    with torch.inference_mode():
        return network.with_softmax(network.scores(torch.from_numpy(given).double())).numpy()


def _inputs(network: Network, picture: NDArray[np.float64]) -> NDArray[np.float32]:
    """The pictures along the blur, many, and the inputs of the comparison at load, but for pixels in 0..255."""
    (query,) = sp.perturbed(network, [sp.Image("x", torch.from_numpy(picture), 0)], BLUR)
    (obligation,) = query.obligations
    return np.concatenate(
        [obligation.inputs.runtime_inputs(places(obligation, FINE)), loading._inputs(network.input_shape)[:3]]
    )


def _judged(network: Network, picture: NDArray[np.float64]) -> str:
    """What the comparison makes of a network: at load, then on a picture."""
    try:
        network = loading._compared(network)
    except NetworkMismatchError:
        return "noticed"
    label = network.predicted(network.picture().to_input(torch.from_numpy(picture))[None])[0]
    (query,) = sp.perturbed(network, [sp.Image("x", torch.from_numpy(picture), label)], BLUR)
    (obligation,) = query.obligations
    (comparison,) = compared(network, [(obligation, places(obligation))], Budget())
    if not comparison.outputs_agree:
        return "noticed"
    if hasattr(comparison, "tells") and not comparison.tells():
        return "undecided"
    return "missed" if comparison.agrees else "noticed"


def table(console: Console, name: str, found: Mapping[str, Sequence[Judged]]) -> None:
    made = Table(title=f"{name} networks, one misreading each")
    for heading in ("version", "which", "count", "noticed", "undecided", "missed", "false alarms", "right undecided"):
        made.add_column(heading, justify="left" if heading in ("version", "which") else "right")
    which = {"all": lambda own: True, "that show": lambda own: own.shows, "that are false": lambda own: own.false}
    for version, judged in found.items():
        for words, chosen in which.items():
            some = [own for own in judged if chosen(own)]
            counts, right = Counter(own.judged for own in some), Counter(own.right for own in some)
            cells = [len(some), *(counts[word] for word in ("noticed", "undecided", "missed"))]
            made.add_row(version, words, *map(str, (*cells, right["noticed"], right["undecided"])))
    console.print(made)
    for version, judged in found.items():
        missed = Counter(own.kind for own in judged if own.shows and own.judged == "missed")
        shown = Counter(own.kind for own in judged if own.shows)
        said = ", ".join(f"{kind} {count} of {shown[kind]}" for kind, count in missed.most_common())
        console.print(f"{version}: missed though they show: {said or 'none'}")


@click.command()
@click.option("--random", "everyday_ones", default=2000, show_default=True, help="How many random networks.")
@click.option("--built", "built_ones", default=200, show_default=True, help="How many built ones.")
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="Another `src`, which judges the same.")
@click.option("--worker", is_flag=True, hidden=True)
def main(everyday_ones: int, built_ones: int, against: Path | None, worker: bool) -> None:
    """Print how many misreadings are noticed."""
    torch.set_num_threads(1)
    counts = {"random": everyday_ones, "built": built_ones}
    if worker:
        for name, count in counts.items():
            print(json.dumps([asdict(own) for own in answers(name, count)]))
        return
    sources = {**({"before": against} if against else {}), "this": Path(sp.__file__).parents[1]}
    words = [sys.executable, __file__, "--worker", "--random", str(everyday_ones), "--built", str(built_ones)]
    told: dict[str, list[list[Judged]]] = {}
    for version, source in sources.items():
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        said = subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout
        told[version] = [[Judged(**own) for own in json.loads(line)] for line in said.splitlines()]
    for number, name in enumerate(counts):
        table(Console(width=130), name, {version: judged[number] for version, judged in told.items()})


if __name__ == "__main__":
    main()
