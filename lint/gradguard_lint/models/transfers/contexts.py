"""``with`` blocks and decorators, and the modes that they set."""

from __future__ import annotations

import ast

from gradguard_lint.domain.payloads import GpuChoice, LibraryUse
from gradguard_lint.domain.shapes import items, known_items
from gradguard_lint.domain.starts import INHERITING
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Bound,
    Class,
    Const,
    Delayed,
    External,
    Frame,
    Function,
    Generator,
    Instance,
    Method,
    Partial,
    Thing,
    Unknown,
    Value,
    constant,
    of,
)
from gradguard_lint.engine import context_generators
from gradguard_lint.engine.caching import CACHED
from gradguard_lint.engine.iteration import is_context
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import SETTER, Args
from gradguard_lint.engine.tree import descend, last_name
from gradguard_lint.engine.turns import from_before
from gradguard_lint.engine.waiting import record_pool_start
from gradguard_lint.models.known import registry_of
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.dask_work import leave_config
from gradguard_lint.models.transfers.devices import (
    asks_for_cpu,
    driver_started,
    gpu_absent,
    gpu_placement,
    gpu_touched,
)
from gradguard_lint.models.transfers.dispatch import dispatching
from gradguard_lint.models.transfers.environment import PATCH, enter_patch, leave_patch
from gradguard_lint.models.transfers.options import with_option
from gradguard_lint.models.transfers.parallel import POOL, configured, start_of
from gradguard_lint.models.transfers.torch_tensors import unhooked
from gradguard_lint.models.transfers.wrapping import CACHE, OF_CLASSES, cached, mark, marked
from pytest_gradguard.records import replace


def enter_context(m: Machine, frame: Frame, node: ast.expr, value: Value) -> Value:
    """Enter a ``with`` item: change the modes; the value of ``as``."""
    result = value
    for atom in value.atoms:
        if isinstance(atom, Thing):
            result = _enter(m, frame, node, atom) or result
        elif isinstance(atom, Generator):
            result = context_generators.enter(m, frame, node, atom)
        elif isinstance(atom, Instance):
            enter = m.find_in_class(atom.cls, "__enter__")
            if enter is None:
                enter = m.find_in_class(atom.cls, "__aenter__")
            if enter is not None:
                m.place.ended.modes = m.modes
                result = m.call(frame, node, m.bind(frame, node, enter, atom), Args())
                inside = m.place.ended.modes
                m.modes = replace(m.modes, backend=inside.backend, n_jobs=inside.n_jobs)
        elif isinstance(atom, Unknown) and _looks_like_lock(node):
            m.modes = replace(m.modes, locked=True)
    return result


