"""A run of a sweep that asks for far too much memory fails with its reason; the others are finished."""

import resource

import pytest

from regrow.runs.folder import read_result
from regrow.sweep import SweepError, run_all
from tests.train.processes import RECIPE, context

QUICK = RECIPE.changed(epochs=1, finetune_epochs=0, batch=256)
# Its third layer alone would have 23 terabytes of weights: refused before anything is allocated.
HUGE = QUICK.changed(width=400_000)


def sweep_with_little_memory(folder):
    """Sweep where no process may have more than 8 GB: what is asked for beyond is refused, not taken from others."""
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    with pytest.raises(SweepError, match="1 of 3 runs failed, the others are finished") as failed:
        run_all([QUICK, HUGE, QUICK.changed(seed=1)], folder, workers=1)
    (reason,) = failed.value.failed.values()
    assert "width of small must be at most" in reason


def test_a_run_that_asks_for_too_much_memory_does_not_end_the_sweep(tmp_path):
    process = context().Process(target=sweep_with_little_memory, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert sum(read_result(folder) is not None for folder in tmp_path.iterdir()) == 2
