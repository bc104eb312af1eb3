"""`install`, `guard`, `allow` and the three modes."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, Literal

import failing_tasks
import pytest
import torch
import workers
from joblib import Parallel, delayed
from joblib_releases import GENERATOR

import pytest_gradguard
from pytest_gradguard import (
    GradGuardError,
    GradGuardWarning,
    allow,
    guard,
    install,
    uninstall,
    watch_gradients,
    why_no_grad,
)


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def ship(tensor: torch.Tensor, **options: Any) -> Any:
    return Parallel(2, **options)(delayed(workers.double)(tensor) for _ in range(2))


def filter_all(action: Literal["always", "error"]) -> None:
    """Do this with each warning but one: of how torch unpickles a tensor itself (as torch 2.4)."""
    warnings.simplefilter(action)
    warnings.filterwarnings("ignore", "You are using `torch.load`", FutureWarning)


def test_warn_says_each_finding_once_at_the_users_line() -> None:
    x = leaf()
    with warnings.catch_warnings(record=True) as caught:
        filter_all("always")
        with guard("warn") as report:
            for _ in range(3):
                ship(x.detach().requires_grad_())[0].sum().backward()
    assert [one.code for one in report.findings] == ["GG101", "GG102", "GG103"]
    said = [str(warning.message)[:5] for warning in caught]
    assert sorted(said) == ["GG101", "GG102", "GG103"]
    assert {warning.filename for warning in caught} == {__file__}
    assert all(issubclass(warning.category, GradGuardWarning) for warning in caught)
    assert caught[0].message.finding.code == said[0]


def test_warn_is_the_default_and_filters_reach_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradGuardWarning)
        with guard(), pytest.raises(GradGuardWarning, match="GG101 grad-tensor-to-worker"):
            ship(leaf())
    with warnings.catch_warnings(record=True) as caught:
        filter_all("always")
        warnings.filterwarnings("ignore", category=GradGuardWarning)
        with guard():
            ship(leaf())
    assert caught == []


@pytest.mark.parametrize("options", [{}, pytest.param({"return_as": "generator"}, marks=GENERATOR)])
def test_error_raises_at_the_call(options: dict[str, str]) -> None:
    with guard("error") as report, pytest.raises(GradGuardError) as raised:
        list(ship(leaf(), **options))
    assert {finding.code for finding in raised.value.findings} == {"GG101", "GG102"}
    assert "grad-tensor-to-worker" in str(raised.value)
    assert len(report.findings) == 2


def test_error_raises_at_the_backward_and_again_at_the_next() -> None:
    with guard("error"):
        for _ in range(2):
            with allow("GG101", "GG102"):
                out = ship(leaf())
            with pytest.raises(GradGuardError, match="backward-through-worker-result"):
                out[0].sum().backward()


@GENERATOR
@pytest.mark.skipif(sys.version_info < (3, 11), reason="a bare raise brings the frames back")
def test_the_traceback_of_a_finding_has_no_frame_of_the_guards() -> None:
    tracebacks = []
    with guard("error"):
        for way in ("list", "generator"):
            with pytest.raises(GradGuardError) as raised:
                list(ship(leaf(), return_as=way))
            tracebacks.append(raised.value.__traceback__)
        with allow("GG101", "GG102"):
            out = ship(leaf())
        with pytest.raises(GradGuardError) as raised:
            out[0].sum().backward()
        tracebacks.append(raised.value.__traceback__)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        Parallel(2)(delayed(workers.backward_of)(model) for _ in range(2))
        with pytest.raises(GradGuardError, match="GG106") as raised:
            optimizer.step()
        tracebacks.append(raised.value.__traceback__)
    for misuse in (
        lambda: watch_gradients(3),
        lambda: watch_gradients({"w": leaf()}).__enter__().__exit__(None, None, None),
        lambda: watch_gradients([leaf()], allow_none="no*").__enter__().__exit__(None, None, None),
        lambda: why_no_grad(3),
        lambda: allow("GG999"),
        lambda: install("loud"),
        lambda: guard("loud").__enter__(),
    ):
        with pytest.raises((TypeError, ValueError, GradGuardError)) as refused:
            misuse()
        tracebacks.append(refused.value.__traceback__)
    own = str(Path(pytest_gradguard.__file__).parent)
    for traceback_of in tracebacks:
        files = [entry.filename for entry in traceback.extract_tb(traceback_of)]
        assert files[0] == __file__
        assert not [path for path in files if path.startswith(own)]


class Items(dict):
    def items(self):
        raise ValueError("theirs")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a bare raise brings the frames back")
def test_the_programs_own_error_keeps_its_frames() -> None:
    with pytest.raises(ValueError, match="theirs") as raised:
        watch_gradients(Items())
    names = [entry.name for entry in traceback.extract_tb(raised.value.__traceback__)]
    assert names == ["test_the_programs_own_error_keeps_its_frames", "items"]


def test_a_loss_is_tied_to_what_was_sent_and_returned() -> None:
    with guard("record") as report:
        out = ship(leaf())
        ship(leaf())  # elsewhere, of the same call line: nothing is lost there
        Parallel(2)(delayed(workers.double)(leaf()) for _ in range(2))
        out[0].sum().backward()
    (loss,) = (one for one in report.findings if one.code == "GG103")
    tied = [one.code for one in report.findings if one.explains == (loss.reference,)]
    alone = [one.code for one in report.findings if not one.explains]
    assert sorted(tied) == ["GG101", "GG102"]
    assert sorted(alone) == ["GG101", "GG102", "GG103"]
    assert "sent: GG101 at line " in str(report)
    assert repr(report) == "<gradguard report: 1 error, 4 warnings>"


def test_error_lets_info_pass() -> None:
    with guard("error") as report:
        Parallel(2)(delayed(workers.train)(torch.nn.Linear(3, 3)) for _ in range(2))
    assert [finding.code for finding in report.findings] == ["GG107"]


def test_the_programs_own_error_comes_before_ours() -> None:
    def run() -> None:
        Parallel(2)(delayed(failing_tasks.fail)(leaf()) for _ in range(2))

    with guard("error"), pytest.raises(KeyError, match="task"):
        run()


def test_the_error_survives_pickling() -> None:
    with guard("error"), pytest.raises(GradGuardError) as raised:
        ship(leaf())
    again = pickle.loads(pickle.dumps(raised.value))
    assert again.findings == raised.value.findings
    assert str(again) == str(raised.value)


def test_record_is_silent() -> None:
    with warnings.catch_warnings():
        filter_all("error")
        with guard("record") as report:
            ship(leaf())
    assert {finding.code for finding in report.findings} == {"GG101", "GG102"}


def test_install_is_once_and_uninstall_ends_it() -> None:
    try:
        first = install("record")
        second = install(mode="record")
        ship(leaf())
        assert {f.code for f in first.findings} == {"GG101", "GG102"}
        assert first.findings == second.findings
        uninstall()
        ship(leaf())
        assert [f.count for f in first.findings] == [f.count for f in second.findings] == [2, 2]
        uninstall()
    finally:
        uninstall()


def test_a_guard_inside_an_installed_one_hears_alone() -> None:
    try:
        outer = install("record")
        with guard("record") as inner:
            ship(leaf())
        assert len(inner.findings) == 2
        assert outer.findings == []
        ship(leaf())
        assert len(outer.findings) == 2
    finally:
        uninstall()


def test_allow_holds_for_what_begins_inside() -> None:
    with guard("record") as report:
        with allow("GG101", reason="the worker only reads it"):
            out = ship(leaf())
        assert {finding.code for finding in report.findings} == {"GG102"}
        with allow("GG1"):
            out[0].sum().backward()
    assert {finding.code for finding in report.findings} == {"GG102"}


@pytest.mark.parametrize("enter", [install, lambda mode: guard(mode).__enter__()])
def test_a_bad_mode_names_itself_and_what_is_allowed(enter: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown mode 'loud' \(allowed: warn, error, record\)"):
        enter("loud")


def test_an_unknown_code_names_itself_and_what_is_allowed() -> None:
    with (
        pytest.raises(ValueError, match=r"unknown code 'GG1103', did you mean 'GG113'\? \("),
        allow("GG1103"),
    ):
        pass


def test_public_names() -> None:
    for name in pytest_gradguard.__all__:
        assert getattr(pytest_gradguard, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        pytest_gradguard.nonsense  # noqa: B018


class Doubling(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_a_generator_of_tasks_is_told_to_compute_before() -> None:
    model = Doubling(2, 1)
    with guard("record") as report, torch.no_grad():
        Parallel(2, backend="threading")(
            delayed(float)(model(torch.ones(2)).detach()) for _ in range(24)
        )
    (finding,) = report.findings
    assert finding.code == "GG301"
    assert str(finding.fix).startswith("Compute what the tasks need before")


def test_a_model_that_is_a_task_stands_where_its_forward_does() -> None:
    model = Doubling(2, 1)
    with guard("record") as report, torch.no_grad():
        Parallel(2, backend="threading")(delayed(model)(torch.ones(2)) for _ in range(2))
    (finding,) = report.findings
    assert (finding.code, finding.trace[0].path) == ("GG301", __file__)
    assert str(finding.fix).startswith("Set the mode inside the worker")


def _maps() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.map(workers.total, [leaf()])


def _forks(target: Any) -> int:
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    process.join()
    return process.exitcode or 0


def test_what_a_forked_process_finds_is_told() -> None:
    with guard("record") as report:
        _maps()
        assert _forks(_maps) == 0
        assert _forks(lambda: None) == 0
    (finding,) = report.findings
    assert (finding.code, finding.count) == ("GG101", 2)
    with guard("record") as report, allow("GG101"):
        assert _forks(_maps) == 0
    assert not report.findings


def test_error_is_raised_in_a_forked_process(capfd: pytest.CaptureFixture[str]) -> None:
    with guard("error") as report:
        assert _forks(_maps) == 1
    assert "GradGuardError" in capfd.readouterr().err
    assert [finding.code for finding in report.findings] == ["GG101"]
