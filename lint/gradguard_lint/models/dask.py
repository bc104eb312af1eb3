"""dask and distributed."""

from __future__ import annotations

from gradguard_lint.domain.starts import Start
from gradguard_lint.models.rows import Library, Row
from gradguard_lint.models.tensorflow import FITS
from gradguard_lint.words import words

LIBRARY = Library(
    tops=("dask", "distributed", "dask_cuda"),
    marks=("compute",),
    import_words=FITS,
    spelled={"distributed.": "dask.distributed."},
    rows=(
        Row("dask.delayed dask.delayed.delayed", "task", argument=(0, "obj"), flag="dask"),
        Row("dask.distributed.Client", "dask-client", start="dask", methods=words("submit map")),
        Row("dask.compute dask.persist dask.base.compute", "dask-compute"),
        Row("dask.bag.from_sequence", "bag", argument=(0, "seq")),
        Row("dask.config.set", "dask-config"),
        Row(
            "dask.array.to_npy_stack dask.array.store dask.array.to_zarr dask.array.shape "
            "dask.array.compute dask.array.config",
            "nothing",
        ),
        Row("dask.array.*", "array", framework="dask"),
        Row(
            "dask.dataframe.from_array dask.dataframe.from_dict dask.dataframe.from_pandas "
            "dask.dataframe.read_csv dask.dataframe.read_hdf dask.dataframe.read_json "
            "dask.dataframe.read_parquet dask.dataframe.read_sql_table dask.dataframe.read_table",
            "thing",
            kind="dask-frame",
        ),
    ),
    starts=(
        Start("dask", "process", "dask workers"),
        Start("dask-threads", "thread", "dask's worker threads"),
    ),
)
