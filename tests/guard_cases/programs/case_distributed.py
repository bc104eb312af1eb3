"""torch.distributed in a world of one: what collectives cut, and what DDP does not average."""

import contextlib
import datetime
import types

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import all_gather as imported_by_name
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

EXPECT = {
    "test_in_a_helper": {"GG501"},
    "test_through_ddp": {"GG501"},
}
MAY = {}
DETAILS = {
    "test_all_gather": {
        "GG501": {"object": "features", "function": "all_gather", "shape": [3, 2]},
    },
    "test_gather": {"GG501": {"function": "gather"}},
    "test_objects": {"GG501": {"function": "all_gather_object"}},
    "test_module_of_ddp": {
        "GG502": {"object": "weight", "parameters": ["weight", "bias"], "world_size": 1},
    },
}


@pytest.fixture(autouse=True)
def world():
    if dist.is_initialized():
        pytest.skip("another group is there")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model():
    encoder, head = nn.Linear(2, 2), nn.Linear(2, 1)
    return encoder, head, encoder(torch.ones(3, 2))


def slots(tensor):
    return [torch.empty_like(tensor) for _ in range(dist.get_world_size())]


# -- collectives ---------------------------------------------------------------------------------


def test_all_gather():
    encoder, head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features)  # -> GG501
    head(torch.cat(gathered)).sum().backward()
    assert encoder.weight.grad is None


def test_imported_by_name():
    encoder, head, features = model()
    gathered = slots(features)
    imported_by_name(gathered, features)  # -> GG501
    head(torch.cat(gathered)).sum().backward()
    assert encoder.weight.grad is None


def test_asynchronous():
    encoder, head, features = model()
    gathered = slots(features)
    work = dist.all_gather(gathered, features, async_op=True)  # -> GG501
    work.wait()
    head(torch.stack(gathered)).mean().backward()
    assert encoder.weight.grad is None


def test_gather():
    encoder, head, features = model()
    gathered = slots(features)
    dist.gather(features, gathered, dst=0)  # -> GG501
    torch.autograd.backward(head(torch.cat(gathered)).sum())
    assert encoder.weight.grad is None


def test_objects():
    encoder, head, features = model()
    gathered = [None]
    dist.all_gather_object(gathered, {"features": features, "name": "train"})  # -> GG501
    head(gathered[0]["features"]).sum().backward()
    assert encoder.weight.grad is None


def test_objects_over_a_group_that_torch_does_not_list():
    """As `torch.distributed.rpc` has one."""
    encoder, head, features = model()
    store = dist.PrefixStore("own", dist.HashStore())
    group = dist.ProcessGroupGloo(store, 0, 1, datetime.timedelta(seconds=30))
    gathered = [None]
    dist.all_gather_object(gathered, [features], group)  # -> GG501
    head(gathered[0][0]).sum().backward()
    assert encoder.weight.grad is None


def test_coalesced():
    encoder, head, features = model()
    gathered = torch.empty(3 * dist.get_world_size(), 2)
    with dist._coalescing_manager():  # -> GG501
        dist.all_gather_into_tensor(gathered, features)
    head(gathered).sum().backward()
    assert encoder.weight.grad is None


def test_stacked_and_normalized():
    _encoder, head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features)  # -> GG501
    everything = nn.functional.normalize(torch.stack(gathered).flatten(0, 1), dim=-1)
    scores = (features @ everything.T).logsumexp(-1)
    (head(features).sum() - scores.mean()).backward()


def test_slices_of_one_buffer():
    encoder, head, features = model()
    buffer = torch.empty(dist.get_world_size(), 3, 2)
    dist.all_gather(list(buffer.unbind(0)), features)  # -> GG501
    head(buffer.view(-1, 2)).sum().backward()
    assert encoder.weight.grad is None


def collect(tensor):
    parts = slots(tensor)
    dist.all_gather(parts, tensor)  # -> GG501
    return torch.cat(parts)


def test_in_a_helper():
    encoder, head, features = model()
    head(collect(features)).sum().backward()
    assert encoder.weight.grad is None


def test_all_to_all():
    encoder, head, features = model()
    exchanged = slots(features)
    dist.all_to_all(exchanged, [features])  # -> GG501
    head(exchanged[0]).sum().backward()
    assert encoder.weight.grad is None


