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

RECORDS = Path(__file__).parents[2] / "results" / "tuning" / "cifar10-resnet8.jsonl"
CLOCK = ("seconds", "images_per_second")


class EnoughError(Exception):
    """Two epochs are trained."""


def recorded():
    rows = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    return next(row for row in rows if row["recipe"]["method"] == "dpf")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_training_the_first_epochs_of_a_record_again_gives_the_same_numbers():
    record = recorded()
    if (cpu := environment(1)["cpu"]) != record["environment"]["cpu"]:
        pytest.skip(f"the record is of {record['environment']['cpu']}, which rounds in another way than {cpu}")
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
