"""Write the page on simulated GPUs to standard output: what is simulated, and how faithfully.

``python docs/make_simulation.py > docs/simulated_gpus.md`` runs every program of the table.
On a machine with a real GPU, ``--real FILE`` writes what the programs give on it to FILE; that file
is `docs/real_gpu.json`, and the table shows it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_PROGRAMS = _HERE.parent / "tests" / "simulation" / "outcomes.py"
_SEEN = _HERE / "real_gpu.json"
_CALLS = _HERE.parent / "tests" / "recorded" / "cuda_calls.json"
_FORKED = _HERE.parent / "tests" / "recorded" / "forked_gpu.json"

_HEAD = """\
# Simulated GPUs: test CUDA code without a GPU

<!-- Made by `python docs/make_simulation.py > docs/simulated_gpus.md`; do not edit. -->

    pytest --gradguard-simulate-gpu=2
    gradguard run --simulate-gpu 2 train.py
    with guard(simulate_gpu=2): ...

Programs that ask torch for CUDA then run on the CPU, in this process, its threads and its workers:
`torch.cuda.is_available()` is true, tensors and modules move to `cuda:0` and back, and the guard
reports what it would report on real hardware. While it is off it changes nothing, and afterwards
everything is undone. `--gradguard-simulate-gpu` also turns the guard on.

**How.** Tensors stay ordinary CPU tensors; the device of each is stored with its storage.
`torch.cuda` runs its own code on a simulated driver, so lazy initialisation, `CUDA_VISIBLE_DEVICES`
(read once), device numbers and seeds behave as on a real one. Operations that mix devices fail with
torch's own error. In a child that was forked from a process that has used CUDA, asked for a GPU,
pinned memory or run a backward pass, CUDA fails as with a real GPU, and so does autograd after a
backward pass of the parent, also on the CPU ({forked} outcomes of forked processes were compared).

**Numbers** are those of the CPU. Random numbers on a GPU come from the CPU's generator until the
program seeds that GPU separately; real GPUs give other numbers. `autocast("cuda")` runs the CPU's
autocast, in the requested dtype, on GPU tensors only. Memory is counted from the tensors that are
alive; each GPU has 16 GiB, and never runs out. Streams and events have no effect on the order: each
operation is complete when its call returns.

**Not simulated**, and refused with a clear error: CUDA graphs, custom CUDA kernels (cpp_extension),
Triton kernels, operators for CUDA only, NCCL process groups, nested tensors, `torch.export`, DLPack
to other libraries. `torch.compile` runs functions uncompiled, and profilers see only the CPU. CuPy,
TensorFlow and processes that the program starts itself (`subprocess`) have no simulated GPUs, nor
has a thread that was started before the simulation; the guard watches CuPy's and TensorFlow's use
of real GPUs (see below). In a worker that was forked after CUDA was initialised, a GPU tensor
arrives and fails when it is used; on real hardware its unpickling fails, and a pool may wait
forever.

## What was tested on a real GPU

`tests/gpu` ran on an NVIDIA H100 and an H200, with torch 2.11 and CuPy 14; so did, on the H100, the
programs of `tests/guard_cases` that simulate GPUs elsewhere: what the guard reports of CUDA in
workers, of tensors and arrays that cross, of forks and of `CUDA_VISIBLE_DEVICES`, and the memory
that it says a context takes. `tests/recorded/cuda_calls.json` has what {calls} calls of torch, CuPy
and libraries on torch do to CUDA; the linter is tested against it. On the H200, 217 more programs
ran without the guard and with it: same outcomes, but for a deadlock that came in one run of two,
and a median of 0.04 s more.

## CuPy and TensorFlow, without a GPU

The checks for them (GG201 to GG204, see [the pitfalls](pitfalls/index.md)) do not use the
simulation. Where there is no GPU, they are tested in these ways:

- **CuPy, an attempt without a GPU**, by an allocation or by the error of a task: the real CuPy 14,
  its own errors, real workers.
- **CuPy's first memory in a process**, forks after it, `CUDA_VISIBLE_DEVICES` changed after it: the
  real CuPy with an allocator over host memory. CuPy asks for memory as usual; CUDA is never
  initialised.
- **CuPy arrays that cross**: real arrays over such memory, pickled for real workers. Their copy to
  the host, which needs a GPU, is replaced by a stand-in.
- **TensorFlow, an error if the program insists on a GPU**, and no finding if it runs on the CPU
  instead: the real TensorFlow 2.21.
- **TensorFlow's context with a GPU**, forks after it, and tensors, variables and Keras models that
  cross: the real TensorFlow with a second logical CPU in place of a GPU.
- **GPU memory of the workers' contexts** (GG201): real workers that load a stand-in for the
  driver's library (`libnvidia-ml.so.1`, with the layouts of NVIDIA's header), and whose torch
  reports that CUDA is initialised.
- **TensorFlow's context creates a CUDA context**: not tested; this is what TensorFlow documents.

## Public programs

These ran under simulation, on torch 2.13, with the results of the CPU and without a finding
(training steps, predictions, checkpoints; random models, no downloads):

