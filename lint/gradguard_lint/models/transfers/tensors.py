"""Tensors: where they live, whether they carry a graph, and what operations make of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from gradguard_lint.domain.conditions import GPU_PRESENT, NEVER, NONE, Conditions, any_of
from gradguard_lint.domain.effects import Effect, Step
from gradguard_lint.domain.shapes import inner, result_call
from gradguard_lint.domain.starts import INHERITING
from gradguard_lint.domain.values import (
    NOTHING,
    Atom,
    Choice,
    Const,
    Frame,
    Function,
    Instance,
    Items,
    Site,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    of,
)
from gradguard_lint.engine.branches import is_plain
from gradguard_lint.engine.machine import (
    Machine,
)
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.torch import HEAVY, NOT_SMOOTH
from pytest_gradguard.records import replace

NO_GPUS = ("", "-1")
"""What the variable of visible GPUs says where none is."""

SMALL = 1000
"""Up to this many elements, no operation uses several threads."""

FRAMEWORK_ORDER = ("torch", "tensorflow", "cupy", "dask", "numpy")


WITH_A_GPU = frozenset({(GPU_PRESENT, True)})
"""Where there is a GPU: elsewhere it does not matter."""

RANK = ("int", "rank")
"""The key of the number of a process."""


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
        if gpu_name(choice.atom) and (m is None or not m.far_fetched(choice.when))
    ]
    if not found:
        return None
    return any_of(found)


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


def known_small(values: Iterable[Value]) -> bool:
    """Whether these sizes, plain numbers or tuples of them, are known and make little."""
    count = 1
    for value in values:
        only = value.only
        if isinstance(only, Items) and only.items is not None:
            if not known_small(only.items):
                return False
            for item in only.items:
                size = item.constant
                count *= max(size, 1) if isinstance(size, int) else 1
        elif isinstance(only, Const) and isinstance(only.value, (bool, str, type(None))):
            continue
        elif isinstance(only, Const) and isinstance(only.value, int):
            count *= max(only.value, 1)
        else:
            return False
    return count <= SMALL


def tensors_in(values: Iterable[Value]) -> list[tuple[Tensor, Conditions]]:
    """The tensors among `values`, one container deep."""
    found = []
    for value in values:
        for choice in value.choices:
            call = result_call(choice.atom)
            if isinstance(choice.atom, Tensor):
                found.append((choice.atom, choice.when))
            elif call is not None:
                found.append((unknown_result(call), choice.when))
            elif isinstance(choice.atom, Items):
                parts = (
                    choice.atom.items if choice.atom.items is not None else (choice.atom.element,)
                )
                found.extend(
                    (tensor, choice.when | when)
                    for tensor, when in tensors_in(
                        Value(
                            tuple(
                                inner for inner in part.choices if not isinstance(inner.atom, Items)
                            )
                        )
                        for part in parts
                    )
                )
    return found


def unknown_result(call: int) -> Tensor:
    """What came back from a process call, where all that is known is that it is a tensor."""
    return Tensor("torch", "unknown", maybe=frozenset({call}))


def unsettled(value: Value) -> bool:
    """Whether nothing at all is known of `value`, or of what it holds."""
    return any(isinstance(atom, Unknown) and result_call(atom) is None for atom in inner(value, 1))


def combine(
    m: Machine,
    found: list[tuple[Tensor, Conditions]],
    *,
    smooth: bool = True,
    framework: str | None = None,
) -> Value:
    """The tensor that an operation on tensors makes."""
    tensors = [tensor for tensor, _ in found]
    names = {tensor.framework for tensor in tensors}
    if framework is None:
        framework = next((name for name in FRAMEWORK_ORDER if name in names), "numpy")
    gpu_of = [when for tensor, when in found if tensor.gpu]
    grad_of = [when for tensor, when in found if tensor.tracked]
    grad = "none"
    if framework == "torch":
        if grad_of and m.modes.grad and smooth:
            grad = "history"
        elif any(tensor.grad == "unknown" for tensor in tensors) and m.modes.grad and smooth:
            grad = "unknown"
    elif any(tensor.grad in ("variable", "history") for tensor in tensors):
        grad = "history"
    severed: frozenset[int] = frozenset()
    sources: frozenset[int] = frozenset()
    if smooth:
        severed = severed.union(*(tensor.severed for tensor in tensors))
        sources = sources.union(
            *(
                tensor.sources | ({tensor.ident} if tensor.ident else frozenset())
                for tensor in tensors
            )
        )
        if framework == "torch" and not m.modes.grad:
            severed = frozenset()
        if framework == "tensorflow" and m.worker is not None:
            call = m.worker.call
            severed |= {call.ident} if call.modes.tape is not None else set()
    maybe: frozenset[int] = frozenset()
    if smooth and all(tensor.maybe or tensor.grad == "none" for tensor in tensors):
        maybe = maybe.union(*(tensor.maybe for tensor in tensors))
    atom = Tensor(
        framework,
        grad,
        bool(gpu_of),
        m.worker_ident,
        0,
        severed,
        frozenset(sources),
        maybe,
        next((tensor.place for tensor in tensors if tensor.gpu), None),
        bool(tensors) and all(tensor.small for tensor in tensors),
        NONE.union(*(tensor.cpu for tensor in tensors)),
    )
    conditions = [when for group in (gpu_of, grad_of) for when in group]
    when = frozenset.intersection(*conditions) if conditions else NONE
    if not when:
        return of(atom)
    plain = replace(
        atom, gpu=False, place=None, grad="unknown" if framework == "torch" else atom.grad
    )
    return Value((Choice(atom, when), Choice(plain, frozenset())))


def operation(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    values: list[Value],
    *,
    smooth: bool = True,
    matmul: bool = False,
    name: str = "",
) -> Value | None:
    """What an operator makes of `values`; None where no tensor is among them."""
    found = [
        (choice.atom, choice.when)
        for value in values
        for choice in value.choices
        if isinstance(choice.atom, Tensor)
    ]
    if not found:
        return _of_results(values)
    if any(result_call(atom) is not None for value in values for atom in value.atoms):
        found = tensors_in(values)
    worked(m, frame, node, found, heavy=matmul or name in HEAVY)
    value = combine(m, found, smooth=smooth and name not in NOT_SMOOTH)
    if len(found) == 1 and found[0][0].framework == "numpy" and not matmul:
        made = replace(found[0][0], memory=("array", m.ident_at(node)))
        return value.map(lambda atom: of(made if isinstance(atom, Tensor) else atom))
    return value


def _of_results(values: list[Value]) -> Value | None:
    """What an operator makes of unknown results of one call and plain numbers."""
    calls = set()
    for value in values:
        for atom in value.atoms:
            call = result_call(atom)
            if call is not None:
                calls.add(call)
            elif not isinstance(atom, Const) and not (
                isinstance(atom, Thing) and atom.kind == "number"
            ):
                return None
    return of(Unknown(("result", calls.pop()))) if len(calls) == 1 else None


def worked(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    found: list[tuple[Tensor, Conditions]],
    *,
    heavy: bool = False,
    plain: bool = False,
) -> None:
    """Record the computation: ``compute``, and ``graph`` where it makes a graph.

    Args:
        found: the tensors, and under which assumptions they are those.
        heavy: whether it may start compute threads, if it is on the CPU, and not small.
        plain: what is not known to require grad is taken for data that do not.
    """
    tensors = [tensor for tensor, _ in found]
    gpu_used(m, frame, node, tensors)
    large = [when | tensor.cpu for tensor, when in found if not (tensor.small or tensor.gpu)]
    large = [when for when in large if not m.conflicts(when)] if heavy else []
    names = {tensor.framework for tensor in tensors}
    for framework in ("torch", "tensorflow"):
        if framework in names:
            m.effect(
                frame,
                "compute",
                node,
                framework,
                framework=framework,
                heavy=bool(large),
                under=any_of(large),
                unknown=not plain and m.modes.grad and any(t.grad == "unknown" for t in tensors),
            )
            if framework == "torch" and m.modes.grad and any(t.tracked for t in tensors):
                m.effect(frame, "graph", node, framework, framework=framework)


def gpu_used(m: Machine, frame: Frame, node: ast.AST, tensors: Iterable[Tensor]) -> None:
    """Record that a forked worker uses the GPU that tensors lie on, whatever way was taken."""
    forked = m.worker is not None and m.worker.call.start == "fork"
    if not forked or m.gpu_absent or not any(tensor.gpu for tensor in tensors):
        return
    operands = [part for part in _operands(node) if is_plain(m, part)]
    if any(certainly_on_gpu(m.eval(frame, part)) for part in operands):
        m.effect(frame, "gpu-used", node, ast.unparse(node))


def _operands(node: ast.AST) -> list[ast.expr]:
    """The expressions whose values `node` works on."""
    if isinstance(node, ast.Call):
        own = [node.func.value] if isinstance(node.func, ast.Attribute) else [node.func]
        return [*own, *node.args]
    return [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]


def certainly_on_gpu(value: Value) -> bool:
    """Whether all of `value` is on a GPU, or what is there depends on no more than there is one."""
    known = [(getattr(choice.atom, "gpu", False), choice.when) for choice in value.choices]
    there = [when for gpu, when in known if gpu]
    return bool(there) and (len(there) == len(known) or all(it == WITH_A_GPU for it in there))


def written(m: Machine, frame: Frame, node: ast.AST, what: str, target: Value) -> None:
    """Record a write to a tensor that has the memory of an array, in a worker process."""
    if m.in_process_worker and any(tensor.memory is not None for tensor in target.tensors()):
        m.effect(frame, "memory-write", node, what, target=target)


def derived(m: Machine, tensor: Tensor) -> Tensor:
    """A view or part of `tensor`."""
    grad = tensor.grad
    if tensor.framework == "torch" and tensor.tracked:
        grad = "history" if m.modes.grad else "none"
    elif tensor.grad == "variable":
        grad = "history"
    return replace(
        tensor,
        grad=grad,
        ident=0,
        sources=tensor.sources | ({tensor.ident} if tensor.ident else frozenset()),
    )


def gpu_hidden(m: Machine, *, config: bool = False) -> bool:
    """Whether the GPUs were hidden on the way here, from the process that this runs in.

    `config`: TensorFlow's own configuration counts too, where it reaches this process.
    """
    hidden = False
    for event, when in m.state.past.items():
        if not isinstance(event, Effect) or when - WITH_A_GPU:
            continue
        if event.worker is None and m.worker is not None and event not in m.worker.call.before:
            continue  # done once the worker was there
        if event.kind == "gpu-hidden" and not event.framework:
            hidden = True  # in the environment, which children inherit
        elif event.kind == "set-visible" and event.value.constant not in NO_GPUS:
            hidden = False
        elif config and (
            event.kind == "gpu-grown" or (event.kind == "gpu-hidden" and _holds(m, event))
        ):
            return True
    return hidden


def _holds(m: Machine, event: Effect) -> bool:
    """Whether what `event` configured in its process is configured in this one as well."""
    here = m.worker
    if event.worker is here:
        return True
    if here is None or event.worker is not None:
        return False
    if here.call.start in INHERITING:
        return True
    on_import = event.site.module.name if event.site.function is None else None
    if here.call.start in ("spawn", "forkserver"):  # the program is imported again
        if m.before_main is not None and event in m.before_main:
            return True
        if m.before_main is None and on_import == m.program.entry:
            return True
    functions = [getattr(atom, "function", atom) for atom in here.task.function.atoms]
    homes = {function.module.name for function in functions if isinstance(function, Function)}
    if here.call.root == 1:
        homes.discard(m.program.entry)  # what the program itself defines is pickled by value
    return on_import in homes


def operation_placed(m: Machine, frame: Frame, node: ast.AST, what: str) -> None:
    """An operation was placed: on the GPU, where a device scope around it says so."""
    if m.modes.gpu:
        gpu_touched(m, frame, node, what, "tensorflow")


def device_node(node: ast.AST) -> ast.expr | None:
    """The expression in a call that names its device, as far as its place tells."""
    if not isinstance(node, ast.Call):
        return None
    for keyword in node.keywords:
        if keyword.arg in ("device", "map_location"):
            return keyword.value
    return node.args[0] if node.args and isinstance(node.func, ast.Attribute) else None


def origin_of(m: Machine, frame: Frame, device: ast.expr | None) -> Step | None:
    """Where the variable or attribute that names the device was given its value."""
    site: Site | None = None
    if isinstance(device, ast.Name):
        found = m.lookup(frame, device.id)
        if found is not None:
            site = m.origins.get((found[1].ident, device.id))
    elif isinstance(device, ast.Attribute) and isinstance(device.value, ast.Name):
        found = m.lookup(frame, device.value.id)
        for owner in found[0].of(Instance) if found is not None else ():
            site = site or m.origins.get((owner.ident, device.attr))
    if site is None or device is None:
        return None
    return Step(site, f"`{ast.unparse(device)}` is set here")


def as_written(node: ast.AST, device: Value | None) -> str:
    """The device as the source names it."""
    written = device_node(node)
    return ast.unparse(written) if written is not None else shown(device)


def gpu_touched(
    m: Machine,
    frame: Frame,
    node: ast.AST,
    what: str,
    framework: str,
    chosen: Value = NOTHING,
    when: Conditions = NONE,
) -> None:
    """Record that the expression makes a GPU context, unless there is no GPU here.

    Args:
        chosen: which GPU the process uses from here on, where the expression says so.
        when: what has to hold for that.
    """
    if m.far_fetched_here or gpu_hidden(m) or m.conflicts(when | WITH_A_GPU):
        return
    origin = origin_of(m, frame, device_node(node))
    m.effect(
        *(frame, "gpu-init", node, what),
        framework=framework,
        origin=origin,
        value=chosen,
        under=when,
    )


def driver_started(m: Machine, frame: Frame, node: ast.AST, what: str, framework: str) -> None:
    """Record that the expression starts the GPU's driver, and makes no context."""
    if not (m.far_fetched_here or gpu_hidden(m) or m.conflicts(WITH_A_GPU)):
        m.effect(frame, "gpu-driver", node, what, framework=framework)


