"""Calls of unknown functions: what they may do, by their names and arguments."""

from __future__ import annotations

import ast
import builtins

from gradguard_lint.domain.evidence import MADE, is_of_a_task, owner_of, with_owners
from gradguard_lint.domain.payloads import (
    Backward,
    ComputeThreads,
    Escape,
    GpuChoice,
    Seed,
    UnknownCall,
)
from gradguard_lint.domain.shapes import inner, result_call, sequence
from gradguard_lint.domain.unknowns import is_process_specific, process_specific
from gradguard_lint.domain.values import (
    GRADIENT,
    ONE,
    UNKNOWN,
    Bound,
    Class,
    Const,
    Frame,
    Function,
    Instance,
    Method,
    Tensor,
    Thing,
    Unknown,
    Value,
    is_number,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.proofs import identity_at, prove, prove_graph
from gradguard_lint.engine.tree import last_name
from gradguard_lint.engine.truth import names_cuda
from gradguard_lint.models.rows import Row
from gradguard_lint.models.torch_words import HOOKS, MODULE_METHODS, PARAMETERS
from gradguard_lint.models.transfers import (
    contexts,
    data_parallel,
    environment,
    module_parts,
    own_gradients,
    part_calls,
    samplers,
    signals,
    tensorflow_calls,
    torch_modules,
    torch_tensors,
    work,
)
from gradguard_lint.models.transfers.attribute_tables import may_get_more
from gradguard_lint.models.transfers.devices import gpu_hinted, gpu_placement, gpu_text
from gradguard_lint.models.transfers.frozen import whole_of
from gradguard_lint.words import words

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.domain.evidence import Kind
    from gradguard_lint.domain.questions import Key

SPREADS = frozenset({"auto", "balanced", "balanced_low_0", "sequential", "cuda"})
"""Values of `device_map` that use all GPUs."""

_PARTS = words(
    "lower lstrip partition removeprefix removesuffix replace rpartition rsplit rstrip split strip "
    "upper"
)
"""Methods that split a text."""

_BUILTIN = frozenset(dir(builtins)) - {"eval", "exec"}
"""Built-in names, mostly exceptions, that compute nothing with tensors."""


_PARTIAL_EVIDENCE: dict[object, Kind] = {
    "state_dict": "has-state",
    "step": "steps",
    "zero_grad": "clears",
}
"""Methods that modules and optimizers have, but few other objects."""


def call(m: Machine, frame: Frame, node: ast.AST, atom: Unknown, args: Args) -> Value | None:
    """A call of an unknown value, possibly an attribute; None if the result is unknown, too."""
    key = atom.key
    name = key[2] if isinstance(key, tuple) and len(key) == 3 and key[0] == "attr" else None
    if name == "startswith" and isinstance(key, tuple) and len(args.positional) == 1:
        start = args.positional[0].constant
        if start == "cuda":
            return unknown(names_cuda(key[1]))
        return unknown(("cmp", key[1], "startswith", start))
    whole = whole_of(atom)
    if whole is not None:
        return part_calls.each_called(m, frame, node, whole, args)
    base = key[1] if name is not None and isinstance(key, tuple) else None
    if m.place.worker is not None and signals.waits(base, name):
        m.place.worker.waits = True
    if isinstance(base, tuple) and base[0] == signals.SIGNAL and isinstance(name, str):
        answer = signals.method(m, node, base, name, args)
        if answer is not None:
            return answer
    if name in _PARTS and is_process_specific(unknown(base)):
        part = process_specific(id(node))
        return sequence(part) if str(name).endswith(("split", "partition")) else part
    result = result_call(atom)
    samplers.may_train(m, frame, node)
    owner = owner_of(atom)
    receiver = of(Unknown(base, identity=owner))
    if args.positional:
        prove(m, of(atom), "called")
    elif name in _PARTIAL_EVIDENCE:
        prove(m, of(Unknown(owner)), _PARTIAL_EVIDENCE[name])
    if name == "reset_running_stats":
        for whole_key in with_owners(owner):
            m.facts.evidence.prove(whole_key, "statistics", m.assumed.facts)
    if name == "backward":
        if not args.positional and args.rest is None:
            prove_graph(m, receiver)
        data_parallel.unknown_backward(m)
        loss = args.get(0, "loss")
        if loss is not None and any(it.grad == "history" or it.severed for it in loss.tensors()):
            # A method of an engine or similar: the gradient argument of a tensor's usually has no
            # graph.
            own_gradients.goes_backward(m, frame, node, "`.backward()`", join((loss, UNKNOWN)))
    if name == "set_epoch":
        samplers.epoch_set(m, atom, args.get(0, "epoch"))
    if name == tensorflow_calls.PAUSES:
        return of(Thing("tape-paused", name))
    if not m.facts.evidence.is_proved(identity_at(m, node), "optimizer"):
        data_parallel.escape_to_unknown(m, str(name), args)
    record_escapes(m, frame, node, args)
    if m.place.worker is not None and isinstance(base, tuple) and base[0] == "instance":
        held = [value for _, value in m.fields(base[1])]  # its base class has them, too
        record_escapes(m, frame, node, Args(held if name != "__init__" else []))
    if name == "backward" and result is not None:
        target = of(Tensor("torch", "unknown", maybe=frozenset({result})))
        m.effect(frame, node, "`.backward()`", Backward(target))
        return None
    base = key[1] if isinstance(key, tuple) and len(key) > 1 else None
    whole = whole_of(Unknown(base))
    if whole is not None and name is not None:
        return part_calls.each_method(m, frame, node, whole, str(name), args)
    if name == "requires_grad_":
        part_calls.frozen_behind(m, Unknown(base))
    if owner is not None and (
        name in MODULE_METHODS or (name in ("train", "eval") and switches(args))
    ):
        m.facts.evidence.prove(owner, "module", m.assumed.facts)
        if name in ("parameters", "named_parameters", "share_memory"):
            model = _module(m, owner)
            return torch_modules.model_method(m, frame, node, model, model.ident, False, name, args)
    if m.facts.evidence.is_proved(atom.subject, "module"):
        model = _module(m, atom.subject)
        return torch_modules.model_call(m, frame, node, model, args)
    if name in HOOKS and isinstance(base, tuple) and base[-1] in PARAMETERS:
        return torch_tensors.hooked(m, frame, node, Unknown(base), args)
    is_made = isinstance(owner, tuple) and owner[0] == MADE
    if name == "retain_grad" or (name == "register_hook" and is_made):  # without a graph they raise
        prove_graph(m, receiver)
    if isinstance(name, str):
        record_gpu_argument(m, frame, node, f".{name}", args)
        contexts.unknown_lock_method(m, node, name)
        if name == "setenv":  # usually of pytest's monkeypatch
            environment.environ_set(m, frame, node, args.get(0) or UNKNOWN, args.get(1) or UNKNOWN)
        may_seed(m, frame, node, name if name != "seed" else "", unknown=True)
        handed = work.by_method(m, frame, node, name, args)
        if handed is not None:
            return handed
        return torch_tensors.unknown_method(m, frame, node, name, args)
    called = node.func if isinstance(node, ast.Call) else None
    may_seed(m, frame, node, called.id if isinstance(called, ast.Name) else "", unknown=True)
    if (
        m.place.worker is not None
        and not all(_is_plain(value) for value in args.positional)
        and isinstance(called, ast.Name)
        and called.id not in _BUILTIN
        and not any(it.framework == "numpy" for arg in args.positional for it in arg.tensors())
        and not called.id.endswith(("fn", "func", "function", "callback", "transform"))
    ):
        # The argument may be a model; a name without a value is usually a function.
        given = key is not None and not (isinstance(key, tuple) and key[0] == ONE)
        m.effect(frame, node, "an unknown callable", UnknownCall(given))
    return None


def _module(m: Machine, subject: Key) -> Thing:
    """The module that an unknown value is proved to be."""
    here = m.in_process_worker or is_of_a_task(subject)
    return module_parts.proved(m, subject, m.worker_ident if here else 0)


def _is_plain(value: Value) -> bool:
    """Whether `value` consists of numbers and constants."""
    return all(isinstance(atom, Const) or is_number(atom) for atom in value.atoms)


def record_gpu_argument(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args) -> None:
    """Record a call of another library with a GPU as ``device=`` or ``device_map=``."""
    spread = args.keywords.get("device_map")
    if spread is not None and not SPREADS.isdisjoint(spread.constants()):
        gpu_hinted(m, frame, node, f'{name}(..., device_map="{spread.constants()[0]}")')
    device = args.keywords.get("device")
    if device is None or any(
        isinstance(atom, Const) and not isinstance(atom.value, str) for atom in device.atoms
    ):
        return
    gpu, when = gpu_placement(device, m)
    if gpu and not m.conflicts(when):
        gpu_hinted(m, frame, node, f"{name}(..., device={gpu_text(device)})", device)


def told_device(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A call of another library whose device may be a GPU's number."""
    record_escapes(m, frame, node, args)
    device = args.get(*row.argument)
    gpu, when = gpu_placement(device, m)
    if gpu and not m.conflicts(when):
        gpu_hinted(m, frame, node, f"{name}(..., device={gpu_text(device)})", device)
    elif not gpu:
        record_gpu_argument(m, frame, node, name, args)
    return UNKNOWN


def switches(args: Args) -> bool:
    """Whether these arguments change a module's mode."""
    return all(isinstance(value.constant, bool) for value in args.values())


def record_escapes(m: Machine, frame: Frame, node: ast.AST, args: Args) -> None:
    """Record an unknown call: it may add options to its arguments, and those of a worker may
    escape."""
    for value in args.values():
        for thing in value.things("namespace", "parser"):
            may_get_more(m, thing)
    if m.place.worker is None:
        called = node.func if isinstance(node, ast.Call) else node
        torch_modules.used_by(m, frame, node, last_name(called), args.values())
        return
    for value in args.values():
        for atom in inner(value, 2):
            if (
                isinstance(atom, (Bound, Class, Function, Instance, Method))
                or (isinstance(atom, Thing) and atom.kind in ("model", "optimizer", "state"))
                or (isinstance(atom, Tensor) and (atom.ident > 0 or atom.ident == GRADIENT))
            ):
                m.effect(frame, node, "an unknown callable", Escape(value))
                break


def may_seed(m: Machine, frame: Frame, node: ast.AST, name: str, *, unknown: bool) -> None:
    """Record a call in a worker that may seed the global generators, by its name. Any `unknown`
    call in an initializer may, and may limit threads; an unknown initializer may also select a GPU.
    """
    if m.place.worker is None:
        return
    starting = unknown and m.place.worker.starting
    if starting or "seed" in name.rpartition(".")[2].lower():
        m.effect(frame, node, f"{name}()" if name else "an unknown callable", Seed())
    if starting:
        m.effect(frame, node, "an unknown callable", ComputeThreads())
        initializer = m.place.worker.initializer
        if initializer is not None and node is initializer.site.node:
            m.effect(
                frame, node, "an unknown callable", GpuChoice("inside", process_specific(id(node)))
            )
