"""Settings of torch's that concern GPUs, on a machine without one: tensors pretend to be there."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from pytest_gradguard.runtime.frameworks.torch import settings  # noqa: E402

CUDNN = [f"`torch.backends.cudnn.{name}`" for name in ("deterministic", "benchmark", "enabled")]
TF32 = "`torch.backends.cuda.matmul.allow_tf32`"


@pytest.fixture(autouse=True)
def built_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, setting in settings._ON_GPUS.items():
        monkeypatch.setitem(settings.SETTINGS, name, setting)


def used(device: str, names: list[str]) -> set[str]:
    """The settings, of those with these names, on which what a task computes depends."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        rows: Any = torch.ones(1, 3, 4, device=device)
        watch = settings.Watch(names)
        try:
            torch.nn.functional.conv1d(rows, torch.ones(2, 3, 1, device=device))
            (rows @ rows.mT).sum()
        finally:
            found, _ = watch.end()
    return set(found)


def test_the_flags_of_cudnn_count_on_a_gpu() -> None:
    assert used("cuda", [*CUDNN, TF32]) == {*CUDNN, TF32}
    assert used("cpu", [*CUDNN, TF32]) == set()


def test_the_precision_of_matrix_products_counts_where_they_are_computed() -> None:
    assert used("cpu", ["the float32 matmul precision"])
    assert not used("cuda", ["the float32 matmul precision"])


def test_nothing_is_changed_at_first() -> None:
    assert settings.changed() == {}
    assert settings.missing(settings.SETTINGS) == list(settings.SETTINGS)


@pytest.mark.parametrize("name", CUDNN)
def test_a_flag_is_read_and_its_code_sets_it(name: str) -> None:
    setting = settings.SETTINGS[name]
    (default,) = setting.defaults
    try:
        exec(setting.code.format(setting.shown(not default)))
        assert setting.read() is not default
        assert not setting.is_default()
    finally:
        exec(setting.code.format(default))
    assert setting.is_default()


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_a_precision_is_read_and_its_code_sets_it(precision: str) -> None:
    setting, on_gpus = settings.SETTINGS["the float32 matmul precision"], settings.SETTINGS[TF32]
    try:
        exec(setting.code.format(precision))
        assert settings.changed()["the float32 matmul precision"] == precision
        assert on_gpus.shown(on_gpus.read()) == "True"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert settings.changed() == {}


def test_only_tf32_on_gpus() -> None:
    """Before torch 2.9, it is `set_float32_matmul_precision("high")`, which concerns CPUs, too."""
    try:
        exec(settings.SETTINGS[TF32].code.format(True))
        assert settings.SETTINGS[TF32].shown(settings.SETTINGS[TF32].read()) == "True"
        apart = torch.__version__ >= (2, 9)
        assert settings.SETTINGS["the float32 matmul precision"].is_default() is apart
    finally:
        exec(settings.SETTINGS[TF32].code.format(False))
