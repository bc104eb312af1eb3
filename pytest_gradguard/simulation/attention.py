"""Attention: the kernels that the program has chosen, and the fast paths that torch takes.

`torch.nn.attention.sdpa_kernel` names the kernels that may be used. The CPU has none for memory-
efficient attention, nor cuDNN's; what these would do, it does by its plain mathematics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_gradguard.simulation import tags
from pytest_gradguard.simulation.mode import Simulation, handles, is_entered
from pytest_gradguard.simulation.replacing import Replacements

_core: Any = torch._C
_LOW = (torch.float16, torch.bfloat16)


@handles(torch._C._nn.scaled_dot_product_attention)
def _attention(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    query = args[0] if args else kwargs["query"]
    if _core._get_math_sdp_enabled() or tags.device_of(query) is None:
        return simulation.ordinary(func, args, kwargs)
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    if not _has_kernel(query, mask):
        raise RuntimeError("No available kernel. Aborting execution.")
    return _by_mathematics(simulation, func, args, kwargs)


@handles(torch.nn.functional.multi_head_attention_forward)
def _heads(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """The whole layer, which calls the other one inside."""
    if _core._get_math_sdp_enabled() or tags.device_of(args[0]) is None:
        return simulation.ordinary(func, args, kwargs)
    return _by_mathematics(simulation, func, args, kwargs)


def _has_kernel(query: Any, mask: Any) -> bool:
    """Whether a GPU has one among those that are chosen; the plain one is not."""
    low = query.dtype in _LOW or torch.is_autocast_enabled("cuda")
    return bool(
        (_core._get_flash_sdp_enabled() and low and mask is None)
        or (_core._get_mem_efficient_sdp_enabled() and (low or query.dtype is torch.float32))
        or (_core._get_cudnn_sdp_enabled() and low)
    )


def _by_mathematics(simulation: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    _core._set_sdp_use_math(True)
    try:
        return simulation.ordinary(func, args, kwargs)
    finally:
        _core._set_sdp_use_math(False)


def install(simulation: Simulation, replaced: Replacements) -> None:
    """Let `torch.nn` overlook the simulation when it asks whether tensors are plain ones.

    Where they are, attention and transformers take their fast paths. It asks `torch.overrides`
    itself; other modules of torch's keep the function under their own names, and go on seeing the
    simulation.
    """
    original: Callable[..., bool] = torch.overrides.has_torch_function

    def has_torch_function(relevant_args: Any) -> bool:
        if torch._C._len_torch_function_stack() != 1 or not is_entered(simulation):
            return original(relevant_args)
        with torch._C.DisableTorchFunction():
            return any(
                isinstance(value, torch.Tensor)
                and type(value) not in (torch.Tensor, torch.nn.Parameter)
                for value in relevant_args
            )

    replaced.put(torch.overrides, "has_torch_function", has_torch_function)
