"""GG103: tensors that come back from a Python program that this one starts by `subprocess`.

That program has no guard, so it is unknown whether a tensor had a graph there. A tensor that
requires grad, is no parameter, and was not pickled here certainly comes from another process. If a
backward pass ends at it and a tensor pickled for the program gets no gradient, that is a warning.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from typing import Any

from pytest_gradguard.runtime.kernel import task_seeds
from pytest_gradguard.runtime.kernel.dispatch import calling
from pytest_gradguard.runtime.kernel.observing import observe
from pytest_gradguard.runtime.kernel.patching import Patches
from pytest_gradguard.runtime.kernel.registry import Workers
from pytest_gradguard.runtime.kernel.tasks import Task

SUBPROCESS = Workers("subprocess")
_INTERPRETERS = ("python", "pypy", "torchrun", "accelerate")
"""How the names of programs begin that run Python."""


def _started(process: Any, args: Any = (), *rest: Any, **kwargs: Any) -> None:
    words = [str(word) for word in _words(args)]
    if not any(os.path.basename(word).startswith(_INTERPRETERS) for word in words):
        return
    with task_seeds.unnumbered():
        call = calling.begin(SUBPROCESS)
    if call is None or "GG103" in call.dropped:
        return
    from pytest_gradguard.runtime.pitfalls.lost import arriving

    scripts = [os.path.basename(word) for word in words if word.endswith(".py")]
    arriving.started(call, Task(scripts[0] if scripts else "python", None, None))


def _words(args: Any) -> Iterable[Any]:
    if isinstance(args, (str, bytes)):
        return os.fsdecode(args).split()
    return args if isinstance(args, (list, tuple)) else (args,)


apply = Patches([observe(subprocess.Popen, "__init__", before=_started)]).apply
