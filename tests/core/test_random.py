"""Counter-based random numbers: what they depend on, and what they do not."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from regrow.core.bits import uniform
from tests.methods.reference import draw


@given(seed=st.integers(-(2**70), 2**70), step=st.integers(0, 2**40), count=st.integers(0, 50))
def test_numbers_are_those_of_splitmix_keyed_by_seed_layer_and_step(seed, step, count):
    assert uniform(torch.empty(count), seed=seed, layer="conv place", step=step).tolist() == draw(
        seed, "conv", step, count
    )


def test_an_element_gets_the_same_number_in_any_memory_format_and_size_of_the_tensor():
    image = torch.empty(4, 6, 3, 3)
    row_major = uniform(image, seed=0, layer="a", step=1)
    assert torch.equal(uniform(image.to(memory_format=torch.channels_last), seed=0, layer="a", step=1), row_major)
    assert torch.equal(uniform(image[:2], seed=0, layer="a", step=1), row_major[:2])


def test_the_global_generator_is_neither_used_nor_changed():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = uniform(torch.empty(5), seed=0, layer="a", step=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(uniform(torch.empty(5), seed=0, layer="a", step=1), first)


def test_numbers_of_different_layers_steps_and_seeds_are_uncorrelated():
    rows = [
        uniform(torch.empty(20_000), seed=seed, layer=layer, step=step)
        for seed in (0, 1)
        for layer in ("a", "b")
        for step in (1, 2)
    ]
    rows = torch.stack(rows)
    assert rows.min() > 0
    assert rows.max() < 1
    assert (rows.mean(1) - 0.5).abs().max() < 0.01
    assert (torch.histc(rows, 10, 0, 1) / rows.numel() - 0.1).abs().max() < 0.005
    correlation = torch.corrcoef(rows) - torch.eye(len(rows))
    assert correlation.abs().max() < 0.03
    assert torch.corrcoef(torch.stack([rows[0, 1:], rows[0, :-1]]))[0, 1].abs() < 0.03
