"""What `uninstall` leaves is what was there; nothing is imported that the program has not."""

from __future__ import annotations

import sys
import textwrap
from typing import Any

import joblib.parallel
import pytest
import torch
import workers
from children import run_python
from joblib import Parallel, delayed

from pytest_gradguard import guard, install, uninstall
from pytest_gradguard.runtime.kernel import faults, frameworks, patching, watching

PATCHED = [
    (joblib.parallel.Parallel, "__call__"),
    (joblib.parallel.Parallel, "_dispatch"),
    (torch.Tensor, "__reduce_ex__"),
    (torch.nn.Parameter, "__reduce_ex__"),
    (torch.autograd, "_engine_run_backward"),
    (torch.cuda, "_lazy_init"),
    (torch.serialization, "_validate_device"),
]


def names() -> list[Any]:
    return [vars(owner)[name] for owner, name in PATCHED]


def use() -> None:
    out = Parallel(2)(delayed(workers.double)(torch.ones(3, requires_grad=True)) for _ in range(2))
    out[0].sum().backward()


def test_every_name_is_as_it_was() -> None:
    before, finders = names(), list(sys.meta_path)
    with guard("record"):
        use()
        during = names()
        with guard("record"):
            use()
        assert names() == during
    assert all(new is not old for new, old in zip(during, before, strict=True))
    assert names() == before
    assert sys.meta_path == finders


def test_somebody_elses_patch_over_ours_stays_and_works() -> None:
    before = vars(joblib.parallel.Parallel)["__call__"]
    called = []
    try:
        with guard("record"):
            ours = joblib.parallel.Parallel.__call__

            def theirs(self: Any, iterable: Any) -> Any:
                called.append(self)
                return ours(self, iterable)

            joblib.parallel.Parallel.__call__ = theirs
        assert joblib.parallel.Parallel.__call__ is theirs
        assert Parallel(2)(delayed(abs)(i) for i in (-1, 1)) == [1, 1]
        assert called
    finally:
        joblib.parallel.Parallel.__call__ = before


def child(program: str, faults: bool = False, forked: str = "torch") -> str:
    done = run_python("-c", textwrap.dedent(program), faults=faults, forked=forked)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_reused_worker_is_quiet_after_the_guard_has_gone() -> None:
    with guard("record"):
        use()
    out = Parallel(2)(delayed(workers.double)(torch.ones(3, requires_grad=True)) for _ in range(2))
    assert not out[0]._backward_hooks


def test_a_guard_that_is_never_left_ends_with_the_interpreter() -> None:
    program = """
    import torch
    from joblib import Parallel, delayed
    from pytest_gradguard import guard
    never_left = guard("record")
    never_left.__enter__()
    Parallel(2)(delayed(abs)(i) for i in range(2))
    """
    assert run_python("-c", textwrap.dedent(program)).stderr == ""


def test_installing_imports_no_framework_and_waits_for_joblib() -> None:
    out = child(
        """
        import sys
        from pytest_gradguard import install
        report = install("record")
        heavy = ["joblib", "torch", "numpy", "tensorflow", "libcst", "rich", "pytest"]
        print([name for name in heavy if name in sys.modules])
        from joblib import Parallel, delayed
        print([name for name in ("torch", "tensorflow") if name in sys.modules])
        Parallel(2)(delayed(abs)(i) for i in range(4))
        print([name for name in ("torch", "tensorflow") if name in sys.modules])
        import torch
        Parallel(2)(delayed(id)(torch.ones(2, requires_grad=True)) for i in range(4))
        print([finding.code for finding in report.findings])
        """
    )
    assert out.splitlines() == ["[]", "[]", "[]", "['GG101']"]


def test_importing_the_package_imports_next_to_nothing() -> None:
    out = child(
        """
        import sys
        before = set(sys.modules)
        import pytest_gradguard
        print(sorted(set(sys.modules) - before))
        """,
        forked="",
    )
    assert out.strip() == "['__future__', 'pytest_gradguard']"


