"""What of a module can lead to a pitfall at all, told by the names that it mentions."""

from __future__ import annotations

import ast
import sys
from collections.abc import Set

from gradguard_lint.domain.starts import Vocabulary
from gradguard_lint.engine.tree import descend
from pytest_gradguard.records import field, fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

    from gradguard_lint.engine.ports import Project
    from gradguard_lint.reading.source import Module

Definition = ast.FunctionDef | ast.AsyncFunctionDef
Import = ast.Import | ast.ImportFrom


@fields
class Binding:
    """Names that a statement gives.

    Attributes:
        names: variables, and functions within functions.
        attributes: attributes, and what is known by its name wherever it is used.
        said: what the value mentions.
        scope: the outermost function around it; 0 where there is none.
    """

    names: set[str]
    attributes: set[str]
    said: set[str]
    scope: int


Place = tuple[int, str]
"""A variable, by the outermost function around it (0: none) and its name; an attribute, by
`_ATTRIBUTE` and its name, which is "" for what has none."""

_ATTRIBUTE = -1

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
    own: set[str] = field(default_factory=set)
    """What the module's own code mentions, outside its functions and imports."""
    definitions: dict[int, tuple[str, set[str]]] = field(default_factory=dict)
    """Each function's name, and what it mentions, by the identity of its node; and `own`, by
    `OWN_CODE`."""
    shared: set[str] = field(default_factory=set)
    """The variables that a function declares to be those of the module."""
    inheriting: list[tuple[set[str], set[str]]] = field(default_factory=list)
    """What each method mentions, and what its class extends."""
    called: frozenset[str] = frozenset()
    """The methods that calling an object calls."""
    written: set[Place] = field(default_factory=set)
    """What is written to as a whole: by ``+=``, ``[:] =``, ``.data =`` or a method that has the
    name of one which works in place."""
    given: set[Place] = field(default_factory=set)
    """What gets its value otherwise than by an assignment."""
    strings: frozenset[str] = frozenset()
    """Strings that are mentioned like names, in quotes."""

    @property
    def mentioned(self) -> set[str]:
        """Every name that is mentioned somewhere outside the imports of the module's own code."""
        return self.loaded.union(*(said for _, said in self.definitions.values()))


def survey(module: Module, words: Vocabulary) -> Survey:
    """Walk the tree of `module` once."""
    strings = [it for it in words.matters_beside if it.encode() in module.data]
    found = Survey(called=words.called, strings=frozenset(strings))
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
        for names in said:
            names.add(named.attr)
        if (named.attr[-1:] == "_" and named.attr[-2:] != "__") or (
            named.attr == "data" and type(named.ctx) is ast.Store
        ):
            _write(named.value, said, scope, found)
        _visit(named.value, said, scope, found)
        return
    if kind is ast.Constant:
        if named.value in found.strings:
            for names in said:
                names.add(_quoted(named.value))
        return
    if kind is ast.keyword:
        if named.arg is not None:
            for names in said:
                names.add(named.arg)
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
        within = {named.name} if scope else set()
        known_as = {named.name} - within - _IMPLIED
        found.bindings.append(Binding(within, known_as, own, scope))
        said = (*(names for names in said if names is not found.own), own)
        scope = scope or id(node)
    elif kind is ast.ClassDef:
        _visit_class(named, said, found)
        return
    elif kind is ast.AugAssign:
        _write(named.target, said, scope, found)
    elif kind is ast.Subscript:
        if type(named.ctx) is ast.Store and _whole(named.slice):
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


def _whole(index: ast.expr) -> bool:
    """Whether `index` takes everything: ``[:]``, ``[...]``."""
    if isinstance(index, ast.Slice):
        return index.lower is None and index.upper is None
    return isinstance(index, ast.Constant) and index.value is ...


def _write(target: ast.expr, said: tuple[set[str], ...], scope: int, found: Survey) -> None:
    """Something writes to `target`, or to what it is a part of."""
    while isinstance(target, ast.Subscript) or (
        isinstance(target, ast.Attribute) and target.attr == "data"
    ):
        target = target.value
    place = (_ATTRIBUTE, target.attr if isinstance(target, ast.Attribute) else "")
    if isinstance(target, ast.Name):
        place = (scope, target.id)
    found.written.add(place)
    for names in said:
        names.add(_writing(place))


def _writing(place: Place) -> str:
    """What is mentioned where `place` is written to; no name is like it."""
    return f"{place[0]} {place[1]} ="


def _quoted(string: str) -> str:
    """What is mentioned where `string` stands."""
    return f'"{string}"'


def _visit_class(node: ast.ClassDef, said: tuple[set[str], ...], found: Survey) -> None:
    """A class is known by its name: what it extends, and what its special methods do (and those
    that calling an object calls), matters where that is mentioned. Its other methods are known by
    their own names, wherever it stands."""
    extended: set[str] = set()
    found.bindings.append(Binding(set(), {node.name}, extended, 0))
    for part in (*node.bases, *node.keywords):
        _visit(part, (*said, extended), 0, found)
    for part in (*node.decorator_list, *node.body):
        _visit(part, said, 0, found)
        if not isinstance(part, Definition):
            continue
        mentioned = found.definitions[id(part)][1]
        if part.name.startswith("__") or part.name in found.called:
            found.bindings.append(Binding(set(), {node.name}, mentioned, 0))
        if part.name == "__init__":
            mentioned |= extended  # it may be what calls that of the class it extends
        elif extended:
            found.inheriting.append((mentioned, extended))


