"""Model files as people have them: what they are, which output is meant, open sizes, functions, and files that lie."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import subprocess
import sys
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from models import model
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import InputError, NetworkMismatchError, UnsupportedNetworkError
from shakeproof.graph import Graph, Node
from shakeproof.model import model_file, onnx_model
from shakeproof.operators import Combine, Relu

random = np.random.default_rng(0)
WEIGHT = random.normal(size=(16, 3)).astype(np.float32)
FLAT = helper.make_node("Flatten", ["x"], ["f"])
LINEAR = helper.make_node("Gemm", ["f", "w"], ["y"])
HERE = {"w": WEIGHT}


def saved(tmp_path, proto, name="model.onnx"):
    path = tmp_path / name
    path.write_bytes(proto.SerializeToString())
    return path


def refused(path, **options):
    with pytest.raises((InputError, UnsupportedNetworkError)) as error:
        sp.load(path, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def scores_of(network, x):
    return network.scores(torch.from_numpy(x).double()).numpy()


# -- what is no model -----------------------------------------------------------------------------------------------


def test_what_is_no_file_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "is a named pipe" in refused(tmp_path / "pipe.onnx")
    assert "is a folder" in refused(tmp_path)
    assert "is a device" in refused("/dev/zero")
    assert "No such file" in refused(tmp_path / "gone.onnx")
    assert "cannot read the network" in refused("nul\0.onnx")


def archive_of(**members):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return held.getvalue()


def checkpoint():
    held = io.BytesIO()
    torch.save({"w": torch.zeros(3)}, held)
    return held.getvalue()


OTHERS = {
    "m.png": (b"\x89PNG\r\n", "is a PNG picture; give the model first"),
    "m.pt": (checkpoint(), "is a PyTorch checkpoint, weights without their network; export the module"),
    "m.pth": (pickle.dumps({}), "is a Python pickle; export the module"),
    "m.onnx": (checkpoint(), "is a PyTorch checkpoint"),
    "m.pt2": (checkpoint(), "is a PyTorch checkpoint"),
    "p.pt2": (b"hello", "is a torch.export file, and loading it can run code"),
    "m.h5": (b"\x89HDF\r\n\x1a\n", "is an HDF5 file, as Keras writes; convert it to ONNX"),
    "m.keras": (archive_of(**{"config.json": "{}", "model.weights.h5": ""}), "is a Keras file; convert it to ONNX"),
    "m.tflite": (b"\x1c\0\0\0TFL3", "is a TensorFlow Lite file"),
    "m.npz": (archive_of(**{"x.npy": ""}), "is an archive of numpy arrays; give the model first"),
    "m.zip": (archive_of(**{"a.txt": ""}), "is a zip archive; unpack it"),
    "m.pb": (b"\x0a\x03abc", "is a TensorFlow graph; convert it with tf2onnx"),
    "m.safetensors": (b"\x08\0\0\0\0\0\0\0{}", "weights without their network"),
    "lfs.onnx": (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
    "page.onnx": (b"<!DOCTYPE html>", "is a web page"),
    "cut.onnx": (b"PK\x03\x04", "a broken zip archive"),
    "text.onnx": (b"hello", "not a complete ONNX model"),
    "empty.onnx": (b"", "it holds no operators"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_called_what_they_are(tmp_path, name):
    data, expected = OTHERS[name]
    (tmp_path / name).write_bytes(data)
    message = refused(tmp_path / name)
    assert expected in message
    assert "ire format" not in message


def test_packed_files(tmp_path, monkeypatch):
    packed = gzip.compress(demo.MODEL.read_bytes())
    (tmp_path / "m.onnx.gz").write_bytes(packed)
    (tmp_path / "m.onnx").write_bytes(packed)
    for name in ("m.onnx.gz", "m.onnx"):
        assert sp.load(tmp_path / name).graph.classes == 10
    monkeypatch.setattr(model_file, "MOST_UNPACKED", 2**20)
    (tmp_path / "bomb.onnx.gz").write_bytes(gzip.compress(bytes(2**20 + 1)))
    assert "unpacks to more than" in refused(tmp_path / "bomb.onnx.gz")


def test_weights_beside_a_model_may_begin_like_anything(tmp_path):
    """Bytes that a pickle would begin with are numbers there."""
    begins = np.frombuffer(b"\x80\x02\x00\x3f" + WEIGHT.tobytes()[4:], np.float32).reshape(16, 3)
    proto = model([FLAT, LINEAR], (1, 1, 4, 4), {"w": begins})
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    assert (tmp_path / "weights").read_bytes().startswith(b"\x80\x02")
    assert sp.load(tmp_path / "m.onnx").graph.classes == 3
    (tmp_path / "weights").unlink()
    os.mkfifo(tmp_path / "weights")
    assert "is a named pipe" in refused(tmp_path / "m.onnx")


# -- incomplete graphs ----------------------------------------------------------------------------------------------


def test_graphs_that_lack_something(tmp_path):
    proto = model([FLAT, LINEAR], (1, 1, 4, 4), HERE)
    whole = proto.SerializeToString()
    del proto.graph.output[:]
    assert "has no outputs" in refused(saved(tmp_path, proto))
    proto.ParseFromString(whole)
    del proto.graph.initializer[:]
    assert "reads 'w', which the file does not hold: a weight is missing" in refused(saved(tmp_path, proto))
    proto.ParseFromString(whole)
    proto.graph.node[0].input[0] = "y"
    assert "the nodes form a cycle" in refused(saved(tmp_path, proto))
    proto.ParseFromString(whole)
    del proto.graph.input[:]
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 1, 4, 4), np.float32), "x"))
    assert "has 0 inputs" in refused(saved(tmp_path, proto))
    proto.ParseFromString(whole)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    assert "has no entries" in refused(saved(tmp_path, proto))


def test_names_that_are_no_text(tmp_path):
    data = model([helper.make_node("Relu", ["x"], ["y"])], (1, 3)).SerializeToString().replace(b"Relu", b"R\xff\xfeu")
    (tmp_path / "model.onnx").write_bytes(data)
    assert "R\ufffd\ufffdu" in refused(tmp_path / "model.onnx")


def constant_from(*nodes, **weights):
    """A network that adds a constant `c`, computed by some nodes."""
    rest = [helper.make_node("Add", ["x", "c"], ["a"]), helper.make_node("Flatten", ["a"], ["f"]), LINEAR]
    return model([*nodes, *rest], (1, 1, 4, 4), {**weights, **HERE})


def test_constants_larger_than_any_network(tmp_path):
    shapes = {
        "ConstantOfShape": {"n": np.array([10**6, 10**6])},
        "Range": {"a": np.int64(0), "b": np.int64(10**12), "d": np.int64(1)},
        "Expand": {"v": np.ones(1, np.float32), "n": np.array([10**12])},
        "Tile": {"v": np.ones((1, 1), np.float32), "n": np.array([10**6, 10**6])},
    }
    for kind, weights in shapes.items():
        path = saved(tmp_path, constant_from(helper.make_node(kind, list(weights), ["c"]), **weights))
        with pytest.raises(UnsupportedNetworkError, match=rf"{kind} \(c\): a constant of 1000000000000 entries"):
            sp.load(path)


SWELLING = {
    "a value of 324144016 entries": [helper.make_node("Pad", ["x", "pads"], ["a"])],
    "a value of 1600160004 entries": [helper.make_node("Conv", ["x", "k"], ["a"], pads=[20000] * 4)],
}


@pytest.mark.parametrize("size", SWELLING)
def test_values_larger_than_any_picture(tmp_path, size):
    rest = [helper.make_node("GlobalAveragePool", ["a"], ["p"]), helper.make_node("Flatten", ["p"], ["f"]), LINEAR]
    pads = np.array([0, 0, 9000, 9000] * 2)
    weights = {"pads": pads, "k": np.ones((1, 1, 3, 3), np.float32), "w": WEIGHT[:1]}
    with pytest.raises(UnsupportedNetworkError, match=size):
        sp.load(saved(tmp_path, model([*SWELLING[size], *rest], (1, 1, 4, 4), weights)))


def test_graphs_within_graphs_are_not_run(tmp_path):
    body = helper.make_graph([helper.make_node("Identity", ["i"], ["o"])], "body",
                             [helper.make_tensor_value_info("k", TensorProto.INT64, []),
                              helper.make_tensor_value_info("on", TensorProto.BOOL, []),
                              helper.make_tensor_value_info("i", TensorProto.FLOAT, [1])],
                             [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
                              helper.make_tensor_value_info("o", TensorProto.FLOAT, [1])])  # fmt: skip
    weights = {"times": np.int64(10**15), "true": np.bool_(True), "v": np.ones(1, np.float32)}
    node = helper.make_node("Loop", list(weights), ["c"], body=body)
    with pytest.raises(UnsupportedNetworkError, match="a graph within the graph"):
        sp.load(saved(tmp_path, constant_from(node, **weights)))


# -- which output ---------------------------------------------------------------------------------------------------


def several(outputs, nodes=(FLAT, LINEAR)):
    """A network with outputs of given types."""
    proto = model(nodes, (1, 1, 4, 4), HERE)
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    return proto


def tensor(name, *shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def test_one_of_several_outputs(tmp_path):
    nodes = (FLAT, LINEAR, helper.make_node("Neg", ["y"], ["z"]), helper.make_node("Sin", ["x"], ["s"]))
    path = saved(tmp_path, several([tensor("y", 1, 3), tensor("z", 1, 3), tensor("s", 1, 1, 4, 4)], nodes))
    assert "Sin (s): not supported; choose other outputs" in refused(path)
    assert "has no output 'w'; its outputs are y [1, 3]" in refused(path, output_name="w")
    first, second = (sp.load(path, output_name=name) for name in "yz")
    assert "of the outputs (y, z, s), z is analysed" in second.notes
    x = random.random((5, 1, 1, 4, 4), np.float32)
    for network, sign in ((first, 1), (second, -1)):
        assert scores_of(network, x) == pytest.approx(sign * (x.reshape(5, 16) @ WEIGHT), rel=1e-5)
        assert network.reference(x) == pytest.approx(sign * (x.reshape(5, 16) @ WEIGHT), rel=1e-5)
    assert first.identity != second.identity
    with pytest.raises(UnsupportedNetworkError, match="Sin"):
        sp.load(path, output_name="s")


def test_the_sensible_output_is_chosen(tmp_path):
    nodes = (FLAT, LINEAR, helper.make_node("Identity", ["y"], ["logits"]), helper.make_node("Exp", ["y"], ["e"]))
    for outputs, expected in (
        ([tensor("e", 1, 3), tensor("logits", 1, 3)], "of the outputs (e, logits), logits is analysed"),
        ([tensor("x", 1, 1, 4, 4), tensor("e", 1, 3)], "of the outputs (x, e), e is analysed"),
    ):
        network = sp.load(saved(tmp_path, several(outputs, nodes)))
        assert any(expected in note for note in network.notes)


def test_modules_with_several_outputs():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(16, 3)

        def forward(self, x):
            y = self.last(x.flatten(1))
            return {"hidden": x.flatten(1), "logits": y, "negative": -y}

    module = Named().eval()
    network = sp.load(module, torch.zeros(1, 1, 4, 4))
    assert "of the outputs (hidden, logits, negative), logits is analysed" in network.notes
    other = sp.load(module, torch.zeros(1, 1, 4, 4), output_name="negative")
    x = random.random((5, 1, 1, 4, 4), np.float32)
    assert other.reference(x) == pytest.approx(-network.reference(x), abs=1e-6)
    assert scores_of(other, x) == pytest.approx(-scores_of(network, x))
    assert other.identity != network.identity


LABEL = [
    helper.make_node("Softmax", ["y"], ["p"]),
    helper.make_node("Identity", ["p"], ["probabilities"]),
    helper.make_node("ArgMax", ["probabilities"], ["a"], axis=1),
    helper.make_node("ArrayFeatureExtractor", ["labels", "a"], ["l"], domain="ai.onnx.ml"),
    helper.make_node("Reshape", ["l", "one"], ["r"]),
    helper.make_node("Cast", ["r"], ["label"], to=TensorProto.INT64),
    helper.make_node("ZipMap", ["probabilities"], ["zipped"], domain="ai.onnx.ml", classlabels_int64s=[5, 6, 7]),
]
ZIPPED = helper.make_value_info(
    "zipped",
    helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    ),
)


@pytest.mark.parametrize("kinds", [("label", "zipped"), ("label", "probabilities"), ("label",), ("zipped",)])
def test_labels_and_dictionaries_are_seen_through(tmp_path, kinds):
    found = {"label": tensor("label", 1, kind=TensorProto.INT64), "zipped": ZIPPED,
             "probabilities": tensor("probabilities", 1, 3)}  # fmt: skip
    proto = several([found[kind] for kind in kinds], (FLAT, LINEAR, *LABEL))
    proto.graph.initializer.extend(
        numpy_helper.from_array(array, name)
        for name, array in (("labels", np.array([5, 6, 7])), ("one", np.array([-1])))
    )
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    network = sp.load(saved(tmp_path, proto))
    assert network.dropped == "Softmax"
    assert any("by the scores that it is made from (p)" in note for note in network.notes)
    assert network.reference(np.ones((2, 1, 1, 4, 4), np.float32)).sum(1) == pytest.approx(1)


def test_the_largest_of_another_axis_is_no_label(tmp_path):
    nodes = (FLAT, LINEAR, helper.make_node("ArgMax", ["y"], ["label"], axis=0))
    with pytest.raises(UnsupportedNetworkError, match="ArgMax"):
        sp.load(saved(tmp_path, several([tensor("label", 1, 3, kind=TensorProto.INT64)], nodes)))


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "PROBIT"])
def test_linear_classifiers(tmp_path, transform):
    nodes = (
        FLAT,
        helper.make_node("Scaler", ["f"], ["s"], domain="ai.onnx.ml", offset=[0.5] * 16, scale=[2.0] * 16),
        helper.make_node("LinearClassifier", ["s"], ["label", "scores"], domain="ai.onnx.ml", post_transform=transform,
                         coefficients=WEIGHT.T.flatten(), intercepts=[0.1, 0.2, 0.3], classlabels_ints=[0, 1, 2]),
        helper.make_node("Normalizer", ["scores"], ["probabilities"], domain="ai.onnx.ml", norm="L1"),
    )  # fmt: skip
    outputs = [tensor("label", 1, kind=TensorProto.INT64), tensor("probabilities", 1, 3)]
    proto = several(outputs, nodes)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    path = saved(tmp_path, proto)
    if transform == "PROBIT":
        with pytest.raises(UnsupportedNetworkError, match="LinearClassifier"):
            sp.load(path)
        return
    network = sp.load(path)
    x = random.random((5, 1, 1, 4, 4), np.float32)
    linear = 2 * (x.reshape(5, 16) - 0.5) @ WEIGHT + np.array([0.1, 0.2, 0.3])
    expected = 1 / (1 + np.exp(-linear)) if transform == "LOGISTIC" else linear
    assert scores_of(network, x) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert network.dropped == ("Softmax" if transform == "SOFTMAX" else None)


@pytest.mark.parametrize("ends", ["Normalizer", "Identity"])
def test_values_of_outputs_are_not_asked_of_what_is_merely_in_their_order(tmp_path, ends):
    """The shares of a sum are at most 1, whatever the scores are."""
    options = {"domain": "ai.onnx.ml", "norm": "L1"} if ends == "Normalizer" else {}
    proto = several([tensor("shares", 1, 3)], (FLAT, LINEAR, helper.make_node(ends, ["y"], ["shares"], **options)))
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    network, inputs = sp.load(saved(tmp_path, proto)), [f"X_{n}" for n in range(16)]
    declared = "".join(f"(declare-const {name} Real)" for name in (*inputs, "Y_0", "Y_1", "Y_2"))
    box = "".join(f"(assert (>= {name} 0.5))(assert (<= {name} 0.5001))" for name in inputs)
    scores = scores_of(network, np.full((1, 1, 1, 4, 4), 0.5, np.float32))[0]
    first, last = int(scores.argmax()), int(scores.argmin())

    def status(claim):
        (tmp_path / "query.vnnlib").write_text(f"{declared}{box}(assert {claim})")
        return sp.verify_specification(network, tmp_path / "query.vnnlib").status

    assert status(f"(<= Y_{first} Y_{last})") is sp.Status.SAFE
    if ends == "Identity":
        assert status(f"(>= Y_{first} 1000.0)") is sp.Status.SAFE
        return
    with pytest.raises(InputError, match="only their order is analysed"):
        status(f"(>= Y_{first} 1000.0)")


# -- open sizes -----------------------------------------------------------------------------------------------------


def convolutional(*shape):
    weights = {"k": random.normal(size=(2, 3, 3, 3)).astype(np.float32), "w": WEIGHT[:2]}
    first = [helper.make_node("Transpose", ["x"], ["t"], perm=(0, 3, 1, 2))] if shape[-1] == 3 else []
    nodes = [
        *first,
        helper.make_node("Conv", ["t" if first else "x", "k"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        LINEAR,
    ]
    return model(nodes, shape, weights)


@pytest.mark.parametrize("shape", [("N", 3, "H", "W"), ("N", "C", "H", "W"), ("N", None, None, 3)])
def test_an_open_size_is_the_pictures(tmp_path, shape):
    path = saved(tmp_path, convolutional(*shape))
    with pytest.raises(InputError, match="leaves its size open") as error:
        sp.load(path)
    assert error.value.option == "image_shape"
    for network in (sp.load(path, image_shape=(3, 6, 7)), sp.load(path, picture=(3, 6, 7))):
        assert network.picture().image_shape == (3, 6, 7)
        assert network.picture().channels_last == (shape[-1] == 3)
        assert any("leaves its size open: it is analysed for pictures of 3 x 6 x 7" in note for note in network.notes)
    if "C" not in shape:
        assert "a picture of 1 x 6 x 7 does not fit" in refused(path, image_shape=(1, 6, 7))


def test_an_open_flat_size(tmp_path):
    path = saved(tmp_path, model([helper.make_node("Gemm", ["x", "w"], ["y"])], ("N", "features"), HERE))
    assert sp.load(path, image_shape=(1, 2, 8)).picture().image_shape == (1, 2, 8)


# -- weights of 16 bits, functions, networks for other programs -----------------------------------------------------


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_weights_of_16_bits(tmp_path, kind):
    half = helper.make_tensor("h", kind, (16, 3), WEIGHT.flatten())
    nodes = [FLAT, helper.make_node("Cast", ["h"], ["w"], to=TensorProto.FLOAT), LINEAR]
    proto = model(nodes, (1, 1, 4, 4))
    proto.graph.initializer.append(half)
    network = sp.load(saved(tmp_path, proto))
    x = random.random((5, 1, 1, 4, 4), np.float32)
    stored = numpy_helper.to_array(half).astype(np.float64)
    assert scores_of(network, x) == pytest.approx(x.reshape(5, 16) @ stored)
    proto.graph.node[1].CopyFrom(helper.make_node("Mul", ["h", "h"], ["q"]))
    proto.graph.node.insert(2, helper.make_node("Cast", ["q"], ["w"], to=TensorProto.FLOAT))
    with pytest.raises(UnsupportedNetworkError, match="computed in 16 bits, which rounds"):
        sp.load(saved(tmp_path, proto))


def test_weights_of_8_bits_are_refused(tmp_path):
    proto = model([FLAT, helper.make_node("Cast", ["h"], ["w"], to=TensorProto.FLOAT), LINEAR], (1, 1, 4, 4), opset=19)
    proto.graph.initializer.append(helper.make_tensor("h", TensorProto.FLOAT8E5M2, (16, 3), WEIGHT.flatten()))
    assert "the weight 'h' cannot be read: it has numbers of float8_e5m2" in refused(saved(tmp_path, proto))


def function(name, *calls):
    """A function of one value that calls others in turn."""
    steps = [f"v{k}" for k in range(len(calls) + 1)]
    body = [
        helper.make_node(word, [steps[k]], [steps[k + 1]], domain="" if word in ("Relu", "Neg") else "own")
        for k, word in enumerate(calls)
    ]
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, [steps[0]], [steps[-1]], body, imports)


def calling(*functions):
    call = helper.make_node("f0", ["x"], ["b"], domain="own")
    proto = model([call, helper.make_node("Flatten", ["b"], ["f"]), LINEAR], (1, 1, 4, 4), HERE)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.functions.extend(functions)
    return proto


def test_functions_are_written_out(tmp_path):
    proto = calling(function("f0", "f1", "Relu", "f1"), function("f1", "Neg", "Relu", "Neg"))
    network = sp.load(saved(tmp_path, proto))
    x = random.normal(size=(5, 1, 1, 4, 4)).astype(np.float32)
    assert scores_of(network, x) == pytest.approx(0, abs=1e-9)  # min(x, 0), then max(., 0)
    only = sp.load(saved(tmp_path, calling(function("f0", "Neg", "Relu", "Neg"))))
    assert scores_of(only, x) == pytest.approx(np.minimum(x.reshape(5, 16), 0) @ WEIGHT, abs=1e-5)


def test_functions_without_end(tmp_path):
    assert "call each other in a cycle" in refused(saved(tmp_path, calling(function("f0", "f1"), function("f1", "f0"))))
    doubling = [function(f"f{k}", f"f{k + 1}", f"f{k + 1}") for k in range(40)]
    assert "more than 200000 operators" in refused(saved(tmp_path, calling(*doubling, function("f40", "Relu"))))


def test_quantised_and_optimised_networks_say_so(tmp_path):
    weights = {"s": np.float32(0.1), "zero": np.uint8(128), **HERE}
    nodes = [
        FLAT,
        helper.make_node("QuantizeLinear", ["f", "s", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "zero"], ["d"]),
        helper.make_node("Gemm", ["d", "w"], ["y"]),
    ]
    with pytest.raises(UnsupportedNetworkError, match=r"is quantised, .*; export the float network") as error:
        sp.load(saved(tmp_path, model(nodes, (1, 1, 4, 4), weights)))
    assert "\n" not in str(error.value)
    fused = [FLAT, helper.make_node("FusedGemm", ["f", "w"], ["y"], domain="com.microsoft", activation="Relu")]
    proto = model(fused, (1, 1, 4, 4), HERE)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(UnsupportedNetworkError, match=r"optimised by onnxruntime.*use the original.*FusedGemm"):
        sp.load(saved(tmp_path, proto))


def test_a_quantised_weight_is_a_constant(tmp_path):
    """Unless onnxruntime multiplies by it, which it does in integers: that is another network."""
    held = {"q": random.integers(0, 255, (16, 3)).astype(np.uint8), "s": np.float32(0.1), "zero": np.uint8(128)}
    dequantised = helper.make_node("DequantizeLinear", list(held), ["w"])
    with pytest.raises(NetworkMismatchError):
        sp.load(saved(tmp_path, model([FLAT, dequantised, LINEAR], (1, 1, 4, 4), held, opset=21)))
    held["q"] = held["q"].reshape(-1)[:4]
    added = constant_from(helper.make_node("DequantizeLinear", list(held), ["c"]), **held)
    added.opset_import[0].version = 21
    assert sp.load(saved(tmp_path, added)).graph.classes == 3


# -- weights in other files -----------------------------------------------------------------------------------------

OPENED: list[str] = []
sys.addaudithook(lambda event, given: OPENED.append(str(given[0])) if event == "open" else None)


def test_what_is_hashed_is_what_is_run(tmp_path, monkeypatch):
    """A file that is changed as soon as it was read changes nothing."""
    path = saved(tmp_path, model([FLAT, LINEAR], (1, 1, 4, 4), HERE))
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights", size_threshold=0)
    before, read = sp.load(path), Path.read_bytes

    def read_and_changed(file):
        data = read(file)
        if file.name == "weights":
            file.write_bytes((2 * WEIGHT).tobytes())
        return data

    monkeypatch.setattr(Path, "read_bytes", read_and_changed)
    network = sp.load(path)
    x = random.random((2, 1, 1, 4, 4), np.float32)
    assert network.identity == before.identity
    assert network.reference(x) == pytest.approx(before.reference(x))


@pytest.mark.parametrize("place", ["../weights", "/etc/hostname", "inner/../../weights", ""])
def test_weights_lie_in_the_models_folder(tmp_path, place):
    (tmp_path / "weights").write_bytes(WEIGHT.tobytes())
    proto = model([FLAT, LINEAR], (1, 1, 4, 4), HERE)
    onnx.external_data_helper.set_external_data(proto.graph.initializer[0], place)
    proto.graph.initializer[0].ClearField("raw_data")
    (tmp_path / "inner").mkdir()
    OPENED.clear()
    assert "which is not in the model's folder" in refused(saved(tmp_path / "inner", proto))
    assert not {str(tmp_path / "weights"), "/etc/hostname"} & {os.path.normpath(name) for name in OPENED}


def test_weights_of_functions_lie_in_files_too(tmp_path):
    """They are a part of the network's identity."""
    held = numpy_helper.from_array(WEIGHT, "w")
    onnx.external_data_helper.set_external_data(held, "weights")
    held.ClearField("raw_data")
    nodes = [helper.make_node("Constant", [], ["w"], value=held), helper.make_node("MatMul", ["f", "w"], ["y"])]
    own = helper.make_function("own", "Last", ["f"], ["y"], nodes, [helper.make_opsetid("", 13)])
    proto = model([FLAT, helper.make_node("Last", ["f"], ["y"], domain="own")], (1, 1, 4, 4))
    proto.functions.append(own)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    path, found = saved(tmp_path, proto), []
    for weight in (WEIGHT, 2 * WEIGHT):
        (tmp_path / "weights").write_bytes(weight.tobytes())
        network = sp.load(path)
        x = random.random((2, 1, 1, 4, 4), np.float32)
        assert scores_of(network, x) == pytest.approx(x.reshape(2, 16) @ weight, abs=1e-5)
        found.append(network.identity)
    assert found[0] != found[1]