def test_iterated():
    encoder, head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features)  # -> GG501
    sum(head(row).sum() for row in torch.cat(gathered)).backward()
    assert encoder.weight.grad is None


def test_no_graph_at_all():
    _encoder, _head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features)  # -> GG501
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.cat(gathered).sum().backward()


def test_second_of_two_losses():
    _encoder, head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features)  # -> GG501
    first, second = head(features).sum(), head(torch.cat(gathered)).sum()
    first.backward()
    second.backward()


def test_every_step():
    encoder, head, _ = model()
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    for _ in range(3):
        features = encoder(torch.ones(3, 2))
        gathered = slots(features)
        dist.all_gather(gathered, features)  # -> GG501
        optimizer.zero_grad()
        head(torch.cat(gathered)).sum().backward()
        optimizer.step()


def test_asked_for_by_name():
    encoder, head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features)  # -> GG501
    loss = head(torch.cat(gathered)).sum() + head(features).sum()
    torch.autograd.grad(loss, [encoder.weight])


def test_checkpointed():
    encoder, head, _ = model()
    features = checkpoint(encoder, torch.ones(3, 2), use_reentrant=False)
    gathered = slots(features)
    dist.all_gather(gathered, features)  # -> GG501
    checkpoint(head, torch.cat(gathered), use_reentrant=False).sum().backward()
    assert encoder.weight.grad is None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone() * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_through_a_function_of_the_program():
    encoder, head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features)  # -> GG501
    Doubled.apply(head(torch.cat(gathered))).sum().backward()
    assert encoder.weight.grad is None


class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, inputs):
        features = self.encoder(inputs)
        gathered = slots(features)
        dist.all_gather(gathered, features)  # -> GG501
        return self.head(torch.cat(gathered)).sum()


def test_through_ddp():
    ddp = DistributedDataParallel(Contrastive(), find_unused_parameters=True)
    ddp(torch.ones(3, 2)).backward()
    assert ddp.module.encoder.weight.grad is None


def test_own_slot():
    encoder, head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features)
    gathered[dist.get_rank()] = features
    head(torch.cat(gathered)).sum().backward()
    assert encoder.weight.grad is not None


def test_own_slot_in_a_new_list():
    encoder, head, features = model()
    gathered, rank = slots(features), dist.get_rank()
    dist.all_gather(gathered, features)
    everything = torch.cat([features, *gathered[:rank], *gathered[rank + 1 :]])
    head(everything).sum().backward()
    assert encoder.weight.grad is not None


def test_own_part_of_one_buffer():
    encoder, head, features = model()
    buffer, rank = torch.empty(3 * dist.get_world_size(), 2), dist.get_rank()
    dist.all_gather(list(buffer.chunk(dist.get_world_size())), features)
    buffer[3 * rank : 3 * rank + 3] = features
    head(buffer).sum().backward()
    assert encoder.weight.grad is not None


def test_own_part_of_what_was_stacked():
    encoder, head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features)
    everything = torch.stack(gathered)
    everything[dist.get_rank()].copy_(features)
    head(everything).sum().backward()
    assert encoder.weight.grad is not None


def test_own_part_by_mask():
    encoder, head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features)
    own = torch.ones(3, 1, dtype=torch.bool)
    head(torch.where(own, features, torch.cat(gathered))).sum().backward()
    assert encoder.weight.grad is not None


def test_differentiable():
    encoder, head, features = model()
    head(torch.cat(differentiable.all_gather(features))).sum().backward()
    assert encoder.weight.grad is not None


def test_functional():
    encoder, head, features = model()
    gathered = functional.all_gather_tensor_autograd(features, 0, dist.group.WORLD)
    head(gathered).sum().backward()
    assert encoder.weight.grad is not None


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        parts = slots(tensor)
        dist.all_gather(parts, tensor)
        return tuple(parts)

    @staticmethod
    def backward(ctx, *gradients):
        total = torch.stack(gradients)
        dist.all_reduce(total)
        return total[dist.get_rank()]


def test_function_of_the_program():
    encoder, head, features = model()
    head(torch.cat(Gather.apply(features))).sum().backward()
    assert encoder.weight.grad is not None


def test_metric():
    _encoder, head, features = model()
    outputs = head(features)
    gathered = slots(outputs)
    dist.all_gather(gathered, outputs)
    accuracy = (torch.cat(gathered) > 0).float().mean()
    outputs.sum().backward()
    assert accuracy.item() >= 0


