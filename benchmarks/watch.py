"""What a watch costs: a training step of a transformer encoder with it and without, side by side.

    python benchmarks/watch.py [--repeat N] [--threads N]

The encoder has 12 layers of width 256, the batch is 8 × 64. Watched and bare steps take turns in
one process, and the figure is the median over the turns of the ratio of processor time within one
turn (with one thread it holds on a busy machine too).
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from pytest_gradguard import watch_gradients


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a watch costs.")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument(
        "--threads", type=int, default=1, help="torch's threads (0: its own choice)"
    )
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, dim_feedforward=1024, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 12)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(8, 64, 256)

    def train() -> float:
        begin = time.process_time()
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        loss.item()
        return time.process_time() - begin

    for _ in range(3):
        train()
    bare, watched, first, control = [], [], [], []
    for _ in range(options.repeat):
        before = train()
        with watch_gradients(model):
            begun = train()
            inside = train()
        after, again = train(), train()
        bare.append(before)
        first.append(2 * begun / (before + after))
        watched.append(2 * inside / (before + after))
        control.append(2 * again / (before + after))
    ratio, first_ratio = statistics.median(watched), statistics.median(first)
    print(f"bare step: {statistics.median(bare) * 1e3:.1f} ms")
    print(f"watched step, beside a bare one: {ratio:.3f} (the first of a watch: {first_ratio:.3f})")
    print(f"a bare step, beside a bare one: {statistics.median(control):.3f}")


if __name__ == "__main__":
    main()
