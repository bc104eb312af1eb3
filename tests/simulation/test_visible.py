"""Which of the pretended GPUs a process sees: ``CUDA_VISIBLE_DEVICES``, read once."""

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