def test_metric_beside_the_loss():
    encoder, head, features = model()
    loss = head(features).mean()
    losses = slots(loss)
    dist.all_gather(losses, loss)
    mean = torch.stack(losses).mean()
    loss.backward()
    assert mean.item() == pytest.approx(loss.item())
    following = head(encoder(torch.ones(3, 2))).sum() * (mean > 0)
    following.backward()


def test_weight_without_gradients():
    _encoder, head, features = model()
    losses = slots(features)
    dist.all_gather(losses, features)
    with torch.no_grad():
        weight = torch.cat(losses).mean()
    (head(features).mean() * weight).backward()


def test_detached_before():
    _encoder, head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features.detach())
    (head(features).sum() + head(torch.cat(gathered)).sum()).backward()


def test_detached_after():
    _encoder, head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features)
    constants = torch.cat([part.detach() for part in gathered])
    (head(features).sum() + head(constants).sum()).backward()


def test_without_gradients():
    _encoder, head, features = model()
    gathered = slots(features)
    with torch.no_grad():
        dist.all_gather(gathered, features)
    (head(features).sum() + head(torch.cat(gathered)).sum()).backward()


def test_broadcast_from_this_rank():
    encoder, head, features = model()
    dist.broadcast(features, 0)
    head(features).sum().backward()
    assert encoder.weight.grad is not None


def test_parameters_are_broadcast():
    encoder, head, _ = model()
    for parameter in encoder.parameters():
        dist.broadcast(parameter, 0)
    head(encoder(torch.ones(3, 2))).sum().backward()


def test_memory_bank():
    encoder, head, _ = model()
    bank = torch.zeros(3, 2)
    for _ in range(3):
        features = encoder(torch.ones(3, 2))
        (head(features).sum() + (features @ bank.T).sum()).backward()
        gathered = slots(features)
        dist.all_gather(gathered, features)
        bank[:] = torch.cat(gathered)


def test_buffer_used_again():
    _encoder, head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features)
    dist.all_gather(gathered, features.detach())
    (head(features).sum() + head(torch.cat(gathered)).sum()).backward()


def test_gradient_of_something_else():
    _encoder, head, features = model()
    gathered = slots(features)
    dist.all_gather(gathered, features)
    torch.autograd.grad(head(torch.cat(gathered)).sum(), [head.weight])


def test_all_reduced_loss():
    encoder, head, features = model()
    loss = head(features).sum()
    dist.all_reduce(loss)
    loss.backward()
    assert encoder.weight.grad is not None


# -- DistributedDataParallel ---------------------------------------------------------------------

BATCH = torch.ones(4, 2)


def wrapped(module=None, lr=0.1, **options):
    ddp = DistributedDataParallel(module or nn.Linear(2, 1), **options)
    trainable = [one for one in ddp.parameters() if one.requires_grad]
    return ddp, torch.optim.SGD(trainable, lr=lr)


def test_module_of_ddp():
    ddp, optimizer = wrapped()
    ddp.module(BATCH).sum().backward()
    optimizer.step()  # -> GG502


def test_wrapped_model():
    inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    nn.init.ones_(inner[0].weight)
    _ddp, optimizer = wrapped(inner)
    for _ in range(2):
        optimizer.zero_grad()
        inner(BATCH).sum().backward()
        optimizer.step()  # -> GG502


def test_gradients_by_grad():
    ddp, optimizer = wrapped()
    parameters = list(ddp.parameters())
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(ddp(BATCH).sum(), parameters), strict=True
    ):
        parameter.grad = gradient / 2
    optimizer.step()  # -> GG502


def test_accumulated_past_ddp():
    ddp, optimizer = wrapped()
    for _ in range(2):
        ddp.module(BATCH).sum().backward()
    optimizer.step()  # -> GG502


def test_loss_is_reduced():
    ddp, optimizer = wrapped()
    loss = ddp.module(BATCH).mean()
    loss.backward()
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    optimizer.step()  # -> GG502


def test_two_backward_passes():
    ddp, optimizer = wrapped()
    output = ddp(BATCH)
    output.sum().backward(retain_graph=True)
    output.pow(2).mean().backward()
    optimizer.step()  # -> GG502


