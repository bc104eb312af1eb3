"""What calls of torch and CuPy do to CUDA: each in a process of its own, forked before any.

`RECORDED` has what was seen on a real GPU: ``context`` where the call makes a context, which takes
memory; ``initialised`` where torch counts CUDA as initialised without one; ``driver`` where the
driver is started. CUDA cannot be used in any process that is forked after one of these. ``nothing``
for the others; ``driver or context`` is what depends on the machine. ``libraries`` are those that
stand on torch. ``python cuda_calls.py torch`` prints what they do here, as JSON.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "recorded" / "cuda_calls.json"
KINDS = ("context", "initialised", "driver", "driver or context", "nothing")
LIMIT = 120
"""How long one call may take, in s, and a fork after it."""


def recorded(library: str) -> dict[str, str]:
    """What each call did, by the calls."""
    table = json.loads(RECORDED.read_text(encoding="utf-8"))[library]
    return {call: kind for kind in KINDS for call in table[kind]}


def version(library: str) -> str:
    """The release that was looked at."""
    found: str = json.loads(RECORDED.read_text(encoding="utf-8"))[library]["version"]
    return found


def statement(call: str) -> str:
    """The call as a statement: ``with`` needs a body."""
    return f"{call}: pass" if call.startswith("with ") and ": " not in call else call


def in_a_fork(work: Callable[[], str]) -> str:
    """What `work` returns, or raises, in a forked process."""
    read, write = os.pipe()
    process = os.fork()
    if not process:
        try:
            signal.alarm(LIMIT)
            told = work()
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(write, told.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read().decode()
    os.waitpid(process, 0)
    return told or "died"


def _has_context() -> bool:
    """Whether this process has a context on the first GPU, as the driver says."""
    driver = ctypes.CDLL("libcuda.so.1")
    flags, active = ctypes.c_uint(), ctypes.c_int()
    failed = driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
    return not failed and bool(active.value)


def does(call: str, names: dict[str, Any], uses: str) -> str:
    """What `call` does in this process, which has not touched CUDA; `uses` needs a GPU."""
    exec(statement(call), dict(names))
    if _has_context():
        return "context"
    torch: Any = names.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "initialised"
    failed = in_a_fork(lambda: str(exec(uses, dict(names))))
    return "nothing" if failed == "None" else "driver"


_OF_TORCH = 'float(torch.ones(1, device="cuda").sum())'
USES = {"torch": _OF_TORCH, "cupy": "float(cupy.ones(1).sum())", "libraries": _OF_TORCH}
MODULES = {
    "torch": ("torch", "torch.utils.checkpoint", "torch.profiler"),
    "cupy": ("cupy", "cupyx", "cupyx.scipy", "cupyx.jit"),
    "libraries": ("torch",),
}


def main(library: str) -> None:
    warnings.simplefilter("ignore")
    names: dict[str, Any] = {"np": importlib.import_module("numpy")}
    for module in MODULES[library]:
        importlib.import_module(module)
        names[module.partition(".")[0]] = sys.modules[module.partition(".")[0]]
    saved = names["saved_cpu"] = f"/tmp/cuda_calls_{os.getpid()}.pt"
    if library == "torch":
        names["torch"].save(names["torch"].ones(2), saved)
    seen = {
        call: in_a_fork(lambda call=call: does(call, names, USES[library]))  # type: ignore[misc]
        for call in recorded(library)
    }
    Path(saved).unlink(missing_ok=True)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
