"""Which parts of a module may contain a pitfall, by the names that it mentions."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Set
from functools import cached_property

from gradguard_lint.domain.starts import Vocabulary
from gradguard_lint.engine.footprint import (
    ATTRIBUTE,
    OWN_CODE,
    Footprint,
    Imported,
    Key,
    Place,
    asked,
    called,
    inherited,
    keyword,
    quoted,
    renamed,
    writing,
)
from gradguard_lint.engine.walk import footprint
from gradguard_lint.words import absolute_name

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.engine.ports import Project, What
    from gradguard_lint.reading.source import Module


class Relevance:
    """The relevant parts of a module.

    Attributes:
        module: the module.
        words: the names to look for.
        seen: its footprint.
        in_threads: functions that start only threads, which run last.
    """

    def __init__(self, module: Module, project: Project, words: Vocabulary) -> None:
        self.module = module
        self.words = words
        strings = {it for it in words.matters_by_string if it.encode() in module.data}
        strings.update(*(words.matters_by_string[it] for it in strings))
        self.seen = footprint(module.tree, words.called, frozenset(strings))
        self._project = project
        self._bringing: dict[tuple[What, Imported], dict[str, frozenset[str]]] = {}
        self._found: dict[bool, set[Key]] = {}
        self.in_threads: set[Key] = set()

    def matters(self, *, loops: bool) -> bool:
        """Whether running the module can find anything, also gradients in `loops`."""
        return bool(self.definitions(loops=False) or (loops and self.definitions(loops=True)))

    def definitions(self, *, loops: bool) -> set[Key]:
        """Functions that may dispatch work or contain another pitfall (or, for `loops`, compute
        gradients); and `OWN_CODE` if module-level code does."""
        if loops not in self._found:
            self._found[loops] = self._relevant(loops)
        return self._found[loops]

    @cached_property
    def bringing_workers(self) -> set[str]:
        """Names imported from the project that start workers."""
        return self._imported_names_that("starts")

    def _names_that(self, what: What, imported: Imported) -> dict[str, frozenset[str]]:
        """The names that a project import binds and that do this; with the methods of their objects
        that do, "" for the names themselves."""
        key = (what, imported)
        if key not in self._bringing:
            found = self._bringing[key] = {}
            brings = imported_bindings(self._project, self.seen, self.module.package, imported)
            for _, here, module, name in brings:
                given = self._project.reaches(what, module, name)
                if given:
                    found[here] = found.get(here, given) | given
        return self._bringing[key]

    def _imported_names_that(self, what: What) -> set[str]:
        """Names imported from the project that do this."""
        return {name for it in self.seen.imports for name in self._names_that(what, it)}

    @cached_property
    def _of_project(self) -> set[Imported]:
        """Imports of project modules."""
        is_module = self._project.is_module
        return {it for it in self.seen.imports if any(map(is_module, self._modules_of(it)))}

    def _registers(self, imported: Imported) -> bool:
        """Whether an import makes modules register their definitions elsewhere."""
        return any(map(self._project.brings_registered, self._modules_of(imported)))

    def _modules_of(self, imported: Imported) -> list[str]:
        """The modules that an import may name."""
        base = absolute_name(imported[0], self.module.package)
        return [base, f"{base}.{imported[1]}"] if imported[1] else [base]

    def _packages(self) -> set[str]:
        """Packages imported by the module or by project modules that it imports."""
        found = set(map(_top, self.seen.imports))
        inner = (name for it in self._of_project for name in self._modules_of(it))
        return found.union(*map(self._project.packages_of, inner))

    @cached_property
    def making(self) -> set[Key]:
        """Functions that may create tensors, or choose a device."""
        return self.seen.mentioning(self._makers())

    def _makers(self) -> set[str]:
        """Words mentioned where tensors may be created."""
        found = self._relevant_words(self.words.matters | self.words.trains)
        known = self.words.packages | sys.stdlib_module_names
        for it in self.seen.imports:
            if _top(it) not in known and it not in self._of_project:
                found.add(it[2])
        return found

    def _relevant_words(self, words: Set[str]) -> set[str]:
        """Words mentioned where one of `words`, or a relevant name of another module, is used."""
        found = self._all_forms(words | self._imported_names_that("matters"))
        return found | self.words.variables | set(map(keyword, words))

    def _relevant(self, loops: bool) -> set[Key]:
        seen, words = self.seen, self.words
        interesting = set(words.starters - self._unrelated_starters())
        by_threads, by_processes = set(words.threads & interesting), set[str]()
        ranks: set[str] = set()
        if loops:
            interesting |= words.loops
        import_words = self._words_by_import()
        interesting |= import_words
        if import_words:
            by_processes |= self._ways("fits")
        plain = [it for it in seen.imports if _top(it) not in words.packages]
        by_processes |= self._ways("loads", plain) | self._ways("remembers", plain)
        for it in plain:
            brings = self._names_that("starts", it)
            processes = self._names_that("starts-processes", it) if brings else ()
            for name, methods in brings.items():
                said = {inherited(name), *usage_words(name, methods)}
                (by_processes if name in processes else by_threads).update(said)
            for mentioned, extended in seen.inheriting if brings else ():
                # An override may call the method that it inherits.
                mentioned |= set(map(inherited, brings.keys() & extended))
        interesting |= by_threads | by_processes
        imported = _imported(seen)
        said = imported | seen.loaded
        if self._of_project or any(group in name for name in said for group in words.groups):
            interesting |= words.samplers
            ranks = renamed(self.seen, words.ranks)
        interesting = renamed(self.seen, interesting)
        if loops:
            return seen.mentioning(self._all_forms(interesting | ranks))
        starting = self._starting(interesting, by_threads - by_processes) | self._rank_functions(
            ranks
        )
        starting |= {key for key, (name, _) in seen.definitions.items() if name in words.hooks}
        if any(not words.marks.isdisjoint(name.split(".")) for name in imported):
            starting.add(OWN_CODE)
        tops = {name.partition(".")[0] for name in imported}
        if not starting or not tops.isdisjoint(words.frameworks):
            return starting
        return starting & self._reachable_by_relevant(starting)

    def _ways(self, what: What, imports: Iterable[Imported] | None = None) -> set[str]:
        """Words mentioned where an imported name that does this is used."""
        found: set[str] = set()
        for it in self.seen.imports if imports is None else imports:
            found = found.union(
                *(usage_words(*item) for item in self._names_that(what, it).items())
            )
        return found

    def _words_by_import(self) -> set[str]:
        """Words that matter because of an imported package; of imported project modules as well, if
        such a word is mentioned."""
        by_package = self.words.by_import
        said = self.seen.mentioned
        if any(not said.isdisjoint(map(asked, words)) for words in by_package.values()):
            tops = self._packages()
        else:
            tops = set(map(_top, self.seen.imports))
        return set[str]().union(*(words for top, words in by_package.items() if top in tops))

    def _rank_functions(self, ranks: set[str]) -> set[Key]:
        """Functions that mention one of `ranks`, here or in project modules that they call, and
        train."""
        found = self.seen.mentioning(self._all_forms(ranks))
        if self.seen.has_star or not ranks:
            return found
        trainers = renamed(self.seen, self.words.trains)
        for mentioned, extended in self.seen.inheriting:
            mentioned |= extended & trainers  # the base class calls it, and trains
        training = self.seen.mentioning(
            self._all_forms(self.words.trains | self._imported_names_that("trains"))
        )
        if training - found:
            found |= self.seen.mentioning(self._imported_names_that("trains-together"))
        return found & training

    def _all_forms(self, words: Set[str]) -> set[str]:
        """The words for `words` in all their forms; variables only if an import binds them."""
        found = {*words, *map(asked, words), *map(keyword, words & self.words.keywords)}
        if self.seen.has_star:
            return found
        known = _names_in_imports(self.seen)
        return found - {it for it in words - known if it.isidentifier()}

    def _reachable_by_relevant(self, starting: set[Key]) -> set[Key]:
        """The `starting` functions that something relevant can reach; without a framework here, it
        comes from another module."""
        seen, words = self.seen, self.words
        if self.seen.has_star or any(map(self._registers, seen.imports)):
            return starting
        wanted = self._relevant_words(words.matters)
        for module, name, here in seen.imports:
            parts = module.split(".")
            if (name or here != parts[0]) and not words.matters.isdisjoint(parts):
                wanted.add(here)
        found = seen.mentioning(wanted)
        for string in words.matters_by_string.keys() & seen.strings:
            relevant = seen.mentioning(_all_usages(words.matters_by_string[string]))
            found |= relevant & seen.mentioning({quoted(string)})
        return found

    def _unrelated_starters(self) -> set[str]:
        """Names of starters that have another meaning here, as no package with them is imported."""
        if self.seen.has_star:
            return set()
        said = self.seen.mentioned | _names_in_imports(self.seen)
        homes = {it: packages for it, packages in self.words.homes.items() if it in said}
        tops = self._packages() if homes else set()
        return {it for it, packages in homes.items() if tops.isdisjoint(packages)}

    def _starting(self, interesting: set[str], threads: set[str]) -> set[Key]:
        """Functions that mention `interesting` words; those that start `threads` only if they also
        change shared state."""
        seen, words = self.seen, self.words
        mentioned = seen.mentioned
        if mentioned.isdisjoint(interesting - threads - words.either - words.samplers):
            threads = threads | (words.either & interesting)
        starting = seen.mentioning(self._all_forms(interesting - threads))
        in_threads = seen.mentioning(self._all_forms(threads)) - starting
        if not in_threads:
            return starting
        if self.seen.has_star:
            return starting | in_threads
        shared = self._all_forms(self._imported_names_that("changes"))
        shared |= set(map(asked, words.shared))
        endings = tuple(map(called, words.mode_suffixes))
        shared |= {it for it in mentioned if it.endswith(endings)}
        changing = seen.mentioning(shared)
        making = self._makers()
        writes = {writing(place) for place in seen.written - _harmless(seen, making)}
        changing |= seen.mentioning(writes) & seen.mentioning(making)
        self.in_threads = in_threads & changing
        return starting | self.in_threads


def _harmless(seen: Footprint, making: Set[str]) -> set[Place]:
    """Written places that are only ever assigned values without tensors."""
    found, variables = seen.reached(making)
    assigned: set[Place] = set()
    for binding in seen.bindings:
        assigned |= {(binding.scope, name) for name in binding.names}
        assigned |= {(ATTRIBUTE, name) for name in binding.attributes}
        if binding.attributes and binding.said:
            places = {(binding.scope, name) for name in binding.said}
            if places <= seen.given:  # an argument, unchanged
                found |= binding.attributes
    harmless = set()
    for place in seen.written:
        scope, name = place
        if scope > 0 and (name in seen.shared or place not in assigned | seen.given):
            scope = 0  # a module's variable
        origin = (scope, name)
        known = variables.get(scope, set()) if scope > 0 else found
        if origin in assigned and origin not in seen.given and name not in known:
            harmless.add(place)
    return harmless


def imported_bindings(
    project: Project,
    seen: Footprint,
    package: str,
    imported: Imported,
    among: Set[str] | None = None,
) -> Iterator[tuple[str, str, str, str]]:
    """The names that an import in a module of `package` binds, limited to those in `among`: the
    word, the name, its module, and its name there ("": the module)."""
    base, name, here = imported
    base = absolute_name(base, package)
    modules: list[tuple[str, Set[str]]] = []
    if name == "*":
        loaded = seen.loaded if among is None else filter(str.isidentifier, among)
        yield from ((it, it, base, it) for it in loaded if project.is_module(base))
    elif among is not None and here not in among:
        return
    elif not name and not project.is_module(base):
        yield here, here, base, ""
    elif not name:
        modules.append((base, seen.read_from.get(here, set())))
    elif project.is_inner(base, name):
        modules.append((f"{base}.{name}", seen.read_from.get(here, set())))
    else:
        yield here, here, base, name
    for module, names in modules:
        for it in names:
            if among is not None and asked(it) not in among:
                continue
            if len(names) > 1 and project.is_inner(module, it):
                modules.append((f"{module}.{it}", names))  # a package, whose attributes are used
            else:
                yield asked(it), it, module, it


def usage_words(word: str, methods: Set[str]) -> set[str]:
    """Words mentioned where `word` is used, or `methods` of its objects."""
    return {asked(it) if it else word for it in methods}


def _top(imported: Imported) -> str:
    """The top-level package of an import; "" for relative ones."""
    return imported[0].partition(".")[0]


def _imported(seen: Footprint) -> set[str]:
    """The dotted names that are imported."""
    return {f"{module.lstrip('.')}.{name}" if name else module for module, name, _ in seen.imports}


def _names_in_imports(seen: Footprint) -> set[str]:
    """All names in imports, with each part of dotted ones."""
    said = {part for name in _imported(seen) for part in name.split(".")}
    return said | {here for _, _, here in seen.imports}


def _all_usages(words: Set[str]) -> set[str]:
    """`words` as names, attributes, keywords and string keys."""
    return {*words, *map(asked, words), *map(keyword, words), *map(quoted, words)}
