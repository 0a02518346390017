"""Command lines with wrong words in them, and folders of pictures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fuzzing.answers import good
from fuzzing.cases import FOLDER, LOOP, PIPE, Case
from fuzzing.changes import BYTES, Random, one_of
from fuzzing.pictures import kernel_array, small_archive, small_picture

# Command lines that are right. The files are those of `_files`.
COMMANDS = (
    "profile m.onnx x.npy -p box-blur:size=3 --max-strength 0.2 --json",
    "profile m.onnx x.npy -p motion-blur:size=3,angle=30 --plot out.png",
    "profile m.onnx x.npy -p sharpen:size=3,clip=0..1 --label 0 --quiet --output out.csv --strict",
    "profile m.onnx d.npz@0:2 -p gaussian-blur:size=3,sigma=1 -p defocus:radius=1 --junit out.xml",
    "profile m.onnx x.bmp -p haze:colour=0.8 --resize 4,4 --crop 4 --colour grey --mean half --certificate out.cert",
    "verify m.onnx x.npy -p brightness:max=0.2+contrast:max=0.2 --strength 0.2,0.1 --tolerance 0.01",
    "verify m.onnx x.npy -p unsharp:size=3,sigma=1 --strength 0.3 --counterexample out.png --method exact",
    "verify m.onnx x.npy -p any-kernel:size=3 --strength 0.01 --output out.jsonl --memory 1 --threads 1",
    "verify m.onnx x.npy -p custom:file=k.npy,normalise=yes --strength 0.2 --arithmetic float32 --std 0.5 --scale 0..1",
    "verify m.onnx d.npz@1 -p psf:file=k.npy --strength 0.2 --array x --labels y --image-shape 1,4,4 --output-name y",
    "export m.onnx x.npy -p box-blur:size=3 --strength 0.2 --output out",
    "export m.onnx x.npy -p box-blur:size=3 --strength 0.2 --output out --format perturbed --json",
    "kernels motion-blur:size=5,angle=45 --strength 0.5",
    "kernels defocus:radius=2+brightness:max=0.1 --strength 0.5,1 --png out.png --image x.bmp",
    "supports m.onnx x.npy --json --trial 0 --image-shape 1,4,4",
)
# What words become.
VALUES = (
    *("", " ", "-", "--", "-p", "0", "-0", "1", "-1", "2", "3", "4", "1e-320", "1e-9", "1e9", "1e400", "-1e400", "nan"),
    *("inf", "-inf", "0x10", "1_000", "٣", "１", "½", "999999999999", "9" * 30, "9" * 5000, "0.1.2", "1,", ",", "1,2"),
    *(
        "0,0",
        "0.2,0.2,0.2",
        "0..1",
        "1..0",
        "0..0",
        "..",
        "nan..1",
        "0..inf",
        "a",
        "é",
        "%s",
        "{}",
        "[red]",
        "\x1b[31m",
    ),
    *("a\nb", "\udcff", "x.npy", "m.onnx", "d.npz", "k.npy", "x.bmp", "d.npz@", "d.npz@9", "d.npz@-1", "d.npz@0:0"),
    *("d.npz@0:9:2", "d.npz@0:2:0", "d.npz@x.png", "*.np?", "[", "*", ".", "..", "~", "missing.png", "/dev/null"),
    *("pipe", "a-folder", "out-pipe.png", "loop", "cpu", "meta", "cuda", "cpu:7", "mps", "exact", "bounds"),
    *("float32", "imagenet", "half", "rgb", "nearest", "4,nearest", "4,4,bicubic", "1,4,4", "1,1,16", "16,1,1", "y"),
)
# What perturbations become.
TEXTS = (
    *(
        "box-blur",
        "box-blur:",
        "box-blur:size",
        "box-blur:size=",
        "box-blur:size=0",
        "box-blur:size=2",
        "identity",
        "+",
    ),
    *("box-blur:size=-3", "box-blur:size=999999999", "box-blur:size=3,size=3", "box-blur:size=3,clip=1..0", "identity"),
    *("box-blur:size=3,clip=nan..1", "box-blur:size=3,padding=none", "box-blur:size=7,padding=circular"),
    *("motion-blur:size=3,angle=nan", "motion-blur:size=3,angle=1e300", "motion-blur:size=5,angle=-0.1"),
    *("gaussian-blur:size=3,sigma=0", "gaussian-blur:size=3,sigma=1e-300", "gaussian-blur:size=3,sigma=1e300"),
    *("gaussian-blur:size=999,sigma=100", "gaussian-blur:size=5,sigma=inf", "defocus:radius=0", "defocus:radius=1e-9"),
    *("defocus:radius=1e9", "defocus:radius=nan", "unsharp:size=3,sigma=-1", "haze:colour=nan", "haze:colour=2"),
    *("brightness:max=0", "brightness:max=1e308", "brightness:max=-inf", "contrast:max=-2", "contrast:max=1e-320"),
    *(
        "box-blur:size=3,at=original",
        "box-blur:size=3,at=network",
        "haze:colour=0,clip=0..1,at=original",
        "identity:at=x",
    ),
    *("otf:size=5", "otf:size=5,jitter=1e9", "otf:size=127,aperture=1e-9", "otf:size=5,turbulence=nan"),
    *("any-kernel:size=0", "any-kernel:size=9", "any-kernel:size=3+box-blur:size=3", "custom:file=", "sharpen:size=1"),
    *("custom:file=k.npy,index=1", "custom:file=k.npy,normalise=maybe", "psf:file=missing.mat", "psf:file=pipe"),
    *("psf:file=m.onnx", "custom:file=pipe.npy", "custom:file=d.npz", "brightness:max=0.1+" * 9 + "brightness:max=0.1"),
    *("box-blur:size=3+box-blur:size=5", "custom:file=a-folder", "custom:file=k.npy\n", "psf:file=k.npy,index=\udcff"),
)
# What files may be called.
NAMES = (
    *(
        "$x^{$",
        "\udcff\udcfe",
        "a\nb",
        "-x",
        "--json",
        "a b",
        "[x]",
        "*",
        "%s",
        "é",
        "日本",
        "x@0:2",
        "a+b",
        "a,size=3",
    ),
    *("[red]", "x" * 200, "~", "{0}", "\x1b[31m", "'\"", "\\", "\u202ex", "_^_", "$\\frac$", "a.npz@1", "<b>&amp;"),
)
# Options that the command lines above do not have.
RARE = ("timeout", "rounding", "classes", "preprocess", "resume", "profile", "results", "network", "device")
OPTIONS = (
    *sorted({word for line in COMMANDS for word in line.split() if word.startswith("--")} - {"--trial"}),
    *(f"--{name}" for name in RARE),
)


class WordsKind:
    """Commands with one to three of their words replaced, lost, doubled or moved, or with files of strange names."""

    def case(self, seed: int, random: Random, broken: bool = True) -> Case:
        words, files = COMMANDS[seed % len(COMMANDS)].split(), _files()
        if not broken:
            return Case(files, (*words,), several=True)
        if not random.integers(3):
            return _renamed(Case(files, (*words,), several=True), random)
        for _ in range(random.integers(1, 4)):
            _change(words, random)
        # whoever asks for the wrong thing may have to wait for it, and these do not want to
        last = ("--timeout", "2") if words[0] in ("profile", "verify") and "--timeout" not in words else ()
        return Case(files, (*words, *last), "words", several=True)


def _change(words: list[str], random: Random) -> None:
    at = int(random.integers(len(words)))
    match random.integers(8):
        case 0:
            words[at : at + 1] = []
        case 1:
            words.insert(at, words[at])
        case 2:
            words.insert(int(random.integers(len(words))), words.pop(at))
        case 3:
            words[at] = one_of(BYTES, random)(words[at].encode(errors="surrogateescape"), random).decode(
                errors="surrogateescape"
            )
        case 4 if "-p" in words[:-1]:
            words[words.index("-p") + 1] = one_of(TEXTS, random)
        case 5:
            words[at:at] = [one_of(OPTIONS, random), one_of(VALUES, random)]
        case _:
            words[at] = one_of(VALUES, random)
    words[:] = [_harmless(word) for word in words] or ["--help"]


def _harmless(word: str) -> str:
    """What a process can be given, and what does not leave its folder."""
    return word.replace("\0", "0").replace("..", "." if "/" in word or word == ".." else "..")


def _renamed(case: Case, random: Random) -> Case:
    """The same, but a file that is read, or one that is written, is called something strange."""
    name = one_of(("x.npy", "x.bmp", "m.onnx", "k.npy", "d.npz", "out"), random)
    strange = one_of(NAMES, random)
    if name == "out":  # the beginning says that it is an output
        return replace(case, words=tuple(word.replace("out", f"out{strange}") for word in case.words), how=strange)
    start, _, ending = name.partition(".")
    words = tuple(_replaced(word, name, f"{strange}.{ending}") for word in case.words)
    files = {(f"{strange}.{ending}" if held == name else held): data for held, data in case.files.items()}
    return replace(case, files=files, words=words, how=f"{start} is {strange!r}")


def _replaced(word: str, name: str, other: str) -> str:
    return word.replace(name, other) if not word.startswith("-") else word


def _files() -> dict[str, bytes | str]:
    random = np.random.default_rng(0)
    return {
        **{name: good(name) for name in ("m.onnx", "x.npy")},
        "x.bmp": small_picture("BMP")(random),
        "d.npz": small_archive(random),
        "k.npy": kernel_array(random),
        **dict.fromkeys(("pipe", "pipe.npy", "out-pipe.png"), PIPE),
        "a-folder": FOLDER,
        "loop": LOOP,
    }


class FolderKind:
    """Folders of pictures, some of them broken, in subfolders or beside them, with other things in between."""

    def case(self, seed: int, random: Random, broken: bool = True) -> Case:
        files: dict[str, bytes | str] = {name: good(name) for name in ("m.onnx",)}
        folders = [one_of(("", "0", "1", "2", "7", "cat", "dog", *(NAMES if broken else ())), random) for _ in range(2)]
        folders = folders if broken else ["0"]
        for number in range(random.integers(0 if broken else 1, 7)):
            data: bytes | str = small_picture("BMP")(np.random.default_rng(0))
            name = f"{number}.{one_of(('bmp', 'bmp', 'BMP', 'png', 'txt', 'npy') if broken else ('bmp',), random)}"
            if broken and not random.integers(3):
                data = one_of((PIPE, FOLDER, LOOP, one_of(BYTES, random)(data, random)), random)
            if broken and not random.integers(4):
                name = f"{one_of(NAMES, random)}.bmp"
            files["/".join(filter(None, ("d", one_of(folders, random), name)))] = data
        word = one_of(("d", "d", "d/", "d/*", "d/*/*", "d/**", "d/[0-2]*", "*"), random) if broken else "d"
        files.setdefault("d", FOLDER)
        more = one_of(((), ("--strict",), ("--label", "0"), ("--output", "out.jsonl"), ("--junit", "out.xml")), random)
        command = "-p box-blur:size=3 --max-strength 0.2 --timeout 2 --json --resize 4,4 --colour grey"
        return Case(files, ("profile", "m.onnx", word, *command.split(), *more), "folder", several=True)
