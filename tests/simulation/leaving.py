"""A program that switches the simulation on and off, and says what it finds; see `test_leaving`."""

from __future__ import annotations

import json
import os
import threading

import torch
from joblib import Parallel, delayed

import pytest_gradguard
from pytest_gradguard import guard


def names() -> dict[str, dict[str, object]]:
    """Every attribute that a simulation may replace, by where it stands."""
    core = torch._C
    owners = {
        "torch": torch,
        "cuda": torch.cuda,
        "core": core,
        "random": torch.random,
        "storage": torch.UntypedStorage,
        "stream": core._CudaStreamBase,
        "event": core._CudaEventBase,
        "graph": torch.cuda.CUDAGraph,
        "streams": torch.cuda.streams,
        "context": torch.utils._device.DeviceContext,
        "autograd": torch.autograd,
        "engine": torch.autograd.graph,
        "hooks": torch.autograd.graph.saved_tensors_hooks,
        "thread": threading.Thread,
        "utils": torch._utils,
        "version": torch.version,
        "cudnn": torch.backends.cudnn,
        "backend": torch.backends.cuda,
        "plans": torch.backends.cuda.cuFFTPlanCache,
        "jit": torch.jit,
        "script": core.ScriptFunction,
        "method": core.ScriptMethod,
        "distributed": torch.distributed,
        "reductions": torch.multiprocessing.reductions,
        "nccl": torch.cuda.nccl,
        "nvtx": torch.cuda.nvtx,
        "profile": torch.autograd.profiler.profile,
        "nested": torch.nested,
        "export": torch.export,
        "reduce": torch.Tensor,
        "overrides": torch.overrides,
        "dlpack": torch.utils.dlpack,
        "graphs": torch.cuda.graphs,
    }
    return {name: dict(vars(owner)) for name, owner in owners.items()}


def seen(_: int = 0) -> tuple[bool, int, bool]:
    """What a process says of GPUs, and whether a tensor goes to one."""
    try:
        torch.ones(1, device="cuda")
    except (AssertionError, RuntimeError):
        return torch.cuda.is_available(), os.getpid(), False
    return torch.cuda.is_available(), os.getpid(), True


def use() -> None:
    """Make use of what is replaced."""
    model = torch.nn.Linear(2, 2).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    torch.manual_seed(0)
    model(torch.ones(1, 2, device="cuda:1").cuda(0)).sum().backward()
    optimizer.step()
    torch.cuda.manual_seed(3)
    torch.cuda.synchronize()


def leftovers(before: dict[str, dict[str, object]]) -> list[str]:
    """Names that are no longer what they were."""
    now = names()
    return sorted(
        f"{owner}.{name}"
        for owner, values in before.items()
        for name in {*values, *now[owner]}
        if now[owner].get(name) is not values.get(name)
    )


def main() -> None:
    import torch._dynamo  # which replaces names of torch's itself, when an optimizer asks for it

    state = torch.random.get_rng_state()
    before = names()
    with guard("record", simulate_gpu=2):
        use()
        inside = Parallel(2)(delayed(seen)(k) for k in range(4))
        kept = torch.ones(2, device="cuda:1")
    with guard("record"):
        guarded = Parallel(2)(delayed(seen)(k) for k in range(4))
    after = Parallel(2)(delayed(seen)(k) for k in range(4))
    thread: list[object] = []
    worker = threading.Thread(target=lambda: thread.append(seen()[0]))
    worker.start()
    worker.join()
    torch.random.set_rng_state(state)
    left = leftovers(before)
    with guard("record", simulate_gpu=1):
        again = torch.cuda.device_count(), torch.cuda.is_initialized()
        with guard("record", simulate_gpu=3):
            nested = torch.cuda.device_count()
        outer = torch.cuda.device_count()
    print(
        json.dumps(
            {
                "inside": [(available, made) for available, _, made in inside],
                "guarded": [(available, made) for available, _, made in guarded],
                "after": [(available, made) for available, _, made in after],
                "same workers": bool({p for _, p, _ in inside} & {p for _, p, _ in after}),
                "here": seen()[0],
                "thread": thread,
                "kept": [str(kept.device), kept.tolist()],
                "left": left,
                "left at the end": leftovers(before),
                "modes": len(torch.overrides._get_current_function_mode_stack()),
                "again": again,
                "nested": [nested, outer],
                "version": pytest_gradguard.__name__,
            }
        )
    )


if __name__ == "__main__":
    main()
