"""Ray's pools, with the methods of multiprocessing's."""

import multiprocessing


class Pool(multiprocessing.BasePool):
    _start = "ray"
    _library = "ray.util.multiprocessing"
    _torch_pickles = False
    _forks = "call"
