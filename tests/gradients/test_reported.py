"""What the guard has reported about a tensor is the reason that its gradient is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
joblib = pytest.importorskip("joblib")

import worker_tasks as tasks  # noqa: E402
from children import run_python  # noqa: E402
from joblib import Parallel, delayed  # noqa: E402

from pytest_gradguard import allow, guard, why_no_grad  # noqa: E402

UNKNOWN = (
    "unknown: it was not watched during the forward pass, so the cause is unknown.\n"
    "fix: Watch it with `watch_gradients` from before the forward pass."
)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(tasks.__file__).parent), prepend=":")
    monkeypatch.syspath_prepend(str(Path(tasks.__file__).parent))


def leaf() -> Any:
    return torch.ones(3, requires_grad=True)


def doubled(*given: Any) -> Any:
    """The sum of what workers make of each."""
    return torch.stack(Parallel(n_jobs=2)(delayed(tasks.doubles)(one) for one in given)).sum()


def test_a_loss_in_workers_is_the_reason() -> None:
    direct, behind, other = leaf(), leaf(), leaf()
    hidden = behind * 3
    with guard(mode="record") as report:
        loss = doubled(direct, hidden)
        line = sys._getframe().f_lineno + 1
        loss.backward()
        for one in (direct, behind):
            answer = why_no_grad(one)
            assert answer.startswith("reported: GG103 at ")
            assert f"test_reported.py:{line}: This backward stops at 2 results" in answer
            (finding,) = (one for one in report.findings if one.code == "GG103")
            assert finding.fix is not None
            assert answer.endswith(f"fix: {finding.fix}")
        assert why_no_grad(other) == UNKNOWN


def test_a_partial_gradient_is_explained() -> None:
    w = leaf()
    with guard(mode="record"):
        (doubled(w, w) + w.sum()).backward()
        assert w.grad is not None
        assert "the gradient of `w` lacks the part from the workers" in why_no_grad(w)


def test_a_gradient_asked_for_by_grad_is_explained() -> None:
    w, v = leaf(), leaf()
    with guard(mode="record"):
        torch.autograd.grad(doubled(w, w) + v.sum(), [w, v], allow_unused=True)
        assert "GG103" in why_no_grad(w)
        assert why_no_grad(v) == UNKNOWN


def test_a_later_gradient_makes_it_history() -> None:
    w, stepped = leaf(), leaf()
    optimizer = torch.optim.SGD([stepped], lr=0.1)
    with guard(mode="record"):
        doubled(w, stepped).backward()
        (w.sum() + stepped.sum()).backward()
        assert why_no_grad(w) == "It has a gradient."
        optimizer.step()
        optimizer.zero_grad()
        assert why_no_grad(stepped) == UNKNOWN


def test_what_is_allowed_explains_nothing() -> None:
    w = leaf()
    with guard(mode="record"), allow("GG103"):
        doubled(w, w).backward()
        assert why_no_grad(w) == UNKNOWN


def test_another_guard_has_its_own_reasons() -> None:
    w = leaf()
    with guard(mode="record"):
        with guard(mode="record"):
            doubled(w, w).backward()
        assert "GG103" in why_no_grad(w)
        with guard(mode="record"):
            assert why_no_grad(w) == UNKNOWN


COLLECTIVES = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from pytest_gradguard import guard, watch_gradients, why_no_grad

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
net, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)


def gathered(own):
    features = net(torch.ones(1, 2))
    parts = [torch.empty_like(features)]
    dist.all_gather(parts, features)
    if own:
        parts[0] = features
    return head(torch.cat(parts)).sum(), features


with guard(mode="record"):
    loss, features = gathered(own=False)
    loss.backward()
    print(why_no_grad(net.weight).splitlines()[0])
    print(why_no_grad(head.weight))
    watch = watch_gradients(net).start()
    loss, features = gathered(own=False)
    loss.backward()
    (finding,) = watch.stop()
    print(finding.details["reason"], finding.message)
    watch = watch_gradients(net).start()
    head(torch.ones(1, 2)).sum().backward()
    (finding,) = watch.stop()
    print(finding.details["reason"])
    loss, features = gathered(own=True)
    loss.backward()
    print(why_no_grad(net.weight))

    model = torch.nn.Linear(2, 2)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ddp.module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    print(why_no_grad(model.weight).splitlines()[0])
    optimizer.zero_grad()
    ddp(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    print(why_no_grad(model.weight))
dist.destroy_process_group()
"""


def test_collectives_and_ddp_explain_gradients(tmp_path: Path) -> None:
    program = tmp_path / "gathers.py"
    program.write_text(COLLECTIVES, encoding="utf-8")
    done = run_python(program, folder=tmp_path, forked="torch")
    assert done.returncode == 0, done.stderr
    cut, has, watched, elsewhere, restored, local, averaged = done.stdout.splitlines()
    assert cut.startswith("reported: GG501 at gathers.py:15: `all_gather` returns the values of ")
    assert has == "It has a gradient."
    assert watched.startswith(
        "reported no gradient for `weight` and `bias` (2 of 2 watched): GG501"
    )
    assert elsewhere == "not-in-graph"
    assert restored == "It has a gradient."
    assert local.startswith("reported: GG502 at gathers.py:")
    assert averaged == "It has a gradient."