def test_a_joblib_that_is_not_known_gives_one_clear_warning() -> None:
    out = child(
        """
        import warnings, joblib.parallel
        class Parallel: pass
        joblib.parallel.Parallel = Parallel
        from pytest_gradguard import guard
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                with guard("record"):
                    pass
        print([str(warning.message) for warning in caught])
        """
    )
    assert out.count("is not known to gradguard") == 1
    assert joblib.__version__ in out


def test_a_fault_of_the_guards_own_breaks_nothing() -> None:
    out = child(
        """
        import warnings, torch
        from joblib import Parallel, delayed
        from pytest_gradguard import guard
        from pytest_gradguard.runtime.kernel import calls, shipment
        def broken(*args, **kwargs):
            raise ZeroDivisionError("ours")
        calls.user_site = broken
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with guard("record"):
                print(Parallel(2)(delayed(abs)(i) for i in (-1, 2)))
        calls.user_site = lambda: None
        shipment.Shipment.tensor = broken
        with guard("error"):
            print(Parallel(2)(delayed(len)([torch.ones(2, requires_grad=True)]) for i in range(2)))
        print([str(warning.message) for warning in caught])
        """,
        faults=True,
    )
    lines = out.splitlines()
    assert lines[:2] == ["[1, 2]", "[1, 1]"]
    assert "gradguard itself failed" in lines[2]
    assert "ZeroDivisionError: ours" in lines[2]


def test_a_guard_whose_modules_were_dropped_or_imported_twice_breaks_nothing() -> None:
    out = child(
        """
        import importlib, sys, torch
        from joblib import Parallel, delayed
        from pytest_gradguard import guard
        def ship():
            return Parallel(2)(delayed(len)([torch.ones(2, requires_grad=True)]) for _ in range(2))
        for again in (False, True):
            with guard("record"):
                ship()
                for name in [name for name in sys.modules if name.startswith("pytest_gradguard.")]:
                    del sys.modules[name]
                if again:
                    importlib.import_module("pytest_gradguard.runtime.kernel.worker")
                print(ship())
        """,
        faults=True,
    )
    assert out.splitlines() == ["[1, 1]", "[1, 1]"]


def test_a_guard_that_cannot_start_leaves_the_outer_one_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(user: object) -> None:
        raise LookupError("planted")

    install("record")
    try:
        with monkeypatch.context() as patching:
            patching.setattr(faults, "_reported", True)
            patching.setattr(watching, "start", fail)
            with guard("record"):
                assert watching.is_on()
        assert watching.is_on()
    finally:
        uninstall()
    assert not watching.is_on()


def test_what_a_failing_undo_leaves_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise LookupError("planted")

    before = joblib.parallel.Parallel.__call__, torch.Tensor.__reduce_ex__
    with monkeypatch.context() as planted:
        planted.setattr(faults, "_reported", True)
        with guard("record"):
            frameworks.watch_reductions()
            assert joblib.parallel.Parallel.__call__ is not before[0]
            planted.setattr(watching, "_undo_all", fail)
    assert (joblib.parallel.Parallel.__call__, torch.Tensor.__reduce_ex__) == before
    with guard("record"):  # what the last guard has put in place is not taken for there
        frameworks.watch_reductions()
        assert torch.Tensor.__reduce_ex__ is not before[1]


def test_a_pickling_that_outlives_the_guard_puts_nothing_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.Tensor.__reduce_ex__
    with guard("record"):
        pass
    frameworks.watch_reductions()
    assert torch.Tensor.__reduce_ex__ is before
    late = guard("record")
    late.__enter__()
    frameworks.undo()
    apply = patching.Patches.apply

    def end_first(self: patching.Patches) -> None:  # as another thread may, just then
        monkeypatch.undo()
        late.__exit__(None, None, None)
        apply(self)

    monkeypatch.setattr(patching.Patches, "apply", end_first)
    frameworks.watch_reductions()
    assert torch.Tensor.__reduce_ex__ is before
