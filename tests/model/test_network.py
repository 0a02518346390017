"""Loading networks: agreement with the reference runtime, simplification, and refusals."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
import pytest
import torch
from models import model, network_of
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional

import shakeproof as sp
from shakeproof import demo
from shakeproof.bounds import Boxes, enclose
from shakeproof.errors import InputError, NetworkMismatchError, UnsupportedNetworkError
from shakeproof.model import read
from shakeproof.model.loading import _compared
from shakeproof.model.network import Normalisation
from shakeproof.operators import (
    Conv,
    Gelu,
    Linear,
    MatMul,
    MaxPool,
    Multiply,
    Power,
    Reshape,
    Scale,
    Silu,
    Softmax,
    Transpose,
)

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


def test_a_relu_of_a_relu_is_one(tmp_path):
    names = ["x", *map(str, range(50)), "f"]
    network = sp.load(save(tmp_path, classifier(*(helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)))))
    assert [type(node.operator).__name__ for node in network.graph.nodes].count("Relu") == 1


def test_compressed_files(tmp_path):
    path = tmp_path / "m.onnx.gz"
    path.write_bytes(gzip.compress(demo.MODEL.read_bytes()))
    assert sp.load(path).graph.classes == 10


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


class Block(nn.Module):
    """A patch transformer: class token, positions, attention written in two ways, a GELU network."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv = nn.Linear(width, 3 * width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.last = nn.Linear(width, 3)

    def heads_of(self, x):
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        q, k, v = map(self.heads_of, self.qkv(self.norms[0](x)).chunk(3, dim=-1))
        x = x + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        q, k, v = self.qkv(self.norms[1](x)).split(8, dim=-1)
        x = x + torch.bmm(torch.softmax(torch.bmm(q, k.transpose(-2, -1)) * 0.3, dim=-1), v)
        x = x + self.narrow(functional.gelu(self.wide(self.norms[2](x))))
        return self.last(x[:, 0])


class Curves(nn.Module):
    """A convolutional network with smooth activations, some in place, and squeeze-and-excitation."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(5))
        self.squeeze = nn.Conv2d(4, 4, 1)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        first, *convs = self.convs
        x = functional.silu(first(x.repeat_interleave(4, 1) if x.shape[1] == 1 else x), inplace=True)
        x = functional.hardswish(convs[0](x), inplace=True)
        x = functional.gelu(convs[1](x), approximate="tanh")
        x = functional.softplus(convs[2](x), beta=3.0)
        x = x * functional.hardsigmoid(self.squeeze(functional.adaptive_avg_pool2d(x, 1)))
        x = torch.sigmoid_(convs[3](x)).mul_(functional.silu(x))
        return self.last(torch.erf(functional.avg_pool2d(x, 4)).flatten(1).tanh())


class Gates(nn.Module):
    """Products, quotients, powers, and every way to cut a value."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.last = nn.Linear(8, 3, bias=False)

    def forward(self, x):
        x = functional.glu(torch.cat([self.first(x.flatten(1)), x.flatten(1)], 1)).unflatten(1, (3, 4))
        a, b, c = x.unbind(1)
        d, e = a.split_with_sizes([1, 3], dim=1)
        x = torch.stack([a * b, a / (b.square() + 1), torch.rsqrt(c**2 + 0.5), (c.exp() + 1).reciprocal()], dim=-1)
        x = x / x.pow(4).sum(dim=(1, 2), keepdim=True).add(0.5).sqrt()
        x = x[:, torch.tensor([2, 0, 1])] - 0.5 * x.index_select(1, torch.tensor([3, 3, 0])) * d.unsqueeze(-1)
        x = torch.add(x[:, ::2].flatten(1), 2.0 / (x[:, 1].sum(-1, keepdim=True) ** 2 + 3.0), alpha=0.7)
        return self.last(x * e.mean(1, keepdim=True).expand(-1, 8) - (x * x).sum())


@pytest.mark.parametrize(
    ("module", "shape"), [(Block, (1, 1, 8, 8)), (Curves, (1, 4, 8, 8)), (Gates, (1, 12))], ids=lambda v: str(v)[-20:]
)
def test_smooth_torch_modules(module, shape):
    made = module().eval()
    network = sp.load(made, torch.zeros(shape))
    x = torch.randn(5, *shape)
    with torch.no_grad():
        exact = torch.cat([made.double()(row.double()) for row in x])
    assert (network.scores(x.double()) - exact).abs().max() < 1e-6 * exact.abs().max()
    assert not network.graph.is_piecewise_linear


