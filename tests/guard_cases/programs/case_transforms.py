"""Transforms of `torch.func` and forward mode in the caller, around workers that lack them."""

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pickle import PicklingError

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from joblib import Parallel, delayed
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp

EXPECT = {
    "test_vjp_threads": {"GG301"},
    "test_jvp_threads": {"GG301"},
    "test_jacobians_threads": {"GG301"},
    "test_part_of_the_gradient": {"GG301"},
    "test_nested_modes": {"GG301"},
    "test_vmap_threads": {"GG301"},
    "test_grad_loky": {"GG301"},
    "test_tangent_multiprocessing": {"GG301"},
    "test_part_of_the_tangent": {"GG301"},
}

DETAILS = {
    "test_grad_threads": {"GG301": {"object": "args[0]", "direction": "argument"}},
    "test_captured": {"GG301": {"object": "closure['x']", "direction": "capture"}},
    "test_keyword": {"GG301": {"object": "kwargs['x']['weight']"}},
    "test_tangent_loky": {"GG301": {"object": "args[0]", "backend": "loky"}},
    "test_grad_loky": {"GG301": {"object": "args[0]", "backend": "loky"}},
}

X = torch.tensor([0.5, 1.0, 2.0])
ONES = torch.ones(3)
THREADS = {"n_jobs": 2, "backend": "threading"}


def part(x, factor):
    return (x * factor).sin().sum()


def parts(x, **options):
    return Parallel(**{**THREADS, **options})(delayed(part)(x, k) for k in (1.0, 2.0))  # -> GG301?


def loss(x, **options):
    return sum(parts(x, **options))


RIGHT = X.cos() + 2 * (2 * X).cos()


def test_grad_threads():
    def loss(x):
        return sum(Parallel(**THREADS)(delayed(part)(x, k) for k in (1.0, 2.0)))  # -> GG301:error

    assert not grad(loss)(X).any()


def test_vjp_threads():
    value, pull = vjp(loss, X)
    assert not pull(torch.ones_like(value))[0].any()


def test_jvp_threads():
    assert jvp(loss, (X,), (ONES,))[1] == 0


def test_jacobians_threads():
    def both(x):
        return torch.stack(parts(x))

    assert not jacrev(both)(X).any()
    assert not jacfwd(both)(X).any()
    assert not hessian(loss)(X).any()


def test_part_of_the_gradient():
    assert torch.equal(grad(lambda x: loss(x) + (x * x).sum())(X), 2 * X)


def test_captured():
    def loss(x):
        def task(k):
            return part(x, k)

        return sum(Parallel(**THREADS)(delayed(task)(k) for k in (1.0, 2.0)))  # -> GG301:error

    assert not grad(loss)(X).any()


def by_name(k, x):
    return part(x["weight"], k)


def test_keyword():
    def loss(x):
        return sum(Parallel(**THREADS)(delayed(by_name)(k, x=x) for k in (1.0, 2.0)))  # -> GG301

    assert not grad(loss)({"weight": X})["weight"].any()


def fill(out, index, x):
    out[index] = part(x, 1.0)


def test_filled_in_place():
    def loss(x):
        out = torch.zeros(2)
        Parallel(**THREADS)(delayed(fill)(out, k, x) for k in (0, 1))  # -> GG301:error
        return out.sum()

    assert not grad(loss)(X).any()


def inner_gradient(x, factor):
    return grad(lambda z: (z * x * factor).sum())(ONES).sum()


def test_task_with_a_transform_of_its_own():
    def loss(x):
        tasks = (delayed(inner_gradient)(x, k) for k in (1.0, 2.0))
        return sum(Parallel(**THREADS)(tasks))  # -> GG301:error

    assert not grad(loss)(X).any()


def test_executor():
    def loss(x):
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(part, [x, x], [1.0, 2.0]))  # -> GG301:error

    assert not grad(loss)(X).any()


def test_generator_that_computes():
    def loss(x):
        late = (delayed(part)(x * k if k > 6 else ONES, 1.0) for k in range(12))
        return sum(Parallel(**THREADS)(late))  # -> GG301:error

    assert not grad(loss)(X).any()


