"""Objects that no worker can receive, although a forked one inherits them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import ParallelCall, TaskRun
from gradguard_lint.domain.values import Atom, Bound, Function, Generator, Instance, Thing
from gradguard_lint.fixes.task_functions import is_local
from gradguard_lint.fixes.written import assigned, dotted
from gradguard_lint.reading.source import Module
from gradguard_lint.words import words

_HERE = words(
    "threading.Lock threading.RLock threading.Event threading.Condition threading.Semaphore "
    "threading.BoundedSemaphore threading.Barrier threading.Thread threading.Timer threading.local "
    "queue.Queue queue.LifoQueue queue.PriorityQueue queue.SimpleQueue socket.socket "
    "sqlite3.connect subprocess.Popen concurrent.futures.ThreadPoolExecutor "
    "concurrent.futures.ProcessPoolExecutor multiprocessing.Pool multiprocessing.Process "
    "multiprocessing.pool.ThreadPool torch.multiprocessing.Pool torch.multiprocessing.Process "
    "torch.utils.tensorboard.SummaryWriter"
)
"""The classes and functions whose objects cannot be pickled."""
_KINDS = words("lock process session graph")
_PICKLING = words("__getstate__ __reduce__ __reduce_ex__")


def cannot_be_sent(call: ParallelCall, task: TaskRun) -> bool:
    """Whether a part of `task` may not be pickled."""
    by_name = call.library != "joblib"
    atoms = [atom for _, atom, _ in (*task.contents, *task.given)]
    if any(_is_unpicklable(atom, by_name=by_name) for atom in (*atoms, *task.task.function.atoms)):
        return True
    maker = call.traits.maker or call.site
    sites = {id(site.node): site for site in (task.task.site, maker)}
    return any(
        is_of_this_process(site.module, part, by_name=by_name)
        for site in sites.values()
        if isinstance(site.node, ast.Call)
        for part in (*site.node.args, *(item.value for item in site.node.keywords))
        if not any(value is maker.node for value in _values(site.module, part))  # who sends it
    )


def _is_unpicklable(atom: Atom, *, by_name: bool) -> bool:
    if isinstance(atom, Thing):
        return atom.kind in _KINDS and "multiprocessing" not in atom.name
    if isinstance(atom, Function):
        return by_name and is_local(atom)
    if isinstance(atom, Bound):
        return _is_unpicklable(atom.receiver, by_name=by_name)
    if not isinstance(atom, Instance):
        return isinstance(atom, Generator)
    classes = (atom.cls, *(cls for cls in atom.cls.above if hasattr(cls, "node")))
    parts = [(cls.module, node) for cls in classes for node in ast.walk(cls.node)]
    if any(getattr(node, "name", "") in _PICKLING for _, node in parts):
        return False
    return any(
        isinstance(target, ast.Attribute) and is_of_this_process(module, value, by_name=by_name)
        for module, node in parts
        for target, value in assigned(node)
    )


def is_of_this_process(module: Module, value: ast.expr, *, by_name: bool, depth: int = 3) -> bool:
    """Whether `value`, or an item of it, may not be picklable: lambdas count if `by_name`."""
    if isinstance(value, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
        parts = value.values if isinstance(value, ast.Dict) else value.elts
        return any(is_of_this_process(module, it, by_name=by_name, depth=depth) for it in parts)
    if isinstance(value, ast.Lambda):
        return by_name
    if isinstance(value, ast.Call):
        return dotted(module, value.func) in _HERE or ast.unparse(value.func) == "open"
    if not isinstance(value, (ast.Name, ast.Attribute)) or not depth:
        return False
    return any(
        is_of_this_process(module, given, by_name=by_name, depth=depth - 1)
        for given in _values(module, value)
    )


def _values(module: Module, name: ast.expr) -> Iterator[ast.expr]:
    """The values that code of `module` assigns to the variable or attribute `name`."""
    written = ast.unparse(name)
    for node in ast.walk(module.tree):
        yield from (value for target, value in assigned(node) if ast.unparse(target) == written)
