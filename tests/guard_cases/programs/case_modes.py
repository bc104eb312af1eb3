"""Torch modes of the caller, in workers that do not have them."""

import asyncio
import queue
import threading

import numpy as np
import torch
from joblib import Parallel, delayed
from torch import nn
from torch.nn import functional as F

EXPECT = {
    "test_plain_thread": {"GG301"},
    "test_thread_that_raises": {"GG301"},
}

MODEL = nn.Linear(3, 1)
ROWS = torch.ones(4, 3)
THREADS = {"n_jobs": 2, "backend": "threading"}


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def predict(model, rows):
    return model(rows)


def total(model, rows):
    return model(rows).sum().item()


def square(rows):
    return Square.apply(rows)


def test_no_grad_threads():
    with torch.no_grad():
        results = Parallel(**THREADS)(delayed(predict)(MODEL, ROWS) for _ in range(4))  # -> GG301
    assert results[0].requires_grad


def test_no_grad_loky():
    with torch.no_grad():
        Parallel(2)(delayed(predict)(MODEL, ROWS) for _ in range(2))  # -> GG301 GG102


def test_no_grad_detached_loky():
    with torch.no_grad():
        Parallel(2)(delayed(total)(MODEL, ROWS) for _ in range(2))  # -> GG301


@torch.no_grad()
def test_decorated_caller():
    Parallel(**THREADS)(delayed(total)(MODEL, ROWS) for _ in range(2))  # -> GG301


def test_set_grad_enabled():
    with torch.set_grad_enabled(False):
        Parallel(**THREADS)(delayed(total)(MODEL, ROWS) for _ in range(2))  # -> GG301


def test_inference_mode():
    with torch.inference_mode():
        Parallel(**THREADS)(delayed(total)(MODEL, ROWS) for _ in range(2))  # -> GG301


def linear(rows):
    return F.linear(rows, torch.ones(2, 3)).dtype


def test_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(ROWS) is torch.bfloat16
        kinds = Parallel(**THREADS)(delayed(linear)(ROWS) for _ in range(2))  # -> GG301
    assert kinds == [torch.float32] * 2


def test_autocast_loky():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        Parallel(2)(delayed(linear)(ROWS) for _ in range(2))  # -> GG301


def make(size):
    return torch.zeros(size).device.type


def test_device():
    with torch.device("meta"):
        assert make(2) == "meta"
        assert Parallel(**THREADS)(delayed(make)(2) for _ in range(2)) == ["cpu"] * 2  # -> GG301


def item(tensor):
    return tensor.requires_grad


def test_generator_that_computes():
    tasks = (delayed(item)(MODEL(ROWS)) for _ in range(12))
    with torch.no_grad():
        Parallel(**THREADS)(tasks)  # -> GG301


def train(rows):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(rows).sum().backward()
        optimizer.step()
    return 1.0


def test_training():
    with torch.no_grad():
        Parallel(**THREADS)(delayed(train)(ROWS) for _ in range(2))  # -> GG301


def careful(model, rows):
    with torch.no_grad():
        return model(rows)


def test_task_sets_no_grad():
    with torch.no_grad():
        Parallel(**THREADS)(delayed(careful)(MODEL, ROWS) for _ in range(2))
        Parallel(2)(delayed(careful)(MODEL, ROWS) for _ in range(2))


def inferring(model, rows):
    with torch.inference_mode():
        return model(rows).sum().item()


def test_task_sets_inference_mode():
    with torch.no_grad():
        Parallel(**THREADS)(delayed(inferring)(MODEL, ROWS) for _ in range(2))


@torch.no_grad()
def decorated(model, rows):
    return model(rows)


def test_decorated_task():
    with torch.no_grad():
        Parallel(**THREADS)(delayed(decorated)(MODEL, ROWS) for _ in range(2))


def enabling(rows):
    with torch.enable_grad():
        weight = torch.ones(3, requires_grad=True)
        return torch.autograd.grad((rows * weight).sum(), weight)[0].sum().item()


def test_task_enables_grad():
    with torch.no_grad():
        Parallel(**THREADS)(delayed(enabling)(ROWS) for _ in range(2))
        Parallel(2)(delayed(enabling)(ROWS) for _ in range(2))


def setting(rows):
    with torch.set_grad_enabled(True):
        weight = torch.ones(3, requires_grad=True)
        return torch.autograd.grad((rows * weight).sum(), weight)[0].sum().item()


