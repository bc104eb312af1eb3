"""Whether importing a module sets up process-wide state, from its bytes."""

from __future__ import annotations

import re

from gradguard_lint.models.tensorflow import FITS
from gradguard_lint.models.torch_words import HEAVY
from gradguard_lint.project.literals import before, matches

_FUNCTION = rb"[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)"
_MAIN = b"if __name__"


_SETTERS = (
    *(b"VISIBLE_DEVICES", b"set_visible_devices", b"set_memory_growth"),
    *(b"set_start_method", b"JOBLIB_START_METHOD", b"OMP_NUM_THREADS", b"set_num_threads"),
    *(b"random.seed", b"manual_seed", b"seed_everything"),
)
_SETTING_UP = (
    (*_SETTERS, b"cuda", b"cupy"),
    b"|".join(_SETTERS)
    + rb"|(?<=\.)cuda\b|(?<=[\"'])cuda(?=[:\"'])|(?<![\"'])cuda\w*[ \t]*[.(]"
    + rb"|(?<=import )cupy\b|(?<=from )cupy\b|(?<![\w\"'.])cupy[ \t]*\.",
)
"""Text that uses a GPU, or sets visible GPUs, start methods, compute threads or seeds: literals and
pattern."""


_PUTS_IN_FORCE = (b"parallel_config", b"parallel_backend", b"set_grad_enabled")
_IN_FORCE = (_PUTS_IN_FORCE, rb"(?:" + b"|".join(_PUTS_IN_FORCE) + rb")[ \t]*\(")
"""Calls with a lasting effect: literals and pattern."""


_COMPUTING = (
    (
        b" @ ",
        b"tf.",
        b"jnp.",
        *(f".{name}".encode() for name in (*sorted(HEAVY | FITS), "backward")),
    ),
    rb"(?<=[\w)\]]) @ |(?<![\w.])(?:tf|jnp)(?:\.\w+)+[ \t]*\(|\.\w+[ \t]*\(",
)
"""Typical computations with a framework: literals and pattern."""


def sets_up(data: bytes) -> bool:
    """Whether importing a module does one of these, directly, in a parameter's default, or in a
    function that it calls.

    `data` has no comments and docstrings.
    """
    return any(_acts_on_import(data, it) for it in matches(data, *_SETTING_UP)) or any(
        _runs_on_import(data, it.start())
        for what in (_IN_FORCE, _COMPUTING)
        for it in matches(data, *what)
    )


def _acts_on_import(data: bytes, match: re.Match[bytes]) -> bool:
    """Whether that is module-level code or a parameter's default, not a definition's or import's
    name (CuPy is renamed on import)."""
    naming = rb"[ \t]*(?:(?:async[ \t]+)?(?:def|class)[ \t]+\w*$|(?:import|from)[ \t])"
    if match[0] != b"cupy" and re.match(naming, before(data, match.start())):
        return False
    return _function_around(data, match.start()) == b""


def _runs_on_import(data: bytes, place: int) -> bool:
    """Whether the code at `place` runs on import."""
    around = _function_around(data, place)
    if not around:
        return around is not None
    called = rb"(?<![\w.])(?<!def )" + re.escape(around) + rb"[ \t]*\("
    return any(_function_around(data, it.start()) == b"" for it in re.finditer(called, data))


def _function_around(data: bytes, place: int) -> bytes | None:
    """The name of the function around `place`, b"" if there is none; None in a main guard."""
    start = data.rfind(b"\n", 0, place) + 1
    indent = _indent(data, start)
    while indent and start:
        start = data.rfind(b"\n", 0, start - 1) + 1
        around = _indent(data, start)
        if 0 <= around < indent:
            function = re.compile(_FUNCTION).match(data, start)
            if function is not None:
                return function.group(1)
            if data.startswith(_MAIN, start):
                return None
            indent = around
    return b""


def _indent(data: bytes, start: int) -> int:
    """The indentation of the line at `start`; -1 for empty lines."""
    code = re.compile(rb"[ \t]*(?=[^\s)\]}])").match(data, start)
    return len(code.group()) if code is not None else -1
