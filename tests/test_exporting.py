"""What other verifiers are given is the same question: compared in onnxruntime, and with Marabou's verdicts."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from models import model
from onnx import TensorProto, helper, numpy_helper

import shakeproof as sp
from shakeproof import demo, exporting
from shakeproof.errors import InputError
from shakeproof.question import as_picture, read_image, read_specification, written_perturbed

SIGN = demo.images()[0][0]
MNIST, DIGIT = "benchmarks/mnist_fc/onnx/mnist-net_256x2.onnx", "benchmarks/mnist_fc/vnnlib/prop_0_0.03.vnnlib.gz"


def dense(
    shape: tuple[int | str, ...] = (1, 48), classes: int = 3, hidden: int = 12, seed: int = 0, **options
) -> onnx.ModelProto:
    """Two dense layers on a flattened input; its image axes may be in any order."""
    draw = np.random.default_rng(seed)
    size = int(np.prod([side for side in shape if isinstance(side, int)]))
    weights = {
        "w": draw.normal(size=(size, hidden)).astype(np.float32),
        "b": draw.normal(size=hidden).astype(np.float32),
        "v": draw.normal(size=(hidden, classes)).astype(np.float32),
        "c": draw.normal(size=classes).astype(np.float32),
    }
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v", "c"], ["y"]),
    ]
    return model(nodes, shape, weights, (1, classes), **options)


def save(proto: onnx.ModelProto, folder: Path, name: str = "m.onnx") -> Path:
    data = proto.SerializeToString()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder / name


def runtime(path: Path):
    data = path.read_bytes()
    session = onnxruntime.InferenceSession(
        gzip.decompress(data) if path.suffix == ".gz" else data, providers=["CPUExecutionProvider"]
    )
    dtype = {"tensor(float)": np.float32, "tensor(double)": np.float64}[session.get_inputs()[0].type]
    return lambda x: session.run(None, {session.get_inputs()[0].name: x.astype(dtype)})[0].reshape(-1)


def picture(shape: tuple[int, int, int], seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(size=shape))


def assert_same_function(
    source, written, pixels, perturbation, shape, channels_last=False, mean=(0.0,), std=(1.0,), samples=50
) -> None:
    """The augmented network at z is the original one on the image perturbed by z."""
    perturbation = sp.parse(perturbation)
    path = perturbation.apply(pixels)
    original, augmented = runtime(source), runtime(written.augmented)
    for z in np.random.default_rng(2).uniform(size=(samples, perturbation.parameters)).astype(np.float32):
        image = path.image(*map(float, z)).numpy()
        assert perturbation.clip is None or np.array_equal(image, image.clip(*perturbation.clip))
        image = (image - np.reshape(mean, (-1, 1, 1))) / np.reshape(std, (-1, 1, 1))
        image = image.transpose(1, 2, 0) if channels_last else image
        expected, found = original(image.reshape(shape)), augmented(z[None])
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(
    "perturbation",
    [
        "motion-blur:size=9,angle=30",
        "box-blur:size=4",
        "sharpen:size=5+brightness:max=0.7,clip=0..1",
        "brightness:max=-0.2+contrast:max=0.3",
        "gaussian-blur:size=7,sigma=1.5+haze:colour=0.8",
        "defocus:radius=2.5+unsharp:size=5,sigma=1",
    ],
)
def test_the_bundled_network(tmp_path, demo_network, perturbation):
    written = sp.export(demo.MODEL, SIGN, perturbation, 0.5, tmp_path / "new" / "folder")
    pixels = read_image(str(SIGN)).fitted(demo_network.picture()).pixels
    assert_same_function(demo.MODEL, written, pixels, perturbation, (1, 3, 32, 32))
    assert sorted(p.name for p in written.query.parent.iterdir()) == ["augmented.onnx", "query.vnnlib"]


def test_a_flat_network(shared, tmp_path):
    source, image = shared(MNIST), shared(DIGIT)
    written = sp.export(source, image, "box-blur:size=5", 0.5, tmp_path)
    pixels = read_image(str(image)).fitted(sp.load(source).picture()).pixels
    assert_same_function(source, written, pixels, "box-blur:size=5", (1, 784, 1))


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
@pytest.mark.parametrize("name", ["m.onnx", "m.onnx.gz"])
def test_opsets_and_flat_shapes(tmp_path, opset, name):
    source = save(dense(opset=opset), tmp_path, name)
    pixels, text = picture((3, 4, 4)), "box-blur:size=3+contrast:max=2,clip=0.1..0.9"
    written = sp.export(source, pixels, text, (0.2, 0.3), tmp_path, image_shape=(3, 4, 4))
    assert_same_function(source, written, pixels, text, (1, 48))


def test_channels_last_and_normalisation(tmp_path):
    source = save(dense((1, 8, 6, 3)), tmp_path)
    pixels, text = picture((3, 8, 6)), "motion-blur:size=3,angle=45,clip=0.2..0.8"
    norm = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}
    written = sp.export(source, pixels, text, 1, tmp_path, **norm)
    assert_same_function(source, written, pixels, text, (1, 8, 6, 3), channels_last=True, **norm)
    with pytest.raises(AssertionError):  # the comparison can tell
        assert_same_function(source, written, pixels, text, (1, 8, 6, 3), channels_last=False, **norm)
    half = sp.export(source, pixels, text, 1, tmp_path, std=(2.0,))
    assert_same_function(source, half, pixels, text, (1, 8, 6, 3), channels_last=True, std=(2.0,))


def test_the_network_itself_is_untouched(tmp_path):
    written = sp.export(demo.MODEL, SIGN, "box-blur:size=3", 0.5, tmp_path)
    before, after = onnx.load(demo.MODEL), onnx.load(written.augmented)
    onnx.checker.check_model(after, full_check=True)
    count = len(before.graph.node)
    assert list(after.graph.node)[-count:] == list(before.graph.node)
    assert [n.op_type for n in after.graph.node][:-count] == ["Gemm", "Reshape"]
    assert list(after.graph.initializer)[: len(before.graph.initializer)] == list(before.graph.initializer)
    assert (after.ir_version, list(after.opset_import)) == (before.ir_version, list(before.opset_import))
    assert [(i.name, [d.dim_value for d in i.type.tensor_type.shape.dim]) for i in after.graph.input] == [("z", [1, 1])]
    (scores,) = after.graph.output
    assert scores.name == before.graph.output[0].name
    assert [d.dim_value for d in scores.type.tensor_type.shape.dim] == [1, 10]  # the batch was open


@pytest.mark.parametrize(("perturbation", "mean"), [("box-blur:size=3", None), ("sharpen:size=3,clip=0..1", (0.1,))])
def test_other_verifiers_need_a_flat_bias_and_an_open_batch(tmp_path, perturbation, mean):
    written = sp.export(demo.MODEL, SIGN, perturbation, 0.5, tmp_path, mean=mean)
    graph = onnx.load(written.augmented).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    assert constants["R_A"].shape == (3072, 1)
    assert constants["R_B"].shape == (3072,)
    assert constants["shape"].tolist() == [-1, 3, 32, 32]


def pooled(pads: int, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    """A normalisation in the file, a convolution, given nodes from `h` to `r`, max pooling, and a dense layer."""
    draw = np.random.default_rng(0)
    side = (8 + 2 * pads - 3) // 2 + 1
    weights = {
        "m": np.full((1, 3, 1, 1), 0.25, np.float32),
        "d": np.array([0.5, 0.25, 2.0], np.float32).reshape(3, 1, 1),
        "k": draw.normal(size=(4, 3, 3, 3)).astype(np.float32),
        "v": draw.normal(size=(4 * side**2, 3)).astype(np.float32),
    }
    return model(
        [
            helper.make_node("Sub", ["m", "x"], ["s"]),
            helper.make_node("Div", ["s", "d"], ["n"]),
            helper.make_node("Conv", ["n", "k"], ["h"], pads=[1, 1, 1, 1]),
            *nodes,
            helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[pads] * 4),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("MatMul", ["f", "v"], ["y"]),
        ],
        (1, 3, 8, 8),
        weights,
        (1, 3),
    )


@pytest.mark.parametrize("pads", [0, 1])
def test_max_pooling_as_relus_and_folded_normalisation(tmp_path, pads):
    source = save(pooled(pads, [helper.make_node("Relu", ["h"], ["r"])]), tmp_path)
    pixels, text = picture((3, 8, 8)), "box-blur:size=3"
    written = sp.export(source, pixels, text, 0.7, tmp_path, rewrite=True, mean=(0.1,), std=(0.5,))
    assert_same_function(source, written, pixels, text, (1, 3, 8, 8), mean=(0.1,), std=(0.5,))
    kinds = [node.op_type for node in onnx.load(written.augmented).graph.node]
    assert kinds[:3] == ["Gemm", "Reshape", "Conv"]
    assert set(kinds[3:]) == {"Relu", "Conv", "Sub", "Add", "Flatten", "MatMul"}
    assert kinds.count("Conv") == 1 + 9


def test_padded_max_pooling_of_signed_values_stays(tmp_path):
    source = save(pooled(1, [helper.make_node("Identity", ["h"], ["r"])]), tmp_path)
    with pytest.raises(InputError, match="max pooling p cannot be written as ReLUs"):
        sp.export(source, picture((3, 8, 8)), "box-blur:size=3", 0.7, tmp_path / "new", rewrite=True)
    assert not (tmp_path / "new").exists()


def test_names_that_collide(tmp_path):
    weights = {name: np.full((1, 1, 4, 4), 0.5, np.float32) for name in ("R_A", "R_B", "shape")}
    nodes = [
        helper.make_node("Add", ["z", "R_A"], ["z_gemm"], "z_reshape"),
        helper.make_node("Mul", ["z_gemm", "R_B"], ["low"]),
        helper.make_node("Add", ["low", "shape"], ["high"]),
        helper.make_node("Flatten", ["high"], ["y"]),
    ]
    proto = model(nodes, (1, 1, 4, 4), weights, (1, 16))
    proto.graph.input[0].name = "z"
    source = save(proto, tmp_path)
    text = "box-blur:size=3,clip=0.4..0.6"
    written = sp.export(source, picture((1, 4, 4)), text, 1, tmp_path)
    onnx.checker.check_model(onnx.load(written.augmented), full_check=True)
    assert_same_function(source, written, picture((1, 4, 4)), text, (1, 1, 4, 4))


def test_old_files_list_their_weights_as_inputs(tmp_path):
    proto = dense((1, 1, 4, 4), opset=8)
    proto.ir_version = 3
    proto.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in proto.graph.initializer
    )
    source = save(proto, tmp_path)
    written = sp.export(source, picture((1, 4, 4)), "box-blur:size=3", 1, tmp_path)
    onnx.checker.check_model(onnx.load(written.augmented))
    assert_same_function(source, written, picture((1, 4, 4)), "box-blur:size=3", (1, 1, 4, 4))


def test_double_softmax_and_weights_in_other_files(tmp_path):
    weights = {"w": np.random.default_rng(0).normal(size=(16, 3))}
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["l"]),
        helper.make_node("Softmax", ["l"], ["y"], axis=1),
    ]
    proto = model(nodes, (1, 1, 4, 4), weights)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    inside = save(proto, tmp_path, "inside.onnx")
    source = tmp_path / "m.onnx"
    onnx.save(proto, source, save_as_external_data=True, location="weights.bin", size_threshold=0)
    written = sp.export(source, picture((1, 4, 4)), "box-blur:size=3", 1, tmp_path / "out")
    (tmp_path / "weights.bin").unlink()
    assert [n.op_type for n in onnx.load(written.augmented).graph.node][-1] == "Softmax"
    assert_same_function(inside, written, picture((1, 4, 4)), "box-blur:size=3", (1, 1, 4, 4))


def test_the_question(tmp_path):
    source = save(dense((1, 3, 4, 4), classes=3), tmp_path)
    strengths = (0.25, 1e-7)
    written = sp.export(source, picture((3, 4, 4)), "box-blur:size=3+brightness:max=1", strengths, tmp_path, label=1)
    text = written.query.read_text()
    assert written.label == 1
    header = [line for line in text.splitlines() if line.startswith(";")]
    assert f"; model: {source}" in header
    assert "; perturbation: box-blur:size=3+brightness:max=1" in header
    assert {"; label: 1", "; strength: 0.25,1e-07", "; image: array"} <= set(header)
    body = " ".join(line for line in text.splitlines() if not line.startswith(";"))
    assert re.findall(r"declare-const (\w+) Real", body) == ["X_0", "X_1", "Y_0", "Y_1", "Y_2"]
    assert "(assert (>= X_1 0.0)) (assert (<= X_1 0.0000001))" in body
    assert "(assert (or (and (>= Y_0 Y_1)) (and (>= Y_2 Y_1)) ))" in re.sub(r"\s+", " ", body)
    read = read_specification(written.query)
    assert read.label == 1
    assert [side.tolist() for side in read.box] == [[0, 0], list(strengths)]


def test_the_label_is_the_given_one_the_images_own_or_the_prediction(tmp_path, demo_network):
    pixels = read_image(str(SIGN)).fitted(demo_network.picture())
    predicted = int(demo_network.scores(pixels.pixels[None, None])[0].argmax())
    own = sp.Image("mine", pixels.pixels, (predicted + 1) % 10)
    assert sp.export(demo.MODEL, SIGN, "box-blur:size=3", 1, tmp_path).label == predicted
    assert sp.export(demo.MODEL, own, "box-blur:size=3", 1, tmp_path).label == own.label
    assert sp.export(demo.MODEL, own, "box-blur:size=3", 1, tmp_path, label=2).label == 2


def test_only_the_query(tmp_path, demo_network):
    def write(text: str, strength: float) -> exporting.Exported:
        image = read_image(str(SIGN)).fitted(demo_network.picture())
        (query,) = sp.perturbed(demo_network, [image], text, 0, strength)
        return exporting.write_query(demo.MODEL, demo_network, query, tmp_path, form="vnnlib")

    assert write("box-blur:size=3", 0.1).augmented is None
    assert [p.name for p in tmp_path.iterdir()] == ["query.vnnlib"]
    sp.export(demo.MODEL, SIGN, "box-blur:size=3", 0.1, tmp_path, label=0)
    network = (tmp_path / "augmented.onnx").read_bytes()
    assert read_specification(write("box-blur:size=3", 0.2).query).box[1].tolist() == [0.2]
    with pytest.raises(sp.ShakeproofError, match="another image or perturbation"):
        write("box-blur:size=5", 0.3)
    assert read_specification(tmp_path / "query.vnnlib").box[1].tolist() == [0.2]
    assert (tmp_path / "augmented.onnx").read_bytes() == network


@pytest.mark.parametrize("channels_last", [False, True])
def test_perturbed(tmp_path, channels_last):
    source = save(dense((1, 8, 6, 3) if channels_last else (1, 3, 8, 6)), tmp_path)
    pixels, text = picture((3, 8, 6)), "box-blur:size=3+brightness:max=0.2,clip=0..1"
    options = {"mean": (0.1, 0.2, 0.3), "std": (0.5,), "label": 1, "form": "perturbed"}
    written = sp.export(source, pixels, text, (0.25, 1e-7), tmp_path / "out", **options)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["perturbed.vnnlib"]
    assert (written.augmented, written.label) == (None, 1)
    read = read_specification(written.query)
    assert read.directives == {
        "perturbation": text,
        "strength": "0.25,1e-07",
        "mean": "0.1,0.2,0.3",
        "std": "0.5",
        "image-shape": "3,8,6",
    }
    in_order = pixels.permute(1, 2, 0) if channels_last else pixels
    assert all(np.array_equal(side, in_order.reshape(-1)) for side in read.box)
    image = read_image(str(written.query)).fitted(sp.load(source).picture())
    assert torch.equal(image.pixels, pixels)
    assert image.label == read.label == 1
    assert written_perturbed(read) == written.query.read_text()


def test_refusals_leave_nothing_behind(tmp_path, monkeypatch):
    target = tmp_path / "out"
    old = model([helper.make_node("Flatten", ["x"], ["y"])], (1, 3, 32, 32), opset=6)
    for words, message in (
        ({"model": tmp_path / "gone.onnx"}, "cannot read the network"),
        ({"model": torch.nn.Linear(3, 2)}, "Linear: export takes an ONNX file"),
        ({"label": 10}, "label 10 is not one of"),
        ({"strength": (0.1, 0.2)}, "takes one strength, not 2"),
        ({"perturbation": "box-blur:size=65"}, "too large"),
        ({"image": sp.Image("bright", np.full((3, 32, 32), 1e39))}, "too large for float32"),
        ({"model": save(old, tmp_path)}, "opset 6; convert it to 7"),
    ):
        asked = {"model": demo.MODEL, "image": SIGN, "perturbation": "box-blur:size=3", "strength": 0.1, **words}
        with pytest.raises(sp.ShakeproofError, match=message):
            sp.export(**asked, folder=target)
        assert not target.exists()
    (target / "query.vnnlib").mkdir(parents=True)
    with pytest.raises(sp.ShakeproofError, match=r"query\.vnnlib: is a folder"):
        sp.export(demo.MODEL, SIGN, "box-blur:size=3", 0.1, target)
    assert [p.name for p in target.iterdir()] == ["query.vnnlib"]
    full = tmp_path / "full"
    written = Path.write_bytes

    def out_of_space(path: Path, data: bytes) -> int:
        if path.name.startswith(".query"):
            written(path, data[:10])
            raise OSError(28, "No space left on device")
        return written(path, data)

    monkeypatch.setattr(Path, "write_bytes", out_of_space)
    with pytest.raises(sp.ShakeproofError, match="No space left"):
        sp.export(demo.MODEL, SIGN, "box-blur:size=3", 0.1, full)
    assert list(full.iterdir()) == []


def test_the_function_is_not_hidden_by_its_module():
    assert sp.export is sp.export is exporting.export


# -- another verifier -------------------------------------------------------------------------------------------------


def marabou(written: sp.Exported, timeout: int = 60) -> tuple[str, np.ndarray]:
    """Marabou's verdict on the two files as they are, and the strengths it found."""
    words = [sys.executable, "-m", "maraboupy", written.augmented, written.query, f"--timeout={timeout}"]
    done = subprocess.run([*map(str, words), "--verbosity=0"], capture_output=True, text=True, timeout=2 * timeout)
    verdict = next((line for line in done.stdout.splitlines() if line in ("sat", "unsat")), done.stdout + done.stderr)
    return verdict, np.array([float(z) for z in re.findall(r"x\d+ = (\S+)", done.stdout)], np.float32)


