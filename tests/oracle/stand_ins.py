"""Stand-ins for torch and for what starts processes: they compute nothing.

They follow what a process has initialised, and what a forked one therefore finds: CUDA cannot be
initialised in it once its parent has done so, or has asked for a GPU, and the compute threads that
its parent has started are missing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

MOST_STEPS = 400
"""A run with more of them does not come to an end."""
LARGE = 10_000
"""From this many elements on, an operation is shared among threads."""


class Endless(BaseException):
    """A run has too many steps."""


class Fault(ValueError):
    """The exception at one of the steps."""


@dataclass
class Process:
    """What a process has initialised, and what it was forked after."""

    driver: bool = False
    threads: bool = False
    after_driver: bool = False
    after_threads: bool = False
    one_thread: bool = False


@dataclass
class Run:
    """One run of a program.

    Attributes:
        present: whether there is a GPU.
        fault: the step at which an exception is raised; 0 for none.
        at: the line of the program's that hands work to the process that runs.
        came: the lines that handed out work.
        harm: what went wrong, by the line and the code.
        entered: the functions that were called.
    """

    path: str
    present: bool
    fault: int = 0
    process: Process = field(default_factory=Process)
    at: int = 0
    steps: int = 0
    came: set[int] = field(default_factory=set)
    harm: set[tuple[int, str]] = field(default_factory=set)
    entered: set[str] = field(default_factory=set)

    def enter(self, frame: FrameType, event: str, _: object) -> None:
        """Notes the functions of the program that are called."""
        if event == "call" and frame.f_code.co_filename == self.path:
            self.entered.add(frame.f_code.co_name)

    def step(self) -> None:
        """Something happens that may fail."""
        self.steps += 1
        if self.steps == self.fault:
            raise Fault
        if self.steps > MOST_STEPS:
            raise Endless

    def use_cuda(self) -> None:
        self.step()
        if not self.present:
            return
        if self.process.after_driver:
            self.harm.add((self.at, "GG203"))
        self.process.driver = True

    def ask_for_gpu(self) -> bool:
        self.process.driver = self.process.driver or self.present
        return self.present

    def compute(self, size: int) -> None:
        self.step()
        if size < LARGE or self.process.one_thread:
            return
        if self.process.after_threads:
            self.harm.add((self.at, "GG303"))
        self.process.threads = True

    def forked(self, method: str = "fork") -> Process:
        """A process that is started now."""
        parent = self.process
        if method != "fork":
            return Process()
        return Process(
            after_driver=parent.driver or parent.after_driver,
            after_threads=parent.threads or parent.after_threads,
            one_thread=parent.one_thread,
        )

    @contextlib.contextmanager
    def within(self, process: Process) -> Iterator[None]:
        """What runs in `process`, for the line of the program's that is running."""
        outer, line = (self.process, self.at), self.at or self.line()
        if not self.at:
            self.came.add(line)
        self.process, self.at = process, line
        try:
            yield
        finally:
            self.process, self.at = outer

    def line(self) -> int:
        frame = sys._getframe()
        while frame.f_code.co_filename != self.path:
            assert frame.f_back is not None
            frame = frame.f_back
        return frame.f_lineno


def stand_ins(run: Run) -> dict[str, ModuleType]:
    """The modules that a program imports, by name."""
    return {**_torch(run), **_processes(run)}


def _module(name: str, **names: object) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(names)
    return module


@dataclass(frozen=True)
class Device:
    type: str


def _torch(run: Run) -> dict[str, ModuleType]:
    class Tensor:
        def __init__(self, size: int, device: str | Device | None) -> None:
            self.size = size
            kind = str(getattr(device, "type", device or "cpu"))
            self.on_gpu, self.on_cpu = kind.startswith("cuda"), kind == "cpu"

        def to(self, device: str | Device) -> Tensor:
            return made(self.size, device=device)

        def cuda(self) -> Tensor:
            return made(self.size, device="cuda")

        def __matmul__(self, other: Tensor) -> Tensor:
            if self.on_cpu:
                run.compute(self.size)
            return self.used()

        def sum(self) -> Tensor:
            return self.used()

        def __add__(self, other: float) -> Tensor:
            return self

        def used(self) -> Tensor:
            if self.on_gpu:
                run.use_cuda()
            return self

        def __float__(self) -> float:
            return 1.0

    def made(*shape: int, device: str | Device | None = None) -> Tensor:
        size = 1
        for number in shape:
            size *= number
        return Tensor(size, device).used()

    def device(name: str) -> Device:
        return Device(name.partition(":")[0])

    def set_num_threads(number: int) -> None:
        run.process.one_thread = number == 1

    cuda = _module("torch.cuda", is_available=run.ask_for_gpu, synchronize=run.use_cuda)
    torch = _module(
        "torch",
        cuda=cuda,
        device=device,
        ones=made,
        zeros=made,
        set_num_threads=set_num_threads,
    )
    return {"torch": torch, "torch.cuda": cuda}


def _processes(run: Run) -> dict[str, ModuleType]:
    def do(process: Process, work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Any:
        with run.within(process):
            return [work(*task) for task in tasks]

    class Workers:
        """They are forked where they are given work, unless they are there."""

        process: Process | None = None

        def __enter__(self) -> Workers:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def do(self, work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Any:
            run.step()
            self.process = self.process or run.forked()
            return do(self.process, work, tasks)

        def map(self, work: Callable[..., Any], items: Any) -> Any:
            return self.do(work, [(item,) for item in items])

    class Pool(Workers):
        def __init__(self, processes: int, method: str = "fork") -> None:
            run.step()
            self.process = run.forked(method)

        def starmap(self, work: Callable[..., Any], items: Any) -> Any:
            return self.do(work, list(items))

    class Executor(Workers):
        def __init__(self, workers: int) -> None:
            run.step()

        def submit(self, work: Callable[..., Any], *args: Any) -> Any:
            (result,) = self.do(work, [args])
            return SimpleNamespace(result=lambda: result)

    class OwnProcess:
        def __init__(self, *, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
            self.target, self.args = target, args

        def start(self) -> None:
            run.step()
            with contextlib.suppress(Exception):  # it ends the child alone
                do(run.forked(), self.target, [self.args])

        def join(self) -> None:
            pass

    def parallel(n_jobs: int, backend: str = "loky") -> Callable[..., Any]:
        def spread(tasks: Any) -> Any:
            run.step()
            listed = list(tasks)
            if n_jobs == 1 or backend == "threading":
                return [work(*args) for work, args in listed]
            process = run.forked("fork" if backend == "multiprocessing" else "loky")
            return [do(process, work, [args]) for work, args in listed]

        return spread

    def delayed(work: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: (work, args)

    def get_context(method: str) -> SimpleNamespace:
        return SimpleNamespace(Pool=lambda processes: Pool(processes, method))

    multiprocessing = _module(
        "multiprocessing", Pool=Pool, Process=OwnProcess, get_context=get_context
    )
    futures = _module("concurrent.futures", ProcessPoolExecutor=Executor)
    return {
        "multiprocessing": multiprocessing,
        "concurrent.futures": futures,
        "joblib": _module("joblib", Parallel=parallel, delayed=delayed),
    }
