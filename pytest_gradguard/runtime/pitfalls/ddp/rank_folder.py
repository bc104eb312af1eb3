"""The folder of files through which ranks of one machine report their findings."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_gradguard.findings import Finding, merge
from pytest_gradguard.own_files import is_own, is_private_folder, open_no_link
from pytest_gradguard.runtime.kernel import plain_data

VARIABLE = "GRADGUARD_RANKS"
"""The environment variable with the folder, for a program started under the guard."""
PREFIX = "gradguard-ranks-"


def is_private(folder: Path) -> bool:
    """Whether `folder` is a directory of this user alone, with only this user's files in it."""
    if not is_private_folder(folder.lstat()):
        return False
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # another rank has replaced it
            about = file.lstat()
            if not stat.S_ISREG(about.st_mode) or not is_own(about):
                return False
    return True


def write(file: Path, known: Any) -> None:
    """Write `known` to `file`, which others may read at the same time."""
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(new, "x", encoding="ascii") as written:
        written.write(plain_data.dumps(known))
    new.replace(file)


def read(folder: Path) -> list[Finding]:
    """The findings of all ranks, in the order of their numbers."""
    numbered = [(one.name.partition("-")[0], one) for one in folder.glob("*.findings")]
    files = [one for _, one in sorted(numbered, key=lambda pair: (len(pair[0]), *pair))]
    kept = [found for file in files for found in contents(file, list[Finding])]
    return merge(finding for found in kept for finding in found)


def contents(file: Path, kind: Any) -> list[Any]:
    """The contents that `write` wrote to `file`; nothing if it is not this user's regular file."""
    with suppress(OSError, ValueError), open(file, encoding="ascii", opener=open_no_link) as kept:
        about = os.fstat(kept.fileno())
        if stat.S_ISREG(about.st_mode) and is_own(about):
            return [plain_data.loads(kept.read(plain_data.LONGEST + 1), kind)]
    return []
