"""What `check_gradients` refuses, says and leaves as it was."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pytest_gradguard import GradGuardError, check_gradients

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

X = torch.ones(2, 3)
REFUSED = {
    "nothing to check (it is empty)": lambda w: (lambda: w.sum(), []),
    "no parameters to check": lambda w: (lambda: w.sum(), nn.Tanh()),
    "none of the 1 parameters requires a gradient": lambda w: (lambda: w.sum(), X),
    "'0' is computed from other tensors": lambda w: (lambda: w.sum(), [w * 2]),
    "returned a tensor of shape (3,); reduce it": lambda w: (lambda: w * 2, w),
    "the loss is nan": lambda w: (lambda: (w * float("nan")).sum(), w),
    "the loss is inf": lambda w: (lambda: float("inf"), w),
    "the closure returned None": lambda w: (lambda: None, w),
    "the closure returned 'str'": lambda w: (lambda: "1 to 2", w),
    "the closure has to be a function": lambda w: (w.sum(), w),
    "check_gradients cannot check 'int'": lambda w: (lambda: w.sum(), [1]),
    "gave the losses": lambda w: (lambda: w.sum() * numpy.random.default_rng().random(), w),
    "the closure changes 'w'": lambda w: (lambda: w.data.add_(1).sum(), {"w": w}),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_checked_is_refused_in_one_line(text: str) -> None:
    weight = torch.ones(3, requires_grad=True)
    closure, parameters = REFUSED[text](weight)
    with pytest.raises((ValueError, TypeError)) as refused:
        check_gradients(closure, parameters)
    message = str(refused.value)
    assert text in message
    assert message.startswith("check_gradients")
    assert "\n" not in message
    assert weight.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "options", [{"rtol": 0}, {"eps": -1.0}, {"directions": 0}, {"reduce": "max"}], ids=str
)
def test_options_have_bounds(options: dict[str, Any]) -> None:
    weight = torch.ones(3, requires_grad=True)
    (name,) = options
    with pytest.raises(ValueError, match=f"check_gradients: {name} has to be "):
        check_gradients(weight.sum, weight, **options)


class Everything(nn.Module):
    """Buffers, counters, draws of four generators, tied weights, shared memory and a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.head = nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.head.weight
        self.register_buffer("mean", torch.zeros(4))
        self.rng = torch.Generator().manual_seed(1)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        drawn = random.random() + numpy.random.rand() + torch.rand((), generator=self.rng)
        x = self.tied(self.head(self.body(x)))
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x * drawn


def state_of(model: Any, leaf: Any) -> list[Any]:
    tensors = [*model.parameters(), *model.buffers(), leaf]
    return [
        [(id(one), one.dtype, one.data_ptr(), one.tolist(), one.requires_grad) for one in tensors],
        [(id(one.grad), None if one.grad is None else one.grad.tolist()) for one in tensors],
        [module.training for module in model.modules()],
        model.calls,
        model.rng.get_state().tolist(),
        torch.get_rng_state().tolist(),
        random.getstate(),
        repr(numpy.random.get_state()),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
    ]


