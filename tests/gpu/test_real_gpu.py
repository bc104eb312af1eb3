"""GG201 to GG204 on a real GPU: skipped, with the reason, where there is none.

``GRADGUARD_GPU_RECORD=FILE python -m pytest -m gpu tests/gpu`` also writes what the machine is, and
what a context costs there, to FILE as JSON.

Every case is a program of its own in a child process: this process never touches CUDA.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import forked_gpu
import pytest
from children import run_python
from cuda_calls import KINDS, USES, recorded, version

HERE = Path(__file__).parent
LIMIT = 300

_ASK = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


def run(program: str) -> str:
    """What a program prints, in a child; it and its workers end with the limit."""
    variables = {
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # else each process takes all of its memory
    }
    done = run_python("-c", program, limit=LIMIT, environment=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def gpus() -> int:
    """How many GPUs torch sees; asked in a child, so that nothing is initialised here."""
    if not all(map(find_spec, ("torch", "joblib"))):
        return 0
    return int(run(_ASK).split()[-1])


@pytest.fixture(autouse=True)
def _real_gpu() -> None:
    if not gpus():
        pytest.skip("torch sees no GPU here")


pytestmark = pytest.mark.gpu

HEAD = """\
import json
import gpu_tasks as tasks
from joblib import Parallel, delayed
from pytest_gradguard import guard

def workers(function, *arguments, backend="loky"):
    return Parallel(2, backend=backend)(delayed(function)(one) for one in arguments)

raised = None
with guard("record") as report:
    try:
{body}
    except Exception as error:
        raised = f"{{type(error).__name__}}: {{error}}".splitlines()[0]