def gpu_hinted(m: Machine, frame: Frame, node: ast.AST, what: str) -> None:
    """Record that another library is told to use a GPU."""
    if not m.gpu_absent and not m.far_fetched_here:
        m.effect(frame, "gpu-hint", node, what)


def requires_grad(args: Args) -> str:
    """``leaf`` where ``requires_grad=True`` is among the arguments."""
    value = args.get(None, "requires_grad")
    if value is None:
        return "none"
    constants = value.constants()
    if True in constants:
        return "leaf"
    return "none" if constants and not any(value.of(Unknown)) else "unknown"


def _computed(atom: Unknown) -> bool:
    """Whether what names a GPU is a number, or a text with one, that is not written down."""
    key = atom.key
    return isinstance(key, tuple) and (key[0] == "int" or "{}" in str(key[1]))


def chosen_gpu(device: Value | None) -> Value:
    """Which GPU `device` names, where the program computes its number; else nothing."""
    for atom in device.atoms if device is not None else ():
        if isinstance(atom, Thing) and atom.kind == "device":
            index = atom.part("index")
            if index is not None:
                return index
        elif gpu_name(atom) and isinstance(atom, Unknown) and _computed(atom):
            return of(atom)
    return NOTHING


def numbered(index: Value) -> Value:
    """The GPU whose number is `index`."""
    parts = () if index.constants() else (("index", index),)
    return of(Thing("device", "cuda", gpu=True, parts=parts))


