"""The globals that a piece of code names, and attributes of them, from its bytecode."""

from __future__ import annotations

import dis
import functools
import importlib.util
import itertools
import types
from typing import Any, NamedTuple

LOADS_VALUES = frozenset({"load_state_dict", "load_weights", "set_weights"})
"""Methods that give a model the values of another, like an assignment."""

Chain = tuple[str, ...]


class Globals(NamedTuple):
    """How a piece of code uses globals, by their names and attributes.

    Attributes:
        loaded: the globals that it loads.
        stored: those that it assigns.
        handed: pairs of a global that it calls, and the global passed as first argument.
    """

    loaded: tuple[Chain, ...]
    stored: tuple[Chain, ...]
    handed: tuple[tuple[Chain, Chain], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The globals alone, without attributes."""
        return tuple(dict.fromkeys(chain[0] for chain in (*self.loaded, *self.stored)))


class Attributes(NamedTuple):
    """How a function uses attributes of its first argument: which it loads, and stores.

    An empty chain in `loaded`: it uses the argument as a whole.
    """

    loaded: tuple[Chain, ...]
    stored: tuple[Chain, ...]


@functools.lru_cache(maxsize=1_000)
def globals_in(code: types.CodeType) -> Globals:
    """How `code` and its nested functions use globals."""
    loaded: list[Chain] = []
    stored: list[Chain] = []
    handed: list[tuple[Chain, Chain]] = []
    previous: tuple[int, Chain] = (-1, ())
    instructions = _instructions_of(code)
    for index, instruction in enumerate(instructions):
        if instruction.opname == "STORE_GLOBAL":
            stored.append((str(instruction.argval),))
        elif instruction.opname in _GLOBAL_LOADS:
            chain, is_stored = _chain_at(instructions, index)
            names = (str(instruction.argval), *chain)
            if previous[0] == index:
                handed.append((previous[1], names))
            previous = (index + 1 + len(chain), names)
            (stored if is_stored else loaded).append(names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = globals_in(constant)
            loaded += inner.loaded
            stored += inner.stored
            handed += inner.handed
    once = dict.fromkeys
    return Globals(tuple(once(loaded)), tuple(once(stored)), tuple(once(handed)))


class Import(NamedTuple):
    """A local name that an import inside a function binds.

    Attributes:
        code: the function's, or that of a nested one.
        local: the name.
        module: the imported module, without leading dots.
        level: how many dots there are.
        name: the name imported from the module; None for the module itself.
    """

    code: types.CodeType
    local: str
    module: str
    level: int
    name: str | None


@functools.lru_cache(maxsize=1_000)
def imports_in(code: types.CodeType) -> tuple[Import, ...]:
    """The imports that bind local names in `code` and its nested functions."""
    found: list[Import] = []
    instructions = _instructions_of(code)
    for index, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            module = str(instruction.argval)
            level, names = (one.argval for one in instructions[index - 2 : index])
            name: str | None = None
            follows = instructions[index + 1].opname
            if names is None and follows != "IMPORT_FROM":  # `import a.b` binds `a`
                module = module.partition(".")[0]
        elif instruction.opname == "IMPORT_FROM":
            name = None if names is None else str(instruction.argval)  # `import a.b as c`
        elif instruction.opname in ("STORE_FAST", "STORE_DEREF") and _imported_at(
            instructions, index
        ):
            found.append(Import(code, str(instruction.argval), module, level, name))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += imports_in(constant)
    return tuple(found)


def absolute_name(module: str, level: int, package: str | None) -> str:
    """The module that an import in `package` names; empty if there is none.

    Args:
        module: the name without leading dots.
        level: how many dots there are.
        package: the package of the module with the import.
    """
    try:
        return importlib.util.resolve_name("." * level + module, package)
    except ImportError:
        return ""


def _imported_at(instructions: list[Any], index: int) -> bool:
    """Whether the value stored at `index` comes from an import."""
    before = [one.opname for one in instructions[max(0, index - 3) : index]]
    as_submodule = before[-1:] == ["POP_TOP"] and before[:1] == ["IMPORT_FROM"]
    return before[-1:] in (["IMPORT_NAME"], ["IMPORT_FROM"]) or as_submodule


_WHOLE = Attributes(((),), ())


@functools.lru_cache(maxsize=1_000)
def attributes_in(code: types.CodeType, name: str | None = None) -> Attributes:
    """How `code` uses the attributes of its first argument, or of the variable `name`."""
    name = name or code.co_varnames[0]
    if "__class__" in code.co_freevars:  # also through `super()`
        return _WHOLE
    cell = name in code.co_cellvars or name in code.co_freevars
    loaded: list[Chain] = []
    stored: list[Chain] = []
    instructions = _instructions_of(code)
    for index, instruction in enumerate(instructions):
        argument = instruction.argval
        together = argument if isinstance(argument, tuple) else (argument,)
        if name not in together or "CLOSURE" in instruction.opname:
            continue
        if cell and "FAST" in instruction.opname:  # 3.13 passes the cell to a closure this way
            continue
        if instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            if together[-1] != name:
                return _WHOLE
            chain, is_stored = _chain_at(instructions, index)
            (stored if is_stored else loaded).append(chain)
        elif instruction.opname.startswith(("STORE_", "DELETE_")) and not _imported_at(
            instructions, index
        ):
            return _WHOLE
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType) and name in constant.co_freevars:
            inner = attributes_in(constant, name)
            loaded += inner.loaded
            stored += inner.stored
    once = dict.fromkeys
    return Attributes(tuple(once(loaded)), tuple(once(stored)))


@functools.lru_cache(maxsize=1_000)
def keys_in(code: types.CodeType, names: Chain) -> frozenset[tuple[Any, ...]] | None:
    """The constant keys by which `code` looks up the dict at `names`: a name and attributes.

    Returns:
        Tuples of one key, or several for nested dicts; None if the code uses it in any other way,
        too.
    """
    found: set[tuple[Any, ...]] = set()
    instructions = _instructions_of(code)
    local = any(one.local == names[0] for one in imports_in(code))
    loads = _LOCAL_LOADS if local else _GLOBAL_LOADS
    for index, instruction in enumerate(instructions):
        if not instruction.opname.startswith(loads) or instruction.argval != names[0]:
            continue
        chain, _ = _chain_at(instructions, index)
        if chain[: len(names) - 1] != names[1:]:
            continue
        keys = _keys_at(instructions, index + 1 + len(chain), chain[len(names) - 1 :])
        if not keys:
            return None
        found.add(keys)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = keys_in(constant, names)
            if inner is None:
                return None
            found |= inner
    return frozenset(found)


def _keys_at(instructions: list[Any], index: int, attributes: Chain) -> tuple[Any, ...]:
    """The constant keys looked up at `index`, after these attributes of a dict."""
    keys: list[Any] = []
    while not attributes and _is_lookup(instructions[index : index + 2]):
        keys.append(instructions[index].argval)
        index += 2
        if instructions[index].opname in _ATTRIBUTES:
            attributes = (str(instructions[index].argval),)
            index += 1
    if attributes == ("get",) and instructions[index].opname in _CONSTANTS:
        keys.append(instructions[index].argval)
    return tuple(keys)


_CONSTANTS = ("LOAD_CONST", "LOAD_SMALL_INT")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_GLOBAL_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_LOCAL_LOADS = ("LOAD_FAST", "LOAD_DEREF")


def _is_lookup(instructions: list[Any]) -> bool:
    if len(instructions) < 2 or instructions[0].opname not in _CONSTANTS:
        return False
    return instructions[1].opname == "BINARY_SUBSCR" or str(instructions[1].argrepr) == "[]"


def _instructions_of(code: types.CodeType) -> list[Any]:
    return [one for one in dis.get_instructions(code) if one.opname != "PUSH_NULL"]


def _chain_at(instructions: list[Any], index: int) -> tuple[Chain, bool]:
    """The attributes loaded after the instruction at `index`; whether it stores there."""
    rest = itertools.islice(instructions, index + 1, None)
    taken = itertools.takewhile(lambda one: one.opname in _ATTRIBUTES, rest)
    chain = tuple(str(one.argval) for one in taken)
    after = instructions[index + 1 + len(chain) :][:2]
    if after and after[0].opname == "STORE_ATTR":
        return (*chain, str(after[0].argval)), True
    return chain, len(after) > 1 and after[1].opname == "STORE_SUBSCR"
