"""How joblib answers to what does not pickle, and what it pickles together."""

from __future__ import annotations

from cases import attempt, case, main
from joblib import Parallel, delayed

PROCESSES = ("loky", "multiprocessing")


class Refusal(Exception):
    pass


class Refusing:
    def __reduce__(self):
        raise Refusal("not this")


class Counted:
    pickled = 0

    def __reduce__(self):
        Counted.pickled += 1
        return (Counted, ())


def identity(value):
    return value


def nothing(_):
    """So that no class comes back, which cloudpickle would write over the one of the parent."""


def make(_):
    return Refusing()


def raised(backend, task, argument):
    """The type of the exception that the caller sees, and whether the next call works."""
    outcome = attempt(lambda: Parallel(2, backend=backend)([delayed(task)(argument)]))
    after = Parallel(2, backend=backend)([delayed(identity)(1), delayed(identity)(2)])
    return [outcome.get("raises") if isinstance(outcome, dict) else None, after]


@case
def argument_that_refuses():
    return {backend: raised(backend, identity, Refusing()) for backend in PROCESSES}


@case
def result_that_refuses():
    return {backend: raised(backend, make, 0) for backend in PROCESSES}


@case
def how_often_an_argument_is_pickled():
    found = {}
    for backend in (*PROCESSES, "threading"):
        for batch in (1, 4):
            Counted.pickled = 0
            shared = Counted()
            Parallel(2, backend=backend, batch_size=batch, pre_dispatch="all")(
                delayed(nothing)(shared) for _ in range(8)
            )
            found[f"{backend} {batch}"] = Counted.pickled
    return found


@case
def one_job_pickles_nothing():
    Counted.pickled = 0
    shared = Counted()
    (same,) = Parallel(1, backend="loky")([delayed(identity)(shared)])
    return [Counted.pickled, same is shared]


if __name__ == "__main__":
    main()
