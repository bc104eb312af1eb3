"""Traits of the workers of a parallel call: how data reaches them, and when they run."""

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
        answers: whether results are returned.
        forking_pickler: whether torch's ForkingPickler is used: shared memory, no tensors with
            history.
        maps: the size in bytes from which arrays arrive as memory maps, and the mode.
    """

    ships: bool = True
    answers: bool = True
    forking_pickler: bool = False
    maps: tuple[int, str] | None = None


@fields
class WorkerTraits:
    """The workers themselves.

    Attributes:
        maker: the expression that creates the pool or ``Parallel`` object.
        meant: whether a GPU was requested for them.
        prepared: whether the library seeds each worker and limits its compute threads.
        daemons: whether they are daemonic, which may start no processes.
        single: whether each task has its own worker, which ends with it.
        actor: the identity of the call that created the actor; 0 for other calls.
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
        each: whether each execution of the call dispatches one task.
        turn: the iteration of each enclosing loop.
        loops: the sites of these loops.
        awaited: whether it is joined in that iteration.
        chained_start: whether the next call in that loop follows its end; None: unknown.
        until: identities of the objects that the program joins the tasks by, if it continues
            meanwhile: thread, future, executor.
        queue: the identity of the single-worker executor that runs the tasks in order; 0: none.
    """

    each: bool = False
    turn: tuple[int, ...] = ()
    loops: tuple[Site, ...] = ()
    awaited: bool = False
    chained_start: bool | None = None
    until: frozenset[int] = frozenset()
    queue: int = 0