def _looks_like_lock(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        node = node.func
    name = last_name(node).lower()
    return "lock" in name or "mutex" in name


def is_task_local(m: Machine, lock: Thing) -> bool:
    """Whether a task created that lock itself: nobody else waits for it."""
    return m.place.worker is not None and lock.born == m.worker_ident


def unknown_lock_method(m: Machine, node: ast.AST, name: str) -> None:
    """Track ``acquire()`` and ``release()`` of an object with the name of a lock."""
    called = node.func if isinstance(node, ast.Call) else None
    if (
        name in ("acquire", "release")
        and isinstance(called, ast.Attribute)
        and _looks_like_lock(called.value)
    ):
        m.modes = replace(m.modes, locked=name == "acquire")


def _enter(m: Machine, frame: Frame, node: ast.expr, atom: Thing) -> Value | None:
    kind = atom.kind
    modes = m.modes
    if kind == "grad-mode":
        flag = (atom.part("off") or NOTHING).constant
        if flag is not None:
            site = m.site(frame, node) if flag else None
            m.modes = replace(modes, grad=not flag, grad_site=site)
    elif kind == "autocast":
        enabled = atom.part("enabled")
        if enabled is None or False not in enabled.constants():
            m.modes = replace(modes, autocast=m.site(frame, node))
    elif kind == "tape":
        m.modes = replace(modes, tape=m.site(frame, node))
    elif kind == "tape-paused":  # another tape may record: ignored
        m.modes = replace(modes, tape=None)
    elif kind == "device":
        m.modes = replace(modes, device=of(atom))
    elif kind == "device-scope":
        m.modes = replace(modes, gpu=atom.gpu and not gpu_absent(m))
    elif kind == "lock":
        m.modes = replace(modes, locked=modes.locked or not is_task_local(m, atom))
    elif kind == PATCH:
        enter_patch(m, frame, atom)
    elif kind == "parallel-config":
        configured(m, atom)
    elif kind == "parallel":
        start = start_of(m, atom)
        if start is not None and start[0] == POOL:
            record_pool_start(m, atom.ident)
    elif kind == "gpu-device":
        framework = atom.name.partition(".")[0]
        enters = driver_started if framework == "torch" else gpu_touched
        enters(m, frame, node, f"{atom.name}(...)", framework)
        m.effect(
            frame, node, f"{atom.name}(...)", GpuChoice("inside", atom.part("device") or NOTHING)
        )
    return None


def stack_method(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    """``ExitStack().enter_context(...)``: it exits with the stack."""
    if name in ("close", "aclose", "__exit__", "__aexit__"):
        exit_context(m, frame, node, of(thing), None)
    if name not in ("enter_context", "enter_async_context") or not isinstance(node, ast.Call):
        return None
    given = args.get(0, "cm")
    if given is None or not node.args:
        return None
    if not from_before(m, of(thing)):  # otherwise it is unknown how often this runs
        known = known_items(m.read(thing.ident, ENTERED) or items("tuple", ())) or ()
        m.store[thing.ident, ENTERED] = items("tuple", (*known, given))
    return enter_context(m, frame, node.args[0], given)


ENTERED = "<entered>"
"""Store key: the context managers that a stack has entered."""


def exit_context(m: Machine, frame: Frame, node: ast.AST, value: Value, raised: str | None) -> None:
    """Exit a ``with`` block; the caller restores the modes."""
    for thing in value.things("exit-stack"):
        inside = m.read(thing.ident, ENTERED)
        m.store.drop((thing.ident, ENTERED))
        for one in reversed(known_items(inside) or () if inside is not None else ()):
            exit_context(m, frame, node, one, raised)
    for thing in value.things("hook"):
        unhooked(m, frame, node, thing)
    for thing in value.things("dask-config"):
        leave_config(m, thing)
    for thing in value.things(PATCH):
        leave_patch(m, thing)
    if m.dead:
        return
    for generator in value.of(Generator):
        context_generators.leave(m, frame, node, generator, raised)
    for instance in value.of(Instance):
        leave = _exit_method(m, instance)
        if leave is not None:
            m.call(frame, node, m.bind(frame, node, leave, instance), Args([UNKNOWN] * 3))


def _exit_method(m: Machine, instance: Instance) -> Value | None:
    leave = m.find_in_class(instance.cls, "__exit__")
    return leave if leave is not None else m.find_in_class(instance.cls, "__aexit__")


def swallows(m: Machine, value: Value) -> bool:
    """Whether ``with value`` may suppress exceptions."""
    for atom in value.atoms:
        if isinstance(atom, Thing) and atom.kind == "suppress":
            return True
        if isinstance(atom, Generator) and context_generators.swallows(m, atom):
            return True
        leave = _exit_method(m, atom) if isinstance(atom, Instance) else None
        for function in leave.of(Function) if leave is not None else ():
            if any(map(_says_true, descend(function.node))):
                return True
    return False


def _says_true(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Return)
        and isinstance(node.value, ast.Constant)
        and bool(node.value.value)
    )


def decorate(
    m: Machine, frame: Frame, decorator: ast.expr, value: Value, function: Function
) -> Value:
    """The value of a function or method under `decorator`."""
    if isinstance(decorator, ast.Name) and decorator.id in OF_CLASSES:
        return mark(value, *OF_CLASSES[decorator.id])
    if isinstance(decorator, ast.Attribute) and decorator.attr == "setter":
        m.store[frame.ident, function.name + SETTER] = value
        return m.eval(frame, decorator.value)
    if isinstance(decorator, ast.Attribute) and decorator.attr in (
        "setter",
        "deleter",
        "getter",
        "cached_property",
    ):
        return mark(value, *OF_CLASSES.get(decorator.attr, ()))
    wrapper = m.eval(frame, decorator)
    for atom in wrapper.atoms:
        if isinstance(atom, External):
            name = registry_of(m).canonical(atom.name)
            special = _external(m, frame, decorator, name, value)
            if special is not None:
                return special
        elif isinstance(atom, Thing) and atom.kind == "grad-mode":
            return marked(value, atom)
        elif isinstance(atom, Thing) and atom.kind == "autocast":
            return mark(value, "autocast")
        elif is_context(atom) or (isinstance(atom, Thing) and atom.kind == PATCH):
            m.place.decorating_contexts[function.node] = (decorator, of(atom))
        elif isinstance(atom, Thing) and atom.kind == "option":
            return with_option(m, value, atom)
        elif isinstance(atom, Function):
            result: Value = m.call(frame, decorator, of(atom), Args([value]))
            if any(result.of(Function)) or any(result.of(Instance)):
                return result
            return value
        else:
            if isinstance(atom, (Method, Partial, Class, Instance)):
                result = m.call(frame, decorator, of(atom), Args([value]))
                if not result.is_unknown:
                    return result
    return value


def decorate_class(m: Machine, frame: Frame, decorator: ast.expr, value: Value) -> Value:
    """The value of a class under `decorator`: remote classes are replaced, and so are those for
    which the project's decorator returns a class."""
    for atom in m.eval(frame, decorator).atoms:
        if isinstance(atom, (Function, Bound)):
            result: Value = m.call(frame, decorator, of(atom), Args([value]))
            known = any(result.of(Class)) or any(result.of(Instance))
            return result if known else value
    return value


def _external(m: Machine, frame: Frame, node: ast.AST, name: str, value: Value) -> Value | None:
    if name == CACHE:
        return cached(value)
    row = registry_of(m).row(name)
    if row is None:
        return None
    if row.does == "task":
        return of(Delayed(value, row.flag or "joblib"))
    if row.does == "grad-mode":
        return mark(value, "enable_grad" if name.endswith("enable_grad") else "no_grad")
    if row.does == "dispatch":
        return dispatching(m, node, name, value)
    what = row.flag if row.does == "mark" else _MARKS.get(row.does)
    return None if what is None else mark(value, what)


_MARKS = {"keeping": CACHED, "context-manager": "context", "compiled": "compiled"}
"""The marks of functions that decorators leave unchanged, by transfer."""


def autocast(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``autocast(...)``."""
    m.effect(frame, node, "autocast", LibraryUse("autocast"))
    on_gpu = name.startswith("torch.cuda.") or gpu_placement(args.get(0, "device_type"))[0]
    if on_gpu and not asks_for_cpu(args):
        driver_started(m, frame, node, f"{name}()", "torch")
    parts = tuple(args.keywords.items())
    return of(Thing("autocast", name, site=m.site(frame, node), parts=parts))


def asks_grad(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``torch.is_grad_enabled()``: known if it is off, and in workers and programs that start with
    it on; not in functions with unknown callers."""
    fresh = (
        m.place.root == 1 if m.place.worker is None else m.place.worker.call.start not in INHERITING
    )
    return constant(m.modes.grad) if fresh or not m.modes.grad else UNKNOWN


def grad_mode(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``no_grad()`` and similar modes."""
    short = name.rpartition(".")[2]
    off: object = True
    if short == "set_grad_enabled":
        value = args.get(0, "mode")
        if value is not None and isinstance(value.only, Const):
            # The call itself sets the mode; ``with`` restores it.
            on = bool(value.constant)
            m.modes = replace(m.modes, grad=on, grad_site=None if on else m.site(frame, node))
        else:
            m.modes = replace(m.modes, grad=True, grad_site=None)
    if short in ("enable_grad",):
        off = False
    elif short in ("set_grad_enabled", "inference_mode") and (args.positional or args.keywords):
        value = args.get(0, "mode")
        only = value.only if value is not None else None
        if not isinstance(only, Const):
            m.effect(frame, node, short, LibraryUse("grad mode"))
            return of(
                Thing("grad-mode", short, site=m.site(frame, node), parts=(("off", UNKNOWN),))
            )
        off = not only.value if short == "set_grad_enabled" else bool(only.value)
    m.effect(frame, node, short, LibraryUse("grad mode"))
    return of(Thing("grad-mode", short, site=m.site(frame, node), parts=(("off", constant(off)),)))
