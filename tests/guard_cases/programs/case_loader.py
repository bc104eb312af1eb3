"""`DataLoader` with workers: datasets as people write them, and what goes wrong in workers."""

import functools
import os
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
    random_split,
)

EXPECT = {
    "test_random_state_behind_transforms": {"GG305"},
    "test_generator_behind_a_subset": {"GG305"},
    "test_generator_of_the_module": {"GG305"},
    "test_generator_in_a_transform_function": {"GG305"},
    "test_one_worker_repeats_each_epoch": {"GG305"},
    "test_persistent_workers_draw_the_same": {"GG305"},
    "test_global_seed_does_not_reach_the_generator": {"GG305"},
    "test_augmented_stream": {"GG305"},
    "test_generator_in_spawned_workers": {"GG305"},
    "test_leaf_for_spawned_workers": {"GG101"},
    "test_global_changed_since_import": {"GG109"},
}

DETAILS = {
    "test_generator_given_to_collate_fn": {"GG305": {"function": "masked"}},
    "test_numpy_generator_in_the_dataset": {
        "GG305": {"backend": "DataLoader", "framework": "numpy", "function": "Noisy.__getitem__"}
    },
    "test_leaf_for_spawned_workers": {
        "GG101": {"backend": "DataLoader", "object": "dataset.scale", "direction": "capture"}
    },
    "test_samples_with_history": {
        "GG102": {"backend": "DataLoader", "object": "result[0]", "direction": "result"}
    },
}

RNG = np.random.default_rng(7)
FORK = functools.partial(DataLoader, num_workers=2, multiprocessing_context="fork")
SPAWN = functools.partial(DataLoader, num_workers=1, multiprocessing_context="spawn")


def as_list(batch):
    return batch


class Rows(Dataset):
    def __init__(self, count=8):
        self.rows = torch.arange(float(count * 3)).reshape(count, 3)
        self.labels = torch.arange(count) % 2

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.labels[index]


class Noisy(Rows):
    def __init__(self, rng, count=8):
        super().__init__(count)
        self.rng = rng

    def __getitem__(self, index):
        return self.rows[index] + float(self.rng.normal())


class Jitter:
    def __init__(self, rng):
        self.rng = rng

    def __call__(self, row):
        return row * (1 + 0.1 * float(self.rng.uniform(-1, 1)))


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, row):
        for transform in self.transforms:
            row = transform(row)
        return row


class Transformed(Rows):
    def __init__(self, transform, count=8):
        super().__init__(count)
        self.transform = transform

    def __getitem__(self, index):
        return self.transform(self.rows[index])


def batches(loader):
    return [batch.tolist() for batch in loader]  # -> GG101 GG109 GG305


# --- one generator for all workers -----------------------------------------------------------


def test_numpy_generator_in_the_dataset():
    loader = FORK(Noisy(np.random.default_rng(0)), batch_size=2)
    for _ in range(2):
        assert len(list(loader)) == 4  # -> GG305:warning


class Dropped(Rows):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def __getitem__(self, index):
        return self.rows[index] * (torch.rand(3, generator=self.generator) > 0.5)


def test_torch_generator_in_the_dataset():
    for batch in FORK(Dropped(), batch_size=4):  # -> GG305
        assert batch.shape == (4, 3)


class Cropped(Rows):
    def __init__(self, seed):
        super().__init__()
        self.random = random.Random(seed)

    def __getitem__(self, index):
        start = self.random.randint(0, 1)
        return self.rows[index, start : start + 2]


def test_python_generator_in_the_dataset():
    for batch in FORK(Cropped(3), batch_size=2):  # -> GG305
        assert batch.shape == (2, 2)


def test_random_state_behind_transforms():
    rng = np.random.RandomState(0)
    augment = Compose([Jitter(rng), torch.abs])
    assert len(batches(FORK(Transformed(augment), batch_size=4))) == 2


def test_generator_behind_a_subset():
    train, _ = random_split(Noisy(np.random.default_rng(0)), [6, 2])
    assert len(batches(FORK(train, batch_size=2))) == 3


