"""What a fresh process would have in another way than the program has it when it forks.

It imports the modules anew, and knows nothing of what the program did after its own import: to the
globals that the worker reads, and to settings of libraries. What may be a change counts as one.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterator, Mapping

from gradguard_lint.domain.effects import ParallelCall, TaskRun
from gradguard_lint.domain.values import Instance, Thing
from gradguard_lint.fixes.recipes import dotted, function_of, imports_of, reached
from gradguard_lint.fixes.sending import is_of_this_process
from gradguard_lint.reading.source import Module
from gradguard_lint.words import words

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)


def differs(call: ParallelCall, task: TaskRun, initializers: Collection[str] = ()) -> bool:
    """Whether the function of `task` may read globals, or need settings, that a fresh process has
    in another way; functions of the name of one of `initializers` run in the workers, too."""
    function = function_of(task)
    if function is None:
        return True
    home = function.module
    program = call.chain[0].site.module if call.chain else call.site.module
    # joblib pickles what is of the program itself with the globals that it reads
    whole = call.library == "joblib" and call.root == 1 and home is program
    whole |= call.library == "joblib" and home.is_notebook
    read = _read(home, function.node) | ({function.owner.name} if function.owner else set())
    inside = {it.name for it in reached(home, function.node) if isinstance(it, _FUNCTIONS)}
    inside |= {*initializers}
    sites = [call.site, call.maker or call.site, *(step.site for step in call.chain)]
    modules = [*dict.fromkeys([home, *(site.module for site in sites)])]
    later = {module: [*_later(module, inside)] for module in modules}
    draws = any(effect.kind == "draw" for effect in task.effects)
    if any(_sets(it, code, draws=draws) for it in modules for code in later[it]):
        return True
    if whole:  # the module is not imported
        own = [it for it in home.tree.body if not isinstance(it, _DEFINITIONS)]
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


# -- what the worker reads -------------------------------------------------------------------------


def _read(module: Module, function: ast.AST) -> set[str]:
    """The globals that `function` reads, and the functions and classes of the same module that it
    uses."""
    found: set[str] = set()
    classes = {node.name: node for node in module.tree.body if isinstance(node, ast.ClassDef)}
    waiting = [function]
    while waiting:
        for part in reached(module, waiting.pop()):
            names = [node for node in ast.walk(part) if isinstance(node, ast.Name)]
            own = {node.arg for node in ast.walk(part) if isinstance(node, ast.arg)}
            own |= {node.id for node in names if not isinstance(node.ctx, ast.Load)}
            found |= {node.id for node in names} - own
        waiting += [classes.pop(name) for name in found & classes.keys()]
    return found


def _rebound(module: Module, initializers: Collection[str]) -> Iterator[str]:
    """The globals of `module` that the program gives a value of its own: under its guard, or in
    functions that say ``global``."""
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for statement in imports_of(module)
        for alias in statement.names
    }
    for function in ast.walk(module.tree):
        if isinstance(function, _FUNCTIONS) and function.name not in initializers:
            for node in ast.walk(function):
                yield from node.names if isinstance(node, ast.Global) else ()
    for statement in filter(is_guard, module.tree.body):
        yield from _stored(statement)
        for node in ast.walk(statement):
            if isinstance(node, _DEFINITIONS):
                yield node.name
            elif isinstance(node, ast.alias):
                yield from {(node.asname or node.name).partition(".")[0]} - imported


def is_guard(statement: ast.stmt) -> bool:
    """Whether `statement` asks whether the module is the program."""
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _own(module: Module) -> list[ast.stmt]:
    """The statements that each import of `module` runs, but for definitions."""
    return [it for it in module.tree.body if not isinstance(it, _DEFINITIONS) and not is_guard(it)]


def _given(module: Module) -> Iterator[tuple[str, ast.expr]]:
    """The globals of `module`, each with what an import gives it."""
    for node in (inner for statement in _own(module) for inner in ast.walk(statement)):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
                yield from ((name, node.value) for name in _stored(target))
        elif isinstance(node, (ast.For, ast.comprehension)):
            yield from ((name, node.iter) for name in _stored(node.target))
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield from ((name, node.context_expr) for name in _stored(node.optional_vars))


def _stored(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


_MODELS = words("model keras-model keras-layer optimizer")
_CHANCE = re.compile(
    r"\b(?:nn|keras|\w*rand\w*|normal|uniform|permutation|shuffle|sample|choice|uuid\d|time|now"
    r"|getpid|token_\w+|mk[ds]temp)\b"
)
"""What gives something else each time."""


SHARED = words(
    "Queue JoinableQueue SimpleQueue Lock RLock Event Condition Semaphore BoundedSemaphore Barrier "
    "Value Array"
)
"""What hangs on locks, which workers take only from a context of their own start method."""
_SHARED = re.compile(rf"\b(?:{'|'.join(SHARED)}|RawValue|RawArray|SharedMemory|Manager)\(")


def _is_another(module: Module, task: TaskRun, read: Collection[str]) -> bool:
    """Whether what one of these globals is may be another with each import: it is shared between
    processes, or made by chance and without a seed."""
    given = [(name, ast.unparse(value)) for name, value in _given(module) if name in read]
    if given and (b"share_memory" in module.data or any(_SHARED.search(it) for _, it in given)):
        return True
    if any(_is_seed(node) for statement in _own(module) for node in ast.walk(statement)):
        return False
    models = {
        effect.what if effect.home == module.name else ""
        for effect in task.effects
        if effect.kind == "capture" and effect.is_global
        for atom in effect.value.atoms
        if (isinstance(atom, Thing) and atom.kind in _MODELS)
        or (isinstance(atom, Instance) and atom.cls.what in ("torch", "keras"))
    }
    imported = {"", *(name for name, _, _ in _from_project(module))}
    return not models.isdisjoint(imported) or any(
        "(" in value and (name in models or _CHANCE.search(value)) for name, value in given
    )


# -- by which names it may be changed --------------------------------------------------------------

_Wanted = Mapping[str, "Collection[str] | None"]
"""Names of what may be changed; or of what has it as an attribute, with the names of these: of a
class or module that is read itself, any."""


def _wanted(module: Module, read: Collection[str]) -> _Wanted:
    """The names by which code of `module` may change what is `read` of it."""
    wanted: dict[str, Collection[str] | None] = {}
    for name, value in _given(module):  # what was made of it may change it, too
        used = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        if not _is_constant(value) and (name in read or used & wanted.keys()):
            wanted[name] = None
    for node in module.tree.body:
        if isinstance(node, _DEFINITIONS) and node.name in read:
            wanted[node.name] = ()
    called = {_name(node.func) for node in ast.walk(module.tree) if isinstance(node, ast.Call)}
    for name, package, inner in _from_project(module):
        if name in read:
            plain = inner and name not in called and not _is_beside(module, f"{package}.{inner}")
            wanted[name] = None if plain else ()
    return wanted


def _imported(module: Module, home: Module, read: Collection[str]) -> _Wanted:
    """The names by which code of `module` may change what is `read` of the module `home`."""
    defined = {node.name for node in home.tree.body if isinstance(node, _DEFINITIONS)}
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
    """What `module` imports of the project: its name here, the module, and its name there."""
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
    """Whether `node` is a number, a text or the like, which nothing changes."""
    if isinstance(node, ast.Tuple):
        return all(map(_is_constant, node.elts))
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        parts = ast.iter_child_nodes(node)
        return all(_is_constant(part) for part in parts if isinstance(part, ast.expr))
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _GIVE_CONSTANTS
    return isinstance(node, (ast.Constant, ast.JoinedStr, ast.Compare))


# -- where it may be changed -----------------------------------------------------------------------


def _later(module: Module, inside: Collection[str]) -> Iterator[ast.AST]:
    """The code of `module` that the program runs after its import: under its guard, and functions,
    but for those that run `inside` the workers only, or during the import."""
    guards = [*filter(is_guard, module.tree.body)]
    outer = [*_outer(module.tree)]
    functions = [it for it in outer if isinstance(it, _FUNCTIONS)]
    bodies = [*guards, *(part for it in functions for part in it.body)]
    at_import = [*_own(module), *(part for it in outer for part in it.decorator_list)]
    apart = [part for it in functions if it.name not in inside for part in it.body]
    called = {_name(it.func) for it in _walk([*guards, *apart]) if isinstance(it, ast.Call)}
    then, now = ({_name(it) for it in _walk(parts)} for parts in (bodies, at_import))
    yield from guards
    for function in functions:
        name = function.name
        if (name not in inside or name in called) and (name in then or name not in now):
            yield function


def _walk(parts: Collection[ast.AST]) -> Iterator[ast.AST]:
    return (node for part in parts for node in ast.walk(part))


def _outer(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """The classes and functions in `tree` that are in no function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _DEFINITIONS):
            yield node
        if not isinstance(node, (*_FUNCTIONS, ast.expr)) and not (
            isinstance(node, ast.stmt) and is_guard(node)
        ):
            yield from _outer(node)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _is_changed(module: Module, code: ast.AST, wanted: _Wanted, call: ParallelCall) -> bool:
    """Whether `code` of `module` may change what one of the names stands for."""
    uses = _Uses(module, code, call) if wanted else None
    return uses is not None and any(
        uses.may_change(node, wanted[node.id])
        for node in ast.walk(code)
        if isinstance(node, ast.Name) and node.id in wanted and not uses.is_local(node)
    )


