"""same"""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


class Noisy(Dataset):
    def __init__(self):
        self.own = np.random.default_rng(0)

    def __len__(self):
        return 12

    def __getitem__(self, i):
        noise = torch.rand(3) + np.random.rand() + random.random() + self.own.random()
        return (X.flatten()[i] + noise).float()


for _ in range(2):
    for x in DataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=2):
        optimizer.zero_grad()
        (torch.nn.functional.dropout(net(x)) ** 2).mean().backward()
        optimizer.step()
