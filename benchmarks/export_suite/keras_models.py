"""Keras models, as tf2onnx writes them: channels last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any


def mlp(k: Any) -> list[Any]:
    return [k.Flatten(), k.Dense(32, "relu"), k.Dense(24, "relu"), k.Dense(5, "softmax")]


def cnn(k: Any) -> list[Any]:
    return [
        *(k.Conv2D(6, 3, padding="same"), k.BatchNormalization(), k.ReLU(), k.MaxPooling2D(2), k.Conv2D(8, 3)),
        *(k.LeakyReLU(), k.AveragePooling2D(2), k.Flatten(), k.Dense(5)),
    ]


def mobile(k: Any) -> list[Any]:
    return [
        *(k.Conv2D(8, 3, 2, padding="same", use_bias=False), k.BatchNormalization(), k.ReLU(6.0)),
        *(k.DepthwiseConv2D(3, padding="same"), k.BatchNormalization(), k.ReLU(6.0), k.Conv2D(12, 1)),
        *(k.GlobalAveragePooling2D(), k.Dropout(0.2), k.Dense(5, "softmax")),
    ]


def swish(k: Any) -> list[Any]:
    return [k.SeparableConv2D(8, 3, 2, activation="swish"), k.GlobalMaxPooling2D(), k.Dense(8, "elu"), k.Dense(5)]


def upsampled(k: Any) -> list[Any]:
    return [
        *(k.ZeroPadding2D(1), k.Conv2D(6, 3, 2, activation="relu"), k.UpSampling2D(2, interpolation="nearest")),
        *(k.Conv2D(4, 3, activation="relu"), k.GlobalAveragePooling2D(), k.Dense(5)),
    ]


def save(layers: Callable[[Any], list[Any]], path: Path) -> None:
    import keras
    import tensorflow
    import tf2onnx

    keras.utils.set_random_seed(0)
    network = keras.Sequential([keras.Input((16, 16, 3)), *layers(keras.layers)])
    signature = [tensorflow.TensorSpec((None, 16, 16, 3), tensorflow.float32, name="image")]
    call = tensorflow.function(lambda image: network(image, training=False), input_signature=signature)
    tf2onnx.convert.from_function(call, input_signature=signature, opset=17, output_path=str(path))


def makers() -> Iterator[tuple[str, str, Callable[[Path], None]]]:
    for layers in (mlp, cnn, mobile, swish, upsampled):
        yield f"keras_{layers.__name__}", "tf2onnx", partial(save, layers)
