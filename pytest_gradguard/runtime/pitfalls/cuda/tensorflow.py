"""Detects when TensorFlow initialises the GPUs of this process.

TensorFlow creates a context on each visible GPU as its own context is initialised, once in a
process and before the first operation; its list of devices then shows whether there were any.
Without a GPU it runs operations for one on the CPU, unless the program forbids that: then the
operation fails (see `errors`).
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import LatePatches, Patch
from pytest_gradguard.runtime.pitfalls.cuda import attempts

_NAME = "tensorflow"


def _make() -> list[Patch]:
    kind = getattr(sys.modules.get("tensorflow.python.eager.context"), "Context", None)
    known = hasattr(kind, "_initialize_logical_devices")
    return [observe(kind, "_initialize_logical_devices", after=_initialized)] if known else []


_patches = LatePatches(_make)


def apply() -> None:
    """Watch for TensorFlow's context, if TensorFlow is loaded."""
    _patches.apply()
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if context is not None and _NAME not in attempts.inherited and has_gpus(context):
        attempts.up_already(_NAME)


def has_gpus(context: Any) -> bool:
    """Whether TensorFlow's `context` is initialised, with a GPU among its devices."""
    devices = getattr(context, "_logical_devices", None) or ()
    return any(_is_gpu(device) for device in devices)


def _is_gpu(device: Any) -> bool:
    return bool(device.device_type == "GPU")


def _initialized(result: None, context: Any) -> None:
    if has_gpus(context):
        attempts.initialised(_NAME)
