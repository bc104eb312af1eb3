"""What a fresh process would have in another way than the program has it when it forks.

It imports the modules anew, and knows nothing of what the program did after its own import: to the
globals that the worker reads, and to settings of libraries. What may be a change counts as one.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterator, Mapping

from gradguard_lint.domain.effects import ParallelCall, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Capture, Draw
from gradguard_lint.domain.values import Instance, Thing
from gradguard_lint.engine.tree import free_names, last_name, stored_names
from gradguard_lint.fixes.imported_code import (
    DEFINITIONS,
    FUNCTIONS,
    afterwards,
    is_guard,
    on_import,
)
from gradguard_lint.fixes.sending import is_of_this_process
from gradguard_lint.fixes.task_functions import function_of, reached
from gradguard_lint.fixes.uses import Uses
from gradguard_lint.fixes.written import assigned, dotted, imported
from gradguard_lint.reading.source import Module
from gradguard_lint.words import words


def differs(call: ParallelCall, task: TaskRun, initializers: Collection[str] = ()) -> bool:
    """Whether the function of `task` may read globals, or need settings, that differ in a fresh
    process; functions named in `initializers` run in the workers as well."""
    function = function_of(task)
    if function is None:
        return True
    home = function.module
    program = call.chain[0].site.module if call.chain else call.site.module
    # joblib pickles functions of the main program by value, with the globals that they read
    whole = call.library == "joblib" and call.root == 1 and home is program
    whole |= call.library == "joblib" and home.is_notebook
    read = _read(home, function.node) | ({function.owner.name} if function.owner else set())
    inside = {it.name for it in reached(home, function.node) if isinstance(it, FUNCTIONS)}
    inside |= {*initializers}
    sites = [call.site, call.traits.maker or call.site, *(step.site for step in call.chain)]
    modules = [*dict.fromkeys([home, *(site.module for site in sites)])]
    later = {module: [*afterwards(module, inside)] for module in modules}
    draws = any(of_kinds(task.effects, Draw))
    if any(_sets(it, code, draws=draws) for it in modules for code in later[it]):
        return True
    if whole:  # the module is not imported
        own = [it for it in home.tree.body if not isinstance(it, DEFINITIONS)]
        return any(_sets(home, code, draws=draws) for code in own) or any(
            name in read and is_of_this_process(home, value, by_name=False)
            for name, value in _given(home)
        )
    if not read.isdisjoint(_rebound(home, initializers)) or _is_another(home, task, read):
        return True
    return any(
        _is_changed(module, code, wanted, call)
        for module in modules
        for wanted in [_wanted(home, read) if module is home else _imported(module, home, read)]
        for code in later[module]
    )


# -- globals that the worker reads -----------------------------------------------------------------


def _read(module: Module, function: ast.AST) -> set[str]:
    """The globals that `function` and the functions and classes of its module that it uses read."""
    found: set[str] = set()
    classes = {node.name: node for node in module.tree.body if isinstance(node, ast.ClassDef)}
    waiting = [function]
    while waiting:
        for part in reached(module, waiting.pop()):
            found.update(free_names(part))
        waiting += [classes.pop(name) for name in found & classes.keys()]
    return found


def _rebound(module: Module, initializers: Collection[str]) -> Iterator[str]:
    """The globals of `module` that the program rebinds: under its main guard, or by ``global``."""
    for function in ast.walk(module.tree):
        if isinstance(function, FUNCTIONS) and function.name not in initializers:
            for node in ast.walk(function):
                yield from node.names if isinstance(node, ast.Global) else ()
    for statement in filter(is_guard, module.tree.body):
        yield from stored_names(statement)
        for node in ast.walk(statement):
            if isinstance(node, DEFINITIONS):
                yield node.name
            elif isinstance(node, ast.alias):
                yield from {(node.asname or node.name).partition(".")[0]} - imported(module).keys()


def _given(module: Module) -> Iterator[tuple[str, ast.expr]]:
    """The globals of `module` bound on import, each with its value, or the iterable of it."""
    for node in (inner for statement in on_import(module) for inner in ast.walk(statement)):
        if isinstance(node, (ast.For, ast.comprehension)):
            yield from ((name, node.iter) for name in stored_names(node.target))
        for target, value in assigned(node):
            yield from ((name, value) for name in stored_names(target))


_MODELS = words("model keras-model keras-layer optimizer")
_CHANCE = re.compile(
    r"\b(?:nn|keras|\w*rand\w*|normal|uniform|permutation|shuffle|sample|choice|uuid\d|time|now"
    r"|getpid|token_\w+|mk[ds]temp)\b"
)
"""Calls with a different result each time."""


SHARED = words(
    "Queue JoinableQueue SimpleQueue Lock RLock Event Condition Semaphore BoundedSemaphore Barrier "
    "Value Array"
)
"""Objects with locks, which workers accept only from a context of their own start method."""
_SHARED = re.compile(rf"\b(?:{'|'.join(SHARED)}|RawValue|RawArray|SharedMemory|Manager)\(")


def _is_another(module: Module, task: TaskRun, read: Collection[str]) -> bool:
    """Whether one of these globals may differ between imports: it is shared between processes, or
    random and unseeded."""
    given = [(name, ast.unparse(value)) for name, value in _given(module) if name in read]
    if given and (b"share_memory" in module.data or any(_SHARED.search(it) for _, it in given)):
        return True
    if any(_is_seed(node) for statement in on_import(module) for node in ast.walk(statement)):
        return False
    models = {
        effect.what if effect.payload.module == module.name else ""
        for effect in of_kinds(task.effects, Capture)
        if effect.payload.is_global
        for atom in effect.payload.value.atoms
        if (isinstance(atom, Thing) and atom.kind in _MODELS)
        or (isinstance(atom, Instance) and atom.cls.what in ("torch", "keras"))
    }
    imported = {"", *(name for name, _, _ in _from_project(module))}
    return not models.isdisjoint(imported) or any(
        "(" in value and (name in models or _CHANCE.search(value)) for name, value in given
    )


# -- names by which globals may be changed ---------------------------------------------------------

_Wanted = Mapping[str, "Collection[str] | None"]
"""Names of objects that may be changed; or of their owners, with the attributes that matter: any
attribute of a class or module that is read itself."""


def _wanted(module: Module, read: Collection[str]) -> _Wanted:
    """The names by which code of `module` may change its globals in `read`."""
    wanted: dict[str, Collection[str] | None] = {}
    for name, value in _given(module):  # objects created from it may change it, too
        used = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        if not _is_constant(value) and (name in read or used & wanted.keys()):
            wanted[name] = None
    for node in module.tree.body:
        if isinstance(node, DEFINITIONS) and node.name in read:
            wanted[node.name] = ()
    called = {last_name(node.func) for node in ast.walk(module.tree) if isinstance(node, ast.Call)}
    for name, package, inner in _from_project(module):
        if name in read:
            plain = inner and name not in called and not _is_beside(module, f"{package}.{inner}")
            wanted[name] = None if plain else ()
    return wanted


def _imported(module: Module, home: Module, read: Collection[str]) -> _Wanted:
    """The names by which code of `module` may change globals in `read` of the module `home`."""
    defined = {node.name for node in home.tree.body if isinstance(node, DEFINITIONS)}
    wanted: dict[str, Collection[str] | None] = {}
    for name, package, inner in _from_project(module):
        if _last(package) == _last(home.name) and inner in read:
            wanted[name] = () if inner in defined else None
        elif _last(f"{package}.{inner}" if inner else package) == _last(home.name):
            wanted[name] = read
    return wanted


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _from_project(module: Module) -> Iterator[tuple[str, str, str]]:
    """Imports of project modules in `module`: the name here, the module, and the name there."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom):
            package = module.base_of(node)
            if node.level or _is_beside(module, package):
                yield from ((it.asname or it.name, package, it.name) for it in node.names)
        elif isinstance(node, ast.Import):
            for it in node.names:
                if _is_beside(module, it.name):
                    yield it.asname or it.name.partition(".")[0], it.name, ""


