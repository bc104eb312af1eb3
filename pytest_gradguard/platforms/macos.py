"""What macOS has, and what it does otherwise than Linux."""

from __future__ import annotations

import os

from pytest_gradguard.platforms.posix import Posix


class MacOS(Posix):
    """macOS, where processes can be forked but are not by default."""

    name = "macOS"
    linter_start = None  # the system's own libraries may crash in a forked process
    may_have_mps = True

    def start_method(self, python: tuple[int, int] | None) -> str:
        return "spawn"

    def cache_folder(self) -> str:
        return os.path.expanduser("~/Library/Caches")
