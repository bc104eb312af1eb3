"""Which pitfalls the linter and the guard of this version really look for.

The catalogue says where each pitfall is to be reported; what stands is asked of the detectors.
"""

from __future__ import annotations

import pkgutil
from importlib.util import find_spec
from pathlib import Path

from pytest_gradguard.pitfalls import Pitfall, codes

__all__ = ["lint_note", "lint_rules", "runtime_checks", "runtime_note"]

_CUDA = (
    "It sees torch initialise CUDA, CuPy take its first memory, and TensorFlow take its GPUs as its"
    " context begins."
)
_SCOPES = {
    "GG104": "This version watches torch and TensorFlow.",
    "GG110": "This version watches Keras 3.",
    "GG201": (
        f"{_CUDA} Where there is no GPU: every attempt of torch's, every allocation of CuPy's, and "
        "what CuPy or TensorFlow raises where the task does not catch it. TensorFlow runs on the "
        "CPU what asks for a GPU, unless soft placement is off: that is no attempt. Not seen: what "
        "takes a stream, but no memory; memory under `cupy.cuda.using_allocator`; what TensorFlow "
        "does as tensors arrive, before the task."
    ),
    "GG202": (
        "It sees torch's tensors, CuPy's arrays, and TensorFlow's tensors and variables (Keras "
        "models by their first variable)."
    ),
    "GG203": f"{_CUDA} Of CuPy it knows only what happens while the guard is on.",
    "GG204": f"{_CUDA} Of TensorFlow's own `set_visible_devices` it says nothing: TensorFlow does.",
    "GG305": "This version watches generators of `random`, NumPy and torch.",
}
"""Where the guard looks at less than the catalogue's words say."""


def lint_rules() -> frozenset[str]:
    """The codes that have a rule: one module each in ``gradguard_lint.rules``, named after it."""
    package = find_spec("gradguard_lint")
    if package is None or package.submodule_search_locations is None:
        return frozenset()
    folders = [str(Path(folder) / "rules") for folder in package.submodule_search_locations]
    stems = {module.name for module in pkgutil.iter_modules(folders)}
    return frozenset(code for code in codes() if any(_names(stem, code) for stem in stems))


def runtime_checks() -> frozenset[str]:
    """The codes that the guard checks."""
    from pytest_gradguard.runtime import CHECKS

    return frozenset(CHECKS)


def lint_note(pitfall: Pitfall) -> str:
    """A few sentences: where the linter reports `pitfall`, or that it does not."""
    if pitfall.lint is None:
        return "Not reported by the linter."
    if pitfall.code in lint_rules():
        return pitfall.lint
    return f"Not checked by the linter in this version. Planned: {_lower_first(pitfall.lint)}"


def runtime_note(pitfall: Pitfall) -> str:
    """A few sentences: when the guard reports `pitfall`, or that it does not."""
    if pitfall.runtime is None:
        return "Not reported at run time."
    if pitfall.code in runtime_checks():
        return f"{pitfall.runtime} {_SCOPES.get(pitfall.code, '')}".rstrip()
    return f"Not checked at run time in this version. Planned: {_lower_first(pitfall.runtime)}"


def _names(stem: str, code: str) -> bool:
    return stem.split("_", maxsplit=1)[0] == code.lower()


def _lower_first(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