def _is_beside(module: Module, name: str) -> bool:
    """Whether a file in a folder around `module` is the module `name`."""
    folder = os.path.dirname(os.path.abspath(module.path))
    for _ in range(4):
        place = os.path.join(folder, *name.split("."))
        if os.path.isfile(f"{place}.py") or os.path.isdir(place):
            return True
        folder = os.path.dirname(folder)
    return False


_GIVE_CONSTANTS = words("int float str bool len tuple frozenset range sum min max abs round")


def _is_constant(node: ast.expr) -> bool:
    """Whether `node` is an immutable constant, as numbers and strings are."""
    if isinstance(node, ast.Tuple):
        return all(map(_is_constant, node.elts))
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        parts = ast.iter_child_nodes(node)
        return all(_is_constant(part) for part in parts if isinstance(part, ast.expr))
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _GIVE_CONSTANTS
    return isinstance(node, (ast.Constant, ast.JoinedStr, ast.Compare))


def _is_changed(module: Module, code: ast.AST, wanted: _Wanted, call: ParallelCall) -> bool:
    """Whether `code` of `module` may change the object behind one of the names."""
    uses = Uses(module, code, call) if wanted else None
    return uses is not None and any(
        uses.may_change(node, wanted[node.id])
        for node in ast.walk(code)
        if isinstance(node, ast.Name) and node.id in wanted and not uses.is_local(node)
    )


# -- settings of libraries -------------------------------------------------------------------------

_FRAMEWORKS = words("torch numpy tensorflow keras jax")
_SETTINGS = words(
    "set_default_dtype set_default_device set_default_tensor_type set_float32_matmul_precision "
    "use_deterministic_algorithms set_flush_denormal set_grad_enabled set_floatx set_policy "
    "set_global_policy set_image_data_format disable_eager_execution enable_op_determinism seterr "
    "run_functions_eagerly"
)
_SEED = re.compile(r"(?:\A|_)seed(?:\Z|_)|\Aset_(?:rng_)?state\Z")


def _sets(module: Module, code: ast.AST, *, draws: bool) -> bool:
    """Whether `code` changes a process-wide setting of a library; if the worker `draws`, this
    includes seeds."""
    passing = {id(it.context_expr) for it in ast.walk(code) if isinstance(it, ast.withitem)}
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and id(node) not in passing:
            if last_name(node.func) in _SETTINGS or (draws and _is_seed(node)):
                return True
            if dotted(module, node.func) == "jax.config.update":
                return True
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            top = dotted(module, node).partition(".")[0]
            if top in _FRAMEWORKS and node.attr != "benchmark":
                return True
    return False


def _is_seed(node: ast.AST) -> bool:
    """Whether `node` is a call that seeds the process's generators, not an object created there."""
    return (
        isinstance(node, ast.Call)
        and _SEED.search(last_name(node.func)) is not None
        and not any(isinstance(part, ast.Call) for part in ast.walk(node.func))
    )
