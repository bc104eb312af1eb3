"""The fixture: a test that loses a gradient fails once, readably; nothing else changes."""

from __future__ import annotations

import json

import pytest
from children import run_python

pytest.importorskip("torch")

MODEL = """
import pytest
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.body(x).detach())


def train(model):
    model(torch.ones(1, 2)).sum().backward()


original = torch.Tensor.detach
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(model=MODEL)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    command = ("-m", "pytest", "-p", "no:cacheprovider", *arguments)
    done = run_python(*command, folder=project.path, forked="torch")
    lines = done.stdout.splitlines(), done.stderr.splitlines()
    return pytest.RunResult(done.returncode, *lines, duration=0)


def test_a_missing_gradient_fails_the_test_with_names_reason_and_line(
    project: pytest.Pytester,
) -> None:
    project.makepyfile("""
        from model import *

        def test_it(watch_gradients):
            model = Net()
            watch_gradients(model)
            train(model)

        def test_after():
            assert torch.Tensor.detach is original
    """)
    result = run(project)
    result.assert_outcomes(failed=1, passed=1)
    text = result.stdout.str()
    assert "error[GG104] missing-gradient" in text
    assert "model.py:13" in text
    assert "`body.weight` and `body.bias`" in text
    assert "Traceback" not in text
    assert "watches.py" not in text
    assert "watch.py" not in text


def test_options_loops_several_watches_and_with_blocks(project: pytest.Pytester) -> None:
    project.makepyfile("""
        from model import *

        def test_allowed(watch_gradients):
            model = Net()
            watch_gradients(model, allow_none=("body.*",))
            train(model)

        def test_a_loop(watch_gradients):
            for _ in range(3):
                model = Net()
                watch_gradients(model.head)
                train(model)

        def test_two(watch_gradients):
            one, two = Net(), Net()
            watch_gradients(one.head)
            watch_gradients({"two": two.head})
            train(one)
            train(two)

        def test_a_block(watch_gradients):
            model = Net()
            with watch_gradients(model.head):
                train(model)

        @pytest.mark.gradguard(allow=["GG104"], reason="known")
        def test_permitted(watch_gradients):
            watch_gradients(Net())

        def test_skipped(watch_gradients):
            watch_gradients(Net())
            pytest.skip("not here")

        @pytest.fixture
        def watched_model(watch_gradients):
            model = Net()
            watch_gradients(model.head)
            return model

        def test_a_fixture_of_the_users(watched_model):
            train(watched_model)
    """)
    run(project).assert_outcomes(passed=6, skipped=1)


def test_what_fails(project: pytest.Pytester) -> None:
    project.makepyfile("""
        from model import *

        def test_second_of_a_loop(watch_gradients):
            for use in (True, False):
                model = Net()
                watch_gradients(model.head)
                if use:
                    train(model)

        def test_pattern(watch_gradients):
            watch_gradients(Net(), allow_none=["boddy.*"])

        def test_block(watch_gradients):
            model = Net()
            with watch_gradients(model):
                train(model)

        def test_own_failure(watch_gradients):
            watch_gradients(Net())
            assert 1 == 2

        def test_zero(watch_gradients):
            model = Net()
            watch_gradients(model.head, nonzero=True)
            (model(torch.ones(1, 2)) * 0).sum().backward()
    """)
    result = run(project, "-rf")
    result.assert_outcomes(failed=5)
    result.stdout.fnmatch_lines(["*'boddy.?' matches no watched name*"])
    text = result.stdout.str()
    own = text[text.index("_ test_own_failure _") : text.index("_ test_zero _")]
    assert "GG104" not in own
    assert "During handling" not in text


def test_findings_reach_the_report_and_xdist(project: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    project.makepyfile("""
        from model import *

        def test_it(watch_gradients):
            model = Net()
            watch_gradients(model)
            train(model)
    """)
    flags = ["--gradguard", "--gradguard-report=out.json"]
    for extra in ([], ["-n", "1"]):
        result = run(project, *flags, *extra)
        result.assert_outcomes(failed=1)
        assert "error[GG104]" in result.stdout.str()
        report = json.loads((project.path / "out.json").read_text())
        assert [finding["code"] for finding in report["findings"]] == ["GG104"]
        assert report["findings"][0]["test"] == (
            "test_findings_reach_the_report_and_xdist.py::test_it"
        )
        assert report["findings"][0]["location"]["path"] == "model.py"


BLOCKS = """
from model import *
from pytest_gradguard import GradGuardError, allow, watch_gradients as watch