def test_nested_modes():
    def loss(x):
        with torch.device("cpu"):
            made = parts(x)
        with torch.device("cpu"):
            return sum(made)

    with torch.device("cpu"):
        assert not grad(loss)(X).any()
    assert not torch.overrides._get_current_function_mode_stack()


def test_vmap_threads():
    with pytest.raises(RuntimeError, match="functorch"):
        torch.vmap(loss)(torch.ones(2, 3))


def step(x, factor):
    return part(x - grad(part)(x, factor), factor)


def test_inner_loop():
    def loss(x):
        return sum(Parallel(**THREADS)(delayed(step)(x, k) for k in (1.0, 2.0)))  # -> GG301:error

    with pytest.raises(RuntimeError, match="functorch"):
        grad(loss)(X)


def test_grad_loky():
    with pytest.raises(PicklingError):
        grad(lambda x: loss(x, backend="loky"))(X)


def test_grad_process_executor():
    def loss(x):
        with ProcessPoolExecutor(2) as pool:
            return sum(pool.map(part, [x, x], [1.0, 2.0]))  # -> GG301:error

    with pytest.raises(NotImplementedError):
        grad(loss)(X)


def tangents(results):
    return [forward_ad.unpack_dual(result).tangent for result in results]


def test_tangent_loky():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X, ONES)
        out = Parallel(2)(delayed(part)(x, k) for k in (1.0, 2.0))  # -> GG301:error
        assert tangents(out) == [None, None]


def test_tangent_multiprocessing():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X, ONES)
        assert tangents(parts(x, backend="multiprocessing")) == [None, None]


def test_part_of_the_tangent():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X, ONES)
        out = sum(parts(x, backend="loky")) + (x * x).sum()
        assert torch.equal(tangents([out])[0], (2 * X).sum())


def test_tangent_process_executor():
    with forward_ad.dual_level(), ProcessPoolExecutor(2) as pool:
        x = forward_ad.make_dual(X, ONES)
        out = list(pool.map(part, [x, x], [1.0, 2.0]))  # -> GG301:error
        assert tangents(out) == [None, None]


def test_results_in_two_calls():
    def loss(x):
        first = Parallel(**THREADS)(delayed(part)(x, k) for k in (1.0, 2.0))  # -> GG301:error
        return sum(Parallel(**THREADS)(delayed(part)(y, 1.0) for y in first))

    assert not grad(loss)(X).any()


def test_one_job():
    assert torch.allclose(grad(lambda x: loss(x, n_jobs=1))(X), RIGHT)
    assert torch.allclose(jvp(lambda x: loss(x, n_jobs=1), (X,), (ONES,))[1], RIGHT.sum())


def test_sequential():
    assert torch.allclose(grad(lambda x: loss(x, backend="sequential"))(X), RIGHT)


def test_logged():
    def loss(x):
        print(parts(x))
        return (x * x).sum()

    assert torch.equal(grad(loss)(X), 2 * X)
    assert jvp(loss, (X,), (ONES,))[1] == (2 * X).sum()


def test_auxiliary():
    gradient, extra = grad(lambda x: ((x * x).sum(), parts(x)), has_aux=True)(X)
    assert torch.equal(gradient, 2 * X)
    assert len(extra) == 2


def number(x, factor):
    return part(x, factor).item()


def test_numbers():
    def loss(x):
        weights = Parallel(**THREADS)(delayed(number)(x, k) for k in (1.0, 2.0))
        return (x * weights[0]).sum() + (x * weights[1]).sum()

    assert torch.allclose(grad(loss)(X), torch.full((3,), float(sum(parts(X)))))


def detached(x, factor):
    return part(x, factor).detach()


def test_detached():
    def weighted(x, n_jobs):
        tasks = (delayed(detached)(x, k) for k in (1.0, 2.0))
        return (x * sum(Parallel(n_jobs, backend="threading")(tasks))).sum()

    assert torch.equal(grad(weighted)(X, 2), grad(weighted)(X, 1))


