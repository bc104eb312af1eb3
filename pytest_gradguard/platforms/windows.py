"""Windows, where no process is forked and pipes cannot be looked into."""

from __future__ import annotations

import os

from pytest_gradguard.platforms.base import Platform


class Windows(Platform):
    """Windows: the answers of a platform that has nothing more, and its own folders."""

    name = "Windows"

    def cache_folder(self) -> str:
        return os.environ.get("LOCALAPPDATA", "")
