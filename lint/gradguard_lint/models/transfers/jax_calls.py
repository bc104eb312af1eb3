"""JAX: devices of its arrays, as far as the program requests a GPU."""

from __future__ import annotations

import ast

from gradguard_lint.domain.conditions import NONE
from gradguard_lint.domain.payloads import Compute
from gradguard_lint.domain.shapes import sequence
from gradguard_lint.domain.values import (
    UNKNOWN,
    Atom,
    Choice,
    Const,
    Frame,
    Site,
    Tensor,
    Thing,
    Value,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.jax import READS, SHAPED
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.devices import gpu_hidden, gpu_name, gpu_placement
from gradguard_lint.models.transfers.extents import shape_of
from gradguard_lint.models.transfers.tensor_uses import is_shared_out, worked
from gradguard_lint.models.transfers.tensors import combine, tensors_in
from pytest_gradguard.records import replace

_BYTES = 4
"""The size of an element in bytes, unless its type is known."""


def computes(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """An operation that starts the threads of its framework, and may need them."""
    short = name.rpartition(".")[2]
    shape = args.get(SHAPED.get(short), "shape") if short in SHAPED else None
    sizes = shape_of(shape) if shape is not None else None
    extent = (*sizes, _BYTES) if sizes is not None else ()
    made = Tensor(row.framework, born=m.worker_ident, extent=extent)
    tensors = [tensor for tensor, _ in tensors_in(args.values())]
    _computed(m, frame, node, name, row, always=is_shared_out(name, [made, *tensors]))
    if row.kind != "array":
        return UNKNOWN
    found = [it for it in tensors_in(args.values()) if it[0].framework == row.framework]
    if any(tensor.gpu for tensor, _ in found):
        return combine(m, found, framework=row.framework)
    gpu = m.modes.gpu and not gpu_hidden(m)
    place = m.site(frame, node) if gpu else None
    return of(replace(made, gpu=gpu, place=place))


def _computed(
    m: Machine, frame: Frame, node: ast.AST, name: str, row: Row, *, always: bool = False
) -> None:
    m.effect(
        frame, node, f"{name}()", Compute(row.framework, heavy=row.flag == "waits", always=always)
    )


def jax_devices(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``jax.devices(...)``: the devices of the requested name."""
    _computed(m, frame, node, name, row)

    def named(atom: Atom) -> Value:
        if not isinstance(atom, Const) or not isinstance(atom.value, str):
            return UNKNOWN
        gpu = gpu_name(atom)
        return of(Thing("device", "cuda" if gpu else atom.value, gpu=gpu))

    return sequence((args.get(*row.argument) or UNKNOWN).map(named))


def jax_put(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``jax.device_put(x, device)``."""
    _computed(m, frame, node, name, row)
    found = [it for it in tensors_in([args.get(0, "x") or UNKNOWN]) if it[0].framework == "jax"]
    here = combine(m, found, framework="jax") if found else of(Tensor("jax", born=m.worker_ident))
    return moved(m, frame, node, here, args.get(*row.argument))


def moved(m: Machine, frame: Frame, node: ast.AST, array: Value, device: Value | None) -> Value:
    """`array` on `device`, if that is known."""
    if device is None:
        return array
    gpu, when = gpu_placement(device, m)
    if gpu and not gpu_hidden(m):
        place = m.site(frame, node)
        there = array.map(lambda it: of(_at(it, place)))
        if not when:
            return there
        choices = (*(Choice(it.atom, it.when | when) for it in there.choices), *array.choices)
        return Value(choices)
    if any(isinstance(atom, (Const, Thing)) for atom in device.atoms):
        return array.map(lambda it: of(_at(it, None)))
    return array


def _at(array: Atom, place: Site | None) -> Atom:
    """`array` on the GPU (moved at `place`), or on the CPU."""
    if not isinstance(array, Tensor):
        return array
    return replace(array, gpu=place is not None, place=place)


def array_method(
    m: Machine, frame: Frame, node: ast.AST, array: Tensor, name: str, args: Args
) -> Value:
    """A method of an array of JAX."""
    if name == "to_device":
        return moved(m, frame, node, of(array), args.get(0, "device"))
    if name in READS:
        return of(array) if name == "block_until_ready" else UNKNOWN
    worked(m, frame, node, [(array, NONE)])
    found = [(tensor, when) for tensor, when in tensors_in(args.values()) if tensor.gpu]
    return combine(m, [(array, NONE), *found], framework="jax")