found = [one.to_dict() for one in report.findings if one.severity.label != "info"]
print(json.dumps([found, raised]))
"""


def found(*lines: str) -> tuple[set[str], list[dict[str, Any]], str | None]:
    """The codes, the findings, and what the program raised."""
    program = HEAD.format(body="\n".join(f"        {line}" for line in lines))
    findings, raised = json.loads(run(program).splitlines()[-1])
    return {finding["code"] for finding in findings}, findings, raised


def test_cuda_in_workers() -> None:
    codes, findings, raised = found("workers(tasks.on_gpu, 1, 2)")
    assert (codes, raised) == ({"GG201"}, None)
    assert findings[0]["details"]["failed"] is None


def test_forked_workers_of_a_parent_without_cuda() -> None:
    codes, _, raised = found('workers(tasks.on_gpu, 1, 2, backend="multiprocessing")')
    assert (codes, raised) == ({"GG201"}, None)


def test_tensors_that_cross() -> None:
    codes, findings, raised = found(
        "import torch",
        'table = torch.ones(2, 3, device="cuda")',
        "workers(tasks.total, *table)",
    )
    assert (codes, raised) == ({"GG202"}, None)
    assert findings[0]["details"]["device"] == "cuda:0"


def test_tensors_that_come_back() -> None:
    codes, _, raised = found("made = workers(tasks.make, 1, 2)", "assert made[0].is_cuda")
    assert (codes, raised) == ({"GG201", "GG202"}, None)


def test_fork_after_cuda() -> None:
    lines = ("import torch", 'torch.ones(1, device="cuda")')
    # One task: a pool that ends while a second worker sends its error may wait forever.
    codes, _, raised = found(*lines, 'workers(tasks.on_gpu, 1, backend="multiprocessing")')
    assert codes == {"GG203"}
    assert raised is not None
    assert "Cannot re-initialize CUDA in forked subprocess" in raised
    codes, _, raised = found(*lines, 'workers(tasks.nothing, 1, 2, backend="multiprocessing")')
    assert (codes, raised) == ({"GG203"}, None)


FORKED = ', backend="multiprocessing")'


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("torch.cuda.is_available()", "Cannot re-initialize CUDA in forked subprocess"),
        ("tasks.trained(1)", "CUDA error: initialization error"),
        ("cupy.cuda.is_available()", "CUDA driver initialization failed"),
    ],
    ids=["asked", "backward", "cupy"],
)
def test_fork_after_the_driver_was_started(first: str, said: str) -> None:
    """No context was made, and CUDA fails in each child all the same."""
    if first.startswith("cupy"):
        pytest.importorskip("cupy")
    module = "cupy" if first.startswith("cupy") else "torch"
    start = (f"import {module}", first)
    codes, findings, raised = found(*start, f"workers(tasks.on_gpu, 1{FORKED}")
    assert codes == {"GG203"}
    assert raised is not None
    assert said in raised
    assert said in findings[0]["message"]
    assert findings[0]["message"].startswith("This process has started the CUDA driver")
    begins = [step["message"] for step in findings[0]["trace"] if step.get("lane") == "parent"]
    assert [text.endswith("starts the driver in this process") for text in begins] == [
        True for _ in range(module == "torch")
    ]
    codes, _, raised = found(*start, f"workers(tasks.on_gpu_if_possible, 1, 2{FORKED}")
    assert (codes, raised) == ({"GG203"}, None)
    codes, _, raised = found(*start, f"workers(tasks.nothing, 1, 2{FORKED}")
    assert (codes, raised) == (set(), None)
    codes, _, raised = found(*start, "workers(tasks.on_gpu, 1, 2)")
    assert (codes, raised) == ({"GG201"}, None)


def test_processes_after_the_driver_was_started() -> None:
    start = ("import torch", "torch.cuda.is_available()")
    codes, _, raised = found(*start, "assert tasks.in_a_process(tasks.on_gpu_if_possible) == 0")
    assert (codes, raised) == ({"GG203"}, None)
    codes, _, raised = found(*start, "assert tasks.in_a_process(tasks.nothing) == 0")
    assert (codes, raised) == (set(), None)


def test_processes_that_inherit_what_lies_on_the_gpu() -> None:
    """Nothing is initialised there: the first kernel fails."""
    codes, _, raised = found(
        "import functools, torch",
        'table = torch.ones(3, device="cuda")',
        "assert tasks.in_a_process(functools.partial(tasks.total_of, table)) == 1",
    )
    assert (codes, raised) == ({"GG203"}, None)


def test_models_on_the_gpu_that_workers_train() -> None:
    """Torch says of all that lies on a GPU that it is shared; what loky brings is a copy."""
    train = (
        "import torch",
        "torch.manual_seed(0)",
        'model = torch.nn.Linear(3, 1, device="cuda")',
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    )
    codes, _, raised = found(*train, "workers(tasks.backward, model, model)", "optimizer.step()")
    assert (codes, raised) == ({"GG202", "GG106"}, None)
    codes, _, raised = found(
        "import torch",
        'model = torch.nn.BatchNorm1d(3, device="cuda")',
        "workers(tasks.forward, model, model)",
        "model.eval()",
    )
    assert (codes, raised) == ({"GG202", "GG111"}, None)


WATCHED = (
    "import torch",
    'model = torch.nn.Linear(3, 1, device="cuda")',
    'x = torch.ones(4, 3, device="cuda")',
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    "def step():",
    "    model(x).sum().backward()",
    "    optimizer.step()",
    "    optimizer.zero_grad(set_to_none=False)",
    "step()",
    "workers(tasks.backward, model, model)",
)


def test_steps_wait_for_no_gpu() -> None:
    codes, _, raised = found(
        "import warnings",
        *WATCHED,
        'torch.cuda.set_sync_debug_mode("error")',
        'warnings.simplefilter("error")',
        "step()",
        "step()",
    )
    assert (codes, raised) == ({"GG202"}, None)


def test_steps_that_a_graph_captures() -> None:
    codes, _, raised = found(
        "import warnings",
        'warnings.simplefilter("error")',
        *WATCHED,
        "with torch.cuda.graph(torch.cuda.CUDAGraph()):",
        "    step()",
    )
    assert (codes, raised) == ({"GG202"}, None)


def test_fork_after_devices_were_counted() -> None:
    codes, _, raised = found(
        "import torch", "torch.cuda.device_count()", f"workers(tasks.on_gpu, 1, 2{FORKED}"
    )
    assert (codes, raised) == ({"GG201"}, None)


def test_gradients_in_forked_workers_after_those_of_the_parent() -> None:
    """All on the CPU: where there is a GPU, autograd has threads for it."""
    codes, _, raised = found(f"workers(tasks.trained, 1, 2{FORKED}")
    assert (codes, raised) == (set(), None)
    codes, findings, raised = found("tasks.trained(1)", f"workers(tasks.trained, 1, 2{FORKED}")
    assert codes == {"GG303"}
    assert "starts autograd's threads" in findings[0]["trace"][0]["message"]
    assert raised is not None
    assert "Unable to handle autograd's threading" in raised


@pytest.mark.parametrize("library", USES)
def test_what_calls_do_to_cuda(library: str) -> None:
    if library != "libraries":
        pytest.importorskip(library)
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = run_python(HERE.parent / "cuda_calls.py", library, limit=LIMIT, environment=environment)
    seen = json.loads(done.stdout.splitlines()[-1])
    differ = {
        call: seen[call] for call, kind in recorded(library).items() if seen[call] not in kind
    }
    if library == "libraries":  # those that are not installed, and other releases, are left out
        differ = {call: kind for call, kind in differ.items() if kind in KINDS}
    elif differ and version(library) != import_module(library).__version__:
        pytest.xfail(f"another release than the recorded one: {differ}")
    assert differ == {}


@pytest.mark.parametrize("beginning", forked_gpu.BEGINNINGS)
def test_what_fails_in_forked_processes(beginning: str) -> None:
    recorded = json.loads(forked_gpu.RECORDED.read_text(encoding="utf-8"))[beginning]
    done = run_python(HERE.parent / "forked_gpu.py", beginning, limit=LIMIT)
    seen = json.loads(done.stdout)[beginning]
    assert {action: seen[action] for action in recorded} == recorded


def test_visible_devices_that_change() -> None:
    # The first device is the one that there is; what later tasks of a worker ask for comes late.
    codes, _, _ = found(
        "import os",
        'os.environ["CUDA_VISIBLE_DEVICES"] = "0"',
        "workers(tasks.on_gpu, 1, 2)",
        "workers(tasks.choose, 1, 2, 3, 4)",
    )
    assert codes == {"GG201", "GG204"}


def test_what_needs_no_gpu() -> None:
    codes, _, raised = found(
        "import torch",
        "workers(tasks.nothing, 1, 2)",
        'table = torch.ones(2, 3, device="cuda")',
        "workers(tasks.total, *table.cpu())",
        'workers(tasks.total, *table, backend="threading")',
    )
    assert (codes, raised) == (set(), None)


needs_cupy = pytest.mark.skipif(find_spec("cupy") is None, reason="no CuPy")


@needs_cupy
def test_cupy_in_workers() -> None:
    codes, findings, raised = found("workers(tasks.cupy_on_gpu, 1, 2)")
    assert (codes, raised) == ({"GG201"}, None)
    assert findings[0]["details"]["framework"] == "cupy"


@needs_cupy
def test_arrays_of_cupy_that_cross() -> None:
    codes, _, raised = found("import cupy", "workers(tasks.cupy_total, cupy.ones(2), cupy.ones(3))")
    assert (codes, raised) == ({"GG202"}, None)
    codes, _, raised = found("workers(tasks.cupy_make, 1, 2)")
    assert (codes, raised) == ({"GG201", "GG202"}, None)


@needs_cupy
def test_fork_after_cupy() -> None:
    codes, findings, raised = found(
        "import cupy", "cupy.ones(2)", 'workers(tasks.cupy_on_gpu, 1, backend="multiprocessing")'
    )
    assert codes == {"GG203"}
    assert findings[0]["details"]["framework"] == "cupy"
    assert raised is not None


def _tensorflow_gpus() -> int:
    if find_spec("tensorflow") is None:
        return 0
    ask = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"
    return int(run(ask).split()[-1])


def test_tensorflow_in_workers() -> None:
    if not _tensorflow_gpus():
        pytest.skip("TensorFlow sees no GPU here")
    codes, findings, raised = found("workers(tasks.tensorflow_on_gpu, 1, 2)")
    assert (codes, raised) == ({"GG201"}, None)
    assert findings[0]["details"]["framework"] == "tensorflow"


def test_tensors_of_tensorflow_that_cross() -> None:
    if not _tensorflow_gpus():
        pytest.skip("TensorFlow sees no GPU here")
    codes, _, raised = found(
        "import tensorflow as tf",
        "tensor = tf.ones(3)",
        "assert 'GPU' in tensor.device",
        "workers(tasks.nothing, tensor, tensor)",
    )
    assert (codes, raised) == ({"GG202"}, None)


MEASURE = """\
import json, os, subprocess
import torch
import gpu_tasks as tasks
from joblib import Parallel, delayed
from pytest_gradguard import guard

