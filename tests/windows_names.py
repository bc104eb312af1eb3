"""Python with no more than every platform has: ``python windows_names.py -m MODULE [ARG ...]``.

What Windows lacks is taken out of `os` and `signal`, and its modules are blocked, once the packages
that gradguard works with are imported: these know their platform themselves.
"""

from __future__ import annotations

import importlib
import importlib.abc
import os
import pkgutil
import runpy
import signal
import sys
import traceback
from types import ModuleType
from typing import Any

NAMES = (
    *("fork", "forkpty", "getuid", "geteuid", "getgid", "getegid", "getpgid", "killpg", "setsid"),
    *(
        "register_at_fork",
        "sched_getaffinity",
        "uname",
        "sysconf",
        "set_blocking",
        "mkfifo",
        "nice",
    ),
    *("WNOHANG", "O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "RTLD_LAZY", "RTLD_NOLOAD"),
)
SIGNALS = ("SIGKILL", "SIGHUP", "SIGALRM", "SIGCHLD", "SIGUSR1", "pthread_sigmask", "alarm")
FIRST = ("concurrent.futures.process", "subprocess", "tempfile", "joblib", "pytest", "torch")
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "syslog", "posix")


class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, *_: Any) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def take_away() -> None:
    for module, names in ((os, NAMES), (signal, SIGNALS)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Absent())


def import_all(*packages: ModuleType) -> None:
    """Import each module; what others lack, and what is not installed, is passed over."""
    own = tuple(str(package.__path__[0]) for package in packages)
    for package in packages:
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if info.name.endswith("__main__"):
                continue
            try:
                __import__(info.name)
            except (ImportError, AttributeError) as error:
                where = traceback.extract_tb(error.__traceback__)
                files = [frame.filename for frame in where if "<frozen" not in frame.filename]
                *_, culprit = [file for file in files if file != __file__] or [""]
                absent = isinstance(error, ModuleNotFoundError) and error.name not in MODULES
                absent = absent or "which is not installed" in str(error)
                if culprit.startswith(own) and not absent:
                    raise


if __name__ == "__main__":
    for name in FIRST:
        importlib.import_module(name)
    take_away()
    if sys.argv[1:] == ["import"]:
        import gradguard_lint
        import pytest_gradguard

        import_all(pytest_gradguard, gradguard_lint)
    else:
        _, _, name, *arguments = sys.argv
        sys.argv[1:] = arguments
        runpy.run_module(name, run_name="__main__", alter_sys=True)
