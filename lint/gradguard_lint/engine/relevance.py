"""What of a module can lead to a pitfall at all, told by the names that it mentions."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Set
from functools import cached_property

from gradguard_lint.domain.starts import Vocabulary
from gradguard_lint.engine.survey import (
    ATTRIBUTE,
    OWN_CODE,
    Import,
    Place,
    Survey,
    quoted,
    survey,
    writing,
)

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.engine.ports import Project
    from gradguard_lint.reading.source import Module


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
        self._bringing: dict[int, set[str]] = {}
        self._found: dict[bool, set[int]] = {}

    def matters(self, *, loops: bool) -> bool:
        """Whether running the module can show anything, for taking gradients in `loops` too."""
        return bool(self.definitions(loops=False) or (loops and self.definitions(loops=True)))

    def definitions(self, *, loops: bool) -> set[int]:
        """The ids of the definitions that may hand something to workers, or hold another pitfall
        (or, for `loops`, take gradients); and `OWN_CODE`, where the module's own code does."""
        if loops not in self._found:
            self._found[loops] = self._relevant(loops)
        return self._found[loops]

    def bringing_workers(self, node: Import) -> set[str]:
        """The names that an import of the project gives to what starts workers."""
        if id(node) not in self._bringing:
            self._bringing[id(node)] = self._bring(node, self._project.starts_workers)
        return self._bringing[id(node)]

    def _bring(self, node: Import, gives: Callable[[str, str], bool]) -> set[str]:
        """The names that an import of the project brings and that do what is sought, as
        `gives(module, name)` tells of a name in a module."""
        project, seen = self._project, self.seen
        modules: list[tuple[str, Set[str]]] = []
        found: set[str] = set()
        if isinstance(node, ast.Import):
            for it in node.names:
                held = (it.asname or it.name).partition(".")[0]
                modules.append((it.name, seen.read_from.get(held, set())))
        else:
            base = self.module.base_of(node)
            for it in node.names:
                held = it.asname or it.name
                if it.name == "*":
                    modules.append((base, seen.loaded))
                elif project.is_module(f"{base}.{it.name}"):
                    modules.append((f"{base}.{it.name}", seen.read_from.get(held, set())))
                elif gives(base, it.name):
                    found.add(held)
        for module, names in modules:
            if project.is_module(module):
                found |= {it for it in names if gives(module, it)}
        return found

    def _comes_from_project(self, node: Import) -> bool:
        if id(node) not in self._of_project:
            self._of_project[id(node)] = any(map(self._project.is_module, self._modules_of(node)))
        return self._of_project[id(node)]

    def _modules_of(self, node: Import) -> list[str]:
        """The modules that an import may name."""
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        base = self.module.base_of(node)
        return [base, *(f"{base}.{alias.name}" for alias in node.names)]

    @cached_property
    def making(self) -> set[int]:
        """The ids of the definitions that may make tensors, or say on which device."""
        return _mentioning(self.seen, self._makers())

    def _makers(self) -> set[str]:
        """The names by which tensors may be made."""
        found = set(self.words.matters | self.words.trains)
        for node in self.seen.imports:
            if not _tops(node) <= self.words.packages | sys.stdlib_module_names:
                found |= _names(node)
        return found

    @cached_property
    def _has_star(self) -> bool:
        """Whether names come in that no import says."""
        return any(alias.name == "*" for node in self.seen.imports for alias in node.names)

    @cached_property
    def _brought(self) -> set[str]:
        """The names that imports of the project give."""
        return set().union(
            *(_names(node) for node in self.seen.imports if self._comes_from_project(node))
        )

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
        if not found or self._has_star:
            return found
        training = set(self.words.trains)
        for node in self.seen.imports:
            training |= self._bring(node, self._project.trains)
        return found & _mentioning(self.seen, training)

    def _mattering(self, starting: set[int]) -> set[int]:
        """Those of the `starting` definitions to which what matters can come: without a framework
        here, it is from another module; or nothing of one matters."""
        seen, words = self.seen, self.words
        if self._has_star:
            return starting
        wanted = words.matters | self._brought
        for node in seen.imports:
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if not words.matters.isdisjoint((module or "").split(".")):
                wanted |= _names(node)
        found = _mentioning(seen, wanted)
        for string in seen.strings:
            beside = _mentioning(seen, words.matters_beside[string])
            found |= beside & _mentioning(seen, {quoted(string)})
        return found

    def _foreign(self) -> set[str]:
        """The names of starters that mean something else here: no package that has them is
        imported, and nothing else of that name."""
        if self._has_star:
            return set()
        tops: set[str] = set()
        for node in self.seen.imports:
            tops |= _tops(node)
            if self._comes_from_project(node):
                tops = tops.union(*map(self._project.packages_of, self._modules_of(node)))
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
        if self._has_star:
            return starting | in_threads
        shared = words.shared | self._brought
        shared |= {name for name in mentioned if any(part in name for part in words.telling)}
        changing = _mentioning(seen, shared)
        making = self._makers()
        writes = {writing(place) for place in seen.written - _harmless(seen, making)}
        changing |= _mentioning(seen, writes) & _mentioning(seen, making)
        return starting | in_threads & changing


def _harmless(seen: Survey, making: Set[str]) -> set[Place]:
    """What is written to, and gets its values from assignments alone, none of which mentions what
    makes tensors."""
    found, variables = _reached(seen, making)
    assigned: set[Place] = set()
    for binding in seen.bindings:
        assigned |= {(binding.scope, name) for name in binding.names}
        assigned |= {(ATTRIBUTE, name) for name in binding.attributes}
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
    """The variables that an import sets."""
    return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}


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
