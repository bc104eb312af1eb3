"""The parts above the kernel, which imports none of them: `runtime` sets how they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

load: Callable[[str], Any]
"""Imports a package of `runtime`, by its name there, as soon as the kernel needs it."""