# Of `nvidia-smi`: it makes no context of its own.
def used():
    asked = "nvidia-smi --query-gpu=memory.used,driver_version --format=csv,noheader,nounits"
    try:
        first = subprocess.run(asked.split(), capture_output=True, text=True, check=True).stdout
        memory, driver = first.splitlines()[0].split(",")
        return int(memory), driver.strip()
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None, None

before, driver = used()
with guard("record") as report, Parallel(2) as parallel:
    parallel(delayed(tasks.nothing)(one) for one in range(2))  # workers up, torch imported
    starts = parallel(delayed(tasks.start)(one) for one in range(2))
    after, _ = used()
print(json.dumps({
    "gpu": torch.cuda.get_device_name(),
    "gpus": torch.cuda.device_count(),
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "driver": driver,
    "used_mib_before": before,
    "used_mib_with_the_workers": after,
    "workers": starts,
    "said": [[one.code, one.message, one.details.get("context_bytes")] for one in report.findings],
}))
"""


@cache
def measured() -> dict[str, Any]:
    """What two workers that each start CUDA cost, and what the guard says of it; recorded."""
    seen: dict[str, Any] = json.loads(run(MEASURE).splitlines()[-1])
    before, after = seen["used_mib_before"], seen["used_mib_with_the_workers"]
    if before is not None and after is not None:
        workers = {worker["process"]: worker["reserved_bytes"] for worker in seen["workers"]}
        reserved = sum(workers.values()) / 2**20
        seen["mib_per_context"] = (after - before - reserved) / len(workers)
    print(json.dumps(seen, indent=1))
    record = os.environ.get("GRADGUARD_GPU_RECORD")
    if record:
        Path(record).write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
    return seen


def test_what_a_context_costs() -> None:
    assert all(worker["seconds"] > 0 for worker in measured()["workers"])


def test_what_the_guard_says_of_it() -> None:
    """As the driver counts by process, so the memory in use on the GPU grows, more or less."""
    ((code, message, context_bytes),) = measured()["said"]
    assert code == "GG201"
    if context_bytes is None:
        pytest.skip("the driver does not tell here what one process holds")
    assert "MiB of GPU memory" in message
    if "mib_per_context" not in measured():
        pytest.skip("no nvidia-smi to compare with")
    mean = sum(context_bytes) / len(context_bytes) / 2**20
    assert mean == pytest.approx(measured()["mib_per_context"], rel=0.25)
