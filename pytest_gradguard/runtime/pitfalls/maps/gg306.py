"""GG306: a task writes, through torch, into the memory map that joblib made of its argument.

joblib's reduction of an array shows which maps go to a call's workers. For a read-only map, a write
is recorded just before it kills the worker (`write_faults`), and reported to the parent through its
mailbox; a `multiprocessing` pool, which would wait forever for the task's outcome, gets an error.
For a writable map, torch's writes are followed while the tasks run: the harm is that tasks write to
the same elements.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_gradguard import pitfalls
from pytest_gradguard.details import Details
from pytest_gradguard.findings import Finding
from pytest_gradguard.messages import WorkerKilledError
from pytest_gradguard.runtime.kernel import answering, callsite, locate, probes, watching
from pytest_gradguard.runtime.kernel.checks import Probe
from pytest_gradguard.runtime.kernel.collector import here
from pytest_gradguard.runtime.kernel.evidence import TaskEvidence, direction, times
from pytest_gradguard.runtime.kernel.faults import attempt
from pytest_gradguard.runtime.kernel.pipes import Address, Mailbox, post
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.quoting import quoted
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import Task, parameter_of, roots_of, task_of
from pytest_gradguard.runtime.pitfalls.maps import write_faults
from pytest_gradguard.runtime.pitfalls.maps.regions import Region

CODE = "GG306"
PROBES = (Probe("gg306", __name__),)
_MOST = 64
"""How many regions a batch reports, and how many writers are remembered of one map."""
_COPY = "copy the array in the task with `torch.tensor(array)`"
_SHARED = (
    f'Use `mmap_mode="c"`, which gives each task pages of its own as it writes, or {_COPY}. For an '
    "output that all tasks fill, make a `numpy.memmap` of your own, and let each write its part."
)


class Mapped(NamedTuple):
    """An array that a task got as a memory map, picklable.

    Attributes:
        path: its path in the task's arguments.
        parameter: the task's parameter for it.
        shape, dtype: those of the array.
        made: joblib made the map from an argument; otherwise it is the program's own.
    """

    path: str
    parameter: str | None
    shape: tuple[int, ...]
    dtype: str
    made: bool


class Killed(NamedTuple):
    """A write that kills a worker.

    Attributes:
        token: the number of the call.
        array: the array written to.
        task: the function that runs.
        path, line: the user's line, if known.
    """

    token: int
    array: Mapped
    task: Task
    path: str | None
    line: int | None


class Written(NamedTuple):
    """The writes of a batch's tasks to one writable map.

    Attributes:
        map: identifies the map in all workers.
        array, task, path, line: as in `Killed`; the line is that of the first write.
        regions: the elements written to.
    """

    map: str
    array: Mapped
    task: Task
    path: str | None
    line: int | None
    regions: tuple[Region, ...]


# -- in the parent ---------------------------------------------------------------------------------

_mailbox = Mailbox(Killed)
_waiting: weakref.WeakValueDictionary[int, Evidence] = dropped_at_end(weakref.WeakValueDictionary())
"""The evidence against calls that sent read-only maps to workers, by call number."""


def report_writes(call: Any, reduction: Any, mode: str, filename: str | None) -> Any:
    """The `reduction` of an array for the workers of `call`, which reports writes there.

    Args:
        call: the call.
        reduction: joblib's own.
        mode: that of the memory map.
        filename: the file that joblib made for it; None: the map is the program's own.
    """
    address = None
    if mode == "r":
        evidence = Evidence.of(call, framework="torch", device="cpu")
        address = _mailbox.address()
        if evidence is None or address is None:
            return reduction
        _waiting[call.token] = evidence
    elif mode == "c" or filename is None or CODE in call.dropped:
        return reduction
    return arrive, (call.token, address, filename, *reduction)


def _listen() -> None:
    for killed in _mailbox.take():
        evidence = _waiting.get(killed.token)
        if evidence is not None:
            evidence.add_write(killed)


def _close() -> None:
    _listen()
    _mailbox.close()


watching.at_end(_close)


def on_note(call: Any, note: list[Written]) -> None:
    """Compare the tasks' writes with those of other tasks of the call."""
    maps = call.remembered.setdefault("gg306", {})
    for written in note:
        earlier = maps.setdefault(written.map, [])
        same = [one for one in earlier if _overlap(one, written)]
        if len(earlier) < _MOST:
            earlier.append(written)
        evidence = Evidence.of(call, about="shared", framework="torch", device="cpu")
        if evidence is None:
            return
        evidence.advice = _SHARED
        for one in [*same[:1], written] if same and not evidence.count else [written] * bool(same):
            evidence.add_write(one)


