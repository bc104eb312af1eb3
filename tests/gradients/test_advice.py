"""What a finding advises can be done, and would help."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch import nn  # noqa: E402

from pytest_gradguard import GradGuardError, watch_gradients  # noqa: E402


@pytest.mark.parametrize(
    ("out", "advice"),
    [
        (lambda w: w.detach(), "Leave out `.detach()`"),
        (lambda w: np.tanh(w.detach()), "torch's own functions"),
        (lambda w: torch.from_numpy(w.detach().numpy() * 2), "torch's own functions"),
        (lambda w: torch.ones(2) * math.exp(w[0]), "`torch.exp`"),
        (lambda w: torch.tensor([w[0], w[1]]), "`torch.stack`"),
        (lambda w: torch.ones(9)[w.long()], "a softmax"),
        (lambda w: torch.ones(2) * (w > 0), "a softmax"),
    ],
)
def test_of_a_cut(out: Callable[[Any], Any], advice: str) -> None:
    w, v = (nn.Parameter(torch.ones(2)) for _ in range(2))
    with pytest.raises(GradGuardError) as caught, watch_gradients({"w": w, "v": v}):
        (v * out(w)).sum().backward()
    (finding,) = caught.value.findings
    assert finding.details["reason"] == "cut"
    assert advice in str(finding.fix)


@pytest.mark.parametrize(("also", "advice"), [(False, "with the watched model"), (True, "a copy")])
def test_of_a_state_that_another_model_loads(also: bool, advice: str) -> None:
    model, other, head = (nn.Linear(2, 2) for _ in range(3))
    watch = watch_gradients([model, *[head] * also]).start()
    other.load_state_dict(model.state_dict())
    head(other(torch.ones(1, 2))).sum().backward()
    (finding,) = watch.stop()
    assert advice in str(finding.fix)
