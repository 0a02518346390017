"""How long `table`, `results` and `report` take with many answers, and how large the page gets.

    python benchmarks/store_speed.py --answers 100000

A small campaign over the bundled pictures is really run; its rows are then copied under other names until there are
enough. Run it on two versions, and compare what is printed. `--keep FILE` keeps the store, or takes one that is there.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click

import shakeproof as sp
from shakeproof import demo
from shakeproof.question import read_image
from shakeproof.store import StoreWriter, keep
from shakeproof.store.schema import fill_answers

PERTURBATIONS = (
    *(f"{family}:size={size}" for family in ("box-blur", "sharpen") for size in (3, 5, 7, 9)),
    *(f"motion-blur:size=9,angle={angle}" for angle in (0, 45, 90)),
    "haze:colour=0.8",
)
SETTINGS = sp.Settings(method="exact", timeout=20.0)
DIGITS = random.Random(0)


def small_store(path: Path) -> None:
    """Real answers: every bundled picture under every perturbation."""
    network = sp.load(demo.MODEL)
    pictures = [
        replace(read_image(str(file)).fitted(network.picture()), name=f"signs/{file.stem}", label=label)
        for file, label in demo.images()
    ]
    found = [sp.profile(network, own, text, method="exact", timeout=20.0) for own in pictures for text in PERTURBATIONS]
    keep(path, "Signs", network, found, SETTINGS)


def varied(record: str) -> str:
    """A record with digits of its own, as each answer of a real campaign has them: copies would compress too well."""
    said, factor = json.loads(record), 1 - 1e-4 * DIGITS.random()

    def moved(z: float) -> float:
        return z * factor if 0 < z < 1 else z

    said["certified_strength"] = moved(said["certified_strength"])
    said["critical_strength"] = said["critical_strength"] and [*map(moved, said["critical_strength"])]
    said["profile"] = [part | {"from": moved(part["from"]), "to": moved(part["to"])} for part in said["profile"]]
    said["min_margin"] = said["min_margin"] and said["min_margin"] * factor
    if said["counterexample"]:
        said["counterexample"] |= {"margin": said["counterexample"]["margin"] * factor}
    return json.dumps(said | {"seconds": round(said["seconds"] * (1 + DIGITS.random()), 6)})


def enlarge(path: Path, answers: int) -> int:
    """Copy all rows under other names, as often as it takes. Every answer gets a certificate's digest of its own."""
    with StoreWriter.open(path) as writer:  # which keeps the checksums
        run = writer.connection.execute
        writer.connection.create_function("made_digest", 1, lambda text: hashlib.sha256(str(text).encode()).hexdigest())
        writer.connection.create_function("varied", 1, varied)
        (here,) = run("SELECT count(*) FROM items").fetchone()
        (images,) = run("SELECT max(id) FROM images").fetchone()
        (queries,) = run("SELECT max(id) FROM queries").fetchone()
        run("BEGIN")
        run("UPDATE campaigns SET strengths = '[0.2, 0.4, 0.6, 0.8, 1.0]'")
        for copy in range(1, -(-answers // here)):
            values = {"copy": copy, "images": images, "queries": queries, "items": here}
            run(
                "INSERT INTO images (id, digest, name, label, shape, kind, pixels) SELECT id + :copy * :images,"
                " made_digest(digest || :copy), name || '-' || :copy, label, shape, kind, pixels"
                " FROM images WHERE id <= :images",
                values,
            )
            run(
                "INSERT INTO queries (id, question, strengths, model, image, perturbation, settings)"
                " SELECT id + :copy * :queries, made_digest(question || :copy), strengths, model,"
                " image + :copy * :images, perturbation, settings FROM queries WHERE id <= :queries",
                values,
            )
            run(
                "INSERT INTO items (campaign, number, query, image) SELECT campaign, number + :copy * :items,"
                " query + :copy * :queries, image + :copy * :images FROM items WHERE number < :items",
                values,
            )
            run(
                "INSERT INTO results (query, timeout, label_predicted, record, curve, unproved, finished)"
                " SELECT query + :copy * :queries, timeout, label_predicted, varied(record), curve, unproved, finished"
                " FROM results WHERE query <= :queries",
                values,
            )
        fill_answers(writer.connection)
        run("DELETE FROM items WHERE number >= ?", (answers,))
        run(
            "INSERT INTO certificates (query, sha256, certificate) SELECT query, made_digest(query), X'00' FROM results"
        )
        run("COMMIT")
    return answers


def timed(name: str, words: list[str], written: Path | None = None) -> None:
    """Run a command and say how long it took, and how large its file is."""
    before = time.perf_counter()
    subprocess.run([sys.executable, "-m", "shakeproof", *words], stdout=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - before
    size = "" if written is None else f"  {written.stat().st_size / 1e6:8.2f} MB"
    print(f"{name:24} {seconds:8.2f} s{size}", flush=True)


@click.command()
@click.option("--answers", default=100_000, show_default=True)
@click.option("--keep", "kept", type=click.Path(path_type=Path), help="Where the store is, or is to be.")
def main(answers: int, kept: Path | None) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        store = kept or folder / "store.db"
        if not store.exists():
            small_store(store)
            enlarge(store, answers)
        print(f"{answers:,} answers, store of {store.stat().st_size / 1e6:.0f} MB", flush=True)
        timed("start alone", ["campaign", "--help"])
        timed("table", ["table", str(store)])
        for kind in ("jsonl", "csv"):
            timed(
                f"results, {kind}", ["results", str(store), "--format", kind, "-o", str(folder / kind)], folder / kind
            )
        for kind in ("html", "json"):
            file = folder / f"report.{kind}"
            timed(f"report, {kind}", ["report", str(store), "--no-check", "--format", kind, "-o", str(file)], file)


if __name__ == "__main__":
    main()
