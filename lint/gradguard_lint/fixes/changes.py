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
    """A change has no place in the source, or no plain way to be written there."""


@fields
class Change:
    """Something that is to become of `node`, which stands in `module`."""

    module: Module
    node: ast.AST


@fields
class SetKeyword(Change):
    """The call `node` gets the keyword `name`, or another value for it."""

    name: str
    value: str


@fields
class RenameKeywords(Change):
    """Keywords of the call `node` get other names, all at once."""

    names: Mapping[str, str]


@fields
class RemoveArgument(Change):
    """The call `node` loses the keyword `name`, or the argument at that place."""

    name: str | int


@fields
class Wrap(Change):
    """The expression `node` stands between `before` and `after`."""

    before: str = ""
    after: str = ""


@fields
class Replace(Change):
    """The expression `node` becomes `source`."""

    source: str


@fields
class Decorate(Change):
    """The function `node` gets the decorator `source`, below those that it has."""

    source: str


@fields
class UnderWith(Change):
    """The statement `node` stands in ``with source:``; a ``with`` gets one more item, before that
    of this `index`."""

    source: str
    index: int = 0


@fields
class InsertBefore(Change):
    """The statements `source` stand before the statement `node`."""

    source: str


@fields
class ReplaceStatement(Change):
    """The simple statement `node` becomes `source`."""

    source: str


@fields
class Import(Change):
    """`node`, the module's tree, gets ``import name`` or ``from package import name``."""

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
