"""Devices: which one a value names, and what starts the GPU."""

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
from gradguard_lint.engine.defaults import far_fetched, far_fetched_here, only_named
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args

NO_GPUS = ("", "-1")
"""What the variable of visible GPUs says where none is."""


def counted(atom: Atom) -> bool:
    """Whether `atom` is some number, but not that of a process."""
    key = atom.key if isinstance(atom, Unknown) else None
    return isinstance(key, tuple) and key[0] == "int" and key != RANK


def gpu_name(atom: Atom) -> bool:
    """Whether `atom` names a GPU."""
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
    """The assumptions under which `value` names a GPU; None where it does under none."""
    if value is None:
        return None
    found = [
        choice.when
        for choice in value.choices
        if gpu_name(choice.atom) and (m is None or not far_fetched(m, choice.when))
    ]
    seen = gpu_seen(m) if m is not None and found else NONE
    if not found or seen is None:
        return None
    return any_of(found) | seen


def placed(value: Value | None, m: Machine | None = None) -> tuple[bool, Conditions]:
    """Whether `value` may name a GPU, and under which assumptions."""
    when = gpu_when(value, m)
    return (when is not None, when or NONE)


def cpu_when(device: Value | None) -> Conditions:
    """The assumptions under which `device`, where it is told, is the CPU."""
    if device is None:
        return NONE
    worlds = []
    for choice in device.choices:
        atom = choice.atom
        if isinstance(atom, Unknown) and atom.key is not None and not gpu_name(atom):
            worlds.append(choice.when | {(("eq", atom.key, "cpu"), True)})
        elif not _elsewhere(atom):
            worlds.append(choice.when)
    return any_of(worlds) if worlds else NEVER


def _elsewhere(atom: Atom) -> bool:
    """Whether `atom` names a device that is not the CPU: a GPU, "mps", "meta"."""
    name = atom.name if isinstance(atom, Thing) else getattr(atom, "value", None)
    return gpu_name(atom) or (isinstance(name, str) and not name.lower().startswith("cpu"))


def names_no_gpu(m: Machine, visible: Value) -> bool:
    """Whether no GPU is `visible`, as far as the options of the program are what they are by
    default."""

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
    """Whether the GPUs were hidden on the way here, from the process that this runs in.

    `config`: TensorFlow's own configuration counts too, where it reaches this process.
    """
    return (config and _configured(m, "hidden")) or gpu_seen(m) is None


def memory_grown(m: Machine) -> bool:
    """Whether TensorFlow takes the GPU's memory as it needs it, in the process that asks."""
    return _configured(m, "grown")


def _configured(m: Machine, setting: str) -> bool:
    """Whether TensorFlow was told so, on the way here, and that reaches this process."""
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
    """What has to hold for the GPUs to be seen here; None where the environment hides them."""
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
                continue  # which GPUs there are was told already
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
"""What makes a process look which GPUs there are, once for all."""


def _reads_environment(m: Machine) -> bool:
    """Whether this is a new process, which starts in the environment that its parent has now."""
    call = None if m.place.worker is None else m.place.worker.call
    if call is None or call.worker is not None:
        return False
    if call.start == "loky":  # it keeps its workers for the next call
        return not any(isinstance(it, ParallelCall) and it.start == "loky" for it in call.before)
    return call.start == "spawn"


def _inherits(m: Machine) -> bool:
    return m.place.worker is None or m.place.worker.call.start in INHERITING


def _reaches(m: Machine, event: Effect) -> bool:
    """Whether what happened in a process may matter to this one: in its own, or in the parent
    before the worker was there."""
    return event.worker is not None or m.place.worker is None or event in m.place.worker.call.before


def _holds(m: Machine, event: Effect) -> bool:
    """Whether what `event` configured in its process is configured in this one as well."""
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
        homes.discard(m.program.entry)  # what the program itself defines is pickled by value
    return on_import in homes


def device_node(node: ast.AST) -> ast.expr | None:
    """The expression in a call that names its device, as far as its place tells."""
    if not isinstance(node, ast.Call):
        return None
    for keyword in node.keywords:
        if keyword.arg in ("device", "map_location"):
            return keyword.value
    if any(keyword.arg is None for keyword in node.keywords):
        return None  # it may be among those
    return node.args[0] if node.args and isinstance(node.func, ast.Attribute) else None


def origin_of(m: Machine, frame: Frame, device: ast.expr | None) -> Step | None:
    """Where the variable or attribute that names the device was given its value."""
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
    """The device as the source names it."""
    written = device_node(node)
    return ast.unparse(written) if written is not None else shown(device)


