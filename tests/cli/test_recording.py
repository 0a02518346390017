"""`--output FILE` and `--resume`: what is written is whole, kept, and not worked for again."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import onnx
import pytest
from models import model
from onnx import helper
from PIL import Image
from processes import HANGING
from warm import complaint, run

from shakeproof import Record, Settings, demo, digests, load
from shakeproof.cli import recording
from shakeproof.question import perturbed

MODEL = str(demo.MODEL)
IMAGES = {path.stem: str(path) for path, _ in demo.images()}
STOP, WARNING = IMAGES["stop.1"], IMAGES["warning.1"]
COMMAND = [sys.executable, "-m", "shakeproof"]


def asked(*words: str) -> tuple[str, ...]:
    return ("profile", MODEL, STOP, WARNING, "-p", "box-blur:size=9", "-p", "identity", "--json", *words)


def statuses(printed: str) -> list[str]:
    return [json.loads(line)["status"] for line in printed.splitlines()]


def test_lines_are_the_answers_and_where_they_were_asked(tmp_path):
    done = run(*asked("--output", "r.jsonl"), cwd=tmp_path)
    assert statuses(done.stdout) == ["safe", "safe", "unsafe", "safe"]
    written = (tmp_path / "r.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in written]
    assert len({line.pop("question") for line in lines}) == 4
    assert lines == [json.loads(line) for line in done.stdout.splitlines()]
    assert Record.from_json(written[2]) == Record.from_json(lines[2])


def test_a_table_says_the_same(tmp_path):
    done = run(*asked("--output", "r.csv"), cwd=tmp_path)
    with (tmp_path / "r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, line in zip(rows, done.stdout.splitlines(), strict=True):
        said = json.loads(line)
        assert (row["image"], row["status"], row["perturbation"]) == (
            said["image"],
            said["status"],
            said["perturbation"],
        )
        assert float(row["min_margin"]) == said["min_margin"]
        assert json.loads(row["profile"]) == said["profile"]
        low, high = said["critical_strength"] or ("", "")
        assert [row["critical_strength_low"], row["critical_strength_high"]] == [str(low), str(high)]
    assert rows[2]["counterexample_replayed"] == "true"
    assert rows[0]["counterexample_replayed"] == ""


@pytest.mark.parametrize("name", ["r.jsonl", "r.csv"])
def test_only_what_is_missing_is_asked_again(tmp_path, name):
    file = tmp_path / name
    run(*asked("--output", name), cwd=tmp_path)
    whole = file.read_bytes()
    assert "continue it with --resume" in complaint(*asked("--output", name), cwd=tmp_path)
    again = run(*asked("--output", name, "--resume"), cwd=tmp_path)
    assert (again.returncode, again.stdout) == (1, "")  # one of those that were there is unsafe
    assert file.read_bytes() == whole

    file.write_bytes(whole[:-20])  # the last line torn, as by a power cut
    again = run(*asked("--output", name, "--resume"), cwd=tmp_path)
    assert statuses(again.stdout) == ["safe"]
    assert file.read_bytes().splitlines()[:-1] == whole.splitlines()[:-1]
    assert file.read_bytes().count(b"\n") == whole.count(b"\n")

    whole = file.read_bytes()
    more = run(*asked("-p", "sharpen:size=3", "--output", name, "--resume"), cwd=tmp_path)
    assert len(more.stdout.splitlines()) == 2
    assert file.read_bytes().startswith(whole)


def test_another_question_is_not_answered_by_the_same_name(tmp_path):
    """Other pixels under the same name, another kernel in the same file, another strength, label or tolerance."""
    words = ["profile", MODEL, "i.png", "-p", "custom:file=k.npy", "--output", "r.jsonl", "--resume", "--json"]

    def answers(*more: str) -> int:
        return len(run(*words, *more, cwd=tmp_path).stdout.splitlines())

    pixels = np.asarray(Image.open(STOP))
    Image.fromarray(pixels).save(tmp_path / "i.png")
    np.save(tmp_path / "k.npy", np.full((3, 3), 1 / 9))
    assert [answers(), answers()] == [1, 0]
    Image.fromarray(pixels[::-1].copy()).save(tmp_path / "i.png")
    assert [answers(), answers()] == [1, 0]
    np.save(tmp_path / "k.npy", np.eye(3) / 3)
    assert [answers(), answers()] == [1, 0]
    for option in (("--max-strength", "0.5"), ("--label", "3"), ("--tolerance", "0.01"), ("--mean", "0.1")):
        assert [answers(*option), answers(*option)] == [1, 0]
    assert answers("--memory", "1", "--threads", "1") == 0


def test_more_time_asks_again_only_where_there_was_too_little(tmp_path):
    words = ("profile", MODEL, STOP, "-p", "box-blur:size=9", "--json", "--output", "r.jsonl", "--resume", "--timeout")
    assert statuses(run(*words, "1e-6", cwd=tmp_path).stdout) == ["undecided"]
    assert run(*words, "1e-6", cwd=tmp_path).returncode == 3
    assert statuses(run(*words, "600", cwd=tmp_path).stdout) == ["safe"]
    done = run(*words, "1e-6", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_file_of_something_else_is_left_alone(tmp_path):
    ours = '{"question": "1", "status": "safe"}\n'
    strange = ('{"question": "1", "status": "fine"}\n', '{"question": "1", "status": []}\n', "[" * 100_000 + "\n")
    texts = ('{"a": 1}\n', "[]\n", "no line", ours + "no line", ours + "\n", *strange)
    tables = ("a,b\n1,2\n", "\n", "no line")
    for name, text in (*(("r.jsonl", text) for text in texts), *(("r.csv", text) for text in tables)):
        (tmp_path / name).write_text(text)
        assert name in complaint(*asked("--output", name, "--resume"), cwd=tmp_path)
        assert (tmp_path / name).read_text() == text
    assert "write it as .jsonl or .csv" in complaint(*asked("--output", "r.txt"), cwd=tmp_path)
    assert "--output" in complaint(*asked("--resume"), cwd=tmp_path)
    assert not (tmp_path / "r.txt").exists()


@pytest.mark.parametrize("name", ["r.jsonl", "r.csv"])
def test_a_disk_that_fills_up_leaves_whole_lines(tmp_path, name):
    """What is printed is not lost, and the file ends with a whole line."""
    words = [
        "profile",
        MODEL,
        *IMAGES.values(),
        "-p",
        "identity",
        "-p",
        "brightness:max=0.1",
        "--output",
        name,
        "--json",
    ]
    limited = ["bash", "-c", 'ulimit -f 5; exec "$@"', "bash", *COMMAND, *words]  # files of 5,120 bytes at most
    done = subprocess.run(limited, capture_output=True, text=True, cwd=tmp_path, timeout=HANGING, check=False)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    written = (tmp_path / name).read_text()
    assert written.endswith("\n")
    assert 4 < len(written.splitlines()) < 24
    lines = len(written.splitlines()) - (name == "r.csv")
    assert len(done.stdout.splitlines()) == lines + 1  # one is printed that found no room
    resumed = run(*words, "--resume", cwd=tmp_path)
    assert lines + len(resumed.stdout.splitlines()) == 24
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_what_another_version_answered_is_asked_again(monkeypatch):
    network = load(MODEL)
    (query,) = perturbed(network, [STOP], "identity")
    before = recording.question(network, query, Settings())
    assert recording.question(network, query, Settings()) == before
    monkeypatch.setattr(digests, "__version__", "0.0.9")
    assert recording.question(network, query, Settings()) != before


@pytest.mark.parametrize("option", ["--plot", "--counterexample", "--certificate", "--output"])
def test_what_cannot_be_written_is_found_out_before_the_work(tmp_path, option):
    ending = ".jsonl" if option == "--output" else ".png"
    (tmp_path / f"pipe{ending}").symlink_to("/dev/null")
    words = ("profile", "gone.onnx", STOP, "-p", "identity", option)  # the model is not looked for
    for name in (f"nowhere/x{ending}", f"pipe{ending}", "."):
        assert "gone.onnx" not in complaint(*words, name, cwd=tmp_path)
    limited = ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *COMMAND, *words, f"x{ending}"]
    done = subprocess.run(limited, capture_output=True, text=True, cwd=tmp_path, timeout=HANGING, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"shakeproof: x{ending}: cannot be written")
    assert [path.name for path in tmp_path.iterdir()] == [f"pipe{ending}"]


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Words that ask about a network and a picture which take half a second, in small windows; and the answer."""
    folder = tmp_path_factory.mktemp("slow")
    random, side, channels = np.random.default_rng(0), 16, (1, *[8] * 5)
    nodes, weights, last = [], {}, "x"
    for layer, (inputs, outputs) in enumerate(pairwise(channels)):
        weights[f"w{layer}"] = random.normal(size=(outputs, inputs, 3, 3)).astype("f4") / (3 * inputs**0.5)
        nodes.append(helper.make_node("Conv", [last, f"w{layer}"], [f"c{layer}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [last := f"r{layer}"]))
    weights["w"] = random.normal(size=(channels[-1] * side**2, 4)).astype("f4")
    nodes += [helper.make_node("Flatten", [last], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
    onnx.save(model(nodes, (1, 1, side, side), weights, (1, 4)), folder / "m.onnx")
    np.save(folder / "i.npy", np.random.default_rng(0).random((1, side, side)))
    files = (str(folder / "m.onnx"), str(folder / "i.npy"))
    words = ("profile", *files, "-p", "box-blur:size=5", "--threads", "1", "--memory", "0.02", "--json")
    return words, json.loads(run(*words).stdout)


def late(file, words, seconds: float) -> dict:
    """Lets the command run out of time after some of the way, however fast the machine is just now."""
    for _ in range(30):
        said = json.loads(run(*words, "--output", str(file), "--timeout", str(seconds)).stdout)
        if said["reason"] == "timeout" and said["pieces"]:
            return said
        seconds *= 0.6 if said["pieces"] else 1.2
        file.unlink()
    raise AssertionError("it was never stopped half way")


def test_what_ran_out_of_time_goes_on(tmp_path, slow):
    words, whole = slow
    before = late(tmp_path / "r.jsonl", words, whole["seconds"] / 3)
    assert 0 < before["certified_strength"] < whole["certified_strength"] == 1
    assert before["remaining"] == before["rest"]
    assert before["remaining"]["pieces_per_second"] == pytest.approx(before["pieces"] / before["seconds"], rel=1e-3)
    (part,) = (tmp_path / "r.jsonl.parts").iterdir()
    resume = (*words, "--output", str(tmp_path / "r.jsonl"), "--resume", "--timeout")

    nothing = json.loads(run(*resume, "1e-6").stdout)  # no time at all, and nothing is lost
    assert nothing["certified_strength"] == before["certified_strength"]
    assert nothing["seconds"] > before["seconds"]
    after = json.loads(run(*resume, "600").stdout)
    assert (after["status"], after["profile"]) == (whole["status"], whole["profile"])
    assert after["min_margin"] == pytest.approx(whole["min_margin"], abs=1e-9)
    assert after["pieces"] > before["pieces"]
    assert after["seconds"] > nothing["seconds"]
    assert not part.parent.exists()
    assert run(*resume, "600").stdout == ""


def test_a_kept_part_that_was_changed_is_refused(tmp_path, slow):
    words, whole = slow
    late(tmp_path / "r.jsonl", words, whole["seconds"] / 3)
    (part,) = (tmp_path / "r.jsonl.parts").iterdir()
    kept, written = part.read_bytes(), (tmp_path / "r.jsonl").read_bytes()
    middle = len(kept) // 2
    for data in (kept[:-100], kept[:middle] + bytes([kept[middle] ^ 1]) + kept[middle + 1 :], b""):
        part.write_bytes(data)
        assert f"{part}: is not a saved part" in complaint(
            *words, "--output", str(tmp_path / "r.jsonl"), "--resume", "--timeout", "60"
        )
        assert (tmp_path / "r.jsonl").read_bytes() == written
    part.unlink()
    assert json.loads(run(*words, "--output", str(tmp_path / "r.jsonl"), "--resume").stdout)["status"] == "safe"
