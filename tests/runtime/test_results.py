"""GG102 and GG103: what comes back without its graph, and the backward that reaches it."""

from __future__ import annotations

import gc
import linecache
import pickle
import pickletools
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import workers
from children import run_python
from joblib import Parallel, delayed

from pytest_gradguard import Finding, guard
from pytest_gradguard.findings import Severity
from pytest_gradguard.runtime.frameworks.torch.copies import digest
from pytest_gradguard.runtime.kernel.lineage import LINEAGE
from pytest_gradguard.runtime.pitfalls.lost import provenance

PROCESSES = ["loky", "multiprocessing"]


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def found(run: Callable[[], Any]) -> dict[str, Finding]:
    with guard("record") as report:
        run()
    return {finding.code: finding for finding in report.findings}


def visible(findings: dict[str, Finding]) -> set[str]:
    return {code for code, f in findings.items() if f.severity >= Severity.WARNING}


def doubled(tensor: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    return Parallel(2, **options)(delayed(workers.double)(tensor) for _ in range(2))


def test_gradients_that_the_program_gives_by_itself() -> None:
    x = leaf()

    def run() -> None:
        out = doubled(x)
        (out[0] * out[1]).sum().backward()
        x.grad = 2 * (out[0].grad + out[1].grad)

    findings = found(run)
    assert visible(findings) == {"GG101", "GG102"}
    assert findings["GG102"].explains == ()


def test_a_result_that_lies_where_a_leaf_lay_in_the_forked_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal numbers at an equal address: it is still no tensor that was shipped to that call."""
    remember = provenance.remember

    def remember_there(token: int, note: Any, tensor: torch.Tensor) -> None:
        remember(token, note, tensor)
        provenance.inherit(token, LINEAGE, {id(tensor): digest(tensor) or ""})

    monkeypatch.setattr(provenance, "remember", remember_there)
    findings = found(
        lambda: sum(doubled(leaf().clone(), backend="multiprocessing")).sum().backward()
    )
    assert findings["GG103"].details["partial_gradient"] == []


@pytest.mark.parametrize("backend", PROCESSES)
def test_the_gradient_that_stops_at_the_boundary(backend: str) -> None:
    x = leaf()

    def run() -> None:
        out = doubled(x.clone(), backend=backend)
        (out[0] + out[1]).mean().backward()

    findings = found(run)
    assert x.grad is None
    assert visible(findings) == {"GG101", "GG102", "GG103"}
    confirmed = findings["GG103"]
    assert confirmed.severity is Severity.ERROR
    assert confirmed.details["results"] == 2
    assert confirmed.details["function"] == "double"
    assert confirmed.details["backend"] == backend
    # x is called `x` in the function around `run`, and is no local of it
    assert confirmed.details["without_gradient"] == ["x"]
    assert findings["GG102"].details["history"] == "MulBackward0"
    assert findings["GG102"].count == 2


def test_the_line_is_the_backwards_own_and_the_trace_names_the_call() -> None:
    x = leaf()
    with guard("record") as report:
        out = doubled(x)
        loss = out[0].sum()
        loss.backward()
    by_code = {finding.code: finding for finding in report.findings}
    here = by_code["GG103"].location
    assert linecache.getline(here.path, here.line).strip() == "loss.backward()"
    dispatched, made = by_code["GG103"].trace
    assert "return Parallel(2, **options)" in linecache.getline(__file__, dispatched.line)
    assert made.path == workers.__file__
    assert "double" in made.message


def test_a_models_parameters_count_as_shipped() -> None:
    model = torch.nn.Linear(3, 1)

    def run() -> None:
        losses = Parallel(2)(delayed(workers.loss_of)(model) for _ in range(2))
        sum(losses).backward()

    findings = found(run)
    assert visible(findings) == {"GG102", "GG103"}
    assert findings["GG103"].severity is Severity.ERROR
    assert findings["GG103"].details["without_gradient"] == ["model.weight", "model.bias"]
    assert model.weight.grad is None


def test_leaves_of_the_workers_own_are_a_warning() -> None:
    def run() -> None:
        out = Parallel(2)(delayed(workers.own_graph)(index) for index in range(2))
        torch.stack(out).sum().backward()

    findings = found(run)
    assert visible(findings) == {"GG102", "GG103"}
    assert findings["GG103"].severity is Severity.WARNING


def test_half_a_gradient_is_said_to_be_half() -> None:
    x = leaf()

    def run() -> None:
        out = doubled(x)
        (sum(out) + x).sum().backward()

    findings = found(run)
    assert findings["GG103"].details["partial_gradient"] == ["x"]
    assert findings["GG103"].details["without_gradient"] == []
    assert "lacks the part" in findings["GG103"].message


def test_a_gradient_from_before_is_not_called_half() -> None:
    x = leaf()
    x.sum().backward()

    def run() -> None:
        doubled(x)[0].sum().backward()

    findings = found(run)
    assert findings["GG103"].details["partial_gradient"] == []


@pytest.mark.parametrize(
    "backward",
    [
        lambda loss, out, x: loss.backward(),
        lambda loss, out, x: loss.backward(retain_graph=True),
        lambda loss, out, x: loss.backward(create_graph=True),
        lambda loss, out, x: torch.autograd.backward(loss),
        lambda loss, out, x: torch.autograd.backward([loss, out[0].sum()]),
        lambda loss, out, x: torch.autograd.grad(loss, [out[0], x], allow_unused=True),
        lambda loss, out, x: torch.autograd.grad(loss, [x], allow_unused=True),
        lambda loss, out, x: (loss + x.sum()).backward(inputs=[x]),
        lambda loss, out, x: torch.autograd.grad(loss + x.sum(), x),
    ],
)
def test_every_way_to_run_a_backward(backward: Callable[..., Any]) -> None:
    x = leaf()

    def run() -> None:
        out = doubled(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # create_graph=True
            backward(torch.stack(out).mean(), out, x)

    assert found(run)["GG103"].severity is Severity.ERROR


def only_data(x: torch.Tensor) -> None:
    out = doubled(x)
    (out[0].detach() * x).sum().backward()


def under_no_grad(x: torch.Tensor) -> None:
    out = doubled(x)
    with torch.no_grad():
        torch.stack(out).sum()


def elsewhere(x: torch.Tensor) -> None:
    out = doubled(x)
    (x * 3).sum().backward()
    assert out


def asked_for_another(x: torch.Tensor) -> None:
    other = leaf()
    out = doubled(x)
    torch.autograd.grad((out[0] * other).sum(), other)


@pytest.mark.parametrize("program", [only_data, under_no_grad, elsewhere, asked_for_another])
def test_no_gradient_arrived_no_finding(program: Callable[[torch.Tensor], None]) -> None:
    x = leaf()
    assert "GG103" not in found(lambda: program(x))


@pytest.mark.parametrize(
    ("worker", "argument"),
    [
        (workers.double_detached, torch.ones(3, requires_grad=True)),
        (workers.total, torch.ones(3, requires_grad=True)),
        (workers.train, torch.nn.Linear(3, 3)),
        (workers.gradients_of, torch.nn.Linear(3, 3)),
        (workers.identity, torch.ones(3)),
        (workers.identity, torch.nn.Linear(3, 3)),
    ],
)
@pytest.mark.parametrize("backend", PROCESSES)
def test_results_without_a_graph_are_nothing(worker: Any, argument: Any, backend: str) -> None:
    findings = found(
        lambda: Parallel(2, backend=backend)(delayed(worker)(argument) for _ in range(2))
    )
    assert not {"GG102", "GG103"} & findings.keys()


def test_models_trained_in_workers_and_trained_further_here() -> None:
    def run() -> None:
        trained = Parallel(2)(delayed(workers.train)(torch.nn.Linear(3, 3)) for _ in range(2))
        for model, _ in trained:
            workers.train(model)

    assert visible(found(run)) == set()


def test_an_estimator_that_keeps_its_last_loss_is_worth_knowing_only() -> None:
    findings = found(
        lambda: Parallel(2)(delayed(workers.Estimator.fit)(workers.Estimator()) for _ in range(2))
    )
    assert findings["GG102"].severity is Severity.INFO
    assert findings["GG102"].details["object"] == "result.loss_"
    assert visible(findings) == set()


def test_nor_when_it_goes_to_workers_again() -> None:
    def run() -> None:
        fitted = Parallel(2)(delayed(workers.Estimator.fit)(workers.Estimator()) for _ in range(2))
        Parallel(2)(delayed(estimator.score)(1) for estimator in fitted)

    assert visible(found(run)) == set()


def test_unless_somebody_runs_backward_from_it() -> None:
    def run() -> None:
        fitted = Parallel(2)(delayed(workers.Estimator.fit)(workers.Estimator()) for _ in range(2))
        fitted[0].loss_.backward()

    assert visible(found(run)) == {"GG103"}


def test_a_record_is_a_container() -> None:
    findings = found(lambda: Parallel(2)(delayed(workers.record)(i) for i in range(2)))
    assert findings["GG102"].severity is Severity.WARNING
    assert findings["GG102"].details["object"] == "result.loss"


@pytest.mark.parametrize("way", ["generator", "generator_unordered"])
def test_generators(way: str) -> None:
    x = leaf()

    def run() -> None:
        tasks = (delayed(workers.double)(x) for _ in range(6))
        out = list(Parallel(2, return_as=way)(tasks))
        sum(out).sum().backward()

    assert visible(found(run)) == {"GG101", "GG102", "GG103"}


def test_a_generator_dropped_half_way() -> None:
    x = leaf()

    def run() -> None:
        tasks = (delayed(workers.double)(x) for _ in range(6))
        results = Parallel(2, return_as="generator")(tasks)
        next(results).sum().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            del results
            gc.collect()

    assert visible(found(run)) == {"GG101", "GG102", "GG103"}


def test_a_result_that_is_shipped_on_is_an_argument_like_any_other() -> None:
    def run() -> None:
        first = Parallel(2)(delayed(workers.own_graph)(index) for index in range(2))
        Parallel(2)(delayed(workers.total)(tensor) for tensor in first)

    assert visible(found(run)) == {"GG101", "GG102"}


def test_a_loop_over_the_same_line_is_one_finding_with_a_count() -> None:
    x = leaf()

    def run() -> None:
        for _ in range(3):
            doubled(x)[0].sum().backward()

    findings = found(run)
    assert findings["GG103"].count == 3
    assert findings["GG103"].details["results"] == 1


def test_results_live_as_long_as_the_program_keeps_them() -> None:
    x = leaf()
    with guard("record"):
        out = doubled(x)
        sum(out).sum().backward()
        alive = [weakref.ref(result) for result in out]
        shipped = weakref.ref(x)
        del out, x
        gc.collect()
        assert [reference() for reference in alive] == [None, None]
        assert shipped() is None


def written(tensor: torch.Tensor) -> list[object]:
    """What the pickle of `tensor` says, but for its memory, in which addresses stand."""
    steps = pickletools.genops(pickle.dumps(tensor))
    return [
        (step.name, value)
        for step, value, _ in steps
        if step.name != "FRAME" and not isinstance(value, bytes)
    ]


def test_a_result_is_saved_and_copied_as_if_unguarded() -> None:
    import copy

    with guard("record"), warnings.catch_warnings():
        warnings.simplefilter("error")
        result = doubled(leaf())[0]
        again = pickle.loads(pickle.dumps(result))
        copied = copy.deepcopy(result)
        plain = result.detach().clone().requires_grad_()
        for twin in (again, copied):
            assert torch.equal(twin, result)
            assert twin.requires_grad
            assert written(twin) == written(plain)


def test_files_that_torch_loads_know_the_result_whenever_the_first_one_was_read(tmp_path) -> None:
    path = tmp_path / "result.pt"
    torch.save(leaf(), path)
    torch.load(path)  # torch remembers the functions that it rebuilds tensors with

    def run() -> None:
        torch.save(doubled(leaf()), path)
        sum(torch.load(path)).sum().backward()

    assert "GG103" in visible(found(run))
    before = torch._utils._rebuild_tensor_v2
    assert (
        torch._weights_only_unpickler._get_allowed_globals()["torch._utils._rebuild_tensor_v2"]
        is before
    )


WITHOUT_TORCH = """
import multiprocessing
import sys


def tell(queue):
    queue.put("torch" in sys.modules)


if __name__ == "__main__":
    import torch

    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=tell, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
"""


def test_a_process_that_does_not_import_torch_stays_without(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_TORCH)
    done = run_python("-m", "pytest_gradguard", "run", script)
    assert done.stdout.startswith("False"), done.stderr
