"""How much memory every 8-bit picture takes: the command's peak, beside a process that only runs the runtime.

    python benchmarks/eightbit_memory.py [--data DIR] [--timeout 20] [--memory 2] [--only 32,224,512]

Each row is a command in a process of its own. `runtime` is the peak of a process that loads the same model in
onnxruntime alone and runs as many pictures of the same size at once; `more` is what the command takes beyond that, with
the interpreter, torch and the network as it was read. The exit code is 1 if that is more than the budget. (A process is
charged for what its parent has when it begins: so torch is not imported here.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

KERNELS = ("box-blur:size=3", "motion-blur:size=9,angle=30", "gaussian-blur:size=5,sigma=1", "box-blur:size=25")
PHOTOGRAPH = "data/imagenet/imagenet_00_243.jpg"
GIB, MIB = 2**30, 2**20
ALONE = """
import sys
import numpy
import onnxruntime

model, batch, rounds = sys.argv[1], int(sys.argv[2]), 20
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
(given,) = session.get_inputs()
shape = [batch, *given.shape[1:]]
for _ in range(rounds):
    session.run(None, {given.name: numpy.random.default_rng(0).random(shape, numpy.float32)})
"""


def small_network(folder: Path, side: int) -> Path:
    """Three convolutions on pictures of a size, and the mean of each channel."""
    random, nodes, before = np.random.default_rng(0), [], "x"
    sizes = {"first": (16, 3, 3, 3), "second": (32, 16, 3, 3), "last": (10, 32, 1, 1)}
    for name, size in sizes.items():
        stride, pad = (4, 1) if size[-1] > 1 else (1, 0)
        nodes.append(helper.make_node("Conv", [before, name], [f"{name}_sum"], strides=[stride] * 2, pads=[pad] * 4))
        nodes.append(helper.make_node("Relu", [f"{name}_sum"], [before := f"{name}_relu"]))
    nodes += [helper.make_node("GlobalAveragePool", [before], ["mean"]), helper.make_node("Flatten", ["mean"], ["y"])]
    shapes = {"x": ["n", 3, side, side], "y": ["n", 10]}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    arrays = {name: random.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    file = folder / "small.onnx"
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]), file)
    return file


def peak(words: list[str]) -> tuple[str, int]:
    """What a process prints, and its peak in bytes."""
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        said = process.stdout.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return said, usage.ru_maxrss * 1024


@click.command()
@click.option("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
@click.option("--timeout", default=20.0, show_default=True, help="Seconds for each query.")
@click.option("--memory", default=2.0, show_default=True, help="The budget in GiB.")
@click.option("--only", default="32,224,512", show_default=True, help="Sides of pictures, with commas between them.")
def main(data: Path, timeout: float, memory: float, only: str) -> None:
    headings = ("side", "model", "kernel", "pictures run", "status", "runtime, MiB", "command, MiB", "more, MiB")
    table, worst = Table(*headings, title=f"--memory {memory:g}"), 0
    with TemporaryDirectory() as folder:
        cases = {
            32: (data / "networks/gtsrb_cnn.onnx", f"{data}/data/gtsrb_test_first1000.npz@3", []),
            224: (data / "networks/efficientnet_lite0_in01.onnx", str(data / PHOTOGRAPH), ["--resize", "224"]),
            512: (small_network(Path(folder), 512), str(data / PHOTOGRAPH), []),
        }
        for side in map(int, only.split(",")):
            model, image, more = cases[side]
            for kernel in KERNELS:
                options = ["--pixels", "8bit", "--memory", str(memory), "--timeout", str(timeout), "--threads", "1"]
                command = ["-m", "shakeproof", "profile", str(model), image, "-p", kernel, *options, *more, "--json"]
                said, whole = peak(command)
                row = json.loads(said)
                _, alone = peak(["-c", ALONE, str(model), str(row["deployment"]["batch"])])
                worst = max(worst, whole - alone)
                numbers = (f"{size / MIB:.0f}" for size in (alone, whole, whole - alone))
                table.add_row(str(side), model.stem, kernel, str(row["pieces"]), row["status"], *numbers)
    Console(width=140).print(table)
    sys.exit(worst > memory * GIB)


if __name__ == "__main__":
    main()
