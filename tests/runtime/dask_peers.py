"""A peer sends pickles where the guarded client reads notes of the guard's; run by test_dask.py."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import torch
from dask.distributed import Client, LocalCluster

from pytest_gradguard import guard


class Evil:
    """What runs code where it is unpickled."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._mark,)


def total(weight: Any) -> Any:
    return (weight * 2).sum()


def send_with_tensors(note: object) -> None:
    from distributed.protocol import dask_serialize

    original = dask_serialize.dispatch(torch.Tensor)

    @dask_serialize.register(torch.Tensor)  # type: ignore[untyped-decorator, unused-ignore]
    def serialize(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        header, frames = original(tensor, *args, **kwargs)
        return {**header, "gradguard": note}, frames


def main() -> None:
    mark = sys.argv[1]
    notes: list[Any] = [
        *(pickle.dumps(Evil(f"{mark}/{name}")) for name in ("event", "header")),
        *("", "[", "[1,null]", "[0,[1,[],[]]]", "[1,[1,[],[]]]", '[1,[1,[],[["os",""]]]]', 7),
        *('[1,[1,[],[["gg106","[1,[[]]]"]]]]', "[" * 100_000, "9" * 100_000),
    ]
    names = ["dask", "msgpack"]
    weight = torch.ones(2, requires_grad=True)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, serializers=names, deserializers=names, set_as_default=False) as victim,
        Client(cluster, set_as_default=False) as peer,
        guard("record") as report,
    ):
        victim.gather(victim.submit(total, weight))
        topics = peer.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler._broker._topics))
        for topic in topics:
            for note in notes:
                if "gradguard" in topic:
                    peer.log_event(topic, note)
        for note in notes:
            peer.run(send_with_tensors, note)
            assert victim.gather(victim.submit(torch.ones, 2, pure=False)).tolist() == [1, 1]
        time.sleep(1)
        found = sorted({finding.code for finding in report.findings})
    print(json.dumps({"ran": os.listdir(mark), "topics": len(topics), "found": found}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir()
    main()