def gpu_absent(m: Machine) -> bool:
    """Whether this place is only reached where there is no GPU."""
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
    told: bool = True,
    asks: bool = False,
    bare: bool = False,
    grown: bool = False,
) -> None:
    """Record that the expression makes a GPU context, unless there is no GPU here.

    Args:
        device: what names the GPU.
        when: what has to hold for that.
        chosen: which GPU the process uses from here on, where the expression says so.
        told: whether the expression names the GPU itself.
        asks: whether it asks or waits, and puts nothing there.
        bare: whether it initialises CUDA alone, and makes no context.
        grown: whether the GPU's memory is taken as it is needed.
    """
    seen = gpu_seen(m)
    if seen is None or m.conflicts(when | seen | WITH_A_GPU):
        return
    named = far_fetched_here(m)
    if named and (m.place.worker is not None or not only_named(m)):
        return
    if device is not None:
        if _is_used_already(m, device):
            return
        chosen = chosen_gpu(device)
    origin = origin_of(m, frame, device_node(node)) if told else None
    use = GpuUse("named" if named else "context", framework, asks, bare, grown, chosen)
    m.effect(frame, node, what, use, origin=origin, under=when | seen)


def of_tensor(m: Machine) -> Value:
    """The GPU that a tensor lies on, in the process that asks."""
    return of(Thing("device", "cuda", gpu=True, parts=((_USED_BY, constant(m.worker_ident)),)))


_USED_BY = "used by"
"""The part of a device that says which process has a context on it."""


def _is_used_already(m: Machine, device: Value) -> bool:
    """Whether all GPUs that `device` may name are those of tensors that this process has; what a
    forked one inherits was made in the parent."""
    if m.place.worker is not None and m.place.worker.call.start in INHERITING:
        return False
    users = [
        atom.part(_USED_BY) if isinstance(atom, Thing) else None
        for atom in device.atoms
        if gpu_name(atom)
    ]
    return bool(users) and all(it is not None and it.constant == m.worker_ident for it in users)


def asked_for_gpus(m: Machine, key: Key, without: Hashable) -> Value:
    """What the question `key` about the GPUs gives; `without`: where none is to be seen."""
    seen = gpu_seen(m)
    if seen is None:
        return constant(without)
    hidden = [guarded(constant(without), frozenset({(about, not it)})) for about, it in seen]
    return join((guarded(unknown(key), seen), *hidden))


def driver_started(m: Machine, frame: Frame, node: ast.AST, what: str, framework: str) -> None:
    """Record that the expression starts the GPU's driver, and makes no context."""
    if not far_fetched_here(m):
        m.effect(frame, node, what, GpuUse("driver", framework))


_FOR_CPU = {"cpu": True, "enabled": False, "no_cuda": True, "use_cpu": True}
"""What keywords say where no GPU is wanted."""


def asks_for_cpu(args: Args) -> bool:
    """Whether an argument says that the CPU is to be used."""
    return any(value.constant == "cpu" for value in args.values()) or any(
        args.keywords[name].constant is wanted
        for name, wanted in _FOR_CPU.items()
        if name in args.keywords
    )


def gpu_hinted(
    m: Machine, frame: Frame, node: ast.AST, what: str, device: Value | None = None
) -> None:
    """Record that another library is told to use a GPU, or `device`."""
    if not gpu_absent(m) and not far_fetched_here(m):
        m.effect(frame, node, what, GpuUse("hinted", device=chosen_gpu(device)))


def _computed(atom: Unknown) -> bool:
    """Whether what names a GPU is a number, or a text with one, that is not written down."""
    key = atom.key
    return isinstance(key, tuple) and (key[0] == "int" or "{}" in str(key[1]))


def chosen_gpu(device: Value | None) -> Value:
    """Which GPU `device` names, where the program computes its number, or that is known, and what
    else it may name beside that; else nothing."""
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


def numbered(index: Value) -> Value:
    """The GPU whose number is `index`."""
    return of(Thing("device", "cuda", gpu=True, parts=(("index", index),)))


def cuda_argument(args: Args) -> Value:
    """The device that ``.cuda(...)`` names."""
    given = args.get(0, "device")
    known = given.constants() if given is not None else [None]
    if given is None or None in known or any(given.of(Thing)):
        return constant("cuda")
    return numbered(join(map(constant, known)) if known else given)


def device_argument(args: Args) -> Value | None:
    """The argument of ``.to(...)`` that names a device."""
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


def shown(value: Value | None) -> str:
    """How reports show the GPU that `value` names."""
    for atom in value.atoms if value is not None else ():
        if not gpu_name(atom):
            continue
        if isinstance(atom, Const):
            return repr(atom.value)
        if isinstance(atom, Thing) and atom.kind == "device":
            return repr(atom.name)
    return "..."
