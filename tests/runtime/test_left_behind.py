"""What a worker's copy leaves behind: what the findings say, when they stand, what is patched."""

from __future__ import annotations

import gc
import multiprocessing
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
joblib = pytest.importorskip("joblib")

from pytest_gradguard import guard  # noqa: E402
from pytest_gradguard.runtime.kernel import calls, probes, shipped_modules  # noqa: E402
from pytest_gradguard.runtime.kernel.tasks import Task  # noqa: E402
from pytest_gradguard.runtime.pitfalls.kept import gg106, worker_gradients  # noqa: E402


def gradients(model, x):
    return torch.autograd.grad(model(x).square().sum(), list(model.parameters()))


def stepped(model):
    """Step `model` with gradients from two workers, which keep its buffers."""
    tasks = (joblib.delayed(gradients)(model, torch.ones(2, 3) * k) for k in (1.0, 2.0))
    results = joblib.Parallel(2, batch_size=1)(tasks)
    for parameter, *parts in zip(model.parameters(), *results, strict=True):
        parameter.grad = sum(parts)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def backward(model):
    model(torch.ones(2, 3)).sum().backward()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are listed in /proc")
@pytest.mark.parametrize("computed", [1, 4096])
def test_no_descriptor_of_a_process_that_has_been_joined(computed):
    context = multiprocessing.get_context("fork")
    with guard("record"):
        backward(torch.nn.Linear(3, computed))  # a large one in threads: GG303 listens, too
        before = set(os.listdir("/proc/self/fd"))  # those of earlier tests may close meanwhile
        process = context.Process(target=backward, args=(torch.nn.Linear(3, 1),))
        process.start()
        process.join(0.001)  # it may still run
        process.join()
        process.close()
        assert not set(os.listdir("/proc/self/fd")) - before


def normed():
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


def test_a_module_without_its_state_is_not_looked_at():
    shell = object.__new__(torch.nn.Sequential)  # another thread is unpickling it
    shipped_modules.know(1, 1, shell)
    assert shell not in [module for _, module in shipped_modules.copies()]
    shell.__dict__.update(vars(torch.nn.Sequential()))
    assert any(module is shell for _, module in shipped_modules.copies())


def test_a_module_lives_as_long_as_it_is_looked_at():
    arrived = shipped_modules.arrived(0, 1, 1, normed, ())
    try:
        arrived.circle = [arrived]  # the garbage collector frees it, whenever that runs
        del arrived
        looked_at = shipped_modules.copies()
        _, module = next(looked_at)
        gc.collect()
        assert len(list(module.named_modules())) == 3
        looked_at.close()
        del looked_at, module
        gc.collect()
        assert not list(shipped_modules.copies())
    finally:
        probes.deactivate("gg111")


PLACES = [
    (torch.nn.Module, "train"),
    (torch.nn.Module, "state_dict"),
    (torch.optim.Optimizer, "add_param_group"),
    (torch, "save"),
]


def standing():
    """What stands in the places that are patched while something is waited for."""
    return [vars(owner)[name] for owner, name in PLACES]


def test_buffers_that_stay_in_a_worker():
    before = standing()
    with guard("record") as report:
        model = normed()
        stepped(model)
        assert standing() != before
        model.eval()
        assert standing() == before  # nothing more is to be said of it
    (finding,) = (found for found in report.findings if found.code == "GG111")
    assert finding.message == (
        "`gradients` updates 3 buffers of its copy of `model` in a loky worker (`1.running_mean`, "
        "`1.running_var` and `1.num_batches_tracked`) and returns none of them. The parent then "
        "steps the module's parameters and evaluates the module, with the buffers from before "
        "the call."
    )
    assert [step.message for step in finding.trace] == [
        "`gradients` updates buffers of its copy, and does not return them",
        "the parent steps the module's parameters here",
        "the parent evaluates the module here",
    ]
    assert finding.count == 1
    assert finding.location.function == "stepped"


@pytest.mark.parametrize("kept", [True, False])
def test_after_a_step_new_values_come_in_time(kept):
    """Whether the module is still there as the findings are read, or is not."""
    with guard("record") as report:
        late, never = normed(), normed()
        stepped(late)
        stepped(never)
        assert [found.count for found in report.findings if found.code == "GG111"] == [2]
        late[1].running_mean.fill_(0.5)
        never.load_state_dict(never.state_dict())
        if not kept:
            del late
        assert [found.code for found in report.findings if found.code == "GG111"] == ["GG111"]
        never[1].running_var.fill_(0.5)
        if not kept:
            del never
        assert "GG111" not in {found.code for found in report.findings}
    assert "GG111" not in {found.code for found in report.findings}


def trained(model, x):
    model(x).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return model


def test_a_model_that_came_back():
    before = standing()
    with guard("record") as report:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        (model,) = joblib.Parallel(2)([joblib.delayed(trained)(model, torch.ones(1, 3))])
        model(torch.ones(1, 3)).sum().backward()
        for _ in range(2):
            optimizer.step()
    assert standing() == before
    assert "__reduce_ex__" not in vars(torch.nn.Module)
    (finding,) = (found for found in report.findings if found.code == "GG112")
    assert finding.message == (
        "`optimizer.step()` does not update the model in use: its 2 parameters (`weight` and "
        "`bias`) have no gradient. They belong to the model that was sent to `trained` in a loky "
        "worker. The gradients are in the copy that it returned, which this optimizer does not "
        "hold."
    )
    assert (finding.severity.label, finding.count) == ("error", 2)


def test_the_line_is_that_of_the_call_that_shipped_the_parameters():
    parameter = torch.nn.Parameter(torch.ones(2))
    with guard("record"):
        made, used = calls.begin(), calls.begin()
        made.remember_shipped(parameter, "args[0]")
        _use_of_what_was_put(used, made)
        ((identity, _, sent_by),) = worker_gradients._shipped(used)
        assert (identity, sent_by) == (id(parameter), made)
        task = Task("Learner.backward", None, None)
        left = gg106.KeptGradients(task, {}, False, {}, "", False, False)
        evidence = gg106.Evidence(None, used, left, sent_by.site, by_hand=False)
    (step,) = evidence.trace()
    assert step.line == made.site.line


def _use_of_what_was_put(used, made):
    used.shipped.update(made.shipped)
    used.shipped_before.update(dict.fromkeys(made.shipped, made))


@pytest.mark.parametrize("shared", [False, True])
def test_parameters_that_are_shared_are_not_called_copies(shared):
    model = torch.nn.Linear(3, 1)
    if shared:
        model.share_memory()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with guard("record") as report:
        process = multiprocessing.get_context("fork").Process(target=backward, args=(model,))
        process.start()
        process.join()
        optimizer.step()
    (finding,) = [one for one in report.findings if one.code == "GG106"]
    said = [finding.message, finding.fix, *(step.message for step in finding.trace)]
    assert any("cop" in text for text in said) is not shared
    assert ("the parameters are in shared memory" in finding.message) is shared
    assert ("share_memory_()" in finding.fix) is shared