_READING = words(
    "get items keys values copy index count state_dict item tolist numpy cpu clone detach sum mean "
    "norm size dim numel join split strip lower upper startswith endswith format"
)
"""Methods that change nothing; what they give may be part of the object."""
_PURE = words(
    "len print repr int float str bool sum min max sorted list tuple dict set frozenset enumerate "
    "zip range isinstance type any all abs round map filter iter next reversed hasattr id format"
)
_PURE_PACKAGES = words("torch numpy math copy json pickle logging pprint")
_CHANGING = re.compile(r"_\Z|\.[A-Z]\w*\Z|random\.|copyto|put|place|fill_|\.init\.|optim|compile")
"""What is in the names of what may change its arguments in these packages."""
_HOLDING = (
    ast.Starred, ast.keyword, ast.IfExp, ast.BoolOp, ast.Await, ast.List, ast.Tuple, ast.Set,
    ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
"""What has its parts themselves in it."""


class _Uses:
    """What code of a module does with objects."""

    def __init__(self, module: Module, code: ast.AST, call: ParallelCall) -> None:
        self.module = module
        self.code = code
        self.call = call
        self.parents = {it: node for node in ast.walk(code) for it in ast.iter_child_nodes(node)}
        self.seen: set[str] = set()

    def is_local(self, node: ast.Name) -> bool:
        """Whether a function around `node` has a variable of its own with that name."""
        around: ast.AST | None = node
        while around is not None and not (
            isinstance(around, (*_FUNCTIONS, ast.Lambda)) and _has(around, node.id)
        ):
            around = self.parents.get(around)
        return around is not None

    def may_change(self, node: ast.AST, names: Collection[str] | None = None) -> bool:
        """Whether what `node` stands for, or its attributes of these `names`, may be changed."""
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            return False  # another value for the name
        parent = self.parents.get(node)
        if names is not None:
            if isinstance(parent, ast.Call):
                return _name(parent.func) in ("setattr", "delattr")
            if not isinstance(parent, ast.Attribute) or (names and parent.attr not in names):
                return False
            after = self.parents.get(parent)
            if isinstance(after, ast.Call) and (not names or after.func is parent):
                return False
            if isinstance(parent.ctx, ast.Load):
                return self.may_change(parent)
        if isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is node:
            after = self.parents.get(parent)
            if not isinstance(parent.ctx, ast.Load):
                return True
            if not isinstance(after, ast.Call) or after.func is not parent:
                return self.may_change(parent)
            if isinstance(parent, ast.Subscript):
                return False  # an item is called
            return parent.attr not in _READING or self.may_change(after)
        if isinstance(parent, ast.Call):
            return parent.func is not node and not self._is_pure(parent)
        if isinstance(parent, ast.Assign):
            return any(map(self._is_changed_as, parent.targets))
        if isinstance(parent, (ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension)):
            return self._is_changed_as(parent.target)
        if isinstance(parent, ast.withitem):
            return parent.optional_vars is None or self._is_changed_as(parent.optional_vars)
        if isinstance(parent, _HOLDING):
            return self.may_change(parent)
        return isinstance(parent, (ast.Return, ast.Yield, ast.YieldFrom, ast.Lambda))

    def _is_pure(self, call: ast.Call) -> bool:
        """Whether `call` changes nothing that it is given; the call for workers pickles it."""
        if call is self.call.site.node or (self.call.maker and call is self.call.maker.node):
            return True
        full = dotted(self.module, call.func)
        if not full:
            return isinstance(call.func, ast.Name) and call.func.id in _PURE
        return full.partition(".")[0] in _PURE_PACKAGES and not _CHANGING.search(full)

    def _is_changed_as(self, target: ast.expr) -> bool:
        """Whether it may be changed by what an assignment calls it, too."""
        new = {*_stored(target)} - self.seen
        self.seen |= new
        return any(
            isinstance(it, (ast.Attribute, ast.Subscript)) for it in ast.walk(target)
        ) or any(
            self.may_change(node)
            for node in ast.walk(self.code)
            if isinstance(node, ast.Name) and node.id in new
        )


def _has(function: ast.AST, name: str) -> bool:
    """Whether `name` is a variable of the function."""
    waiting = [*ast.iter_child_nodes(function)]
    found = False
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Global) and name in node.names:
            return False
        found |= getattr(node, "name", None) == name
        found |= isinstance(node, ast.arg) and node.arg == name
        found |= (
            isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
        )
        if not isinstance(node, (*_DEFINITIONS, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return found


# -- settings --------------------------------------------------------------------------------------

_FRAMEWORKS = words("torch numpy tensorflow keras jax")
_SETTINGS = words(
    "set_default_dtype set_default_device set_default_tensor_type set_float32_matmul_precision "
    "use_deterministic_algorithms set_flush_denormal set_grad_enabled set_floatx set_policy "
    "set_global_policy set_image_data_format disable_eager_execution enable_op_determinism seterr "
    "run_functions_eagerly"
)
_SEED = re.compile(r"(?:\A|_)seed(?:\Z|_)|\Aset_(?:rng_)?state\Z")


def _sets(module: Module, code: ast.AST, *, draws: bool) -> bool:
    """Whether `code` changes a setting of a library for the whole process; where the worker
    `draws`, generators are some."""
    passing = {id(it.context_expr) for it in ast.walk(code) if isinstance(it, ast.withitem)}
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and id(node) not in passing:
            if _name(node.func) in _SETTINGS or (draws and _is_seed(node)):
                return True
            if dotted(module, node.func) == "jax.config.update":
                return True
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            top = dotted(module, node).partition(".")[0]
            if top in _FRAMEWORKS and node.attr != "benchmark":
                return True
    return False


def _is_seed(node: ast.AST) -> bool:
    """Whether `node` is a call that seeds generators of the process, and no object made there."""
    return (
        isinstance(node, ast.Call)
        and _SEED.search(_name(node.func)) is not None
        and not any(isinstance(part, ast.Call) for part in ast.walk(node.func))
    )
