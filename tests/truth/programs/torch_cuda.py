"""Which calls try to initialise CUDA, on a build of torch without it; and fake CUDA tensors."""

from __future__ import annotations

import pickle

import torch
from cases import attempt, case, main

TRY = {
    "factory": lambda: torch.randn(3, device="cuda"),
    "tensor": lambda: torch.tensor([1.0], device="cuda"),
    "cuda()": lambda: torch.ones(1).cuda(),
    "to": lambda: torch.ones(1).to("cuda"),
    "module.cuda()": lambda: torch.nn.Linear(1, 1).cuda(),
    "module.to": lambda: torch.nn.Linear(1, 1).to("cuda"),
    "get_device_name": lambda: torch.cuda.get_device_name(),
    "synchronize": lambda: torch.cuda.synchronize(),
}
DO_NOT = {
    "is_available": lambda: torch.cuda.is_available(),
    "device_count": lambda: torch.cuda.device_count(),
    "memory_allocated": lambda: torch.cuda.memory_allocated(),
    "device": lambda: torch.device("cuda"),
    "manual_seed_all": lambda: torch.cuda.manual_seed_all(0),
    "empty_cache": lambda: torch.cuda.empty_cache(),
}


def attempts(calls):
    """How often each call entered `torch.cuda._lazy_init`, and whether it raised."""
    original = torch.cuda._lazy_init
    found = {}
    for name, call in calls.items():
        entered = []

        def counting(entered=entered):
            entered.append(1)
            return original()

        torch.cuda._lazy_init = counting
        try:
            outcome = attempt(call)
        finally:
            torch.cuda._lazy_init = original
        found[name] = [bool(entered), isinstance(outcome, dict)]
    return found


@case
def built_with_cuda():
    return torch.backends.cuda.is_built()


@case
def calls_that_try():
    return attempts(TRY)


@case
def calls_that_do_not():
    return attempts(DO_NOT)


@case
def fake_tensor():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        tensor = torch.randn(3, device="cuda")
    pickled = attempt(pickle.dumps, tensor)
    return [tensor.is_cuda, str(tensor.device), isinstance(pickled, dict)]


@case
def devices_rewritten():
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if function is torch.Tensor.cuda:
                return args[0].clone()
            if "cuda" in str(kwargs.get("device")):
                kwargs["device"] = "cpu"
            args = tuple("cpu" if str(arg).startswith("cuda") else arg for arg in args)
            return function(*args, **kwargs)

    with OnCpu():
        made = [torch.randn(3, device="cuda"), torch.ones(1).cuda(), torch.ones(1).to("cuda")]
        made += torch.nn.Linear(1, 1).cuda().parameters()
    return sorted({str(tensor.device) for tensor in made})


if __name__ == "__main__":
    main()
