"""Loading networks: agreement with the reference runtime, simplification, and refusals."""

from __future__ import annotations

import gzip

import numpy as np
import onnx
import pytest
import torch
from models import model, random_module
from onnx import helper
from torch import nn

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import InputError, NetworkMismatchError, UnsupportedNetworkError
from shakeproof.network.network import _compare
from shakeproof.operators import Conv, Linear, MaxPool, Scale, Transpose

random = np.random.default_rng(0)


def save(tmp_path, proto, name="model.onnx"):
    path = tmp_path / name
    path.write_bytes(proto.SerializeToString())
    return path


def classifier(*nodes, shape=(1, 1, 4, 4), weights=None, opset=13, flat=16):
    """Some nodes from `x` to `f`, then a flattening and a linear layer to three classes."""
    end = [helper.make_node("Flatten", ["f"], ["g"]), helper.make_node("Gemm", ["g", "last"], ["y"])]
    last = {"last": random.normal(size=(flat, 3)).astype(np.float32)}
    return model([*nodes, *end], shape, {**(weights or {}), **last}, opset=opset)


def test_the_demo_network_is_simplified():
    network = sp.load(demo.MODEL)
    kinds = [type(node.operator) for node in network.graph.nodes]
    assert Scale not in kinds  # batch norm is folded
    assert [k.__name__ for k in kinds].count("Relu") == 1  # the others went into max pooling
    assert network.picture().image_shape == (3, 32, 32)


def test_compressed_files(tmp_path):
    path = tmp_path / "m.onnx.gz"
    path.write_bytes(gzip.compress(demo.MODEL.read_bytes()))
    assert sp.load(path).graph.classes == 10


@pytest.mark.parametrize("seed", range(3))
def test_torch_modules_and_exported_programs(tmp_path, seed):
    module = random_module(seed)
    network = sp.load(module, torch.zeros(1, 1, 8, 8))
    x = torch.rand(5, 1, 1, 8, 8)
    expected = torch.stack([module(row)[0] for row in x]).double()
    assert (network.scores(x.double()) - expected).abs().max() < 1e-5
    torch.export.save(torch.export.export(module, (torch.zeros(1, 1, 8, 8),)), tmp_path / "m.pt2")
    again = sp.load(tmp_path / "m.pt2")
    assert torch.equal(again.scores(x.double()), network.scores(x.double()))


class Words(nn.Module):
    """The aten operators that the other modules do not use."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding="same", groups=2)
        self.norm = nn.BatchNorm1d(8, affine=False)
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        x = nn.functional.pad(x, (1, 0, 0, 1), value=0.5)
        x = nn.functional.hardtanh(self.conv(x), -0.4, 0.6)
        x = nn.functional.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False)
        x = nn.functional.relu6(nn.functional.leaky_relu(x, 0.3) * 2.0 - 0.1)
        x = nn.functional.adaptive_avg_pool2d(1.0 - x / 3.0, (1, 2))
        x = x.permute(0, 2, 3, 1).transpose(1, 3).reshape(1, -1)
        x = nn.functional.dropout(self.norm(x), training=False).unsqueeze(1).squeeze(1)
        return torch.log_softmax(-self.linear(x).clamp(max=1.5), 1)


def test_torch_words():
    network = sp.load(Words().eval(), torch.zeros(1, 2, 5, 7))
    assert any("LogSoftmax" in note for note in network.notes)


def test_unsupported_torch_operators_are_listed_together():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ELU(), nn.Flatten(), nn.Linear(72, 4), nn.Mish(), nn.Linear(4, 3))
    with pytest.raises(UnsupportedNetworkError, match=r"2 operators.*elu.*mish"):
        sp.load(module, torch.zeros(1, 1, 8, 8))
    with pytest.raises(InputError, match="example input"):
        sp.load(module)


def test_unsupported_onnx_operators_are_listed_together(tmp_path):
    proto = classifier(
        helper.make_node("Sin", ["x"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Log", ["b"], ["c"], name="second"),
        helper.make_node("Elu", ["c"], ["f"], name="third"),
    )
    with pytest.raises(UnsupportedNetworkError) as error:
        sp.load(save(tmp_path, proto))
    for word in ("3 operators", "Sin (first)", "Log (second)", "Elu (third)"):
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_a_final_softmax_is_dropped_with_a_note(tmp_path):
    nodes = [
        helper.make_node("Flatten", ["x"], ["g"]),
        helper.make_node("Gemm", ["g", "w"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
    ]
    proto = model(nodes, ("N", 1, 4, 4), {"w": random.normal(size=(16, 3)).astype(np.float32)})
    network = sp.load(save(tmp_path, proto))
    assert network.notes == ("the final Softmax is left out: it does not change which class wins",)


def test_shape_arithmetic_of_exporters(tmp_path):
    """Reshape to [Shape(x)[0], -1], as exporters write a flattening."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Unsqueeze", ["batch", "axis"], ["first"]),
        helper.make_node("Concat", ["first", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["f"]),
        helper.make_node("Mul", ["half", "two"], ["one"]),
        helper.make_node("Cast", ["one"], ["real"], to=1),
        helper.make_node("Gemm", ["f", "w"], ["s"]),
        helper.make_node("Mul", ["s", "real"], ["y"]),
    ]
    weights = {
        "zero": np.array(0),
        "axis": np.array([0]),
        "rest": np.array([-1]),
        "half": np.array(0.5, np.float64),
        "two": np.array(2.0, np.float64),
        "w": random.normal(size=(16, 3)).astype(np.float32),
    }
    network = sp.load(save(tmp_path, model(nodes, ("N", 1, 4, 4), weights)))
    assert network.graph.classes == 3


