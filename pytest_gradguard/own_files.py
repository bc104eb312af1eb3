"""Files and folders of this user alone, which processes share."""

from __future__ import annotations

import os
import stat


def is_own(about: os.stat_result) -> bool:
    """Whether a file belongs to this user; on Windows each user has a temporary folder."""
    return not hasattr(os, "getuid") or about.st_uid == os.getuid()


def is_private_folder(about: os.stat_result) -> bool:
    """Whether `about`, from `lstat`, is a folder of this user that others cannot enter."""
    if not stat.S_ISDIR(about.st_mode) or not is_own(about):
        return False
    return not hasattr(os, "getuid") or not about.st_mode & 0o077