@pytest.mark.parametrize("wrong", [False, True])
def test_everything_is_left_as_it_was(wrong: bool) -> None:
    torch.manual_seed(0)
    model = Everything()
    model.body[1].eval()
    model.body[0].weight.grad = torch.ones(4, 3)
    leaf = torch.ones(5, 3, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = state_of(model, leaf)

    def closure() -> Any:
        out = model(leaf)
        return (out.detach() * out if wrong else out * out).mean()

    if wrong:
        with pytest.raises(GradGuardError):
            check_gradients(closure, model)
    else:
        checked = check_gradients(closure, model)
        assert (checked.precision, checked.directions) == ("float64", 2)
        assert str(checked).startswith("the gradient is right: 2 directions, float64, ")
    assert state_of(model, leaf) == before
    assert not optimizer.state


def test_a_closure_that_fails_leaves_everything_as_it_was() -> None:
    model = Everything()
    before = state_of(model, X)

    def closure() -> Any:
        model(X)
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        check_gradients(closure, model)
    assert state_of(model, X) == before


def test_parameters_that_share_memory_still_do() -> None:
    whole = torch.arange(6.0)
    first, second = (whole[i : i + 4].view(2, 2).requires_grad_() for i in (0, 2))
    checked = check_gradients(lambda: (first**3).sum(), {"first": first})
    assert checked.precision == "float64"
    with pytest.raises(GradGuardError) as failed:  # what moves one of them moves the other
        check_gradients(lambda: (first**3).sum(), {"first": first, "second": second})
    assert failed.value.findings[0].details["objects"] == ["second"]
    assert first.data_ptr() == whole.data_ptr()


def test_both_numbers_are_told_for_each_parameter() -> None:
    weight = torch.ones(3, requires_grad=True)
    other = torch.ones(3, requires_grad=True)

    def closure() -> Any:
        return (weight.detach() * weight * other).sum()

    with pytest.raises(GradGuardError) as failed:
        check_gradients(closure, {"weight": weight, "other": other})
    (finding,) = failed.value.findings
    ((name, gradient, loss),) = [tuple(one.values()) for one in finding.details["parameters"]]
    assert name == "weight"
    assert loss == pytest.approx(2 * gradient)
    assert f"for `weight` it gives {gradient:.6g}, the loss gives {loss:.6g}." in finding.message
    assert finding.location.path == __file__


def test_a_missing_gradient_has_its_reason() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    with pytest.raises(GradGuardError) as failed:
        check_gradients(lambda: model[1](model[0](X).detach()).sum(), model)
    message = failed.value.findings[0].message
    assert "`0.weight` and `0.bias`: `.detach()` at " in message


def test_at_a_kink_the_point_is_moved() -> None:
    weight = torch.zeros(3, requires_grad=True)
    check_gradients(lambda: (weight.relu() + weight.abs()).sum(), weight)
    check_gradients(lambda: weight.max(), weight)


def test_inputs_that_stay_in_single_precision() -> None:
    model = nn.Linear(3, 1)
    checked = check_gradients(lambda: model(torch.tensor([[1.0, 2, 3]]).float()).sum(), model)
    assert checked.precision == "float32"
    with pytest.raises(GradGuardError) as failed:
        check_gradients(lambda: (model(X.float().clone()) * model(X.float()).detach()).sum(), model)
    assert failed.value.findings[0].message.endswith(" (Compared in float32, up to 2 %.)")


def test_a_closure_may_run_the_backward_pass_itself() -> None:
    weight = torch.ones(3, requires_grad=True)

    def closure() -> float:
        loss = weight.pow(3).sum()
        loss.backward()
        return float(loss)

    check_gradients(closure, [weight])

    def twice() -> float:
        closure()
        return closure()

    with pytest.raises(GradGuardError):
        check_gradients(twice, iter([weight]))


def test_the_fixture_fails_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch

        def test_right(check_gradients):
            weight = torch.ones(2, requires_grad=True)
            check_gradients(lambda: weight.pow(2).sum(), weight)

        def test_wrong(check_gradients):
            weight = torch.ones(2, requires_grad=True)
            check_gradients(lambda: (weight * weight.detach()).sum(), weight)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:asyncio", "--gradguard-report=r.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*error?GG115? wrong-gradient*"])
    assert '"GG115"' in (pytester.path / "r.json").read_text()


def test_a_closure_that_leaves_zero_gradients_is_not_run_backward_again() -> None:
    weight = torch.zeros(3, requires_grad=True)

    def closure() -> Any:
        loss = weight.pow(2).sum()
        loss.backward()
        return loss

    check_gradients(closure, weight)


def test_a_graph_that_is_used_twice_is_the_programs_own_error() -> None:
    weight = torch.ones(3, requires_grad=True)
    kept = weight.pow(2).sum()
    kept.backward()
    with pytest.raises(RuntimeError, match="second time"):
        check_gradients(lambda: weight.sum() + kept, weight)


def test_an_attack_inside_the_closure_is_part_of_it() -> None:
    model = nn.Linear(3, 1)

    def closure() -> Any:
        x = X.clone().requires_grad_()
        model(x).sum().backward()
        model.zero_grad()
        return model(x + 0.1 * x.grad.sign()).pow(2).sum()

    check_gradients(closure, model)


@pytest.mark.parametrize("right", [True, False])
def test_gradients_that_are_lent_once_and_then_added_to(right: bool) -> None:
    model = nn.Linear(3, 1)
    kept: list[Any] = []

    def closure() -> float:
        loss = model(X).pow(2).mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        if right or not kept:
            kept[:] = gradients
        else:
            for one, more in zip(kept, gradients, strict=True):
                one += more
        for parameter, one in zip(model.parameters(), kept, strict=True):
            parameter.grad = one
        return loss.item()

    if right:
        check_gradients(closure, model)
    else:
        with pytest.raises(GradGuardError):
            check_gradients(closure, model)
    assert {one.dtype for one in kept} == {torch.float32}