def test_two_backward_passes_after_two_forward_passes():
    ddp, optimizer = wrapped()
    first, second = ddp(BATCH), ddp(2 * BATCH)
    first.sum().backward()
    second.sum().backward()
    optimizer.step()  # -> GG502


def test_closure():
    ddp, _ = wrapped()
    optimizer = torch.optim.LBFGS(ddp.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = (ddp.module(BATCH) ** 2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # -> GG502


def test_some_of_the_parameters():
    ddp, _ = wrapped(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    optimizer = torch.optim.Adam(ddp.module[1].parameters())
    ddp.module(BATCH).sum().backward()
    optimizer.step()  # -> GG502


def test_after_many_right_steps():
    ddp, optimizer = wrapped()
    for step in range(20):
        optimizer.zero_grad()
        (ddp if step < 10 else ddp.module)(BATCH).sum().backward()
        optimizer.step()  # -> GG502


def test_seldom_past_ddp():
    ddp, optimizer = wrapped()
    for step in range(20):
        optimizer.zero_grad()
        (ddp if step % 10 < 9 else ddp.module)(BATCH).sum().backward()
        optimizer.step()  # -> GG502


def test_past_a_module_given_by_keyword():
    ddp = DistributedDataParallel(module=nn.Linear(2, 1))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    ddp.module(BATCH).sum().backward()
    optimizer.step()  # -> GG502


def test_past_ddp_after_no_sync():
    ddp, optimizer = wrapped()
    with ddp.no_sync():
        ddp(BATCH).sum().backward()
    ddp.module(BATCH).sum().backward()
    optimizer.step()  # -> GG502


def test_ddp():
    ddp, optimizer = wrapped()
    for _ in range(3):
        optimizer.zero_grad()
        ddp(BATCH).sum().backward()
        optimizer.step()


def test_ddp_without_synchronization():
    ddp, optimizer = wrapped()
    with ddp.no_sync():
        ddp(BATCH).sum().backward()
    optimizer.step()


def test_two_passes_each():
    ddp, optimizer = wrapped()
    for _ in range(2):
        ddp(BATCH).sum().backward()
        ddp(2 * BATCH).sum().backward()
        optimizer.step()


def test_penalty_after_the_backward():
    ddp, optimizer = wrapped()
    ddp(BATCH).sum().backward()
    sum(one.pow(2).sum() for one in ddp.parameters()).backward()
    optimizer.step()


def test_second_backward_is_not_used():
    ddp, optimizer = wrapped()
    output = ddp(BATCH)
    output.sum().backward(retain_graph=True)
    output.pow(2).mean().backward()
    optimizer.zero_grad()
    ddp(BATCH).sum().backward()
    optimizer.step()


def test_second_backward_for_the_batch_alone():
    ddp, optimizer = wrapped()
    batch = BATCH.clone().requires_grad_()
    output = ddp(batch)
    output.sum().backward(retain_graph=True)
    output.pow(2).mean().backward(inputs=[batch])
    optimizer.step()


def test_accumulation():
    ddp, optimizer = wrapped()
    for step in range(4):
        with ddp.no_sync() if step % 2 == 0 else contextlib.nullcontext():
            ddp(BATCH).sum().backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()


def test_reduced_by_hand():
    ddp, optimizer = wrapped(nn.Linear(2, 1))
    ddp.module(BATCH).sum().backward()
    for parameter in ddp.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()


def test_flattened_and_reduced():
    ddp, optimizer = wrapped()
    parameters = list(ddp.parameters())
    gradients = torch.autograd.grad(ddp(BATCH).sum(), parameters)
    flat = torch.cat([one.reshape(-1) for one in gradients])
    dist.all_reduce(flat)
    start = 0
    for parameter in parameters:
        parameter.grad = flat[start : start + parameter.numel()].view_as(parameter).clone()
        start += parameter.numel()
    optimizer.step()


def test_reduced_by_functional_collective():
    ddp, optimizer = wrapped()
    ddp.module(BATCH).sum().backward()
    for parameter in ddp.parameters():
        parameter.grad = functional.all_reduce(parameter.grad, "sum", dist.group.WORLD).clone()
    optimizer.step()


def test_evaluated_and_saved():
    ddp, optimizer = wrapped()
    ddp(BATCH).sum().backward()
    with torch.no_grad():
        ddp.module(BATCH)
    assert ddp.module.state_dict()
    optimizer.step()


def test_frozen_parts():
    inner = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    inner["frozen"] = nn.Linear(2, 2).requires_grad_(False)
    inner.forward = types.MethodType(lambda self, x: self["used"](self["frozen"](x)), inner)
    ddp, optimizer = wrapped(inner, find_unused_parameters=True)
    for _ in range(2):
        ddp(BATCH).sum().backward()
        optimizer.step()


def test_static_graph():
    ddp, optimizer = wrapped(static_graph=True)
    for _ in range(3):
        ddp(BATCH).sum().backward()
        optimizer.step()


def test_bucket_views():
    ddp, optimizer = wrapped(gradient_as_bucket_view=True)
    for _ in range(3):
        optimizer.zero_grad()
        ddp(BATCH).sum().backward()
        optimizer.step()


def test_scaled():
    ddp, optimizer = wrapped()
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        scaler.scale(ddp(BATCH).sum()).backward()
        scaler.step(optimizer)
        scaler.update()


def test_sharded_optimizer():
    ddp, _ = wrapped()
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.1)
    for _ in range(2):
        ddp(BATCH).sum().backward()
        optimizer.step()


def test_joined():
    ddp, optimizer = wrapped()
    with ddp.join():
        for _ in range(2):
            ddp(BATCH).sum().backward()
            optimizer.step()


def two_models():
    return (*wrapped(nn.Linear(2, 2)), *wrapped(nn.Linear(2, 1)))


def test_gan():
    generator, of_generator, discriminator, of_discriminator = two_models()
    for _ in range(2):
        fake = generator(BATCH)
        of_discriminator.zero_grad()
        (discriminator(fake.detach()).sum() - discriminator(BATCH).sum()).backward()
        of_discriminator.step()
        of_generator.zero_grad()
        (-discriminator(fake).sum()).backward()
        of_generator.step()


def test_gan_past_the_discriminators_ddp():
    generator, of_generator, discriminator, of_discriminator = two_models()
    for _ in range(2):
        of_generator.zero_grad()
        (-discriminator.module(generator(BATCH)).sum()).backward()
        of_generator.step()
        of_discriminator.zero_grad()
        discriminator(BATCH).sum().backward()
        of_discriminator.step()


def test_penalty():
    ddp, optimizer = wrapped(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)))
    inputs = BATCH.clone().requires_grad_()
    outputs = ddp(inputs)
    (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    (outputs.sum() + slope.pow(2).sum()).backward()
    optimizer.step()


def test_penalty_on_the_parameters():
    ddp, optimizer = wrapped()
    (0.1 * sum(parameter.pow(2).sum() for parameter in ddp.parameters())).backward()
    optimizer.step()


def test_penalty_beside_a_backward_past_ddp():
    ddp, optimizer = wrapped()
    ddp.module(BATCH).sum().backward()
    (0.1 * sum(parameter.pow(2).sum() for parameter in ddp.parameters())).backward()
    optimizer.step()  # -> GG502:error


def test_optimizer_of_others():
    ddp, _ = wrapped()
    scale = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([scale], lr=0.1)
    (ddp.module(BATCH) * scale).sum().backward()
    optimizer.step()


def test_two_steps():
    ddp, optimizer = wrapped()
    ddp(BATCH).sum().backward()
    optimizer.step()
    optimizer.step()


def test_zero_gradients():
    ddp, optimizer = wrapped(lr=0.0)
    for parameter in ddp.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def test_wrapped_twice():
    inner = nn.Linear(2, 2)
    part, _ = wrapped(inner)
    whole, optimizer = wrapped(nn.Sequential(inner, nn.Linear(2, 1)))
    for _ in range(2):
        whole(BATCH).sum().backward()
        optimizer.step()
    assert part is not None


def test_fully_sharded():
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    for one in (module[0], module[2], module):
        fsdp.fully_shard(one, mesh=mesh)
    optimizer = torch.optim.Adam(module.parameters())
    for step in range(4):
        module.set_requires_gradient_sync(bool(step % 2))
        loss = module(BATCH).sum()
        loss.backward()
        if step % 2:
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        gathered = [torch.zeros(())]
        dist.all_gather(gathered, loss.detach())
