"""`DataLoader` under the guard: what would wait forever without it, and an unknown layout."""

from __future__ import annotations

import json
import pickle
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
from children import run_python

torch = pytest.importorskip("torch")

HISTORY = """
import torch
from torch.utils.data import DataLoader

def history(index):
    return torch.ones(2, requires_grad=True) * index

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return history(index)

def as_list(batch):
    return batch

if __name__ == "__main__":
    loader = DataLoader(Rows(), num_workers=1, collate_fn=as_list, multiprocessing_context="fork")
    for batch in loader:
        print(batch)
"""


def test_a_sample_with_history_is_an_error_instead_of_a_hang(tmp_path: Path) -> None:
    """That it hangs without the guard is proved in `tests/truth`."""
    (tmp_path / "program.py").write_text(HISTORY)
    command = ["-m", "pytest_gradguard", "run", "--report", "r.json", "program.py"]
    done = run_python(*command, folder=tmp_path, forked="torch")
    assert done.returncode == 1, done.stderr
    assert "Caught RuntimeError in DataLoader worker process 0" in done.stderr
    assert "Cowardly refusing to serialize non-leaf tensor" in done.stderr
    assert "gradguard: " not in done.stderr.partition("error[GG102]")[0], done.stderr
    (finding,) = json.loads((tmp_path / "r.json").read_text())["findings"]
    assert (finding["code"], finding["severity"]) == ("GG102", "error")
    assert "the batch never arrives" in finding["message"]
    assert (
        finding["location"]["line"]
        == HISTORY.splitlines().index(
            next(line for line in HISTORY.splitlines() if "for batch in" in line)
        )
        + 1
    )


def test_a_warning_as_workers_start_is_of_the_line_that_it_has_without_the_guard() -> None:
    from pytest_gradguard import guard

    loader = torch.utils.data.DataLoader(
        [lambda: None], num_workers=1, multiprocessing_context="spawn"
    )

    def told() -> list[tuple[str, str, int]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises((AttributeError, pickle.PicklingError)):
                iter(loader)
        return [(str(one.message), one.filename, one.lineno) for one in caught]

    bare = told()
    with guard("record"):
        assert told() == bare


CAUGHT = """
import time
import jax.numpy as jnp
from torch.utils.data import DataLoader, Dataset

class Waves(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return float(jnp.sin(jnp.arange(4.0) + index).sum())

jnp.ones(3).max()
try:
    list(DataLoader(Waves(), batch_size=2, num_workers=2, multiprocessing_context="fork"))
except RuntimeError as error:
    print(type(error).__name__)
for _ in range(20):
    time.sleep(0.05)
print("goes on")
"""


@pytest.mark.skipif(not find_spec("jax"), reason="JAX is not installed")
def test_a_program_that_catches_the_error_of_a_worker_goes_on(tmp_path: Path) -> None:
    """A worker that ends otherwise than well makes torch raise another error anywhere later."""
    (tmp_path / "program.py").write_text(CAUGHT)
    done = run_python(
        "-m", "pytest_gradguard", "run", "program.py", folder=tmp_path, forked="torch"
    )
    assert done.stdout.splitlines() == ["ForkDeadlockError", "goes on"], done.stderr
    assert "error[GG303]" in done.stderr


def test_an_unknown_layout_closes_the_integration(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_gradguard.runtime.integrations import loader
    from pytest_gradguard.runtime.kernel.registry import UnknownLayout

    module = __import__("torch.utils.data.dataloader", fromlist=["DataLoader"])
    monkeypatch.setattr(module._utils.worker, "_worker_loop", lambda rows: None)
    with pytest.raises(UnknownLayout, match="'dataset_kind'"):
        loader.INTEGRATION.patches["torch.utils.data.dataloader"](module)
