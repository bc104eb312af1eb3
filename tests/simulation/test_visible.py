"""Which of the simulated GPUs a process sees: ``CUDA_VISIBLE_DEVICES``, read once."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pytest_gradguard import guard  # noqa: E402


@pytest.mark.parametrize(
    ("visible", "count"),
    [("", 0), ("1", 1), ("0,1", 2), ("1,7,0", 1), ("0,0", 0), ("-1", 0), (None, 2)],
)
def test_visible_devices(visible: str | None, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with guard("record", simulate_gpu=2):
        assert torch.cuda.is_available() == (count > 0)
        assert torch.cuda.device_count() == count
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # too late
        if count:
            assert str(torch.ones(1, device="cuda").device) == "cuda:0"
            assert torch.cuda.device_count() == count
        else:
            with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
                torch.ones(1, device="cuda")


def test_the_current_device_belongs_to_a_thread() -> None:
    import threading

    seen = []
    with guard("record", simulate_gpu=2):
        torch.cuda.set_device(1)
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_device()))
        thread.start()
        thread.join()
        seen.append(torch.cuda.current_device())
    assert seen == [0, 1]


def test_a_stream_brings_its_device_along() -> None:
    with guard("record", simulate_gpu=2):
        stream = torch.cuda.Stream(device=1)
        with torch.cuda.stream(stream):
            assert torch.cuda.current_stream() == stream
            assert torch.cuda.current_device() == 1
        assert torch.cuda.current_device() == 0


def test_streams_of_a_build_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its classes cannot be changed: others stand in for them."""
    for name in ("_CudaStreamBase", "_CudaEventBase"):
        monkeypatch.setattr(torch._C, name, int)
    before = torch.cuda.Stream
    with guard("record", simulate_gpu=1):
        stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
        event.record(stream)
        assert isinstance(stream, torch.cuda.Stream)
        assert event.elapsed_time(stream.record_event(torch.cuda.Event(enable_timing=True))) >= 0
    assert torch.cuda.Stream is before
    assert torch._C._CudaStreamBase is int


def test_threads_of_an_older_pool_see_them_in_their_tasks() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def made() -> bool:
        return bool(torch.ones(1, device="cuda").is_cuda)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(abs, 1).result()
        with guard("record", simulate_gpu=1):
            assert pool.submit(made).result()
        assert isinstance(pool.submit(made).exception(), (AssertionError, RuntimeError))


def test_a_block_inside_another_has_its_own_number() -> None:
    with guard("record", simulate_gpu=1):
        torch.ones(1, device="cuda")
        with guard("record", simulate_gpu=3):
            assert str(torch.ones(1, device="cuda:2").device) == "cuda:2"
            torch.cuda.manual_seed_all(3)
        assert torch.cuda.device_count() == 1
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.ones(1, device="cuda:2")
    assert not torch.cuda.is_available()