@torch.no_grad()
def without_grad(x, factor):
    return part(x, factor)


def test_no_grad_in_the_task():
    def weighted(x, n_jobs):
        tasks = (delayed(without_grad)(x, k) for k in (1.0, 2.0))
        return (x * sum(Parallel(n_jobs, backend="threading")(tasks))).sum()

    assert torch.equal(grad(weighted)(X, 2), grad(weighted)(X, 1))


def test_independent():
    assert torch.allclose(grad(lambda x: (x * loss(ONES)).sum())(X), loss(ONES).expand(3))


def test_argument_that_is_not_differentiated():
    def product(x, y):
        return (x * loss(y)).sum()

    expected = loss(X).expand(3)
    assert torch.allclose(grad(product)(ONES, X), expected)
    assert torch.allclose(jacfwd(product)(ONES, X), expected)


def gradient(x, factor):
    return grad(part)(x, factor)


def test_transform_inside_the_task():
    found = Parallel(**THREADS)(delayed(gradient)(X, k) for k in (1.0, 2.0))
    assert torch.allclose(sum(found), RIGHT)
    found = Parallel(2)(delayed(gradient)(X, k) for k in (1.0, 2.0))
    assert torch.allclose(sum(found), RIGHT)


def test_pullback_that_is_not_used():
    assert torch.equal(vjp(loss, X)[0], loss(X))


def test_constant_of_an_earlier_derivative():
    kept = []

    def first(x):
        kept.extend(parts(x))
        return (x * x).sum()

    def second(x):
        return sum(parts(ONES)) + (x * kept[0]).sum()

    grad(first)(X)
    assert torch.equal(grad(second)(X), kept[0].expand(3))


def largest(x, factor):
    return torch.where(x == x.max(), factor, 0.0), x.argmax()


def test_choice_by_value():
    def loss(x):
        masks = Parallel(**THREADS)(delayed(largest)(x, k) for k in (1.0, 2.0))
        return sum((x * mask).sum() + x[index] for mask, index in masks)

    assert torch.equal(grad(loss)(X), torch.tensor([0.0, 0.0, 5.0]))


def length(path):
    with open(path, encoding="utf-8") as file:
        return len(file.read())


def test_files():
    def loss(x):
        return (x * sum(Parallel(**THREADS)(delayed(length)(__file__) for _ in range(2)))).sum()

    assert grad(loss)(X).all()


def test_vmap_of_other_tensors():
    def scaled(x):
        return x * loss(ONES)

    assert torch.equal(torch.vmap(scaled)(torch.ones(2, 3)), loss(ONES).expand(2, 3))


def test_tangent_threads():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X, ONES)
        assert torch.allclose(sum(tangents(parts(x))), RIGHT.sum())


def test_tangent_one_job():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X, ONES)
        assert torch.allclose(sum(tangents(parts(x, n_jobs=1))), RIGHT.sum())


def test_number_of_a_dual():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X, ONES)
        scale = sum(Parallel(2)(delayed(number)(x, k) for k in (1.0, 2.0)))
        assert torch.allclose(tangents([(x * scale).sum()])[0], torch.tensor(3 * scale))


def test_detached_in_the_task():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X, ONES)
        found = {}
        for jobs in (1, 2):
            out = Parallel(jobs)(delayed(detached)(x, k) for k in (1.0, 2.0))
            found[jobs] = tangents([(x * sum(out)).sum()])[0]
        assert torch.equal(found[1], found[2])


def directional(x, tangent, factor):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(part(forward_ad.make_dual(x, tangent), factor)).tangent


def test_level_inside_the_task():
    out = Parallel(2)(delayed(directional)(X, ONES, k) for k in (1.0, 2.0))
    assert torch.allclose(sum(out), RIGHT.sum())


def test_level_and_other_tensors():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X, ONES)
        out = (x * loss(ONES, backend="loky")).sum()
        assert torch.allclose(tangents([out])[0], 3 * loss(ONES))
