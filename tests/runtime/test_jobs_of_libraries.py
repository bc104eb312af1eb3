"""Libraries that run functions of the program's in programs of their own, and Ray's libraries."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from children import run_python

JOBS = """
import json
import sys
import tempfile
import torch
from pytest_gradguard import guard

torch.set_num_threads(1)

def loss_of(model, x):
    return model(x).square().mean()

def leaves_gradients(model, x):
    loss = loss_of(model, x)
    loss.backward()
    return loss.item()

def gives_gradients(model, x):
    loss_of(model, x).backward()
    return [one.grad for one in model.parameters()]

def trains(model, x):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = loss_of(model, x)
    loss.backward()
    optimizer.step()
    return loss.item()

def trains_and_gives(model, x):
    trains(model, x)
    return model.state_dict()

def fails(model, x):
    raise ValueError("no " + type(model).__name__)

def submits():
    import submitit
    executor = submitit.LocalExecutor(tempfile.mkdtemp())

    class Counts:  # what a job may be asked for
        def __call__(self, model, x):
            return gives_gradients(model, x)
        def checkpoint(self, model, x):
            return submitit.helpers.DelayedSubmission(self, model, x)

    def run(function, model, x):
        if function is gives_gradients:
            job = executor.submit(Counts(), model, x)
            result = job.result()
            assert job.submission()._checkpoint_function().function.checkpoint
            assert type(job) is submitit.LocalJob
            return result
        if function is trains:
            job, other = executor.map_array(function, [model, model], [x, x])
            other.result()
        else:
            job = executor.submit(function, model, x)
        return job.result()

    yield run

def applies():
    import ipyparallel
    cluster = ipyparallel.Cluster(n=1, log_level=40)
    client = cluster.start_and_connect_sync()
    try:
        client[:].use_cloudpickle()

        def run(function, model, x):
            if function is gives_gradients:
                return client.load_balanced_view().apply_async(function, model, x).get()
            if function is trains:
                return client[:].map_sync(function, [model], [x])[0]
            result = client[:].apply_async(function, model, x)
            return result.get()[0]

        yield run
        assert client[0].apply_sync(len, "ab") == 2
        client[0]["name"] = 3
        assert client[0]["name"] == 3
    finally:
        cluster.stop_cluster_sync()

def codes_of(work):
    torch.manual_seed(0)
    model, x = torch.nn.Linear(40, 40), torch.ones(2, 40)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with guard("record") as report:
        work(model, x, optimizer)
    return sorted({one.code for one in report.findings if one.severity.name != "INFO"})

def main(runs):
    def left(model, x, optimizer):
        run(leaves_gradients, model, x)
        optimizer.step()

    def severed(model, x, optimizer):
        run(loss_of, model, x).backward()
        optimizer.step()

    def dropped(model, x, optimizer):
        run(trains, model, x)
        with torch.no_grad():
            model(x)

    def used(model, x, optimizer):
        for one, gradient in zip(model.parameters(), run(gives_gradients, model, x)):
            one.grad = gradient
        optimizer.step()
        model.load_state_dict(run(trains_and_gives, model, x))
        with torch.no_grad():
            model(x)
        try:
            run(fails, model, x)
        except Exception as error:
            assert "no Linear" in str(error), error
        else:
            raise AssertionError

    for run in runs():
        return {work.__name__: codes_of(work) for work in (left, severed, dropped, used)}

if __name__ == "__main__":
    print(json.dumps(main({"submitit": submits, "ipyparallel": applies}[sys.argv[1]])))
"""


@pytest.mark.parametrize("library", ["submitit", "ipyparallel"])
def test_losses_in_programs_of_a_library(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    program = tmp_path / "program.py"
    program.write_text(JOBS)
    done = run_python(program, library, limit=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "left": ["GG106"],
        "severed": ["GG102", "GG103"],
        "dropped": ["GG114"],
        "used": [],
    }


RAY = """
import json
import tempfile
import numpy
import ray
import ray.data
import torch
from pytest_gradguard import guard

torch.set_num_threads(1)

def map_batches(returns):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def learn(batch):
        loss = model(torch.as_tensor(batch["data"])).square().mean()
        loss.backward()
        gradient = model.weight.grad.numpy() if returns else loss.detach().numpy()[None]
        return {"result": gradient}

    rows = ray.data.from_numpy(numpy.ones((8, 4), "float32"))
    results = rows.map_batches(learn, batch_size=8).take_all()
    if returns:
        model.weight.grad = torch.as_tensor(results[0]["result"])[None]
        model.bias.grad = torch.ones(1)
    optimizer.step()

def train(bypassed):
    from ray.train import RunConfig, ScalingConfig, report
    from ray.train.torch import TorchTrainer, prepare_model

    def loop():
        torch.manual_seed(0)
        model = prepare_model(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        (model.module if bypassed else model)(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        report({"trained": 1})

    trainer = TorchTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tempfile.mkdtemp(), name="run"),
    )
    assert trainer.fit().error is None

def codes_of(work, *args):
    with guard("record") as report:
        work(*args)
    return sorted({one.code for one in report.findings if one.severity.name != "INFO"})

if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    found = {
        "left": codes_of(map_batches, False),
        "returned": codes_of(map_batches, True),
        "bypassed": codes_of(train, True),
        "averaged": codes_of(train, False),
    }
    ray.shutdown()
    print(json.dumps(found))
"""


@pytest.mark.skipif(" " in sys.executable, reason="Ray starts no ranks from a path with a blank")
def test_functions_that_libraries_of_ray_run(tmp_path: Path) -> None:
    for library in ("ray", "pyarrow", "pandas"):
        pytest.importorskip(library)
    program = tmp_path / "program.py"
    program.write_text(RAY)
    done = run_python(program, limit=400)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "left": ["GG106"],
        "returned": [],
        "bypassed": ["GG502"],
        "averaged": [],
    }
