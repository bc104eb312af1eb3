"""The notes that errors at the boundary get: which object it was, and the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from children import run_python

from pytest_gradguard.runtime.kernel import error_notes

PROGRAM = """\
import json, multiprocessing, sqlite3, threading
from concurrent.futures import ProcessPoolExecutor
import torch
import torch.multiprocessing
from joblib import Parallel, delayed
from torch import nn
from torch.utils.data import DataLoader

FORK = multiprocessing.get_context("fork")

class Logged(nn.Module):
    def __init__(self, log):
        super().__init__()
        self.log = {"open": [log]}

class Unready:
    def __reduce__(self):
        raise TypeError("not ready")

def task(model, data=None):
    return 1

def made(model):
    return {"made": Logged(threading.Lock())}

def history(factor):
    return {"loss": [torch.ones(2, requires_grad=True) * factor]}

def sender(queue):
    queue.put(torch.ones(2))

def result_of_a_pool(function):
    with FORK.Pool(1) as pool:
        pool.map(function, [1])

def result_of_an_executor(function):
    with ProcessPoolExecutor(1, mp_context=FORK) as executor:
        executor.submit(function, 1).result()

def in_pool(*args):
    with FORK.Pool(1) as pool:
        pool.apply(task, args)

def in_executor(*args, **kwargs):
    with ProcessPoolExecutor(1, mp_context=FORK) as executor:
        executor.submit(task, *args, **kwargs).result()

def in_joblib(function, model, **options):
    Parallel(2, **options)([delayed(function)(model)])

def in_spawned(model):
    multiprocessing.get_context("spawn").Process(target=task, args=(model,)).start()

def put(item):
    torch.multiprocessing.SimpleQueue().put(item)

def sender_has_ended():
    queue = FORK.SimpleQueue()
    process = FORK.Process(target=sender, args=(queue,))
    process.start()
    process.join()
    queue.get()

if __name__ == "__main__":
    graph = torch.ones(2, requires_grad=True) * 2
    with_lock, local = Logged(threading.Lock()), Logged(lambda values: values)
    cases = {
        "graph in a pool": lambda: in_pool(1, [graph]),
        "graph in an executor": lambda: in_executor(1, data={"x": graph}),
        "graph in a queue": lambda: put({"loss": graph}),
        "lock in a pool": lambda: in_pool(with_lock),
        "lock in joblib": lambda: in_joblib(task, with_lock),
        "lock in joblib's pool": lambda: in_joblib(task, with_lock, backend="multiprocessing"),
        "lock in a process": lambda: in_spawned(with_lock),
        "lock in a result": lambda: in_joblib(made, 1),
        "graph in a result": lambda: result_of_an_executor(history),
        "graph in a pool's result": lambda: result_of_a_pool(history),
        "lock in a pool's result": lambda: result_of_a_pool(made),
        "function in a pool": lambda: in_pool(local),
        "generator": lambda: in_executor(k for k in range(2)),
        "file": lambda: in_executor(open(__file__)),
        "connection": lambda: in_executor(sqlite3.connect(":memory:")),
        "iterator of a loader": lambda: in_executor(Logged(iter(DataLoader([1])))),
        "own error": lambda: in_executor(Unready()),
        "own error in joblib": lambda: in_joblib(task, Unready()),
        "sender has ended": sender_has_ended,
    }
    for name, case in cases.items():
        try:
            case()
        except Exception as error:
            kind = type(error).__name__
            print(json.dumps([name, kind, getattr(error, "__notes__", [])]))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("joblib")
    path = tmp_path_factory.mktemp("notes") / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def told(program: Path) -> dict[str, tuple[str, list[str]]]:
    """The class and the notes of each error under the guard."""
    done = run_python("-m", "pytest_gradguard", "run", program, forked="torch")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == 19, done.stdout + done.stderr
    return {name: (kind, notes) for name, kind, notes in lines}


@pytest.mark.parametrize(
    ("case", "kind", "path", "answer"),
    [
        ("graph in a pool", "RuntimeError", "parameter `data[0]` of `task`", "`tensor.detach()`"),
        ("graph in an executor", "RuntimeError", "`data['x']` of `task`", "`tensor.detach()`"),
        ("graph in a queue", "RuntimeError", "`object['loss']`", "`tensor.detach()`"),
        ("lock in a pool", "TypeError", "`model.log['open'][0]` of `task`", "in the task"),
        ("lock in joblib", "PicklingError", "log['open'][0]`", "`__getstate__`"),
        ("lock in joblib's pool", "TypeError", "log['open'][0]`", "`__getstate__`"),
        ("lock in a process", "TypeError", "log['open'][0]`", "`__getstate__`"),
        ("lock in a result", "TypeError", "`result['made'].log['open'][0]` of `made`", "returns"),
        ("graph in a result", "RuntimeError", "`result['loss'][0]` of `history`", "Return `"),
        ("graph in a pool's result", "MaybeEncodingError", "`result['loss'][0]`", "Return `"),
        (
            "lock in a pool's result",
            "MaybeEncodingError",
            ".log['open'][0]`",
            "the task returns",
        ),
        ("function in a pool", "PicklingError", "log['open'][0]`", "top level of a module"),
        ("generator", "TypeError", "`generator`", "a list of its items"),
        ("file", "TypeError", "`_io.TextIOWrapper`", "Open the file in the task"),
        ("connection", "TypeError", "`sqlite3.Connection`", "Create it in the task"),
        (
            "iterator of a loader",
            "NotImplementedError",
            ".log['open'][0]`",
            "Create it in the task",
        ),
    ],
)
def test_a_note_names_the_object_and_the_way_out(told, case, kind, path, answer):
    (note,) = told[case][1]
    assert told[case][0] == kind
    assert note.startswith("gradguard: ")
    assert path in note
    assert answer in note


def test_a_tensor_whose_sender_has_ended(told):
    kind, (note,) = told["sender has ended"]
    assert kind in ("FileNotFoundError", "ConnectionRefusedError")
    assert "has ended" in note
    assert "`tensor.numpy()`" in note


@pytest.mark.parametrize("case", ["own error", "own error in joblib"])
def test_an_error_of_the_programs_own_gets_none(told, case):
    assert told[case][1] == []


def test_a_test_that_fails_shows_the_note_under_xdist_too(program: Path):
    pytest.importorskip("xdist")
    test = (
        "import program\n\ndef test_sends():\n    program.in_pool(program.Logged(open('x', 'w')))\n"
    )
    (program.parent / "test_it.py").write_text(test)
    arguments = ["-m", "pytest", "-p", "no:cacheprovider", "--gradguard", "-n1", "test_it.py"]
    done = run_python(*arguments, folder=program.parent)
    assert "1 failed" in done.stdout
    assert "gradguard: parameter `model.log['open'][0]` of `task`" in done.stdout


def test_a_note_is_added_once_and_changes_nothing_else():
    error = ValueError("what", 1)
    error_notes.add(error, "why")
    error_notes.add(error, "why")
    assert error_notes.notes_of(error) == ["gradguard: why"]
    assert (str(error), error.args) == ("('what', 1)", ("what", 1))
    assert error_notes.explained(error)


def test_before_notes_existed_a_warning_says_it():
    class Old(Exception):
        add_note = property()  # as if there were none

    error = Old("what")
    with pytest.warns(match="Old: why"):
        error_notes.add(error, "why")
    assert error_notes.notes_of(error) == ["gradguard: why"]
