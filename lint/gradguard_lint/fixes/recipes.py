"""Repairs that several rules state: other workers for a call, and what may be said of a worker."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator

from gradguard_lint.domain.effects import ParallelCall, Program, TaskRun
from gradguard_lint.domain.values import (
    Bound,
    Class,
    External,
    Function,
    Partial,
    Site,
    TaskCall,
    Value,
)
from gradguard_lint.engine.tree import last_name
from gradguard_lint.fixes.changes import (
    Change,
    Import,
    RemoveArgument,
    RenameKeywords,
    Replace,
    SetKeyword,
)
from gradguard_lint.reading.source import Module
from gradguard_lint.words import words

# -- what the source says --------------------------------------------------------------------------


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    """The keyword argument `name` of `call`."""
    return next((item for item in call.keywords if item.arg == name), None)


def is_open(call: ast.Call) -> bool:
    """Whether `call` unpacks arguments that may be any."""
    return any(item.arg is None for item in call.keywords) or any(
        isinstance(item, ast.Starred) for item in call.args
    )


def argument(site: Site, written: str) -> ast.expr | None:
    """The argument of the call at `site` that its source, or its keyword, calls `written`."""
    call = site.node
    if not isinstance(call, ast.Call):
        return None
    found = [item for item in call.args if ast.unparse(item) == written]
    found += [item.value for item in call.keywords if item.arg == written]
    return found[0] if len(found) == 1 else None


def imports_of(module: Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements at the top of `module`, in no function or branch."""
    for statement in module.tree.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield statement


def binds(module: Module, name: str) -> str | None:
    """What an import at the top of `module` binds `name` to, as a dotted name."""
    for statement in imports_of(module):
        for alias in statement.names:
            if (alias.asname or alias.name) == name:
                package = getattr(statement, "module", None)
                return f"{package}.{alias.name}" if package else alias.name
    return None


def dotted(module: Module, node: ast.expr) -> str:
    """The dotted name that `node`, a name and attributes of it, means by the imports of `module`;
    "" where it is none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    for statement in imports_of(module):
        for alias in statement.names:
            whole = isinstance(statement, ast.Import) and alias.asname is None
            if whole and alias.name.partition(".")[0] == node.id:
                return ".".join([node.id, *parts])
    bound = binds(module, node.id)
    return ".".join([bound, *parts]) if bound else ""


def spelled(module: Module, full: str) -> str | None:
    """The expression that means the library's name `full` in `module`, by what it imports."""
    before, after = full, ""
    while before:
        for statement in imports_of(module):
            for alias in statement.names:
                name = alias.asname or alias.name
                if binds(module, name) == before:
                    return name + after
        before, _, last = before.rpartition(".")
        after = f".{last}{after}"
    return None


def source_of(module: Module, node: ast.expr) -> str:
    """`node` as the source writes it."""
    return ast.get_source_segment(module.text, node) or ast.unparse(node)


