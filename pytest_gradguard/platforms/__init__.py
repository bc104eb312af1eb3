"""The operating system: all that not every platform has, with an answer where it is missing.

Nothing else in gradguard asks for the platform, or uses what only some of them have
(`tests/platforms/test_portable_source.py`). What is lost where is in docs/platforms.md.
"""

from __future__ import annotations

import sys

from pytest_gradguard.platforms.base import Platform

__all__ = ["HERE", "Platform"]


def _here() -> Platform:
    if sys.platform == "win32":
        from pytest_gradguard.platforms.windows import Windows

        return Windows()
    if sys.platform == "darwin":
        from pytest_gradguard.platforms.macos import MacOS

        return MacOS()
    if sys.platform == "linux":
        from pytest_gradguard.platforms.linux import Linux

        return Linux()
    from pytest_gradguard.platforms.posix import Posix

    return Posix()


HERE = _here()
"""The platform that this process runs on."""
