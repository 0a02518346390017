"""What tests share: where the benchmark material is, and small networks made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, settings

from shakeproof import demo, linalg

# How long an example takes says nothing: machines are busy.
settings.register_profile("shakeproof", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shakeproof")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """A file of the benchmark material that lies beside the repository; skips where there is none."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"needs the benchmark material {name}, which is not part of the repository")
        return path

    return find


@pytest.fixture(scope="session")
def demo_network():
    import shakeproof as sp

    return sp.load(demo.MODEL)


@pytest.fixture(scope="session")
def folded_demo(tmp_path_factory):
    """The demo with its batch norms folded by onnxruntime: only such networks are certified in float32."""
    import onnxruntime

    import shakeproof as sp

    path = str(tmp_path_factory.mktemp("folded") / "signs.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = path
    onnxruntime.InferenceSession(str(demo.MODEL), options, providers=["CPUExecutionProvider"])
    return sp.load(path)


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module", params=["openblas", "torch"])
def whoever_multiplies(request):
    """Both libraries that products may be made by, on one thread."""
    if request.param == "openblas" and linalg._openblas() is None:
        pytest.skip("torch multiplies here: no AMD processor with AVX-512, or no OpenBLAS")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    library = linalg._openblas if request.param == "openblas" else lambda: None
    with patch.object(linalg, "_openblas", library), patch.object(linalg, "LEAST_MULTIPLICATIONS", 1):
        yield request.param
    torch.set_num_threads(threads)


@pytest.fixture
def float64_only(monkeypatch):
    """No exact arithmetic, however small a network is."""
    monkeypatch.setattr("shakeproof.exact.rational.MOST_TERMS", -1)
