"""Findings of files that have not changed, kept in a folder of the project.

An entry holds what a file's findings were read from: the content of the file itself and of every
other file that was consulted. It is used while all of these, the configuration and the version
are the same. A cache that cannot be read or written is no cache; it is never an error.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

FOLDER = ".gradguard_cache"


def digest(data: bytes | None) -> str:
    """What stands for a file's content; a file that is not there has one too."""
    return "" if data is None else hashlib.blake2b(data, digest_size=16).hexdigest()


class Cache:
    """The cache of one run. `salt` is everything else that findings depend on."""

    def __init__(self, root: str, salt: str) -> None:
        self.folder = os.path.join(root, FOLDER)
        self.salt = salt

    def _place(self, path: str, data: bytes) -> str:
        name = digest(
            b"\0".join((self.salt.encode(), os.path.abspath(path).encode(), digest(data).encode()))
        )
        return os.path.join(self.folder, name[:2], name + ".json")

    def get(self, path: str, data: bytes, read: Callable[[str], bytes | None]) -> Any:
        """What was stored for this content of `path`, or None."""
        try:
            with open(self._place(path, data), encoding="utf-8") as stream:
                entry = json.load(stream)
            for other, known in entry["used"].items():
                if digest(read(other)) != known:
                    return None
            for other in entry["absent"]:
                if os.path.exists(other):
                    return None
            return entry["result"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def put(
        self,
        path: str,
        data: bytes,
        used: dict[str, bytes | None],
        absent: list[str],
        result: Any,
    ) -> None:
        """Store `result` for this content of `path`."""
        place = self._place(path, data)
        entry = {
            "used": {other: digest(content) for other, content in used.items()},
            "absent": absent,
            "result": result,
        }
        try:
            new = not os.path.isdir(self.folder)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if new:
                with open(os.path.join(self.folder, ".gitignore"), "w") as stream:
                    stream.write("*\n")
            temporary = f"{place}.{os.getpid()}"
            with open(temporary, "w", encoding="utf-8") as stream:
                json.dump(entry, stream)
            os.replace(temporary, place)
        except OSError:
            return
