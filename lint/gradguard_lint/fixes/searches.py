"""Rename parameters in scikit-learn's searches, where an estimator's parameters are renamed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from gradguard_lint.fixes.changes import Change, RenameKeywords, Replace
from gradguard_lint.fixes.written import assigned, dotted, is_open, keyword, repr_of, source_of
from gradguard_lint.reading.source import Module
from gradguard_lint.words import words

Naming = Callable[[str], str]
"""The new name of each parameter of an estimator."""

_SEARCHES = words("GridSearchCV RandomizedSearchCV HalvingGridSearchCV HalvingRandomSearchCV")
_CURVES = words("validation_curve ValidationCurveDisplay")
"""What tries one parameter, given by its name."""

_GIVEN_NAMES = words("param_grid param_distributions")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_FOUND = words("best_params_ cv_results_")


class _Unclear(Exception):
    """It is unclear which estimator a name is for."""


def renamed_keywords(module: Module, call: ast.Call, naming: Naming) -> Change:
    """The change that renames all keywords of `call`."""
    names = {item.arg: naming(item.arg) for item in call.keywords if item.arg}
    return RenameKeywords(module, call, names)


def renamed_parameters(
    module: Module, estimators: Mapping[ast.Call, Naming]
) -> list[Change] | None:
    """The renames of parameters of the `estimators` (calls that create them) in all searches of
    `module`; None if it is unclear which estimators these search."""
    try:
        return list(_Searches(module, estimators).changes())
    except _Unclear:
        return None


class _Searches:
    def __init__(self, module: Module, estimators: Mapping[ast.Call, Naming]) -> None:
        self._module = module
        self._estimators = estimators
        nodes = list(ast.walk(module.tree))
        self._calls = [node for node in nodes if isinstance(node, ast.Call)]
        self._names = [node for node in nodes if isinstance(node, ast.Name)]
        self._parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        self._values = {target: value for node in nodes for target, value in assigned(node)}
        shared = [it.names for it in nodes if isinstance(it, (ast.Global, ast.Nonlocal))]
        self._shared = set[str]().union(*shared)
        self._found = [it for it in nodes if isinstance(it, ast.Attribute) and it.attr in _FOUND]

    def changes(self) -> Iterator[Change]:
        searches: dict[ast.expr, Naming | None] = {}
        for call in self._calls:
            if not {*ast.unparse(call.func).split(".")}.isdisjoint(_SEARCHES | _CURVES):
                estimator = call.args[0] if call.args else None
                given = keyword(call, "estimator")
                naming = self._naming_of(given.value if given else estimator)
                searches[call] = naming
                if naming is not None:
                    yield from self._of_search(call, naming)
            elif isinstance(call.func, ast.Attribute) and call.func.attr == "set_params":
                naming = self._naming_of(call.func.value)
                if naming is not None:
                    yield self._keywords(call, naming)
        for node in self._found:
            search = self._value_of(node.value) if isinstance(node.value, ast.Name) else node.value
            if isinstance(search, ast.Call) and getattr(search.func, "attr", "") == "fit":
                search = search.func.value  # type: ignore[attr-defined]
            if search not in searches:
                raise _Unclear
            naming = searches[search]
            if naming is not None:
                yield from self._of_results(node, naming)

    def _naming_of(self, node: ast.expr | None) -> Naming | None:
        """The renames for the estimator `node`; None if it is another estimator."""
        made = self._value_of(node) if isinstance(node, ast.Name) else node
        if made in self._estimators:
            return self._estimators[made]  # type: ignore[index]
        of_a_library = isinstance(made, ast.Call) and dotted(self._module, made.func)
        if made is None or not of_a_library or any(map(self._is_ours, ast.walk(made))):
            raise _Unclear
        return None

    def _is_ours(self, node: ast.AST) -> bool:
        """Whether `node` is one of the estimators, or a variable that may be."""
        if not isinstance(node, ast.Name):
            return node in self._estimators
        return any(self._values.get(it) in self._estimators for it in self._stores(node))

    def _value_of(self, node: ast.Name) -> ast.expr:
        """The only value assigned to the variable `node`."""
        stored = self._stores(node)
        if len(stored) != 1 or stored[0] not in self._values:
            raise _Unclear
        return self._values[stored[0]]

    def _stores(self, node: ast.Name) -> list[ast.expr]:
        """The values assigned to the variable `node`; none for a parameter."""
        if node.id in self._shared:
            raise _Unclear
        scope = self._scope(node)
        while True:
            spec = getattr(scope, "args", None)
            if spec is not None and any(
                isinstance(it, ast.arg) and it.arg == node.id for it in ast.walk(spec)
            ):
                return []
            found: list[ast.expr] = [
                it
                for it in self._names
                if it.id == node.id
                and not isinstance(it.ctx, ast.Load)
                and self._scope(it) is scope
            ]
            if found or scope is self._module.tree:
                return found
            scope = self._scope(scope)

    def _scope(self, node: ast.AST) -> ast.AST:
        """The function around `node`, or the module."""
        around = self._parents[node]
        while not isinstance(around, (*_FUNCTIONS, ast.Module)):
            around = self._parents[around]
        return around

    def _of_search(self, call: ast.Call, naming: Naming) -> Iterator[Change]:
        if is_open(call):
            raise _Unclear
        if _CURVES.intersection(ast.unparse(call.func).split(".")):
            named = keyword(call, "param_name")
            name = named.value if named else call.args[3] if len(call.args) > 3 else None
            yield from self._text(name, naming)
            return
        given = [item.value for item in call.keywords if item.arg in _GIVEN_NAMES]
        for grid in given or call.args[1:2]:
            yield from self._of_grid(grid, naming)

    def _of_grid(self, grid: ast.expr, naming: Naming) -> Iterator[Change]:
        if isinstance(grid, ast.Name):
            stored = self._stores(grid)
            loads = (it for it in self._names if it.id == grid.id and isinstance(it.ctx, ast.Load))
            if sum(self._stores(it) == stored for it in loads) != 1:
                raise _Unclear
            grid = self._value_of(grid)
        if isinstance(grid, (ast.List, ast.Tuple)):
            for part in grid.elts:
                yield from self._of_grid(part, naming)
        elif isinstance(grid, ast.Call) and ast.unparse(grid.func) == "dict" and not grid.args:
            yield self._keywords(grid, naming)
        elif isinstance(grid, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in grid.keys]
            if len({naming(str(key)) for key in keys}) < len(keys):
                raise _Unclear
            for key in grid.keys:
                yield from self._text(key, naming)
        else:
            raise _Unclear

    def _keywords(self, call: ast.Call, naming: Naming) -> Change:
        if is_open(call):
            raise _Unclear
        return renamed_keywords(self._module, call, naming)

    def _text(self, node: ast.expr | None, naming: Naming, before: str = "") -> Iterator[Change]:
        """The string `node`: the name of a parameter, possibly after a prefix."""
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            raise _Unclear
        name = naming(node.value.removeprefix(before))
        if name != node.value.removeprefix(before) and node.value.startswith(before):
            quote = source_of(self._module, node)[:1]
            text = f"{before}{name}"
            source = f"'{text}'" if quote == "'" else repr_of(self._module, text)
            yield Replace(self._module, node, source)

    def _of_results(self, node: ast.Attribute, naming: Naming) -> Iterator[Change]:
        """The renames in uses of a search's results."""
        around = self._parents[node]
        if isinstance(around, ast.Subscript):
            before = "param_" if node.attr == "cv_results_" else ""
            yield from self._text(around.slice, naming, before)
        elif not isinstance(around, ast.FormattedValue) and not (
            isinstance(around, ast.Call) and ast.unparse(around.func) == "print"
        ):
            raise _Unclear
