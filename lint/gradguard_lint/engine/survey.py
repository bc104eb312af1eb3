"""What a module mentions: its names, what gives them, and what is written to."""

from __future__ import annotations

import ast

from gradguard_lint.domain.starts import Vocabulary
from gradguard_lint.engine.tree import descend, last_name, takes_all
from pytest_gradguard.records import field, fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

    from gradguard_lint.reading.source import Module

Definition = ast.FunctionDef | ast.AsyncFunctionDef
Import = ast.Import | ast.ImportFrom


@fields
class Binding:
    """Names that a statement gives.

    Attributes:
        names: variables, functions and classes.
        attributes: attributes and methods, as `asked`.
        said: what the value mentions.
        scope: the outermost function around it; 0 where there is none.
    """

    names: set[str]
    attributes: set[str]
    said: set[str]
    scope: int


Place = tuple[int, str]
"""A variable, by the outermost function around it (0: none) and its name; an attribute, by
`ATTRIBUTE` and its name as `asked`, which is "" for what has none."""

ATTRIBUTE = -1
"""What stands for the object of an attribute, where variables are known by functions."""

METHODS = -2
"""The same for what stands right in a class."""

OWN_CODE = 0
"""What stands for the module's own code, where definitions are known by their nodes."""


@fields
class Survey:
    """What a module mentions, gathered in one walk."""

    loaded: set[str] = field(default_factory=set)
    """The names and attributes that are read."""
    imports: list[Import] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    """What assignments, ``with`` blocks and definitions give."""
    read_from: dict[str, set[str]] = field(default_factory=dict)
    """The attributes that are read from what a variable holds, and from those in turn."""
    own: set[str] = field(default_factory=set)
    """What the module's own code mentions, outside its functions and imports."""
    definitions: dict[int, tuple[str, set[str]]] = field(default_factory=dict)
    """Each function's name, and what it mentions (attributes as `asked`), by the identity of its
    node; and `own`, by `OWN_CODE`."""
    shared: set[str] = field(default_factory=set)
    """The variables that a function declares to be those of the module."""
    inheriting: list[tuple[set[str], set[str]]] = field(default_factory=list)
    """What each method mentions, and what its class extends."""
    called_by_calls: frozenset[str] = frozenset()
    """The methods that calling or starting an object calls."""
    written: set[Place] = field(default_factory=set)
    """What is written to as a whole: by ``+=``, ``[:] =``, ``.data =`` or a method that has the
    name of one which works in place."""
    given: set[Place] = field(default_factory=set)
    """What gets its value otherwise than by an assignment."""
    strings: frozenset[str] = frozenset()
    """Strings that are mentioned like names, in quotes."""

    @property
    def mentioned(self) -> set[str]:
        """Every name that is mentioned somewhere outside the imports of the module's own code, and
        each attribute as `asked`, each function as `called`, too."""
        said = self.loaded.union(*(said for _, said in self.definitions.values()))
        return said | {it.removeprefix(".") for it in said}


def survey(module: Module, words: Vocabulary) -> Survey:
    """Walk the tree of `module` once."""
    strings = {it for it in words.matters_beside if it.encode() in module.data}
    strings.update(*(words.matters_beside[it] for it in strings))
    found = Survey(called_by_calls=words.called, strings=frozenset(strings))
    found.definitions[OWN_CODE] = ("", found.own)
    _visit(module.tree, (found.own,), 0, found)
    return found


