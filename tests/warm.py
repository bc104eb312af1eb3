"""Programs that need not wait for `import torch`: they are forked from a process that has done it.

Such a program runs as one that was started afresh: `__main__`, `sys.argv`, the folder, the
environment and the streams are its own, and torch is imported when it imports it. The modules of
torch are put away until then, so that what waits for an import (the guard does) sees each of them
come; what they want done at exit is not done before. Only the time that loading them takes is
saved. Modules of the standard library are there from the start. The workers that it starts come
from there, too (`warm_workers`). The same goes for TensorFlow. For tests in which forks, threads or
imports are the subject this is no substitute.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any
from unittest import mock

from warm_workers import Nursery, begin, is_anew, out_of_the_way, starts_alike, tend

IMPORTED: dict[str, tuple[str, ...]] = {
    "numpy": (),
    "numpy.random": ("numpy",),
    "joblib": ("numpy",),
    "torch": ("numpy",),
    "torch._dynamo": ("torch",),
    "tensorflow": ("numpy", "numpy.random"),
}
"""What can be imported, in this order, and what each imports of those before."""

APART = {"torch._dynamo": "torch", "tensorflow": "tensorflow"}
"""What only one framework's process has: the other's programs need it seldom."""

Streams = tuple[int, int, int]
_AT_START = {name: value for name, value in os.environ.items() if "PYTEST" not in name}


# -- the tests' side ----------------------------------------------------------------------------


class Child:
    """A program that was forked; the part of `subprocess.Popen` that the tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: str,
        environment: Mapping[str, str],
        streams: Streams,
        framework: str,
    ) -> None:
        self._server = _server(framework)
        request = {"arguments": arguments, "folder": folder, "environment": dict(environment)}
        socket.send_fds(self._server, [_line(request)], streams)
        self.pid: int = _answer(self._server)
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """Its exit status.

        Raises:
            TimeoutExpired: it takes longer; the next call waits on.
        """
        if self.returncode is None:
            self._server.settimeout(timeout)
            try:
                self.returncode = _answer(self._server)
            except TimeoutError:
                raise subprocess.TimeoutExpired("a forked program", timeout) from None
            finally:
                self._server.settimeout(None)
        return self.returncode


def can_run(environment: Mapping[str, str]) -> bool:
    """Whether a fork makes no difference, as to what is read as Python or a library starts."""
    if sys.platform != "linux" or not starts_alike(environment, _AT_START):
        return False
    if sys.version_info >= (3, 14):
        return False  # the resource tracker of a forked program ends there, again and again
    threads = ("OMP_", "MKL_", "OPENBLAS_")
    names = (name for name in {*environment, *_AT_START} if name.startswith(threads))
    return all(environment.get(name) == _AT_START.get(name) for name in names)


def workers() -> socket.socket:
    """A connection to a process that forks workers, for a `Nursery` in this one."""
    mine, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(_server("torch"), [_line(None)], [theirs.fileno()])
    atexit.register(mine.close)
    return mine


@functools.cache
def _server(framework: str) -> socket.socket:
    """The connection to this process's server that has imported a framework, and ends with it."""
    mine, theirs = socket.socketpair()
    with theirs:
        server = subprocess.Popen(
            [
                *(sys.executable, "-c", "import sys, warm; warm.serve_and_run(*sys.argv[1:])"),
                *(framework, str(theirs.fileno())),
            ],
            cwd=os.path.dirname(__file__),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**_AT_START, "TF_CPP_MIN_LOG_LEVEL": "3"},
            start_new_session=True,  # what interrupts the tests closes the connection
        )
    atexit.register(server.wait)
    atexit.register(mine.close)  # called first: the server ends with the connection
    return mine


def _line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _answer(connection: socket.socket) -> int:
    line = connection.recv(100)
    assert line.endswith(b"\n"), "the process that programs are forked from has ended"
    return int(line)


# -- the server's side --------------------------------------------------------------------------


class Stash(MetaPathFinder):
    """Modules that were imported and put away, found again when a program imports them."""

    def __init__(self, frameworks: Iterable[str]) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.beside: dict[str, list[str]] = {}
        self.at_exit: dict[str, list[Callable[[], object]]] = {}
        for name in frameworks:
            known = set(sys.modules)
            self.at_exit[name] = []
            # Without what TensorFlow, and JAX beside it, do at exit, processes crash there.
            put_off = _putting_off(self.at_exit[name])
            with contextlib.nullcontext() if name == "tensorflow" else put_off:
                importlib.import_module(name)
            came = [one for one in sys.modules if one not in known and not _is_standard(one)]
            self.beside[name] = [*IMPORTED[name], *came]
            self.modules |= {one: sys.modules[one] for one in came}

    def put_away(self) -> None:
        for name in self.modules:
            del sys.modules[name]
        for name in self.beside:
            package, _, own_name = name.rpartition(".")
            if package:
                delattr(self.modules[package], own_name)
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        module = self.modules.get(name)
        if module is None:
            return None
        return ModuleSpec(name, Restoring(self), is_package=hasattr(module, "__path__"))

    def give_back(self, name: str) -> None:
        """Import a module that others had imported; what its package calls by its name stays."""
        if name in self.beside:
            importlib.import_module(name)  # as a program does that asks for it alone
            return
        package, _, own_name = name.rpartition(".")
        above: Any = self.modules.get(package) or sys.modules.get(package)
        spec = self.modules[name].__spec__
        by_no_import = spec is None or spec.name != name
        if by_no_import or (package and not hasattr(above, "__path__")) or _is_a_test(own_name):
            sys.modules[name] = self.modules.pop(name)
            return
        had = above and vars(above).get(own_name, self)
        importlib.import_module(name)
        if had is self:
            vars(above).pop(own_name, None)
        elif above:
            setattr(above, own_name, had)


