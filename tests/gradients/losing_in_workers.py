"""Programs that lose their gradients to worker processes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import worker_tasks as tasks
from joblib import Parallel, delayed
from losing_programs import FIRST, SECOND, Two, batch, loses
from torch import nn

from pytest_gradguard import guard, watch_gradients

# -- the graph is cut --------------------------------------------------------------------------


@loses("cut-at-worker", *FIRST, *SECOND)
def the_mean_of_the_shards() -> None:
    model = Two(torch.relu)
    shards = [(rows, torch.zeros(1, 1)) for rows in batch().split(1)]
    with watch_gradients(model), guard(mode="record"):
        errors = Parallel(n_jobs=2)(  # <- here
            delayed(tasks.error_of_a_shard)(model, rows, wanted) for rows, wanted in shards
        )
        loss = torch.stack(errors).mean()
        loss.backward()


@loses("cut-at-worker", *FIRST, *SECOND)
def a_dict_from_forked_workers() -> None:
    model = Two(torch.tanh)

    def losses(pool: Any) -> Any:
        task = delayed(functools.partial(tasks.losses_and_scores, model))
        outcomes = pool(task(rows) for rows in batch().split(1))  # <- here
        return [outcome["loss"] for outcome in outcomes if outcome["best"] >= 0]

    pool = Parallel(n_jobs=2, backend="multiprocessing")
    with watch_gradients(model), guard(mode="record"), pool:
        torch.autograd.backward(losses(pool))


@loses("cut-at-worker", "words")
def an_embedding_whose_head_learns() -> None:
    pytest.importorskip("joblib", minversion="1.3")  # for its generators
    tables = {"words": torch.rand(4, 3).requires_grad_()}
    head = nn.Linear(3, 1)
    optimizer = torch.optim.SGD([tables["words"], *head.parameters()], lr=0.1)
    with watch_gradients({**tables, "head": head}), guard(mode="record"):
        pool = Parallel(n_jobs=2, return_as="generator")
        total = torch.zeros(())
        for vector in pool(delayed(tasks.embeds)(tables, index) for index in (0, 2)):  # <- here
            total = total + head(vector).sum()
        total.backward()
        optimizer.step()


# -- the gradient stays behind -----------------------------------------------------------------


@loses("left-in-worker", *FIRST, *SECOND)
def every_worker_fits_its_copy() -> None:
    model = Two(torch.sin)
    with watch_gradients(model), guard(mode="record"):
        histories = Parallel(n_jobs=2)(  # <- here
            delayed(tasks.fits)(model, rows, epochs=2) for rows in batch().split(1)
        )
        assert len(histories) == 2


@loses("left-in-worker", "0.weight", "0.bias", "1.weight", "1.bias")
def replicas_in_forked_workers() -> None:
    ensemble = [nn.Linear(3, 1), nn.Linear(3, 2)]
    optimizer = torch.optim.SGD([p for member in ensemble for p in member.parameters()], lr=0.1)
    with watch_gradients(ensemble), guard(mode="record"):
        replicas = [tasks.Replica(member, batch()) for member in ensemble]
        pool = Parallel(n_jobs=2, backend="multiprocessing")
        seen = pool(delayed(replica.accumulate)() for replica in replicas)  # <- here
        optimizer.step()
        assert seen == [2, 2]


@loses("left-in-worker", "words")
def only_the_norm_comes_back() -> None:
    words = nn.Parameter(torch.ones(3, 2))
    bias = nn.Parameter(torch.zeros(()))
    with watch_gradients({"words": words, "bias": bias}), guard(mode="record"):
        call = delayed(tasks.norm_of_the_gradient)
        norms = Parallel(n_jobs=2)([call({"words": words}, index) for index in (0, 1)])  # <- here
        (bias - sum(norms)).square().backward()
