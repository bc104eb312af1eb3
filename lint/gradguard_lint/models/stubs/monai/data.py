"""MONAI's loaders."""

from torch.utils.data import DataLoader as _Loader


class DataLoader(_Loader):
    def __init__(self, dataset, num_workers=0, **kwargs):
        super().__init__(dataset, num_workers=num_workers, **kwargs)


class ThreadDataLoader(DataLoader):
    def __init__(self, dataset, buffer_size=1, buffer_timeout=0.01, repeats=1, **kwargs):
        super().__init__(dataset, **kwargs)
