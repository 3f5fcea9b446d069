"""Sparsity over time: the paper's ramp, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import regrow
from regrow.core.schedule import as_schedule

ramps = st.builds(
    lambda final, initial, start, length, every: regrow.Cubic(
        final, end=start + length, start=start, initial=initial, every=every
    ),
    st.floats(0, 0.999),
    st.floats(0, 0.999),
    st.integers(0, 1000),
    st.integers(1, 10_000),
    st.integers(1, 500),
)


@given(ramp=ramps, t=st.integers(0, 20_000))
def test_a_ramp_moves_from_initial_to_final_and_never_leaves_them(ramp, t):
    assert ramp(ramp.start) == pytest.approx(ramp.initial)
    assert ramp(ramp.end) == ramp.final
    low, high = sorted((ramp.initial, ramp.final))
    assert low - 1e-12 <= ramp(t) <= high + 1e-12
    step = ramp(t + 1) - ramp(t)
    assert step * (ramp.final - ramp.initial) >= -1e-12


@given(ramp=ramps, t=st.integers(0, 20_000))
def test_a_ramp_changes_only_every_so_many_steps(ramp, t):
    if ramp.start <= t < ramp.end:
        since = (t - ramp.start) % ramp.every
        assert ramp(t) == ramp(t - since)


def test_the_paper_s_formula():
    ramp = regrow.Cubic(0.9, end=225, every=1)
    for t in range(225):
        assert ramp(t) == pytest.approx(0.9 - 0.9 * (1 - t / 225) ** 3)


def test_a_number_is_a_constant_schedule():
    assert as_schedule(0.5) == regrow.Constant(0.5)
    assert regrow.Constant(0.5)(0) == regrow.Constant(0.5)(10**9) == 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: regrow.Constant(90), r"must be in \[0, 1\), got 90\. Did you mean 0\.9\?"),
        (lambda: regrow.Constant(1.0), r"must be in \[0, 1\), got 1\."),
        (lambda: regrow.Constant(-0.1), r"got -0\.1"),
        (lambda: regrow.Constant(float("nan")), "got nan"),
        (lambda: regrow.Cubic(0.9, end=0), "start=0, end=0"),
        (lambda: regrow.Cubic(0.9, end=0.5), r"end is an optimizer step, got 0.5: pass int\(0.5 \* steps\)"),
        (lambda: regrow.Cubic(0.9, end=5, start=7), "start=7, end=5"),
        (lambda: regrow.Cubic(0.9, end=5, initial=2), "initial must be in"),
        (
            lambda: regrow.Cubic(0.9, end=5, every=0),
            "every must be a whole number of optimizer steps, at least 1, got 0",
        ),
        (lambda: as_schedule(lambda t: 1.5), "at step 0 must be in"),
    ],
)
def test_a_wrong_schedule_is_an_error_that_names_the_problem(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("end", [float("inf"), "10", 100.5, True])
def test_a_ramp_whose_end_is_not_a_step_is_a_type_error(end):
    with pytest.raises(TypeError, match=f"end must be a whole number of optimizer steps, .* got {end!r}"):
        regrow.Cubic(0.9, end=end)


def test_a_sparsity_that_is_not_a_number_is_a_type_error():
    with pytest.raises(TypeError, match="'90%'"):
        as_schedule("90%")  # type: ignore[arg-type]


def test_steps_may_be_the_product_of_a_fraction_and_a_number():
    ramp = regrow.Cubic(0.9, end=0.75 * 100)
    assert ramp(50) == regrow.Cubic(0.9, end=75)(50)
