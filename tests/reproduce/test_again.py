"""A record of `results/` is what the present code trains."""

import json

import pytest

from benchmarks import again, collect
from benchmarks.runner import RESULTS
from regrow.data import DataError
from regrow.runs.recipe import Recipe
from regrow.system import environment

RECORDS = RESULTS.parent / "cifar10-resnet20-cpu.jsonl"

SHORT = Recipe(epochs=3, width=4, batch=16, limit=128, every="auto", ramp_by="step", threads=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_training_the_first_epochs_of_a_record_again_gives_the_same_numbers():
    machine = environment(1)
    cpu, torch = machine["cpu"], machine["versions"]["torch"]
    if (record := again.chosen(collect.read(RECORDS).values(), torch=torch).get(cpu)) is None:
        pytest.skip(f"no record is of {cpu} with torch {torch}; others round in another way")
    try:
        assert again.same_numbers(record)
    except DataError as error:
        pytest.skip(f"the record is of CIFAR-10, which is not here: {error}")


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    from regrow.train.run import run

    folder = tmp_path_factory.mktemp("runs") / "run"
    run(SHORT, folder)
    return json.loads(json.dumps(collect.record(folder)))


def test_one_other_digit_in_a_record_is_found(record):
    without_curves = {name: value for name, value in record.items() if name != "epochs"}
    assert again.same_numbers(record)
    assert again.same_numbers(without_curves)
    changed = json.loads(json.dumps(record))
    changed["epochs"][1]["loss"] *= 1 + 1e-5
    assert not again.same_numbers(changed)
    assert not again.same_numbers(without_curves | {"loss": record["loss"] * (1 + 1e-15)})


def test_a_record_of_each_other_cpu_is_trained_once(record, tmp_path, capsys):
    here = record["environment"]["cpu"]

    def row(seed, **facts):
        return record | {"recipe": record["recipe"] | {"seed": seed}} | facts

    rows = [
        row(1),
        record | {"environment": {"cpu": "elsewhere"}},
        row(2, environment={"cpu": "moved"}, machines=[{"epoch": 0, "cpu": "moved"}]),
        row(3, environment={"cpu": "old"}, versions={"torch": "1.0"}),
    ]
    records, found = tmp_path / "records.jsonl", tmp_path / "found.jsonl"
    records.write_text("".join(json.dumps(row) + "\n" for row in rows))

    for _ in range(2):
        again.compare(records, found)

    [line] = [json.loads(line) for line in found.read_text().splitlines()]
    assert (line["cpus"], line["same"], line["model"]) == (["elsewhere", here], True, "small")
    assert capsys.readouterr().out.count("training ") == 1
