"""What can be watched, under which names, and how many of them a report shows."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from children import run_python

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pytest_gradguard import GradGuardError, GradGuardWarning, watch_gradients, why_no_grad  # noqa: E402


def missing(watched: Any, **options: Any) -> list[str]:
    watch = watch_gradients(watched, **options).start()
    watch.stop()
    return list(watch.reasons)


def test_names_are_those_of_named_parameters_through_wrappers() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    names = [name for name, _ in net.named_parameters()]
    assert missing(net) == names
    assert missing(nn.DataParallel(net)) == names
    assert missing(torch.compile(net, backend="aot_eager")) == names
    assert missing(nn.DataParallel(torch.compile(net, backend="aot_eager"))) == names


def test_dicts_and_lists_give_dotted_names() -> None:
    w = torch.ones(2, requires_grad=True)
    nested = {"encoder": nn.Linear(2, 2), "extra": [w, {"deep": torch.ones(1)}]}
    assert missing(nested) == ["encoder.weight", "encoder.bias", "extra.0", "extra.1.deep"]
    watch = watch_gradients(w).start()  # alone, it has the name that its user gives it
    watch.stop()
    assert list(watch.reasons) == ["w"]
    assert missing(nn.Linear(2, 2).named_parameters()) == ["weight", "bias"]


@pytest.mark.parametrize("watched", [3, "model", {"a": object()}, [None]])
def test_other_things_are_refused(watched: Any) -> None:
    with pytest.raises(TypeError, match="cannot watch"):
        watch_gradients(watched)


def test_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to watch"):
        watch_gradients([])


def test_findings_tell_where_gradients_arrive_too() -> None:
    net = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 1)})
    watch = watch_gradients(net, allow_none="body.bias").start()
    net["head"](net["body"](torch.ones(2)).detach()).sum().backward()
    (finding,) = watch.stop()
    assert finding.details["watched"] == {
        "body.weight": "missing",
        "body.bias": "allowed",
        "head.weight": "arrived",
        "head.bias": "arrived",
    }


def test_allow_none_takes_patterns_and_refuses_those_that_fit_nothing() -> None:
    net = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 1)})
    assert missing(net, allow_none="body.*") == ["head.weight", "head.bias"]
    assert missing(net, allow_none=("*.bias", "head.weight")) == ["body.weight"]
    watch = watch_gradients(net, allow_none=["boddy.*"]).start()
    net["head"](net["body"](torch.ones(1, 2))).sum().backward()
    with pytest.raises(ValueError, match=r"'boddy\.\*' matches no watched name"):
        watch.stop()
    with pytest.raises(TypeError, match="allow_none"):
        watch_gradients(net, allow_none=[3])  # type: ignore[list-item]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python knows no columns")
def test_a_tensor_has_the_name_that_the_program_writes() -> None:
    net = nn.ModuleDict({"body": nn.Linear(2, 2)})
    both = [net["body"].weight, net["body"].bias]
    for watch, name in (
        (watch_gradients(net["body"].weight), "net['body'].weight"),
        (watch_gradients(both[1]), "both[1]"),
        (watch_gradients(torch.ones(1, requires_grad=True)), "tensor"),
    ):
        with watch.start():
            watch.stop()
        assert list(watch.reasons) == [name]


def test_a_watch_that_is_never_entered_warns() -> None:
    net = nn.Linear(2, 1)
    with pytest.warns(GradGuardWarning, match="never entered"):
        watch_gradients(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch_gradients(net, allow_none="*").start().close()


def test_a_wrong_pattern_does_not_hide_what_is_missing() -> None:
    net = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 1)})
    watch = watch_gradients(net, allow_none=["boddy.*", "head.*"]).start()
    (finding,) = watch.stop()
    assert finding.details["objects"] == ["body.weight", "body.bias"]
    assert "allow_none: 'boddy.*' matches no watched name" in finding.message


def test_what_another_watch_has_is_no_other_model() -> None:
    layers = [nn.Linear(2, 1) for _ in range(2)]
    watches = [watch_gradients(layer).start() for layer in layers]
    optimizer = torch.optim.SGD(layers[0].parameters(), lr=0.1)
    layers[0](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert watches[0].stop() == []
    (finding,) = watches[1].stop()
    assert finding.details["reason"] == "not-in-graph"


def test_a_watch_that_is_entered_again_watches_anew() -> None:
    net = nn.Linear(2, 1)
    watch = watch_gradients(net)
    with watch:
        net(torch.ones(1, 2)).sum().backward()
    with pytest.raises(GradGuardError, match="no backward ran"), watch:
        pass
    with watch:
        net(torch.ones(1, 2)).sum().backward()
    assert watch.findings == []
    of_a_tensor = watch_gradients(net.weight)
    with of_a_tensor:
        net(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ValueError, match="call `watch_gradients` again"), of_a_tensor:
        pass


def test_a_thousand_parameters_fit_on_a_screen() -> None:
    layers = nn.ModuleList(
        nn.ModuleDict({"attention": nn.Linear(2, 2), "norm": nn.LayerNorm(2)}) for _ in range(250)
    )
    net = nn.ModuleDict({"layers": layers, "head": nn.Linear(2, 1)})
    for layer in layers[::7]:
        layer["norm"].requires_grad_(False)

    def train() -> None:
        with watch_gradients(net):
            x = torch.ones(1, 2)
            for layer in layers[::2]:
                x = layer["norm"](layer["attention"](x))
            net["head"](x).sum().backward()

    with pytest.raises(GradGuardError) as caught:
        train()
    text = str(caught.value)
    assert len(text.splitlines()) <= 50
    assert len(text) <= 4_000
    shown = {f.details["reason"]: len(f.details["objects"]) for f in caught.value.findings}
    assert shown == {"frozen": 72, "not-in-graph": 464}


def test_a_whole_module_is_one_name() -> None:
    net = nn.ModuleDict({"body": nn.Sequential(*(nn.Linear(2, 2) for _ in range(5)))})
    net["head"] = nn.Linear(2, 1)
    with (
        pytest.raises(GradGuardError, match=r"`body\.\*` \(10 of 12 watched\)"),
        watch_gradients(net),
    ):
        net["head"](torch.ones(1, 2)).sum().backward()


def test_why_no_grad_answers_for_one_tensor() -> None:
    leaf = torch.ones(2, requires_grad=True)
    assert why_no_grad(torch.ones(2)).startswith("frozen")
    assert why_no_grad(torch.arange(2)).startswith("integer-dtype")
    assert why_no_grad(leaf * 2).startswith("non-leaf")
    assert why_no_grad(leaf).startswith("unknown")
    with torch.inference_mode():
        assert why_no_grad(leaf * 2).startswith("no-grad")
    (leaf * 2).sum().backward()
    assert why_no_grad(leaf) == "It has a gradient."
    with pytest.raises(TypeError, match="takes a tensor"):
        why_no_grad(nn.Linear(2, 2))


def test_why_no_grad_knows_more_inside_a_watch() -> None:
    w, v = (torch.ones(2, requires_grad=True) for _ in range(2))
    with watch_gradients(v):
        h = (w * 2).detach()
        (h * v).sum().backward()
        assert why_no_grad(w).startswith("cut: `.detach()` at ")
        assert why_no_grad(h).startswith("cut: `.detach()` at ")
        v.grad = None
        assert why_no_grad(v).startswith("cleared: it received a gradient from the backward at")


RPC = """
import os
import sys
import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer
from pytest_gradguard import GradGuardError, watch_gradients

