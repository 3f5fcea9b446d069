"""The bounds of the theorems hold on problems whose constants are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reproduce.theory import Logistic, Quadratic, descend, dpf, sgd, strongly_convex
from reproduce.theory import bounds as theory
from reproduce.theory.descent import one_shot, values
from reproduce.theory.study import convex_rate, non_convex, tuned

SPARSITIES = st.sampled_from((0.0, 0.3, 0.6, 0.9))


@pytest.fixture(scope="module")
def logistic() -> Logistic:
    return Logistic.digits(ridge=0.05)


def start(dimension: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 99), condition=st.floats(1, 4), sparsity=SPARSITIES, every=st.sampled_from((1, 5)))
def test_the_strongly_convex_bound_holds_on_every_quadratic(seed, condition, sparsity, every):
    # Without noise nothing is averaged: the theorem holds for the run itself, whatever the masks were.
    problem = Quadratic.random(10, mu=0.5, smoothness=0.5 * condition, seed=seed)
    run = descend(problem, start(10, seed), dpf(sparsity, every=every), rate=convex_rate(problem.mu), steps=25)
    assert theory.strongly_convex(problem, [run]).holds
    assert theory.dense_iterate(problem, [run]).holds


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 99), rate=st.floats(0.02, 0.3), sparsity=SPARSITIES)
def test_the_non_convex_bound_holds_for_every_learning_rate(seed, rate, sparsity):
    problem = Quadratic.random(8, mu=0.2, smoothness=2.0, seed=seed)
    run = descend(problem, start(8, seed), dpf(sparsity), rate=lambda t: rate, steps=20)
    assert theory.non_convex(problem, [run], rate=rate).holds


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), sparsity=SPARSITIES, size=st.floats(0.1, 10))
def test_pruning_any_point_costs_no_more_than_the_appendix_says(seed, sparsity, size):
    problem = Quadratic.random(12, mu=0.1, smoothness=3.0, seed=seed)
    x = size * start(12, seed + 1)
    assert theory.rounding(problem, x[None], one_shot(x, sparsity)[None]).holds


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9])
def test_the_bounds_hold_for_logistic_regression_on_real_digits(logistic, sparsity):
    rate = convex_rate(logistic.mu)
    runs = [descend(logistic, start(64), dpf(sparsity), rate=rate, steps=40, seed=seed) for seed in range(2)]
    plain = [descend(logistic, start(64), sgd(), rate=rate, steps=40, seed=seed) for seed in range(2)]
    shown = torch.tensor([1, 5, 20, 40])
    pruned = [torch.stack([one_shot(run.dense[t], sparsity) for t in shown]) for run in plain]
    assert theory.strongly_convex(logistic, runs).holds
    assert theory.dense_iterate(logistic, runs).holds
    assert theory.one_shot(logistic, plain, shown, pruned).holds


def test_a_wrong_constant_breaks_the_bound():
    """The check can fail: with curvature that isn't there, learning rates are too small to get anywhere."""
    problem = Quadratic.random(10, mu=0.01, smoothness=0.02, seed=1)
    wrong = Curved(problem.matrix, problem.optimum)
    run = descend(wrong, start(10), dpf(0.0), rate=convex_rate(wrong.mu), steps=40)
    assert not theory.strongly_convex(wrong, [run]).holds


class Curved(Quadratic):
    """Claims to be a thousand times as convex as it is."""

    @property
    def mu(self) -> float:
        return 1000 * super().mu


def test_errors_left_out_break_the_bound():
    """The check can fail: the neighborhood is needed, since at high sparsity the pruned model does not get closer."""
    problem = Quadratic.random(10, mu=1.0, smoothness=1.5, seed=0)
    run = descend(problem, start(10), dpf(0.9), rate=convex_rate(problem.mu), steps=400)
    found = theory.strongly_convex(problem, [run])
    assert found.holds
    assert not replace(found, neighborhood=torch.zeros_like(found.neighborhood)).holds


