"""mpire's pools, where they are defined."""

import mpire


class WorkerPool(mpire.WorkerPool):
    _library = "mpire.pool"
