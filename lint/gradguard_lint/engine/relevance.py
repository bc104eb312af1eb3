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
    asked,
    called,
    inherited,
    keyword,
    quoted,
    survey,
    writing,
)

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import TypeVar

    from gradguard_lint.engine.ports import Project
    from gradguard_lint.reading.source import Module

    G = TypeVar("G", bool, frozenset[str])


class Relevance:
    """What of one module can matter.

    Attributes:
        module: the module.
        words: the words that tell it.
        seen: what it mentions.
        in_threads: the ids of those definitions that start nothing but threads: what is wrong with
            processes is looked for first.
    """

    def __init__(self, module: Module, project: Project, words: Vocabulary) -> None:
        self.module = module
        self.words = words
        self.seen = survey(module, words)
        self._project = project
        self._of_project: dict[int, bool] = {}
        self._bringing: dict[int, dict[str, frozenset[str]]] = {}
        self._found: dict[bool, set[int]] = {}
        self.in_threads: set[int] = set()

    def matters(self, *, loops: bool) -> bool:
        """Whether running the module can show anything, for taking gradients in `loops` too."""
        return bool(self.definitions(loops=False) or (loops and self.definitions(loops=True)))

    def definitions(self, *, loops: bool) -> set[int]:
        """The ids of the definitions that may hand something to workers, or hold another pitfall
        (or, for `loops`, take gradients); and `OWN_CODE`, where the module's own code does."""
        if loops not in self._found:
            self._found[loops] = self._relevant(loops)
        return self._found[loops]

    def bringing_workers(self, node: Import) -> dict[str, frozenset[str]]:
        """The names that an import of the project gives to what starts workers; and which methods
        of what they stand for do, "" for the names themselves."""
        if id(node) not in self._bringing:
            self._bringing[id(node)] = self._bring(node, self._project.starts_workers)
        return self._bringing[id(node)]

    def _bring(self, node: Import, gives: Callable[[str, str], G]) -> dict[str, G]:
        """The names that an import of the project brings and that do what is sought, as
        `gives(module, name)` tells of a name in a module."""
        project, seen = self._project, self.seen
        modules: list[tuple[str, Set[str]]] = []
        found: dict[str, G] = {}
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
                elif project.is_inner(base, it.name):
                    modules.append((f"{base}.{it.name}", seen.read_from.get(held, set())))
                else:
                    found[held] = gives(base, it.name)
        for module, names in modules:
            for name in names if project.is_module(module) else ():
                if len(names) > 1 and project.is_inner(module, name):
                    modules.append((f"{module}.{name}", names))  # of which something is asked
                    continue
                given = gives(module, name)
                found[name] = found[name] | given if name in found else given
        return {name: given for name, given in found.items() if given}

    def _comes_from_project(self, node: Import) -> bool:
        if id(node) not in self._of_project:
            self._of_project[id(node)] = any(map(self._project.is_module, self._modules_of(node)))
        return self._of_project[id(node)]

    def _registers(self, node: Import) -> bool:
        """Whether an import has modules put what they define where others look it up."""
        return any(map(self._project.brings_registered, self._modules_of(node)))

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
        """What is mentioned where tensors may be made."""
        found = self._mattering_here(self.words.matters | self.words.trains)
        known = self.words.packages | sys.stdlib_module_names
        for node in self.seen.imports:
            if not _tops(node) <= known and not self._comes_from_project(node):
                found |= _names(node)
        return found

    def _mattering_here(self, words: Set[str]) -> set[str]:
        """What is mentioned where one of `words` is, or something from another module that
        matters."""
        found = self._said(words | self._brought(self._project.matters))
        return found | self.words.variables | set(map(keyword, words))

    @cached_property
    def _has_star(self) -> bool:
        """Whether names come in that no import says."""
        return any(alias.name == "*" for node in self.seen.imports for alias in node.names)

    def _brought(self, gives: Callable[[str, str], bool]) -> set[str]:
        """The names that imports of the project give to what is sought."""
        return {name for node in self.seen.imports for name in self._bring(node, gives)}

    def _relevant(self, loops: bool) -> set[int]:
        seen, words = self.seen, self.words
        interesting = set(words.starters - self._foreign())
        by_threads, by_processes = set(words.threads & interesting), set[str]()
        ranks: set[str] = set()
        if loops:
            interesting |= words.loops
        beside = self._beside()
        interesting |= beside
        for node in seen.imports if beside else ():
            for name, methods in self._bring(node, self._project.fits_models).items():
                by_processes |= {asked(it) if it else name for it in methods}
        for node in seen.imports:
            tops = _tops(node)
            if not tops & words.packages:
                for gives in (self._project.makes_loaders, self._project.remembers):
                    for name, methods in self._bring(node, gives).items():
                        by_processes |= {asked(it) if it else name for it in methods}
                brought = self.bringing_workers(node)
                processes = self._bring(node, self._project.starts_processes) if brought else ()
                for name, methods in brought.items():
                    said = {inherited(name), *(asked(it) if it else name for it in methods)}
                    (by_processes if name in processes else by_threads).update(said)
                for mentioned, extended in seen.inheriting if brought else ():
                    # It may call what it inherits.
                    mentioned |= set(map(inherited, brought.keys() & extended))
        interesting |= by_threads | by_processes
        imported = _imported(seen)
        if any(group in name for name in imported | seen.loaded for group in words.groups) or any(
            map(self._comes_from_project, seen.imports)
        ):
            interesting |= words.samplers
            ranks = self._renamed(words.ranks)
        interesting = self._renamed(interesting)
        if loops:
            return _mentioning(seen, self._said(interesting | ranks))
        starting = self._starting(interesting, by_threads - by_processes) | self._together(ranks)
        starting |= {id_ for id_, (name, _) in seen.definitions.items() if name in words.hooks}
        if any(not words.marks.isdisjoint(name.split(".")) for name in imported):
            starting.add(OWN_CODE)
        tops = {name.partition(".")[0] for name in imported}
        if not starting or not tops.isdisjoint(words.frameworks):
            return starting
        return starting & self._mattering(starting)

    def _beside(self) -> set[str]:
        """The words that matter by what is imported here or, where such a word is said, by modules
        of the project that are."""
        beside = self.words.beside
        tops = set[str]().union(*map(_tops, self.seen.imports))
        said = self.seen.mentioned
        if any(not said.isdisjoint(map(asked, words)) for words in beside.values()):
            for node in filter(self._comes_from_project, self.seen.imports):
                tops = tops.union(*map(self._project.packages_of, self._modules_of(node)))
        return set[str]().union(*(words for top, words in beside.items() if top in tops))

    def _renamed(self, words: Set[str]) -> set[str]:
        """`words`, and the other names that imports give them."""
        aliases = (alias for node in self.seen.imports for alias in node.names)
        return {*words} | {
            it.asname for it in aliases if it.asname and it.name.rpartition(".")[2] in words
        }

    def _together(self, ranks: set[str]) -> set[int]:
        """The ids of the definitions that mention one of `ranks`, here or in a module of the
        project that they lead to, and train."""
        found = _mentioning(self.seen, self._said(ranks))
        if self._has_star or not ranks:
            return found
        training = self.words.trains | self._brought(self._project.trains)
        training_here = _mentioning(self.seen, self._said(training))
        if training_here - found:
            found |= _mentioning(self.seen, self._brought(self._project.trains_together))
        return found & training_here

    def _said(self, words: Set[str]) -> set[str]:
        """What is mentioned where one of `words` is: a variable is none that no import gives."""
        found = {*words, *map(asked, words), *map(keyword, words & self.words.keywords)}
        if self._has_star:
            return found
        known = _names_in_imports(self.seen)
        return found - {it for it in words - known if it.isidentifier()}

    def _mattering(self, starting: set[int]) -> set[int]:
        """Those of the `starting` definitions to which what matters can come: without a framework
        here, it is from another module; or nothing of one matters."""
        seen, words = self.seen, self.words
        if self._has_star or any(map(self._registers, seen.imports)):
            return starting
        wanted = self._mattering_here(words.matters)
        for node in seen.imports:
            if isinstance(node, ast.ImportFrom):
                if not words.matters.isdisjoint((node.module or "").split(".")):
                    wanted |= _names(node)
                continue
            for it in node.names:
                if it.asname and not words.matters.isdisjoint(it.name.split(".")):
                    wanted.add(it.asname)
        found = _mentioning(seen, wanted)
        for string in words.matters_beside.keys() & seen.strings:
            beside = _mentioning(seen, _any_way(words.matters_beside[string]))
            found |= beside & _mentioning(seen, {quoted(string)})
        return found

    def _foreign(self) -> set[str]:
        """The names of starters that are mentioned, and mean something else here: no package that
        has them is imported."""
        if self._has_star:
            return set()
        said = self.seen.mentioned | _names_in_imports(self.seen)
        homes = {it: packages for it, packages in self.words.homes.items() if it in said}
        if not homes:
            return set()
        tops: set[str] = set()
        for node in self.seen.imports:
            tops |= _tops(node)
            if self._comes_from_project(node):
                tops = tops.union(*map(self._project.packages_of, self._modules_of(node)))
        return {it for it, packages in homes.items() if tops.isdisjoint(packages)}

    def _starting(self, interesting: set[str], threads: set[str]) -> set[int]:
        """The ids of the definitions that mention what is `interesting`; those that start
        `threads`, where they change something, too, that threads share."""
        seen, words = self.seen, self.words
        mentioned = seen.mentioned
        if mentioned.isdisjoint(interesting - threads - words.either - words.samplers):
            threads = threads | (words.either & interesting)
        starting = _mentioning(seen, self._said(interesting - threads))
        in_threads = _mentioning(seen, self._said(threads)) - starting
        if not in_threads:
            return starting
        if self._has_star:
            return starting | in_threads
        shared = self._said(self._brought(self._project.changes_what_threads_share))
        shared |= set(map(asked, words.shared))
        telling = tuple(map(called, words.telling))
        shared |= {it for it in mentioned if it.endswith(telling)}
        changing = _mentioning(seen, shared)
        making = self._makers()
        writes = {writing(place) for place in seen.written - _harmless(seen, making)}
        changing |= _mentioning(seen, writes) & _mentioning(seen, making)
        self.in_threads = in_threads & changing
        return starting | self.in_threads


def _harmless(seen: Survey, making: Set[str]) -> set[Place]:
    """What is written to, and gets its values from assignments alone, none of which mentions what
    makes tensors."""
    found, variables = _reached(seen, making)
    assigned: set[Place] = set()
    for binding in seen.bindings:
        assigned |= {(binding.scope, name) for name in binding.names}
        assigned |= {(ATTRIBUTE, name) for name in binding.attributes}
        if binding.attributes and binding.said:
            places = {(binding.scope, name) for name in binding.said}
            if places <= seen.given:  # what a function is given, as it is
                found |= binding.attributes
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


def _names_in_imports(seen: Survey) -> set[str]:
    """All names that imports mention, each part of a dotted one."""
    said = {part for name in _imported(seen) for part in name.split(".")}
    return said | {it.asname for node in seen.imports for it in node.names if it.asname}


def _any_way(words: Set[str]) -> set[str]:
    """What is mentioned where one of `words` is: as a name, an attribute, a keyword or a key."""
    return {*words, *map(asked, words), *map(keyword, words), *map(quoted, words)}


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