def test_fixed_batch_exports_work_with_any_batch(tmp_path):
    proto = classifier(
        helper.make_node("Reshape", ["x", "fixed"], ["r"]),
        helper.make_node("Relu", ["r"], ["f"]),
        weights={"fixed": np.array([1, 2, 8])},
    )
    network = sp.load(save(tmp_path, proto))
    x = torch.rand(5, 1, 1, 4, 4, dtype=torch.float64)
    rows = torch.cat([network.scores(row[None]) for row in x])
    assert torch.allclose(network.scores(x), rows, atol=1e-12)


def test_channels_last_networks_lose_their_transpositions(tmp_path):
    weights = {"w": random.normal(size=(2, 3, 3, 3)).astype(np.float32)}
    proto = classifier(
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Transpose", ["r"], ["f"], perm=[0, 2, 3, 1]),
        shape=(1, 8, 8, 3), weights=weights, flat=72,
    )  # fmt: skip
    network = sp.load(save(tmp_path, proto))
    assert network.picture().channels_last
    assert not any(isinstance(node.operator, Transpose) for node in network.graph.nodes)
    image = torch.rand(3, 8, 8)
    assert sp.profile(network, image, "box-blur:size=3").pieces > 1


def test_a_relu_that_others_read_stays(tmp_path):
    proto = classifier(
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["p", "r"], ["f"]),
    )
    network = sp.load(save(tmp_path, proto))
    assert [n.operator.floor for n in network.graph.nodes if isinstance(n.operator, MaxPool)] == [-float("inf")]


def test_mean_and_std_fold_into_the_network():
    plain = sp.load(demo.MODEL)
    normalised = sp.load(demo.MODEL, mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7])
    x = torch.rand(2, 1, 3, 32, 32, dtype=torch.float64)
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in ([0.1, 0.2, 0.3], [0.5, 0.6, 0.7]))
    assert torch.allclose(normalised.scores(x), plain.scores((x - mean) / std), atol=1e-9)
    assert np.abs(normalised.reference(x.float().numpy()) - normalised.scores(x).numpy()).max() < 1e-3
    for mean_, std_ in (([0.1, 0.2], [1.0]), ([0.0], [0.0])):
        with pytest.raises(InputError, match="mean and std"):
            sp.load(demo.MODEL, mean=mean_, std=std_)


def test_a_network_read_wrongly_is_refused():
    network = sp.load(demo.MODEL)
    wrong = tuple(
        type(n)(
            Linear(n.operator.weight * 1.001, n.operator.bias) if isinstance(n.operator, Linear) else n.operator,
            n.inputs,
            n.shape,
        )
        for n in network.graph.nodes
    )
    from dataclasses import replace

    with pytest.raises(NetworkMismatchError, match="differs from the reference runtime"):
        _compare(replace(network, graph=type(network.graph)(network.graph.input_shape, wrong)))


def test_a_gemm_bias_per_row_is_not_one_per_column(tmp_path):
    """C of shape (M, 1) broadcasts along the columns, even where M equals N."""
    nodes = [
        helper.make_node("Reshape", ["x", "square"], ["r"]),
        helper.make_node("Gemm", ["r", "w", "c"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"], axis=0),
        helper.make_node("Gemm", ["f", "last"], ["y"]),
    ]
    weights = {
        "square": np.array([4, 4]),
        "w": 1e-5 * random.normal(size=(4, 4)).astype(np.float32),
        "c": 1e-5 * random.normal(size=(4, 1)).astype(np.float32),
        "last": random.normal(size=(16, 3)).astype(np.float32),
    }
    network = sp.load(save(tmp_path, model(nodes, (1, 1, 4, 4), weights)))
    x = np.zeros((1, 1, 1, 4, 4), np.float32)
    assert network.scores(torch.from_numpy(x).double()).numpy() == pytest.approx(network.reference(x), rel=1e-4)


def test_sixteen_bit_casts_are_refused(tmp_path):
    proto = classifier(
        helper.make_node("Cast", ["x"], ["h"], to=onnx.TensorProto.FLOAT16),
        helper.make_node("Cast", ["h"], ["f"], to=onnx.TensorProto.FLOAT),
    )
    with pytest.raises(UnsupportedNetworkError, match="16 bits"):
        sp.load(save(tmp_path, proto))


def test_a_batch_size_fixed_within_a_dynamic_export(tmp_path):
    proto = classifier(
        helper.make_node("Reshape", ["x", "fixed"], ["f"]), shape=("N", 1, 4, 4), weights={"fixed": np.array([1, 16])}
    )
    assert sp.load(save(tmp_path, proto)).graph.classes == 3


def test_padding_with_minus_infinity_belongs_to_max_pooling(tmp_path):
    pads = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "v": np.float32(-np.inf)}
    pool = helper.make_node("MaxPool", ["q"], ["f"], kernel_shape=[2, 2], strides=[2, 2])
    pad = helper.make_node("Pad", ["x", "p", "v"], ["q"])
    network = sp.load(save(tmp_path, classifier(pad, pool, weights=pads, flat=9)))
    assert sp.profile(network, torch.randn(1, 4, 4), "box-blur:size=3").pieces > 1
    proto = classifier(pad, helper.make_node("Relu", ["q"], ["f"]), weights=pads, flat=36)
    with pytest.raises(UnsupportedNetworkError, match="infinite"):
        sp.load(save(tmp_path, proto))


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.LogSoftmax(1)])
@pytest.mark.parametrize("bias", [12.0, 30.0, 120.0])
def test_confident_softmax_networks_load(last, bias):
    """Probabilities near 0 and 1 are rounded relative to 1, not to themselves."""
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5), last)
    with torch.no_grad():
        module[3].bias[2] += bias
    assert sp.load(module, torch.zeros(1, 1, 8, 8)).dropped


