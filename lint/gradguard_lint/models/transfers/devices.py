"""Devices: which one a value names, and what starts a GPU."""

from __future__ import annotations

import ast
from collections.abc import Hashable

from gradguard_lint.domain.conditions import (
    GPU_PRESENT,
    NEVER,
    NONE,
    WITH_A_GPU,
    Conditions,
    any_of,
)
from gradguard_lint.domain.effects import Effect, ParallelCall, Step
from gradguard_lint.domain.payloads import GpuChoice, GpuSetting, GpuUse
from gradguard_lint.domain.questions import Key
from gradguard_lint.domain.starts import INHERITING
from gradguard_lint.domain.values import (
    NOTHING,
    RANK,
    Atom,
    Const,
    Frame,
    Function,
    Instance,
    Site,
    Thing,
    Unknown,
    Value,
    constant,
    guarded,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.defaults import (
    gpu_by_name_only,
    needs_nondefault_option,
    path_needs_nondefault_option,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args

NO_GPUS = ("", "-1")
"""Values of the visible-devices variable that hide all GPUs."""


def is_unknown_integer(atom: Atom) -> bool:
    """Whether `atom` is an unknown integer other than a rank."""
    key = atom.key if isinstance(atom, Unknown) else None
    return isinstance(key, tuple) and key[0] == "int" and key != RANK


def gpu_name(atom: Atom) -> bool:
    if isinstance(atom, Thing):
        return atom.kind == "device" and atom.gpu
    text: object = None
    if isinstance(atom, Const):
        text = atom.value
        if isinstance(text, int) and not isinstance(text, bool):
            return text >= 0
    elif isinstance(atom, Unknown) and isinstance(atom.key, tuple):
        if atom.key[0] == "int":
            return True
        text = atom.key[1] if atom.key[0] == "text" else None
    if not isinstance(text, str):
        return False
    low = text.lower()
    return low.startswith(("cuda", "gpu")) or "gpu:" in low


def gpu_when(value: Value | None, m: Machine | None = None) -> Conditions | None:
    """The conditions under which `value` names a GPU; None if it never does."""
    if value is None:
        return None
    found = [
        choice.when
        for choice in value.choices
        if gpu_name(choice.atom) and (m is None or not needs_nondefault_option(m, choice.when))
    ]
    seen = gpu_seen(m) if m is not None and found else NONE
    if not found or seen is None:
        return None
    return any_of(found) | seen


def gpu_placement(value: Value | None, m: Machine | None = None) -> tuple[bool, Conditions]:
    """Whether `value` may name a GPU, and under which conditions."""
    when = gpu_when(value, m)
    return (when is not None, when or NONE)


def cpu_when(device: Value | None) -> Conditions:
    """The conditions under which `device`, if known, is the CPU."""
    if device is None:
        return NONE
    worlds = []
    for choice in device.choices:
        atom = choice.atom
        if isinstance(atom, Unknown) and atom.key is not None and not gpu_name(atom):
            worlds.append(choice.when | {(("eq", atom.key, "cpu"), True)})
        elif not _is_not_cpu(atom):
            worlds.append(choice.when)
    return any_of(worlds) if worlds else NEVER


def _is_not_cpu(atom: Atom) -> bool:
    """Whether `atom` names a device other than the CPU: a GPU, "mps", "meta"."""
    name = atom.name if isinstance(atom, Thing) else getattr(atom, "value", None)
    return gpu_name(atom) or (isinstance(name, str) and not name.lower().startswith("cpu"))


def names_no_gpu(m: Machine, visible: Value) -> bool:
    """Whether no GPU is `visible`, with program options at their defaults."""

    def says_so(atom: Atom) -> bool:
        if isinstance(atom, Const):
            return atom.value in NO_GPUS
        key = atom.key if isinstance(atom, Unknown) else None
        if isinstance(key, tuple) and key[0] == "str":
            key = key[1]
        defaults = m.facts.defaults.get(key, ())
        return bool(defaults) and all(str(it) in NO_GPUS for it in defaults)

    return all(map(says_so, visible.atoms))


def gpu_hidden(m: Machine, *, config: bool = False) -> bool:
    """Whether the GPUs are hidden from this process on this path.

    `config`: also by TensorFlow's configuration, if it reaches this process.
    """
    return (config and _configured(m, "hidden")) or gpu_seen(m) is None


def memory_grown(m: Machine) -> bool:
    """Whether TensorFlow allocates GPU memory on demand in this process."""
    return _configured(m, "grown")


def _configured(m: Machine, setting: str) -> bool:
    """Whether TensorFlow was configured so on this path, for this process."""
    return any(
        isinstance(event, Effect)
        and isinstance(event.payload, GpuSetting)
        and event.payload.setting == setting
        and not when - WITH_A_GPU - m.assumed.facts
        and _reaches(m, event)
        and (_holds(m, event) if event.payload.framework else setting == "grown")
        for event, when in m.state.past.items()
    )


def gpu_seen(m: Machine) -> Conditions | None:
    """The conditions for GPUs to be visible here; None if the environment hides them."""
    if not m.program.hides_gpus:
        return NONE
    hidden, started, again = False, False, False
    fresh = _reads_environment(m)
    seen = NONE
    for event, when in m.state.past.items():
        if not isinstance(event, Effect) or not _reaches(m, event):
            continue
        further, now = when - WITH_A_GPU - m.assumed.facts, event.payload
        setting = now.setting if isinstance(now, GpuSetting) and not now.framework else ""
        if now.gpu_use in STARTING and not further:
            started = started or event.worker is m.place.worker or _inherits(m)
        elif setting == "hidden":
            if started:
                continue  # the visible GPUs were already determined
            hidden = hidden or not further
            again = again or (fresh and _holds(m, event))
            if len(further) == 1:
                ((key, truth),) = further
                seen |= {(key, not truth)}
        elif isinstance(now, GpuChoice) and now.by == "environment":
            if not further and not names_no_gpu(m, now.device):
                hidden, seen = False, NONE
        elif setting == "shown" and fresh and (not again or _holds(m, event)):
            seen = further if hidden else any_of((seen, further))
            hidden = False
    return None if hidden else seen


STARTING = ("context", "driver")
"""GPU uses after which the visible GPUs of a process are fixed."""


def _reads_environment(m: Machine) -> bool:
    """Whether this is a new process, with its parent's current environment."""
    call = None if m.place.worker is None else m.place.worker.call
    if call is None or call.worker is not None:
        return False
    if call.start == "loky":  # it reuses its workers
        return not any(isinstance(it, ParallelCall) and it.start == "loky" for it in call.before)
    return call.start == "spawn"


def _inherits(m: Machine) -> bool:
    return m.place.worker is None or m.place.worker.call.start in INHERITING


def _reaches(m: Machine, event: Effect) -> bool:
    """Whether an event may affect this process: it happened here, or in the parent before this
    worker started."""
    return event.worker is not None or m.place.worker is None or event in m.place.worker.call.before


def _holds(m: Machine, event: Effect) -> bool:
    """Whether the configuration by `event` applies in this process."""
    here = m.place.worker
    if event.worker is here:
        return True
    if here is None or event.worker is not None:
        return False
    if here.call.start in INHERITING:
        return True
    on_import = event.site.module.name if event.site.function is None else None
    if here.call.start in ("spawn", "forkserver"):  # the program is imported again
        if m.facts.before_main is not None and event in m.facts.before_main:
            return True
        if m.facts.before_main is None and on_import == m.program.entry:
            return True
    functions = [getattr(atom, "function", atom) for atom in here.task.function.atoms]
    homes = {function.module.name for function in functions if isinstance(function, Function)}
    if here.call.root == 1:
        homes.discard(m.program.entry)  # definitions of the program itself are pickled by value
    return on_import in homes


def device_node(node: ast.AST) -> ast.expr | None:
    """The device argument of a call, as far as its position shows it."""
    if not isinstance(node, ast.Call):
        return None
    for keyword in node.keywords:
        if keyword.arg in ("device", "map_location"):
            return keyword.value
    if any(keyword.arg is None for keyword in node.keywords):
        return None  # it may be in the keywords
    return node.args[0] if node.args and isinstance(node.func, ast.Attribute) else None


def origin_of(m: Machine, frame: Frame, device: ast.expr | None) -> Step | None:
    """Where the variable or attribute with the device was set."""
    site: Site | None = None
    if isinstance(device, ast.Name):
        found = m.lookup(frame, device.id)
        if found is not None:
            site = m.facts.origins.get((found[1].ident, device.id))
    elif isinstance(device, ast.Attribute) and isinstance(device.value, ast.Name):
        found = m.lookup(frame, device.value.id)
        for owner in found[0].of(Instance) if found is not None else ():
            site = site or m.facts.origins.get((owner.ident, device.attr))
    if site is None or device is None:
        return None
    return Step(site, f"`{ast.unparse(device)}` is set here")


def as_written(node: ast.AST, device: Value | None) -> str:
    """The device in the source's words."""
    written = device_node(node)
    return ast.unparse(written) if written is not None else gpu_text(device)


def gpu_absent(m: Machine) -> bool:
    """Whether this path requires that there is no GPU."""
    return m.assumed.get(GPU_PRESENT) is False


def gpu_touched(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    what: str,
    framework: str,
    device: Value | None = None,
    when: Conditions = NONE,
    chosen: Value = NOTHING,
    device_written: bool = True,
    asks: bool = False,
    bare: bool = False,
    grown: bool = False,
) -> None:
    """Record that the expression creates a GPU context, unless there is no GPU here.

    Args:
        device: the device argument.
        when: the conditions for it to be a GPU.
        chosen: the GPU that the process uses from here on, if the expression selects it.
        device_written: whether the expression names the GPU itself.
        asks: whether it only queries or synchronizes, and allocates nothing.
        bare: whether it initialises CUDA without a context.
        grown: whether GPU memory is allocated on demand.
    """
    seen = gpu_seen(m)
    if seen is None or m.conflicts(when | seen | WITH_A_GPU):
        return
    named = path_needs_nondefault_option(m)
    if named and (m.place.worker is not None or not gpu_by_name_only(m)):
        return
    if device is not None:
        if _is_used_already(m, device):
            return
        chosen = chosen_gpu(device)
    origin = origin_of(m, frame, device_node(node)) if device_written else None
    use = GpuUse("named" if named else "context", framework, asks, bare, grown, chosen)
    m.effect(frame, node, what, use, origin=origin, under=when | seen)


def of_tensor(m: Machine) -> Value:
    """The GPU of a tensor in this process."""
    return of(Thing("device", "cuda", gpu=True, parts=((_USED_BY, constant(m.worker_ident)),)))


_USED_BY = "used by"
"""The part of a device with the process that has a context on it."""


def _is_used_already(m: Machine, device: Value) -> bool:
    """Whether all GPUs in `device` are those of tensors of this process, which already has a
    context; not in forks, where the parent created them."""
    if m.place.worker is not None and m.place.worker.call.start in INHERITING:
        return False
    users = [
        atom.part(_USED_BY) if isinstance(atom, Thing) else None
        for atom in device.atoms
        if gpu_name(atom)
    ]
    return bool(users) and all(it is not None and it.constant == m.worker_ident for it in users)


def asked_for_gpus(m: Machine, key: Key, without: Hashable) -> Value:
    """The result of the query `key` about GPUs; `without` if none is visible."""
    seen = gpu_seen(m)
    if seen is None:
        return constant(without)
    hidden = [guarded(constant(without), frozenset({(about, not it)})) for about, it in seen]
    return join((guarded(unknown(key), seen), *hidden))


def driver_started(m: Machine, frame: Frame, node: ast.AST, what: str, framework: str) -> None:
    """Record that the expression starts the GPU driver without a context."""
    if not path_needs_nondefault_option(m):
        m.effect(frame, node, what, GpuUse("driver", framework))


_FOR_CPU = {"cpu": True, "enabled": False, "no_cuda": True, "use_cpu": True}
"""The values of keywords that select the CPU."""


def asks_for_cpu(args: Args) -> bool:
    """Whether an argument selects the CPU."""
    return any(value.constant == "cpu" for value in args.values()) or any(
        args.keywords[name].constant is wanted
        for name, wanted in _FOR_CPU.items()
        if name in args.keywords
    )


def gpu_hinted(
    m: Machine, frame: Frame, node: ast.AST, what: str, device: Value | None = None
) -> None:
    """Record that another library is configured to use a GPU, or `device`."""
    if not gpu_absent(m) and not path_needs_nondefault_option(m):
        m.effect(frame, node, what, GpuUse("hinted", device=chosen_gpu(device)))


def _computed(atom: Unknown) -> bool:
    """Whether the name of a GPU is an unknown number, or a text with one."""
    key = atom.key
    return isinstance(key, tuple) and (key[0] == "int" or "{}" in str(key[1]))


def chosen_gpu(device: Value | None) -> Value:
    """The GPU that `device` names, if its number is known or computed, with other alternatives;
    otherwise nothing."""
    computed, plain = list[Value](), list[Value]()
    known = {atom.value for atom in device.of(Const)} if device is not None else set()
    if device is not None and len(known) == len(device.choices) and any(map(_has_number, known)):
        return device
    for atom in device.atoms if device is not None else ():
        if not gpu_name(atom):
            continue
        index = atom.part("index") if isinstance(atom, Thing) else None
        name = atom.name if isinstance(atom, Thing) else getattr(atom, "value", None)
        if index is not None:
            computed.append(index)
        elif isinstance(atom, Unknown) and _computed(atom):
            computed.append(of(atom))
        elif _has_number(name):
            computed.append(constant(name))
        else:
            plain.append(constant("cuda"))
    return join((*computed, *plain)) if computed else NOTHING


def _has_number(name: Hashable) -> bool:
    return str(name)[-1:].isdigit()


def gpu_at_index(index: Value) -> Value:
    """The GPU with the number `index`."""
    return of(Thing("device", "cuda", gpu=True, parts=(("index", index),)))


def cuda_argument(args: Args) -> Value:
    """The device of ``.cuda(...)``."""
    given = args.get(0, "device")
    known = given.constants() if given is not None else [None]
    if given is None or None in known or any(given.of(Thing)):
        return constant("cuda")
    return gpu_at_index(join(map(constant, known)) if known else given)


def device_argument(args: Args) -> Value | None:
    """The device argument of ``.to(...)``."""
    if "device" in args.keywords:
        return args.keywords["device"]
    for value in args.positional:
        for atom in value.atoms:
            if isinstance(atom, Thing) and atom.kind == "device":
                return value
            if isinstance(atom, Const) and isinstance(atom.value, (str, int)):
                return value
            if isinstance(atom, Unknown):
                return value
    return None


def gpu_text(value: Value | None) -> str:
    """The GPU in `value` as reports show it."""
    for atom in value.atoms if value is not None else ():
        if not gpu_name(atom):
            continue
        if isinstance(atom, Const):
            return repr(atom.value)
        if isinstance(atom, Thing) and atom.kind == "device":
            return repr(atom.name)
    return "..."
