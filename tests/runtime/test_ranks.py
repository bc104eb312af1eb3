"""Findings of every rank, in one report: ranks that the program spawns, and those of a launcher."""

from __future__ import annotations

import json
import os
import pickle
import re
import socket
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from children import Done, run_python

import pytest_gradguard
from pytest_gradguard.cli import ranks
from pytest_gradguard.findings import Finding, Location, Severity
from pytest_gradguard.runtime.kernel import plain_data
from pytest_gradguard.runtime.pitfalls.ddp import launched_programs

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo, fcntl and fork: Linux")

PROGRAM = Path(__file__).with_name("ranks_program.py")
GUARDED = ("-m", "pytest_gradguard", "run")

DUE = {
    (code, number): json.loads(ranks)
    for number, line in enumerate(PROGRAM.read_text().splitlines(), 1)
    for code, ranks in re.findall(r"(?:# ->|,) (GG\d+) (\[[\d, ]*\])", line)
}
TRUE = {
    "all_gather": "[None, None] [None, None]",
    "gather": "[None, None] [None, None]",
    "objects": "[None, None] [None, None]",
    "ddp_module": "[1.2] [2.4]",
    "ddp_itself": "[1.8] [1.8]",
    "accumulated": "[3.6] [3.6]",
    "reduced_by_hand": "[3.6] [3.6]",
}
"""What the two ranks have: gradients, or by how much a step has changed the weight."""


def found(report: Path) -> dict[tuple[str, int], Sequence[int]]:
    findings = json.loads(report.read_text())["findings"]
    assert all(one["count"] == len(one["details"]["ranks"]) for one in findings)
    return {(one["code"], one["location"]["line"]): one["details"]["ranks"] for one in findings}


def numbers(done: Done) -> dict[str, str]:
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    return {name: rest for name, _, rest in lines if rest.startswith("[")}


def launcher() -> tuple[str, ...]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port))
    return ("-m", "torch.distributed.run", *options)


@pytest.mark.parametrize("method", ["spawn", "fork", "popen"])
def test_what_started_ranks_find_is_reported_once(tmp_path: Path, method: str) -> None:
    report = tmp_path / "report.json"
    here = {"TMPDIR": str(tmp_path)}
    command = (*GUARDED, "--report", report, PROGRAM, method)
    done = run_python(*command, environment=here, forked="torch")
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("gradguard*"))
    assert found(report) == DUE
    assert done.stderr.count("error[GG501]") == sum(code == "GG501" for code, _ in DUE)
    assert numbers(done).items() >= TRUE.items()


def test_the_numbers_are_those_of_the_program_alone() -> None:
    done = run_python(PROGRAM, "spawn", forked="torch")
    assert numbers(done).items() >= TRUE.items(), done.stderr
    assert (
        numbers(done)["broadcast"]
        == numbers(run_python(*GUARDED, PROGRAM, "fork", forked="torch"))["broadcast"]
    )


def assert_found_by_some(seen: dict[tuple[str, int], list[int]]) -> None:
    """All that is due; what one rank compares with the other (GG505), a killed one may not."""
    assert seen.keys() == DUE.keys()
    for due, everyone in DUE.items():
        found_by = set(seen[due])
        some = due[0] == "GG505" and found_by and found_by < set(everyone)
        assert found_by == set(everyone) or some


