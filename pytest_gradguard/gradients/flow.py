"""Follows a value in the source, from the line that read it to a loss.

A value that is only printed, logged or tested cuts no graph, although it was read from one. The
source is parsed only when a gradient is missing; names are followed within one function.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType

from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.parsing import parsed

_REPORTING = frozenset(
    {"debug", "info", "warning", "error", "critical", "exception", "write"}
    | {"log", "log_dict", "log_metric", "log_metrics", "track"}
    | {"add_scalar", "add_scalars", "add_histogram", "set_description", "set_postfix"}
)
"""Methods that only report a value."""
_WRITING = frozenset({"write", "writelines", "writerow", "writerows"})
"""Methods that write a value to a file, from which it may be read again."""
_DESTINATION = {"dump": 1, "save": 1, "savetxt": 0, "savez": 0, "copyto": 0, "heappush": 0}
"""Functions that write a value into one of their arguments, and its index."""
_READING = frozenset(
    {"load", "loads", "loadtxt", "fromfile", "genfromtxt", "read", "readline", "readlines"}
    | {"read_text", "read_bytes", "reader", "literal_eval"}
)
"""Functions and methods that read written values."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module


Chain = tuple[Site, ...]
"""The call sites in the user's code, the innermost first."""


def reaches(chain: Chain, backwards: Iterable[Chain]) -> bool | None:
    """Whether the value read at the head of `chain` reaches the loss of a backward pass.

    It is followed through its function and, if returned, through each caller, up to a function on
    the call chain of a backward pass.

    Returns:
        True or False if the source shows it, otherwise None.
    """
    sinks: dict[CodeType, set[int]] = {}
    for known in backwards:
        for site in known:
            sinks.setdefault(site.code, set()).add(site.line)
    for site in chain:
        flows = _through(site, sinks.get(site.code))
        if flows != "returned":
            return {"loss": True, "nowhere": False}.get(flows)
    return None


def reads_back(chain: Chain) -> bool:
    """Whether a function of `chain` reads from a file or a pickle."""
    for site in chain:
        source = tree_of(site.path)
        function = None if source is None else _function_of(source, site.code)
        for statement in () if function is None else _statements(function):
            for node in _own_nodes(statement):
                if isinstance(node, ast.Call) and _name_of(node.func) in _READING:
                    return True
    return False


def _name_of(function: ast.expr) -> str:
    """The last part of a called name."""
    return str(getattr(function, "attr", "") or getattr(function, "id", ""))


def _through(site: Site, sinks: set[int] | None) -> str:
    """Where the value read at `site` goes within its function.

    Returns:
        ``loss`` (a line of `sinks` reads it), ``returned``, ``nowhere`` or ``unknown``.
    """
    source = tree_of(site.path)
    if source is None:
        return "unknown"
    if site.code.co_name == "<lambda>":
        return "returned"
    function = _function_of(source, site.code)
    if function is None:
        return "unknown"
    statements = list(_statements(function))
    around = [statement for statement in statements if _covers(statement, site.line)]
    where = site.location()
    column = None if where.end_column is None else where.column - 1  # before Python 3.11
    if column is not None:  # several statements may share a line
        around = [it for it in around if _holds(it, site.line, column)] or around
    if not around:
        return "unknown"
    start = min(reversed(around), key=_height)  # of equals the innermost, which comes last
    test = _is_test(start, site.line, column)
    if test is None:
        return "unknown"
    if test:
        return "nowhere"
    value = _Value(function, statements, source)
    value.follow(start)
    if sinks is not None:
        for statement in statements:
            if hasattr(statement, "body") or not any(_covers(statement, line) for line in sinks):
                continue
            if statement is start or value.names & _reads(statement):
                return "loss"
        return "unknown" if value.stored else "nowhere"
    if value.stored:
        return "unknown"
    return "returned" if value.returned else "nowhere"


@lru_cache(maxsize=32)
def tree_of(path: str) -> ast.Module | None:
    """The parsed source at `path`, a file or a notebook's cell; None if that fails."""
    lines = linecache.getlines(path)
    if not lines:
        return None
    try:
        return parsed("".join(lines))
    except (SyntaxError, ValueError):
        return None


def _function_of(source: ast.Module, code: CodeType) -> _Function | None:
    if code.co_name == "<module>":
        return source
    for node in ast.walk(source):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if node.name == code.co_name and first == code.co_firstlineno:
                return node
    return None


