"""What the names of a module are given by, told from its bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

from gradguard_lint.project.imports import imported_names
from gradguard_lint.project.literals import without_strings

Tells = Callable[[bytes], bool]
"""``tells(code)``: whether it does what is sought."""

_DEFINITION = rb"(?m)^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^@"
"""Where a function or class of a module, or its first decorator, begins."""

_STATEMENT = rb"(?m)^(?=[^\s#)\]}])"
"""Where a statement of the module's own begins."""

_IMPORT = (
    rb"(?m)^[ \t]*"
    rb"(?:from[ \t]+[\w.]+[ \t]+import[ \t]*(?:\([^)]*\)|[^\n;]*)|import[ \t][^\n;]*)"
)

_GIVEN = (
    rb"(?m)^[ \t]*(?:[\w.]+[ \t]*[,=][ \t]*)*[(*]*NAME\b[ \t]*(?:[,:)][^=\n]*)?[-+*/|&]*=(?!=)"
    rb"|^[ \t]*NAME[ \t]*[.\[]"
    rb"|\b(?:def|class|for|as)[ \t]+NAME\b"
)
"""What sets a name, or changes what it stands for."""


class Names:
    """The names of the module that holds `data`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._telling: dict[Tells, bool] = {}
        self.have_star = b"import *" in data
        """Whether some come from an import that does not say them."""

    def tell(self, of: Tells) -> bool:
        """Whether anything here does what is sought."""
        if of not in self._telling:
            self._telling[of] = of(self._data) and of(self._code)
        return self._telling[of]

    @cached_property
    def _code(self) -> bytes:
        return without_strings(self._data)

    @cached_property
    def definitions(self) -> Definitions:
        return Definitions(self._code)

    @cached_property
    def _imported(self) -> dict[bytes, list[tuple[str, str]]]:
        """What is imported, the module and the name there, by the name here."""
        found: dict[bytes, list[tuple[str, str]]] = {}
        for module, name, local in imported_names(self._code):
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
            given = imported.get(name.encode()) or imported.get(b"*")
            if given:
                return given
            mentioned = self.definitions.beside(name)
        return [item for word in imported.keys() & mentioned for item in imported[word]]


class Definitions:
    """The functions and classes of a module, and its own code.

    Args:
        code: what the module holds, without its comments and strings.
    """

    def __init__(self, code: bytes) -> None:
        self.mentions: dict[str, set[bytes]] = {}
        """What each function and class mentions, with what follows it up to the next, by its
        name."""
        self._texts, own = _parts(code)
        for name, text in self._texts:
            self.mentions.setdefault(name, set()).update(_words(text))
        self._own = [
            (text, _words(text)) for text in re.split(_STATEMENT, re.sub(_IMPORT, b"", own))
        ]
        """The statements of the module's own code, but for its imports, and what each mentions."""
        self._telling: dict[Tells, set[bytes]] = {}

    def have(self, name: str) -> bool:
        """Whether a function or class has that name."""
        return name in self.mentions

    def tell(self, name: str, of: Tells) -> bool:
        """Whether what the module gives as `name` does what is sought, or mentions what does."""
        word = name.encode()
        telling = self._those(of)
        if word in telling or name in self.mentions:
            return word in telling
        return any(of(text) or not telling.isdisjoint(words) for text, words in self._giving(word))

    def _giving(self, name: bytes) -> list[tuple[bytes, set[bytes]]]:
        """The statements of the module's own code that set `name`, or change what it stands for."""
        standing = [item for item in self._own if name in item[1]]
        if not standing:
            return []
        given = re.compile(_GIVEN.replace(b"NAME", name))
        return [item for item in standing if given.search(item[0])]

    def _those(self, of: Tells) -> set[bytes]:
        """The functions and classes that do what is sought, or mention one that does."""
        found = self._telling.get(of)
        if found is None:
            found = self._telling[of] = {name.encode() for name, text in self._texts if of(text)}
            new = found
            while new:
                waiting = ((name.encode(), said) for name, said in self.mentions.items())
                new = {name for name, said in waiting if name not in found and new & said}
                found |= new
        return found

    def beside(self, name: str) -> set[bytes]:
        """What the statements of the module's own code mention that set `name`."""
        return set().union(*(words for _, words in self._giving(name.encode())))


def _words(text: bytes) -> set[bytes]:
    return set(re.findall(rb"\w+", text))


def _parts(data: bytes) -> tuple[list[tuple[str, bytes]], bytes]:
    """The definitions, each with what follows it, and what may stand outside of them: a line that
    begins like code may be one of a statement that goes on."""
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
