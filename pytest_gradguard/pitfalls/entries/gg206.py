"""GG206: a worker process of joblib or of a pool starts a DataLoader with workers of its own."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG206",
    name="dataloader-workers-in-worker",
    title="A DataLoader with workers is iterated in a worker process",
    severity=Severity.ERROR,
    happens=(
        "The loader fails as its workers start, with an error that names neither the loader nor "
        "the reason. In a loky worker (joblib's default) it is `AttributeError: 'Process' object "
        "has no attribute 'env'`. With the loader's own `multiprocessing_context=\"spawn\"` or "
        '`"forkserver"` it is `RuntimeError: DataLoader worker exited unexpectedly`. In a worker '
        "of `multiprocessing.Pool` or of joblib's multiprocessing backend, or in a daemonic "
        "`Process`, it is `AssertionError: daemonic processes are not allowed to have children`. "
        "The loader works in the main process, in threads and in a `ProcessPoolExecutor`."
    ),
    why=(
        "In its workers, loky sets its own default start method, and a plain "
        "`multiprocessing.Process`, which the loader creates, lacks what that method needs. The "
        "workers of a pool are daemons, and Python does not let daemons start processes."
    ),
    fix=(
        "Give the loader `num_workers=0` in the task: the tasks already run in parallel. In a loky "
        'worker, `multiprocessing_context="fork"` works too, or joblib\'s own context object, '
        '`get_context("loky")` of `joblib.externals.loky.backend.context`. Or run the tasks in '
        'threads, with `backend="threading"`.'
    ),
    bad="""\
import torch
from joblib import Parallel, delayed
from torch.utils.data import DataLoader, TensorDataset


def total(values):
    loader = DataLoader(TensorDataset(values), batch_size=2, num_workers=1)
    return sum(batch.sum().item() for (batch,) in loader)


parts = torch.arange(8.0).split(4)
totals = Parallel(n_jobs=2)(delayed(total)(part) for part in parts)  # raises: AttributeError
print(totals)
""",
    good="""\
import torch
from joblib import Parallel, delayed
from torch.utils.data import DataLoader, TensorDataset


def total(values):
    loader = DataLoader(TensorDataset(values), batch_size=2, num_workers=0)
    return sum(batch.sum().item() for (batch,) in loader)


parts = torch.arange(8.0).split(4)
totals = Parallel(n_jobs=2)(delayed(total)(part) for part in parts)
print(totals)  # prints: [6.0, 22.0]
""",
    lint=(
        "On `DataLoader(...)` with `num_workers` above 0 that is iterated in a process worker of "
        "joblib, of a pool whose workers are daemons, or in a `Process` that is a daemon."
    ),
    runtime=(
        "When such a loader is iterated in a task and fails to start its workers: the finding "
        "appears beside the error that the program gets, or at the `start()` of a daemonic "
        "`Process`, whose error nobody else gets to hear of. A loader that starts its workers is "
        "not reported, nor one that fails for another reason."
    ),
    silence="Never if the loader is iterated in such a worker: it fails.",
    links=(links.TORCH_DATA, links.START_METHODS),
)
