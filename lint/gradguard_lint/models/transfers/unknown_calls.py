"""Calls of what is not known: what they may do, by their names and by what they are given."""

from __future__ import annotations

import ast

from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import (
    GRADIENT,
    UNKNOWN,
    Const,
    Frame,
    Instance,
    Tensor,
    Thing,
    Value,
    of_own,
)
from gradguard_lint.engine.machine import (
    Machine,
)
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.devices import gpu_hinted, placed, shown

SPREADS = frozenset({"auto", "balanced", "balanced_low_0", "sequential", "cuda"})
"""Words by which a model is put on the GPUs that there are."""


def given_a_gpu(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args) -> None:
    """A call of another library that is told by ``device=`` or ``device_map=`` to use a GPU."""
    spread = args.keywords.get("device_map")
    if spread is not None and not SPREADS.isdisjoint(spread.constants()):
        gpu_hinted(m, frame, node, f'{name}(..., device_map="{spread.constants()[0]}")')
    device = args.keywords.get("device")
    if device is None or any(
        isinstance(atom, Const) and not isinstance(atom.value, str) for atom in device.atoms
    ):
        return
    gpu, when = placed(device, m)
    if gpu and not m.conflicts(when):
        gpu_hinted(m, frame, node, f"{name}(..., device={shown(device)})")


def told_device(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A call of another library whose device may be the number of a GPU."""
    handed_on(m, frame, node, args)
    gpu, when = placed(args.get(*row.argument), m)
    if gpu and not m.conflicts(when):
        gpu_hinted(m, frame, node, f"{name}(..., device={shown(args.get(*row.argument))})")
    elif not gpu:
        given_a_gpu(m, frame, node, name, args)
    return UNKNOWN


def switches(args: Args) -> bool:
    """Whether these are the arguments with which a module changes its mode."""
    return all(isinstance(value.constant, bool) for value in args.values())


def handed_on(m: Machine, frame: Frame, node: ast.AST, args: Args) -> None:
    """Something unknown is called in a worker: what it is given may leave the worker."""
    if m.worker is None:
        return
    for value in args.values():
        for atom in inner(value, 2):
            if (
                isinstance(atom, Instance)
                or (isinstance(atom, Thing) and atom.kind in ("model", "optimizer"))
                or (isinstance(atom, Tensor) and (atom.ident > 0 or atom.ident == GRADIENT))
            ):
                m.effect(frame, "handed-on", node, "an unknown callable", target=value)
                return


def may_seed(m: Machine, frame: Frame, node: ast.AST, name: str, *, unknown: bool) -> None:
    """A call in a worker that may seed the global generators, as its name says; something `unknown`
    that is called when the worker starts may do that, and limit its threads. An initializer that
    is itself unknown may choose a GPU, too."""
    if m.worker is None:
        return
    starting = unknown and m.worker.starting
    if starting or "seed" in name.rpartition(".")[2].lower():
        m.effect(frame, "seed", node, f"{name}()" if name else "an unknown callable")
    if starting:
        m.effect(frame, "set-threads", node, "an unknown callable")
        initializer = m.worker.initializer
        if initializer is not None and node is initializer.site.node:
            m.effect(frame, "gpu-chosen", node, "an unknown callable", value=of_own(id(node)))
