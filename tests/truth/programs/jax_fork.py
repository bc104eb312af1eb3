"""JAX in forked processes, after the parent has called something of it; all of them at once."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cases import case, main

HANGS = 8.0
"""Seconds after which what takes less than one is taken to hang."""
ROW = np.ones(3, np.float32)
DEVICES = {
    "devices": jax.devices,
    "device_count": jax.device_count,
    "default_backend": jax.default_backend,
}
ARRAYS = {
    "ones": lambda: jnp.ones(3),
    "array": lambda: jnp.array(ROW),
    "key": lambda: jax.random.key(0),
    "PRNGKey": lambda: jax.random.PRNGKey(0),
    "device_put": lambda: jax.device_put(ROW),
    "scalar": lambda: jnp.float32(1),
    "jit": lambda: jax.jit(lambda x: x)(1.0),
    "grad": lambda: jax.grad(lambda x: x * 2)(1.0),
}
NONE = {
    "transforms": lambda: [
        transform(lambda x: x)
        for transform in (jax.jit, jax.grad, jax.vmap, jax.value_and_grad, jax.checkpoint)
    ],
    "types": lambda: (jnp.float32, jnp.dtype("float32"), jnp.result_type(1, 2), jnp.shape(ROW)),
    "settings": lambda: jax.config.update("jax_enable_x64", False),
    "trees": lambda: jax.tree.map(lambda x: x, {"a": 1}),
    "shapes": lambda: jax.eval_shape(lambda x: x, 1.0),
}
READING = {
    "sum": lambda: float(jnp.ones(3).sum()),
    "asarray": lambda: np.asarray(jnp.square(ROW)).tolist(),
    "stack": lambda: jnp.stack([ROW, ROW]).tolist(),
    "draw": lambda: float(jax.random.normal(jax.random.key(0))),
}
NOT_READING = {
    "made": lambda: jnp.ones(3) is None,
    "numpy": lambda: float(ROW.sum()),
    "types": lambda: str(jnp.dtype("float32")),
}


LARGE = (1000, 1000)
"""What JAX computes on in several threads, compiled before or not."""
BEFORE = {
    "once more": lambda: float(jnp.cos(jnp.arange(5.0)).sum()),
    "another number": lambda: float((jnp.arange(5.0) * 2.0).sum()),
    "another shape": lambda: float(jnp.ones(7).max()),
    "large": lambda: float((jnp.ones(LARGE) @ jnp.ones(LARGE)).sum()),
    "100 by 100": lambda: float((jnp.ones((100, 100)) + jnp.ones((100, 100)))[0, 0]),
    "drawn": lambda: float(jax.random.normal(jax.random.key(0), (100, 100))[0, 0]),
}
AGAIN = {
    **BEFORE,
    "another number": lambda: float((jnp.arange(5.0) * 3.0).sum()),
    "another shape": lambda: float(jnp.ones(8).max()),
}
"""What has run before, run again with the same arguments but for what the name says."""


def forked(work: Callable[[], Any]) -> tuple[int, int]:
    """A process that does `work`, and a pipe that closes once it is done."""
    read, write = os.pipe()
    process = os.fork()
    if not process:
        os.close(read)
        with suppress(BaseException):
            work()
            os.write(write, b"+")
        os._exit(0)
    os.close(write)
    return process, read


def ends(processes: Sequence[tuple[int, int]]) -> list[str]:
    """What becomes of each of them until the time is up."""
    until = time.monotonic() + HANGS
    found = []
    for process, pipe in processes:
        ready = select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]
        found.append("hangs" if not ready else "works" if os.read(pipe, 1) else "fails")
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(pipe)
    return found


def after(first: Callable[[], Any], works: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """How each of `works` ends in a process that is forked after `first`."""
    first()
    return dict(zip(works, ends([forked(work) for work in works.values()]), strict=True))


def each_before(calls: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """How reading a result ends in a fork after each of `calls`, each in a process of its own."""
    made = []
    for call in calls.values():
        read, write = os.pipe()
        process = os.fork()
        if not process:
            (told,) = after(call, {"sum": READING["sum"]}).values()
            os.write(write, told.encode())
            os._exit(0)
        os.close(write)
        made.append((process, read))
    found = {}
    for name, (process, pipe) in zip(calls, made, strict=True):
        found[name] = os.read(pipe, 100).decode()
        os.close(pipe)
        os.waitpid(process, 0)
    return found


@case
def questions_about_devices():
    return each_before(DEVICES)


@case
def what_has_run_before():
    read, write = os.pipe()
    process = os.fork()
    if not process:
        told = after(lambda: [work() for work in BEFORE.values()], AGAIN)
        os.write(write, json.dumps(told).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = json.load(pipe)
    os.waitpid(process, 0)
    return found


@case
def arrays_and_calls():
    return each_before(ARRAYS)


@case
def what_computes_nothing():
    return each_before(NONE)


@case
def in_the_worker():  # the last: from here on this process has its threads
    return after(lambda: jnp.ones(3).block_until_ready(), {**READING, **NOT_READING})


if __name__ == "__main__":
    main()
