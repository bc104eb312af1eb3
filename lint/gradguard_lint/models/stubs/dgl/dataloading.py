"""DGL's loaders: of datasets of graphs, or of parts of one graph."""

from torch.utils.data import DataLoader as _Loader

from gradguard_lint.models.primitives import unknown


class GraphDataLoader(_Loader):
    def __init__(self, dataset, collate_fn=None, *args, **kwargs):
        super().__init__(dataset, collate_fn=collate_fn, **kwargs)


class DataLoader(_Loader):
    def __init__(self, *args, **kwargs):
        super().__init__(unknown(), **kwargs)


NodeDataLoader = EdgeDataLoader = DataLoader
