"""Values as JSON and back, checked against their type: a peer's message is data, and runs nothing.

A text states the version of its format; another version, a longer text or another type is refused.
Named tuples and dataclasses become lists of their fields, and mappings lists of pairs. A value
without a plain form, such as a tensor, arrives as None.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import json
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

VERSION = 1
"""The version of the format; a text of another one is refused."""
LONGEST = 1 << 24
"""How many characters a text may have."""

_SCALARS = (type(None), bool, int, float, str)
_UNIONS = (Union, types.UnionType)


def dumps(value: Any) -> str:
    """`value` as JSON."""
    return json.dumps([VERSION, _plain(value)], separators=(",", ":"))


def loads(text: object, kind: Any) -> Any:
    """The value of type `kind` that `dumps` wrote.

    Args:
        text: the received object, of any type.
        kind: the type, as annotations write it. `Any` stands for a scalar, or a tuple of such.

    Raises:
        ValueError: it is not of that type.
    """
    if type(text) is not str or len(text) > LONGEST:
        raise ValueError(f"no text to read: {type(text).__name__}")
    try:
        whole = json.loads(text)
        _checked(whole, type(whole) is list and len(whole) == 2 and whole[0] == VERSION)
        return _read(whole[1], kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(one)] for key, one in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_plain(getattr(value, one.name)) for one in dataclasses.fields(value)]
    return None


def _read(data: Any, kind: Any) -> Any:
    """The value of type `kind` from its JSON `data`."""
    origin = get_origin(kind) or kind
    if origin in _UNIONS:
        return _one_of(data, get_args(kind))
    if kind is Any:
        return _anything(data)
    if kind is None or origin in _SCALARS:
        return _scalar(data, kind)
    if origin is Literal:
        return _checked(data, data in get_args(kind) and type(data) is str)
    if origin is bytes:
        return base64.b64decode(_checked(data, type(data) is str), validate=True)
    if is_typeddict(origin):
        return _typed_dict(data, origin)
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return origin(data)
    items = _checked(data, type(data) is list)
    fields = _fields(origin)
    if fields is not None:
        _checked(items, len(items) == len(fields))
        return origin(*map(_read, items, fields))
    if origin is tuple:
        return _tuple(items, get_args(kind))
    if origin in (list, set, frozenset):
        (item,) = get_args(kind)
        return origin([_read(one, item) for one in items])
    if origin is dict:
        key, value = get_args(kind)
        return {_read(a, key): _read(b, value) for a, b in _pairs(items)}
    raise TypeError(f"no plain data: {kind!r}")


def _checked(data: Any, holds: bool) -> Any:
    if not holds:
        raise ValueError(f"not expected here: {type(data).__name__}")
    return data


def _one_of(data: Any, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds:
        try:
            return _read(data, kind)
        except ValueError:
            continue
    return _checked(data, False)


def _anything(data: Any) -> Any:
    if type(data) is list:
        return tuple(map(_anything, data))
    return _checked(data, type(data) in _SCALARS)


def _scalar(data: Any, kind: Any) -> Any:
    if kind is float and type(data) is int:
        return float(data)
    return _checked(data, data is None if kind in (None, type(None)) else type(data) is kind)


def _typed_dict(data: Any, kind: Any) -> dict[str, Any]:
    kinds = _hints(kind)
    pairs = list(_pairs(_checked(data, type(data) is list)))
    _checked(data, all(type(name) is str and name in kinds for name, _ in pairs))
    known = {name: _read(one, kinds[name]) for name, one in pairs}
    _checked(data, kind.__required_keys__ <= known.keys())
    return known


def _tuple(items: list[Any], kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if kinds[-1:] == (...,):
        return tuple(_read(one, kinds[0]) for one in items)
    _checked(items, len(items) == len(kinds))
    return tuple(map(_read, items, kinds))


def _pairs(items: list[Any]) -> list[list[Any]]:
    for pair in items:
        _checked(pair, type(pair) is list and len(pair) == 2)
    return items


@functools.cache
def _fields(kind: Any) -> list[Any] | None:
    """The types of the fields of a named tuple or dataclass; None: it is neither."""
    if dataclasses.is_dataclass(kind):
        names = [one.name for one in dataclasses.fields(kind)]
    elif hasattr(kind, "_fields"):
        names = list(kind._fields)
    else:
        return None
    return [_hints(kind)[name] for name in names]


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
