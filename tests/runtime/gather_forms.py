"""Two gloo ranks: what becomes of the rows that a collective gathered, in many forms.

``python gather_forms.py FOLDER`` writes one JSON file a rank: by form, the gradient without the
guard and with it, the next random number, and what was found.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
import torch.nn.functional as F

from pytest_gradguard import guard

ROWS = 3
Form = Callable[[Any, int], Any]
SAME: dict[str, Form] = {}
"""Right: the gradient is that of the list with the own slot put back."""
RIGHT: dict[str, Form] = {}
"""Right, with another loss."""
WRONG: dict[str, Form] = {}
"""The loss depends on own rows without their graph."""
ADVISED: dict[str, Form] = {}
"""Wrong, and repaired by what the finding says."""


def kept_in(table: dict[str, Form]) -> Callable[[Form], Form]:
    def keep(form: Form) -> Form:
        table[form.__name__.strip("_")] = form
        return form

    return keep


same, right, wrong, advised = map(kept_in, (SAME, RIGHT, WRONG, ADVISED))


def parts_of(own: Any) -> list[Any]:
    parts = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(parts, own)
    return parts


def joined(own: Any) -> Any:
    return torch.cat(parts_of(own))


def contrast(own: Any, everyone: Any) -> Any:
    return (own @ everyone.T).logsumexp(1).mean()


def mine(rank: int) -> slice:
    return slice(rank * ROWS, (rank + 1) * ROWS)


def others(rank: int) -> slice:
    return mine(1 - rank)


def mask(rank: int) -> Any:
    chosen = torch.zeros(2 * ROWS, dtype=torch.bool)
    chosen[mine(rank)] = True
    return chosen


def numbers(rows: slice) -> Any:
    return torch.arange(rows.start, rows.stop)


# -- right -----------------------------------------------------------------------------------------


@same
def own_slot(own, rank):
    parts = parts_of(own)
    parts[rank] = own
    return contrast(own, torch.cat(parts))


@same
def cut_out_by_slices(own, rank):
    rows = joined(own)
    rows = torch.cat([rows[: mine(rank).start], own, rows[mine(rank).stop :]])
    return contrast(own, rows)


@same
def cut_out_by_mask(own, rank):
    return contrast(own, torch.cat([own, joined(own)[~mask(rank)]]))


@same
def cut_out_by_index(own, rank):
    return contrast(own, torch.cat([own, joined(own)[list(range(6))[others(rank)]]]))


@same
def cut_out_by_index_select(own, rank):
    return contrast(own, torch.cat([own, joined(own).index_select(0, numbers(others(rank)))]))


@same
def cut_out_by_gather(own, rank):
    index = numbers(others(rank))[:, None].expand(-1, 2)
    return contrast(own, torch.cat([own, joined(own).gather(0, index)]))


@same
def cut_out_by_narrow(own, rank):
    return contrast(own, torch.cat([own, joined(own).narrow(0, others(rank).start, ROWS)]))


@same
def cut_out_by_product(own, rank):
    select = torch.eye(2 * ROWS)[others(rank)]
    return contrast(own, torch.cat([own, select @ joined(own)]))


@same
def rolled(own, rank):
    return contrast(own, torch.cat([own, joined(own).roll(-mine(rank).start, 0)[ROWS:]]))


@same
def flipped(own, rank):
    return contrast(own, torch.cat([own, torch.stack(parts_of(own)).flip(0)[rank]]))


@same
def unbound(own, rank):
    parts = list(torch.stack(parts_of(own)).unbind(0))
    parts[rank] = own
    return contrast(own, torch.cat(parts))


@same
def split(own, rank):
    parts = list(joined(own).split(ROWS))
    parts[rank] = own
    return contrast(own, torch.cat(parts))


@same
def split_and_deleted(own, rank):
    parts = list(joined(own).tensor_split(2))
    del parts[rank]
    return contrast(own, torch.cat([own, *parts]))


@same
def chunks_of_one_buffer(own, rank):
    buffer = torch.empty(2 * ROWS, 2)
    dist.all_gather(list(buffer.chunk(2)), own)
    rows = torch.cat([buffer[: mine(rank).start], own, buffer[mine(rank).stop :]])
    return contrast(own, rows)


@same
def multiplied_by_mask(own, rank):
    parts, live = torch.stack(parts_of(own)), torch.zeros(2, 1, 1)
    live[rank] = 1
    return contrast(own, (parts * (1 - live) + own * live).flatten(0, 1))


@same
def chosen_by_where(own, rank):
    live = (torch.arange(2) == rank)[:, None, None]
    return contrast(own, torch.where(live, own, torch.stack(parts_of(own))).flatten(0, 1))


@same
def scattered(own, rank):
    index = numbers(mine(rank))[:, None].expand(-1, 2)
    return contrast(own, joined(own).scatter(0, index, own))


@same
def copied_to_an_index(own, rank):
    return contrast(own, joined(own).index_copy(0, numbers(mine(rank)), own))


@same
def scattered_to_a_slice(own, rank):
    return contrast(own, joined(own).slice_scatter(own, 0, mine(rank).start, mine(rank).stop))


@same
def written_back(own, rank):
    rows = joined(own)
    rows[mine(rank)] = own
    return contrast(own, rows)


@same
def written_to_a_view(own, rank):
    rows = joined(own)
    rows.view(2, ROWS, 2)[rank].copy_(own)
    return contrast(own, rows)


@same
def written_below_a_view(own, rank):
    rows = joined(own)
    view = rows.view(2, ROWS, 2)
    rows.index_put_((numbers(mine(rank)),), own)
    return contrast(own, view.flatten(0, 1))


@same
def written_to_an_earlier_view(own, rank):
    buffer = torch.empty(2 * ROWS, 2)
    slot = buffer[mine(rank)]
    dist.all_gather(list(buffer.chunk(2)), own)
    slot.copy_(own)
    return contrast(own, buffer)


@same
def written_into_an_output(own, rank):
    rows = torch.empty(2 * ROWS, 2)
    torch.cat(parts_of(own), out=rows)
    rows[mine(rank)] = own
    return contrast(own, rows)


@same
def masked_after_the_product(own, rank):
    products = (own @ joined(own).T).masked_fill(mask(rank), float("-inf"))
    return torch.cat([own @ own.T, products], 1).logsumexp(1).mean()


@right
def only_others(own, rank):
    return contrast(own, joined(own)[others(rank)])


@right
def only_others_weighted(own, rank):
    weights = torch.tensor([float(rank == 1), float(rank == 0)])
    return torch.einsum("nd,kmd,k->", own, torch.stack(parts_of(own)), weights)


@right
def only_others_dropped_out(own, rank):
    return contrast(own, F.dropout(joined(own))[others(rank)])


@right
def filled_with_zeros(own, rank):
    return contrast(own, joined(own).masked_fill(mask(rank)[:, None], 0.0))


@right
def overwritten_without_gradients(own, rank):
    rows = joined(own)
    with torch.no_grad():
        rows[mine(rank)] = 0.0
    return contrast(own, rows)


@right
def gradient_of_the_gathered_by_hand(own, rank):
    rows = joined(own).requires_grad_()
    (gradient,) = torch.autograd.grad(contrast(own.detach(), rows), rows)
    dist.all_reduce(gradient)
    return (own * gradient[mine(rank)]).sum()


# -- wrong -----------------------------------------------------------------------------------------


@wrong
def all_of_them(own, rank):
    return contrast(own, joined(own))


@wrong
def normalized(own, rank):
    return contrast(own, F.normalize(torch.stack(parts_of(own)).flatten(0, 1), dim=-1))


@wrong
def one_row_left(own, rank):
    return contrast(own, torch.cat([own, joined(own)[mine(rank).start : mine(rank).start + 1]]))


@wrong
def the_mask_inverted(own, rank):
    return contrast(own, torch.cat([own, joined(own)[mask(rank)]]))


@wrong
def a_part_written_back(own, rank):
    rows = joined(own)
    rows[mine(rank)][:-1] = own[:-1]
    return contrast(own, rows)


@wrong
def sorted_(own, rank):
    return contrast(own, joined(own).sort(0)[0])


@wrong
def added_to_constants(own, rank):
    return contrast(own, torch.zeros(2 * ROWS, 2).add_(joined(own)))


@wrong
def added_to_a_view_with_a_graph(own, rank):
    rows = torch.cat([own, own])
    rows[:ROWS] += joined(own)[mine(rank)]
    return contrast(own, rows)


@wrong
def put_into_a_bank(own, rank):
    bank = torch.zeros(3 * ROWS, 2)
    bank[ROWS:] = joined(own)
    return contrast(own, bank)


@wrong
def mean_of_all(own, rank):
    return (own - joined(own).mean(0)).square().mean()


@wrong
def row_by_row(own, rank):
    return torch.stack([(own @ row).exp().sum() for row in joined(own)]).sum().log()


@wrong
def dropped_out(own, rank):
    return contrast(own, F.dropout(joined(own), 0.1))


@wrong
def through_running_statistics(own, rank):
    norm = torch.nn.BatchNorm1d(2)
    loss = contrast(own, norm(joined(own)))
    assert norm.num_batches_tracked == 1
    assert torch.allclose(norm.running_mean, 0.1 * joined(own.detach()).mean(0), atol=1e-5)
    return loss


@wrong
def diagonal_masked(own, rank):
    products = own @ joined(own).T
    index = torch.arange(ROWS)
    products[index, index + mine(rank).start] = -9e9
    return products.logsumexp(1).mean()


# -- advice ----------------------------------------------------------------------------------------

advice = ""
"""The fix of the finding, once there is one."""


def advice_or(way: Callable[[], Any], **names: Any) -> Any:
    """What `way` gives, or the call that the advice says."""
    if not advice:
        return way()
    (call,) = re.findall(r"use `(?:parts = )?(torch\.distributed\.nn\.functional\..*?)`", advice)
    return eval(call, {"torch": torch, **names})


@advised
def all_gather(own, rank):
    return contrast(own, torch.cat(advice_or(lambda: parts_of(own), own=own)))


@advised
def all_gather_object(own, rank):
    def way():
        objects = [None, None]
        dist.all_gather_object(objects, own)
        return objects

    return contrast(own, torch.cat(advice_or(way, own=own)))


@advised
def accelerate_gather(own, rank):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    found = advice_or(lambda: accelerator.gather(own), own=own)
    return contrast(own, torch.cat(found) if isinstance(found, tuple) else found)


@advised
def gather(own, rank):
    def way():
        parts = [torch.empty_like(own) for _ in range(2)] if rank == 0 else None
        dist.gather(own, parts)
        return parts

    parts = advice_or(way, own=own, dst=0)
    if rank == 0:
        return 2 * contrast(own, torch.cat(parts))
    return (0 * torch.cat(parts)).sum() if advice else own.sum() * 0


@advised
def all_to_all(own, rank):
    inputs = list(own[:2].split(1))
    outputs = [torch.empty(1, 2) for _ in range(2)]

    def way():
        dist.all_to_all(outputs, inputs)
        return outputs

    rows = torch.cat(list(advice_or(way, inputs=inputs, outputs=outputs)))
    loss = (rows * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).square().sum() / (rank + 1)
    return loss + 0 * own.sum()


def of_one_process(name: str, encoder: Any) -> None:
    """The gradient of the mean of the losses of both ranks."""
    own = [encoder(inputs(rank)) for rank in range(2)]
    if name == "all_to_all":
        weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        swapped = [torch.stack([part[rank] for part in own]) for rank in range(2)]
        losses = [(swapped[r] * weights).square().sum() / (r + 1) for r in range(2)]
    else:
        of = own[:1] if name == "gather" else own
        losses = [contrast(one, torch.cat(own)) * (2 / len(of)) for one in of]
    (sum(losses) / 2).backward()


# -- what is run -----------------------------------------------------------------------------------


def inputs(rank: int) -> Any:
    return torch.arange(6.0).reshape(ROWS, 2).sin() + rank


def run(form: Form, rank: int, *, guarded: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    encoder = torch.nn.Linear(2, 2)
    with guard("record") if guarded else nullcontext() as report:
        form(encoder(inputs(rank)), rank).backward()
    gradient = encoder.weight.grad
    mean = gradient.clone()
    dist.all_reduce(mean)
    return {
        "gradient": gradient.tolist(),
        "mean": (mean / 2).flatten().tolist(),
        "next": torch.rand(()).item(),
        "found": [one.code for one in report.findings] if report else [],
        "fix": [one.fix for one in report.findings] if report else [],
    }


def main(folder: str) -> None:
    global advice
    rank = 0 if os.fork() == 0 else 1
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")  # for Accelerate
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", ACCELERATE_USE_CPU="true")
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    outcome: dict[str, Any] = {}
    for name, form in {**SAME, **RIGHT, **WRONG, **ADVISED}.items():
        if name == "accelerate_gather":
            try:
                import accelerate  # noqa: F401
            except ImportError:
                continue
        outcome[name] = [run(form, rank, guarded=one) for one in (False, True)]
        if name in ADVISED:
            fixes = [None, None]
            dist.all_gather_object(fixes, outcome[name][1]["fix"])
            advice = next(one[0] for one in fixes if one)
            outcome[name].append(run(form, rank, guarded=True))
            advice = ""
            torch.manual_seed(0)
            encoder = torch.nn.Linear(2, 2)
            of_one_process(name, encoder)
            outcome[name].append({"mean": encoder.weight.grad.flatten().tolist()})
    with open(os.path.join(folder, f"rank{rank}.json"), "w") as file:
        json.dump(outcome, file)
    if rank == 0:
        os._exit(0)
    os.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
