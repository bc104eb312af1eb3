"""pathos' pools of threads."""

import multiprocess


class ThreadPool(multiprocess.ThreadPool):
    _library = "pathos.threading"
