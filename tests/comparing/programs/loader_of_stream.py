"""same"""

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        for i in range(4 + 3 * worker.id):
            yield torch.tensor([i, worker.id, torch.rand(1).item()])


for _ in range(2):
    for x in DataLoader(Stream(), batch_size=2, num_workers=2):
        optimizer.zero_grad()
        (net(x) ** 2).mean().backward()
        optimizer.step()