def is_bound(module: Module, name: str) -> bool:
    """Whether `module` gives `name` a meaning of its own anywhere."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.arg) and node.arg == name:
            return True
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and node.name == name
        ):
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) == name:
            return True
    return False


def importing(module: Module, name: str, package: str | None = None) -> tuple[Change, ...] | None:
    """The changes after which `name` means that import in `module`; None where it cannot."""
    full = f"{package}.{name}" if package else name
    bound = binds(module, name)
    if bound == full:
        return ()
    if bound is not None or is_bound(module, name) or _is_imported_on_condition(module, full):
        return None
    return (Import(module, module.tree, name, package),)


def _is_imported_on_condition(module: Module, full: str) -> bool:
    """Whether `module` imports the package of `full`, but only in a function or branch: it may be
    missing, or not be wanted until then."""
    top = full.partition(".")[0]

    def imports(node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom):
            return not node.level and (node.module or "").partition(".")[0] == top
        return isinstance(node, ast.Import) and any(
            alias.name.partition(".")[0] == top for alias in node.names
        )

    return not any(map(imports, imports_of(module))) and any(map(imports, ast.walk(module.tree)))


def bindings(tree: ast.AST, name: str) -> int:
    """How often code in `tree` gives `name` a value."""
    return sum(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(tree)
    )


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What `node` gives values to, each with its value, or with what that is a part of."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            own = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            values = node.value.elts if isinstance(node.value, (ast.Tuple, ast.List)) else []
            apart = len(own) == len(values) and own != [target]
            apart = apart and not any(isinstance(it, ast.Starred) for it in (*own, *values))
            yield from zip(own, values if apart else [node.value] * len(own), strict=True)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr


def evaluable(module: Module, node: ast.expr) -> bool:
    """Whether `node` means the same everywhere in `module`: imported names and constants."""
    return all(
        binds(module, inner.id) is not None
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name)
    )


# -- the worker's function -------------------------------------------------------------------------


def function_of(task: TaskRun | TaskCall) -> Function | None:
    """The function that the task runs, where it is one."""
    sent = task.task if isinstance(task, TaskRun) else task
    found = set(_functions(sent.function))
    return found.pop() if len(found) == 1 else None


def _functions(value: Value) -> Iterator[Function | None]:
    for atom in value.atoms:
        if isinstance(atom, Function):
            yield atom
        elif isinstance(atom, Bound):
            yield atom.function
        elif isinstance(atom, Partial):
            yield from _functions(atom.function)
        else:
            yield None


def is_local(function: Function) -> bool:
    """Whether it is a lambda, or defined in another function: pickle cannot find it by its name."""
    inside = function.frame.parent is not None and not function.frame.is_class
    return isinstance(function.node, ast.Lambda) or inside


def handed_out_alone(
    program: Program, function: Function, allowed: Callable[[ParallelCall], bool]
) -> bool:
    """Whether the function is named only where calls hand it out that are `allowed`, all of
    them: another way through the program may lead to the same call."""
    if isinstance(function.node, ast.Lambda) or function.wraps is not None:
        return False  # a decorator may do more with what it was made of
    if any(_may_be(task, function) for task in program.in_line) or any(
        effect.worker is None and _is_of(effect.site, function) for effect in program.effects
    ):
        return False  # by `map`, say, where there is no pool
    tasks = [task for call in program.calls for task in call.tasks if _may_be(task.task, function)]
    modules = {id(function.module): function.module}
    modules |= {id(task.task.site.module): task.task.site.module for task in tasks}
    inside = {id(node) for task in tasks for node in ast.walk(task.task.site.node)}
    return all(allowed(task.call) for task in tasks) and all(
        id(node) in inside
        for module in modules.values()
        for node in _mentions(module.tree, function.name)
    )


def _may_be(task: TaskCall, function: Function) -> bool:
    """Whether the task may run the code of `function`."""
    return any(it is not None and it.node is function.node for it in _functions(task.function))


def on_the_way(call: ParallelCall, first: int = 0) -> list[Function]:
    """The functions by which the program came to `call`, but for the `first` scopes."""
    frames = [*(step.frame for step in call.chain), call.frame][first:]
    return [it.function for it in frames if it is not None and it.function is not None]


def _is_of(site: Site, function: Function) -> bool:
    """Whether the code of `function` is run at `site`."""
    own = site.module is function.module and site.function == function.name
    return own and site.stands_in(function.node)


def leads_only_to(function: Function, calls: Iterable[ParallelCall]) -> bool:
    """Whether its module names the function only where it is called on the way to one of these."""
    steps = (step.site.node for call in calls for step in call.chain)
    called = [node.func if isinstance(node, ast.Call) else node for node in steps]
    inside = {id(part) for node in called if isinstance(node, ast.expr) for part in ast.walk(node)}
    named = _mentions(function.module.tree, function.name)
    return all(id(node) in inside for node in named)


def callers_are_seen(function: Function) -> bool:
    """Whether nothing but what names the function can call it: no library, and no registry."""
    node, owner = function.node, function.owner
    if isinstance(node, ast.Lambda) or not all(
        _keeps(function.module, decorator) for decorator in node.decorator_list
    ):
        return False
    if owner is not None and (_is_special(node.name) or not _is_plain(owner)):
        return False  # Python calls it, or a class that it inherits from
    return not any(_by_name(inner, node.name) for inner in ast.walk(function.module.tree))


def _keeps(module: Module, decorator: ast.expr) -> bool:
    """Whether a decorator is known to give the function to nobody else."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(called, ast.Name) and called.id in _OF_METHODS:
        return not is_bound(module, called.id)
    return dotted(module, called).partition(".")[0] in _HARMLESS


