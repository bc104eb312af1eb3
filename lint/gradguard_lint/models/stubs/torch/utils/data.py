"""torch's loaders, the datasets that they read, and the samplers that say in which order."""

from gradguard_lint.models.primitives import (
    begins_order,
    certainly,
    load,
    new_epoch,
    stack,
    start_method,
    starts_driver,
    unknown,
    worker_info,
)


class DataLoader:
    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=None,
        sampler=None,
        batch_sampler=None,
        num_workers=0,
        collate_fn=None,
        pin_memory=False,
        drop_last=False,
        timeout=0,
        worker_init_fn=None,
        multiprocessing_context=None,
        *more,
        **kwargs,
    ):
        self.dataset = dataset
        self.sampler = unknown() if sampler is None else sampler
        if batch_sampler is None:
            batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self._start = start_method(multiprocessing_context, "torch")

    def __iter__(self):
        load(self)
        if certainly(self.pin_memory):
            starts_driver("DataLoader(..., pin_memory=True)")
        return unknown()


class TensorDataset:
    def __init__(self, *tensors):
        self.tensors = tensors


class Subset:
    def __init__(self, dataset, indices):
        self.dataset = dataset
        self.indices = indices


class ConcatDataset:
    def __init__(self, datasets):
        self.datasets = datasets


class ChainDataset(ConcatDataset):
    pass


def random_split(dataset, lengths, generator=None):
    return [Subset(dataset, length) for length in lengths]


def default_collate(batch):
    stack(batch)
    return unknown()


def get_worker_info():
    return worker_info()


class BatchSampler:
    def __init__(self, sampler, batch_size, drop_last):
        self.sampler = sampler


class DistributedSampler:
    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, *more, **kwargs):
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        begins_order(self)

    @property
    def epoch(self):
        return unknown()

    @epoch.setter
    def epoch(self, epoch):
        new_epoch(self, epoch)

    def set_epoch(self, epoch):
        self.epoch = epoch