def test_fixture(watch_gradients):
    model = Net()
    with watch_gradients(model):
        train(model)


def test_imported():
    model = Net()
    with watch(model):
        train(model)


def test_caught():
    model = Net()
    with pytest.raises(GradGuardError), watch(model):
        train(model)


def test_to_the_end(watch_gradients):
    model = Net()
    watch_gradients(model)
    train(model)
"""


def of_report(project: pytest.Pytester) -> list[str]:
    report = json.loads((project.path / "out.json").read_text())
    assert {finding["code"] for finding in report["findings"]} <= {"GG104"}
    return sorted(finding["test"].rpartition("::")[2] for finding in report["findings"])


@pytest.mark.parametrize("how", [[], ["-n1"]], ids=["alone", "xdist"])
def test_what_a_block_raises_is_reported_once(project: pytest.Pytester, how: list[str]) -> None:
    project.makepyfile(BLOCKS)
    found = ["test_fixture", "test_imported", "test_to_the_end"]
    result = run(project, "--gradguard", "--gradguard-report=out.json", *how)
    result.assert_outcomes(failed=3, passed=1)
    assert of_report(project) == found
    told, _, _ = result.stdout.str().partition("short test summary")  # which may repeat it
    assert told.count("= fix:") == 3
    result.stdout.fnmatch_lines(["*error[[]GG104[]] missing-gradient at *", "1 error in 3 tests"])


@pytest.mark.parametrize("how", [[], ["-n1"]], ids=["alone", "xdist"])
def test_a_report_does_not_need_the_guard(project: pytest.Pytester, how: list[str]) -> None:
    project.makepyfile(BLOCKS)
    result = run(project, "--gradguard-report=out.json", *how)
    result.assert_outcomes(failed=3, passed=1)
    assert {"test_fixture", "test_to_the_end"} <= set(of_report(project))


def test_what_permits_the_finding_permits_that_of_a_block(project: pytest.Pytester) -> None:
    project.makepyfile("""
        from model import *
        from pytest_gradguard import allow, watch_gradients as watch

        def test_allow():
            model = Net()
            with allow("GG104"), watch(model):
                train(model)

        def test_allow_of_the_fixture(gradguard, watch_gradients):
            with gradguard.allow("GG104"):
                watch_gradients(Net())
                with watch(Net()):
                    pass

        @pytest.mark.gradguard(allow=["GG104"])
        def test_marker(watch_gradients):
            with watch_gradients(Net()):
                pass

        def test_ignored(watch_gradients):
            with watch_gradients(Net()):
                pass
    """)
    run(project, "-o", "gradguard_ignore=GG104").assert_outcomes(passed=4)
    run(project).assert_outcomes(passed=3, failed=1)


def test_of_several_watches_the_finding_names_its_own(project: pytest.Pytester) -> None:
    project.makepyfile("""
        from model import *

        def test_two(watch_gradients):
            generator, critic = Net().head, Net().head
            watch_gradients(generator)
            watch_gradients(critic)
            generator(torch.ones(1, 2)).sum().backward()

        def test_wrong_pattern(watch_gradients):
            watch_gradients(Net(), allow_none="boddy")
            watch_gradients(Net())
            train(Net())
    """)
    result = run(project)
    result.assert_outcomes(failed=2)
    text = " ".join(result.stdout.str().split())
    assert "(This is `critic`, watch 2 of 2 in this test.)" in text
    assert "'boddy' matches no watched name" in text


def test_names_are_shown_not_obeyed(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_n=r"""
        from model import *
        import pytest_gradguard
        from joblib import Parallel, delayed

        NAME = "\x1b[1mx\x07"

        @pytest.mark.parametrize("name", [NAME, "a,b:c"], ids=[1, 2])
        def test_i(watch_gradients, name):
            w = torch.ones(3, requires_grad=True)
            watch_gradients({name: w})
            torch.ones(3, requires_grad=True).sum().backward()

        def test_pattern(watch_gradients):
            watch_gradients({NAME: torch.ones(3, requires_grad=True)}, allow_none="b*")

        def test_warning():
            x = torch.ones(3, requires_grad=True)
            with pytest_gradguard.guard(), pytest_gradguard.allow("GG102"):
                Parallel(2, backend="multiprocessing")(delayed(dict)({NAME: x}) for _ in range(2))

        def test_answer():
            w = torch.ones(3, requires_grad=True)
            with pytest.raises(pytest_gradguard.GradGuardError) as raised:
                with pytest_gradguard.watch_gradients({NAME: w}):
                    torch.ones(3, requires_grad=True).sum().backward()
            print(raised.value)
            print(pytest_gradguard.messages.GradGuardWarning(NAME))
            assert False
    """
    )
    result = run(project, "--gradguard", "--gradguard-annotate=always", "-rA")
    result.assert_outcomes(failed=4, passed=1)
    odd = {one for line in result.outlines for one in line if not one.isprintable()}
    assert odd <= {"\t"}
    assert r"no gradient for `\x1b[1mx\x07`" in result.stdout.str()
    result.stdout.fnmatch_lines([r"FAILED *GG104 missing-gradient: no gradient for `\x1b*"])


def test_misuse_is_one_line_that_ends_at_the_users_own(project: pytest.Pytester) -> None:
    project.makepyfile("""
        from model import *
        import pytest_gradguard

        def test_nothing(watch_gradients):
            watch_gradients(nn.ReLU())

        def test_no_module(watch_gradients):
            watch_gradients("abc")

        def test_deep(watch_gradients):
            watch_gradients({"net": [Net(), object()]})

        def test_no_pattern(watch_gradients):
            watch_gradients(Net(), allow_none=3)

        def test_no_switch(watch_gradients):
            watch_gradients(Net(), nonzero="yes")

        def test_two_at_once(watch_gradients):
            watch_gradients(Net(), Net())

        def test_no_option(watch_gradients):
            watch_gradients(Net(), allow_non="body.*")

        def test_block():
            with pytest_gradguard.watch_gradients(nn.ReLU()):
                pass

        def test_block_with_a_pattern(watch_gradients):
            model = Net()
            with pytest_gradguard.watch_gradients(model.head, allow_none="boddy.*"):
                train(model)

        def test_code(gradguard):
            later = gradguard.allow("GG999")

        def test_code_of_a_block():
            later = pytest_gradguard.allow("GG999")

        def test_asked_of_a_module():
            pytest_gradguard.why_no_grad(Net())
    """)
    result = run(project)
    result.assert_outcomes(failed=12)
    text = result.stdout.str()
    for line in (
        "E       ValueError: watch_gradients: there is nothing to watch: ReLU has no parameters",
        "E       TypeError: watch_gradients cannot watch 'str' (allowed: *",
        "E       TypeError: watch_gradients cannot watch 'object' at 'net.1' (allowed: *",
        "E       TypeError: watch_gradients: allow_none=3 is not allowed (allowed: a glob *",
        "E       TypeError: watch_gradients: nonzero='yes' is not allowed (allowed: True or False)",
        "E       TypeError: watch_gradients watches one argument: put several things into a *",
        "E       TypeError: watch_gradients has no option 'allow_non', did you mean *",
        "E       ValueError: allow_none: 'boddy.[*]' matches no watched name (*",
        "E       ValueError: unknown code 'GG999' (allowed: *",
        "E       TypeError: why_no_grad takes a tensor or a variable, not 'Net' (*",
    ):
        result.stdout.fnmatch_lines([line])
    assert "pytest_gradguard/" not in text


def test_a_fixture_that_is_never_called_warns(project: pytest.Pytester) -> None:
    project.makepyfile("""
        from model import *

        def test_forgotten(watch_gradients):
            train(Net())

        @pytest.mark.usefixtures("watch_gradients")
        def test_marked():
            train(Net())

        def test_called(watch_gradients):
            model = Net()
            watch_gradients(model.head)
            train(model)

        @pytest.fixture(autouse=True)
        def offered(watch_gradients):
            return watch_gradients

        def test_offered():
            pass

        def test_skipped(watch_gradients):
            pytest.skip("not here")

        @pytest.mark.filterwarnings("error::pytest_gradguard.GradGuardWarning")
        def test_strict(watch_gradients):
            train(Net())
    """)
    result = run(project)
    result.assert_outcomes(passed=4, skipped=1, warnings=2, failed=1)
    result.stdout.fnmatch_lines(["*GradGuardWarning: *never calls it, so nothing is watched*"])
