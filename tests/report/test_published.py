"""The published numbers: as many as the paper has, and the same."""

import math

import pytest

from regrow import models
from regrow.report import published
from tests.report import latex_tables as latex

COUNTS = {
    "cifar10-unstructured": 80,
    "cifar10-finetuned": 30,
    "imagenet": 10,
    "cifar10-unstructured-complete": 116,
    "macs": 12,
    "cifar10-structured": 46,
}
NETWORKS = {
    "VGG16-D": "vgg16-d",
    "ResNet-20": "resnet20",
    "ResNet-32": "resnet32",
    "ResNet-56": "resnet56",
    "WideResNet-28-2": "wrn28-2",
    "WideResNet-28-4": "wrn28-4",
    "WideResNet-28-8": "wrn28-8",
}
COLUMNS = {
    "cifar10-unstructured": [("SNIP", False), ("SparseMomentum", False), ("DSR", False), ("DPF", False)],
    "cifar10-unstructured-complete": [("SNIP", False), ("SparseMomentum", False), ("DSR", False), ("DPF", False)],
    "cifar10-finetuned": [
        ("OneShot", True),
        ("Incremental", False),
        ("Incremental", True),
        ("DPF", False),
        ("DPF", True),
    ],
    "cifar10-structured": [("SFP", False), ("DPF", False)],
}
_CIFAR10 = "tab:sota_dnns_cifar10_unstructured_pruning_baseline_performance"
LABELS = {
    "cifar10-unstructured": _CIFAR10,
    "cifar10-finetuned": f"{_CIFAR10}_extra_training",
    "imagenet": "tab:resnet50_imagenet_unstructured_pruning_baseline_performance",
    "cifar10-unstructured-complete": f"{_CIFAR10}_complete",
    "macs": "tab:resnet20_cifar10_hyper_param_impact_macs",
    "cifar10-structured": "tab:sota_dnns_cifar10_structured_pruning_performance",
}
METHODS = {"DPF", "DSR", "Incremental", "OneShot", "SFP", "SNIP", "SparseMomentum"}
needs_latex = pytest.mark.skipif(not latex.SOURCE.is_file(), reason="the paper's LaTeX is not beside the repository")


def test_every_table_of_the_paper_is_there_in_full():
    assert {name: len(published.table(name)) for name in published.TABLES} == COUNTS


def test_spot_checked_numbers_are_in_the_right_rows():
    found = {(row.network, row.method, row.sparsity): row for row in published.table("cifar10-unstructured")}
    assert (found["resnet20", "DPF", 0.95].mean, found["resnet20", "DPF", 0.95].std) == (88.01, 0.30)
    assert (found["wrn28-8", "SNIP", 0.999].mean, found["wrn28-8", "SNIP", 0.999].std) == (74.50, 2.23)
    assert (found["resnet56", "DSR", 0.9].mean, found["resnet56", "DSR", 0.9].dense_mean) == (93.78, 94.51)
    assert found["wrn28-4", "SparseMomentum", 0.975].mean == 93.80
    assert found["resnet20", "DSR", 0.95].outcome == "diverged"
    assert found["vgg16-d", "DSR", 0.95].outcome == "unreported"
    assert found["vgg16-d", "DSR", 0.95].mean is None

    gale = [row for row in published.table("imagenet") if row.source == "Gale et al. 2019"]
    assert [(row.method, row.mean, row.dense_mean, row.reached, row.parameters) for row in gale] == [
        ("Incremental", 75.58, 76.69, 0.799, 5_150_000)
    ]
    assert [row.mean for row in published.table("imagenet") if row.method == "DPF"] == [75.48, 75.13, 74.55]
    assert [row.macs for row in published.table("macs") if row.sparsity == 0.95] == [4_020_000, 2_630_000]


def test_a_setting_is_found_wherever_the_paper_reports_it():
    assert published.reported("resnet20", "incremental", 0.95, unit="weight").mean == 89.21
    assert published.reported("resnet20", "dpf", 0.95, finetuned=True, unit="weight").mean == 90.34
    assert published.reported("wrn28-2", "dpf", 0.6, unit="weight").mean == 94.90
    assert published.reported("wrn28-2", "sfp", 0.8, unit="filter").mean == 86.00
    assert published.reported("wrn28-2", "sfp", 0.8, unit="weight") is None
    assert published.reported("resnet20", "dpf", 0.123, unit="weight") is None
    assert published.reported("wrn28-2", "dpf", 0.4, unit="weight") is None


