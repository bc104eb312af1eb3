"""Makes gradguard believe that it runs on macOS or Windows, in a process and all that it starts.

Python imports this as it begins, where this folder is in `PYTHONPATH`; `GRADGUARD_SIMULATED` names
the platform as `sys.platform` does. gradguard's own code then sees what Python has there, and no
more. All other code sees the real platform, because libraries need it. The default start method is
spawn for all code; on Windows, multiprocessing has no other.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from types import FrameType, ModuleType
from typing import Any

import missing_names

OURS = ("pytest_gradguard", "gradguard_lint", "conftest", "children", "shared_results")
"""gradguard's packages, and what every test needs."""
SYSTEMS = {"win32": ("nt", "Windows"), "darwin": ("posix", "Darwin")}


def is_ours(frame: FrameType | None) -> bool:
    """Whether the code of a frame is one of `OURS`."""
    name = frame.f_globals.get("__name__") if frame is not None else None
    return isinstance(name, str) and name.partition(".")[0] in OURS


def simulate(platform: str) -> None:
    """Let gradguard see that platform from now on."""
    for name in missing_names.incomplete_modules(platform) | {"sys", "os", "platform"}:
        importlib.import_module(name).__class__ = _seen_on(platform, name)
    _refuse_modules(platform)
    sys.addaudithook(_without_proc)
    _spawn(forks=platform != "win32")


def _seen_on(platform: str, module: str) -> type[ModuleType]:
    """The class of a module that shows gradguard's code what it has on that platform."""
    os_name, system = SYSTEMS[platform]
    other: dict[tuple[str, str], Any] = {
        ("sys", "platform"): platform,
        ("os", "name"): os_name,
        ("platform", "system"): lambda: system,
        ("platform", "platform"): lambda: f"{system}-simulated",
    }

    class Seen(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            missing = missing_names.lacks(platform, module, name)
            if (missing or (module, name) in other) and is_ours(sys._getframe(1)):
                if missing:
                    raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
                return other[module, name]
            return super().__getattribute__(name)

    return Seen


def _refuse_modules(platform: str) -> None:
    """Let gradguard's code import no module that the platform lacks."""
    original, by_name = builtins.__import__, importlib.import_module

    def check(name: str) -> None:
        if missing_names.lacks_module(platform, name) and is_ours(sys._getframe(2)):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def import_(name: str, *arguments: Any, **more: Any) -> Any:
        check(name)
        return original(name, *arguments, **more)

    def import_module(name: str, package: str | None = None) -> Any:
        check(name)
        return by_name(name, package)

    builtins.__import__, importlib.import_module = import_, import_module


def _without_proc(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: gradguard finds nothing in /proc."""
    if event in ("open", "os.listdir", "os.scandir") and arguments:
        path = arguments[0]
        if isinstance(path, str) and path.startswith("/proc") and is_ours(sys._getframe(1)):
            raise FileNotFoundError(2, "No such file or directory", path)


def _spawn(*, forks: bool) -> None:
    """Make spawn the start method of multiprocessing where nobody sets another."""
    import multiprocessing
    from multiprocessing import context

    default: Any = context._default_context
    default._default_context = context._concrete_contexts["spawn"]
    names = ["spawn", "fork", "forkserver"] if forks else ["spawn"]
    for name in set(context._concrete_contexts).difference(names):
        del context._concrete_contexts[name]
    default.get_all_start_methods = multiprocessing.get_all_start_methods = lambda: list(names)


if os.environ.get("GRADGUARD_SIMULATED"):
    simulate(os.environ["GRADGUARD_SIMULATED"])
