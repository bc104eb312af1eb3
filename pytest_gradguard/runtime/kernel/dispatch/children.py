"""The watched processes that this one has started."""

from __future__ import annotations

import sys
from typing import Any

process_modules: set[str] = set()
"""The modules whose processes are watched."""


def children() -> list[Any]:
    """The processes that this one has started."""
    modules = [sys.modules.get(name) for name in process_modules]
    return [child for module in modules for child in list(getattr(module, "_children", ()))]


def forked_workers(call: Any) -> list[Any]:
    """The worker processes of `call` that were forked, while it runs."""
    workers = children() if call.workers is None else call.workers()
    return [one for one in list(workers) if getattr(one, "_start_method", None) == "fork"]
