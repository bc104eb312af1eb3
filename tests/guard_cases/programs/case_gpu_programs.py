"""Ordinary programs for a GPU, on two pretended ones: nothing is wrong with them."""

import copy
import io
import pickle
import threading

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def trained(device, steps=5):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def test_training_equals_the_cpu():
    on_cpu, _ = trained("cpu")
    on_gpu, model = trained("cuda:1")
    assert np.allclose(on_cpu, on_gpu)
    assert {p.device for p in model.parameters()} == {torch.device("cuda:1")}
    assert {p.grad.device for p in model.parameters()} == {torch.device("cuda:1")}


def test_mixed_precision():
    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = model(torch.ones(2, 4, device="cuda"))
        assert output.dtype is torch.bfloat16
        assert nn.Linear(4, 1)(torch.ones(2, 4)).dtype is torch.float32
    before = model.weight.detach().clone()
    scaler.scale(output.float().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before, model.weight)


def saved(*objects):
    buffer = io.BytesIO()
    torch.save(objects, buffer)
    buffer.seek(0)
    return buffer


def test_checkpoint():
    _, model = trained("cuda")
    buffer = saved(model.state_dict())
    (state,) = torch.load(buffer)
    assert {value.device.type for value in state.values()} == {"cuda"}
    buffer.seek(0)
    (state,) = torch.load(buffer, map_location="cpu")
    assert {value.device.type for value in state.values()} == {"cpu"}
    fresh = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).cuda()
    fresh.load_state_dict(state)
    assert fresh[0].weight.is_cuda
    assert torch.equal(fresh[0].weight, model[0].weight)


def test_checkpoint_for_another_gpu():
    x = torch.arange(3.0, device="cuda:1")
    (back,) = torch.load(saved(x), map_location={"cuda:1": "cuda:0"})
    assert (str(back.device), back.tolist()) == ("cuda:0", [0.0, 1.0, 2.0])
    (again,) = torch.load(saved(x), map_location=lambda storage, place: storage)
    assert again.device.type == "cpu"


def test_data_parallel():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    x = torch.randn(6, 4)
    expected = model(x).detach()
    seen = []
    model.register_forward_hook(lambda module, args, output: seen.append(str(output.device)))
    output = nn.DataParallel(model.cuda())(x.cuda())
    assert torch.allclose(output.cpu(), expected)
    assert sorted(seen) == ["cuda:0", "cuda:1"]


def test_gradient_flows_from_gpu_to_cpu():
    weight = torch.ones(3, requires_grad=True)
    (weight.cuda() * torch.arange(3.0, device="cuda")).sum().cpu().backward()
    assert (weight.grad.device.type, weight.grad.tolist()) == ("cpu", [0.0, 1.0, 2.0])


def test_loader_with_pinned_memory():
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2, pin_memory=True)
    for (batch,) in loader:
        assert batch.is_pinned()
        assert batch.to("cuda", non_blocking=True).is_cuda


class Numbers(Dataset):
    def __init__(self, device):
        self.device = device

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((2,), float(index), device=self.device)


def test_loader_with_workers():
    torch.zeros(1, device="cuda")
    loader = DataLoader(Numbers("cpu"), batch_size=2, num_workers=1, pin_memory=True)
    assert sum(float(batch.cuda().sum()) for batch in loader) == 12.0


