"""What a file's transitive imports bring in that matters to workers."""

from __future__ import annotations

from gradguard_lint.project.file_bytes import File
from gradguard_lint.project.links import Links

MANY = 50
"""From this many files on, importers of a helper are searched by its name first."""
FAR, FAR_OF_FEW = 2, 7
"""The depth to which workers' imports are followed, in large and small projects."""


class Reach:
    """Reachability of frameworks through a project's imports."""

    def __init__(self, links: Links, *, small: bool) -> None:
        self._links = links
        self._small = small
        self._known: dict[tuple[File, str], bool] = {}

    def reaches(self, path: str, kind: str = "") -> bool:
        """Whether an import of `path` leads to what matters to workers of this `kind`: "fork",
        "thread" or any."""
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
        more does in forks, and less in threads."""
        if file.seeds or (kind == "fork" and file.draws):
            return True
        if kind != "thread":
            return file.framework
        return (self._small or file.framework) and file.changes_what_threads_share
