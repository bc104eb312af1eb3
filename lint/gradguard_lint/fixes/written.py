"""The meaning of names in a module's source, and its spelling."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache

from gradguard_lint.domain.values import Site
from gradguard_lint.fixes.changes import Change, Import
from gradguard_lint.reading.source import Module


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    """The keyword argument `name` of `call`."""
    return next((item for item in call.keywords if item.arg == name), None)


def is_open(call: ast.Call) -> bool:
    """Whether `call` unpacks arguments."""
    return any(item.arg is None for item in call.keywords) or any(
        isinstance(item, ast.Starred) for item in call.args
    )


def argument(site: Site, written: str) -> ast.expr | None:
    """The argument of the call at `site` whose source, or keyword, is `written`."""
    call = site.node
    if not isinstance(call, ast.Call):
        return None
    found = [item for item in call.args if ast.unparse(item) == written]
    found += [item.value for item in call.keywords if item.arg == written]
    return found[0] if len(found) == 1 else None


@lru_cache(maxsize=64)
def imported(module: Module) -> Mapping[str, str]:
    """The dotted name of each name bound by an import at the top of `module`."""
    found: dict[str, str] = {}
    for statement in module.tree.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            package = getattr(statement, "module", None)
            for alias in statement.names:
                full = f"{package}.{alias.name}" if package else alias.name
                found.setdefault(alias.asname or alias.name, full)
    return found


def dotted(module: Module, node: ast.expr) -> str:
    """The dotted name of `node`, a name with attributes, by the imports of `module`; "" if it has
    none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    names = imported(module)
    if not isinstance(node, ast.Name) or node.id not in {*names, *map(_top, names)}:
        return ""
    return ".".join([names.get(node.id, node.id), *parts])


def spelled(module: Module, full: str) -> str | None:
    """The expression for the library's name `full` in `module`, by its imports."""
    before, after = full, ""
    while before:
        for name, means in imported(module).items():
            if means == before:
                return name + after
        before, _, last = before.rpartition(".")
        after = f".{last}{after}"
    return None


def source_of(module: Module, node: ast.expr) -> str:
    """The source of `node`."""
    return ast.get_source_segment(module.text, node) or ast.unparse(node)


def is_bound(module: Module, name: str) -> bool:
    """Whether `module` binds `name` anywhere."""
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
    """The changes by which `name` is that import in `module`; None if it cannot be."""
    full = f"{package}.{name}" if package else name
    bound = imported(module).get(name)
    if bound == full:
        return ()
    if bound is not None or is_bound(module, name) or _is_imported_on_condition(module, full):
        return None
    return (Import(module, module.tree, name, package),)


def _is_imported_on_condition(module: Module, full: str) -> bool:
    """Whether `module` imports the package of `full`, but only in a function or branch: it may be
    missing, or deliberately delayed."""
    top = _top(full)
    if top in {_top(it) for it in imported(module).values()}:
        return False
    return any(
        (isinstance(node, ast.Import) and any(_top(it.name) == top for it in node.names))
        or (isinstance(node, ast.ImportFrom) and not node.level and _top(node.module or "") == top)
        for node in ast.walk(module.tree)
    )


def _top(name: str) -> str:
    return name.partition(".")[0]


def bindings(tree: ast.AST, name: str) -> int:
    """The number of assignments to `name` in `tree`."""
    return sum(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(tree)
    )


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The assignment targets in `node`, each with its value, or the value it is unpacked from."""
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
    """Whether `node` means the same everywhere in `module`: it consists of imported names and
    constants."""
    return all(
        inner.id in imported(module) for inner in ast.walk(node) if isinstance(inner, ast.Name)
    )


def repr_of(module: Module, text: str) -> str:
    """`text` as a literal, in the quotes that the module prefers."""
    data = module.data
    quote = "'" if data.count(b"'") > 2 * data.count(b'"') else '"'
    return f"{quote}{text}{quote}"
