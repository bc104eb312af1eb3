"""What public libraries and training scripts ask of GPUs, beside moving tensors there."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from pytest_gradguard import guard  # noqa: E402


@pytest.fixture
def gpus() -> Iterator[None]:
    with guard("record", simulate_gpu=2):
        yield


def checkpointed(device: str, reentrant: bool) -> list[float]:
    """What a program draws whose activations are computed again, with their dropout."""
    torch.manual_seed(1)
    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(device)
    drawn = []
    for _ in range(3):
        given = torch.ones(2, 4).to(device).requires_grad_()
        loss = checkpoint(layer, given, use_reentrant=reentrant).sum()
        loss.backward()
        drawn += [loss.item(), torch.rand(1).item(), torch.rand(1, device=device).item()]
    return drawn


@pytest.mark.parametrize("reentrant", [True, False])
def test_random_numbers_after_a_checkpoint_are_those_of_the_cpu(reentrant: bool) -> None:
    on_cpu = checkpointed("cpu", reentrant)
    with guard("record", simulate_gpu=2):
        assert checkpointed("cuda", reentrant) == pytest.approx(on_cpu)


def resumed(device: str, first: str) -> list[float]:
    """What a program draws that sets the states of all generators, the named one first."""
    torch.manual_seed(1)
    torch.rand(3, device=device)
    on_gpu = torch.cuda.get_rng_state_all() if device == "cuda" else []
    on_cpu = torch.get_rng_state()
    torch.rand(3, device=device)
    steps: dict[str, Callable[[], None]] = {
        "cpu": lambda: torch.set_rng_state(on_cpu),
        "gpu": lambda: torch.cuda.set_rng_state_all(on_gpu) if on_gpu else None,
    }
    for name in sorted(steps, key=lambda name: name != first):
        steps[name]()
    values: list[float] = [torch.rand(1).item(), torch.rand(1, device=device).item()]
    return values


@pytest.mark.parametrize("first", ["cpu", "gpu"])
def test_random_numbers_of_a_resumed_program_are_those_of_the_cpu(first: str) -> None:
    on_cpu = resumed("cpu", first)
    with guard("record", simulate_gpu=2):
        assert resumed("cuda", first) == pytest.approx(on_cpu)


def test_a_state_of_its_own_keeps_a_gpu_apart(gpus: None) -> None:
    state = torch.cuda.get_rng_state()
    torch.rand(1)
    torch.cuda.set_rng_state(state)
    one = torch.rand(1, device="cuda").item()
    torch.rand(5)
    torch.cuda.set_rng_state(state)
    assert torch.rand(1, device="cuda").item() == one


def test_the_caches_of_plans_have_sizes(gpus: None) -> None:
    caches = torch.backends.cuda.cufft_plan_cache
    assert caches.size == 0
    caches[1].max_size = 7
    assert (caches.max_size, caches[1].max_size) == (4096, 7)
    caches.clear()
    before = torch.backends.cudnn.benchmark_limit
    torch.backends.cudnn.benchmark_limit = 3
    assert torch.backends.cudnn.benchmark_limit == 3
    torch.backends.cudnn.benchmark_limit = before


def test_a_snapshot_of_memory_shows_what_is_in_use(gpus: None, tmp_path: Path) -> None:
    kept = torch.zeros(2**20, device="cuda:1")
    (segment,) = [one for one in torch.cuda.memory_snapshot() if one["device"] == 1]
    assert segment["allocated_size"] >= kept.nbytes
    assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    torch.cuda.memory._record_memory_history(max_entries=10)
    torch.cuda.memory._dump_snapshot(os.fspath(tmp_path / "snapshot"))
    torch.cuda.memory._record_memory_history(enabled=None)
    assert "segments" in pickle.loads((tmp_path / "snapshot").read_bytes())


def test_a_view_made_without_gradients_is_written_to(gpus: None) -> None:
    layer = nn.Linear(3, 3).cuda()
    nn.init.orthogonal_(layer.weight)
    product = layer.weight @ layer.weight.T
    assert torch.allclose(product, torch.eye(3, device="cuda"), atol=1e-5)


def test_whole_numbers_are_counted_in_their_type(gpus: None) -> None:
    values = torch.tensor([0, 1, 1, 3, 3, 3], device="cuda")
    counted = torch.histc(values, bins=4, min=0, max=3)
    assert counted.tolist() == [1, 2, 0, 3]
    assert (counted.dtype, str(counted.device)) == (torch.int64, "cuda:0")
    assert values.int().histc(2).dtype is torch.int32
    out = torch.empty(0, dtype=torch.int64, device="cuda")
    assert torch.histc(values, 4, out=out) is out
    assert out.tolist() == [1, 2, 0, 3]
    assert torch.histc(values.float(), 4).tolist() == [1.0, 2.0, 0.0, 3.0]


REFUSED: dict[str, Callable[[Any], Any]] = {
    "histogram": lambda x: torch.histogram(x, 3),
    "histogram of edges": lambda x: x.histogram(torch.tensor([0.0, 1.0]).to(x.device)),
    "histogram of columns": lambda x: torch.histogramdd(x[:, None], [3]),
    "sum and product": lambda x: torch.addmm(*[x.long()[:, None].repeat(1, 3)] * 3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_gpus_cannot_do_is_refused_there_alone(name: str, gpus: None) -> None:
    REFUSED[name](torch.ones(3))
    with pytest.raises(NotImplementedError):
        REFUSED[name](torch.ones(3, device="cuda"))


def attended(kernel: Any, kind: Any = torch.float32, **options: Any) -> Any:
    """Attention by the kernel that is named."""
    given = torch.ones(1, 2, 4, 8, device="cuda", dtype=kind)
    with torch.nn.attention.sdpa_kernel(kernel):
        return nn.functional.scaled_dot_product_attention(given, given, given, **options)


def test_attention_has_the_kernels_of_gpus(gpus: None) -> None:
    kernels = torch.nn.attention.SDPBackend
    half = attended(kernels.FLASH_ATTENTION, torch.bfloat16)
    assert (half.dtype, str(half.device)) == (torch.bfloat16, "cuda:0")
    mask = torch.ones(4, 4, dtype=torch.bool, device="cuda")
    assert attended(kernels.EFFICIENT_ATTENTION, attn_mask=mask).is_cuda
    with pytest.raises(RuntimeError, match="No available kernel"):
        attended(kernels.FLASH_ATTENTION)
    with pytest.raises(RuntimeError, match="No available kernel"):
        attended(kernels.FLASH_ATTENTION, torch.bfloat16, attn_mask=mask.bfloat16())
    layer = nn.MultiheadAttention(8, 2, batch_first=True).cuda()
    given = torch.ones(1, 3, 8, device="cuda")
    with torch.nn.attention.sdpa_kernel(kernels.EFFICIENT_ATTENTION):
        assert layer(given, given, given, need_weights=False)[0].is_cuda
    assert torch.backends.cuda.math_sdp_enabled()


def test_a_tensor_of_a_class_with_rules_of_its_own(gpus: None) -> None:
    from torch.nn.attention.bias import causal_lower_right

    bias = causal_lower_right(4, 4)
    given = torch.ones(1, 2, 4, 8, device="cuda")
    assert nn.functional.scaled_dot_product_attention(given, given, given, bias).is_cuda

    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return super().__torch_function__(func, types, args, kwargs or {})

    named = torch.ones(2).as_subclass(Named)
    assert type(named.cuda() + torch.ones(2, device="cuda")) is Named
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        named + torch.ones(2, device="cuda")


def test_tensors_without_data_know_their_devices(gpus: None) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        made = torch.empty(3, device="cuda") * 2
        assert str(made.device) == "cuda:0"
        assert (made.to("cuda:1") + 1).device.index == 1
        assert torch.ones(1).device.type == "cpu"