_OF_METHODS = words("staticmethod classmethod property")
_HARMLESS = words("torch functools contextlib typing abc")
"""Packages whose decorators change what a call does, and keep no list of functions."""

_DYNAMIC = words("globals locals vars eval exec attrgetter methodcaller getmembers __dict__")


def _is_plain(owner: Class) -> bool:
    """Whether all that `owner` inherits is written in its own module."""
    return all(
        len(cls.bases) == len(cls.node.bases)  # what is not known is left out
        and cls.module is owner.module
        and all(isinstance(base, Class) or base == _OBJECT for base in cls.bases)
        for cls in (owner, *owner.above)
    )


_OBJECT = External("builtins.object")


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _by_name(node: ast.AST, name: str) -> bool:
    """Whether `node` may find the function `name` by a text that says how it is called."""
    if isinstance(node, ast.Constant):
        return node.value == name
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        return len(node.args) < 2 or not isinstance(node.args[1], ast.Constant)
    return last_name(node) in _DYNAMIC


def _mentions(tree: ast.AST, name: str) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if last_name(node) == name:
            yield node


def reached(module: Module, function: ast.AST) -> Iterator[ast.AST]:
    """`function`, and the functions of `module` that it names, or that these name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    known = {node.name: node for node in ast.walk(module.tree) if isinstance(node, kinds)}
    waiting = [function]
    while waiting:
        node = waiting.pop()
        yield node
        for inner in ast.walk(node):
            name = last_name(inner)
            if name in known:
                waiting.append(known.pop(name))


def asks(module: Module, names: Collection[str], outside: ast.AST | None = None) -> bool:
    """Whether code of `module`, but not of `outside`, reads one of these attributes of a value."""
    left_out = {id(node) for node in ast.walk(outside)} if outside is not None else set()
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.ctx, ast.Load)
        and id(node) not in left_out
        and not dotted(module, node)
        for node in ast.walk(module.tree)
    )


# -- other workers ---------------------------------------------------------------------------------


def made_by(call: ParallelCall) -> ast.Call | None:
    """The call that makes what runs the tasks of `call`."""
    node = call.maker.node if call.maker is not None else None
    return node if isinstance(node, ast.Call) and not is_open(node) else None


def in_threads(call: ParallelCall) -> tuple[Change, ...]:
    """The changes after which joblib runs the tasks of `call` in threads; none where it cannot."""
    return with_backend(call, "threading")


def with_backend(call: ParallelCall, name: str) -> tuple[Change, ...]:
    """The changes after which joblib runs the tasks of `call` in that backend."""
    node = made_by(call)
    if node is None or call.maker is None or call.library != "joblib":
        return ()
    module = call.maker.module
    literal = repr_of(module, name)
    changes: list[Change] = [SetKeyword(module, node, "backend", literal)]
    if len(node.args) > 1:
        changes = [Replace(module, node.args[1], literal)]
    if keyword(node, "prefer") is not None:  # it would be of no effect beside the other
        if len(node.args) > 1 or keyword(node, "backend") is not None:
            changes.append(RemoveArgument(module, node, "prefer"))
        else:
            changes.insert(0, RenameKeywords(module, node, {"prefer": "backend"}))
    if keyword(node, "require") is not None:
        return ()
    return tuple(changes)


def repr_of(module: Module, text: str) -> str:
    """`text` as a literal, in the quotes that the module prefers."""
    data = module.data
    quote = "'" if data.count(b"'") > 2 * data.count(b'"') else '"'
    return f"{quote}{text}{quote}"
