"""What the imports of a file bring in, over some modules, that matters to workers."""

from __future__ import annotations

from gradguard_lint.project.file_bytes import File
from gradguard_lint.project.links import Links

MANY = 50
"""From this many files on, who may import a helper is told by the helper's name first."""
FAR, FAR_OF_FEW = 2, 7
"""Over how many modules what workers import is followed, where there are many files, and few."""


class Reach:
    """What is known of the modules of a project, with few files or many."""

    def __init__(self, links: Links, *, small: bool) -> None:
        self._links = links
        self._small = small
        self._known: dict[str, dict[str, bool]] = {}

    def reaches(self, path: str, file: File, kind: str = "") -> bool:
        """Whether an import of the file at `path` brings in what matters to workers: to those of
        this `kind`, "fork" or "thread", or to any."""
        return any(self._brings(name, path, kind) for name in file.imports)

    def _brings(self, name: str, path: str, kind: str) -> bool:
        """Whether the import of `name` brings in what matters to workers of this `kind`, over some
        modules."""
        start = self._module_of(name, path)
        if start is None:
            return False
        known = self._known.setdefault(kind, {})
        if start[0] not in known:
            known[start[0]] = self._leads_to_what_matters(start, kind)
        return known[start[0]]

    def _leads_to_what_matters(self, start: tuple[str, File], kind: str) -> bool:
        seen = {start[0]}
        near = [start]
        for level in range(FAR_OF_FEW if self._small else FAR):
            if level >= FAR and len(seen) > MANY:
                break  # few files of a large project are checked
            if any(self._matters_to(file, kind) for _, file in near):
                return True
            found = (self._module_of(it, path) for path, file in near for it in file.imports)
            near = [it for it in dict.fromkeys(found) if it is not None and it[0] not in seen]
            seen.update(path for path, _ in near)
        return False

    def _matters_to(self, file: File, kind: str) -> bool:
        """Whether a module has a framework, or a global generator, that matters to such workers:
        more does where they are forked, and less where they are threads."""
        if file.seeds or (kind == "fork" and file.draws):
            return True
        if kind != "thread":
            return file.framework
        return (self._small or file.framework) and file.changes_what_threads_share

    def _module_of(self, name: str, path: str) -> tuple[str, File] | None:
        """The module of the project that the import of `name` reads, or that gives that name."""
        found = self._links.followed(name, path)
        if found is None and not name.startswith("."):
            return self._links.followed(name.rpartition(".")[0], path)
        if found is None and name.strip(".").count("."):
            return self._links.followed(name[: name.rindex(".")], path)
        return found
