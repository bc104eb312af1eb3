"""Files and folders of this user alone, which processes share."""

from __future__ import annotations

import os
import stat

from pytest_gradguard.platforms import HERE


def is_own(about: os.stat_result) -> bool:
    """Whether a file belongs to this user; on Windows each user has folders of their own."""
    return HERE.user() in (None, about.st_uid)


def is_private(about: os.stat_result) -> bool:
    """Whether a file belongs to this user, and nobody else can read or enter it."""
    return is_own(about) and (HERE.user() is None or not about.st_mode & 0o077)


def is_private_folder(about: os.stat_result) -> bool:
    """Whether `about`, from `lstat`, is a folder of this user that others cannot enter."""
    return stat.S_ISDIR(about.st_mode) and is_private(about)


def open_no_link(path: str, flags: int) -> int:
    """Open `path`, unless it is a link; never wait for a pipe."""
    return os.open(path, flags | HERE.safe_open)
