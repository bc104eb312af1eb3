"""torch: construction of modules and losses."""

from __future__ import annotations

import ast

from gradguard_lint.domain.conditions import NONE, Conditions
from gradguard_lint.domain.shapes import inner
from gradguard_lint.domain.values import (
    UNKNOWN,
    Const,
    Frame,
    Tensor,
    Thing,
    Value,
    constant,
    guarded,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.torch_words import (
    DROPOUTS,
    IF_TRACKED,
    NORMED,
    POOLS,
    STATISTICS,
    WEIGHTLESS,
)
from gradguard_lint.models.transfers import module_parts
from gradguard_lint.models.transfers.devices import as_written, gpu_placement, gpu_touched
from gradguard_lint.models.transfers.parameter_sizes import is_copied_by_threads
from gradguard_lint.models.transfers.tensor_uses import worked
from gradguard_lint.models.transfers.tensors import combine, known_small
from gradguard_lint.models.transfers.torch_calls import device_by_default
from gradguard_lint.models.transfers.torch_modules import does


def functional_call(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``functional_call(module, parameters, inputs)``: the module with these parameters."""
    found: list[tuple[Tensor, Conditions]] = [
        (atom, NONE)
        for index, word in ((1, "parameter_and_buffer_dicts"), (2, "args"))
        for atom in inner(args.get(index, word) or UNKNOWN)
        if isinstance(atom, Tensor)
    ]
    if not any(tensor.tracked for tensor, _ in found):
        found.append((Tensor("torch", "unknown", False, m.worker_ident), NONE))
    worked(m, frame, node, found, heavy=True)
    return combine(m, found, framework="torch")


def model(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A torch module, or a loss."""
    device = args.get(None, "device")
    short = name.rsplit(".", 1)[-1]
    written = device is not None
    if not written and short not in WEIGHTLESS:
        device = device_by_default(m)
    gpu, when = gpu_placement(device, m)
    if gpu:
        what = f"{name}(..., device={as_written(node, device)})" if written else f"{name}(...)"
        gpu_touched(m, frame, node, what, "torch", device, when, device_written=written)
    if name.startswith("torch.nn.") and ("Loss" in short or short in ("CosineSimilarity",)):
        return of(Thing("loss", name, m.ident_at(node), m.worker_ident))
    given = [atom for value in args.values() for atom in inner(value)]
    gpu = gpu or any(atom.gpu for atom in given if isinstance(atom, Thing) and atom.kind == "model")
    parts = [atom for atom in given if isinstance(atom, Thing) or short == "Sequential"]
    small = bool(args.positional) and all(
        _small_part(value) for value in (*args.positional, *args.keywords.values())
    )
    small = small and known_small(value for value in args.positional if not any(value.of(Thing)))
    kept = _keeps_statistics(short, args) or any(does(m, part, "statistics") for part in parts)
    about = (("statistics", constant(True)),) if kept else ()
    if _drops(short, args) or any(does(m, part, "drops") for part in parts):
        about = (*about, ("drops", constant(True)))
    if is_copied_by_threads(short, args) or any(does(m, part, "copied") for part in parts):
        about = (*about, ("copied", constant(True)))
    if args.constant(None, "inplace") is True:
        about = (*about, ("in-place", constant(True)))
    if short in POOLS and _may_give_indices(short, args):
        about = (*about, ("indices", UNKNOWN))
    atom = Thing("model", name, m.ident_at(node), m.worker_ident, gpu, about, small=small)
    if short == "Sequential":
        module_parts.kept(m, atom.ident, args)
    return guarded(of(atom), when) if gpu and when else of(atom)


def _may_give_indices(short: str, args: Args) -> bool:
    """Whether that pool may return the indices of its maxima, too."""
    before = 1 if short.startswith("Adaptive") else 3
    return "return_indices" in args.keywords or args.open or len(args.positional) > before


def _keeps_statistics(short: str, args: Args) -> bool:
    """Whether that module updates running statistics in training mode."""
    tracked = args.get(None, "track_running_stats")
    if short in STATISTICS:
        return tracked is None or tracked.constant is True
    if short in IF_TRACKED:
        return tracked is not None and tracked.constant is True
    return short.startswith(NORMED) or short.endswith("_bn")


def _drops(short: str, args: Args) -> bool:
    """Whether that module draws random numbers in training mode."""
    rate = args.get(0, "p")
    return short in DROPOUTS and (rate is None or rate.constant not in (0, 1))


def _small_part(value: Value) -> bool:
    """Whether this is a number, or a module that is small or has no weights."""
    return all(
        isinstance(atom, Const)
        or (
            isinstance(atom, Thing)
            and atom.kind == "model"
            and (atom.small or atom.name.rpartition(".")[2] in WEIGHTLESS)
        )
        for atom in value.atoms
    )