def _visit(node: ast.AST, said: tuple[set[str], ...], scope: int, found: Survey) -> None:
    kind = type(node)
    named: Any = node
    if kind is ast.Name:
        if type(named.ctx) is ast.Load:
            found.loaded.add(named.id)
        for names in said:
            names.add(named.id)
        return
    if kind is ast.Attribute:
        if type(named.ctx) is ast.Load:
            found.loaded.add(named.attr)
            root = named.value
            while type(root) is ast.Attribute:
                root = root.value
            if type(root) is ast.Name:
                found.read_from.setdefault(root.id, set()).add(named.attr)
        word = asked(named.attr)
        for names in said:
            names.add(word)
        if (named.attr[-1:] == "_" and named.attr[-2:] != "__") or (
            named.attr == "data" and type(named.ctx) is ast.Store
        ):
            _write(named.value, said, scope, found)
        _visit(named.value, said, scope, found)
        return
    if kind is ast.Constant:
        if named.value in found.strings:
            for names in said:
                names.add(quoted(named.value))
        return
    if kind is ast.keyword:
        if named.arg is not None:
            word = keyword(named.arg)
            for names in said:
                names.add(word)
    elif kind is ast.Call:
        _call(named.func, said)
    elif kind is ast.Import or kind is ast.ImportFrom:
        found.imports.append(named)
        words = [part for alias in named.names for part in alias.name.split(".")]
        if kind is ast.ImportFrom and named.module:
            words.extend(named.module.split("."))
        for names in said:
            if names is not found.own:
                names.update(words)
        return
    elif kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
        own: set[str] = set()
        found.definitions[id(node)] = (named.name, own)
        if scope != METHODS:
            found.bindings.append(Binding({named.name}, set(), own, scope))
        elif named.name not in _IMPLIED:
            found.bindings.append(Binding(set(), {asked(named.name)}, own, 0))
        scope = max(scope, 0)
        said = (*(names for names in said if names is not found.own), own)
        scope = scope or id(node)
        for decorator in named.decorator_list:
            _call(decorator, said)
    elif kind is ast.ClassDef:
        _visit_class(named, said, found)
        return
    elif kind is ast.AugAssign:
        _write(named.target, said, scope, found)
    elif kind is ast.Subscript:
        if type(named.ctx) is ast.Store and takes_all(named.slice):
            _write(named.value, said, scope, found)
    elif kind is ast.arg:
        found.given.add((scope, named.arg))
    elif kind is ast.For or kind is ast.AsyncFor or kind is ast.comprehension:
        found.given |= _places([named.target], scope)
    elif (kind is ast.MatchAs or kind is ast.MatchStar) and named.name is not None:
        found.given.add((scope, named.name))
    elif kind is ast.Global:
        found.shared.update(named.names)
    elif kind is ast.Assign or kind is ast.AnnAssign or kind is ast.NamedExpr:
        value: set[str] = set()
        targets = named.targets if kind is ast.Assign else [named.target]
        found.bindings.append(Binding(*_targets(targets), value, scope))
        if type(named.value) is ast.Call and type(targets[0]) is ast.Name:
            found.imports += _imported_as(targets[0].id, named.value)
        for target in targets:
            _visit(target, said, scope, found)
        if kind is ast.AnnAssign:
            _visit(named.annotation, said, scope, found)
            if named.value is None:
                found.given |= _places(targets, scope)
                return
        _visit(named.value, (*said, value), scope, found)
        return
    elif kind is ast.withitem and named.optional_vars is not None:
        value = set()
        found.bindings.append(Binding(*_targets([named.optional_vars]), value, scope))
        _visit(named.context_expr, (*said, value), scope, found)
        _visit(named.optional_vars, said, scope, found)
        return
    silent = _NO_NAMES if found.strings else _NO_NAMES_OR_STRINGS
    for part in node.__dict__.values():
        if type(part) is list:
            for item in part:
                if type(item) not in silent:
                    _visit(item, said, scope, found)
        elif isinstance(part, ast.AST) and type(part) not in silent:
            _visit(part, said, scope, found)


def _imported_as(name: str, call: ast.Call) -> list[Import]:
    """What imports a module as `name`, as `call` does."""
    if last_name(call.func) != "import_module":
        return []
    module = getattr(call.args[0], "value", None) if len(call.args) == 1 else None
    return [ast.Import([ast.alias(module, name)])] if isinstance(module, str) else []


