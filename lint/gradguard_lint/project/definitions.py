"""What the functions and classes of a module mention, told from its bytes."""

from __future__ import annotations

import re

from gradguard_lint.project.marks import may_start_workers

_DEFINITION = re.compile(rb"^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^@", re.MULTILINE)
"""Where a function or class of a module, or its first decorator, begins."""


class Definitions:
    """The functions and classes of a module.

    Args:
        data: the module.

    Attributes:
        mentions: what each of them mentions, with what follows it up to the next, by its name.
        starting: those that start workers, or mention one that does.
    """

    def __init__(self, data: bytes) -> None:
        self.mentions: dict[str, set[bytes]] = {}
        self.starting: set[str] = set()
        for name, text in _definitions(data):
            self.mentions.setdefault(name, set()).update(re.findall(rb"\w+", text))
            if may_start_workers(text):
                self.starting.add(name)
        new = self.starting
        while new:
            known = {name.encode() for name in new}
            waiting = self.mentions.keys() - self.starting
            new = {name for name in waiting if not known.isdisjoint(self.mentions[name])}
            self.starting |= new


def _definitions(data: bytes) -> list[tuple[str, bytes]]:
    found = []
    begins = -1
    matches = list(_DEFINITION.finditer(data))
    starts = [*(match.start() for match in matches), len(data)]
    for match, end in zip(matches, starts[1:], strict=True):
        begins = match.start() if begins < 0 else begins
        if match.group(1) is not None:
            found.append((match.group(1).decode("utf-8", "replace"), data[begins:end]))
            begins = -1
    return found