def cuda_argument(args: Args) -> Value:
    """The device that ``.cuda(...)`` names."""
    given = args.get(0, "device")
    if given is None or given.constants() or any(given.of(Thing)):
        return constant("cuda")
    return numbered(given)


def move(
    m: Machine, frame: Frame, node: ast.AST, tensor: Tensor, device: Value | None, what: str
) -> Value:
    """``tensor.to(device)``."""
    gpu, when = placed(device, m)
    if not gpu:
        known = device is not None and any(
            isinstance(atom, (Const, Thing)) for atom in device.atoms
        )
        left = derived(m, tensor)
        cpu = NONE if tensor.gpu else cpu_when(device)
        return of(replace(left, gpu=False if known else tensor.gpu, cpu=cpu))
    gpu_touched(m, frame, node, what, tensor.framework, chosen_gpu(device), when)
    moved = replace(derived(m, tensor), gpu=True, place=m.site(frame, node), memory=None)
    if not when:
        return of(moved)
    left = replace(derived(m, tensor), cpu=cpu_when(device))
    return Value((Choice(moved, when), Choice(left, frozenset())))


def device_argument(args: Args, start: int = 0) -> Value | None:
    """The argument of ``.to(...)`` that names a device."""
    if "device" in args.keywords:
        return args.keywords["device"]
    for value in args.positional[start:]:
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