_IMPLIED = frozenset({"__init__"})
"""Methods that are called by the name of their class."""

_NO_NAMES = frozenset({str, int, type(None), ast.Load, ast.Store, ast.Del, ast.Pass})
"""What stands in trees, and mentions nothing."""

_NO_NAMES_OR_STRINGS = _NO_NAMES | {ast.Constant}


class Relevance:
    """What of one module can matter.

    Attributes:
        module: the module.
        words: the words that tell it.
        seen: what it mentions.
    """

    def __init__(self, module: Module, project: Project, words: Vocabulary) -> None:
        self.module = module
        self.words = words
        self.seen = survey(module, words)
        self._project = project
        self._of_project: dict[int, bool] = {}
        self._found: dict[bool, set[int]] = {}

    def matters(self, *, loops: bool) -> bool:
        """Whether running the module can show anything, for taking gradients in `loops` too."""
        return (
            any(map(self._comes_from_project, self.seen.imports))
            or bool(self.definitions(loops=False))
            or (loops and bool(self.definitions(loops=True)))
        )

    def definitions(self, *, loops: bool) -> set[int]:
        """The ids of the definitions that may hand something to workers, or hold another pitfall
        (or, for `loops`, take gradients); and `OWN_CODE`, where the module's own code does."""
        if loops not in self._found:
            self._found[loops] = self._relevant(loops)
        return self._found[loops]

    def bringing_workers(self, node: Import) -> set[str]:
        """The names that an import of the project gives to what starts workers."""
        project = self._project
        if isinstance(node, ast.Import):
            bringing = [it for it in node.names if project.starts_workers(it.name)]
        else:
            base = self.module.base_of(node)
            bringing = [it for it in node.names if project.starts_workers(base, it.name)]
        return {alias.asname or alias.name for alias in bringing}

    def _comes_from_project(self, node: Import) -> bool:
        if id(node) not in self._of_project:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [self.module.base_of(node)]
            self._of_project[id(node)] = any(map(self._project.is_module, names))
        return self._of_project[id(node)]

    def _relevant(self, loops: bool) -> set[int]:
        seen, words = self.seen, self.words
        interesting = set(words.starters - self._foreign())
        ranks: set[str] = set()
        if loops:
            interesting |= words.loops
        for node in seen.imports:
            tops = _tops(node)
            for top in tops:
                interesting |= words.beside.get(top, frozenset())
            if not tops & words.packages:
                brought = self.bringing_workers(node)
                interesting |= brought
                for mentioned, extended in seen.inheriting if brought else ():
                    mentioned |= brought & extended  # it may call what it inherits
        imported = _imported(seen)
        if any(group in name for name in imported | seen.loaded for group in words.groups) or any(
            map(self._comes_from_project, seen.imports)
        ):
            interesting |= words.samplers
            ranks = self._renamed(words.ranks)
        interesting = self._renamed(interesting)
        if loops:
            return _mentioning(seen, interesting | ranks)
        starting = self._starting(interesting) | self._together(ranks)
        starting |= {id_ for id_, (name, _) in seen.definitions.items() if name in words.hooks}
        if any(not words.marks.isdisjoint(name.split(".")) for name in imported):
            starting.add(OWN_CODE)
        tops = {name.partition(".")[0] for name in imported}
        if not starting or not tops.isdisjoint(words.frameworks):
            return starting
        return starting & self._mattering(starting)

    def _renamed(self, words: Set[str]) -> set[str]:
        """`words`, and the other names that imports give them."""
        aliases = (alias for node in self.seen.imports for alias in node.names)
        return {*words} | {
            it.asname for it in aliases if it.asname and it.name.rpartition(".")[2] in words
        }

    def _together(self, ranks: set[str]) -> set[int]:
        """The ids of the definitions that mention one of `ranks`, and train."""
        found = _mentioning(self.seen, ranks)
        trains = set(self.words.trains)
        for node in self.seen.imports if found else ():
            if _is_star(node):
                return found
            if self._comes_from_project(node):
                trains |= {name.partition(".")[0] for name in _names(node)}
        return found & _mentioning(self.seen, trains)

    def _mattering(self, starting: set[int]) -> set[int]:
        """Those of the `starting` definitions to which what matters can come: without a framework
        here, it is from another module; or nothing of one matters."""
        seen, words = self.seen, self.words
        wanted = set(words.matters)
        for node in seen.imports:
            if _is_star(node):
                return starting
            module = node.module if isinstance(node, ast.ImportFrom) else None
            told = not words.matters.isdisjoint((module or "").split("."))
            if told or self._comes_from_project(node):
                wanted |= {name.partition(".")[0] for name in _names(node)}
        found = _mentioning(seen, wanted)
        for string in seen.strings:
            beside = _mentioning(seen, words.matters_beside[string])
            found |= beside & _mentioning(seen, {_quoted(string)})
        return found

    def _foreign(self) -> set[str]:
        """The names of starters that mean something else here: no package that has them is
        imported, and nothing else of that name."""
        imports = self.seen.imports
        if any(_is_star(node) or self._comes_from_project(node) for node in imports):
            return set()
        tops = set().union(*map(_tops, imports))
        named = {name.rpartition(".")[2] for name in _imported(self.seen)}
        return {it for it, homes in self.words.homes.items() if tops.isdisjoint(homes)} - named

    def _starting(self, interesting: set[str]) -> set[int]:
        """The ids of the definitions that mention what is `interesting`; those that start threads,
        where they change something, too, that threads share."""
        seen, words = self.seen, self.words
        mentioned = seen.mentioned
        threads = words.threads & interesting
        if mentioned.isdisjoint(interesting - threads - words.either - words.samplers):
            threads = (words.threads | words.either) & interesting
        starting = _mentioning(seen, interesting - threads)
        in_threads = _mentioning(seen, threads) - starting
        if not in_threads:
            return starting
        making = set(words.matters)
        shared = set(words.shared)
        for node in seen.imports:
            if _is_star(node):
                return starting | in_threads
            names = {name.partition(".")[0] for name in _names(node)}
            if self._comes_from_project(node):
                shared |= names
            elif not _tops(node) <= words.packages | sys.stdlib_module_names:
                making |= names
        shared |= {name for name in mentioned if any(part in name for part in words.telling)}
        changing = _mentioning(seen, shared)
        writes = {_writing(place) for place in seen.written - _harmless(seen, making)}
        changing |= _mentioning(seen, writes) & _mentioning(seen, making)
        return starting | in_threads & changing