@contextlib.contextmanager
def _putting_off(steps: list[Callable[[], object]]) -> Iterator[None]:
    """A block in which other modules than those of Python ask in vain for what to do at exit.

    Each of the `steps` has that done after all.
    """
    registry: dict[Any, Any] = weakref.finalize._registry  # type: ignore[attr-defined]
    known = set(registry)
    register = atexit.register

    def put_off(function: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_standard(getattr(function, "__module__", None) or ""):
            return register(function, *args, **kwargs)
        steps.append(functools.partial(register, function, *args, **kwargs))
        return function

    with mock.patch.object(atexit, "register", put_off):
        yield
    for finalizer in registry.keys() - known:
        if finalizer.atexit:
            finalizer.atexit = False
            steps.append(functools.partial(setattr, finalizer, "atexit", True))


def _is_a_test(name: str) -> bool:
    """Whether pytest would take it for a file of tests, and load it anew."""
    return name.startswith("test_") or name.endswith("_test")


def _is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


class Restoring(Loader):
    """Gives a module of the stash back, and with it all that came with it."""

    def __init__(self, stash: Stash) -> None:
        self.stash = stash
        self.spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = self.stash.modules.pop(spec.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self.spec  # the import system has put ours there
        for name in self.stash.beside.pop(module.__name__, ()):
            if name in self.stash.modules:
                self.stash.give_back(name)
        for step in self.stash.at_exit.pop(module.__name__, ()):
            step()


def serve(connection: socket.socket, modules: Mapping[str, Any]) -> dict[str, Any] | None:
    """Fork for each request; returns what to run in the child, and None when all is done."""
    while True:
        text, received, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not text:
            return None
        request = json.loads(text)
        child = os.fork()
        if not child:
            connection.close()
            if request is None:
                return tend(socket.socket(fileno=received[0]), modules)
            os.setsid()
            for number, stream in enumerate(received):
                os.dup2(stream, number)
                os.close(stream)
            return with_workers(request, modules)
        for descriptor in received:
            os.close(descriptor)
        if request is not None:
            connection.sendall(_line(child))
            _, status = os.waitpid(child, 0)
            connection.sendall(_line(os.waitstatus_to_exitcode(status)))


def with_workers(request: dict[str, Any], modules: Mapping[str, Any]) -> dict[str, Any] | None:
    """What to run in this process, whose workers are forked from another; and in those."""
    mine, theirs = socket.socketpair()
    if not os.fork():
        mine.close()
        return tend(theirs, modules)
    theirs.close()
    connection = out_of_the_way(mine)
    Nursery(lambda: connection, request["environment"]).serve()
    is_anew(request["environment"], modules)
    return request


def run(arguments: Sequence[str]) -> None:
    """Run a script, ``-m module`` or ``-c text`` as the main program of this process."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.orig_argv = [sys.executable, *arguments]
    if arguments[0] == "-m":
        sys.argv = ["-m", *arguments[2:]]
        sys.path[0] = os.getcwd()
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
        return
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        main.__dict__.update(__builtins__=__builtins__)
        exec(arguments[1], main.__dict__)
        return
    sys.argv = list(arguments)
    path = os.path.abspath(arguments[0])
    sys.path[0] = os.path.dirname(path)
    loader = SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __loader__=loader, __builtins__=__builtins__)
    exec(loader.get_code("__main__"), main.__dict__)


def serve_and_run(framework: str, descriptor: str) -> None:
    """What the process does that programs are forked from, and what is forked."""
    stash = Stash(name for name in IMPORTED if APART.get(name, framework) == framework)
    modules = dict(stash.modules)
    stash.put_away()
    gc.freeze()
    with socket.socket(fileno=int(descriptor)) as connection:
        request = serve(connection, modules)
    if request is None:
        return
    del modules
    begin(request["folder"], request["environment"])
    run(request["arguments"])


for _function in (serve_and_run, run):  # not a line of the program's: as Python's own that run it
    _function.__code__ = _function.__code__.replace(co_filename=runpy.__file__)
