"""Ray: remote functions, actors, and object references, which are futures."""

import concurrent.futures

from gradguard_lint.models.primitives import certainly, hand_out, make_there, results, task


class _Workers:
    _library = "ray"
    _torch_pickles = False
    _forks = "call"
    _daemons = False

    def __init__(self, meant):
        self._method = "ray"
        self._meant = meant


class _Remote(_Workers):
    """A remote function or class; GPUs that it asks for are meant to be used."""

    def __init__(self, function, meant):
        super().__init__(meant)
        self._function = function

    def options(self, num_gpus=None, **kwargs):
        kept = self._meant if certainly(num_gpus is None) else not certainly(not num_gpus)
        return _Remote(self._function, kept)

    def remote(self, *args, **kwargs):
        given = task(self._function, *args, **kwargs)
        if certainly(isinstance(self._function, type)):
            return _Actor(self._meant, given)
        return hand_out(self, given, "future")


class _Actor(_Workers):
    def __init__(self, meant, given):
        super().__init__(meant)
        make_there(self, given)

    def __getattr__(self, name):
        return _Method(self, getattr(self._made, name))


class _Method:
    def __init__(self, actor, function):
        self._actor = actor
        self._function = function

    def options(self, **kwargs):
        return self

    def remote(self, *args, **kwargs):
        return hand_out(self._actor, task(self._function, *args, **kwargs), "future")


def remote(function=None, *, num_gpus=None, **kwargs):
    meant = not certainly(not num_gpus)
    if function is None:
        return lambda it: _Remote(it, meant)
    return _Remote(function, meant)


def get(object_refs, *, timeout=None):
    return results(object_refs)


def wait(ray_waitables, *, num_returns=1, timeout=None, fetch_local=True):
    if num_returns == len(ray_waitables):
        return concurrent.futures.wait(ray_waitables, timeout)
    futures = list(ray_waitables)
    return futures, futures