def test_loader_whose_workers_use_the_gpu():
    torch.zeros(1, device="cuda")
    loader = DataLoader(Numbers("cuda"), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        list(loader)  # -> GG203:error


def test_mixed_devices():
    x, y = torch.ones(2, 2), torch.ones(2, 2, device="cuda")
    message = "Expected all tensors to be on the same device"
    for mixing in (
        lambda: x + y,
        lambda: x @ y,
        lambda: torch.cat([x, y]),
        lambda: nn.Linear(2, 2)(y),
        lambda: nn.functional.mse_loss(x, y),
        lambda: y + torch.ones(2, 2, device="cuda:1"),
        lambda: x.add_(y),
        lambda: torch.where(y > 0, x, y),
    ):
        with pytest.raises(RuntimeError, match=message):
            mixing()
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same"):
        x[torch.tensor([0], device="cuda")]
    assert (y + torch.tensor(1.0)).is_cuda  # a number goes anywhere
    assert y[torch.tensor([0])].is_cuda
    y[0] = x[0]
    x.copy_(y)


def test_numpy_of_a_gpu_tensor():
    x = torch.ones(2, device="cuda")
    for asked in (x.numpy, lambda: np.asarray(x), lambda: np.array(x)):
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            asked()
    assert x.cpu().numpy().tolist() == x.tolist() == [1.0, 1.0]


def test_no_such_gpu():
    for asked in (
        lambda: torch.ones(1, device="cuda:2"),
        lambda: torch.ones(1).to("cuda:7"),
        lambda: nn.Linear(1, 1).cuda(5),
        lambda: torch.cuda.set_device(2),
    ):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            asked()
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(2)


def test_copies_know_their_device():
    model = nn.Linear(2, 2).to("cuda:1")
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert str(one.weight.device) == "cuda:1"
    x = torch.ones(2, device="cuda")
    same = (
        x.clone(),
        x.detach(),
        x.data,
        x[:1],
        x.view(2, 1),
        x * 2,
        torch.zeros_like(x),
        x.new(2),
    )
    assert {str(one.device) for one in same} == {"cuda:0"}
    assert "device='cuda:0'" in repr(x)
    assert x.type() == "torch.cuda.FloatTensor"


def test_default_device():
    with torch.device("cuda"):
        assert torch.ones(2).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda
        with torch.cuda.device(1):
            assert str(torch.ones(2).device) == "cuda:1"
    torch.set_default_device("cuda:1")
    try:
        assert str(torch.zeros(1).device) == "cuda:1"
        assert torch.from_numpy(np.ones(1)).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    assert torch.zeros(1).device.type == "cpu"


def test_streams_and_events():
    stream = torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        x = torch.ones(2, device="cuda") * 2
    torch.cuda.current_stream().wait_stream(stream)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0.0
    assert x.tolist() == [2.0, 2.0]


def test_memory_is_counted():
    before = torch.cuda.memory_allocated()
    x = torch.ones(1024, device="cuda")
    assert torch.cuda.memory_allocated() == before + 4096
    assert torch.cuda.max_memory_allocated() >= before + 4096
    del x
    assert torch.cuda.memory_allocated() == before
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] <= torch.cuda.get_device_properties(0).total_memory


def test_seeds():
    numbers = []
    for _ in range(2):
        torch.cuda.manual_seed_all(7)
        numbers.append(torch.rand(3, device="cuda").tolist())
    assert numbers[0] == numbers[1]
    torch.manual_seed(7)
    drawn = torch.rand(3).tolist()
    torch.manual_seed(7)
    assert torch.rand(3, device="cuda").tolist() == drawn


def test_generator():
    generator = torch.Generator(device="cuda").manual_seed(1)
    first = torch.rand(2, generator=generator, device="cuda")
    assert first.is_cuda
    generator.manual_seed(1)
    assert torch.equal(first, torch.rand(2, generator=generator, device="cuda"))
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.rand(2, generator=torch.Generator(), device="cuda")


def test_own_thread():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.ones(2, device="cuda").is_cuda))
    thread.start()
    thread.join()
    assert seen == [True]


def loss_of(model, x):
    loss = model(x).square().sum()
    loss.backward()
    return loss.item()


def test_gradients_of_threads():
    model = nn.Linear(2, 1).cuda()
    batches = [torch.ones(1, 2, device="cuda") * k for k in (1, 2)]
    Parallel(2, backend="threading")(delayed(loss_of)(model, x) for x in batches)
    assert model.weight.grad.is_cuda


def doubled(values):
    return [2 * value for value in values]


def test_preprocessing_in_workers():
    rows = Parallel(2)(delayed(doubled)([k, k + 1.0]) for k in range(4))
    model = nn.Linear(2, 1).cuda()
    model(torch.tensor(rows, device="cuda")).sum().backward()
    assert model.weight.grad.is_cuda


def score(rate, x):
    model = nn.Linear(2, 1)
    return float(model(x).detach().sum() * 0 + rate)


def test_search_on_cpu_then_gpu():
    x = torch.ones(3, 2)
    best = max(Parallel(2)(delayed(score)(rate, x) for rate in (0.1, 0.2)))
    assert torch.optim.SGD(nn.Linear(2, 1).cuda().parameters(), lr=best).defaults["lr"] == best


def gradients(state, values):
    model = nn.Linear(2, 1).cuda()
    model.load_state_dict(state)
    model(torch.tensor([values], device="cuda")).sum().backward()
    return [p.grad.cpu() for p in model.parameters()]


def test_gradients_from_workers():
    model = nn.Linear(2, 1)
    state = {name: value.detach() for name, value in model.state_dict().items()}
    results = Parallel(2)(delayed(gradients)(state, [k, 1.0]) for k in (1.0, 2.0))  # -> GG201
    for index, parameter in enumerate(model.parameters()):
        parameter.grad = sum(result[index] for result in results)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_graphs_cannot_be_had():
    with pytest.raises(RuntimeError, match="cannot simulate CUDA graphs"):
        torch.cuda.CUDAGraph()
