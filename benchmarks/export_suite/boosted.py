"""Boosted trees on scikit-learn's digits, by onnxmltools: no network, and to be refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def trees() -> Any:
    from xgboost import XGBClassifier

    from .sklearn_models import trained

    return trained(lambda: XGBClassifier(n_estimators=3, max_depth=3))


def by_onnxmltools(path: Path) -> None:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    model = onnxmltools.convert_xgboost(trees(), initial_types=[("image", FloatTensorType([None, 64]))])
    path.write_bytes(model.SerializeToString())


def makers() -> Iterator[tuple[str, str, Callable[[Path], None]]]:
    yield "boosted_trees", "onnxmltools", by_onnxmltools