class Shaken(Rows):
    def __getitem__(self, index):
        return self.rows[index] + float(RNG.normal())


def test_generator_of_the_module():
    assert len(batches(FORK(Shaken(), batch_size=2))) == 4


def shake(row):
    return row + float(RNG.normal())


def test_generator_in_a_transform_function():
    assert len(batches(FORK(Transformed(shake), batch_size=2))) == 4


class Mixup:
    def __init__(self, rng):
        self.rng = rng

    def __call__(self, samples):
        rows, labels = default_collate(samples)
        weight = float(self.rng.beta(0.2, 0.2))
        return weight * rows + (1 - weight) * rows.flip(0), labels


def test_generator_in_collate_fn():
    loader = FORK(Rows(), batch_size=2, collate_fn=Mixup(np.random.default_rng(0)))
    for rows, _ in loader:  # -> GG305
        assert rows.shape == (2, 3)


def masked(samples, rng):
    (rows,) = default_collate(samples)
    return rows * torch.from_numpy(rng.random(rows.shape) < 0.5)


def test_generator_given_to_collate_fn():
    collate = functools.partial(masked, rng=np.random.default_rng(0))
    for rows in FORK(TensorDataset(Rows().rows), batch_size=4, collate_fn=collate):  # -> GG305
        assert rows.shape == (4, 3)


class Spawning(Noisy):
    def __getitem__(self, index):
        own = self.rng.spawn(1)[0]
        return self.rows[index] + float(own.normal())


def test_generator_spawned_for_each_sample():
    for batch in FORK(Spawning(np.random.default_rng(0)), batch_size=4):  # -> GG305
        assert batch.shape == (4, 3)


def test_one_worker_repeats_each_epoch():
    rows = Noisy(np.random.default_rng(0))
    loader = DataLoader(rows, batch_size=4, num_workers=1, multiprocessing_context="fork")
    first, second = (batches(loader) for _ in range(2))
    assert first == second


def test_persistent_workers_draw_the_same():
    loader = FORK(Noisy(np.random.default_rng(0)), batch_size=2, persistent_workers=True)
    for _ in range(2):
        assert len(batches(loader)) == 4


def seed_numpy(worker):
    np.random.seed(torch.initial_seed() % 2**32)


def test_global_seed_does_not_reach_the_generator():
    rows = Noisy(np.random.default_rng(0))
    assert len(batches(FORK(rows, batch_size=2, worker_init_fn=seed_numpy))) == 4


class Stream(IterableDataset):
    def __init__(self, rng, count=8):
        self.rng = rng
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        for k in range(info.id, self.count, info.num_workers):
            yield torch.tensor([float(k), float(self.rng.normal())])


def test_augmented_stream():
    assert len(batches(FORK(Stream(np.random.default_rng(0)), batch_size=2))) == 4


def test_generator_in_spawned_workers():
    loader = SPAWN(Noisy(np.random.default_rng(0), 4), batch_size=2)
    first, second = batches(loader), batches(loader)
    assert first == second


# --- tensors that require grad ---------------------------------------------------------------


class Scaled(Rows):
    def __init__(self):
        super().__init__(4)
        self.scale = torch.ones(3, requires_grad=True)

    def __getitem__(self, index):
        with torch.no_grad():
            return self.rows[index] * self.scale


def test_leaf_for_spawned_workers():
    assert len(batches(SPAWN(Scaled(), batch_size=2))) == 2


class Graphs(Scaled):
    def __getitem__(self, index):
        return self.rows[index] * self.scale


def test_samples_with_history():
    loader = FORK(Graphs(), batch_size=2, collate_fn=as_list, timeout=5)
    with pytest.raises(RuntimeError, match="timed out"):
        list(loader)  # -> GG102:warning


class Embedded(Rows):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def __getitem__(self, index):
        return {"features": self.encoder(self.rows[index]), "label": self.labels[index]}


# --- CUDA in the workers ---------------------------------------------------------------------

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
cpu_build = pytest.mark.skipif(
    torch.backends.cuda.is_built(), reason="the driver was started before the fork: GG203"
)


class OnGpu(Rows):
    def __getitem__(self, index):
        return self.rows[index].to("cuda")


