"""PyTorch Geometric's loaders: of datasets of graphs, or of parts of one graph."""

from torch.utils.data import DataLoader as _Loader

from gradguard_lint.models.primitives import unknown


class DataLoader(_Loader):
    def __init__(self, dataset, *args, collate_fn=None, **kwargs):
        super().__init__(dataset, **kwargs)


DataListLoader = DenseDataLoader = TemporalDataLoader = DataLoader


class NodeLoader(_Loader):
    def __init__(self, *args, dataset=None, collate_fn=None, **kwargs):
        super().__init__(unknown(), **kwargs)


NeighborLoader = LinkNeighborLoader = LinkLoader = HGTLoader = ClusterLoader = NodeLoader
RandomNodeLoader = RandomNodeSampler = NeighborSampler = ShaDowKHopSampler = NodeLoader
GraphSAINTSampler = GraphSAINTNodeSampler = GraphSAINTEdgeSampler = NodeLoader
GraphSAINTRandomWalkSampler = ZipLoader = NodeLoader
