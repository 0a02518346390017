"""Classifiers of scikit-learn, trained on its digits (8 x 8), as skl2onnx writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any


def mlp() -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier((32,), max_iter=60, random_state=0)


def logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=200)


def scaled() -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), mlp())


def tanh() -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier((24,), activation="tanh", max_iter=60, random_state=0)


def trained(build: Callable[[], Any]) -> Any:
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    return build().fit(pictures / 16, labels)


def save(build: Callable[[], Any], zipmap: bool, path: Path) -> None:
    import warnings

    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that so short a training has not converged
        model = trained(build)
    types = [("image", FloatTensorType([None, 64]))]
    path.write_bytes(
        to_onnx(model, initial_types=types, options={"zipmap": zipmap}, target_opset=15).SerializeToString()
    )


def makers() -> Iterator[tuple[str, str, Callable[[Path], None]]]:
    for build in (mlp, logistic, scaled, tanh):
        yield f"sklearn_{build.__name__}", "skl2onnx", partial(save, build, True)
    yield "sklearn_mlp_array", "skl2onnx", partial(save, mlp, False)
