"""What distinguishes the workers of a parallel call: what reaches them, and when they run."""

from __future__ import annotations

from pytest_gradguard.records import fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.domain.values import Site


@fields
class Channel:
    """How tasks and results cross.

    Attributes:
        ships: whether the arguments are pickled, or inherited.
        answers: whether what the tasks return comes back.
        forking_pickler: whether torch itself pickles tensors for it: in shared memory, and none
            with history.
        maps: from how many bytes on arrays arrive as memory maps, and in which mode.
    """

    ships: bool = True
    answers: bool = True
    forking_pickler: bool = False
    maps: tuple[int, str] | None = None


@fields
class WorkerTraits:
    """The workers themselves.

    Attributes:
        maker: the expression that makes what runs the tasks: the pool, the ``Parallel`` object.
        meant: whether a GPU was asked for them.
        prepared: whether the library seeds each of them, and limits its compute threads.
        daemons: whether they are daemons, which may start no processes.
        single: whether each task has a worker of its own, which ends with it.
        actor: the identity of the call that made the object whose method is called, which lives in
            the worker since; 0 for other calls.
    """

    maker: Site | None = None
    meant: bool = False
    prepared: bool = False
    daemons: bool = False
    single: bool = False
    actor: int = 0


@fields
class Schedule:
    """When the tasks run, as the program goes on.

    Attributes:
        each: whether it gives out one task each time that the call is made.
        turn: the turn of the loops around in which the call is made.
        loops: where these are.
        awaited: whether its end is waited for in that turn.
        chained_start: whether the next one is made in that loop, once it has ended; None: it is not
            known to end before another one.
        until: where the program goes on meanwhile, what it waits with for the end of the tasks, by
            identity: the thread, the future, the executor.
        queue: the executor whose only worker runs its tasks one after the other, by identity; 0:
            there is none.
    """

    each: bool = False
    turn: tuple[int, ...] = ()
    loops: tuple[Site, ...] = ()
    awaited: bool = False
    chained_start: bool | None = None
    until: frozenset[int] = frozenset()
    queue: int = 0
