"""What the names of a module are given by, told from its bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property

from gradguard_lint.models.rows import CALLED_BY_CALLS
from gradguard_lint.project.imports import import_lines, imported_names, imports
from gradguard_lint.project.literals import (
    with_line_feeds,
    without_comments,
    without_strings,
    words_of,
)
from gradguard_lint.project.marks import starts_processes, starts_workers
from gradguard_lint.project.setting_up import sets_up

Tells = Callable[[bytes], bool]
"""``tells(code)``: whether it does what is sought."""

_DEFINITION = rb"(?m)^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^@"
"""Where a function or class of a module, or its first decorator, begins."""

_METHOD = rb"(?m)^([ \t]+)(?:(?:async[ \t]+)?def[ \t]+(\w+)|@)"
"""Where a method, or its first decorator, begins."""

_CALLED = frozenset(map(str.encode, CALLED_BY_CALLS))

ITSELF = ""
"""What stands for a name itself, beside the methods of what it gives."""

ALONE = frozenset((ITSELF,))
"""What a name gives that does what is sought itself."""

_STATEMENT = rb"(?m)^(?=[^\s#)\]}])"
"""Where a statement of the module's own begins."""

_IMPORT = (
    rb"(?m)^[ \t]*"
    rb"(?:from[ \t]+[\w.]+[ \t]+import[ \t]*(?:\([^)]*\)|[^\n;]*)|import[ \t][^\n;]*)"
)

_SET = rb"(\w+(?:[ \t]*[,=][ \t]*\w+)*)[ \t]*(?::[^=\n]*)?=(?!=)"
"""What sets names at the left margin."""

_FILLS = (
    rb"(?m)^[ \t]+(\w+)(?:[ \t]*\[[^\]\n]*\][ \t]*=(?!=)"
    rb"|(?:[ \t]*\[[^\]\n]*\])?\.(?:add|append|insert|setdefault|update)[ \t]*\()"
)
"""What a function puts something into."""

_DECORATOR = rb"(?m)^@(\w+)"
_DECORATING = rb"(?m)^@(\w+)(\.\w+[ \t]*\(?)?"

_GIVEN = (
    rb"(?m)^[ \t]*(?:[\w.]+[ \t]*[,=][ \t]*)*[(*]*NAME\b[ \t]*(?:[,:)][^=\n]*)?[-+*/|&]*=(?!=)"
    rb"|^[ \t]*NAME[ \t]*[.\[]"
    rb"|\b(?:def|class|for|as)[ \t]+NAME\b"
)
"""What sets a name, or changes what it stands for."""


class Names:
    """The names of the module that holds `data`."""

    def __init__(self, data: bytes) -> None:
        data = self._data = with_line_feeds(data)
        self._telling: dict[Tells, bool] = {}
        self._asked: dict[str, set[str]] = {}
        self._behind: dict[str | None, list[tuple[str, str, bytes]]] = {}
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

    def asked_of(self, module: str) -> set[str]:
        """What the module is asked for that is called so here."""
        if module not in self._asked:
            asked = rb"\b" + re.escape(module.encode()) + rb"[ \t]*\.[ \t]*(\w+)"
            self._asked[module] = {name.decode() for name in re.findall(asked, self._code)}
        return self._asked[module]

    @cached_property
    def sets_up(self) -> bool:
        """Whether importing the module asks for a GPU, or sets up what workers find."""
        return sets_up(self._data) and sets_up(without_comments(self._data))

    @cached_property
    def imports(self) -> list[str]:
        """The dotted names that the module imports, relative ones with their dots."""
        return imports(import_lines(self._data))

    @cached_property
    def decorated_by(self) -> list[tuple[str, str, bool]]:
        """The modules, and the names there, of what decorates something at the left margin, itself
        or by a method."""
        found = set(re.findall(_DECORATING, self._data)) if b"\n@" in self._data else set()
        return [
            (*item, bool(method)) for name, method in found for item in self._imported.get(name, ())
        ]

    def imported_as(self, name: str) -> list[tuple[str, str]]:
        """The modules, and the names there, of what is imported as `name`."""
        return self._imported.get(name.encode(), [])

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

    def behind(self, name: str | None) -> list[tuple[str, str, bytes]]:
        """The imports that `name` (None: anything) may hang on: the module, the name there, "" for
        the module itself, "*" for all of them; and the name here."""
        if name not in self._behind:
            self._behind[name] = self._found_behind(name)
        return self._behind[name]

    def _found_behind(self, name: str | None) -> list[tuple[str, str, bytes]]:
        imported = self._imported
        words = {*imported}
        if name is not None:
            mentioned = self.definitions.leads_to(name)
            if mentioned is None:
                for word in (name.encode(), b"*"):
                    if word in imported:
                        return [(*item, word) for item in imported[word]]
                mentioned = self.definitions.beside(name)
            words &= mentioned
        return [(*item, word) for word in words for item in imported[word]]


