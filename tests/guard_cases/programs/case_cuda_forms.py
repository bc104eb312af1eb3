"""What needs CUDA and is refused before torch initialises it, where there is no GPU."""

import pytest
import torch
from joblib import Parallel, delayed
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available() or hasattr(torch._C, "_cuda_getDeviceCount"),
    reason="for builds of torch without CUDA",
)

DETAILS = {
    "test_load_caught": {"GG201": {"function": "load_or_else", "framework": "torch"}},
    "test_set_device": {"GG201": {"function": "set_device", "framework": "torch"}},
}
FORK = {"n_jobs": 2, "backend": "multiprocessing"}
"""For most of what fails: after an error loky's workers start afresh, which takes long."""
REFUSED = (RuntimeError, TypeError, AttributeError)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "weights.pt"
    torch.save({"w": torch.ones(3)}, path)
    return path


@pytest.fixture(scope="module")
def saved_on_gpu(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "gpu.pt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save({"w": torch.ones(3)}, path)
    return path


def load(path, location):
    return float(torch.load(path, map_location=location)["w"].sum())


def test_load(saved):
    with pytest.raises(RuntimeError, match="deserialize"):
        Parallel(2)(delayed(load)(saved, "cuda") for _ in range(2))  # -> GG201:warning


def load_or_else(path):
    try:
        return load(path, "cuda:1")
    except RuntimeError:
        return load(path, "cpu")


def test_load_caught(saved):
    assert Parallel(2)(delayed(load_or_else)(saved) for _ in range(2)) == [3.0, 3.0]  # -> GG201


def test_load_by_device(saved):
    with pytest.raises(REFUSED):
        Parallel(**FORK)([delayed(load)(saved, torch.device("cuda", 0))])  # -> GG201


def test_load_by_dict(saved):
    with pytest.raises(REFUSED):
        Parallel(**FORK)([delayed(load)(saved, {"cpu": "cuda:0"})])  # -> GG201


def restored(storage, location):
    return torch.serialization.default_restore_location(storage, "cuda")


def test_load_by_function(saved):
    with pytest.raises(REFUSED):
        Parallel(**FORK)([delayed(load)(saved, restored)])  # -> GG201


def moved(storage, location):
    return storage.cuda(1)


def test_load_by_storage(saved):
    with pytest.raises(REFUSED):
        Parallel(**FORK)([delayed(load)(saved, moved)])  # -> GG201


def test_load_checkpoint_of_a_gpu(saved_on_gpu):
    with pytest.raises(REFUSED):
        Parallel(**FORK)([delayed(load)(saved_on_gpu, None)])  # -> GG201


def load_script(path):
    return torch.jit.load(path, map_location="cuda")


def test_load_script(tmp_path):
    path = str(tmp_path / "script.pt")
    torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1, 1)).save(path)
    with pytest.raises(REFUSED):
        Parallel(**FORK)([delayed(load_script)(path)])  # -> GG201


def test_forked_load(saved):
    parallel = Parallel(2, backend="multiprocessing")
    assert parallel(delayed(load_or_else)(saved) for _ in range(2)) == [3.0, 3.0]  # -> GG201


def set_device(k):
    torch.cuda.set_device(k)


def test_set_device():
    with pytest.raises(REFUSED):
        Parallel(2)(delayed(set_device)(k) for k in (0, 1))  # -> GG201


def in_block(k):
    with torch.cuda.device(k):
        return torch.ones(k).sum()


def test_device_block():
    with pytest.raises(REFUSED):
        Parallel(**FORK)([delayed(in_block)(1)])  # -> GG201


def in_block_or_error(k):
    try:
        return in_block(k)
    except RuntimeError as error:
        raise LookupError(k) from error


def test_device_block_behind_another_error():
    with pytest.raises(LookupError):
        Parallel(**FORK)([delayed(in_block_or_error)(1)])  # -> GG201


def draw(k):
    generator = torch.Generator(device="cuda").manual_seed(k)
    return torch.rand(1, generator=generator, device="cuda").item()


def test_generator():
    with pytest.raises(REFUSED):
        Parallel(**FORK)([delayed(draw)(1)])  # -> GG201


def on_stream(k):
    with torch.cuda.stream(torch.cuda.Stream()):
        return k


def test_stream():
    with pytest.raises(REFUSED):
        Parallel(**FORK)([delayed(on_stream)(1)])  # -> GG201


def by_number(k):
    return float(torch.ones(k).to(0).sum())