def test_task_sets_grad_enabled():
    with torch.no_grad():
        Parallel(**THREADS)(delayed(setting)(ROWS) for _ in range(2))


def leaving(rows):
    with torch.inference_mode(False):
        weight = torch.ones(3, requires_grad=True)
        return (rows.clone() * weight).sum().item()


def test_task_leaves_inference_mode():
    with torch.inference_mode():
        Parallel(**THREADS)(delayed(leaving)(ROWS) for _ in range(2))


def own_autocast(rows):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return linear(rows)


def test_task_sets_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kinds = Parallel(**THREADS)(delayed(own_autocast)(ROWS) for _ in range(2))
    assert kinds == [torch.bfloat16] * 2


def no_autocast(rows):
    with torch.autocast("cpu", enabled=False):
        return linear(rows)


def test_task_disables_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        Parallel(**THREADS)(delayed(no_autocast)(ROWS) for _ in range(2))


def make_on_cpu(size):
    return torch.zeros(size, device="cpu").device.type


def test_task_names_device():
    with torch.device("meta"):
        Parallel(**THREADS)(delayed(make_on_cpu)(2) for _ in range(2))


def test_nothing_requires_grad():
    with torch.no_grad():
        Parallel(**THREADS)(delayed(torch.square)(ROWS) for _ in range(2))


def test_function_without_grad():
    with torch.no_grad():
        Parallel(**THREADS)(delayed(square)(ROWS) for _ in range(2))


def careful_square(rows):
    with torch.no_grad():
        return Square.apply(rows.clone().requires_grad_()).sum().item()


def test_function_under_no_grad():
    with torch.no_grad():
        Parallel(**THREADS)(delayed(careful_square)(ROWS) for _ in range(2))


def test_numpy():
    with torch.no_grad():
        Parallel(**THREADS)(delayed(np.sum)(np.ones(3)) for _ in range(2))
        Parallel(2)(delayed(np.sum)(np.ones(3)) for _ in range(2))


def test_forked():
    with torch.no_grad():
        results = Parallel(2, backend="multiprocessing")(
            delayed(predict)(MODEL, ROWS) for _ in range(2)
        )
    assert not results[0].requires_grad


def test_one_job():
    with torch.no_grad():
        Parallel(1)(delayed(predict)(MODEL, ROWS) for _ in range(2))


def test_sequential():
    with torch.no_grad():
        Parallel(2, backend="sequential")(delayed(predict)(MODEL, ROWS) for _ in range(2))


def test_list_made_before():
    with torch.no_grad():
        tasks = [delayed(item)(MODEL(ROWS)) for _ in range(12)]
        assert not any(Parallel(**THREADS)(tasks))


def test_generator_without_grad():
    with torch.no_grad():
        Parallel(**THREADS)(delayed(item)(ROWS * k) for k in range(12))


def test_no_mode():
    Parallel(**THREADS)(delayed(predict)(MODEL, ROWS) for _ in range(2))


def per_sample(rows):
    gradient = torch.func.grad(lambda row: (row * row).sum())
    return torch.vmap(gradient)(rows).sum().item()


def test_per_sample_gradients():
    with torch.no_grad():
        Parallel(**THREADS)(delayed(per_sample)(ROWS) for _ in range(2))


def lowered(rows):
    return (rows.bfloat16() @ torch.ones(3, 2).bfloat16()).dtype


def test_lower_precision_already():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        Parallel(**THREADS)(delayed(lowered)(ROWS) for _ in range(2))


def test_mode_left_before():
    with torch.no_grad():
        rows = ROWS * 2
    done = threading.Event()
    Parallel(**THREADS)(delayed(predict)(MODEL, rows) for _ in range(2))
    assert not done.is_set()


def own_gradient(row):
    row = row.clone().requires_grad_()
    return torch.autograd.grad((row * row).sum(), row)[0]


class InParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        return torch.stack(Parallel(**THREADS)(delayed(own_gradient)(row) for row in rows.detach()))

    @staticmethod
    def backward(ctx, gradient):
        return torch.stack(Parallel(**THREADS)(delayed(own_gradient)(row) for row in gradient))


def test_within_a_function_of_autograd():
    rows = ROWS.clone().requires_grad_()
    InParallel.apply(rows).sum().backward()
    assert torch.equal(rows.grad, 2 * ROWS)


