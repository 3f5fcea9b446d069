"""A record of `results/` is what the present code trains.

Records have six digits of every number. After 700 steps, any bit that differs would show in them.
"""

import json
from pathlib import Path

import pytest

from benchmarks.collect import short_epoch
from regrow.data import DataError
from regrow.runs.recipe import Recipe
from regrow.system import environment
from regrow.train.loop import make_trainer

RESULTS = Path(__file__).parents[2] / "results"
RECORDS = RESULTS / "tuning" / "cifar10-resnet8.jsonl", RESULTS / "cifar10-resnet20-cpu.jsonl"
"""The cheapest network first."""
CLOCK = ("seconds", "images_per_second")


class EnoughError(Exception):
    """Two epochs are trained."""


def made_on(cpu, torch):
    """Return a record of this CPU model and torch version that needs no other run; one of DPF if there is one."""
    rows = [json.loads(line) for path in RECORDS for line in path.read_text().splitlines()]
    here = [
        row
        for row in rows
        if (row["environment"]["cpu"], row["versions"]["torch"]) == (cpu, torch)
        and row.get("epochs")
        and row["recipe"].get("init") is None
        and row["recipe"].get("masks") is None
    ]
    return next((row for row in here if row["recipe"]["method"] == "dpf"), here[0] if here else None)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_training_the_first_epochs_of_a_record_again_gives_the_same_numbers():
    machine = environment(1)
    cpu, torch = machine["cpu"], machine["versions"]["torch"]
    if (record := made_on(cpu, torch)) is None:
        pytest.skip(f"no record is of {cpu} with torch {torch}; others round in another way")
    try:
        trainer = make_trainer(Recipe.of(record["recipe"], "record"))
    except DataError as error:
        pytest.skip(f"the record is of CIFAR-10, which is not here: {error}")
    epochs = []

    def after_epoch(epoch):
        epochs.append({name: value for name, value in short_epoch(epoch).items() if name not in CLOCK})
        if len(epochs) == 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        trainer.run(lambda: None, after_epoch)

    assert epochs == [{name: epoch[name] for name in epochs[0]} for epoch in record["epochs"][:2]]
