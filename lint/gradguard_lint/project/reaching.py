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
        self._known: dict[tuple[File, str], bool] = {}

    def reaches(self, path: str, kind: str = "") -> bool:
        """Whether an import of the file at `path` brings in what matters to workers: to those of
        this `kind`, "fork" or "thread", or to any."""
        return any(self._leads_to_what_matters(it, kind) for it in self._links.imported(path))

    def _leads_to_what_matters(self, start: File, kind: str) -> bool:
        key = (start, kind)
        if key not in self._known:
            self._known[key] = self._found_to_matter(start, kind)
        return self._known[key]

    def _found_to_matter(self, start: File, kind: str) -> bool:
        seen, near = {start}, [start]
        for level in range(FAR_OF_FEW if self._small else FAR):
            if level >= FAR and len(seen) > MANY:
                break  # few files of a large project are checked
            if any(self._matters_to(file, kind) for file in near):
                return True
            found = (self._links.imported(self._links.path_of(file)) for file in near)
            near = [*dict.fromkeys(it for of in found for it in of if it not in seen)]
            seen.update(near)
        return False

    def _matters_to(self, file: File, kind: str) -> bool:
        """Whether a module has a framework, or a global generator, that matters to such workers:
        more does where they are forked, and less where they are threads."""
        if file.seeds or (kind == "fork" and file.draws):
            return True
        if kind != "thread":
            return file.framework
        return (self._small or file.framework) and file.changes_what_threads_share
