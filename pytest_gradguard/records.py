"""Classes that are their fields: the constructor, equality and a hash that is computed once.

The standard library's dataclasses do the same, but importing them and making forty classes takes
longer than the analysis of a usual file.
"""

from __future__ import annotations

from operator import attrgetter

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from typing_extensions import dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**_):
        return lambda decorator: decorator


class _Fresh:
    def __init__(self, factory: Callable[[], Any]) -> None:
        self.factory = factory


def field(*, default_factory: Callable[[], T]) -> T:
    """A field whose default is made anew for each object."""
    made: Any = _Fresh(default_factory)
    return made  # type: ignore[no-any-return]


class Record:
    """What never changes once it is made, and is equal where its fields are."""

    _fields: Callable[[Any], Any]
    _hash: int
    _same: object = object()
    """One that was found equal: two that share most of their parts are not walked part by part."""

    def __eq__(self, other: object) -> bool:
        if self is other or self._same is other:
            return True
        if type(self) is not type(other):
            return False
        try:
            if self._hash != other._hash:
                return False
        except AttributeError:
            pass  # not both are known so far
        fields = self._fields
        equal = bool(fields(self) == fields(other))
        if equal:
            self._same = other
        return equal

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = found = hash(self._fields(self))
            return found


def replace(record: T, **changes: Any) -> T:
    """A copy of `record`, of a class with `fields`, with other values of some of them."""
    made = object.__new__(type(record))
    own = made.__dict__
    own.update(record.__dict__)
    for name in _LEARNED:
        own.pop(name, None)
    own.update(changes)
    return made


_LEARNED = ("_hash", "_same")
"""What a `Record` has found out about itself."""


def _names(cls: type) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(cls, "__match_args__", ())
    return names


def _shown(self: object) -> str:
    fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in _names(type(self)))
    return f"{type(self).__name__}({fields})"


@dataclass_transform(field_specifiers=(field,))
def fields(cls: type[T]) -> type[T]:
    """Give `cls` a constructor that takes its annotated fields, after those of the class with
    fields that it extends; equality stays as it is."""
    cls.__match_args__ = (*_names(cls), *cls.__annotations__)  # type: ignore[attr-defined, misc]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        made: Any = cls
        made.__init__ = made_for = _constructor(cls)  # few classes of many are ever used
        made_for(self, *args, **kwargs)

    cls.__init__ = __init__  # type: ignore[method-assign]
    cls.__repr__ = _shown  # type: ignore[method-assign]
    return cls


def _constructor(cls: type) -> Callable[..., None]:
    """``__init__`` of `cls`, written out: what dataclasses do, in one step."""
    namespace: dict[str, Any] = {}
    parameters, body = [], []
    for name in _names(cls):
        value = name
        if hasattr(cls, name):
            default = namespace[f"_{name}"] = getattr(cls, name)
            parameters.append(f"{name}=_{name}")
            if isinstance(default, _Fresh):
                namespace[f"_{name}"] = None
                namespace[f"_new_{name}"] = default.factory
                value = f"_new_{name}() if {name} is None else {name}"
        else:
            parameters.append(name)
        body.append(f" self.{name} = {value}")
    made = "\n".join((f"def __init__(self, {', '.join(parameters)}):", *body))
    exec(made, namespace)
    constructor: Callable[..., None] = namespace["__init__"]
    return constructor


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """As `fields`, for a `Record`."""
    made = fields(cls)
    made._fields = attrgetter(*_names(cls))  # type: ignore[attr-defined]
    return made