def test_device_by_number():
    with pytest.raises(REFUSED):
        Parallel(**FORK)([delayed(by_number)(1)])  # -> GG201


def pinned(k):
    return torch.ones(k).pin_memory().tolist()


def test_pinned():
    with pytest.raises(REFUSED):
        Parallel(**FORK)([delayed(pinned)(1)])  # -> GG201


def of_type(k):
    return torch.cuda.FloatTensor([k]).tolist()


def test_tensor_type():
    with pytest.raises(REFUSED):
        Parallel(**FORK)([delayed(of_type)(1)])  # -> GG201


def test_load_on_cpu(saved, saved_on_gpu):
    tasks = [delayed(load)(path, "cpu") for path in (saved, saved_on_gpu)]
    assert Parallel(2)(tasks) == [3.0, 3.0]


def test_load_on_cpu_by_device(saved_on_gpu):
    location = torch.device("cpu")
    assert Parallel(2)(delayed(load)(saved_on_gpu, location) for _ in range(2)) == [3.0, 3.0]


def test_load_on_cpu_by_dict(saved_on_gpu):
    location = {"cuda:0": "cpu"}
    assert Parallel(2)(delayed(load)(saved_on_gpu, location) for _ in range(2)) == [3.0, 3.0]


def test_load_as_it_is(saved, saved_on_gpu):
    tasks = [delayed(load)(saved, None), delayed(load)(saved_on_gpu, lambda storage, _: storage)]
    assert Parallel(2)(tasks) == [3.0, 3.0]


def load_on_meta(path):
    return torch.load(path, map_location="meta")["w"].device.type


def test_load_on_meta(saved_on_gpu):
    assert Parallel(2)(delayed(load_on_meta)(saved_on_gpu) for _ in range(2)) == ["meta"] * 2


def test_load_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        Parallel(**FORK)([delayed(load)(tmp_path / "none.pt", "cuda")])


def test_load_to_another_accelerator(saved):
    with pytest.raises(RuntimeError):
        Parallel(**FORK)([delayed(load)(saved, "xpu")])


def test_load_in_the_parent(saved):
    assert load_or_else(saved) == 3.0
    assert Parallel(2)(delayed(load)(saved, "cpu") for _ in range(2)) == [3.0, 3.0]


def test_load_in_threads(saved):
    parallel = Parallel(2, backend="threading")
    assert parallel(delayed(load_or_else)(saved) for _ in range(2)) == [3.0, 3.0]


def mixed(k):
    scaler = torch.amp.GradScaler("cuda", enabled=torch.cuda.is_available())
    with torch.autocast("cuda", enabled=torch.cuda.is_available()):
        return float(scaler.scale(torch.ones(k).sum()))


def test_mixed_precision():
    assert Parallel(2)(delayed(mixed)(k) for k in (1, 2)) == [1.0, 2.0]


def loaded(k):
    loader = DataLoader(TensorDataset(torch.ones(k, 1)), pin_memory=True)
    return sum(float(batch.sum()) for (batch,) in loader)


@pytest.mark.filterwarnings("ignore")
def test_pinning_loader():
    assert Parallel(2)(delayed(loaded)(k) for k in (1, 2)) == [1.0, 2.0]


def no_device_chosen(k):
    with torch.cuda.device(-1), torch.cuda.stream(None):
        return float(torch.ones(k).sum())


def test_no_device_chosen():
    assert Parallel(2)(delayed(no_device_chosen)(k) for k in (1, 2)) == [1.0, 2.0]


def asked(k):
    if torch.cuda.is_available() or torch.cuda.device_count():
        torch.cuda.set_device(k)
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch.backends.cuda.is_built(), torch.cuda.is_initialized()


def test_asked():
    assert Parallel(2)(delayed(asked)(k) for k in (0, 1)) == [(False, False)] * 2


def own_error(k):
    raise RuntimeError("CUDA out of memory, says the program")


def test_own_error():
    with pytest.raises(RuntimeError):
        Parallel(**FORK)([delayed(own_error)(1)])


def refuse(k):
    if not torch.cuda.is_available():
        raise RuntimeError("this needs a GPU")
    torch.cuda.set_device(k)


def test_own_refusal():
    with pytest.raises(RuntimeError):
        Parallel(**FORK)([delayed(refuse)(1)])


def wrong_shapes(k):
    return torch.ones(2, 3) @ torch.ones(2, 3)


def test_torch_error():
    with pytest.raises(RuntimeError):
        Parallel(**FORK)([delayed(wrong_shapes)(1)])