def test_an_infinite_padding_that_crops_is_refused(tmp_path):
    pads = {"p": np.array([0, 0, 1, 1, 0, 0, -1, -1]), "v": np.float32(-np.inf)}
    pool = helper.make_node("MaxPool", ["q"], ["f"], kernel_shape=[2, 2], strides=[2, 2])
    proto = classifier(helper.make_node("Pad", ["x", "p", "v"], ["q"]), pool, weights=pads, flat=4)
    with pytest.raises(UnsupportedNetworkError, match="cropping"):
        sp.load(save(tmp_path, proto))


def test_a_clip_without_bounds_and_malformed_nodes(tmp_path):
    assert sp.load(save(tmp_path, classifier(helper.make_node("Clip", ["x"], ["f"])))).graph.classes == 3
    weights = {"w": random.normal(size=(1, 1, 1, 1)).astype(np.float32)}
    for strides in ([0, 0], ["a", "b"]):
        proto = classifier(helper.make_node("Conv", ["x", "w"], ["f"], strides=strides), weights=weights)
        with pytest.raises(UnsupportedNetworkError, match="malformed"):
            sp.load(save(tmp_path, proto))


class Shifted(nn.Module):
    """Constants computed on the way, as modules with their own normalisation do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.3, 0.4]))
        self.last = nn.Linear(32, 3)

    def forward(self, x):
        x = (x - self.mean.view(1, 2, 1, 1)) / self.mean[None, :, None, None]
        return nn.functional.linear(x.flatten(1), self.last.weight * 2, self.last.bias) / torch.tensor(3)


def test_torch_constants_and_odd_modules():
    assert sp.load(Shifted(), torch.zeros(1, 2, 4, 4)).graph.classes == 3

    class Two(Shifted):
        def forward(self, x):
            return super().forward(x), x

    with pytest.raises(InputError, match="2 outputs"):
        sp.load(Two(), torch.zeros(1, 2, 4, 4))

    class Branches(Shifted):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    with pytest.raises(InputError, match=r"torch\.export"):
        sp.load(Branches(), torch.zeros(1, 2, 4, 4))


def test_bad_files(tmp_path):
    whole = demo.MODEL.read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.onnx").write_text("hello")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "cut.onnx.gz").write_bytes(gzip.compress(whole)[:100])
    (tmp_path / "bad.pt2").write_bytes(b"no zip")
    for name in ("cut.onnx", "text.onnx", "empty.onnx", "cut.onnx.gz", "gone.onnx", "bad.pt2", "."):
        with pytest.raises(InputError) as error:
            sp.load(tmp_path / name)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (1, 1, "H", 4), ()])
def test_inputs_that_are_no_single_image(tmp_path, shape):
    with pytest.raises(InputError):
        sp.load(save(tmp_path, classifier(helper.make_node("Relu", ["x"], ["f"]), shape=shape)))


def test_a_flat_input_without_a_usual_size(tmp_path):
    proto = model([helper.make_node("Gemm", ["x", "w"], ["y"])], (1, 100), {"w": np.ones((100, 3), np.float32)})
    path = save(tmp_path, proto)
    with pytest.raises(InputError, match="--image-shape"):
        sp.load(path).picture()
    assert sp.load(path, image_shape=(1, 10, 10)).picture().image_shape == (1, 10, 10)
    with pytest.raises(InputError, match="does not fit"):
        sp.load(path, image_shape=(1, 9, 9))


def test_external_weights(tmp_path):
    proto = onnx.load(demo.MODEL)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=100)
    network = sp.load(tmp_path / "m.onnx")
    assert any(isinstance(node.operator, Conv) for node in network.graph.nodes)