def assert_marabou_agrees(source: Path, image, perturbation: str, strength: float, folder: Path, **options) -> str:
    result = sp.verify(sp.load(source, **options), image, perturbation, strength)
    written = sp.export(source, image, perturbation, strength, folder, **options)
    verdict, z = marabou(written)
    assert verdict == {sp.Status.SAFE: "unsat", sp.Status.UNSAFE: "sat"}[result.status]
    if verdict == "sat":
        scores = runtime(written.augmented)(z[None])
        assert np.delete(scores, written.label).max() >= scores[written.label] - 1e-3
    return verdict


def test_marabou_agrees(tmp_path):
    pytest.importorskip("maraboupy")
    found = []
    for seed in range(4):
        source = save(dense((1, 36), hidden=8, seed=seed), tmp_path)
        image = as_picture(np.random.default_rng(seed).uniform(size=36), (1, 6, 6))
        critical = sp.profile(sp.load(source, image_shape=(1, 6, 6)), image, "sharpen:size=5").critical_strength
        middle = 0.5 if critical is None else critical[0]
        for perturbation, strength in (
            ("sharpen:size=5", 0.95 * middle),
            ("sharpen:size=5", min(1.0, 1.05 * middle)),
            ("box-blur:size=3+contrast:max=-0.9", 0.8),
        ):
            found.append(assert_marabou_agrees(source, image, perturbation, strength, tmp_path, image_shape=(1, 6, 6)))
    assert {*found} == {"sat", "unsat"}


@pytest.mark.slow
def test_marabou_agrees_on_mnist(shared, tmp_path):
    pytest.importorskip("maraboupy")
    assert_marabou_agrees(shared(MNIST), shared(DIGIT), "box-blur:size=5", 0.1, tmp_path)