def test_results_of_others_in_the_papers_tables_are_left_out_on_request():
    [row] = [row for row in published.table("imagenet") if (row.method, row.sparsity) == ("DSR", 0.9)]
    assert row.source != "paper"
    assert published.reported("resnet50", "dsr", 0.9, unit="weight").mean == row.mean
    assert published.reported("resnet50", "dsr", 0.9, unit="weight", own=True) is None


def test_the_control_sums_of_the_tables_are_those_of_the_paper():
    sums = {
        name: math.fsum(row.mean or 0 for row in published.table(name)) for name in published.TABLES if name != "macs"
    }
    assert {name: round(total, 2) for name, total in sums.items()} == {
        "cifar10-unstructured": 6890.69,
        "cifar10-finetuned": 2741.67,
        "imagenet": 740.49,
        "cifar10-unstructured-complete": 10124.5,
        "cifar10-structured": 4292.87,
    }

    assert sum(row.macs for row in published.table("macs")) == 145_570_000


def test_the_main_table_is_part_of_the_complete_one():
    assert set(published.table("cifar10-unstructured")) < set(published.table("cifar10-unstructured-complete"))


@pytest.mark.parametrize("name", COUNTS)
def test_every_row_has_a_network_and_a_method_by_the_names_of_regrow(name):
    rows = published.table(name)
    assert {row.method for row in rows} <= METHODS
    for network in {row.network for row in rows}:
        assert network in models.names()
    for row in rows:
        assert 0 < row.sparsity < 1
        assert (row.mean is None) == (row.outcome != "converged" or name == "macs")


def test_an_unknown_table_is_an_error_with_a_suggestion():
    with pytest.raises(ValueError, match="Did you mean 'cifar10-structured'"):
        published.table("cifar-structured")


@needs_latex
@pytest.mark.parametrize("name", COLUMNS)
def test_every_accuracy_on_cifar10_is_the_one_in_the_latex(name):
    expected = [
        (
            *(NETWORKS[line[0]], method, fine_tuned, latex.fraction(line[-1])),
            *(*latex.accuracy(cell), *latex.accuracy(line[1]), r"\star" in cell),
        )
        for line in latex.lines(LABELS[name])
        for (method, fine_tuned), cell in zip(COLUMNS[name], line[2:-1], strict=True)
    ]
    assert [
        (
            *(row.network, row.method, row.fine_tuned, row.sparsity),
            *(row.mean, row.std, row.dense_mean, row.dense_std, row.outcome == "diverged"),
        )
        for row in published.table(name)
    ] == expected
    assert {row.unit for row in published.table(name)} == {"filter" if name == "cifar10-structured" else "weight"}


@needs_latex
def test_every_number_on_imagenet_is_the_one_in_the_latex():
    rows = published.table("imagenet")
    lines = list(latex.lines(LABELS["imagenet"]))
    for row, line in zip(rows, lines, strict=True):
        dense, pruned, _, dense_top5, top5, _, target, reached, parameters = line[1:]
        assert (row.dense_mean, row.mean) == (float(dense), float(pruned))
        assert (row.dense_top5, row.top5) == ((None, None) if top5 == "-" else (float(dense_top5), float(top5)))
        assert (row.sparsity, row.reached) == (latex.fraction(target), latex.fraction(reached))
        assert row.parameters == latex.millions(parameters)
        abbreviation = {"DPF": r"\algopt", "SparseMomentum": "SM"}.get(row.method, row.method)
        assert line[0].startswith(abbreviation)


@needs_latex
def test_every_number_of_macs_is_the_one_in_the_latex():
    sparsities, *schemes = latex.lines(LABELS["macs"])
    expected = [
        (scope, latex.fraction(sparsity), latex.millions(macs))
        for scope, line in zip(("global", "layer"), schemes, strict=True)
        for sparsity, macs in zip(sparsities[1:], line[1:], strict=True)
    ]
    assert [(row.scope, row.sparsity, row.macs) for row in published.table("macs")] == expected
