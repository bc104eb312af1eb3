"""What the guard adds to a dask cluster: messages, bytes, what is kept, and time.

    python benchmarks/cluster.py [--tasks N ...] [--workers N ...] [--latency SECONDS] [--repeat N]

A `LocalCluster` runs the same tasks without the guard and with it. What its client, its scheduler
and its workers tell each other is counted by operations: dask puts several into one transfer, as
they come, so the number of transfers differs from run to run, and that of operations does not.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

from overhead import interval

_BY_THE_CLOCK = ("heartbeat", "adjust-heartbeat", "identity", "keep-alive", "set_metadata", "reply")
"""Operations that come with time, and not with tasks."""
_PAUSE = 1.0
"""Seconds without a message, after which there is none to come."""


class Count(NamedTuple):
    messages: int = 0
    bytes: int = 0


class Work(NamedTuple):
    """What each task does, and how the call is made."""

    task: Callable[[Any], Any]
    item: Callable[[int], Any] = int
    no_grad: bool = False


def nothing(_: Any) -> None:
    pass


def tensor(k: int) -> Any:
    import torch

    return torch.full((1,), float(k), requires_grad=True)


def cut(given: Any) -> Any:
    return given.detach() * 2


def graph(k: int) -> Any:
    import torch

    return torch.ones(1, requires_grad=True) * k


WORKS = {
    "no tensor": Work(nothing),
    "takes a tensor": Work(cut, tensor),
    "returns a graph": Work(graph),
    "is told of a mode": Work(graph, no_grad=True),
}


class Traffic:
    """What is sent while this is entered, which has to be before a cluster starts."""

    def __init__(self) -> None:
        self.latency = 0.0
        """Seconds that each transfer of this process is delayed by."""
        self._told: list[tuple[bool, str, str, Any]] = []
        self._undo: Callable[[], None]

    def __enter__(self) -> Traffic:
        from distributed.comm.tcp import TCP

        write, read = TCP.write, TCP.read

        async def slow(comm: Any, message: Any, *args: Any, **options: Any) -> Any:
            await asyncio.sleep(self.latency)
            self._note(comm, message, True)
            return await write(comm, message, *args, **options)

        async def heard(comm: Any, *args: Any, **options: Any) -> Any:
            message = await read(comm, *args, **options)
            self._note(comm, message, False)
            return message

        def undo() -> None:
            TCP.write, TCP.read = write, read

        TCP.write, TCP.read, self._undo = slow, heard, undo
        return self

    def __exit__(self, *_: object) -> None:
        self._undo()

    def _note(self, comm: Any, message: Any, written: bool) -> None:
        for one in message if isinstance(message, (list, tuple)) else [message]:
            if isinstance(one, dict) and not _operation(one).startswith(_BY_THE_CLOCK):
                # A copy, for who reads it takes entries out.
                self._told.append((written, comm.local_address, comm.peer_address, dict(one)))

    def settle(self) -> None:
        """Wait until all that was let go has been told."""
        before = -1
        while before != len(self._told):
            before = len(self._told)
            gc.collect()
            time.sleep(_PAUSE)

    def take(self) -> dict[str, Count]:
        """The operations since the last time that belong to tasks."""
        from distributed.protocol import dumps

        told, self._told = self._told, []
        ours = {local for _, local, _, _ in told}
        counts: dict[str, Count] = collections.defaultdict(Count)
        for written, _, peer, one in told:
            # The client and the scheduler are both in this process: count what they send.
            if written or peer not in ours:
                name = _operation(one)
                size = sum(memoryview(frame).nbytes for frame in dumps(one))
                counts[name] = Count(counts[name].messages + 1, counts[name].bytes + size)
        return counts


def _operation(message: dict[str, Any]) -> str:
    return str(message.get("op", "data" if "data" in message else "reply"))


def run(client: Any, work: Work, count: int, *, guarded: bool) -> list[Any]:
    import torch

    from pytest_gradguard import guard

    items = [work.item(k) for k in range(count)]
    with guard("record") if guarded else nullcontext():
        with torch.no_grad() if work.no_grad else nullcontext():
            futures = client.map(work.task, items, pure=False)
        return list(client.gather(futures))


def more(client: Any, traffic: Traffic, name: str, count: int) -> None:
    """Print what the guard adds to the traffic of a call, by operation."""
    both = []
    for guarded in (False, True):
        traffic.settle()
        traffic.take()
        run(client, WORKS[name], count, guarded=guarded)
        traffic.settle()
        both.append(traffic.take())
    off, on = both
    messages, size = (sum(column) for column in zip(*off.values(), strict=True))
    print(
        f"  {name}, {count:,} tasks: {messages / count:.2f} messages and {size / count:,.0f} bytes "
        "a task without it"
    )
    for operation in sorted(off.keys() | on.keys()):
        without, with_guard = off.get(operation, Count()), on.get(operation, Count())
        added = [b - a for a, b in zip(without, with_guard, strict=True)]
        if any(added):
            print(
                f"    {operation:20} {added[0]:>+6,} messages {added[1]:>+10,} bytes "
                f"({added[1] / count:+.1f} a task)",
                flush=True,
            )


def kept(client: Any, cluster: Any, traffic: Traffic, name: str, count: int) -> None:
    """Print what the guard holds: while the program holds the results, and afterwards."""
    from pytest_gradguard import guard

    def ours() -> int:
        gc.collect()
        snapshot = tracemalloc.take_snapshot()
        only = snapshot.filter_traces([tracemalloc.Filter(True, "*/pytest_gradguard/*")])
        return sum(each.size for each in only.traces)

    tracemalloc.start()
    with guard("record") as report:
        before = ours()
        results = run(client, WORKS[name], count, guarded=False)
        during = ours()
        del results
        traffic.settle()
        traffic.take()  # it holds what was sent
        after = ours()
        found = len(report.findings)
    tracemalloc.stop()
    topics = cluster.scheduler._broker._topics
    events = sum(len(one.events) for key, one in topics.items() if key.startswith("gradguard"))
    marks = sum(client.run(_marks).values())
    print(
        f"  {name}, {count:,} tasks: {during - before:,} bytes with the results held, "
        f"{after - before:,} after; {found} findings, {events:,} events in the scheduler, "
        f"{marks} marks in the workers",
        flush=True,
    )


def _marks() -> int:
    worker = sys.modules.get("pytest_gradguard.runtime.integrations.dask.worker")
    return 0 if worker is None else len(worker._marks)


def time_beside(client: Any, traffic: Traffic, name: str, count: int, repeat: int) -> None:
    """Print the time of a call with the guard beside that without it, taken in turns."""
    ratios = []
    for _ in range(repeat + 1):
        spent = []
        for guarded in (False, True):
            traffic.settle()
            begin = time.perf_counter()
            run(client, WORKS[name], count, guarded=guarded)
            spent.append(time.perf_counter() - begin)
        ratios.append(spent[1] / spent[0])
    low, high = interval(sorted(ratios[1:]))
    print(
        f"  {name}, {count:,} tasks, {traffic.latency * 1000:g} ms: "
        f"{statistics.median(ratios[1:]):.2f} ({low:.2f} to {high:.2f})",
        flush=True,
    )


def main() -> None:
    from distributed import Client, LocalCluster

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, nargs="+", default=[250, 1_000, 4_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--latency", type=float, nargs="*", default=[0.0, 0.01], help="seconds")
    parser.add_argument("--repeat", type=int, default=8, help="turns for the time (default 8)")
    options = parser.parse_args()
    for workers in options.workers:
        with (
            Traffic() as traffic,
            LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address=None
            ) as cluster,
            Client(cluster) as client,
        ):
            for work in WORKS.values():
                run(client, work, 10, guarded=True)
            print(f"{workers} workers: what the guard adds to messages")
            for name in WORKS:
                for count in options.tasks:
                    more(client, traffic, name, count)
            print(f"{workers} workers: what the guard holds in the client")
            for name in WORKS:
                for count in options.tasks:
                    kept(client, cluster, traffic, name, count)
            for traffic.latency in options.latency:
                print(f"{workers} workers: time with the guard beside without it")
                for name in WORKS:
                    time_beside(client, traffic, name, options.tasks[0], options.repeat)


if __name__ == "__main__":
    main()
