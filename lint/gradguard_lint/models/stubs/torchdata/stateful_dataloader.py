"""torchdata's loader, which is torch's with more options."""

from torch.utils.data import DataLoader as _Loader

StatefulDataLoader = _Loader
