"""Programs that the guarded program starts by `subprocess` as ranks: guarded, they report here.

`torch.distributed.run` starts its ranks this way, too. A program is guarded if its environment
makes it a rank, if it launches ranks, or if it is the guarded program itself.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest_gradguard
from pytest_gradguard.runtime.kernel import collector, simulated_devices
from pytest_gradguard.runtime.kernel.by_identity import ByIdentity
from pytest_gradguard.runtime.kernel.callsite import is_user_file
from pytest_gradguard.runtime.kernel.collector import Collector
from pytest_gradguard.runtime.kernel.faults import attempt, theirs_only
from pytest_gradguard.runtime.kernel.observing import Arguments, observe
from pytest_gradguard.runtime.kernel.patching import LatePatches
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.severity import Severity

if TYPE_CHECKING:
    from pytest_gradguard.findings import Finding

_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_SCRIPTS = ("torchrun", "accelerate", "accelerate-launch")
"""The scripts that pip installs for `_LAUNCHERS`."""
_FLAGS = ("-u", "-B", "-O", "-OO")
_OF_A_RANK = ("RANK", "WORLD_SIZE")
_at_start = os.environ.get("RANK")
"""The rank of this process; a program that inherits it is no rank of its own."""


# -- which programs ----------------------------------------------------------------------------


def _guarded_command(args: Any, options: Mapping[str, Any]) -> list[str] | None:
    """The command that runs the program under the guard; None to leave it unguarded."""
    if options.get("shell") or options.get("executable") or not isinstance(args, (list, tuple)):
        return None
    command = [word if type(word) is str else os.fspath(word) for word in args]
    if not command or not all(type(word) is str for word in command):
        return None
    name = os.path.basename(command[0])
    if not (name.startswith("py") or name in _SCRIPTS):
        return None
    import shutil  # only now: as `tempfile`, it loads modules that many programs do not need

    environment = options.get("env") or os.environ
    folder = options.get("cwd") or os.curdir
    found = shutil.which(command[0], path=environment.get("PATH"))
    if found is None or not _finds_the_guard(environment):
        return None
    if _is_python(found):
        first = _end_of_flags(command)
        program = command[first:]
        if not program or not _is_rank(program, environment, os.fspath(folder)):
            return None
        flags = command[1:first]
    elif _is_script_of_ours(found):
        flags, program = [], [found, *command[1:]]
    else:
        return None
    devices = simulated_devices.pretended()
    simulated = ("--simulate-gpu", str(devices)) if devices else ()
    return [sys.executable, *flags, "-m", "pytest_gradguard", "run", *simulated, *program]


def _is_python(file: str) -> bool:
    """Whether `file` is this environment's interpreter."""
    ours = sys.executable
    return os.path.dirname(file) == os.path.dirname(ours) and os.path.samefile(file, ours)


def _is_script_of_ours(file: str) -> bool:
    ours = os.fsencode(sys.executable)
    with open(file, "rb") as script:
        first, second = script.readline().strip(), script.readline().strip()
    # The second form is for paths that are long or contain blanks.
    return first == b"#!" + ours or second in (
        b"'''exec' " + quote + ours + quote + b' "$0" "$@"' for quote in (b"", b'"')
    )


def _finds_the_guard(environment: Mapping[str, str]) -> bool:
    """Whether this interpreter can import the guard in that environment."""
    ours = os.environ.get("PYTHONPATH", "")
    if environment.get("PYTHONPATH", "") == ours:
        return True
    home = os.path.dirname(os.path.dirname(os.path.abspath(pytest_gradguard.__file__)))
    return home not in map(os.path.abspath, filter(None, ours.split(os.pathsep)))


def _end_of_flags(command: list[str]) -> int:
    """Where the program begins in a Python command, after known flags."""
    at = 1
    while at < len(command) and (command[at] in _FLAGS or command[at][:2] in ("-W", "-X")):
        at += 2 if command[at] in ("-W", "-X") else 1
    return at


