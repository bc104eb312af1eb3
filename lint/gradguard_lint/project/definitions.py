"""What the names of a module are given by, told from its bytes."""

from __future__ import annotations

import re
from functools import cached_property

from gradguard_lint.project.imports import imported_names
from gradguard_lint.project.marks import starts_workers

_DEFINITION = rb"(?m)^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^@"
"""Where a function or class of a module, or its first decorator, begins."""

_STATEMENT = rb"(?m)^(?=[^\s#)\]}])"
"""Where a statement of the module's own begins."""

_IMPORT = (
    rb"(?m)^[ \t]*"
    rb"(?:from[ \t]+[\w.]+[ \t]+import[ \t]*(?:\([^)]*\)|[^\n;]*)|import[ \t][^\n;]*)"
)


class Names:
    """The names of the module that holds `data`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.start_workers = starts_workers(data)
        """Whether anything here starts workers."""
        self.have_star = b"import *" in data
        """Whether some come from an import that does not say them."""

    @cached_property
    def definitions(self) -> Definitions:
        return Definitions(self._data)

    @cached_property
    def _imported(self) -> dict[bytes, list[tuple[str, str]]]:
        """What is imported, the module and the name there, by the name here."""
        found: dict[bytes, list[tuple[str, str]]] = {}
        for module, name, local in imported_names(self._data):
            found.setdefault(local.encode(), []).append((module, name))
        return found

    def behind(self, name: str | None) -> list[tuple[str, str]]:
        """The imports that `name` (None: anything) may hang on: the module, and the name there, ""
        for the module itself, "*" for all of them."""
        imported = self._imported
        if name is None:
            return [item for items in imported.values() for item in items]
        mentioned = self.definitions.mentions.get(name)
        if mentioned is None:
            given = [*imported.get(name.encode(), ()), *imported.get(b"*", ())]
            if given:
                return given
            mentioned = self.definitions.beside(name)
        return [item for word in imported.keys() & mentioned for item in imported[word]]


class Definitions:
    """The functions and classes of the module that holds `data`, and its own code."""

    def __init__(self, data: bytes) -> None:
        self.mentions: dict[str, set[bytes]] = {}
        """What each function and class mentions, with what follows it up to the next, by its
        name."""
        self._starting: set[str] = set()
        """Those of them that start workers, or mention one that does."""
        definitions, own = _parts(data)
        for name, text in definitions:
            self.mentions.setdefault(name, set()).update(_words(text))
            if starts_workers(text):
                self._starting.add(name)
        new = self._starting
        while new:
            known = {name.encode() for name in new}
            waiting = self.mentions.keys() - self._starting
            new = {name for name in waiting if not known.isdisjoint(self.mentions[name])}
            self._starting |= new
        self._own = [
            (text, _words(text)) for text in re.split(_STATEMENT, re.sub(_IMPORT, b"", own))
        ]
        """The statements of the module's own code, but for its imports, and what each mentions."""

    def starts(self, name: str) -> bool:
        """Whether what the module gives as `name` starts workers, or mentions what does."""
        if name in self._starting or name in self.mentions:
            return name in self._starting
        started = {it.encode() for it in self._starting}
        word = name.encode()
        return any(
            word in words and (starts_workers(text) or not started.isdisjoint(words))
            for text, words in self._own
        )

    def beside(self, name: str) -> set[bytes]:
        """What the statements of the module's own code mention in which `name` stands."""
        word = name.encode()
        return set().union(*(words for _, words in self._own if word in words))


def _words(text: bytes) -> set[bytes]:
    return set(re.findall(rb"\w+", text))


def _parts(data: bytes) -> tuple[list[tuple[str, bytes]], bytes]:
    """The definitions, each with what follows it, and what may stand outside of them: a line that
    begins like code may be one of a string."""
    found = []
    begins = -1
    statement = re.compile(_STATEMENT)
    matches = list(re.finditer(_DEFINITION, data))
    starts = [*(match.start() for match in matches), len(data)]
    own = [data[: starts[0]]]
    for match, end in zip(matches, starts[1:], strict=True):
        begins = match.start() if begins < 0 else begins
        if match.group(1) is not None:
            found.append((match.group(1).decode("utf-8", "replace"), data[begins:end]))
            after = statement.search(data, match.end(), end)
            own.append(data[after.start() : end] if after is not None else b"")
            begins = -1
    return found, b"\n".join(own)