class _Part:
    """A function, a method, what a class is besides its methods, or a variable of the module.

    Attributes:
        name: the function's, the class's or the variable's.
        said: what is said where it is used: the name, or the method with a dot before it.
        text: its code.
        words: what that mentions, but for the names that it defines.
    """

    __slots__ = ("name", "said", "text", "words")

    def __init__(self, name: bytes, said: bytes, text: bytes) -> None:
        self.name = name
        self.said = said
        self.text = text
        self.words = _said(re.sub(rb"\b(?:def|class)[ \t]+\w+", b"", text))


_BY_CODE = frozenset({starts_workers, starts_processes})
"""What is done by functions and classes alone: tables of these, which are asked for a way by its
name, would lead to workers that most programs never start."""


class Definitions:
    """The functions and classes of a module, and its own code.

    Args:
        code: what the module holds, without its comments and strings.
    """

    def __init__(self, code: bytes) -> None:
        self._texts, own = _parts(code)
        self._defined = {name for name, _, _ in self._texts}
        self._own = [
            (text, words_of(text) | _said(text))
            for text in re.split(_STATEMENT, re.sub(_IMPORT, b"", own))
        ]
        """The statements of the module's own code, but for its imports, and what each mentions."""
        self._variables: set[bytes] = set()
        for text, _ in self._own:
            setting = re.match(_SET, text)
            for word in words_of(setting.group(1)) if setting else ():
                self._variables.add(word)
                self._texts.append((word.decode("utf-8", "replace"), False, text))
        self.mentions: dict[str, set[bytes]] = {}
        """What each function and class mentions, with what follows it up to the next, and what is
        mentioned where a variable is set; by the name."""
        for name, _, text in self._texts:
            self.mentions.setdefault(name, set()).update(words_of(text))
        self._doing: dict[tuple[Tells, frozenset[bytes]], list[_Part]] = {}
        self._given: dict[tuple[str, Tells, frozenset[bytes]], frozenset[str]] = {}

    def have(self, name: str) -> bool:
        """Whether a function or class has that name."""
        return name in self._defined

    def leads_to(self, name: str) -> set[bytes] | None:
        """What the function or class `name` mentions, and what the functions, classes and variables
        of the module mention that it leads to; None where there is none of that name."""
        if not self.have(name):
            return None
        found: set[bytes] = set()
        reached = {name}
        waiting = [name]
        while waiting:
            some = waiting.pop()
            found |= self.mentions[some]
            new = self._named[some] - reached
            reached |= new
            waiting += new
        return found

    @cached_property
    def _named(self) -> dict[str, set[str]]:
        """The functions, classes and variables of the module that each mentions, not as an
        attribute."""
        found: dict[str, set[str]] = {}
        for name, _, text in self._texts:
            said = {word.decode("utf-8", "replace") for word in _said(text)}
            found.setdefault(name, set()).update(said & self.mentions.keys())
        return found

    def give(self, name: str, of: Tells, words: frozenset[bytes] = frozenset()) -> frozenset[str]:
        """What does what is sought, or says one of `words` (an attribute with a dot before it), of
        what the module gives as `name`: `ITSELF`, or methods of what it has or makes."""
        key = (name, of, words)
        if key not in self._given:
            self._given[key] = self._found_to_give(*key)
        return self._given[key]

    def _found_to_give(self, name: str, of: Tells, words: frozenset[bytes]) -> frozenset[str]:
        doing = self._those(of, words)
        whole = {part.said for part in doing if part.said == part.name}
        whole = whole.union(*(self._registered.get(it, ()) for it in whole))
        if not self.have(name):
            if name.encode() in whole:
                return ALONE
            giving = self._giving(name.encode())
            if any(of(text) or not said.isdisjoint(whole | words) for text, said in giving):
                return ALONE
            reached = self._reached(set().union(*(said for _, said in giving)))
        elif name.encode() in whole:
            return ALONE
        else:
            reached = self._reached({name.encode()})
        methods = (it for it in doing if it.name in reached and it.said != it.name)
        return frozenset(it.said[1:].decode() for it in methods)

    def _reached(self, names: set[bytes]) -> set[bytes]:
        """The functions, classes and variables among `names`, and those that these mention, and so
        on."""
        found: set[bytes] = set()
        new = names
        while new:
            known = [self.mentions.get(name.decode("utf-8", "replace")) for name in new]
            found |= new
            new = set().union(*filter(None, known)) - found
        return found

    def _giving(self, name: bytes) -> list[tuple[bytes, set[bytes]]]:
        """The statements of the module's own code that set `name`, or change what it stands for."""
        standing = [item for item in self._own if name in item[1]]
        if not standing:
            return []
        given = re.compile(_GIVEN.replace(b"NAME", name))
        return [item for item in standing if given.search(item[0])]

    @cached_property
    def _all(self) -> list[_Part]:
        """The definitions, with those in classes by themselves."""
        found = []
        for name, is_class, text in self._texts:
            word = name.encode()
            found += _methods(word, text) if is_class else [_Part(word, word, text)]
        return found

    @cached_property
    def _code(self) -> list[_Part]:
        """The functions and classes among them."""
        defined = {name.encode() for name in self._defined}
        return [part for part in self._all if part.name in defined]

    def _those(self, of: Tells, words: frozenset[bytes]) -> list[_Part]:
        """The definitions that do what is sought, or mention one of `words`, or one that does."""
        found = self._doing.get((of, words))
        if found is None:
            waiting = self._code if of in _BY_CODE else self._all
            if words:
                found = [*self._those(of, frozenset())]
            else:
                found = [part for part in waiting if of(part.text)]
            said = words.union(*map(self._leads_from, found))
            while True:
                waiting = [part for part in waiting if part not in found]
                new = [part for part in waiting if not said.isdisjoint(part.words)]
                if not new:
                    break
                found += new
                said = frozenset[bytes]().union(*map(self._leads_from, new))
            self._doing[of, words] = found
        return found

    def _leads_from(self, part: _Part) -> set[bytes]:
        """What is said where a definition is used: by its name, or out of what it is put into."""
        return {part.said, *self._registered.get(part.name, ())}

    @cached_property
    def fillers(self) -> dict[bytes, set[bytes]]:
        """The functions that put something into containers of the module, and which these are."""
        found = {
            name.encode(): self._variables.intersection(re.findall(_FILLS, text))
            for name, is_class, text in self._texts
            if self._variables and not is_class
        }
        return {name: filled for name, filled in found.items() if filled}

    @cached_property
    def _registered(self) -> dict[bytes, set[bytes]]:
        """The definitions that such a function decorates, and what it puts them into."""
        found: dict[bytes, set[bytes]] = {}
        for name, _, text in self._texts:
            for decorator in re.findall(_DECORATOR, text) if text.startswith(b"@") else ():
                found.setdefault(name.encode(), set()).update(self.fillers.get(decorator, ()))
        return found

    def beside(self, name: str) -> set[bytes]:
        """What the statements of the module's own code mention that set `name`."""
        return set().union(*(words for _, words in self._giving(name.encode())))


