"""Real runs for the report: trained once, small, with all that a report shows."""

import pytest

from regrow.runs.recipe import Recipe
from regrow.train.run import run

QUICK = Recipe(data="digits", model="small", width=4, epochs=2, batch=256, every=2, ramp_by="step", threads=1)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Dense, DPF at two sparsities with two seeds (one with fine-tuning), one-shot; the last one unfinished."""
    folder = tmp_path_factory.mktemp("runs")
    run(QUICK.changed(method="dense"), folder / "dense")
    for seed in (0, 1):
        run(QUICK.changed(sparsity=0.5, seed=seed, finetune_epochs=1), folder / f"dpf50-s{seed}")
        run(QUICK.changed(sparsity=0.9, seed=seed), folder / f"dpf90-s{seed}")
    run(QUICK.changed(sparsity=0.9, method="oneshot", every="paper"), folder / "oneshot90")
    run(QUICK.changed(sparsity=0.9, seed=2), folder / "unfinished")
    (folder / "unfinished" / "result.json").unlink()
    return folder