def _is_star(node: Import) -> bool:
    return any(alias.name == "*" for alias in node.names)


def _harmless(seen: Survey, making: Set[str]) -> set[Place]:
    """What is written to, and gets its values from assignments alone, none of which mentions what
    makes tensors."""
    found, variables = _reached(seen, making)
    assigned: set[Place] = set()
    for binding in seen.bindings:
        assigned |= {(binding.scope, name) for name in binding.names}
        assigned |= {(_ATTRIBUTE, name) for name in binding.attributes}
    harmless = set()
    for place in seen.written:
        scope, name = place
        if scope > 0 and (name in seen.shared or place not in assigned | seen.given):
            scope = 0  # of the module
        origin = (scope, name)
        known = variables.get(scope, set()) if scope > 0 else found
        if origin in assigned and origin not in seen.given and name not in known:
            harmless.add(place)
    return harmless


def _tops(node: Import) -> set[str]:
    """The packages that are imported; "" for one of these around the module."""
    if isinstance(node, ast.ImportFrom):
        return {"" if node.level else (node.module or "").partition(".")[0]}
    return {alias.name.partition(".")[0] for alias in node.names}


def _names(node: Import) -> set[str]:
    """The names that an import gives, of packages within packages with these."""
    return {alias.asname or alias.name for alias in node.names}


def _imported(seen: Survey) -> set[str]:
    """The dotted names that are imported."""
    return {
        alias.name if isinstance(node, ast.Import) else f"{node.module or ''}.{alias.name}"
        for node in seen.imports
        for alias in node.names
    }


def _mentioning(seen: Survey, words: Set[str]) -> set[int]:
    """The ids of the definitions that mention one of `words`, or what does in turn."""
    found, _ = _reached(seen, words)
    return {ident for ident, (_, said) in seen.definitions.items() if not found.isdisjoint(said)}


def _reached(seen: Survey, words: Set[str]) -> tuple[set[str], dict[int, set[str]]]:
    """`words`, and the names of what mentions one of them, or does in turn; and the same of the
    variables of a function: elsewhere their names mean something else."""
    found = set(words)
    variables: dict[int, set[str]] = {}
    waiting = seen.bindings
    changed = True
    while changed:
        changed = False
        left = []
        for binding in waiting:
            own = variables.get(binding.scope)
            if found.isdisjoint(binding.said) and (own is None or own.isdisjoint(binding.said)):
                left.append(binding)
                continue
            changed = True
            found |= binding.attributes
            if binding.scope:
                variables.setdefault(binding.scope, set()).update(binding.names)
                found |= binding.names & seen.shared
            else:
                found |= binding.names
        waiting = left
    return found, variables


def _places(targets: list[ast.expr], scope: int) -> set[Place]:
    """The variables and the attributes that are set."""
    names, attributes = _targets(targets)
    return {(scope, name) for name in names} | {(_ATTRIBUTE, name) for name in attributes}


def _targets(targets: list[ast.expr]) -> tuple[set[str], set[str]]:
    """The variables and the attributes that are set."""
    names, attributes = set(), set()
    for target in targets:
        for part in descend(target):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                names.add(part.id)
            elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                attributes.add(part.attr)
    return names, attributes
