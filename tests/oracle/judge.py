"""Runs drawn programs, and says of each what became of it, and what the guard said.

Each program runs in one process (the truth), in workers, and in workers under the guard. All of it
happens in a child, whose command line is ``judge.py FRAMEWORK FIRST COUNT FOLDER``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from children import run_python

from pytest_gradguard.pitfalls import get

DRAWN = {
    "torch": "torch_programs",
    "rounds": "round_programs",
    "tensorflow": "tensorflow_programs",
}
"""The modules that draw programs, by the family."""
LOSING = ("torch", "tensorflow")
"""The families in which what differs is lost. In the other one tasks may train: one after the
other, in one process, each goes on from what the last one has made of the network."""


@dataclass(frozen=True)
class Verdict:
    """What became of one program.

    Attributes:
        changed: under the guard the workers' run ended otherwise than without it.
        differs: the gradients of the workers' run are not those of the run in one process.
        codes: the findings of severity warning and above; errors end in an exclamation mark.
        said: the messages.
        outcomes: how the three runs ended.
        foreseen: what the linter calls an error in the program.
        compared: `gradguard compare` says that the workers' run and the one in one process differ.
        idle: in one process, too, an optimizer steps where nothing has a gradient: what is said of
            that is right.
    """

    family: str
    seed: int
    program: str
    changed: bool
    differs: bool
    codes: list[str]
    said: list[str]
    outcomes: list[str]
    foreseen: list[str]
    compared: bool
    idle: bool

    @property
    def missed(self) -> bool:
        """Gradients are lost, and there is no finding."""
        return self.differs and not self.codes and self.family in LOSING

    @property
    def compared_wrongly(self) -> bool:
        """A comparison says otherwise than the run in one process."""
        return self.compared != self.differs and self.family in LOSING

    @property
    def is_right(self) -> bool:
        """Nothing in the program is an error."""
        return not self.differs and not self.idle

    @property
    def false_error(self) -> bool:
        """The gradients are right, and there is an error."""
        return self.is_right and any(code.endswith("!") for code in self.codes)

    @property
    def foreseen_wrongly(self) -> bool:
        """The gradients are right, and the linter calls something an error."""
        return self.is_right and bool(self.foreseen)


def run_programs(framework: str, seeds: range, folder: Path) -> list[Verdict]:
    """The verdicts on the programs with these numbers, whose files are left in `folder`.

    Raises:
        AssertionError: the child hung, or ended otherwise than with its verdicts.
    """
    forked = "tensorflow" if framework == "tensorflow" else "torch"
    verdicts = answer(__file__, seeds, folder, framework, forked=forked)
    return [Verdict(**verdict) for verdict in verdicts]


def answer(script: str, seeds: range, folder: Path, *words: str, forked: str = "") -> Any:
    """What `script` writes last, in a child that is given `words`, the numbers and the folder.

    Raises:
        AssertionError: the child hung, or ended otherwise than with its answer.
    """
    tests = os.pathsep.join(str(path) for path in Path(__file__).parents[:2])
    done = run_python(
        script,
        *words,
        str(seeds.start),
        str(len(seeds)),
        folder,
        limit=600,
        forked=forked,
        environment={"PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def judge(framework: str, seeds: range, folder: Path) -> list[Verdict]:
    """Run the programs with these numbers, whose files are written to `folder`."""
    draw = importlib.import_module(DRAWN[framework]).draw
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(folder))
    for seed in seeds:
        (folder / f"drawn_{seed}.py").write_text(draw(seed), encoding="utf-8")
    return [_judged(framework, seed, str(folder / f"drawn_{seed}.py")) for seed in seeds]


def _judged(family: str, seed: int, path: str) -> Verdict:
    from pytest_gradguard import guard
    from pytest_gradguard.comparing import difference, notes
    from pytest_gradguard.comparing.recording import recording
    from pytest_gradguard.comparing.running import ROUNDING

    run = importlib.import_module(f"drawn_{seed}").run
    with _idle_steps() as idle:
        alone = _outcome(run, 1)
    bare = _outcome(run, 2)
    noted, inline = f"{path}.noted", f"{path}.inline"
    with guard(mode="record") as report, recording(Path(noted), inlined=False):
        guarded = _outcome(run, 2)
    with guard(mode="record"), recording(Path(inline), inlined=True):
        _outcome(run, 2)
    compared = difference.first(notes.read(Path(noted)), notes.read(Path(inline)), *ROUNDING)
    told = [finding for finding in report.findings if finding.severity.label != "info"]
    return Verdict(
        family,
        seed,
        path,
        # Threads add gradients up in any order.
        changed=not _alike(bare, guarded, 1e-6 if "threading" in Path(path).read_text() else 0.0),
        differs=not _alike(alone, bare, 1e-4),
        codes=sorted({f.code + "!" * (f.severity.label == "error") for f in told}),
        said=[finding.message for finding in told],
        outcomes=[str(outcome) for outcome in (alone, bare, guarded)],
        foreseen=_errors_of_the_linter(path),
        compared=compared is not None,
        idle=bool(idle),
    )


@contextlib.contextmanager
def _idle_steps() -> Iterator[list[Any]]:
    """Notes each step of an optimizer of torch's over parameters of which none has a gradient."""
    idle: list[Any] = []
    if "torch" not in sys.modules:
        yield idle
        return
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def look(optimizer: Any, args: Any, kwargs: Any) -> None:
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if all(p.grad is None or not p.grad.any() for p in held):
            idle.append(optimizer)

    handle = register_optimizer_step_pre_hook(look)
    try:
        yield idle
    finally:
        handle.remove()