def _write(target: ast.expr, said: tuple[set[str], ...], scope: int, found: Survey) -> None:
    """Something writes to `target`, or to what it is a part of."""
    while isinstance(target, ast.Subscript) or (
        isinstance(target, ast.Attribute) and target.attr == "data"
    ):
        target = target.value
    place = (ATTRIBUTE, asked(target.attr) if isinstance(target, ast.Attribute) else "")
    if isinstance(target, ast.Name):
        place = (scope, target.id)
    found.written.add(place)
    for names in said:
        names.add(writing(place))


def _call(function: ast.expr, said: tuple[set[str], ...]) -> None:
    """Something calls `function`."""
    if isinstance(function, (ast.Name, ast.Attribute)):
        name = function.id if isinstance(function, ast.Name) else function.attr
        for names in said:
            names.add(called(name))


def called(name: str) -> str:
    """What is mentioned where a function or method of that name is called."""
    return f"{name}()"


def writing(place: Place) -> str:
    """What is mentioned where `place` is written to; no name is like it."""
    return f"{place[0]} {place[1]} ="


def asked(name: str) -> str:
    """What is mentioned where an object is asked for its attribute `name`: no variable is that."""
    return f".{name}"


def keyword(name: str) -> str:
    """What is mentioned where a call has a keyword of that name."""
    return f"{name}="


def inherited(name: str) -> str:
    """What is mentioned where a class extends what `name` stands for."""
    return f"({name})"


def quoted(string: str) -> str:
    """What is mentioned where `string` stands."""
    return f'"{string}"'


def _visit_class(node: ast.ClassDef, said: tuple[set[str], ...], found: Survey) -> None:
    """A class is known by its name: what it extends, and what its special methods do (and those
    that calling an object calls), matters where that is mentioned. Its other methods are known by
    their own names, wherever it stands."""
    extended: set[str] = set()
    names, attributes = {node.name}, {asked(node.name)}
    found.bindings.append(Binding(names, attributes, extended, 0))
    for part in (*node.bases, *node.keywords):
        _visit(part, (*said, extended), 0, found)
    for part in (*node.decorator_list, *node.body):
        if not isinstance(part, Definition):
            known = len(found.bindings)
            within: set[str] = set()
            _visit(part, (*said, within), 0, found)
            for binding in found.bindings[known:]:
                binding.attributes |= set(map(asked, binding.names))
                binding.said |= _of_class(binding.said)
            for around in said:
                around |= _of_class(within)
            continue
        _visit(part, said, METHODS, found)
        mentioned = found.definitions[id(part)][1]
        if part.name.startswith("__") or part.name in found.called_by_calls:
            found.bindings.append(Binding(names, attributes, mentioned, 0))
        if part.name == "__init__":
            mentioned |= extended  # it may be what calls that of the class it extends
        elif extended:
            found.inheriting.append((mentioned, extended))
        for decorator in part.decorator_list:
            mentioned |= {asked(it.id) for it in descend(decorator) if isinstance(it, ast.Name)}


def _of_class(said: set[str]) -> set[str]:
    """The methods that may be meant by what stands right in a class: there they are variables."""
    return {asked(name) for name in said if name.isidentifier()}


_IMPLIED = frozenset({"__init__"})
"""Methods that are called by the name of their class."""

_NO_NAMES = frozenset({str, int, type(None), ast.Load, ast.Store, ast.Del, ast.Pass})
"""What stands in trees, and mentions nothing."""

_NO_NAMES_OR_STRINGS = _NO_NAMES | {ast.Constant}


def _places(targets: list[ast.expr], scope: int) -> set[Place]:
    """The variables and the attributes that are set."""
    names, attributes = _targets(targets)
    return {(scope, name) for name in names} | {(ATTRIBUTE, name) for name in attributes}


def _targets(targets: list[ast.expr]) -> tuple[set[str], set[str]]:
    """The variables and the attributes that are set."""
    names, attributes = set(), set()
    for target in targets:
        for part in descend(target):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                names.add(part.id)
            elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                attributes.add(asked(part.attr))
    return names, attributes
