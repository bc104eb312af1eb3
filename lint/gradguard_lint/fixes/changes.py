"""How a rule states a repair: changes of nodes of the tree that it looked at.

A rule says what is to become of which node, in Python source. Where in the file that is written,
and how it looks there, is for `rewrite`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gradguard.records import fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    import ast

    from gradguard_lint.reading.source import Module
    from pytest_gradguard.findings import Applicability


class Unwritable(Exception):
    """A change has no place in the source, or cannot be written there."""


@fields
class Change:
    """A change of `node` in `module`."""

    module: Module
    node: ast.AST


@fields
class SetKeyword(Change):
    """Give the call `node` the keyword `name`, or replace its value."""

    name: str
    value: str


@fields
class RenameKeywords(Change):
    """Rename keywords of the call `node`, all at once."""

    names: Mapping[str, str]


@fields
class RemoveArgument(Change):
    """Remove the keyword `name` of the call `node`, or the argument at that index."""

    name: str | int


@fields
class Wrap(Change):
    """Put the expression `node` between `before` and `after`."""

    before: str = ""
    after: str = ""


@fields
class Replace(Change):
    """Replace the expression `node` by `source`."""

    source: str


@fields
class Decorate(Change):
    """Add the decorator `source` to the function `node`, below its others."""

    source: str


@fields
class UnderWith(Change):
    """Put the statement `node` under ``with source:``; a ``with`` gets one more item, before the
    one at `index`."""

    source: str
    index: int = 0


@fields
class InsertBefore(Change):
    """Insert the statements `source` before the statement `node`."""

    source: str


@fields
class ReplaceStatement(Change):
    """Replace the simple statement `node` by `source`."""

    source: str


@fields
class Import(Change):
    """Add ``import name`` or ``from package import name`` to `node`, the module's tree."""

    name: str
    package: str | None = None


@fields
class Fix:
    """A repair as its rule states it.

    Attributes:
        applicability: ``safe`` where the program means the same but for the defect.
        message: what the repair does, as a sentence without a full stop.
        changes: what is to become of the program. They are made together or not at all.
        alone: functions that nothing else in the project may use. Where another file mentions
            one of them, the repair may change what that file means: it is unsafe.
        last: whether other repairs of these functions are made first: they may make it needless.
    """

    applicability: Applicability
    message: str
    changes: tuple[Change, ...]
    alone: tuple[str, ...] = ()
    last: bool = False