def test_without_pruning_the_gap_falls_at_least_as_fast_as_the_bound():
    problem = Quadratic.random(10, mu=1.0, smoothness=2.0, noise=0.3, seed=0)
    run = descend(problem, start(10), dpf(0.0), rate=convex_rate(problem.mu), steps=300)
    found = theory.strongly_convex(problem, [run])
    assert theory.slope(found.steps[30:], found.vanishing[30:]) == pytest.approx(-1, abs=0.05)
    assert theory.slope(found.steps[30:], found.measured[30:]) < -0.9
    assert found.neighborhood.max() == 0


def test_the_non_convex_bound_falls_with_the_root_of_the_steps():
    problem = Logistic.digits(bumps=0.01)
    records = non_convex(problem, sparsities=(0.0, 0.8), steps=(5, 20, 80), seeds=1)
    assert all(record.measured <= record.bound for record in records)
    steps = torch.tensor([5.0, 20.0, 80.0])
    dense = torch.tensor([record.vanishing for record in records if record.sparsity == 0])
    assert theory.slope(steps, dense) == pytest.approx(-0.5, abs=0.1)


def test_more_pruning_makes_a_larger_neighborhood(logistic):
    rate = convex_rate(logistic.mu)
    ends = []
    for sparsity in (0.3, 0.6, 0.9):
        run = descend(logistic, start(64), dpf(sparsity), rate=rate, steps=50)
        ends.append(strongly_convex(logistic, [run]))
    assert ends[0].neighborhood[-1] < ends[1].neighborhood[-1] < ends[2].neighborhood[-1]
    assert ends[0].measured[-1] < ends[2].measured[-1]


def test_the_constants_of_the_problems_are_right(logistic):
    x, y = start(64, 1), start(64, 2)
    for problem in (logistic, Logistic.digits(bumps=0.2)):
        gradient = torch.func.grad(problem.value)
        assert (gradient(x) - gradient(y)).norm() <= problem.smoothness * (x - y).norm()
        assert problem.value(x) >= problem.least
    assert torch.func.grad(logistic.value)(logistic.optimum()).norm() < 1e-12
    hessian = torch.func.hessian(logistic.value)(logistic.optimum())
    assert torch.linalg.eigvalsh(hessian)[0] >= logistic.mu - 1e-12
    quadratic = Quadratic.random(6, mu=0.5, smoothness=2.0)
    assert (quadratic.mu, quadratic.smoothness) == pytest.approx((0.5, 2.0))


def test_the_stochastic_gradient_is_right_on_average(logistic):
    generator = torch.Generator().manual_seed(0)
    x = start(64)
    gradient = torch.func.grad(lambda point: sum(logistic.sample(point, generator) for _ in range(1000)) / 1000)
    assert (gradient(x) - torch.func.grad(logistic.value)(x)).norm() < 0.03


def test_the_iterates_follow_the_papers_recursion():
    """x_{t+1} = x_t − γ_t ∇f(x̂_t), with the largest of x_t kept in x̂_t."""
    problem = Quadratic.random(6, mu=0.5, smoothness=1.0)
    run = descend(problem, start(6), dpf(0.5), rate=lambda t: 0.1, steps=10)
    for t in range(10):
        expected = run.dense[t] - 0.1 * torch.func.grad(problem.value)(run.pruned[t])
        assert torch.allclose(run.dense[t + 1], expected)
        assert run.dense[t].abs().topk(3).indices.sort().values.tolist() == run.pruned[t].nonzero().flatten().tolist()


def test_the_tuned_rate_is_the_theorems():
    problem = Logistic.digits(bumps=0.01)
    rate, runs = tuned(problem, start(64), 0.5, 20, seeds=2)
    gap = float(values(problem, start(64)[None]))
    assert len(runs) == 2
    assert 0 < rate < (gap / (problem.smoothness * 20)) ** 0.5 / float(runs[0].gradients.min()) ** 0.5


def test_a_theorem_about_convex_problems_refuses_others():
    problem = Logistic.digits(bumps=0.01)
    with pytest.raises(ValueError, match="needs a strongly convex objective"):
        theory.strongly_convex(problem, [])