def test_torch_attention_modules():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu")
    module = nn.Sequential(nn.Unflatten(1, (6, 8)), layer, nn.Flatten(), nn.Linear(48, 3))
    kinds = [type(n.operator) for n in sp.load(module, torch.zeros(1, 48)).graph.nodes]
    assert (kinds.count(MatMul), kinds.count(Softmax), kinds.count(Gelu)) == (2, 1, 1)


def test_unsupported_onnx_operators_are_listed_together(tmp_path):
    proto = classifier(
        helper.make_node("Sin", ["x"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Cos", ["b"], ["c"], name="second"),
        helper.make_node("Tan", ["c"], ["f"], name="third"),
    )
    with pytest.raises(UnsupportedNetworkError) as error:
        sp.load(save(tmp_path, proto))
    for word in ("3 operators", "Sin (first)", "Cos (second)", "Tan (third)"):
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


def test_a_softmax_over_part_of_the_output_stays(tmp_path):
    nodes = [helper.make_node("Flatten", ["x"], ["g"]), helper.make_node("Softmax", ["g"], ["y"], axis=0)]
    network = sp.load(save(tmp_path, model(nodes, (1, 1, 4, 4))))
    assert network.dropped is None
    assert network.scores(torch.rand(1, 1, 1, 4, 4, dtype=torch.float64)).tolist() == [[1.0] * 16]


@pytest.mark.parametrize(
    ("name", "smooth"),
    [("networks/cifar10_vit_ibp_3_3_8.onnx", "MatMul, Softmax"), ("networks/mnist_sigmoid_6x200.onnx", "Sigmoid")],
)
def test_smooth_networks_load(shared, name, smooth):
    network = sp.load(shared(name))
    x = torch.rand(20, *network.graph.input_shape)
    ours, theirs = network.scores(x.double()).numpy(), network.reference(x.numpy())
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()
    with pytest.raises(InputError, match=rf"has smooth operators \({smooth}\), so use bounds") as refused:
        sp.profile(network, torch.rand(network.picture().image_shape), "box-blur:size=3", method="exact")
    assert refused.value.option == "method"


def test_functions_of_one_value_are_recognised(tmp_path):
    """x * sigmoid(x), x * x and 1 / sqrt(x) have tighter enclosures than products, so their parts must be gone."""
    proto = classifier(
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Mul", ["s", "x"], ["silu"]),
        helper.make_node("Mul", ["silu", "silu"], ["square"]),
        helper.make_node("Add", ["square", "one"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["root"]),
        helper.make_node("Div", ["one", "root"], ["f"]),
        weights={"one": np.float32(1)},
    )
    operators = [node.operator for node in sp.load(save(tmp_path, proto)).graph.nodes]
    assert [type(o) for o in operators if not isinstance(o, (Reshape, Linear))] == [Silu, Power, Scale, Power]
    assert [o.exponent for o in operators if isinstance(o, Power)] == [2.0, -0.5]


def test_products_of_different_values_stay(tmp_path):
    proto = classifier(
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Sigmoid", ["r"], ["s"]),
        helper.make_node("Mul", ["s", "x"], ["p"]),
        helper.make_node("Transpose", ["p"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("Mul", ["p", "t"], ["q"]),
        helper.make_node("Abs", ["q"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["b"]),
        helper.make_node("Pow", ["b", "two"], ["f"]),
        weights={"two": np.float32(2)},
    )
    operators = [node.operator for node in sp.load(save(tmp_path, proto)).graph.nodes]
    assert sum(isinstance(o, Multiply) for o in operators) == 2
    assert [o.exponent for o in operators if isinstance(o, Power)] == [0.5, 2.0]  # sqrt(x)^2 is not x below 0


def test_single_numbers_keep_an_axis(tmp_path):
    """A value without axes, as a sum of everything is, would have nothing but the row axis."""
    proto = classifier(
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Tanh", ["s"], ["t"]),
        helper.make_node("Mul", ["t", "s"], ["p"]),
        helper.make_node("Mul", ["p", "x"], ["f"]),
    )
    graph = sp.load(save(tmp_path, proto)).graph
    assert all(node.shape for node in graph.nodes)
    x = torch.full((2, 1, 1, 4, 4), 2.0, dtype=torch.float64)
    assert max(float(value.abs().flatten(1).amax(1).min()) for value in graph.values(x)) >= 32
    zero = torch.zeros(2, 1, dtype=torch.float64)
    scores = enclose(graph, torch.stack([x, x]), Boxes(zero, zero), torch.zeros_like(x)).scores
    assert scores.points.shape[1:] == scores.radius.shape == (2, 3)
    assert bool(((scores.points[0] - graph.run(x)).abs() <= scores.radius).all())
    assert bool((scores.radius < 1e-9 * (1 + scores.points[0].abs())).all())


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
    with pytest.raises(NetworkMismatchError, match="differs from the reference runtime"):
        _compared(replace(network, graph=type(network.graph)(network.graph.input_shape, wrong)))


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
    assert network_of(module, 1, 8, 8).dropped


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


MALFORMED = {
    "slice step": (("Slice", "x zero two zero zero"), {}, "malformed"),
    "slice without ends": (("Slice", "x two"), {}, "without starts or ends"),
    "slice of unequal lists": (("Slice", "x zero pair"), {}, "malformed"),
    "slice axis": (("Slice", "x zero two nine"), {}, r"axis 9 of a value of shape \[1, 1, 4, 4\]"),
    "empty slice": (("Slice", "x two two"), {}, "an empty part"),
    "gather beyond": (("Gather", "x nine"), {"axis": 3}, r"indices \[9\] along an axis of length 4"),
    "gather computed": (("Gather", "x x"), {}, "only a constant is supported there"),
    "softmax axis": (("Softmax", "x"), {"axis": 4}, "axis 4"),
    "group norm": (("GroupNormalization", "x two two"), {"num_groups": 3}, "1 channels in 3 groups"),
    "einsum": (("Einsum", "x wide"), {"equation": "abcd,ee->abc"}, "the equation abcd,ee->abc"),
    "einsum of three": (("Einsum", "x x x"), {"equation": "abcd,abcd,abcd->a"}, "the equation"),
    "einsum ranks": (("Einsum", "x wide"), {"equation": "ab,bc->ac"}, r"for operands of \[4, 2\] axes"),
    "einsum lengths": (("Einsum", "x wide"), {"equation": "abcd,de->abce"}, "axis d of length 5 and 4"),
    "einsum operands": (("Einsum", "x wide"), {"equation": "abcd->a"}, "for 2 operands"),
    "norm": (("LpNormalization", "x"), {"p": 3}, "a norm of order 3"),
    "celu": (("Celu", "x"), {"alpha": -1.0}, "alpha=-1"),
    "depth to space": (("DepthToSpace", "x"), {"blocksize": 2}, "1 channels as blocks of 2 x 2"),
    "space to depth": (("SpaceToDepth", "x"), {"blocksize": 3}, "4 x 4 in blocks of 3 x 3"),
    "tile hugely": (("Tile", "x huge"), {}, "repeating a value"),
    "where of computed values": (("Where", "x x x"), {}, "a computed choice between computed values"),
    "where of infinite values": (("Where", "x zero infinite"), {}, "a computed choice of infinite values"),
    "equal": (("Equal", "x nine"), {}, "a comparison of computed values"),
    "resize mode": (("Resize", "x zero zero"), {"mode": "quintic"}, "mode quintic"),
    "resize coordinates": (
        ("Resize", "x none scales"), {"coordinate_transformation_mode": "tf_crop_and_resize"}, "tf_crop_and_resize"),
    "resize rounding": (("Resize", "x none scales"), {"nearest_mode": "up"}, "the nearest mode up"),
    "resize without sizes": (("Resize", "x"), {}, "without a size or a scale"),
    "resize smoothly": (("Resize", "x none scales"), {"mode": "linear", "antialias": 1}, "antialias"),
    "resize to nothing": (("Resize", "x none none none_of_them"), {}, "4 entries resized to 0"),
    "scatter twice": (("ScatterND", "x twice ones"), {}, "several entries for one place"),
    "scatter and add": (("ScatterND", "x twice ones"), {"reduction": "add"}, "a reduction"),
    "gather elements beyond": (("GatherElements", "x far"), {}, "indices beyond an axis of length 1"),
    "gather nd beyond": (("GatherND", "x far"), {}, "indices beyond axes of lengths"),
    "an infinite constant": (("Add", "x infinite"), {}, "infinite or NaN"),
    "several exponents": (("Pow", "x pair"), {}, "2 different exponents"),
    "computed exponent": (("Pow", "two x"), {}, "only a constant is supported there"),
    "layer norm without scale": (("LayerNormalization", "x"), {}, "input 1 is missing"),
    "matmul": (("MatMul", "x wide"), {}, "a product of 4 values with a"),
    "matmul of too many": (("MatMul", "x stack"), {}, "a product with 100 constant matrices"),
    "concat": (("Concat", "x wide"), {"axis": 0}, "malformed"),
    "concat without axis": (("Concat", "x x"), {}, "the attribute 'axis' is missing"),
    "concat axis": (("Concat", "x x"), {"axis": 7}, "axis 7"),
    "expand": (("Expand", "x nine"), {}, "malformed"),
    "expand hugely": (("Expand", "x huge"), {}, "repeating a value"),
    "gelu": (("Gelu", "x"), {"approximate": "cubic"}, "approximate=cubic"),
    "gelu by number": (("Gelu", "x"), {"approximate": 1}, "malformed"),
    "split": (("Split", "x pair"), {"axis": 3}, "1 outputs for 2 parts"),
    "split sizes": (("Split", "x nine"), {"axis": 3}, r"parts of sizes \[9\] of an axis of length 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_nodes_are_problems(tmp_path, name):
    (kind, inputs), attributes, words = MALFORMED[name]
    weights = {
        "zero": np.array([0]),
        "two": np.array([2]),
        "nine": np.array([9]),
        "pair": np.array([1, 2]),
        "huge": np.array([10**12, 1, 1, 1]),
        "wide": np.ones((5, 5), np.float32),
        "stack": np.ones((100, 4, 4), np.float32),
        "none": np.zeros(0, np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "none_of_them": np.array([1, 1, 0, 4]),
        "twice": np.array([[0], [0]]),
        "ones": np.ones((2, 1, 4, 4), np.float32),
        "far": np.array([[[[3]]]]),
        "infinite": np.float32(np.inf),
    }
    proto = classifier(
        helper.make_node(kind, inputs.split(), ["f"], name="culprit", **attributes), weights=weights, opset=20
    )
    with pytest.raises(UnsupportedNetworkError, match=rf"1 operators .*{kind} \(culprit\): .*{words}") as error:
        sp.load(save(tmp_path, proto))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("MaxPool", ["x"], ["p", "second"], kernel_shape=[1, 1]),
        helper.make_node("LayerNormalization", ["x", "w"], ["p", "second"]),
    ],
)
def test_second_outputs_that_are_used(tmp_path, node):
    used = [helper.make_node("Cast", ["second"], ["c"], to=1), helper.make_node("Add", ["p", "c"], ["f"])]
    proto = classifier(node, *used, weights={"w": np.ones(4, np.float32)}, opset=17)
    with pytest.raises(UnsupportedNetworkError, match="an output other than the first is used"):
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
            return super().forward(x), x.flatten(1)

    assert [part.size for part in sp.load(Two(), torch.zeros(1, 2, 4, 4)).parts] == [3, 32]

    class Branches(Shifted):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    with pytest.raises(InputError, match="branches on numbers"):
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
    with pytest.raises((InputError, UnsupportedNetworkError)):
        sp.load(save(tmp_path, classifier(helper.make_node("Relu", ["x"], ["f"]), shape=shape)))


def test_a_flat_input_without_a_usual_size(tmp_path):
    proto = model([helper.make_node("Gemm", ["x", "w"], ["y"])], (1, 100), {"w": np.ones((100, 3), np.float32)})
    path = save(tmp_path, proto)
    with pytest.raises(InputError, match="give its shape as a picture") as error:
        sp.load(path).picture()
    assert error.value.option == "image_shape"
    assert "--" not in str(error.value)
    assert sp.load(path, image_shape=(1, 10, 10)).picture().image_shape == (1, 10, 10)
    with pytest.raises(InputError, match="does not fit"):
        sp.load(path, image_shape=(1, 9, 9))


def test_external_weights(tmp_path):
    proto = onnx.load(demo.MODEL)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=100)
    network = sp.load(tmp_path / "m.onnx")
    assert any(isinstance(node.operator, Conv) for node in network.graph.nodes)


class ThroughAView(nn.Module):
    """Changes a value in place through a view of it; what reads the value later sees the change."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1)
        self.first, self.second = nn.Linear(9, 2), nn.Linear(9, 2)

    def forward(self, x):
        h = nn.functional.silu(self.norm(self.conv(x)) * 10, inplace=True)
        clipped = nn.functional.hardtanh(h.view(1, -1), -0.1, 0.1, inplace=True)
        return self.first(clipped) + self.second(h.flatten(1))


class PartOfAValue(nn.Module):
    def forward(self, x):
        flat = x.flatten(1)
        h = torch.cat([flat.sum(1, keepdim=True) + 1, flat.sum(1, keepdim=True) * 0.9], 1)
        h[:, :1].clamp_(max=25.0)
        return h


def test_in_place_through_a_view():
    module = ThroughAView().eval()
    network = sp.load(module, torch.zeros(1, 1, 3, 3))
    x = torch.randn(4, 1, 1, 3, 3)
    expected = torch.stack([module(row.clone())[0] for row in x]).double()
    assert (network.scores(x.double()) - expected).abs().max() < 1e-5
    part = sp.load(PartOfAValue(), torch.zeros(1, 1, 3, 3))
    assert part.scores(torch.full((1, 1, 1, 3, 3), 4.0).double()).tolist() == [[25.0, pytest.approx(32.4)]]


def test_scores_that_are_not_finite_are_named():
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
    with torch.no_grad():
        module[1].weight.fill_(float("inf"))
    with pytest.raises(InputError, match="not finite"):
        network_of(module, 1, 3, 3)


# -- what a file says, and what onnxruntime or torch make of it ----------------------------------------------------

POOLS = {
    "dilated": {"kernel_shape": [1, 2], "dilations": [1, 3], "auto_pad": "SAME_LOWER", "strides": [1, 2]},
    "dilated upper": {"kernel_shape": [2, 2], "dilations": [2, 1], "auto_pad": "SAME_UPPER"},
    "with gaps": {"kernel_shape": [1, 2], "strides": [3, 1], "auto_pad": "SAME_UPPER"},
}


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("name", POOLS)
def test_automatic_padding_that_onnxruntime_does_its_own_way(tmp_path, kind, name):
    """For dilations it pads as if there were none, and where windows leave gaps it crops."""
    proto = classifier(helper.make_node(kind, ["x"], ["f"], **POOLS[name]), opset=19)
    with pytest.raises(UnsupportedNetworkError, match=rf"{kind} .*auto_pad with (dilations|strides)"):
        sp.load(save(tmp_path, proto))


def test_automatic_padding_of_a_dilated_convolution(tmp_path):
    """onnxruntime refuses to run it, so there is nothing to compare a reading with."""
    node = helper.make_node("Conv", ["x", "w"], ["f"], dilations=[2, 2], auto_pad="SAME_UPPER")
    proto = classifier(node, weights={"w": np.ones((1, 1, 3, 3), np.float32)})
    with pytest.raises(UnsupportedNetworkError, match="auto_pad with dilations"):
        sp.load(save(tmp_path, proto))


@pytest.mark.parametrize("auto", ["VALID", "SAME_UPPER"])
def test_two_paddings_at_once(tmp_path, auto):
    node = helper.make_node("MaxPool", ["x"], ["f"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], auto_pad=auto)
    with pytest.raises(UnsupportedNetworkError, match=f"auto_pad={auto} and pads at once"):
        sp.load(save(tmp_path, classifier(node)))


def local(proto, name, domain="loc", inside="Relu"):
    """The model with a function of its own, which computes something else than ONNX's operator of that name."""
    imports = [helper.make_opsetid("", 13)]
    body = [helper.make_node(inside, ["a"], ["b"])]
    proto.functions.append(helper.make_function(domain, name, ["a"], ["b"], body, imports))
    return foreign(proto, domain)


def foreign(proto, domain="loc"):
    """The model with another domain of operators."""
    if domain not in ("", "ai.onnx"):
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    return proto


def test_a_final_softmax_of_another_domain_is_not_dropped(tmp_path):
    nodes = [
        helper.make_node("Flatten", ["x"], ["g"]),
        helper.make_node("Gemm", ["g", "w"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"], domain="loc", name="last"),
    ]
    proto = model(nodes, (1, 1, 4, 4), {"w": random.normal(size=(16, 3)).astype(np.float32)})
    with pytest.raises(UnsupportedNetworkError, match=r"1 operators .*loc::Softmax \(last\)"):
        sp.load(save(tmp_path, foreign(proto)))
    network = sp.load(save(tmp_path, local(proto, "Softmax")))  # where it is defined, it is what is in the function
    assert network.dropped is None
    assert bool((network.scores(torch.randn(9, 1, 1, 4, 4).double()) == 0).any())


def test_constants_are_not_folded_by_the_operators_of_another_domain(tmp_path):
    nodes = [
        helper.make_node("Neg", ["c"], ["d"], domain="loc", name="folded"),
        helper.make_node("Add", ["x", "d"], ["f"]),
    ]
    proto = foreign(classifier(*nodes, weights={"c": np.float32(-1)}))
    with pytest.raises(UnsupportedNetworkError, match=r"1 operators .*loc::Neg \(folded\)"):
        sp.load(save(tmp_path, proto))
    del proto.opset_import[1:]
    network = sp.load(save(tmp_path, local(proto, "Neg")))
    weight = numpy_helper.to_array(proto.graph.initializer[-1])
    assert network.scores(torch.ones(1, 1, 1, 4, 4).double()).numpy() == pytest.approx(weight.sum(0)[None], rel=1e-5)


def test_nodes_behind_a_failed_one_are_named_by_domain(tmp_path):
    nodes = [helper.make_node("Sin", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["f"], domain="loc", name="behind")]
    with pytest.raises(UnsupportedNetworkError, match=r"2 operators .*loc::Relu \(behind\)"):
        sp.load(save(tmp_path, foreign(classifier(*nodes))))


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_operators_that_a_model_defines_anew(tmp_path, domain):
    proto = local(classifier(helper.make_node("Relu", ["x"], ["f"])), "Relu", domain, inside="Neg")
    with pytest.raises(UnsupportedNetworkError, match=r"Relu \(function\): the model defines this operator"):
        sp.load(save(tmp_path, proto))


@pytest.mark.parametrize("domain", ["com.microsoft", "ai.onnx.ml"])
def test_operators_of_the_runtime_that_a_model_defines_anew(tmp_path, domain):
    """onnxruntime runs its own Gelu, whatever the file says that com.microsoft's is."""
    node = helper.make_node("Gelu", ["x"], ["f"], domain=domain)
    proto = local(classifier(node), "Gelu", domain, inside="Relu")
    with pytest.raises(UnsupportedNetworkError, match=r"Gelu \(function\): the model defines this operator"):
        sp.load(save(tmp_path, proto))


@torch.library.custom_op("shakeprooftest::relu", mutates_args=())
def bumpy(x: torch.Tensor) -> torch.Tensor:
    """A relu but for a bump around 100."""
    return x.clamp(min=0) + 10 * (1 - (x - 100).abs() / 20).clamp(min=0)


bumpy.register_fake(torch.empty_like)


@pytest.mark.parametrize("constant", [False, True])
def test_torch_operators_of_other_namespaces(constant):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(16, 3)

        def forward(self, x):
            if constant:
                return functional.linear(x.flatten(1), torch.ops.shakeprooftest.relu(self.last.weight))
            return self.last(torch.ops.shakeprooftest.relu(x.flatten(1)))

    with pytest.raises(InputError, match=r"the operator shakeprooftest\.relu has no counterpart in ONNX"):
        sp.load(Module(), torch.zeros(1, 1, 4, 4))


@pytest.mark.parametrize(("opset", "attributes"), [(13, {}), (15, {"training_mode": 1})])
def test_batch_normalisation_in_training(tmp_path, opset, attributes):
    outputs = ["f", "m1", "v1", "m2", "v2"] if opset < 14 else ["f", "m1", "v1"]
    node = helper.make_node("BatchNormalization", ["x", "o", "z", "z", "o"], outputs, **attributes)
    weights = {"o": np.ones(1, np.float32), "z": np.zeros(1, np.float32)}
    with pytest.raises(UnsupportedNetworkError, match="training mode"):
        sp.load(save(tmp_path, classifier(node, weights=weights, opset=opset)))


def test_torch_batch_norm_in_training():
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(9, track_running_stats=False), nn.Linear(9, 2))
    with pytest.raises((UnsupportedNetworkError, InputError), match="when training"):
        sp.load(module, torch.zeros(1, 1, 3, 3))
    module = nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(9, 2))
    with pytest.raises(UnsupportedNetworkError, match=r"BatchNormalization .*is computed by the network"):
        sp.load(module, torch.zeros(1, 1, 3, 3))


def test_attributes_that_no_rule_looks_at_are_refused(tmp_path):
    node = helper.make_node("Relu", ["x"], ["f"], name="odd", slope=0.5)
    with pytest.raises(UnsupportedNetworkError, match=r"Relu \(odd\): with the attribute slope"):
        sp.load(save(tmp_path, classifier(node)))


def test_one_axis_twice(tmp_path):
    node = helper.make_node("ReduceSum", ["x", "axes"], ["f"])
    with pytest.raises(UnsupportedNetworkError, match="the same axis twice"):
        sp.load(save(tmp_path, classifier(node, weights={"axes": np.array([3, -1])}, flat=4)))


def test_padding_by_more_than_the_picture(tmp_path):
    node = helper.make_node("Pad", ["x", "pads"], ["f"], mode="reflect")
    proto = classifier(node, weights={"pads": np.array([0, 0, 0, 4, 0, 0, 0, 0])}, flat=32)
    with pytest.raises(UnsupportedNetworkError, match="mode reflect, by 4 and 0 entries on an axis of 4"):
        sp.load(save(tmp_path, proto))


@pytest.mark.parametrize("kind", ["Softmax", "ReduceMean"])
def test_a_network_that_mixes_its_batch_runs_one_at_a_time(tmp_path, kind):
    attributes = {"axis": 0} if kind == "Softmax" else {"axes": [0], "keepdims": 1}
    mixed = [helper.make_node(kind, ["x"], ["m"], **attributes), helper.make_node("Add", ["m", "x"], ["f"])]
    network = sp.load(save(tmp_path, classifier(*mixed, shape=("N", 1, 4, 4))))
    assert network.notes == ("the network mixes the images of a batch: they are run one at a time",)
    x = np.random.default_rng(1).random((5, 1, 1, 4, 4), np.float32)
    assert (agreement(network, x) <= 1).all()


def test_a_network_that_keeps_its_batch_apart_runs_it_at_once(tmp_path):
    network = sp.load(save(tmp_path, classifier(helper.make_node("Relu", ["x"], ["f"]), shape=("N", 1, 4, 4))))
    assert network.runtime.in_batches
    assert network.notes == ()


def test_sparse_weights_are_refused_in_one_line(tmp_path):
    proto = classifier(helper.make_node("Mul", ["x", "s"], ["f"]))
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = numpy_helper.from_array(np.array([2]), "")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    with pytest.raises(UnsupportedNetworkError, match=r"1 weights are stored as sparse tensors.*convert them to dense"):
        sp.load(save(tmp_path, proto))


def test_minus_infinity_is_for_a_softmax(tmp_path):
    weights = {"low": np.float32(-np.inf), "last": random.normal(size=(4, 4)).astype(np.float32)}
    add = helper.make_node("Add", ["x", "low"], ["f"])
    with pytest.raises(UnsupportedNetworkError, match=r"Gemm .*other than under a softmax"):
        sp.load(save(tmp_path, classifier(add, weights=weights)))
    nodes = [helper.make_node("Add", ["x", "m"], ["y"])]
    with pytest.raises(UnsupportedNetworkError, match=r"output .*other than under a softmax"):
        sp.load(save(tmp_path, model(nodes, (1, 2), {"m": np.array([0, -np.inf], np.float32)})))


# -- what a network remembers --------------------------------------------------------------------------------------


def test_a_network_remembers_its_normalisation():
    plain = sp.load(demo.MODEL)
    network = plain.normalised([0.1, 0.2, 0.3], [0.5])
    assert plain.normalisation is None
    assert network.normalisation == Normalisation((0.1, 0.2, 0.3), (0.5,))
    x = np.random.default_rng(0).random((2, 1, 3, 32, 32), np.float32)
    mean = np.array([0.1, 0.2, 0.3], np.float32).reshape(3, 1, 1)
    assert np.array_equal(network.prepared(x), (x - mean) / np.float32(0.5))
    assert np.array_equal(network.reference(x), plain.runtime(network.prepared(x)))
    assert plain.prepared(x) is x
    with pytest.raises(InputError, match="already normalised"):
        network.normalised([0.0], [1.0])
    assert network.with_image_shape((3, 32, 32)).normalisation == network.normalisation


def test_a_flat_input_keeps_the_channels_it_was_normalised_by(tmp_path):
    proto = model([helper.make_node("Gemm", ["x", "w"], ["y"])], (1, 3072), {"w": np.ones((3072, 3), np.float32)})
    network = sp.load(save(tmp_path, proto), mean=[0.1, 0.2, 0.3])
    with pytest.raises(InputError, match="before normalising"):
        network.with_image_shape((1, 48, 64))


def test_a_network_has_an_identity(tmp_path):
    whole = demo.MODEL.read_bytes()
    assert sp.load(demo.MODEL).identity == hashlib.sha256(whole).hexdigest()
    assert sp.load(demo.MODEL, mean=[0.1]).identity == hashlib.sha256(whole).hexdigest()
    packed = tmp_path / "m.onnx.gz"
    packed.write_bytes(gzip.compress(whole))
    assert sp.load(packed).identity == hashlib.sha256(packed.read_bytes()).hexdigest()


def test_external_weights_are_part_of_the_identity(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(onnx.load(demo.MODEL), path, save_as_external_data=True, location="weights", size_threshold=100)
    before, stored = sp.load(path).identity, bytearray((tmp_path / "weights").read_bytes())
    stored[0] ^= 1  # the last bit of a weight
    (tmp_path / "weights").write_bytes(stored)
    assert sp.load(path).identity != before


def test_torch_modules_have_an_identity():
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))
    first, again = (sp.load(module, torch.zeros(1, 1, 3, 3)) for _ in range(2))
    assert first.identity == again.identity
    with torch.no_grad():
        module[1].bias[0] += 1
    assert sp.load(module, torch.zeros(1, 1, 3, 3)).identity != first.identity
    other = nn.Sequential(nn.Flatten(), module[1], nn.ReLU())
    assert sp.load(other, torch.zeros(1, 1, 3, 3)).identity != sp.load(module, torch.zeros(1, 1, 3, 3)).identity


def test_problems_are_named(tmp_path):
    path = save(tmp_path, classifier(helper.make_node("Sin", ["x"], ["f"], name="wave")))
    assert list(map(str, read(path).problems)) == ["Sin (wave): not supported"]
    assert read(path).graph is None


# -- agreement with the runtime ------------------------------------------------------------------------------------


def wrong_by(network, share):
    """The network with all its weights in linear layers off by a share."""
    nodes = (
        replace(n, operator=replace(n.operator, weight=n.operator.weight * (1 + share)))
        if isinstance(n.operator, Linear) else n
        for n in network.graph.nodes
    )  # fmt: skip
    return replace(network, graph=replace(network.graph, nodes=tuple(nodes)))


def agreement(network, x):
    return network.beside(network.scores(torch.from_numpy(x).double()), network.reference(x), x)[0]


def test_disagreement_is_told_row_by_row():
    network = sp.load(demo.MODEL)
    x = np.random.default_rng(0).random((4, 1, 3, 32, 32), np.float32)
    scores, theirs = network.scores(torch.from_numpy(x).double()), network.reference(x)
    assert agreement(network, x).shape == (4,)
    assert (agreement(network, x) < 0.3).all()
    theirs[1, 3] += 0.1
    theirs[2, 0] = np.nan
    theirs[3, 0] = np.inf
    shares, _ = network.beside(scores, theirs, x)
    assert shares[0] < 0.3
    assert shares[1] > 1
    assert not (shares[2:] <= 1).any()
    assert agreement(wrong_by(network, 0.01), x).min() > 1


def two_numbers(classes, size, softmax=False):
    """A network whose outputs are small differences of large numbers, at places 0 near a picture of 0.5."""
    layers = [nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, classes)]
    module = nn.Sequential(*layers, *([nn.Softmax(1)] if softmax else [])).eval()
    with torch.no_grad():
        module[1].weight *= size
        module[3].bias -= module[:4](torch.full((1, 1, 8, 8), 0.5))[0]
    return module


@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize("pixels", [1.0, 255.0])
def test_rounding_is_no_disagreement_where_outputs_vanish(classes, pixels):
    """A single output, or two at a tie, may be 0: what float32 rounds is what they are the difference of."""
    module = two_numbers(classes, 1.0)
    with torch.no_grad():
        module[1].weight /= pixels
    network = network_of(module, 1, 8, 8)
    around = pixels * (0.5 + 1e-4 * np.random.default_rng(0).random((50, 1, 1, 8, 8)))
    assert agreement(network, around.astype(np.float32)).max() < 1
    assert agreement(wrong_by(network, 0.05), (around * 0.5).astype(np.float32)).min() > 1


@pytest.mark.parametrize("bias", [0.0, 30.0])
def test_disagreement_goes_through_a_dropped_softmax(bias):
    module = two_numbers(3, 10.0, softmax=True)
    with torch.no_grad():
        module[3].bias[0] += bias
    network = network_of(module, 1, 8, 8)
    x = np.random.default_rng(0).random((20, 1, 1, 8, 8), np.float32)
    assert network.dropped == "Softmax"
    assert agreement(network, x).max() < 1


def test_outputs_that_are_all_zero_agree(tmp_path):
    proto = model([helper.make_node("Gemm", ["x", "w"], ["y"])], (1, 784), {"w": np.zeros((784, 3), np.float32)})
    network = sp.load(save(tmp_path, proto))
    x, nothing = np.zeros((1, 1, 784), np.float32), np.zeros((1, 3), np.float32)
    assert network.beside(torch.zeros(1, 3).double(), nothing, x)[0].tolist() == [0.0]
    assert network.beside(torch.ones(1, 3).double(), nothing, x)[0][0] > 1


def test_networks_for_pixels_up_to_255_are_compared_on_them():
    """Dead on [0, 1]: a misreading behind the first layer shows on real pictures only."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        module[1].weight.abs_()
        module[1].bias.fill_(-20.0)
    network = network_of(module, 1, 4, 4)
    last = network.graph.nodes[-1]
    for number, node in enumerate(network.graph.nodes):
        if isinstance(node.operator, Linear) and node.shape[-1] == 2:
            last, place = node, number
    bent = replace(last, operator=replace(last.operator, weight=last.operator.weight * 1.5))
    nodes = (*network.graph.nodes[:place], bent, *network.graph.nodes[place + 1 :])
    with pytest.raises(NetworkMismatchError):
        _compared(replace(network, graph=replace(network.graph, nodes=nodes)))


@pytest.mark.parametrize("power", [False, True])
def test_networks_that_overflow_on_large_pixels_load(power):
    class Gentle(nn.Module):
        def forward(self, x):
            x = x.flatten(1)
            steep = x.exp() if power else (x * x).exp()
            return torch.stack([x.sum(1), -x.sum(1)], 1) + 0.01 * steep[:, :2].tanh() + 1e-3 * steep[:, :2]

    assert network_of(Gentle(), 1, 4, 4).graph.classes == 2
