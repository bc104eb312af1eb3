"""The cache of findings for unchanged files, in a folder of the project.

An entry depends on the content of the file and of every other file that ran with it, on summaries
of files whose names were resolved, on the configuration and on the version. A cache that can't be
read or written is not an error.

The folder may come with an untrusted project. So entries are named and signed with a secret of the
user: only entries that this user's linter wrote are used, and nothing is written through a link.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from typing import Any

from pytest_gradguard.own_files import is_own, is_private, open_no_link
from pytest_gradguard.platforms import HERE

FOLDER = ".gradguard_cache"


def digest(data: bytes | None) -> str:
    """The digest of a file's content; "" for a missing file."""
    return "" if data is None else hashlib.blake2b(data, digest_size=16).hexdigest()


class Cache:
    """The cache below the folder `root`.

    Attributes:
        problem: a problem to report to the user.
    """

    def __init__(self, root: str) -> None:
        self.folder = os.path.join(root, FOLDER)
        self.problem: str | None = None
        self._secret = _secret()
        self._usable = self._secret is not None and self._is_a_folder(self.folder)

    def _is_a_folder(self, path: str) -> bool:
        """Whether `path` is a real folder, or doesn't exist."""
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return True
        if not stat.S_ISDIR(mode):
            what = "a link" if stat.S_ISLNK(mode) else "not a folder"
            self.problem = f"{path} is {what}; the cache is not used"
            return False
        return True

    def _signed(self, *parts: bytes) -> str:
        """The signature of `parts` with the user's secret."""
        keyed = hashlib.blake2b(key=self._secret or b"", digest_size=20)
        for part in parts:
            keyed.update(b"%d:%b" % (len(part), part))
        return keyed.hexdigest()

    def _place(self, path: str, salt: str, data: bytes) -> str:
        name = self._signed(salt.encode(), os.fsencode(os.path.abspath(path)), data)
        return os.path.join(self.folder, name[:2], name + ".json")

    def get(
        self,
        path: str,
        salt: str,
        data: bytes,
        read: Callable[[str], bytes | None],
        summary: Callable[[str], str],
    ) -> Any:
        """The stored result for this content of `path`, or None. `salt` is all that findings depend
        on beside files; `read` returns other files, and `summary` their summaries."""
        if not self._usable:
            return None
        place = self._place(path, salt, data)
        try:
            with open(place, encoding="utf-8", opener=open_no_link) as stream:
                signed = json.load(stream)
            text = signed["entry"]
            if signed["signature"] != self._signed(os.fsencode(place), text.encode()):
                raise ValueError("it was not written by this user's linter")
            entry = json.loads(text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.problem = f"{self.folder} holds entries that are damaged; they are not used"
            return None
        for other, known in entry["used"].items():
            if digest(read(other)) != known:
                return None
        for other, (known, old_summary) in entry["asked"].items():
            if digest(read(other)) != known and summary(other) != old_summary:
                return None
        if any(os.path.exists(other) for other in entry["absent"]):
            return None
        return entry["result"]

    def put(
        self,
        path: str,
        salt: str,
        data: bytes,
        used: dict[str, bytes | None],
        asked: dict[str, tuple[bytes | None, str]],
        absent: list[str],
        result: Any,
    ) -> None:
        """Store `result` for this content of `path`; `asked` are files with summaries."""
        if not self._usable:
            return
        place = self._place(path, salt, data)
        text = json.dumps(
            {
                "used": {other: digest(content) for other, content in used.items()},
                "asked": {
                    it: (digest(content), digest_of_names)
                    for it, (content, digest_of_names) in asked.items()
                },
                "absent": absent,
                "result": result,
            }
        )
        signature = self._signed(os.fsencode(place), text.encode())
        try:
            new = not os.path.isdir(self.folder)
            for folder in (self.folder, os.path.dirname(place)):
                os.makedirs(folder, exist_ok=True)
                if not self._is_a_folder(folder):
                    self._usable = False
                    return
            if new:
                _write(os.path.join(self.folder, ".gitignore"), b"*\n")
            _write(place, json.dumps({"signature": signature, "entry": text}).encode())
        except OSError:
            return


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write(path: str, data: bytes) -> None:
    """Replace the file `path` atomically, without following links."""
    temporary = f"{path}.{os.urandom(8).hex()}"
    with open(temporary, "xb", opener=_private) as stream:
        stream.write(data)
    os.replace(temporary, path)


# -- the secret ------------------------------------------------------------------------------------

_SECRET_BYTES = 32


def _secret() -> bytes | None:
    """The user's secret, created on first use; None if there is no place for one."""
    home = HERE.cache_folder()
    if not os.path.isabs(home):
        return None
    path = os.path.join(home, "gradguard", "cache-secret")
    try:
        return _read_secret(path) or _new_secret(path)
    except OSError:
        return None


def _read_secret(path: str) -> bytes | None:
    """The secret at `path`; None if there is no private one.

    Raises:
        OSError: it belongs to another user, or can't be read.
    """
    try:
        with open(path, "rb", opener=open_no_link) as stream:
            status = os.fstat(stream.fileno())
            data = stream.read(_SECRET_BYTES + 1)
    except FileNotFoundError:
        return None
    if not is_own(status):
        raise PermissionError("the secret is another user's")
    return data if is_private(status) and len(data) == _SECRET_BYTES else None


def _new_secret(path: str) -> bytes | None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    _write(path, os.urandom(_SECRET_BYTES))
    return _read_secret(path)  # of two created at once, the later one wins