def _overlap(one: Written, other: Written) -> bool:
    return any(mine.overlaps(theirs) for mine in one.regions for theirs in other.regions)


class Evidence(TaskEvidence):
    """Tasks of one call that write to memory maps."""

    code = CODE
    array: Mapped
    killed = False

    def add_write(self, write: Killed | Written) -> None:
        """Count one more task that writes."""
        if not self.count:
            self.array, self.killed = write.array, isinstance(write, Killed)
        self.add(write.task, f"`{write.task.name}` writes to it here", write.path, write.line)

    def build(self) -> Finding | None:
        _listen()
        return super().build()

    def message(self) -> str:
        array, task = self.array, self.first.name
        name, role = quoted(self.site, array.path, array.parameter, task)
        what = f"{role}, " if role else ""
        written = f"{name} ({what}array of shape {array.shape}, {array.dtype})"
        if not self.killed:
            return (
                f"{times(self.count, 'task')} of `{task}` write through torch to the same elements "
                f"of {written}. joblib gave all {self.backend} workers one writable memory map of "
                "it: each task finds the array as the others left it, and the parent's array does "
                "not change."
            )
        whose = "which joblib gave to the workers as a read-only memory map"
        if not array.made:
            whose = "which is a memory map that the program opened read-only"
        return (
            f"`{task}` writes through torch to {written}, {whose}: a segmentation fault killed the "
            f"{self.backend} worker."
        )

    def about(self) -> Details:
        return {
            **super().about(),
            "direction": direction(self.array.path),
            "object": self.array.path,
            "type": "numpy.memmap",
            "shape": list(self.array.shape),
            "dtype": self.array.dtype,
        }


# -- in the worker ---------------------------------------------------------------------------------


class Arrived(NamedTuple):
    """A memory map that came with a batch.

    Attributes:
        token: the number of the call.
        address: where to report a write that kills this process; None if the map is writable.
        filename: the file that joblib made for it, if it did.
        array: a weak reference to it.
    """

    token: int
    address: Address | None
    filename: str | None
    array: weakref.ref[Any]


class _Waiting(threading.local):
    """The maps that came with the tasks which this thread runs next."""

    def __init__(self) -> None:
        self.maps: list[Arrived] = []


_arrived = _Waiting()