def _errors_of_the_linter(path: str) -> list[str]:
    """The codes of what the linter calls an error in a program."""
    return [
        raw["code"]
        for raw in linted(path)
        if (raw["severity"] or get(raw["code"]).severity.label) == "error"
    ]


def linted(path: str) -> list[dict[str, Any]]:
    """What the linter finds in a program."""
    from gradguard_lint.project.configuration import Configurations
    from gradguard_lint.run import Request
    from gradguard_lint.run import run as lint

    outcome = lint(Request((path,), Configurations(), jobs=1, cache=False))
    assert not outcome.errors, outcome.errors
    return outcome.findings


def run_carrying(seeds: range, folder: Path) -> list[str]:
    """The programs of torch that do not end alike with one process and with our own `Parallel`.

    What it refuses is alike. The files are left in `folder`.
    """
    wrong: list[str] = answer(__file__, seeds, folder, "carrying", forked="torch")
    return wrong


def carrying(seeds: range, folder: Path) -> list[str]:
    """As `run_carrying`, in this process."""
    draw = importlib.import_module(DRAWN["torch"]).draw
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(folder))
    wrong = []
    for seed in seeds:
        source = draw(seed).replace("from joblib import", "from pytest_gradguard.parallel import")
        (folder / f"carrying_{seed}.py").write_text(source, encoding="utf-8")
        run = importlib.import_module(f"carrying_{seed}").run
        alone, there = _outcome(run, 1), _outcome(run, 2)
        refused = str(there).startswith("UnsupportedGradientError: Parallel: `task` uses")
        tolerance = 1e-6 if "threading" in source else 0.0
        if not refused and not _alike(alone, there, tolerance):
            wrong.append(f"{folder}/carrying_{seed}.py: {alone} | {there}")
    return wrong


def _outcome(run: Any, n_jobs: int) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(n_jobs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _alike(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[k], other[k], tolerance) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(
            _alike(a, b, tolerance) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= tolerance * max(1.0, abs(one)) or (one != one and other != other)
    return type(one) is type(other) and bool(one == other)


if __name__ == "__main__":
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    if sys.argv[1] != "tensorflow":
        import torch

        torch.set_num_threads(1)  # forks are not what is tried here
    first, count = int(sys.argv[2]), int(sys.argv[3])
    if sys.argv[1] == "carrying":
        print(json.dumps(carrying(range(first, first + count), Path(sys.argv[4]))))
        sys.exit()
    verdicts = judge(sys.argv[1], range(first, first + count), Path(sys.argv[4]))
    print(json.dumps([asdict(verdict) for verdict in verdicts]))
