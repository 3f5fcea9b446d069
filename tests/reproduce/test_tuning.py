"""Tuning: the grid of the paper, and beyond its edges until the best rate lies inside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproduce.tuning import best_candidate, best_rate, next_rates

GRID = (0.05, 0.10, 0.15, 0.20)


@given(st.floats(0.004, 1.5))
def test_the_grid_grows_until_the_best_rate_is_between_two_others(peak):
    tried = {}
    while rates := next_rates(tried, GRID):
        assert all(rate > 0 for rate in rates)
        tried |= {rate: -abs(rate - peak) for rate in rates}

    assert set(GRID) <= set(tried)
    assert min(tried) < best_rate(tried) < max(tried)


def test_a_rate_whose_training_failed_is_the_worst():
    assert best_rate({0.1: 50.0, 0.2: None}) == 0.1
    assert next_rates({0.05: 49.0, 0.1: 50.0, 0.2: None}, (0.05, 0.1, 0.2)) == []


@pytest.mark.parametrize("tried", [{}, {0.1: None, 0.2: None}])
def test_where_nothing_was_trained_nothing_is_chosen(tried):
    assert best_rate(tried) is None


def test_of_equally_good_rates_the_lower_one_is_chosen():
    assert best_rate({0.2: 70.0, 0.1: 70.0}) == 0.1


def test_another_way_to_fine_tune_has_to_be_ahead_by_more_than_chance():
    # 5,000 images at 68 % have a standard error of 0.66.
    assert best_candidate({"sgd 0.02": 68.0, "adam 0.001": 68.6}, "sgd 0.02", 5000) == "sgd 0.02"
    assert best_candidate({"sgd 0.02": 68.0, "adam 0.001": 68.7}, "sgd 0.02", 5000) == "adam 0.001"
    assert best_candidate({"sgd 0.02": 68.0, "adam 0.001": 67.0}, "sgd 0.02", 5000) == "sgd 0.02"
    assert best_candidate({"sgd 0.01": 68.0, "adam 0.001": 68.1}, "sgd 0.02", 5000) == "adam 0.001"
