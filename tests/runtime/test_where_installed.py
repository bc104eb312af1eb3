"""Ray's workers, and Keras on JAX, where they are installed: the test requirements have neither."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from children import run_python
from shared_results import GUARD, until_changed

RAY = """
import ray
import torch
from joblib import Parallel, delayed, parallel_config
from ray.util.joblib import register_ray

def double(tensor):
    return (2 * tensor).sum()

def count(tensor):
    return tensor.numel()

if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    register_ray()
    weights = torch.ones(3, requires_grad=True)
    with parallel_config("ray", n_jobs=2):
        assert Parallel()(delayed(count)(torch.ones(3)) for _ in range(2)) == [3, 3]
        losses = Parallel()(delayed(double)(weights) for _ in range(2))
        sum(losses).backward()
    assert weights.grad is None
    ray.shutdown()
"""

JAX = """
import sys
import keras
import numpy as np
from joblib import Parallel, delayed

inputs = np.ones((8, 4), "float32")
targets = inputs.sum(1, keepdims=True)

def fit(model):
    model.fit(inputs, targets, epochs=1, verbose=0)
    return model

def predict(model):
    return model.predict(inputs, verbose=0)

def steps(optimizer):
    return int(optimizer.iterations)

if __name__ == "__main__":
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    trained, _ = Parallel(2)(delayed(fit)(model) for _ in range(2))
    Parallel(2)(delayed(predict)(trained) for _ in range(2))
    model.fit(inputs, targets, epochs=1, verbose=0)
    assert Parallel(2)(delayed(steps)(model.optimizer) for _ in range(2)) == [0, 0]
    assert keras.backend.backend() == "jax"
"""


def found_in(name: str, program: str, folder: Path, **environment: str) -> list[tuple[str, str]]:
    """The codes at warning and above, and the kinds of workers, in a program under the guard."""
    path, report = folder / "program.py", folder / "report.json"
    path.write_text(program)

    def reported() -> str:
        command = ("-m", "pytest_gradguard", "run", "--report", report, path)
        done = run_python(*command, limit=240, environment=environment)
        assert done.returncode == 0, done.stderr
        return report.read_text()

    said = until_changed(f"installed-{name}", [Path(__file__), path], [GUARD], reported)
    findings = json.loads(said)["findings"]
    return [
        (finding["code"], finding["details"]["backend"])
        for finding in findings
        if finding["severity"] != "info"
    ]


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_workers_of_ray(tmp_path: Path) -> None:
    found = found_in("ray", RAY, tmp_path)
    assert sorted(found) == [("GG101", "ray"), ("GG102", "ray"), ("GG103", "ray")]


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_keras_on_jax(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    found = found_in("jax", JAX, tmp_path, KERAS_BACKEND="jax", TF_CPP_MIN_LOG_LEVEL="3")
    assert found == [("GG110", "loky")]
