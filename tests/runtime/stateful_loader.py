"""Batches of torchdata's `StatefulDataLoader`, from forked workers: {graphs,rows}."""

from __future__ import annotations

import sys
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")  # torchdata calls what torch deprecates

from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402


class Features(torch.utils.data.Dataset):
    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.layer(torch.full((2,), float(index)))


class Rows(Features):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(2) + index


def main(kind: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    if kind == "graphs":
        for batch in StatefulDataLoader(Features(layer), 2, num_workers=1, collate_fn=torch.stack):
            print(batch)
        return
    loader = StatefulDataLoader(Rows(layer), 2, num_workers=2, shuffle=True)
    states = []
    for batch in loader:
        optimizer.zero_grad()
        layer(batch).sum().backward()
        optimizer.step()
        states.append(loader.state_dict())
    loader.load_state_dict(states[1])
    print([batch.tolist() for batch in loader], layer.weight.tolist())


if __name__ == "__main__":
    main(sys.argv[1])
