"""Campaigns on bad days, and what they cost: killed and resumed, on a cluster that loses a worker, in windows, large.

    python benchmarks/campaign.py kills overhead worker windows many --data DIR

DIR holds benchmarks/mnist_fc of VNN-COMP, networks/cifar10_resnet18.onnx, data/mnist_test.npz and
data/cifar10_test_first2000.npz. Each part prints what it found; one that does not hold ends it with exit code 1.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click
import numpy as np
import torch

import shakeproof as sp
from shakeproof.budget import keep_freed_memory
from shakeproof.errors import strictly
from shakeproof.model import pictures_for
from shakeproof.parallel import Cluster, TaskRunner, TaskScheduler
from shakeproof.proof import answer_by_windows, sweep_window
from shakeproof.proof.evidence import by_class
from shakeproof.store import StoreWriter, paper_table, read_campaign, register

COMMAND = [sys.executable, "-m", "shakeproof"]
KERNELS = """
perturbations = [
    { family = "box-blur", size = [3, 5, 7, 9] },
    { family = "sharpen", size = [3, 5, 7, 9] },
    { family = "motion-blur", size = [3, 5, 7, 9], angle = [0, 45, 90, 135] },
]
strengths = [0.2, 0.4, 0.6, 0.8, 1.0]
"""
KILLS = 5


def mnist_fc(folder: Path, data: Path, name: str = "mnist") -> Path:
    """45 images under 24 kernels."""
    file = folder / f"{name}.toml"
    images = f'images = {{ benchmark = "{data}/benchmarks/mnist_fc", only = "*_0.03.vnnlib" }}'
    file.write_text(KERNELS + images)
    return file


def rows(store: Path) -> list[tuple[object, ...]]:
    """The table, without its seconds."""
    with sp.Store.open(store) as opened:
        cells = paper_table(opened, by_model=True).cells()
        return [tuple(value for key, value in cell.items() if key != "seconds") for cell in cells]


def run(file: Path, *words: str) -> None:
    subprocess.run([*COMMAND, "campaign", str(file), "--quiet", *words], check=True)


def kills(folder: Path, data: Path) -> bool:
    """Killed five times at random moments, and resumed: the table is that of an undisturbed run."""
    plain, killed = (mnist_fc(folder, data, name) for name in ("plain", "killed"))
    began = time.perf_counter()
    run(plain, "--jobs", "2")
    whole = time.perf_counter() - began
    seed = int(time.time())
    print(f"undisturbed: {whole:.1f} s; seed {seed}")
    chance = random.Random(seed)
    # so many answers are waited for, and then a moment
    for number, wanted in enumerate(sorted(chance.sample(range(answered(folder / "plain.db")), KILLS)), 1):
        process = subprocess.Popen([*COMMAND, "campaign", str(killed), "--quiet", "--jobs", "2"])
        while process.poll() is None and answered(folder / "killed.db") < wanted:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        print(f"kill {number}, after {wanted} answers: {answered(folder / 'killed.db')} are kept")
    run(killed, "--jobs", "2")
    equal = rows(folder / "plain.db") == rows(folder / "killed.db")
    print(f"tables of {len(rows(folder / 'plain.db'))} cells equal: {equal}")
    return equal


def answered(store: Path) -> int:
    try:
        with sp.Store.open(store) as opened:
            return sum(campaign.answered for campaign in opened.campaigns())
    except sp.ShakeproofError:
        return 0


def overhead(folder: Path, data: Path) -> bool:
    """Seconds of a processor for the same queries: analysed in a loop, and by a campaign, on one thread each."""
    torch.set_num_threads(1)
    keep_freed_memory()
    file = mnist_fc(folder, data, "overhead")
    campaign = read_campaign(file)

    networks = []
    for asked in campaign.asked:
        network, found = pictures_for(asked.model, asked.sources, campaign.preprocessing)
        networks.append((network, list(strictly(found))))

    def bare() -> None:
        for network, pictures in networks:
            queries = [q for kernel in campaign.perturbations for q in sp.perturbed(network, pictures, kernel)]
            for result in sp.answers(network, queries):
                result.to_json()

    def as_campaign() -> float:
        with StoreWriter.open(campaign.store) as writer:
            registered = register(campaign, writer)
            for model in registered.models.values():
                runner.network(model, campaign.settings)

            def work() -> None:
                scheduler = TaskScheduler(campaign, registered, writer, 1)
                while (task := scheduler.next_task()) is not None:
                    began = time.perf_counter()
                    outcomes = list(runner.outcomes(task))
                    scheduler.finish(task, outcomes, time.perf_counter() - began)

            seconds = cpu(work)
        campaign.store.unlink()
        return seconds

    runner = TaskRunner()
    cpu(bare), as_campaign()  # what is worked out once about networks
    ratios = []
    for _ in range(5):
        loop, work = cpu(bare), as_campaign()
        ratios.append(work / loop)
        print(f"in a loop {loop:.2f} s, as a campaign {work:.2f} s: {ratios[-1]:.2f}")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(file, "--jobs", "1")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"the command with one worker, the start of two processes included: {total:.2f} s")
    print(f"overhead (median): {100 * (median(ratios) - 1):.0f} %")
    return median(ratios) < 1.2


def cpu(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def worker(folder: Path, data: Path) -> bool:
    """The same with two workers, one of which is killed midway."""
    plain, killed = (mnist_fc(folder, data, name) for name in ("plain", "worker"))
    if not (folder / "plain.db").exists():
        run(plain, "--jobs", "2")
    campaign = read_campaign(killed)
    with StoreWriter.open(campaign.store) as writer, Cluster(2) as cluster:
        scheduler = TaskScheduler(campaign, register(campaign, writer), writer, 2)
        victim = next(iter(cluster.local.workers.values())).pid

        def kill() -> None:
            while scheduler.settled < scheduler.total / 2:
                time.sleep(0.01)
            os.kill(victim, signal.SIGKILL)
            print(f"killed a worker at {scheduler.settled} of {scheduler.total}")

        threading.Thread(target=kill, daemon=True).start()
        cluster.run(scheduler, lambda standing: None)
        failed = writer.campaign().failed
    equal = rows(folder / "plain.db") == rows(folder / "worker.db")
    print(f"tables equal: {equal}; errors: {failed}")
    return equal and not failed


def windows(folder: Path, data: Path) -> bool:
    """A ResNet18 profile in 8 windows over two worker processes, and the whole one."""
    model, images = data / "networks" / "cifar10_resnet18.onnx", data / "data" / "cifar10_test_first2000.npz"
    head = f'models = "{model}"\nimages.paths = "{images}@0"\nperturbations = ["sharpen:size=3"]\n'
    curves = {}
    for name, count, jobs in (("whole", 1, 1), ("cut", 8, 2)):
        file = folder / f"{name}.toml"
        file.write_text(f"{head}analysis = {{ windows = {count}, whole_curves = true }}\n")
        campaign = read_campaign(file)
        began = time.perf_counter()
        with Cluster(jobs) as cluster, StoreWriter.open(campaign.store) as writer:
            scheduler = TaskScheduler(campaign, register(campaign, writer), writer, jobs)
            cluster.run(scheduler, lambda standing: None)
            (found,) = writer.profiles()
        curves[name] = found
        print(f"{name}: {time.perf_counter() - began:.1f} s, {found.record.pieces} pieces, {found.record.status}")
    network = sp.load(model)
    (query,) = sp.perturbed(network, [f"{images}@0"], "sharpen:size=3")
    settings = sp.Settings(whole_curve=True)
    (plain,) = sp.analyse(network, [query], settings)
    with torch.inference_mode():
        parts = [sweep_window(network, query, settings, k / 8, (k + 1) / 8) for k in range(8)]
        joined = answer_by_windows(network, query, settings, parts)
    z = np.union1d(plain.curve.z, joined.curve.z)
    apart = float(np.abs(plain.curve.at(z) - joined.curve.at(z)).max())
    print(f"curves of {len(plain.curve.z)} and {len(joined.curve.z)} rows are {apart:.1e} apart at most")
    whole, cut = curves["whole"].record, curves["cut"].record
    same = (whole.status, [part.winner for part in by_class(whole.profile)]) == (
        cut.status,
        [p.winner for p in by_class(cut.profile)],
    )
    return same and apart < 1e-8 and 0 <= cut.pieces - whole.pieces <= 7


def many(folder: Path, data: Path) -> bool:
    """20,160 queries in one campaign: three networks, 280 images, 24 kernels."""
    file = folder / "many.toml"
    images = f'images.paths = "{data}/data/mnist_test.npz@0:280"'
    file.write_text(f'models = "{data}/benchmarks/mnist_fc/onnx/*.onnx*"\n{images}\n{KERNELS}')
    began = time.perf_counter()
    run(file, "--jobs", "2")
    taken = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    store = folder / "many.db"
    with sp.Store.open(store) as opened:
        found = opened.campaign()
        curves = [len(profile.packed_curve or b"") for profile in opened.profiles()]
    print(
        f"{found.answered} of {found.asked} in {taken:.0f} s ({found.asked / taken:.0f}/s), store"
        f" {store.stat().st_size / 2**20:.1f} MiB ({store.stat().st_size / found.asked:.0f} bytes each, of which curves"
        f" {sum(curves) / len(curves):.0f}), largest process {peak:.2f} GiB"
    )
    return found.answered == found.asked


PARTS = {own.__name__: own for own in (kills, overhead, worker, windows, many)}


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice([*PARTS]))
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the stores here.")
def main(parts: tuple[str, ...], data: Path, keep: Path | None) -> None:
    """Run some parts, or all."""
    with TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        held = []
        for name in parts or PARTS:
            print(f"-- {name}: {PARTS[name].__doc__} (load {os.getloadavg()[0]:.1f})", flush=True)
            held.append(PARTS[name](folder, data.absolute()))
            print("holds" if held[-1] else "DOES NOT HOLD", flush=True)
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