def _statements(function: _Function) -> Iterator[ast.stmt]:
    """The statements of a function and its blocks, without those of nested functions."""
    body = function.body if not isinstance(function, ast.Lambda) else []
    stack: list[ast.stmt] = list(reversed(body))
    while stack:
        statement = stack.pop()
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for name in ("body", "orelse", "finalbody"):
            stack.extend(reversed(getattr(statement, name, [])))
        for handler in getattr(statement, "handlers", []):
            stack.extend(reversed(handler.body))
        for case in getattr(statement, "cases", []):
            stack.extend(reversed(case.body))


def _covers(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _holds(statement: ast.stmt | ast.expr, line: int, column: int) -> bool:
    begin = (statement.lineno, statement.col_offset)
    end = (statement.end_lineno or statement.lineno, statement.end_col_offset or 0)
    return begin <= (line, column) < end


def _height(statement: ast.stmt) -> int:
    return (statement.end_lineno or statement.lineno) - statement.lineno


class _Value:
    """One value followed through a function.

    Attributes:
        names: names that hold it, or something computed from it.
        returned: the function returns it.
        stored: it is kept in an attribute, a global or an argument.
    """

    def __init__(self, function: _Function, statements: list[ast.stmt], source: ast.Module) -> None:
        self.names: set[str] = set()
        self.returned = False
        self.stored = False
        self._source = source
        self._own = _own_names(function)
        self._modules = _imported(source)
        self._statements = statements

    def follow(self, start: ast.stmt) -> None:
        """Follow the value from the statement `start`."""
        self._pass(start)
        before = -1
        while before < len(self.names):
            before = len(self.names)
            for statement in self._statements:
                if statement is not start and self.names & _reads(statement):
                    self._pass(statement)

    def _pass(self, statement: ast.stmt) -> None:
        written = {n for n in _writes(statement) if n.partition(".")[0] not in self._modules}
        if isinstance(statement, ast.Expr):
            written.update(self._filed(statement.value))
        self.names |= written
        if isinstance(statement, ast.Return) or any(
            isinstance(node, (ast.Yield, ast.YieldFrom))
            for head in _heads(statement)
            for node in ast.walk(head)
        ):
            self.returned = True
        self.stored = self.stored or any(self._outlives(name) for name in written)

    def _filed(self, expression: ast.expr) -> Iterator[str]:
        """Names of the file or array that a call statement writes to."""
        if not isinstance(expression, ast.Call):
            return
        keywords = {keyword.arg: keyword.value for keyword in expression.keywords}
        owner = getattr(expression.func, "value", None)
        if _name_of(expression.func) == "print" and "file" in keywords:
            yield from self._sources_of(keywords["file"])
        elif _name_of(expression.func) in _WRITING and isinstance(owner, ast.Name):
            if owner.id in self._own:
                yield from self._sources_of(owner)
        elif owner is None or _root(owner) in self._modules:
            place = _DESTINATION.get(_name_of(expression.func))
            if place is not None and _root(owner) in ("np", "numpy"):
                place = 0
            if place is not None and len(expression.args) > place:
                yield from self._sources_of(expression.args[place])

    def _sources_of(self, file: ast.expr) -> set[str]:
        """Names of a file: its variable, and those of the path that it was opened with."""
        names = self._own_reads(file)
        for _ in range(3):  # a writer of a file of a path
            for statement in self._statements:
                for target, value in _bindings(statement):
                    if isinstance(target, ast.Name) and target.id in names:
                        names |= self._own_reads(value)
        return names - {"open"}

    def _own_reads(self, expression: ast.expr) -> set[str]:
        return {n for n in _read_in(expression) if n.partition(".")[0] not in self._modules}

    def _outlives(self, name: str) -> bool:
        first, _, rest = name.partition(".")
        if rest:
            return _read_somewhere(self._source, rest.rpartition(".")[2])
        return first not in self._own


@lru_cache(maxsize=32)
def _imported(source: ast.Module) -> frozenset[str]:
    """Names bound by imports."""
    return frozenset(
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(source)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    )


def _bindings(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pairs of target and value of an assignment or a `with` statement."""
    if isinstance(statement, ast.Assign):
        yield from ((target, statement.value) for target in statement.targets)
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        for item in statement.items:
            if item.optional_vars is not None:
                yield item.optional_vars, item.context_expr


def _root(node: ast.expr | None) -> str:
    """The first part of a dotted name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _own_names(function: _Function) -> set[str]:
    """Names local to a function."""
    own: set[str] = set()
    shared: set[str] = set()
    for statement in _statements(function):
        if isinstance(statement, (ast.Global, ast.Nonlocal)):
            shared.update(statement.names)
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(statement.name)
        else:
            own.update(
                node.id
                for node in _own_nodes(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            )
    return own - shared


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement, without those of nested statements."""
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(
            inner for inner in ast.iter_child_nodes(node) if not isinstance(inner, ast.stmt)
        )


def _read_somewhere(source: ast.Module, attribute: str) -> bool:
    """Whether the module reads an attribute of that name, other than to append to it."""
    reads = adds = 0
    for node in ast.walk(source):
        if (
            isinstance(node, ast.Attribute)
            and node.attr == attribute
            and isinstance(node.ctx, ast.Load)
        ):
            reads += 1
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            for owner in _changed_by(node.value):
                inner = owner.value if isinstance(owner, ast.Subscript) else owner
                adds += isinstance(inner, ast.Attribute) and inner.attr == attribute
    return reads > adds


def _is_test(statement: ast.stmt, line: int, column: int | None) -> bool | None:
    """Whether a value is used only as the test of an `if`, a `while` or an `assert`.

    Returns:
        None if it may be the test of a conditional expression and the column is unknown.
    """
    if isinstance(statement, ast.Assert):
        return True
    if isinstance(statement, (ast.If, ast.While)):
        if any(isinstance(node, ast.NamedExpr) for node in ast.walk(statement.test)):
            return False  # the tested value has a name, too
        return statement.test.lineno <= line <= (statement.test.end_lineno or line)
    tests = [node.test for node in _own_nodes(statement) if isinstance(node, ast.IfExp)]
    if column is None:
        return None if tests else False
    return any(_holds(test, line, column) for test in tests)


def _heads(statement: ast.stmt) -> list[ast.AST]:
    """The expressions that a statement itself evaluates: of a block, its head."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement]  # a nested function may use what it reads at any time
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return [statement.iter]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [item.context_expr for item in statement.items]
    if isinstance(statement, (ast.If, ast.While)):
        return [statement.test]
    if isinstance(statement, ast.Match):
        return [statement.subject]
    if isinstance(statement, ast.Try):
        return []
    return [statement]


def _reads(statement: ast.stmt) -> set[str]:
    """The names that `statement` reads: ``x``, and ``self.x`` for an attribute."""
    found = {name for head in _heads(statement) for name in _read_in(head)}
    if isinstance(statement, ast.AugAssign):
        dotted = _dotted(statement.target)
        if dotted:
            found.add(dotted)
    return found


def _read_in(head: ast.AST) -> Iterator[str]:
    """Names in an expression, and its string constants in quotes (they may name a file)."""
    for node in ast.walk(head):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            dotted = _dotted(node)
            if dotted:
                yield dotted
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value[3:]:
            yield repr(node.value)


def _writes(statement: ast.stmt) -> list[str]:
    """Names that hold, after `statement`, a value computed from what it reads."""
    targets: list[ast.AST] = []
    if isinstance(statement, ast.Assign):
        targets = list(statement.targets)
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor)):
        targets = [statement.target]
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in statement.items if item.optional_vars]
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    elif isinstance(statement, ast.Expr):
        targets = list(_changed_by(statement.value))
    written = [name for target in targets for name in _names_of(target)]
    for head in _heads(statement):
        for node in ast.walk(head):
            if isinstance(node, ast.NamedExpr):
                written.extend(_names_of(node.target))
    return written


def _changed_by(expression: ast.AST) -> Iterator[ast.AST]:
    """Objects that a call statement may change: ``parts`` in ``parts.append(x)``, ``out=``."""
    if isinstance(expression, (ast.Await, ast.YieldFrom)):
        expression = expression.value
    if isinstance(expression, ast.Call):
        yield from (it.value for it in expression.keywords if it.arg == "out")
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        owner = expression.func.value
        if expression.func.attr in _REPORTING:
            return
        if isinstance(owner, ast.Attribute) and owner.attr == "data":
            return  # p.data.copy_(…) writes into a tensor; nothing is read for a loss
        yield owner


def _names_of(target: ast.AST) -> Iterator[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from _names_of(element)
    elif isinstance(target, (ast.Starred, ast.Subscript)):
        yield from _names_of(target.value)
    elif isinstance(target, ast.Call):
        yield from _names_of(target.func)
    else:
        dotted = _dotted(target)
        of_tensor = isinstance(target, ast.Attribute) and target.attr == "data"
        if dotted and (not of_tensor or dotted == "self.data"):
            yield dotted


def _dotted(node: ast.AST) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])