@cpu_build
def test_cuda_in_getitem():
    with pytest.raises((AssertionError, RuntimeError), match="in DataLoader worker process"):
        list(FORK(OnGpu(), batch_size=2))  # -> GG201:warning


def to_gpu(samples):
    return default_collate(samples)[0].cuda()


@cpu_build
def test_cuda_in_collate_fn():
    with pytest.raises((AssertionError, RuntimeError), match="in DataLoader worker process"):
        for _ in FORK(Rows(), batch_size=2, collate_fn=to_gpu):  # -> GG201
            pass


def set_device(worker):
    torch.zeros(1, device=f"cuda:{worker}")


@cpu_build
def test_cuda_in_worker_init_fn():
    with pytest.raises((AssertionError, RuntimeError), match="in DataLoader worker process"):
        next(iter(FORK(Rows(), worker_init_fn=set_device)))  # -> GG201


class GpuStream(IterableDataset):
    def __iter__(self):
        for k in range(4):
            yield torch.full((2,), float(k), device="cuda")


@cpu_build
def test_cuda_in_a_stream():
    with pytest.raises((AssertionError, RuntimeError), match="in DataLoader worker process"):
        list(FORK(GpuStream()))  # -> GG201


class DrawnOnGpu(Rows):
    def __getitem__(self, index):
        return torch.rand(3, generator=torch.Generator(device="cuda"))


@no_gpu
def test_generator_on_a_gpu():
    with pytest.raises(RuntimeError, match="in DataLoader worker process"):
        list(FORK(DrawnOnGpu(), batch_size=2))  # -> GG201


@no_gpu
def test_cuda_in_spawned_workers():
    with pytest.raises((AssertionError, RuntimeError), match="in DataLoader worker process"):
        list(SPAWN(OnGpu(), batch_size=2))  # -> GG201


# --- globals that each worker imports afresh ---------------------------------------------------

SCALE = torch.ones(3)


class Rescaled(Rows):
    def __getitem__(self, index):
        return torch.ones(3) * SCALE


def test_global_changed_since_import():
    SCALE.mul_(2)
    assert batches(SPAWN(Rescaled(1))) == [[[1.0] * 3]]
    assert batches(DataLoader(Rescaled(1))) == [[[2.0] * 3]]


# --- nothing to report -----------------------------------------------------------------------


def test_training_loop():
    # no unit of it can be dead from the start, however its weights are drawn
    model = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = FORK(Rows(), batch_size=2, shuffle=True, drop_last=True)
    before = model[0].weight.detach().clone()
    for _ in range(2):
        for rows, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
    assert not torch.equal(before, model[0].weight)


def test_evaluation_without_gradients():
    model = nn.Linear(3, 2)
    with torch.no_grad():
        out = [model(rows) for rows, _ in FORK(Rows(), batch_size=4)]
    with torch.inference_mode():
        out += [model(rows) for rows, _ in FORK(Rows(), batch_size=4)]
    assert not any(one.requires_grad for one in out)


class WithGlobals(Rows):
    def __getitem__(self, index):
        noise = np.random.normal() + random.random() + float(torch.rand(()))
        return self.rows[index] + noise


def test_global_generators_are_seeded():
    loader = FORK(WithGlobals(), batch_size=2)
    first, second = batches(loader), batches(loader)
    assert first != second


def own_generator(worker):
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)


def test_generator_from_the_seed_of_the_worker():
    loader = FORK(Noisy(None), batch_size=2, worker_init_fn=own_generator)
    assert batches(loader) != batches(loader)


class Lazy(Rows):
    rng = None

    def __getitem__(self, index):
        if self.rng is None:
            self.rng = np.random.default_rng(torch.initial_seed())
        return self.rows[index] + float(self.rng.normal())


def test_generator_made_at_the_first_sample():
    loader = FORK(Lazy(), batch_size=2)
    assert batches(loader) != batches(loader)


class Reproducible(Rows):
    seed = 5

    def __getitem__(self, index):
        rng = np.random.default_rng((self.seed, index))
        return self.rows[index] + float(rng.normal())


