"""An ordinary PyTorch loop, made parallel by three lines (marked).

torchrun --nproc-per-node 2 examples/own_loop.py
torchrun --nproc-per-node 2 examples/own_loop.py averaging:period=10
torchrun --nproc-per-node 3 examples/own_loop.py parameter-server    # the third is the server
"""

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import regatta  # (1)


def main(strategy: str = "all-reduce") -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # A toy problem: tell the largest of ten random directions.
    inputs = torch.randn(8192, 32)
    labels = (inputs @ torch.randn(32, 10)).argmax(1)
    model = nn.Sequential(nn.Linear(32, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    with regatta.join(strategy, model, optimizer) as crew:  # (2)
        if crew.is_server:
            crew.serve()
        else:
            for epoch in range(5):
                order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
                for batch in order.split(64)[crew.rank :: crew.workers]:
                    optimizer.zero_grad()
                    cross_entropy(model(inputs[batch]), labels[batch]).backward()
                    crew.step()  # (3) where optimizer.step() stood

    model.eval()
    with torch.no_grad():
        accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
    print(f"{strategy}, rank {crew.rank} of {crew.size}: accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