use = sys.argv[1]
rpc.init_rpc(
    "w0",
    rank=0,
    world_size=1,
    rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{sys.argv[2]}"),
)


def head(h):
    return (h * 3).sum()


body, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
try:
    with watch_gradients({"body": body, "other": other}, allow_none="other.*"):
        with dist_autograd.context() as context_id:
            loss = rpc.rpc_sync("w0", head, args=(body(torch.ones(1, 2)),))
            dist_autograd.backward(context_id, [loss])
            if use == "read":
                assert len(dist_autograd.get_gradients(context_id)) == 2
            elif use == "step":
                references = [rpc.RRef(p) for p in body.parameters()]
                DistributedOptimizer(torch.optim.SGD, references, lr=0.1).step(context_id)
            elif use:
                exec(use)
except GradGuardError as error:
    (finding,) = error.findings
    print(finding.details["reason"], finding.location.line, finding.fix)
finally:
    rpc.shutdown()
"""


def test_gradients_of_distributed_autograd(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(RPC, encoding="utf-8")

    def told(use: str) -> str:
        store = tmp_path / f"store{len(list(tmp_path.iterdir()))}"
        done = run_python(program, use, store, forked="torch")
        assert done.returncode == 0, done.stderr
        return done.stdout

    reason, line, fix = told("").split(maxsplit=2)
    assert (reason, line) == ("in-context", "28")
    copying = fix.split("`")[3]
    assert [told(use) for use in (copying, "step", "read")] == ["", "", ""]
