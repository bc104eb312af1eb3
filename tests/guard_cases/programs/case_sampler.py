"""`DistributedSampler`: loops over epochs that set the epoch, and those that do not."""

import itertools
import random

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EXPECT = {
    "test_function_for_one_epoch": {"GG503"},
    "test_endless_batches": {"GG503"},
}

DETAILS = {
    "test_loop_over_epochs": {"GG503": {"object": "DistributedSampler", "epoch": 0}},
    "test_epoch_set_before_the_loop": {"GG503": {"epoch": 5}},
    "test_subclass": {"GG503": {"object": "Renamed"}},
}

DATA = TensorDataset(torch.arange(16.0).reshape(8, 2))


@pytest.fixture
def model():
    return torch.nn.Linear(2, 1)


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def sampler(kind=DistributedSampler, **options):
    return kind(DATA, **{"num_replicas": 2, "rank": 0, **options})


def loader(by, **options):
    return DataLoader(DATA, **{"batch_size": 2, "sampler": by, **options})


def learn(model, optimizer, batch):
    optimizer.zero_grad()
    model(batch[0]).sum().backward()
    optimizer.step()


def test_loop_over_epochs(model, optimizer):
    batches = loader(sampler())
    for _ in range(3):
        for batch in batches:  # -> GG503:warning
            learn(model, optimizer, batch)


def test_one_batch_an_epoch(model, optimizer):
    batches = loader(sampler(), batch_size=8)
    for _ in range(2):
        for batch in batches:  # -> GG503
            learn(model, optimizer, batch)


def test_epoch_set_before_the_loop(model, optimizer):
    by = sampler()
    by.set_epoch(5)
    batches = loader(by)
    for _ in range(2):
        for batch in batches:  # -> GG503
            learn(model, optimizer, batch)


def test_same_epoch_set_each_time(model, optimizer):
    by = sampler()
    batches = loader(by)
    for _ in range(2):
        by.set_epoch(0)
        for batch in batches:  # -> GG503
            learn(model, optimizer, batch)


def one_epoch(batches, model, optimizer):
    for batch in batches:  # -> GG503?
        learn(model, optimizer, batch)


def test_function_for_one_epoch(model, optimizer):
    batches = loader(sampler())
    for _ in range(2):
        one_epoch(batches, model, optimizer)


class Renamed(DistributedSampler):
    pass


def test_subclass(model, optimizer):
    batches = loader(sampler(Renamed))
    for _ in range(2):
        for batch in batches:  # -> GG503
            learn(model, optimizer, batch)


def test_workers(model, optimizer):
    batches = loader(sampler(), num_workers=1)
    for _ in range(2):
        for batch in batches:  # -> GG503
            learn(model, optimizer, batch)


def test_persistent_workers(model, optimizer):
    batches = loader(sampler(), num_workers=1, persistent_workers=True)
    for _ in range(2):
        for batch in batches:  # -> GG503
            learn(model, optimizer, batch)


def test_batch_sampler(model, optimizer):
    batches = DataLoader(DATA, batch_sampler=BatchSampler(sampler(), 2, drop_last=True))
    for _ in range(2):
        for _, batch in enumerate(batches):  # -> GG503
            learn(model, optimizer, batch)


def forever(batches):
    while True:
        yield from batches  # -> GG503?


def test_endless_batches(model, optimizer):
    for batch in itertools.islice(forever(loader(sampler())), 6):
        learn(model, optimizer, batch)


def test_orders_without_training():
    batches = loader(sampler())
    first = [batch[0].tolist() for batch in batches]
    assert first == [batch[0].tolist() for batch in batches]  # -> GG503


def test_sampler_alone():
    by = sampler()
    first = list(by)
    assert list(by) == first  # -> GG503


def test_epochs_that_end_early(model, optimizer):
    batches = loader(sampler(), batch_size=1)
    for _ in range(2):
        for step, batch in enumerate(batches):  # -> GG503
            learn(model, optimizer, batch)
            if step == 2:
                break


def test_world_of_one(model, optimizer):
    batches = loader(sampler(num_replicas=1))
    for _ in range(2):
        for batch in batches:  # -> GG503
            learn(model, optimizer, batch)


def test_step_by_hand(model):
    batches = loader(sampler())
    for _ in range(2):
        for (rows,) in batches:  # -> GG503
            model.zero_grad()
            model(rows).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad


def test_training_and_validation(model, optimizer):
    batches, held_out = loader(sampler()), loader(sampler(shuffle=False))
    for _ in range(2):
        for batch in batches:  # -> GG503
            learn(model, optimizer, batch)
        for (rows,) in held_out:
            model(rows)


