"""Runs drawn programs, and says of each what became of it, and what the guard said.

Each program runs in one process (the truth), in workers, and in workers under the guard. All of it
happens in a child, whose command line is ``judge.py FRAMEWORK FIRST COUNT FOLDER``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from children import run_python

DRAWN = {"torch": "torch_programs", "tensorflow": "tensorflow_programs"}


@dataclass(frozen=True)
class Verdict:
    """What became of one program.

    Attributes:
        changed: under the guard the workers' run ended otherwise than without it.
        differs: the gradients of the workers' run are not those of the run in one process.
        codes: the findings of severity warning and above; errors end in an exclamation mark.
        said: the messages.
        outcomes: how the three runs ended.
    """

    seed: int
    program: str
    changed: bool
    differs: bool
    codes: list[str]
    said: list[str]
    outcomes: list[str]

    @property
    def missed(self) -> bool:
        """The gradients are wrong, and there is no finding."""
        return self.differs and not self.codes

    @property
    def false_error(self) -> bool:
        """The gradients are right, and there is an error."""
        return not self.differs and any(code.endswith("!") for code in self.codes)


def run_programs(framework: str, seeds: range, folder: Path) -> list[Verdict]:
    """The verdicts on the programs with these numbers, whose files are left in `folder`.

    Raises:
        AssertionError: the child hung, or ended otherwise than with its verdicts.
    """
    tests = os.pathsep.join(str(path) for path in Path(__file__).parents[:2])
    done = run_python(
        __file__,
        framework,
        str(seeds.start),
        str(len(seeds)),
        folder,
        limit=600,
        forked=framework,
        environment={"PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [Verdict(**verdict) for verdict in json.loads(done.stdout.splitlines()[-1])]


def judge(framework: str, seeds: range, folder: Path) -> list[Verdict]:
    """Run the programs with these numbers, whose files are written to `folder`."""
    draw = importlib.import_module(DRAWN[framework]).draw
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(folder))
    for seed in seeds:
        (folder / f"drawn_{seed}.py").write_text(draw(seed), encoding="utf-8")
    return [_judged(seed, str(folder / f"drawn_{seed}.py")) for seed in seeds]


def _judged(seed: int, path: str) -> Verdict:
    from pytest_gradguard import guard

    run = importlib.import_module(f"drawn_{seed}").run
    alone, bare = _outcome(run, 1), _outcome(run, 2)
    with guard(mode="record") as report:
        guarded = _outcome(run, 2)
    told = [finding for finding in report.findings if finding.severity.label != "info"]
    return Verdict(
        seed,
        path,
        # Threads add gradients up in any order.
        changed=not _alike(bare, guarded, 1e-6 if "threading" in Path(path).read_text() else 0.0),
        differs=not _alike(alone, bare, 1e-4),
        codes=sorted({f.code + "!" * (f.severity.label == "error") for f in told}),
        said=[finding.message for finding in told],
        outcomes=[str(outcome) for outcome in (alone, bare, guarded)],
    )


def run_carrying(seeds: range, folder: Path) -> list[str]:
    """The programs of torch that do not end alike with one process and with our own `Parallel`.

    What it refuses is alike. The files are left in `folder`.
    """
    done = run_python(
        __file__,
        "carrying",
        str(seeds.start),
        str(len(seeds)),
        folder,
        limit=600,
        forked="torch",
        environment={"PYTHONPATH": os.pathsep.join(str(p) for p in Path(__file__).parents[:2])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wrong: list[str] = json.loads(done.stdout.splitlines()[-1])
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
    if sys.argv[1] in ("torch", "carrying"):
        import torch

        torch.set_num_threads(1)  # forks are not what is tried here
    first, count = int(sys.argv[2]), int(sys.argv[3])
    if sys.argv[1] == "carrying":
        print(json.dumps(carrying(range(first, first + count), Path(sys.argv[4]))))
        sys.exit()
    verdicts = judge(sys.argv[1], range(first, first + count), Path(sys.argv[4]))
    print(json.dumps([asdict(verdict) for verdict in verdicts]))