def test_generator_of_each_sample():
    loader = FORK(Reproducible(), batch_size=2)
    assert batches(loader) == batches(loader)


def seed_the_generator(worker):
    info = get_worker_info()
    info.dataset.generator.manual_seed(info.seed)


def test_worker_init_fn_seeds_the_generator():
    loader = FORK(Dropped(), batch_size=2, worker_init_fn=seed_the_generator)
    assert len(batches(loader)) == 4


def test_worker_init_fn_replaces_the_generator():
    loader = FORK(Noisy(np.random.default_rng(0)), batch_size=2, worker_init_fn=own_generator)
    assert batches(loader) != batches(loader)


class Reseeded(Dropped):
    def __getitem__(self, index):
        self.generator.manual_seed(100 + index)
        return super().__getitem__(index)


def test_generator_reseeded_for_each_sample():
    loader = FORK(Reseeded(), batch_size=2)
    assert batches(loader) == batches(loader)


class Numbered(Noisy):
    def __getitem__(self, index):
        own = self.rng.spawn(index + 1)[-1]
        return self.rows[index] + float(own.normal())


def test_generators_spawned_by_number():
    assert len(batches(FORK(Numbered(np.random.default_rng(0)), batch_size=4))) == 2


def spawn_by_worker(worker):
    dataset = get_worker_info().dataset
    dataset.rng = dataset.rng.spawn(2)[worker]


def test_generator_spawned_for_each_worker():
    rows = Noisy(np.random.default_rng(0))
    assert len(batches(FORK(rows, batch_size=4, worker_init_fn=spawn_by_worker))) == 2


class Split(Rows):
    def __init__(self, seed):
        super().__init__()
        self.rng = np.random.default_rng(seed)
        self.order = self.rng.permutation(len(self.rows))

    def __getitem__(self, index):
        return self.rows[self.order[index]]


def test_generator_spent_in_init():
    loader = FORK(Split(0), batch_size=2)
    assert batches(loader) == batches(loader)


def test_generators_that_advance_in_the_parent():
    generator = torch.Generator().manual_seed(0)
    weights = WeightedRandomSampler([0.5] * 8, 8, generator=generator)
    for options in (
        {"shuffle": True, "generator": generator, "batch_size": 2},
        {"sampler": RandomSampler(Rows(), generator=generator), "batch_size": 2},
        {"batch_sampler": BatchSampler(weights, 2, drop_last=False)},
    ):
        assert len(list(FORK(Rows(), **options))) == 4


def test_one_persistent_worker():
    rows = Noisy(np.random.default_rng(0))
    loader = DataLoader(
        rows, batch_size=4, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
    )
    assert batches(loader) != batches(loader)


def test_no_workers():
    loader = DataLoader(Noisy(np.random.default_rng(0)), batch_size=2)
    assert batches(loader) != batches(loader)
    assert [one.grad_fn is None for one in DataLoader(Graphs(), batch_size=2)] == [False, False]


class Sharded(IterableDataset):
    """All workers shuffle alike, and each reads its own part."""

    def __init__(self, count=12):
        self.count = count
        self.generator = torch.Generator().manual_seed(0)

    def __iter__(self):
        order = torch.randperm(self.count, generator=self.generator)
        info = get_worker_info()
        yield from order[info.id :: info.num_workers]


def test_sharded_shuffle():
    seen = [k for batch in batches(FORK(Sharded(), batch_size=2)) for k in batch]
    assert sorted(seen) == list(range(12))


def test_sharded_shuffle_of_workers_that_persist():
    loader = FORK(Sharded(), batch_size=2, persistent_workers=True)
    orders = [[k for batch in loader for k in batch.tolist()] for _ in range(3)]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert orders[0] != orders[1]


class ShardedAgain(Sharded):
    def __iter__(self):
        info = get_worker_info()
        for _ in range(3):
            order = torch.randperm(self.count, generator=self.generator).tolist()
            yield from order[info.id :: info.num_workers]


def test_sharded_shuffles_of_one_iteration():
    seen = [k for batch in batches(FORK(ShardedAgain(), batch_size=3)) for k in batch]
    assert sorted(seen) == sorted(3 * list(range(12)))