def test_a_rank_that_is_killed_loses_nothing_of_the_other(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run_python(*GUARDED, "--report", report, PROGRAM, "fork", "kill", forked="torch")
    assert done.returncode == 1
    assert "terminated with signal SIGKILL" in done.stderr
    assert_found_by_some(found(report))


@pytest.mark.parametrize("ranks_are_guarded", [True, False])
def test_ranks_of_a_launcher_make_one_report(tmp_path: Path, ranks_are_guarded: bool) -> None:
    report = tmp_path / "report.json"
    guarded = (*GUARDED, "--report", report)
    if ranks_are_guarded:
        command = (*launcher(), *guarded, PROGRAM)
    else:
        command = (*guarded, *launcher(), PROGRAM)
    done = run_python(*command, environment={"TMPDIR": str(tmp_path)}, forked="torch")
    assert done.returncode == 0, done.stderr
    assert found(report) == DUE
    assert done.stderr.count("gradguard: ") == 2  # the counts, and where the report is
    assert done.stderr.count(f"gradguard: report written to {report}\n") == 1
    assert numbers(done).items() >= TRUE.items()
    assert not list(tmp_path.glob("gradguard*"))


def test_a_launcher_reports_what_killed_ranks_had_found(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = (*GUARDED, "--report", report, *launcher(), PROGRAM, "kill")
    done = run_python(*command, environment={"TMPDIR": str(tmp_path)}, forked="torch")
    assert done.returncode == 1
    assert_found_by_some(found(report))


ARGUMENT = ("-u", "-W", "ignore", "ranks.py", "--flag", "x y")
RANK = {"RANK": "1", "WORLD_SIZE": "2"}
LAUNCHER = ("-m", "torch.distributed.run", "ranks.py")
TORCHRUN = Path(sys.executable).with_name("torchrun")


@pytest.mark.parametrize(
    ("command", "environment", "program"),
    [
        ([sys.executable, *ARGUMENT], RANK, ARGUMENT[3:]),
        (["python", "-m", "ranks"], {**RANK, "PATH": str(TORCHRUN.parent)}, ("-m", "ranks")),
        ([sys.executable, *LAUNCHER], {}, LAUNCHER),
        ([TORCHRUN, "x.py"], {}, (str(TORCHRUN), "x.py")),
        ([sys.executable, *ARGUMENT], {}, None),
        ([sys.executable, *ARGUMENT], {"RANK": "1"}, None),
        ([sys.executable, *ARGUMENT], {**RANK, "PYTHONPATH": "elsewhere"}, ARGUMENT[3:]),
        ([sys.executable, "-I", *ARGUMENT], RANK, None),
        ([sys.executable, "-c", "pass"], RANK, None),
        ([sys.executable, "-m", "pytest"], RANK, None),
        ([sys.executable, "-m", "json.tool"], RANK, None),
        ([sys.executable, pytest.__file__], RANK, None),
        ([sys.executable], RANK, None),
        (["nvidia-smi"], RANK, None),
        (f"{sys.executable} ranks.py", RANK, None),
    ],
)
def test_a_program_is_guarded_where_it_becomes_a_rank(
    command: Any,
    environment: dict[str, str],
    program: tuple[str, ...] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # it may be pytest's
    guarded = launched_programs._guarded_command(command, {"env": environment or {"A": "B"}})
    if program is None:
        assert guarded is None
    else:
        flags = ARGUMENT[:3] if command[1] == "-u" else ()
        assert guarded == [sys.executable, *flags, "-m", "pytest_gradguard", "run", *program]


@pytest.mark.parametrize("options", [{"shell": True}, {"executable": "/bin/sh"}])
def test_a_command_of_a_shell_is_left_alone(options: dict[str, Any]) -> None:
    assert (
        launched_programs._guarded_command([sys.executable, "a.py"], {"env": RANK, **options})
        is None
    )


def test_a_program_that_inherits_the_rank_of_this_process_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launched_programs, "_at_start", "1")
    assert launched_programs._guarded_command([sys.executable, "a.py"], {"env": RANK}) is None


def test_a_program_that_cannot_import_the_guard_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = str(Path(pytest_gradguard.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", home)
    command = [sys.executable, "a.py"]
    assert launched_programs._guarded_command(command, {"env": {**RANK, "PYTHONPATH": home}})
    assert launched_programs._guarded_command(command, {"env": RANK}) is None


ENDING = """
import multiprocessing, sys
from pathlib import Path

from pytest_gradguard.cli.ranks import Rank

def rank(folder, number, barrier, reports):
    one = Rank(folder, number, 2, False)
    barrier.wait()
    reports.put(one.end([]) is not None)

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    for turn in range(200):
        folder = Path(sys.argv[1], str(turn))
        folder.mkdir()
        barrier, reports = context.Barrier(2), context.SimpleQueue()
        ranks = [context.Process(target=rank, args=(folder, n, barrier, reports)) for n in (0, 1)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
        assert [one.exitcode for one in ranks] == [0, 0], turn
        assert sorted(reports.get() for _ in ranks) == [False, True], turn
        assert not folder.exists(), turn
"""


def test_of_ranks_that_end_at_once_one_reports(tmp_path: Path) -> None:
    done = run_python("-c", ENDING, tmp_path)
    assert done.returncode == 0, done.stderr


OPENED = """
import os, torch.multiprocessing as mp, multiprocessing.connection

def nothing(rank):
    pass

def opened():
    return len(os.listdir("/proc/self/fd"))

if __name__ == "__main__":
    mp.start_processes(nothing, nprocs=2, start_method="fork")
    before = opened()
    for _ in range(6):
        mp.start_processes(nothing, nprocs=2, start_method="fork")
    print(opened() - before)
    for _ in range(40):
        process = mp.get_context("fork").Process(target=nothing, args=(0,))
        process.start()
        multiprocessing.connection.wait([process.sentinel])
        del process
    print(opened() - before)
"""


def test_processes_that_have_ended_keep_no_file_open(tmp_path: Path) -> None:
    program = tmp_path / "opened.py"
    program.write_text(OPENED, encoding="utf-8")
    joined, forgotten = map(int, run_python(*GUARDED, program, forked="torch").stdout.split()[:2])
    assert joined < 6
    assert forgotten < 40


# -- the folder that ranks share -------------------------------------------------------------------

_ME = os.getuid() if hasattr(os, "getuid") else 0


@pytest.fixture
def rank_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a launch, which nobody has made yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("GRADGUARD_RANKS", raising=False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    return ranks._shared_path()


def test_ranks_share_a_folder_that_is_theirs_alone(rank_folder: Path) -> None:
    before = os.umask(0)
    try:
        assert isinstance(ranks.this_rank(), ranks.Rank)
    finally:
        os.umask(before)
    assert stat.S_IMODE(rank_folder.stat().st_mode) == 0o700
    assert isinstance(ranks.this_rank(), ranks.Rank)


def _foreign(monkeypatch: pytest.MonkeyPatch, wanted: Path) -> None:
    """Have `wanted` belong to somebody else."""
    original = Path.lstat

    def lstat(self: Path) -> os.stat_result:
        about = original(self)
        if self != wanted:
            return about
        return os.stat_result((*about[:4], _ME + 1, *about[5:10]))

    monkeypatch.setattr(Path, "lstat", lstat)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    "spoiled",
    ["file", "link", "open", "foreign", "link inside", "folder inside", "foreign inside"],
)
def test_ranks_share_no_folder_that_others_can_write_to(
    rank_folder: Path, monkeypatch: pytest.MonkeyPatch, spoiled: str, given: bool
) -> None:
    target = rank_folder.with_name("target")
    target.mkdir(0o700)
    if given:
        monkeypatch.setenv("GRADGUARD_RANKS", str(rank_folder))
    if spoiled == "file":
        rank_folder.touch(0o600)
    elif spoiled == "link":
        rank_folder.symlink_to(target)
    else:
        rank_folder.mkdir(0o700)
    inside = rank_folder / "1-1.findings"
    if spoiled == "open":
        rank_folder.chmod(0o701)
    elif spoiled == "foreign":
        _foreign(monkeypatch, rank_folder)
    elif spoiled == "link inside":
        inside.symlink_to(target)
    elif spoiled == "folder inside":
        inside.mkdir()
    elif spoiled == "foreign inside":
        inside.touch()
        _foreign(monkeypatch, inside)
    assert ranks.this_rank() is None
    assert not list(target.iterdir())


class Evil:
    """What runs code where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


@pytest.mark.parametrize("name", ["1-1.findings", "reported", "x.findings"])
@pytest.mark.parametrize("kind", ["pickle", "version", "type", "huge", "pipe"])
def test_what_no_rank_has_written_is_left_out(
    rank_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, kind: str
) -> None:
    finding = Finding("GG501", "x", Severity.ERROR, "runtime", "m", Location("/a.py", 3))
    rank = ranks.this_rank()
    assert rank is not None
    rank.failed = True
    file = rank_folder / name
    text = plain_data.dumps([finding])
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "pickle":
        file.write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    elif kind == "huge":
        monkeypatch.setattr(plain_data, "LONGEST", len(text) + 500)
        file.write_text(f"[{plain_data.VERSION},[]{' ' * 1_000}]")
    else:
        file.write_text({"version": text.replace("[1,", "[0,", 1), "type": "[1,[7,{}]]"}[kind])
    told = rank.end([finding])
    assert told is not None
    assert [one.code for one in told.shown] == ["GG501"]
    assert not (tmp_path / "ran").exists()
