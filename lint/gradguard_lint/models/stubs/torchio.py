"""TorchIO's loader."""

from torch.utils.data import DataLoader as _Loader


class SubjectsLoader(_Loader):
    def __init__(self, dataset, collate_fn=None, **kwargs):
        super().__init__(dataset, collate_fn=collate_fn, **kwargs)