class ShardedByHelper(Sharded):
    def order(self):
        return torch.randperm(self.count, generator=self.generator)

    def __iter__(self):
        info = get_worker_info()
        yield from self.order()[info.id :: info.num_workers]


def test_shuffle_of_a_helper():
    seen = [k for batch in batches(FORK(ShardedByHelper(), batch_size=2)) for k in batch]
    assert sorted(seen) == list(range(12))


class Ordered(Sharded):
    def __iter__(self):
        yield from torch.randperm(self.count, generator=self.generator)


def test_stream_in_one_order():
    loader = DataLoader(Ordered(), batch_size=4, num_workers=1, multiprocessing_context="fork")
    first, second = [[k for batch in loader for k in batch.tolist()] for _ in range(2)]  # -> GG305
    assert first == second


class ShuffledPart(IterableDataset):
    def __init__(self, rng):
        self.rng = rng

    def __iter__(self):
        info = get_worker_info()
        part = list(range(12))[info.id :: info.num_workers]
        self.rng.shuffle(part)
        yield from part


def test_stream_that_shuffles_its_own_part():
    loader = FORK(ShuffledPart(np.random.default_rng(0)), batch_size=3)
    first, second = [[k for batch in loader for k in batch.tolist()] for _ in range(2)]  # -> GG305
    assert first == second


class NoiseAhead(IterableDataset):
    def __init__(self, rng):
        self.rng = rng

    def __iter__(self):
        info = get_worker_info()
        part = np.zeros(8)[info.id :: info.num_workers]
        yield from part + self.rng.normal(size=len(part))


def test_noise_before_the_first_sample():
    loader = FORK(NoiseAhead(np.random.default_rng(0)), batch_size=4)
    first, second = [[k for batch in loader for k in batch.tolist()] for _ in range(2)]  # -> GG305
    assert first == second


class Leaves(Rows):
    def __getitem__(self, index):
        return self.rows[index].clone().requires_grad_()


def test_leaf_samples():
    for samples in FORK(Leaves(), batch_size=2, collate_fn=as_list):
        sum(one.pow(2).sum() for one in samples).backward()
        assert all(one.grad is not None for one in samples)


class Detached(Scaled):
    def __getitem__(self, index):
        return (self.rows[index] * self.scale).detach()


def test_detached_samples():
    assert len(batches(FORK(Detached(), batch_size=2))) == 2


class Encoded(Embedded):
    @torch.no_grad()
    def __getitem__(self, index):
        return self.encoder(self.rows[index]), self.labels[index]


def test_frozen_encoder():
    head = nn.Linear(2, 2)
    for features, labels in FORK(Encoded(nn.Linear(3, 2)), batch_size=4):
        nn.functional.cross_entropy(head(features), labels).backward()
    assert head.weight.grad is not None


class Saliency(Embedded):
    def __getitem__(self, index):
        row = self.rows[index].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.encoder(row).sum(), row)
        return gradient


def test_gradients_in_the_dataset():
    assert len(batches(FORK(Saliency(nn.Linear(3, 2)), batch_size=4))) == 2


def test_stacking_what_requires_grad_is_refused():
    leaf = TensorDataset(torch.ones(4, 2, requires_grad=True))
    for rows in (Graphs(), leaf):
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            list(FORK(rows, batch_size=2))  # -> GG102:warning


class Refusing(Rows):
    def __getitem__(self, index):
        raise RuntimeError("integers don't support automatic differentiation")


def test_an_error_of_the_datasets_own_about_derivatives():
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        list(FORK(Refusing(), batch_size=2))


class Named(Rows):
    def __getitem__(self, index):
        device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
        return {"row": self.rows[index], "device": str(device), "index": index}


def test_devices_named_in_the_workers():
    batch = next(iter(FORK(Named(), batch_size=2)))
    assert batch["index"].tolist() == [0, 1]


def hide_gpus(worker):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def test_visible_devices_in_worker_init_fn():
    assert len(list(FORK(Rows(), batch_size=2, worker_init_fn=hide_gpus))) == 4