def _said(text: bytes) -> set[bytes]:
    """What `text` says: names, and attributes with a dot before them."""
    return set(re.findall(rb"\.?\w+", text))


def _methods(name: bytes, text: bytes) -> list[_Part]:
    """A class, and apart from it its methods: those that are called by its name, or by calling an
    object, are the class itself."""
    heads = [*re.finditer(_METHOD, text)]
    heads = [head for head in heads if head.group(1) == heads[0].group(1)]
    body = [text[: heads[0].start()] if heads else text]
    special = []
    found = []
    for head, method in _each(heads, text):
        after = re.compile(rb"(?m)^" + head.group(1) + rb"(?=[^\s#)\]}])")
        end = after.search(method, method.find(head.group()) + len(head.group()))
        if end is not None:
            body.append(method[end.start() :])
            method = method[: end.start()]
        called = head.group(2)
        if called.startswith(b"__") or called in _CALLED:
            special.append(method)
        else:
            found.append(_Part(name, b"." + called, method))
    whole = _Part(name, name, b"".join((*body, *special)))
    here = words_of(b"".join(body))  # there, methods are variables
    whole.words |= {b"." + word for word in here}
    return [whole, *found]


def _each(heads: list[re.Match[bytes]], text: bytes) -> Iterator[tuple[re.Match[bytes], bytes]]:
    """Each definition that begins at one of `heads`, or at its decorators before, up to the next;
    the last group of a head is its name."""
    begins = -1
    ends = [*(head.start() for head in heads), len(text)]
    for head, end in zip(heads, ends[1:], strict=True):
        begins = head.start() if begins < 0 else begins
        if head.group(head.re.groups) is not None:
            yield head, text[begins:end]
            begins = -1


def _parts(data: bytes) -> tuple[list[tuple[str, bool, bytes]], bytes]:
    """The definitions, each with whether it is a class, and with what follows it; and what may
    stand outside of them: a line that begins like code may be one of a statement that goes on."""
    statement = re.compile(_STATEMENT)
    heads = [*re.finditer(_DEFINITION, data)]
    found = []
    own = [data[: heads[0].start()] if heads else data]
    for head, text in _each(heads, data):
        name = head.group(1).decode("utf-8", "replace")
        found.append((name, head.group().startswith(b"class"), text))
        after = statement.search(text, text.find(head.group()) + len(head.group()))
        own.append(text[after.start() :] if after is not None else b"")
    return found, b"\n".join(own)
