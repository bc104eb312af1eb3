"""What the guard knows is dropped at its end, and what is of the parent in a forked child."""

from __future__ import annotations

import textwrap

import pytest
from children import run_python

from pytest_gradguard.platforms import HERE

PROGRAM = """
    import os, pickle, sys
    import torch
    from joblib import Parallel, delayed
    from torch.utils.data.distributed import DistributedSampler
    from pytest_gradguard import guard
    from pytest_gradguard.runtime.kernel import state
    from pytest_gradguard.runtime.pitfalls.cuda import attempts

    def double(model, x):
        loss = model(x).sum()
        loss.backward()
        return loss * 2

    def use():
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        out = Parallel(2)(delayed(double)(model, torch.ones(2)) for _ in range(2))
        sum(out).backward()
        optimizer.step()
        pickle.dumps([model.weight, out[0]])
        sampler = DistributedSampler([1, 2], num_replicas=1, rank=0)
        attempts.note("cupy", RuntimeError("planted"))
        return model, optimizer, out, list(sampler), sampler

    def contents(states):
        return {
            f"{index} {type(one).__module__}.{type(one).__qualname__}":
            repr(vars(one)) if hasattr(one, "__dict__") else repr(one)
            for index, one in enumerate(states)
        }

    def differing(one, other):
        return [name for name in one if one[name] != other[name]]
"""
needs_forks = pytest.mark.skipif(not HERE.forks, reason="it forks")


def run(text: str) -> list[str]:
    done = run_python("-c", textwrap.dedent(PROGRAM) + textwrap.dedent(text), forked="torch")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_guard_that_has_ended_knows_nothing() -> None:
    filled, left = run(
        """
        with guard("record"):
            kept = use()
            during = contents(state.at_end)
        after = contents(state.at_end)
        state.drop(state.at_end)
        fresh = contents(state.at_end)
        print(len(differing(during, fresh)))
        print(differing(after, fresh))
        """
    )
    assert int(filled) > 12
    assert left == "[]"


@needs_forks
def test_a_forked_child_begins_without_what_is_its_parents() -> None:
    filled, left = run(
        """
        with guard("record"):
            kept = use()
            during = contents(state.in_forked_child)
            if os.fork() == 0:
                begun = contents(state.in_forked_child)
                state.drop(state.in_forked_child)
                fresh = contents(state.in_forked_child)
                print(len(differing(during, fresh)))
                print(differing(begun, fresh), flush=True)
                os._exit(0)
            os.wait()
        """
    )
    assert int(filled) > 0
    assert left == "[]"
