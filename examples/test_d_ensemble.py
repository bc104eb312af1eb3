"""Each worker trains one member of an ensemble from start to end and returns it.

The guard reports nothing of weight. A member's gradients are made and used in one worker, and
what comes back are parameters, not graphs. (With -v it mentions GG107, for information: each
worker trains a copy, and the members in the list `fresh` stay as they were.)
"""

import torch
from joblib import Parallel, delayed


def train(member, data, target):
    optimizer = torch.optim.SGD(member.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        loss = (member(data) - target).square().mean()
        loss.backward()
        optimizer.step()
    return member


def test_members_come_back_trained():
    torch.manual_seed(0)
    data = torch.randn(16, 3)
    target = data.sum(dim=1, keepdim=True)
    fresh = [torch.nn.Linear(3, 1) for _ in range(2)]
    trained = Parallel(n_jobs=2)(delayed(train)(member, data, target) for member in fresh)
    for before, after in zip(fresh, trained, strict=True):
        loss_before = (before(data) - target).square().mean()
        loss_after = (after(data) - target).square().mean()
        assert loss_after < loss_before
