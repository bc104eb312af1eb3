"""What the tests stand on: children, results that are known, and the order of the tests."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import scheduling
import shared_results
import warm
from children import run_python


class Maker:
    """Makes results, and counts them."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        return f"made {self.made}\nlast line"


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def remember(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maker: Maker) -> Callable[[str], str]:
    """``remember(program)``: what is known of a program, in a repository that records nothing."""
    monkeypatch.setattr(shared_results, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(shared_results, "RECORDED", tmp_path / "recorded" / "results.json")
    monkeypatch.setattr(shared_results, "_used", defaultdict(set))
    monkeypatch.setattr(shared_results, "ANEW", False)
    forget_what_is_cached(monkeypatch)
    source = tmp_path / "program.py"

    def remember(program: str) -> str:
        source.write_text(program)
        known = shared_results.is_known("key", [source])
        before = maker.made
        said = shared_results.remembered("key", [source], maker)
        assert known == (maker.made == before)
        return said

    return remember


def forget_what_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_recorded", "_versions"):
        monkeypatch.setattr(shared_results, name, getattr(shared_results, name).__wrapped__)


HERE = "tests/test_suite.py::test_x"
PROGRAM = "def run():\n    import pytest.mark as m, os\n    from joblib import Parallel\n"


def test_a_result_is_made_once_for_each_program(remember: Any, maker: Maker) -> None:
    assert remember(PROGRAM) == remember(PROGRAM) == "made 1\nlast line"
    assert remember(f"{PROGRAM}    # changed\n") == "made 2\nlast line"
    assert remember(PROGRAM) == "made 1\nlast line"


def test_versions_of_what_a_program_imports_count(
    remember: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.metadata.version
    remember(PROGRAM)
    for changed, says in (("numpy", "made 1"), ("joblib", "made 2"), ("pytest", "made 3")):
        monkeypatch.setattr(
            importlib.metadata, "version", lambda n, c=changed: "0" if n == c else real(n)
        )
        assert remember(PROGRAM).startswith(says), changed


def test_what_is_recorded_is_not_made(
    remember: Any, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(PROGRAM)
    shared_results.record()
    shared_results.forget(HERE)
    assert remember(PROGRAM) == "made 1\nlast line"
    assert maker.made == 1
    monkeypatch.setattr(shared_results, "ANEW", True)
    assert remember(PROGRAM) == "made 2\nlast line"


def test_a_failed_test_forgets_what_it_used(remember: Any) -> None:
    remember(PROGRAM)
    shared_results.forget("tests/test_other.py::test_y")
    assert remember(PROGRAM) == "made 1\nlast line"
    shared_results.forget(HERE)
    assert remember(PROGRAM) == "made 2\nlast line"


def test_what_the_guard_does_is_made_again_once_it_changes(
    tmp_path: Path, remember: Any, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, program = tmp_path / "package", tmp_path / "program.py"
    (package / "inner").mkdir(parents=True)
    module, template = package / "inner" / "module.py", package / "page.html"
    program.write_text(PROGRAM)
    module.write_text("one = 1\n")
    monkeypatch.delenv("CI", raising=False)

    def made() -> int:
        before = maker.made
        shared_results._digest.cache_clear()
        shared_results.until_changed("key", [program], [package], maker)
        return maker.made - before

    assert (made(), made()) == (1, 0)
    for path, text in ((module, "one = 2\n"), (template, "<p>"), (program, "one = 3\n")):
        path.write_text(text)
        assert (made(), made()) == (1, 0), path
    assert len(list((tmp_path / "kept").rglob("key-*.txt"))) == 1
    monkeypatch.setattr(shared_results, "_distributions", lambda: {"joblib": ["joblib"]})
    assert (made(), made()) == (1, 0)
    shared_results.forget(HERE)
    assert (made(), made()) == (1, 0)
    shared_results.record()
    assert not json.loads(shared_results.RECORDED.read_text())
    monkeypatch.setenv("CI", "true")
    assert (made(), made()) == (1, 1)


def test_the_longest_come_first_and_new_ones_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "seconds.json"
    monkeypatch.setattr(scheduling, "RECORDED", record)
    record.write_text('{"b.py": 7, "b.py@case_gone": 1, "d.py": 0}')
    watch = scheduling.Stopwatch()
    for nodeid, duration in (
        ("a.py::test_x[1]", 1),
        ("c.py::test_y[v::w@case_one]", 4),
        ("b.py::test_x", 2.9),
        ("c.py::test_z[u@case_one]", 5),
    ):
        watch.pytest_runtest_logreport(SimpleNamespace(nodeid=nodeid, duration=duration))
    watch.pytest_sessionfinish()
    assert json.loads(record.read_text()) == {
        "a.py": 1,
        "b.py": 3,
        "c.py@case_one": 9,
        "d.py": 0,
    }

    ids = ["a.py::test_x[1]", "c.py::test_y[w@case_one]", "b.py::test_x", "c.py::t", "b.py::test_y"]
    items = [SimpleNamespace(nodeid=nodeid) for nodeid in ids]
    scheduling.longest_first(items)
    assert [item.nodeid for item in items] == [ids[3], ids[1], ids[2], ids[4], ids[0]]


SHOWS_ITSELF = """
import os, sys, threading, warnings, weakref
import __main__

print(sys.argv, sys.path[0] == os.getcwd(), os.environ["MINE"], os.getppid() == os.getsid(0))
print(__main__.__dict__ is globals(), __name__, __file__, __spec__ and __spec__.name)
def done_at_exit():
    steps = [one for one in weakref.finalize._registry if one.atexit]
    return sum(one.peek()[1].__module__.startswith("torch") for one in steps)

print(sys.stdin.read(), threading.active_count(), os.getpid() == os.getsid(0), done_at_exit())
print({"torch", "numpy", "joblib"} & set(sys.modules))
print(sys.path[1], sys.warnoptions, warnings.filters[0])

class Told:
    def find_spec(self, name, path, target=None):
        if name in ("torch", "torch.cuda", "torch.nn.modules.linear"):
            print("asked for", name)

sys.meta_path.insert(0, Told())
import torch
import joblib
brought = [name for name in sys.modules if name.split(".")[0] in ("torch", "numpy", "joblib")]
print(len(brought), torch.__spec__.origin, torch.__loader__.__class__, torch.ones(2).sum())
print(torch.optim.Adam.__module__, hasattr(torch.optim, "adam"), torch.multiprocessing.spawn)
torch.optim.SGD([torch.ones(2, requires_grad=True)], 0.1)
brought = [name for name in sys.modules if name.split(".")[0] in ("torch", "sympy")]
print(done_at_exit(), len(brought), torch._dynamo.__spec__.origin, torch._dynamo.config.__class__)
print("told", file=sys.stderr)
import atexit
atexit.register(print, "at the end")
if "fail" in sys.argv:
    sys.exit(7)
if "die" in sys.argv:
    sys.stdout.flush()
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("arguments", [["program.py", "fail"], ["-m", "program", "die"]])
def test_a_forked_program_runs_as_a_fresh_one(tmp_path: Path, arguments: list[str]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(SHOWS_ITSELF)
    variables = {"MINE": "set", "PYTHONPATH": str(tmp_path / "a"), "PYTHONWARNINGS": "ignore"}
    forked, fresh = (
        run_python(*arguments, folder=tmp_path, environment=variables, forked=forked)
        for forked in ("torch", "")
    )
    hide = functools.partial(re.sub, r"0x\w+", "0x")
    assert hide(forked.stdout) == hide(fresh.stdout)
    assert (forked.stderr, forked.returncode) == (fresh.stderr, fresh.returncode)
    assert fresh.returncode == (7 if "fail" in arguments else -9)
    assert "asked for torch.cuda" in fresh.stdout


HAS_WORKERS = """
import json, os, random, sys, time
import joblib

def shown(known):
    at_start = "torch" in sys.modules
    import numpy, torch
    return {
        "drawn": [random.random(), numpy.random.rand(), torch.rand(1).item()],
        "starts": [at_start, os.getppid() == known, sys.argv, sys.path, str(sys.flags)],
        "place": [os.getcwd(), os.environ["MINE"]],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": torch.get_num_threads(),
    }

def fail():
    os._exit(7)

if __name__ == "__main__":
    import multiprocessing
    os.environ["MINE"] = "set"
    found = joblib.Parallel(2, batch_size=1)(joblib.delayed(shown)(os.getpid()) for _ in range(8))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found.append(pool.apply(shown, [os.getpid()]))
    for how in ("spawn", "forkserver"):
        process = multiprocessing.get_context(how).Process(target=fail)
        process.start()
        process.join()
        found.append(process.exitcode)
    print(json.dumps(found))
"""


def test_workers_of_a_forked_program_are_like_executed_ones(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("joblib")
    (tmp_path / "program.py").write_text(HAS_WORKERS)
    forked, fresh = (
        json.loads(run_python("program.py", folder=tmp_path, forked=forked).stdout)
        for forked in ("torch", "")
    )
    drawn = [worker.pop("drawn") for found in (forked, fresh) for worker in found[:-2]]
    assert all(len(set(numbers)) == len(drawn) for numbers in zip(*drawn, strict=True))
    assert forked[0] == fresh[0]  # the first that a worker did
    assert forked[-3:] == fresh[-3:]
    assert fresh[-2:] == [7, 7]


def test_what_python_reads_as_it_starts_needs_a_fresh_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert warm.can_run({**os.environ, "MINE": "set", "PYTHONPATH": str(tmp_path)})
    assert not warm.can_run({**os.environ, "PYTHONHASHSEED": "7"})
    (tmp_path / "sitecustomize.py").touch()
    assert not warm.can_run({**os.environ, "PYTHONPATH": str(tmp_path)})
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert not warm.can_run(os.environ)


def test_one_stream_keeps_the_order(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "for k in range(3):\n"
        "    print(k, file=(sys.stdout, sys.stderr)[k % 2], flush=True)\n"
    )
    for forked in ("torch", ""):
        done = run_python("program.py", folder=tmp_path, one_stream=True, forked=forked)
        assert (done.stdout, done.stderr) == ("0\n1\n2\n", "")


def is_gone(group: int) -> bool:
    """Whether nothing is left of a process group, once what was killed has ended."""
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("forked", ["torch", ""])
def test_what_hangs_is_ended_with_all_that_it_started(tmp_path: Path, forked: str) -> None:
    program = "import os, time\nprint(os.getpid(), flush=True)\nos.fork()\ntime.sleep(600)\n"
    (tmp_path / "program.py").write_text(program)
    with pytest.raises(AssertionError, match="hung") as raised:
        run_python("program.py", folder=tmp_path, limit=3, forked=forked)
    group = int(str(raised.value).splitlines()[1])
    assert is_gone(group)
    assert run_python("-m", "this", folder=tmp_path, forked=forked).returncode == 0


def test_skipped_tests_and_files_are_written(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_whole="import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass\n",
        test_parts="""
            import pytest

            @pytest.mark.parametrize("name", ["a::b", "c d"])
            def test_skipped(name):
                pytest.skip("not here")

            def test_run():
                pass

            @pytest.mark.xfail
            def test_expected_to_fail():
                assert False
        """,
    )
    skipped = pytester.path / "skipped.txt"
    pytester.inline_run(plugins=[scheduling.SkippedTests(skipped)]).assertoutcome(
        passed=1, skipped=4
    )
    assert set(skipped.read_text().splitlines()) == {
        "test_whole.py",
        "test_parts.py::test_skipped[a::b]",
        "test_parts.py::test_skipped[c d]",
    }
    pytester.inline_run(f"@{skipped}").assertoutcome(skipped=3)


def test_a_cache_that_cannot_be_written_is_replaced(tmp_path: Path) -> None:
    writable = shared_results.cache_folder({"XDG_CACHE_HOME": str(tmp_path)})
    assert writable == tmp_path / "gradguard-tests"
    file = tmp_path / "file"
    file.touch()
    elsewhere = shared_results.cache_folder({"XDG_CACHE_HOME": str(file)})
    assert not elsewhere.is_relative_to(tmp_path)