def test_two_loops(model, optimizer):
    batches = loader(sampler())
    for batch in batches:
        learn(model, optimizer, batch)
    for batch in batches:  # -> GG503
        learn(model, optimizer, batch)


def test_accuracy_after_training(model, optimizer):
    batches = loader(sampler())
    for batch in batches:
        learn(model, optimizer, batch)
    for (rows,) in batches:
        with torch.no_grad():
            model(rows)


def test_epoch_is_set(model, optimizer):
    by = sampler()
    batches = loader(by)
    for epoch in range(3):
        by.set_epoch(epoch)
        for batch in batches:
            learn(model, optimizer, batch)


def test_epoch_is_assigned(model, optimizer):
    by = sampler()
    for epoch in range(3):
        by.epoch = epoch
        for batch in loader(by):
            learn(model, optimizer, batch)


def test_seed_is_changed(model, optimizer):
    by = sampler()
    for seed in range(3):
        by.seed = seed
        for batch in loader(by):
            learn(model, optimizer, batch)


def test_no_shuffling(model, optimizer):
    batches = loader(sampler(shuffle=False))
    for _ in range(3):
        for batch in batches:
            learn(model, optimizer, batch)


def test_one_epoch(model, optimizer):
    for batch in loader(sampler()):
        learn(model, optimizer, batch)


def test_first_look(model, optimizer):
    batches = loader(sampler())
    (rows,) = next(iter(batches))
    assert rows.shape == (2, 2)
    for batch in batches:
        learn(model, optimizer, batch)


def test_statistics_first(model, optimizer):
    batches = loader(sampler())
    mean = torch.stack([rows.mean() for (rows,) in batches]).mean()
    for (rows,) in batches:
        learn(model, optimizer, [rows - mean])


def test_validation_without_gradients(model, optimizer):
    by = sampler()
    batches, held_out = loader(by), loader(sampler())
    for epoch in range(3):
        by.set_epoch(epoch)
        for batch in batches:
            learn(model, optimizer, batch)
        with torch.no_grad():
            for (rows,) in held_out:
                model(rows)


def test_validation_that_shuffles(model, optimizer):
    by = sampler()
    batches, held_out = loader(by), loader(sampler())
    for epoch in range(3):
        by.set_epoch(epoch)
        for batch in batches:
            learn(model, optimizer, batch)
        for (rows,) in held_out:
            with torch.no_grad():
                model(rows)


@torch.no_grad()
def test_evaluation_alone(model):
    batches = loader(sampler())
    for _ in range(2):
        for (rows,) in batches:
            model(rows)


def test_first_batch_of_each_epoch(model, optimizer):
    """A dry run, as `fast_dev_run` makes it."""
    batches = loader(sampler())
    for _ in range(2):
        for batch in batches:
            learn(model, optimizer, batch)
            break


def test_a_look_before_each_loop(model, optimizer):
    batches = loader(sampler())
    for _ in range(3):
        assert len(next(iter(batches)))
        for batch in batches:  # -> GG503
            learn(model, optimizer, batch)


def test_two_samplers(model, optimizer):
    for seed in range(2):
        for batch in loader(sampler(seed=seed)):
            learn(model, optimizer, batch)


def test_two_loops_an_epoch(model, optimizer):
    by = sampler()
    batches = loader(by)
    for epoch in range(2):
        by.set_epoch(epoch)
        for batch in batches:
            learn(model, optimizer, batch)
        for batch in batches:
            learn(model, optimizer, batch)


class Mixing(DistributedSampler):
    def __iter__(self):
        indices = list(super().__iter__())
        random.shuffle(indices)
        return iter(indices)


def test_subclass_that_shuffles_itself(model, optimizer):
    batches = loader(sampler(Mixing))
    for _ in range(3):
        for batch in batches:
            learn(model, optimizer, batch)


def test_length_only(model, optimizer):
    by = sampler()
    batches = loader(by)
    assert len(by) == 4
    assert len(batches) == 2
    for batch in batches:
        learn(model, optimizer, batch)


def test_another_sampler(model, optimizer):
    batches = DataLoader(DATA, batch_size=2, shuffle=True)
    for _ in range(3):
        for batch in batches:
            learn(model, optimizer, batch)


def test_warm_up_batches(model, optimizer):
    batches = loader(sampler(), batch_size=1)
    for batch in itertools.islice(batches, 2):
        learn(model, optimizer, batch)
    for batch in batches:
        learn(model, optimizer, batch)


def test_persistent_validation_workers(model, optimizer):
    by = sampler()
    batches = loader(by)
    held_out = loader(sampler(), num_workers=1, persistent_workers=True)
    for epoch in range(2):
        by.set_epoch(epoch)
        for batch in batches:
            learn(model, optimizer, batch)
        for (rows,) in held_out:
            with torch.no_grad():
                model(rows)
