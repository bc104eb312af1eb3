"""GG204: a process worker changes which GPUs it sees."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG204",
    name="visible-devices-in-worker",
    title="A process worker sets CUDA_VISIBLE_DEVICES",
    severity=Severity.WARNING,
    happens=(
        "The variable stays set in the worker for all later tasks, but CUDA reads it only once: "
        "a reused worker keeps the device of the first task that used CUDA, whatever later "
        'tasks set. TensorFlow raises "Visible devices cannot be modified after being '
        'initialized" when a later task asks for another device.'
    ),
    why=(
        "joblib reuses its workers, and the CUDA runtime reads `CUDA_VISIBLE_DEVICES` once per "
        "process, when it starts."
    ),
    fix=(
        'Name the device instead: `torch.device("cuda", k)` for task k. If you need the '
        "variable, set it before the worker process starts, with one process per device."
    ),
    cases={
        "cupy": "Choose the device in the task instead, with `cupy.cuda.Device(k)` for task k.",
        "tensorflow": (
            'Choose the device in the task instead, with `tf.device(f"/GPU:{k}")` for task k.'
        ),
    },
    bad="""\
import os

import torch
from joblib import Parallel, delayed


def total(index, values):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(index)
    return torch.tensor(values, device="cuda").sum().item()


batches = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
print(Parallel(n_jobs=2)(delayed(total)(i, batch) for i, batch in enumerate(batches)))
""",
    good="""\
import torch
from joblib import Parallel, delayed


def total(device, values):
    return torch.tensor(values, device=device).sum().item()


devices = [torch.device("cuda", k) for k in range(torch.cuda.device_count())]
devices = devices or [torch.device("cpu")]
batches = [[1.0, 2.0], [3.0, 4.0]]
tasks = [delayed(total)(devices[i % len(devices)], b) for i, b in enumerate(batches)]
print(Parallel(n_jobs=2, backend="threading")(tasks))  # prints: [3.0, 7.0]
""",
    lint=(
        "On the assignment to `CUDA_VISIBLE_DEVICES`, or the TensorFlow device configuration "
        "that depends on the task, inside a function that a process worker runs. Not in a process "
        "that a program starts for one task, and that ends with it."
    ),
    runtime=(
        "When the same worker process sees `CUDA_VISIBLE_DEVICES` change after CUDA was "
        "initialised."
    ),
    reach=(
        "The guard sees torch initialise CUDA, CuPy take its first memory, and TensorFlow take "
        "its GPUs as its context starts. It does not report TensorFlow's own "
        "`set_visible_devices`: TensorFlow raises an error there."
    ),
    silence="If each process runs one task, and sets the variable before it imports any framework.",
    links=(links.CUDA_VARIABLES, links.TORCH_CUDA, links.TF_GPU),
)
