"""GG405: joblib's dask backend is named as an argument of Parallel."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG405",
    name="dask-backend-by-argument",
    title='Parallel(backend="dask") never works',
    severity=Severity.ERROR,
    happens=(
        "It raises `ValueError` (invalid backend). Once `parallel_config` has registered the "
        "backend, it raises `TypeError` from inside joblib, even if a client runs."
    ),
    why=(
        "`parallel_config` registers the backend and makes it ready for the running client. "
        "`Parallel` does neither when it is given the name alone."
    ),
    fix=(
        "Create a `dask.distributed.Client`, and put the `Parallel` call inside `with "
        'joblib.parallel_config(backend="dask"):`.'
    ),
    bad="""\
from dask.distributed import Client
from joblib import Parallel, delayed

with Client(processes=False, dashboard_address=None):
    parallel = Parallel(n_jobs=2, backend="dask")  # raises: ValueError
    print(parallel(delayed(abs)(k) for k in (-1, -2)))
""",
    good="""\
from dask.distributed import Client
from joblib import Parallel, delayed, parallel_config

with Client(processes=False, dashboard_address=None), parallel_config(backend="dask"):
    print(Parallel(n_jobs=2)(delayed(abs)(k) for k in (-1, -2)))  # prints: [1, 2]
""",
    lint='On `Parallel(...)` with `backend="dask"` as an argument.',
    runtime=None,
    silence="Never: the call fails.",
    links=(links.DASK_JOBLIB, links.JOBLIB_PARALLEL),
)
