"""dask under the guard: calls that would never end, and what is left when the guard ends."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import pytest
from children import run_python

from pytest_gradguard.runtime.integrations.dask import backend

pytest.importorskip("torch")
pytest.importorskip("distributed")

HERE = Path(__file__).parent


@functools.cache
def ended() -> dict[str, str]:
    """How each call of dask_hangs.py ended; fails where one never did."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"PYTHONWARNINGS": "ignore"}
        done = run_python(HERE / "dask_hangs.py", folder=folder, environment=quiet)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("bfloat16 tensor", "BFloat16"),
        ("sparse tensor", "Sparse"),
        ("conjugate tensor", "conjugate"),
        ("lock", "lock"),
    ],
)
def test_a_result_that_dask_cannot_serialise_is_an_error(kind: str, said: str) -> None:
    text = ended()[f"result: {kind}"]
    assert "what `make` returned" in text
    assert said in text


def test_notes_of_newer_pythons_say_where_it_is() -> None:
    frames = 'Traceback (most recent call last):\n  File "a.py", line 1, in dumps\n    pickle()\n'
    text = f"Could not serialize A\n{frames}TypeError: no B\n\n{frames}TypeError: cannot pickle C\n"
    notes = "when serializing list item 0\nwhen serializing dict item 'made'"
    assert backend._said(text) == "Could not serialize A (TypeError: cannot pickle C)"
    assert backend._said(text + notes) == (
        "Could not serialize A (TypeError: cannot pickle C, when serializing list item 0, "
        "when serializing dict item 'made')"
    )
    assert backend._said("Could not serialize A") == "Could not serialize A"
    assert backend._said("") == ""


@pytest.mark.parametrize(
    ("case", "path"),
    [
        ("argument", "args[1]"),
        ("keyword", "kwargs['lock']['a'][0]"),
        ("large argument", "args[0][0]"),
    ],
)
def test_an_argument_that_cannot_be_pickled_is_named(case: str, path: str) -> None:
    text = ended()[case]
    assert f"`{path}` of `use` (lock)" in text
    assert "wait forever" in text


@pytest.mark.parametrize("case", ["result: float32 tensor", "good results beside", "afterwards"])
def test_other_calls_are_as_they_were(case: str) -> None:
    assert ended()[case] == "a result"


def test_everything_is_undone() -> None:
    """In a child, as importing dask starts threads."""
    program = (
        "import sys, torch, dask, distributed, joblib._dask, distributed.protocol\n"
        "from dask._task_spec import Task\n"
        "from pytest_gradguard import guard\n"
        "table = sys.modules['distributed.protocol.serialize']\n"
        "def state():\n"
        "    client = distributed.Client\n"
        "    backend = joblib._dask.DaskDistributedBackend\n"
        "    submit = getattr(backend, 'submit', None) or backend.apply_async\n"
        "    return [vars(client)['_graph_to_futures'], Task.__getstate__, submit,\n"
        "            backend._to_func_args, distributed.as_completed._track_future,\n"
        "            *(one.dispatch(torch.Tensor) for one in (table.dask_serialize,\n"
        "                                                     table.dask_deserialize))]\n"
        "def main():\n"
        "    options = dict(processes=False, n_workers=1, dashboard_address=None)\n"
        "    with distributed.Client(**options) as client:\n"
        "        before = state()\n"
        "        with guard('record'):\n"
        "            x = torch.ones(2, requires_grad=True)\n"
        "            client.submit(torch.sum, x).result()\n"
        "            changed = [a is not b for a, b in zip(before, state())]\n"
        "            assert changed == [True] * 5 + [False, True], changed\n"
        "        assert state() == before\n"
        "        assert client.submit(torch.sum, x).result().item() == 2\n"
        "if __name__ == '__main__': main()\n"
    )
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr


def test_what_a_peer_sends_is_never_unpickled(tmp_path: Path) -> None:
    quiet = {"PYTHONWARNINGS": "ignore,error::pytest_gradguard.GradGuardWarning"}
    done = run_python(HERE / "dask_peers.py", tmp_path / "ran", environment=quiet)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["topics"]
    assert told["ran"] == []
    assert "gradguard itself failed" not in done.stderr
    assert {"GG101", "GG102"} <= set(told["found"])  # by a header that is the guard's own
