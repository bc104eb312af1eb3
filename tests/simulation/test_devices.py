"""Where the results of operations lie, what autocast makes of them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from pytest_gradguard import guard  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def gpus() -> Iterator[None]:
    with guard("record", simulate_gpu=2):
        yield


def gpu(*size: int) -> Any:
    return torch.ones(size, device="cuda")


def packed() -> Any:
    return nn.utils.rnn.pack_padded_sequence(gpu(2, 3, 4), torch.tensor([3, 2]), batch_first=True)


ON_GPU: dict[str, Callable[[], Any]] = {
    "number beside": lambda: gpu(2) + torch.tensor(1.0),
    "sparse": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 1]]).cuda(), gpu(2), (2,)),
    "filled": lambda: gpu(2).fill_(torch.tensor(2.0)),
    "masked": lambda: gpu(2).masked_fill(gpu(2) > 0, torch.tensor(2.0)),
    "index put": lambda: gpu(3).index_put_((torch.tensor([0]),), torch.tensor(5.0)),
    "packed": lambda: packed().data,
    "normal": lambda: torch.normal(gpu(2), 1.0),
    "like": lambda: torch.zeros_like(torch.ones(1), device="cuda"),
    "named tuple": lambda: gpu(4).max(0).values,
    "out": lambda: torch.add(gpu(2), gpu(2), out=torch.empty(2, device="cuda")),
    "distribution": lambda: torch.distributions.Beta(gpu(2), gpu(2)).rsample(),
    "reflected": lambda: 2 - gpu(2),
    "index on the CPU": lambda: gpu(2)[torch.tensor([True, False])],
    "number for a device": lambda: torch.ones(1, device=0),
    "module to a tensor": lambda: nn.Linear(1, 1).to(gpu(1)).weight,
    "legacy type": lambda: torch.cuda.FloatTensor([1.0]),
    "collated": lambda: torch.utils.data.default_collate([{"a": gpu(2)}] * 2)["a"],
    "buffer": lambda: nn.BatchNorm1d(2).cuda().num_batches_tracked,
    "vmapped": lambda: torch.vmap(lambda row: row * torch.ones(2, device=row.device))(gpu(3, 2)),
    "gradient of a function": lambda: torch.func.grad(lambda x: (x * x).sum())(gpu(2)),
    "half on the CPU unknown": lambda: F.rrelu(gpu(2).half(), training=True),
    "made from a GPU tensor": lambda: torch.cuda.FloatTensor(gpu(2)),
    "data set anew": lambda: moved_data().weight,
    "gradient": lambda: torch.autograd.grad((leaf := gpu(2).requires_grad_()).sum(), leaf)[0],
}

ON_CPU: dict[str, Callable[[], Any]] = {
    "range to a GPU number": lambda: torch.arange(torch.tensor(3, device="cuda")),
    "full of a GPU number": lambda: torch.full((2,), torch.tensor(1.0, device="cuda")),
    "filled from a GPU": lambda: torch.zeros(2).fill_(torch.tensor(1.0, device="cuda")),
    "copied from a GPU": lambda: torch.zeros(2).copy_(gpu(2)),
    "like, for the CPU": lambda: torch.randn_like(gpu(2), device="cpu"),
    "new, for the CPU": lambda: gpu(1).new_zeros(2, device="cpu"),
    "list of GPU numbers": lambda: torch.tensor([torch.tensor(1.0, device="cuda"), 2.0]),
    "batch sizes": lambda: packed().batch_sizes,
    "lengths": lambda: nn.utils.rnn.pad_packed_sequence(packed())[1],
    "number broadcast": lambda: torch.broadcast_tensors(gpu(2), torch.tensor(1.0))[1],
    "state of the generator": torch.cuda.get_rng_state,
    "step of Adam": lambda: stepped().state_dict()["state"][0]["step"],
}


def stepped() -> Any:
    parameter = nn.Parameter(gpu(2))
    optimizer = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("name", ON_GPU)
def test_results_on_a_gpu(name: str) -> None:
    result = ON_GPU[name]()
    assert str(result.device) == "cuda:0"
    assert result.is_cuda


@pytest.mark.parametrize("name", ON_CPU)
def test_results_on_the_cpu(name: str) -> None:
    result = ON_CPU[name]()
    assert str(result.device) == "cpu"
    assert not result.is_cuda


def moved_data() -> Any:
    layer = nn.Linear(2, 2)
    for parameter in layer.parameters():
        parameter.data = parameter.data.cuda()
    return layer


def state_left_behind(make: Any) -> Any:
    """An optimizer that has begun on the CPU, and whose parameters have moved since."""
    layer = nn.Linear(2, 2)
    optimizer = make(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    layer.cuda()
    layer(gpu(1, 2)).sum().backward()
    return optimizer.step()


REFUSED: dict[str, Callable[[], Any]] = {
    "values put": lambda: gpu(3).index_put_((torch.tensor([0]),), torch.tensor([5.0])),
    "out on a GPU": lambda: torch.add(torch.ones(2), torch.ones(2), out=gpu(2)),
    "momentum on the CPU": lambda: state_left_behind(
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9)
    ),
    "moments on the CPU": lambda: state_left_behind(torch.optim.Adam),
    "several lists": lambda: torch._foreach_add([gpu(2)], [torch.ones(2)]),
    "number on another GPU": lambda: gpu(2) + torch.tensor(1.0, device="cuda:1"),
    "number on the GPU": lambda: torch.ones(2) + torch.tensor(1.0, device="cuda"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_devices_that_do_not_mix(name: str) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        REFUSED[name]()


def test_a_gradient_on_another_device_begins_no_backward() -> None:
    output = gpu(2).requires_grad_() * 2
    with pytest.raises(RuntimeError, match="expected device cuda:0 but got cpu"):
        output.backward(torch.ones(2))
    output.backward(gpu(2))


def test_autocast_works_in_the_types_of_cuda() -> None:
    half = gpu(2, 2).half()
    with torch.autocast("cuda"):
        low = (gpu(2, 2) @ gpu(2, 2), F.conv2d(gpu(1, 1, 3, 3), gpu(1, 1, 2, 2)), F.gelu(half))
        wide = (half.softmax(-1), half.exp(), half.sum(), F.mse_loss(half, half), half + gpu(2, 2))
        on_cpu = torch.ones(2, 2) @ torch.ones(2, 2)
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(half, half)
    assert {x.dtype for x in low} == {torch.float16}
    assert {x.dtype for x in wide} == {torch.float32}
    assert on_cpu.dtype is torch.float32
    with torch.autocast("cpu"):
        assert (gpu(2, 2) @ gpu(2, 2)).dtype is torch.float32


def test_text_names_the_device() -> None:
    assert f"{gpu(2)}" == "tensor([1., 1.], device='cuda:0')"
    assert f"{gpu(2).sum():.2f}" == "2.00"
    assert f"{[gpu(1)]}" == "[tensor([1.], device='cuda:0')]"


def test_old_types_tell_the_device() -> None:
    assert isinstance(gpu(1), torch.cuda.FloatTensor)
    assert not isinstance(gpu(1), torch.FloatTensor)
    assert not isinstance(gpu(1), torch.cuda.LongTensor)
    assert isinstance(torch.ones(1), torch.FloatTensor)
    assert not isinstance(torch.ones(1), torch.cuda.FloatTensor)
    with pytest.raises(TypeError, match=r"expected torch\.FloatTensor"):
        torch.FloatTensor(gpu(2))


def test_a_tensor_is_recorded_on_a_stream() -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gpu(2).record_stream(stream)
    assert not torch.cuda.is_current_stream_capturing()


def test_no_other_library_gets_its_memory() -> None:
    for give in (torch.utils.dlpack.to_dlpack, torch.from_dlpack):
        with pytest.raises(RuntimeError, match="gradguard cannot simulate"):
            give(gpu(2))
    assert not hasattr(gpu(2), "__cuda_array_interface__")
    assert torch.utils.dlpack.to_dlpack(torch.ones(2)) is not None


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.bool])
def test_whole_numbers_have_no_products_on_gpus(kind: Any) -> None:
    whole = gpu(2, 2).to(kind)
    for product in (torch.mm, torch.matmul):
        with pytest.raises(NotImplementedError, match="not implemented for"):
            product(whole, whole)
    assert (whole.cpu().long() @ whole.cpu().long()).tolist() == [[2, 2], [2, 2]]


def test_a_convolution_of_two_types_is_refused_as_on_gpus() -> None:
    with pytest.raises(RuntimeError, match=r"Input type \(torch.cuda.DoubleTensor\) and weight"):
        nn.Conv1d(1, 1, 1).cuda()(gpu(1, 1, 2).double())


def test_a_distance_of_the_program_sees_the_device() -> None:
    seen = []

    def distance(one: Any, other: Any) -> Any:
        seen.append(str(one.device))
        return (one - other).abs().sum(-1) * torch.ones(1, device=one.device)

    loss = nn.TripletMarginWithDistanceLoss(distance_function=distance)(gpu(2), gpu(2), gpu(2))
    assert str(loss.device) == "cuda:0"
    assert set(seen) == {"cuda:0"}


def test_recurrent_layers_work_in_half_precision() -> None:
    layer = nn.LSTM(2, 2).cuda()
    with torch.autocast("cuda"):
        output, _ = layer(gpu(1, 1, 2))
    assert output.dtype is torch.float16
    output.float().sum().backward()
    assert layer.weight_ih_l0.grad.dtype is torch.float32


def test_a_mask_on_another_device() -> None:
    with pytest.raises(RuntimeError, match="but got mask on cpu and self on cuda:0"):
        gpu(2).masked_fill_(torch.tensor([True, False]), 0.0)


def test_operators_of_the_program_see_the_device() -> None:
    def square(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return x * x + torch.zeros(1, device=x.device)

    operator = torch.library.custom_op("gradguard_tests::square", square, mutates_args=())
    assert operator(gpu(2)).is_cuda
    assert torch.ops.gradguard_tests.square(gpu(2)).tolist() == [1.0, 1.0]
    alone = torch.library.custom_op(
        "gradguard_tests::alone", square, mutates_args=(), device_types="cuda"
    )
    with pytest.raises(RuntimeError, match="cannot simulate gradguard_tests::alone"):
        alone(gpu(2))


@pytest.mark.parametrize("name", ["to", "cuda", "norm", "__add__"])
def test_a_method_that_the_program_has_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "to": lambda: torch.ones(2).to("cuda"),
        "cuda": lambda: torch.ones(2).cuda(),
        "norm": lambda: gpu(2).norm(),
        "__add__": lambda: gpu(2) + 1,
    }
    original, seen = getattr(torch.Tensor, name), []

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(name)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, name, counted)
    assert calls[name]().is_cuda
    assert seen == [name]