def test_within_a_hook():
    rows, seen = ROWS.clone().requires_grad_(), []
    rows.register_hook(
        lambda gradient: seen.extend(
            Parallel(**THREADS)(delayed(own_gradient)(row) for row in gradient)
        )
    )
    (rows * 2).sum().backward()
    assert len(seen) == 4


def value_and_gradient(x, factor):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = (x * factor).sin().sum()
        return value, torch.autograd.grad(value, x, retain_graph=True)[0]


def both_in_parallel(x):
    found = Parallel(2)(delayed(value_and_gradient)(x, factor) for factor in (1.0, 2.0))
    return sum(value for value, _ in found), sum(gradient for _, gradient in found)


class FanOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return both_in_parallel(x)[0]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * both_in_parallel(*ctx.saved_tensors)[1]


class FanOutApart(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return both_in_parallel(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, gradient, _):
        return gradient * ctx.saved_tensors[0]


RIGHT = torch.ones(3).cos() + 2 * (2 * torch.ones(3)).cos()


def test_function_that_ships_its_input():
    leaf = torch.ones(3, requires_grad=True)
    FanOut.apply(leaf).backward()
    assert torch.allclose(leaf.grad, RIGHT)
    leaf.grad = None
    FanOut.apply(leaf * 1).backward()
    assert torch.allclose(leaf.grad, RIGHT)


def test_function_with_a_context_of_its_own():
    leaf = torch.ones(3, requires_grad=True)
    FanOutApart.apply(leaf)[0].backward()
    assert torch.allclose(leaf.grad, RIGHT)


def test_hook_that_ships_a_leaf():
    leaf, seen = torch.ones(3, requires_grad=True), []
    leaf.register_hook(lambda gradient: seen.append(both_in_parallel(leaf)[1]))
    (leaf * 2).sum().backward()
    assert torch.allclose(seen[0], RIGHT)


class Predicting(threading.Thread):
    def run(self):
        self.result = MODEL(ROWS)


def in_a_thread(function):
    """What `function` returned, or raised, in a thread that is started here."""
    out = queue.SimpleQueue()

    def work():
        try:
            out.put(function())
        except ValueError as error:
            out.put(error)

    thread = threading.Thread(target=work)
    thread.start()  # -> GG301:warning
    thread.join()
    assert "run" not in vars(thread)
    return out.get()


def test_plain_thread():
    with torch.no_grad():
        assert in_a_thread(lambda: MODEL(ROWS)).requires_grad


def test_thread_with_a_run_of_its_own():
    with torch.inference_mode():
        thread = Predicting()
        thread.start()  # -> GG301:warning
        thread.join()
    assert thread.result.requires_grad


def test_timer_without_autocast():
    kinds = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        timer = threading.Timer(0, lambda: kinds.append(MODEL(ROWS).dtype))
        timer.start()  # -> GG301:warning
        timer.join()
    assert kinds == [torch.float32]


def test_thread_of_an_event_loop():
    async def main():
        return await asyncio.to_thread(MODEL, ROWS)  # -> GG301:warning

    with torch.no_grad():
        assert asyncio.run(main()).requires_grad


def test_thread_that_raises():
    def fail():
        raise ValueError(MODEL(ROWS).sum().item())

    with torch.no_grad():
        error = in_a_thread(fail)
    assert error.__traceback__.tb_next.tb_frame.f_code.co_name == "fail"


def test_thread_sets_no_grad():
    with torch.no_grad():
        assert not in_a_thread(torch.no_grad()(lambda: MODEL(ROWS))).requires_grad


def test_thread_that_trains():
    @torch.enable_grad()
    def step():
        MODEL(ROWS).sum().backward()

    with torch.no_grad():
        in_a_thread(step)


def test_thread_without_torch():
    with torch.no_grad():
        assert in_a_thread(lambda: sum(range(9))) == 36


def test_thread_that_is_older():
    """It has no part in the modes of whoever gives it work later."""
    asked, answers = queue.SimpleQueue(), queue.SimpleQueue()

    def work():
        for rows in iter(asked.get, None):
            answers.put(MODEL(rows))

    thread = threading.Thread(target=work)
    thread.start()
    with torch.no_grad():
        asked.put(ROWS)
        assert answers.get().requires_grad
        asked.put(None)
        thread.join()


def test_threads_of_a_library():
    """The feeder of a queue pickles what was made under the caller's mode."""
    with torch.no_grad():
        sent = torch.multiprocessing.Queue()
        sent.put(MODEL(ROWS).tolist())
        assert len(sent.get()) == 4
        sent.close()
        sent.join_thread()