- **pytorch/examples (77f55b9)**: vae, mnist, mnist_rnn, mnist_hogwild, mnist_forward_forward,
  word_language_model, siamese_network, gcn, gat, dcgan, super_resolution
- **PyTorch's tutorials, their networks and loops**: classifier, char-rnn, seq2seq with attention,
  DQN, transfer learning, FGSM, spatial transformer, translation
- **nanoGPT (3adf61e), minGPT (37baab7)**: training, sampling; adder, chargpt
- **training**: lightning 2.6.6 (one GPU; all its precisions), pytorch-ignite 0.5.5, accelerate
  1.15.0, skorch 1.4.0 with its CUDA tests, fastai 2.8.12
- **Transformers 5.23.0**: Trainer; BERT, GPT-2, Llama, Mixtral, T5, ViT, Whisper, Mamba, with
  `generate`; peft 0.21.2, sentence-transformers 6.2.0
- **images**: torchvision 0.28.0, timm 1.0.31, kornia 0.9.0, monai 1.6.1, diffusers 0.42.1
- **probability**: pyro-ppl 1.9.2, gpytorch 1.15.2, botorch 0.18.1, sbi 0.27.0, nflows 0.14,
  normflows 1.7.3
- **graphs, equations, control**: torch-geometric 2.8.1, e3nn 0.6.0, torchdiffeq 0.2.5, torchsde
  0.2.6, stable-baselines3 2.9.2
- **around training**: torchmetrics 1.9.0, captum 0.9.0, opacus 1.6.0, einops 0.8.2, tensordict
  0.15.3, pytorch-tabnet 4.1.0, pytorch_optimizer 4.1.0, higher 0.2.1, ema-pytorch 0.8.3

Programs without a CPU equivalent (float16 with a gradient scaler, a batch over two GPUs) ran to the
end. If a program does different things on a GPU than on the CPU (shuffles only there, splits a
batch with batch norm over two GPUs, draws a number to see its device), its numbers differ here,
too. Frameworks that take every GPU they find, such as lightning with two of them, start an NCCL
process group: give them one GPU, by their own option or with `--simulate-gpu 1`.

## How faithful

Each program ran on the CPU and on a simulated GPU, and results and kinds of device were compared,
to the tolerance of float32.
"""

_SAME = "as on the CPU"


def outcomes() -> list[dict[str, Any]]:
    """What each program gives on this machine."""
    command = [sys.executable, str(_PROGRAMS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def page(simulated: list[dict[str, Any]], real: dict[str, Any] | None) -> Iterator[str]:
    """The lines of the page."""
    table = json.loads(_CALLS.read_text(encoding="utf-8"))
    calls = sum(len(of[kind]) for of in table.values() for kind in of if kind != "version")
    forked = json.loads(_FORKED.read_text(encoding="utf-8"))
    head = _HEAD.replace("{forked}", str(sum(map(len, forked.values()))))
    yield head.replace("{calls}", str(calls))
    same = [line for line in simulated if line["simulated"]["given"] == _SAME]
    names = ", ".join(line["name"].replace("_", " ").strip() for line in same)
    text = f"These {len(same)} programs gave what they give on the CPU, without a finding: {names}."
    yield textwrap.fill(text, 100, break_on_hyphens=False) + "\n"
    yield "The others show what a GPU refuses, and what the guard finds:\n"
    if real is not None:
        given = [real["outcomes"][line["name"]]["given"] for line in same]
        text = (
            f"The real GPU was {real['gpu']}, with torch {real['torch']}. Of the programs above, "
            f"{given.count(_SAME)} gave the numbers of the CPU there; the other "
            f"{len(same) - given.count(_SAME)} draw random ones there, or add up in another "
            "order. Its workers had initialised CUDA already where they returned a tensor."
        )
        yield textwrap.fill(text, 100, break_on_hyphens=False) + "\n"
    titles = ["program", "simulated GPU", "finding"]
    titles += [] if real is None else ["real GPU", "finding there"]
    yield "| " + " | ".join(titles) + " |"
    yield "| " + " | ".join("---" for _ in titles) + " |"
    for line in simulated:
        if line in same:
            continue
        cells = _cells(line["simulated"])
        if real is not None:
            cells += f" | {_cells(real['outcomes'][line['name']])}"
        yield f"| {line['name'].replace('_', ' ')} | {cells} |"


def _cells(outcome: dict[str, Any]) -> str:
    given = outcome["given"]
    text = given if isinstance(given, str) else json.dumps(given)
    return f"{text.replace('|', '/')} | {', '.join(outcome['found'])}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--real", metavar="FILE", help="write what a real GPU gives to FILE")
    args = parser.parse_args()
    if args.real is not None:
        import torch

        seen = {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "outcomes": {line["name"]: line["real"] for line in outcomes()},
        }
        Path(args.real).write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
        return
    real = json.loads(_SEEN.read_text(encoding="utf-8")) if _SEEN.exists() else None
    print("\n".join(page(outcomes(), real)))


if __name__ == "__main__":
    main()
