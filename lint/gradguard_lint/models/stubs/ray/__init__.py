"""Ray's object references, which are futures."""

import concurrent.futures

from gradguard_lint.models.primitives import results


def get(object_refs, *, timeout=None):
    return results(object_refs)


def wait(ray_waitables, *, num_returns=1, timeout=None, fetch_local=True):
    if num_returns == len(ray_waitables):
        return concurrent.futures.wait(ray_waitables, timeout)
    futures = list(ray_waitables)
    return futures, futures
