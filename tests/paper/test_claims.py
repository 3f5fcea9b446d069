"""The page of claims says what the results say, and a verdict needs seeds that agree."""

import json

import pytest

from benchmarks import claims as page
from benchmarks import tuning
from regrow.paper.cells import Library
from regrow.paper.items.claims import claims
from regrow.paper.rates import known_rates
from regrow.paper.scales import find_scale
from regrow.paper.verdict import Difference


def test_the_page_is_up_to_date_with_the_results():
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run: python -m benchmarks.claims"


def test_the_page_names_the_data_and_shows_no_folder_of_a_machine():
    text = page.page()

    assert "CIFAR-10," not in text
    assert "CIFAR-10 (JPEG q75)" in text
    assert "/work" not in text


@pytest.mark.parametrize(
    ("by_seed", "verdict"),
    [
        ((), "not run"),
        ((3.0,), "one seed"),
        ((0.1, 0.2), "ahead"),
        ((-0.1, -0.2, -0.3), "behind"),
        ((0.5, -0.1, 0.9), "level"),
        ((0.5, 0.0), "level"),
    ],
)
def test_a_method_is_ahead_only_where_every_one_of_several_seeds_says_so(by_seed, verdict):
    assert Difference(by_seed).verdict == verdict


def test_without_results_no_claim_is_called_reproduced():
    assert {claim.verdict for claim in claims(find_scale("cpu"), Library())} == {"not run"}


@pytest.mark.skipif(not tuning.CHOICES.exists(), reason="nothing was tuned")
def test_learning_rates_are_what_the_tuning_runs_choose():
    chosen = tuning.choices()

    assert json.loads(tuning.CHOICES.read_text()) == json.loads(json.dumps(tuning.choice_rows(chosen)))
    assert tuning.rate_lines(chosen) == tuning.RATES.read_text()
    for scale, choice in chosen:
        assert known_rates(scale)[choice.network, choice.method].lr == choice.rate.lr
        assert choice.tried[choice.rate.lr] == max(top1 for top1 in choice.tried.values() if top1 is not None)
