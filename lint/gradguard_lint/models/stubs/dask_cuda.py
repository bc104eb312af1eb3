"""dask-cuda: a cluster with a GPU for each worker."""

import dask.distributed


class LocalCUDACluster(dask.distributed.LocalCluster):
    _meant = True
