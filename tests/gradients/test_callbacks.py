"""The callbacks, in real fits of the real libraries."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from children import run_python

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pytest_gradguard import GradGuardError, GradGuardWarning  # noqa: E402

LOST = r"(?s)`body\.weight` and `body\.bias`.*`\.detach\(\)`"


class Net(nn.Module):
    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)
        self.cut = cut
        self.calls = 0

    def forward(self, x: Any = None, **_: Any) -> Any:
        self.calls += 1
        hidden = self.body(x)
        output = self.head(hidden.detach() if self.cut else hidden)
        return {"loss": output.mean()}


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((2,), float(index))}


def lightning_package(name: str) -> Any:
    package = pytest.importorskip(name)
    return package.pytorch if name == "lightning" else package


def fit(package: Any, net: Net, callback: Any, **options: Any) -> None:
    class Module(package.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = net.body, net.head

        def training_step(self, batch: Any, index: int) -> Any:
            if options.get("fails") and index == 2:
                raise KeyError("a fault of the program's")
            return net(**batch)["loss"]

        def validation_step(self, batch: Any, index: int) -> None:
            net(**batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = package.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[callback], **dict.fromkeys(quiet, False)
    )
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?!GG)")
        trainer.fit(Module(), loader, loader)


def train(net: Net, callback: Any, folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=4,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
    )
    transformers.Trainer(net, arguments, train_dataset=Rows(), callbacks=[callback]).train()


@pytest.fixture(params=["lightning", "pytorch_lightning", "transformers"])
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Trains a `Net` with the library, under a `WatchGradients` with these options."""
    if request.param == "transformers":
        pytest.importorskip("transformers")
        from pytest_gradguard.callbacks.transformers import WatchGradients
    else:
        package = lightning_package(request.param)
        from pytest_gradguard.callbacks.lightning import WatchGradients

    def run(net: Net, **options: Any) -> None:
        callback = WatchGradients(**options)
        if request.param == "transformers":
            train(net, callback, tmp_path)
        else:
            fit(package, net, callback)

    return run


def test_training_ends_after_the_first_step_with_names_and_reason(trained: Any) -> None:
    detach, net = torch.Tensor.detach, Net(cut=True)
    with pytest.raises(GradGuardError, match=LOST):
        trained(net)
    assert torch.Tensor.detach is detach
    learned = net.calls
    other = Net(cut=True)
    with pytest.raises(GradGuardError, match=LOST):
        trained(other, steps=2)
    assert other.calls == learned + 1


def test_training_that_learns_goes_on(trained: Any) -> None:
    detach, net = torch.Tensor.detach, Net(cut=False)
    trained(net)
    assert torch.Tensor.detach is detach
    assert net.calls >= 4
    assert net.body.weight.grad is None or torch.isfinite(net.body.weight.grad).all()


def test_a_warning_lets_it_go_on(trained: Any) -> None:
    net = Net(cut=True)
    with pytest.warns(GradGuardWarning, match=LOST):
        trained(net, on_missing="warn")
    assert net.calls >= 4


def test_names_may_be_allowed(trained: Any) -> None:
    trained(Net(cut=True), allow_none="body.*")


def test_a_run_with_fewer_steps_is_judged_at_its_end(trained: Any) -> None:
    with pytest.raises(GradGuardError, match=LOST):
        trained(Net(cut=True), steps=100)


def test_an_error_of_the_program_comes_with_what_is_missing() -> None:
    package = lightning_package("lightning")
    from pytest_gradguard.callbacks.lightning import WatchGradients

    with pytest.warns(GradGuardWarning, match=LOST), pytest.raises(KeyError, match="a fault of"):
        fit(package, Net(cut=True), WatchGradients(steps=10), fails=True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"steps": 0}, r"steps=0 is not allowed"),
        ({"allow_none": 3}, r"allow_none=3 is not allowed"),
        ({"finite": 1}, r"finite=1 is not allowed"),
        ({"on_missing": "raise"}, r"on_missing='raise' is not allowed \(allowed: 'error' or"),
    ],
)
def test_other_values_are_refused(options: dict[str, Any], complaint: str) -> None:
    from pytest_gradguard.callbacks.training import TrainingWatch

    usual = {"steps": 1, "allow_none": (), "finite": True, "nonzero": False, "on_missing": "error"}
    with pytest.raises((TypeError, ValueError), match=complaint):
        TrainingWatch(**{**usual, **options})


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("lightning", "needs Lightning, which is not installed (pip install lightning)"),
        ("transformers", "needs transformers, which is not installed (pip install transformers)"),
    ],
)
def test_without_the_library_one_line_says_so(module: str, said: str) -> None:
    program = (
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "absent = ('lightning', 'pytorch_lightning', 'transformers')\n"
        "util.find_spec = lambda name, *rest: None if name in absent else find(name, *rest)\n"
        f"import pytest_gradguard.callbacks.{module}\n"
    )
    done = run_python("-c", program)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: pytest_gradguard.callbacks.")
    assert done.stderr.splitlines()[-1].endswith(said)