class Broken(Rows):
    def __getitem__(self, index):
        if index == 2:
            raise KeyError(f"no row {index}")
        return super().__getitem__(index)


def test_error_in_getitem():
    with pytest.raises(KeyError) as caught:
        list(FORK(Broken(), batch_size=2))
    text = str(caught.value)
    assert "Caught KeyError in DataLoader worker process 1" in text
    assert "no row 2" in text
    assert "gradguard" not in text


class Unreadable(Exception):
    def __init__(self, path, code):
        super().__init__(path, code)


class Unread(Rows):
    def __getitem__(self, index):
        raise Unreadable("rows.bin", 5)


def test_error_of_the_users_own():
    with pytest.raises(RuntimeError, match="Caught Unreadable in DataLoader worker process 0"):
        list(FORK(Unread(), batch_size=2))


class Dying(Rows):
    def __getitem__(self, index):
        os._exit(3)


def test_worker_dies():
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|is killed by signal"):
        list(FORK(Dying(), batch_size=2))


class Slow(Rows):
    def __getitem__(self, index):
        import time

        time.sleep(60)


def test_timeout():
    with pytest.raises(RuntimeError, match=r"timed out after 0\.5 seconds"):
        next(iter(FORK(Slow(), timeout=0.5)))


def test_iterator_left_early():
    loader = FORK(Rows(64), batch_size=2)
    for rows, _ in loader:
        assert rows.shape == (2, 3)
        break
    assert len(list(loader)) == 32


def test_persistent_workers():
    loader = FORK(Rows(), batch_size=2, persistent_workers=True)
    assert [len(list(loader)) for _ in range(3)] == [4] * 3


def test_two_iterators_at_once():
    loader = FORK(Rows(), batch_size=2)
    for (one, _), (other, _) in zip(loader, loader, strict=True):
        assert torch.equal(one, other)


def test_the_loader_is_as_it_was():
    rows = Rows()
    loader = FORK(rows, batch_size=2, collate_fn=as_list)
    iterator = iter(loader)
    assert len(loader) == len(iterator) == 4
    assert loader.dataset is rows
    assert loader.collate_fn is as_list
    assert loader.worker_init_fn is None
    assert all("run" not in vars(worker) for worker in iterator._workers)
    assert all(type(sample) is tuple for sample in next(iterator))
    with pytest.raises(NotImplementedError):
        iterator.__getstate__()


def test_spawned_workers():
    first = [rows.tolist() for rows, _ in SPAWN(Rows(4), batch_size=2)]
    assert first == [rows.tolist() for rows, _ in DataLoader(Rows(4), batch_size=2)]


class Multiplied(Rows):
    def __getitem__(self, index):
        square = torch.ones(600, 600)
        return float((square @ square)[0, 0])


def test_threads_of_the_parent():
    square = torch.ones(600, 600)
    square @ square
    assert batches(DataLoader(Multiplied(2), num_workers=1)) == [[600.0], [600.0]]
    square @ square


def test_pinned_memory():
    assert len(list(FORK(Rows(), batch_size=2, pin_memory=torch.cuda.is_available()))) == 4


class Endless(DataLoader):
    def __iter__(self):
        while True:
            yield from super().__iter__()


def test_own_loader():
    loader = Endless(Rows(), batch_size=4, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    assert [len(next(iterator)[0]) for _ in range(5)] == [4] * 5


def test_spawned_workers_that_pickle_a_model():
    assert len(list(SPAWN(Encoded(nn.Linear(3, 2)), batch_size=4))) == 2


def test_learning_from_the_stream():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for batch in FORK(Numbers(), batch_size=2):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
    assert model.weight.grad is not None


class Numbers(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for k in range(info.id, 8, info.num_workers):
            yield torch.tensor([float(k), 1.0]) + torch.randn(2)


def test_nested_containers():
    parts = ConcatDataset(
        [Subset(Rows(), range(4)), TensorDataset(torch.ones(4, 3), torch.ones(4))]
    )
    assert sum(len(rows) for rows, _ in FORK(parts, batch_size=2)) == 8
