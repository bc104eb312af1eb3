"""What the programs of `order_programs` certainly do, and what the linter says of them.

A program runs once for each choice of its options, and once more with an exception at each of its
steps, with stand-ins for torch and for what starts processes. These compute nothing: they follow
what a process has initialised, and what a forked one therefore finds. A finding is false where no
run has the harm at its line; harm is missed where each run that comes to a line has it there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from order_programs import Drawn, draw

CODES = ("GG203", "GG303")
MOST_STEPS = 400


class Endless(BaseException):
    """A run has too many steps."""


class Fault(ValueError):
    """The exception at one of the steps."""


@dataclass
class Process:
    """What a process has initialised, and what it was forked after."""

    cuda: bool = False
    threads: bool = False
    after_cuda: bool = False
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
        if self.process.after_cuda:
            self.harm.add((self.at, "GG203"))
        self.process.cuda = True

    def compute(self, size: int) -> None:
        self.step()
        if size < 10_000 or self.process.one_thread:
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
            after_cuda=parent.cuda or parent.after_cuda,
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


# Stand-ins


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
            self.on_gpu = str(getattr(device, "type", device)).startswith("cuda")

        def to(self, device: str | Device) -> Tensor:
            return made(self.size, device=device)

        def cuda(self) -> Tensor:
            return made(self.size, device="cuda")

        def __matmul__(self, other: Tensor) -> Tensor:
            if not self.on_gpu:
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

    cuda = _module(
        "torch.cuda", is_available=lambda: run.present, synchronize=lambda: run.use_cuda()
    )
    torch = _module(
        *("torch",),
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

    class Pool:
        def __init__(self, processes: int, method: str = "fork") -> None:
            run.step()
            self.process = run.forked(method)

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def map(self, work: Callable[..., Any], items: Any) -> Any:
            run.step()
            return do(self.process, work, [(item,) for item in items])

        def starmap(self, work: Callable[..., Any], items: Any) -> Any:
            run.step()
            return do(self.process, work, list(items))

    class Executor:
        def __init__(self, workers: int) -> None:
            run.step()
            self.process: Process | None = None

        def __enter__(self) -> Executor:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def map(self, work: Callable[..., Any], items: Any) -> Any:
            run.step()
            self.process = self.process or run.forked()
            return do(self.process, work, [(item,) for item in items])

        def submit(self, work: Callable[..., Any], *args: Any) -> Any:
            run.step()
            self.process = self.process or run.forked()
            (result,) = do(self.process, work, [args])
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
            if n_jobs == 0:
                raise ValueError("n_jobs == 0")
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


# Runs


def run_once(drawn: Drawn, code: CodeType, run: Run, given: dict[str, Any], here: set[str]) -> bool:
    """Run the program once; False where it is not one that anybody would write.

    `given`: its options. `here`: the environment variables that are set.
    """
    words = [run.path]
    for name, value in given.items():
        words += ([f"--{name}"] if value is True else []) if isinstance(value, bool) else []
        words += [] if isinstance(value, bool) else [f"--{name}", str(value)]
    names: dict[str, Any] = {"__name__": "__main__" if drawn.is_script else "drawn"}
    variables = dict.fromkeys(here, "1")
    with (
        mock.patch.dict(sys.modules, stand_ins(run)),
        mock.patch.dict(os.environ, variables),
        mock.patch.object(sys, "argv", words),
    ):
        sys.setprofile(run.enter)
        try:
            exec(code, names)
            if not drawn.is_script:
                names["main"](**given)
        except (NameError, TypeError, AttributeError, Endless):
            return False
        except SystemExit as error:
            return error.code != 2  # options that it does not know
        except Exception:
            pass
        finally:
            sys.setprofile(None)
    return True


@dataclass
class Truth:
    """What becomes of a program.

    Attributes:
        sure: the harm that each run has that comes to the line, and one with the usual options.
        possible: the harm that some run has.
        entered: the functions that some run calls.
    """

    sure: set[tuple[int, str]]
    possible: set[tuple[int, str]]
    entered: set[str]


def choices_of(drawn: Drawn) -> Iterator[tuple[dict[str, Any], set[str], bool]]:
    """What may be given to a program: options, environment variables, a GPU."""
    for values in itertools.product(*drawn.options.values()):
        given = dict(zip(drawn.options, values, strict=True))
        for number in range(len(drawn.variables) + 1):
            for here in itertools.combinations(drawn.variables, number):
                yield given, set(here), True
                if "is_available" in drawn.source:
                    yield given, set(here), False


def truth_of(drawn: Drawn, code: CodeType, path: str) -> Truth | None:
    """What becomes of a program; None where it is not a proper one."""
    came: dict[int, int] = defaultdict(int)
    harmed: dict[tuple[int, str], int] = defaultdict(int)
    usual: set[tuple[int, str]] = set()
    entered: set[str] = set()
    for given, here, present in choices_of(drawn):
        run = Run(path, present)
        if not run_once(drawn, code, run, given, here):
            return None
        entered |= run.entered
        for line in run.came:
            came[line] += 1
        for harm in run.harm:
            harmed[harm] += 1
        if drawn.usual.items() <= given.items():
            usual |= run.harm
    sure = {harm for harm, times in harmed.items() if times == came[harm[0]]}
    return Truth(sure & usual, set(harmed), entered)
    return Truth(sure, set(harmed))


def with_faults(drawn: Drawn, code: CodeType, path: str) -> Truth:
    """The same of the runs in which one step fails."""
    harm: set[tuple[int, str]] = set()
    spared: set[tuple[int, str]] = set()
    entered: set[str] = set()
    for given, here, present in choices_of(drawn):
        for fault in itertools.count(1):
            run = Run(path, present, fault)
            run_once(drawn, code, run, given, here)
            harm |= run.harm
            entered |= run.entered
            spared |= set(itertools.product(run.came, CODES)) - run.harm
            if run.steps < fault:
                break
    return Truth(harm - spared, harm, entered)


def told_of(path: str) -> set[tuple[int, str]]:
    """What the linter finds in a program: lines and codes."""
    from gradguard_lint.project.configuration import Configurations
    from gradguard_lint.run import Request
    from gradguard_lint.run import run as lint

    outcome = lint(Request((path,), Configurations(), jobs=1, cache=False))
    assert not outcome.errors, outcome.errors
    return {(raw["line"], raw["code"]) for raw in outcome.findings if raw["code"] in CODES}


def in_others(
    code: CodeType, entered: set[str], told: set[tuple[int, str]]
) -> set[tuple[int, str]]:
    """What is found in functions that no run calls: for the linter, anybody may."""
    lines: dict[int, str] = {}
    parts = [code]
    for part in parts:
        parts += [it for it in part.co_consts if isinstance(it, CodeType)]
        lines |= {line: part.co_name for *_, line in part.co_lines() if line is not None}
    return {it for it in told if lines.get(it[0]) not in {"<module>", *entered}}


def judge(seeds: range, folder: Path) -> dict[str, Any]:
    """What the linter finds of the programs with these numbers, held against the truth."""
    counts = {"programs": 0, "findings": 0, "sure": 0}
    false, missed = [], []
    for seed in seeds:
        drawn = draw(seed)
        path = folder / f"order_{seed}.py"
        path.write_text(drawn.source, encoding="utf-8")
        code = compile(drawn.source, path, "exec")
        truth = truth_of(drawn, code, str(path))
        if truth is None:
            continue
        told = told_of(str(path))
        told -= in_others(code, truth.entered, told)
        wrong, unseen = told - truth.possible, truth.sure - told
        if (wrong or unseen) and "try:" in drawn.source:
            failing = with_faults(drawn, code, str(path))
            wrong, unseen = wrong - failing.possible, unseen & failing.sure
        if '!= "cpu"' in drawn.source:  # who asks for the CPU uses no GPU
            unseen = {(line, code) for line, code in unseen if code != "GG203"}
        counts["programs"] += 1
        counts["findings"] += len(told)
        counts["sure"] += len(truth.sure)
        false += [f"{path}:{line} {code}" for line, code in sorted(wrong)]
        missed += [f"{path}:{line} {code}" for line, code in sorted(unseen)]
    return {**counts, "false": false, "missed": missed}


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    print(json.dumps(judge(range(first, first + count), Path(sys.argv[3])), indent=1))
