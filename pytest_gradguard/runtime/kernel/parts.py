"""What stands on the kernel, which imports none of it: `runtime` says how each part is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

load: Callable[[str], Any]
"""Imports a package of `runtime`, by its name there, as soon as the kernel needs to know it."""