# -- programs of torch ----------------------------------------------------------------------------------------------


def program(path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.ReLU()).eval()
    torch.export.save(torch.export.export(module, (torch.zeros(1, 1, 4, 4),)), path)
    return module


class Burglar:
    def __reduce__(self):
        return os.system, ("touch burgled",)


@pytest.mark.parametrize("name", ["m.pt2", "M.PT2", "m.onnx"])
def test_programs_are_not_loaded(name, tmp_path, monkeypatch):
    """Torch unpickles what is in them, whatever a look at it showed before."""
    monkeypatch.chdir(tmp_path)
    program(tmp_path / "good.pt2")
    buffer = io.BytesIO()
    torch.save(Burglar(), buffer)
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / name, "w") as bad:
        for member in good.namelist():
            pickled = member.endswith("sample_inputs/model.pt")
            bad.writestr(member, buffer.getvalue() if pickled else good.read(member))
    assert "loading it can run code" in refused(tmp_path / name)
    with pytest.raises(InputError):
        sp.load_deployed(tmp_path / name)
    assert not (tmp_path / "burgled").exists()
    with suppress(Exception):
        torch.export.load(io.BytesIO((tmp_path / name).read_bytes()))  # the burglar is at home
    assert (tmp_path / "burgled").exists()


def test_two_lines_make_a_program_an_onnx_file(tmp_path):
    path = tmp_path / "m.pt2"
    module = program(path)
    lines = refused(path).partition("turn it into ONNX: ")[2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(lines, {"torch": torch})
    network = sp.load(tmp_path / "m.onnx")
    x = torch.rand(3, 1, 1, 4, 4)
    with torch.no_grad():
        assert network.reference(x.numpy()) == pytest.approx(torch.cat([module(row) for row in x]).numpy(), abs=1e-6)


def test_a_program_with_two_directories_runs_no_code(shared, tmp_path):
    """What Python's zipfile shows of it is harmless; what torch would load is not."""
    script = shared("attacks/second/two_faced_pt2.py")
    subprocess.run([sys.executable, script], cwd=tmp_path, check=True, capture_output=True)
    np.save(tmp_path / "image.npy", np.zeros((1, 2, 2)))
    for command, file in (("supports", "two_faced"), ("profile -p box-blur:size=3", "two_faced"), ("supports", "good")):
        asked = [sys.executable, "-m", "shakeproof", *command.split(), f"{file}.pt2", "image.npy"]
        done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert f"{file}.pt2: is a torch.export file, and loading it can run code" in done.stderr
        assert f"torch.onnx.export(program, dynamo=True).save('{file}.onnx')" in done.stderr
    assert not (tmp_path / "pwned").exists()


# -- long graphs ----------------------------------------------------------------------------------------------------


def test_what_is_held_is_counted_node_by_node():
    """In time that grows with the graph, not with its square; here against the definition."""
    generator, count, shape = np.random.default_rng(0), 40, torch.Size([2])
    nodes = []
    for index in range(count):
        inputs = tuple(int(i) for i in generator.integers(max(0, index - 5), index + 1, 2))
        nodes.append(Node(Combine(1), inputs, shape) if index % 3 else Node(Relu(), inputs[:1], shape))
    graph = Graph(shape, tuple(nodes))
    for index in range(count):
        later = {i for node in nodes[index:] for i in node.inputs}
        read = {value for value in range(index + 1) if value in later}
        never = {value for value in range(index + 1) if not any(value in node.inputs for node in nodes)}
        assert graph.live_sizes[index] == 2 * len(read | never)
        assert set(graph.last_uses[index]) == {
            v for v in nodes[index].inputs if not any(v in node.inputs for node in nodes[index + 1 :])
        }


def test_names_of_the_reader_are_those_of_the_module():
    assert onnx_model.word_of(onnx.NodeProto(op_type="Relu", domain="ai.onnx")) == "Relu"
    assert onnx_model.word_of(onnx.NodeProto(op_type="Relu", domain="own")) == "own::Relu"