def arrive(
    token: int,
    address: Address | None,
    filename: str | None,
    rebuild: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> Any:
    """Rebuild, in a worker, an array that comes as a memory map; called by unpickling."""
    array = rebuild(*arguments)
    attempt(_note, token, address, filename, array)
    return array


def _note(token: int, address: Address | None, filename: str | None, array: Any) -> None:
    _arrived.maps.append(Arrived(token, address, filename, weakref.ref(array)))
    probes.activate("gg306")


def begin(asked: None, process: bool) -> After | None:
    """Watch the maps that came with a batch."""
    arrived, _arrived.maps = _arrived.maps, []
    if not arrived:
        return None
    read_only = [one for one in arrived if one.address is not None]
    if read_only and write_faults.can_detect():
        thread = threading.get_ident()
        write_faults.listen(lambda address: _dying(read_only, address, thread))
    written = _followed([one for one in arrived if one.address is None])

    def after(items: Any, results: Any, error: BaseException | None) -> list[Written] | None:
        probes.active.pop("gg306", None)  # until the next map arrives
        write_faults.stop()
        return None if written is None else written.stop(items)

    return after


def _dying(arrived: list[Arrived], address: int, thread: int) -> None:
    """Report to the parent the write at `address` in one of its arrays."""
    if "torch" not in sys.modules:  # other code, for which a read-only map is fine
        return
    for one in arrived:
        array = one.array()
        if array is None or one.address is None or not _holds(array, address):
            continue
        # The frame of the write is outside the handler's; torch may write in a thread of its own.
        frames = (sys._getframe(2), sys._current_frames().get(thread))
        where = next(filter(None, (callsite.user_frames(frame, 1) for frame in frames)), None)
        mapped, function = _mapped(one, array, here.running or ())
        place = (callsite.file_of(where[0]), where[0].f_lineno) if where else (None, None)
        killed = Killed(one.token, mapped, task_of(function), *place)
        post(one.address, killed)
        answering.answer(sys._current_frames().get(thread), WorkerKilledError(_text(killed)))
        return


def _text(killed: Killed) -> str:
    """The error of a pool that would have waited forever for the task's outcome."""
    pitfall = pitfalls.get(CODE)
    where = f" at {killed.path}:{killed.line}" if killed.path else ""
    return (
        f"{CODE} {pitfall.name}: a worker was killed by a segmentation fault: "
        f"`{killed.task.name}` writes{where} to a read-only memory map. {pitfall.advice}"
    )


def _extent(array: Any) -> tuple[int, int]:
    """The addresses of the first byte of `array`, and after its last one."""
    first = last = array.__array_interface__["data"][0]
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            first += (length - 1) * stride
        else:
            last += (length - 1) * stride
    return first, last + array.itemsize


def _holds(array: Any, address: int) -> bool:
    first, end = _extent(array)
    return first <= address < end


def _mapped(one: Arrived, array: Any, items: Any) -> tuple[Mapped, Any]:
    """Describe a memory map to the task among `items` that got it; return that function, too."""
    paths = locate.find(roots_of(items), lambda item: item is array)
    index, _, path = paths.get(id(array), "0|").partition("|")
    path = path.lstrip(".")
    function = items[int(index)][0] if items else None
    about = (tuple(map(int, array.shape)), str(array.dtype), one.filename is not None)
    return Mapped(path, parameter_of(function, path), *about), function


class _Followed:
    """Torch's writes to writable maps, while the tasks of a batch run."""

    def __init__(self, arrived: list[Arrived]) -> None:
        self._arrived = arrived
        self._regions: dict[int, dict[Region, None]] = {}
        self._places: dict[int, tuple[str | None, int | None]] = {}
        self._mode: Any = None
        self._thread = threading.get_ident()
        self._watch = watching.when_imported("torch", self._start)  # a task may import it

    def _start(self) -> None:
        if self._mode is None and self._thread == threading.get_ident():
            from pytest_gradguard.runtime.pitfalls.maps.writes import Writes

            self._mode = Writes(self._record)
            self._mode.__enter__()

    def _record(self, address: int, region: Region) -> None:
        for index, one in enumerate(self._arrived):
            array = one.array()
            if array is None or not _holds(array, address):
                continue
            known = self._regions.setdefault(index, {})
            if index not in self._places:
                site = callsite.user_site()
                self._places[index] = (None, None) if site is None else (site.path, site.line)
            if len(known) < _MOST:
                known[region._replace(offset=address - _extent(array)[0])] = None

    def stop(self, items: Any) -> list[Written] | None:
        """Return the writes, as reported to the parent."""
        watching.forget(self._watch)
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(None, None, None)
        found = []
        for index, regions in self._regions.items():
            one = self._arrived[index]
            array = one.array()
            if array is not None and one.filename is not None:
                mapped, function = _mapped(one, array, items)
                path, line = self._places[index]
                task = task_of(function)
                found.append(Written(one.filename, mapped, task, path, line, tuple(regions)))
        return found or None


def _followed(arrived: list[Arrived]) -> _Followed | None:
    return _Followed(arrived) if arrived else None