def _is_rank(program: list[str], environment: Mapping[str, str], folder: str) -> bool:
    main: Any = sys.modules.get("__main__")
    if program[0] == "-m":
        name = program[1] if len(program) > 1 else ""
        spec = getattr(main, "__spec__", None)
        if name in _LAUNCHERS or (spec is not None and spec.name in (name, f"{name}.__main__")):
            return True
        return _becomes_rank(environment) and _is_users(name.partition(".")[0], folder)
    if program[0].startswith("-"):
        return False
    script = os.path.realpath(os.path.join(folder, program[0]))
    own = getattr(main, "__file__", None)
    if own is not None and script == os.path.realpath(own):
        return True
    return _becomes_rank(environment) and is_user_file(script)


def _becomes_rank(environment: Mapping[str, str]) -> bool:
    numbers = [environment.get(name, "") for name in _OF_A_RANK]
    return all(map(str.isdecimal, numbers)) and numbers[0] != _at_start


def _is_users(package: str, folder: str) -> bool:
    """Whether a package that Python runs in `folder` is the user's."""
    if package in sys.stdlib_module_names or not package:
        return False
    from importlib.util import find_spec

    known = sys.modules.get(package)
    spec = find_spec(package) if known is None else known.__spec__
    return spec is None or spec.origin is None or is_user_file(spec.origin)


# -- their findings -------------------------------------------------------------------------------


class _Programs:
    """Programs that report to one collector, through a folder.

    Args:
        home: the collector.
        ignore: codes that are left out.
    """

    def __init__(self, home: Collector, ignore: frozenset[str]) -> None:
        import tempfile
        from pathlib import Path

        from pytest_gradguard.runtime.pitfalls.ddp import rank_folder

        self._files: Any = rank_folder
        self._process = os.getpid()
        self._known: list[Finding] = []
        self._home = weakref.ref(home)
        self._ignore = ignore
        self._folder = Path(tempfile.mkdtemp(prefix=rank_folder.PREFIX))
        self.environment = {rank_folder.VARIABLE: str(self._folder)}
        atexit.register(attempt, self._close)
        home.listen(self.findings)

    def findings(self) -> list[Finding]:
        """What they have reported so far."""
        if self._folder.exists():
            reported = self._files.read(self._folder)
            self._known = [one for one in reported if one.code not in self._ignore]
        return self._known

    def announce(self) -> None:
        """Have the collector warn or raise for what was reported."""
        home = self._home()
        if home is not None and home.announce is not None:
            home.announce([one for one in home.reported() if one.severity >= Severity.WARNING])

    def _close(self) -> None:
        if os.getpid() == self._process:
            import shutil

            self.findings()
            shutil.rmtree(self._folder, ignore_errors=True)


_programs: weakref.WeakKeyDictionary[Collector, dict[frozenset[str], _Programs]]
_programs = dropped_at_end(weakref.WeakKeyDictionary())
"""By collector and ignored codes."""
_running: ByIdentity[_Programs] = dropped_at_end(ByIdentity())
"""By `Popen`: the group of programs that it belongs to."""


_Guarded = tuple[_Programs, Any, list[str], Mapping[str, str]]
"""The programs that one will be of, its command as the program gives it, and how it is started."""


def _starts(process: Any, args: Any, *rest: Any, **options: Any) -> _Guarded | None:
    home = collector.innermost()
    command = None if rest or home is None else _guarded_command(args, options)
    if home is None or command is None:
        return None
    from pytest_gradguard.runtime.kernel import inline  # only now: most programs start none

    inline.refuse("a program that it starts")
    ignore = home.ignore | collector.allowed_now()
    of_home = _programs.setdefault(home, {})
    programs = of_home.get(ignore)
    if programs is None:
        programs = of_home[ignore] = _Programs(home, ignore)
    given = options.get("env")
    environment = {**(os.environ if given is None else given), **programs.environment}
    return programs, args, command, environment


def _guarded(guarded: _Guarded, process: Any, args: Any, **options: Any) -> Arguments:
    return (process, guarded[2]), {**options, "env": guarded[3]}


def _started(guarded: _Guarded, result: None, process: Any, *args: Any, **options: Any) -> None:
    programs, process.args, *_ = guarded
    _running[process] = programs


def _waited(result: Any, process: Any, *args: Any, **kwargs: Any) -> None:
    programs = _running.pop(process)
    if programs is not None:
        with theirs_only:
            programs.announce()


apply = LatePatches(
    lambda: [
        observe(subprocess.Popen, "__init__", before=_starts, arguments=_guarded, after=_started),
        observe(subprocess.Popen, "wait", after=_waited),
    ]
).apply
