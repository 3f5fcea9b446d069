"""Figures that everyone can read, and files of them."""

import itertools
import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from regrow.report import plot_run
from regrow.report.figures import curves
from regrow.report.figures.base import DARK, LIGHT, _by_series, dash, label_places, limits, shape, spread
from regrow.report.figures.costs import COSTS, speed_figure, tradeoff_figure
from regrow.report.figures.curves import TRAINING, curve_figure, layers_figure
from regrow.report.render import every_choice, sections, to_svg, write_figures
from regrow.report.tables import make_tasks
from regrow.runs.find import Run, find_runs
from regrow.runs.outcomes import group
from tests.report.conftest import QUICK

pytest.importorskip("altair", reason='figures need pip install "regrow[report]"')
pytest.importorskip("vl_convert", reason='figures need pip install "regrow[report]"')


def task_of(*folders: Path):
    runs = find_runs(folders)
    (task,) = make_tasks(group(runs)[0], runs)
    return task


@pytest.fixture(scope="module")
def task(runs):
    return task_of(runs)


@pytest.fixture(scope="module")
def figures(task):
    return {figure.name: figure for section in sections(task) for figure in section.figures}


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_every_color_has_enough_contrast(theme):
    assert all(contrast(color, theme.surface) >= 3 for color in theme.series)
    for color in (theme.text, theme.muted, theme.accent):
        assert min(contrast(color, theme.surface), contrast(color, theme.background)) >= 4.5


def test_no_two_of_forty_series_look_the_same():
    looks = [(LIGHT.series[i % len(LIGHT.series)], dash(i)) for i in range(40)]
    assert len(set(looks)) == 40
    assert all(shape(i) != shape(i + 1) for i in range(40))


def test_every_figure_has_a_text_alternative(figures):
    assert list(figures) == [
        *("accuracy-sparsity", "accuracy-parameters", "accuracy-macs"),
        *("accuracy", "loss", "sparsity"),
        *("delta", "flips", "iou", "update-iou", "last-change", "layers", "speed"),
    ]
    for figure in figures.values():
        assert figure.spec["description"] == figure.description
        assert "DPF 90 %" in figure.description


def test_the_curves_hold_what_the_runs_recorded(runs, figures):
    rows = figures["accuracy"].spec["datasets"]["rows"]
    (row,) = (row for row in rows if row["label"] == "DPF 90 %")
    seeds = [[r["top1"] for r in run.records] for run in find_runs([runs / "dpf90-s0", runs / "dpf90-s1"])]
    assert row["mean"] == pytest.approx([(a + b) / 2 for a, b in zip(*seeds, strict=True)])
    assert row["epoch"] == [1, 2]


def test_long_layer_names_are_not_truncated(figures):
    axis = figures["layers"].spec["encoding"]["y"]["axis"]
    assert axis["labelLimit"] >= 7 * len("layer2.0.downsample.0")


def test_speeds_of_several_machines_are_labeled_by_machine(runs):
    recorded = [
        replace(run, result={**run.result, "environment": {"cpu": "another"}}) for run in find_runs([runs / "dense"])
    ]
    known = [*recorded, *find_runs([runs / "dpf90-s0"])]
    (task,) = make_tasks(group(known)[0], known)
    figure = speed_figure(task)
    assert [row["name"] for row in figure.spec["datasets"]["rows"]] == ["1: Dense", "2: DPF 90 %"]
    assert "Machine 1: another, 1 thread. Machine 2: " in figure.caption


def test_the_dashed_line_is_explained_only_if_there_is_one(figures, runs):
    alone = tradeoff_figure(COSTS[0], task_of(runs / "dpf50-s0", runs / "dpf90-s0"))
    assert "dashed line" in figures["accuracy-sparsity"].caption
    assert "dashed line" not in alone.caption


def test_fixed_masks_are_not_in_figures_of_mask_dynamics(figures):
    rows = figures["flips"].spec["datasets"]["rows"]
    assert {row["series"] for row in rows} == {"DPF", "OneShot"}


def test_a_layer_with_few_weights_left_is_not_drawn_as_completely_pruned():
    records = [
        {"phase": "train", "epoch": e, "layers": {"a.weight": 0.999_999, "b.weight": float(e > 99)}}
        for e in range(1, 151)
    ]
    run = Run(Path("run"), QUICK, None)
    run.__dict__["records"] = records
    (task,) = make_tasks(group([run])[0], [run])
    figure = layers_figure(task.entries)
    a, b = figure.spec["datasets"]["rows"]
    assert max(a["pruned"]) < 1
    assert len(b["epoch"]) <= 60
    assert b["epoch"][-1] == 150
    assert [e > 99 for e in b["epoch"]] == [fraction == 1 for fraction in b["pruned"]]
    assert "Pruned completely: b." in figure.description


def test_every_figure_becomes_a_file_in_every_format(task, tmp_path):
    figures = list(every_choice(task))
    names = [figure.name for figure in figures]
    assert len(set(names)) == len(names)
    assert {"small-width-4-digits-accuracy-50", "small-width-4-digits-accuracy-90"} < set(names)
    one, other, *_ = (figure for figure in figures if "level" in figure.parameters)
    assert one.spec["datasets"] == other.spec["datasets"]
    assert (one.parameters["level"], other.parameters["level"]) == (0.5, 0.9)
    chosen = [figure for figure in figures if figure.name.endswith(("accuracy-90", "layers-1"))]
    paths = write_figures(chosen, tmp_path / "figures")
    starts = {".svg": b"<svg", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert all(path.read_bytes().startswith(starts[path.suffix]) for path in paths)
    assert len(paths) == 3 * len(chosen) == 6


def test_a_drawn_curve_has_its_line_and_its_legend(task, figures):
    root = ET.fromstring(to_svg(figures["accuracy"]))
    text = {element.text for element in root.iter() if element.tag.endswith("text")}
    assert {"Accuracy", "epoch", "DPF", "OneShot", "Dense"} <= text
    strokes = {element.get("stroke") for element in root.iter() if element.get("stroke-width") == "2"}
    assert strokes.issuperset(LIGHT.series[task.series.index(name)] for name in ("DPF", "OneShot", "Dense"))


def test_a_figure_is_the_same_every_time(runs, figures):
    again = curve_figure(TRAINING[0], task_of(runs).entries, task_of(runs).series, task_of(runs).main_level)
    assert json.dumps(again.spec) == json.dumps(figures["accuracy"].spec)


def test_a_run_gets_its_plots(runs, tmp_path):
    shutil.copytree(runs / "dpf50-s0", tmp_path / "run")
    names = [path.name for path in plot_run(tmp_path / "run")]
    assert names == [
        *("accuracy.svg", "loss.svg", "sparsity.svg", "delta.svg", "flips.svg", "iou.svg"),
        *("update-iou.svg", "last-change.svg", "layers.svg"),
    ]
    assert all((tmp_path / "run" / "plots" / name).stat().st_size > 3000 for name in names)


def test_the_command_leaves_plots_in_the_run_folder(tmp_path):
    command = [sys.executable, "-m", "regrow", "train", "digits", "--epochs", "1", "--width", "4", "--threads", "1"]
    subprocess.run([*command, "--out", str(tmp_path / "run")], check=True, capture_output=True)
    assert (tmp_path / "run" / "plots" / "layers.svg").is_file()


def test_an_unfinished_run_is_plotted_up_to_its_last_epoch(runs, tmp_path):
    shutil.copytree(runs / "unfinished", tmp_path / "run")
    assert "accuracy.svg" in {path.name for path in plot_run(tmp_path / "run")}


def test_without_the_extra_the_error_says_what_to_install(runs):
    code = (
        "import sys; sys.modules['altair'] = None\n"
        "from regrow.report import plot_run\n"
        f"plot_run({str(runs / 'dense')!r})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install "regrow[report]"' in ended.stderr


def test_a_few_outliers_do_not_stretch_the_axis_but_many_are_shown():
    usual = [90 + 0.1 * index for index in range(30)]
    low, high = limits([*usual, 10.0])
    assert 89 < low < 90 < high < 94
    assert limits([*usual, *[10.0] * 10])[0] < 10
    assert limits([10.0, 90.0])[0] < 10, "two values are not outliers of each other"


def test_one_low_value_does_not_hide_the_differences_of_few_others():
    assert limits([95.8, 95.6, 96.4, 9.2], lone=True)[0] > 95
    assert limits([95.6, 95.6, 90.0], lone=True)[0] < 90
    assert limits([95.6, 60.0, 9.2], lone=True)[0] < 9.2


def test_labels_do_not_overlap_and_stay_in_the_order_of_their_lines():
    values = [5.0, 5.1, 9.0, 5.05, 1.0]
    places = spread(values, 0.5, 0.0, 10.0)
    order = sorted(range(len(values)), key=lambda index: values[index])
    placed = [places[index] for index in order]
    assert all(after - before >= 0.5 - 1e-9 for before, after in itertools.pairwise(placed))
    assert places[2] == 9.0
    assert places[4] == 1.0


def test_labels_stay_inside_the_plot():
    places = label_places({"a": 0.0, "b": 0.1, "c": 99.9, "d": 100.0}, 0.0, 100.0)
    assert 0 < places["a"] < places["b"] < places["c"] < places["d"] < 100


def test_the_legend_of_a_file_names_the_drawn_series(task):
    figure = next(figure for figure in every_choice(task) if figure.name.endswith("-accuracy-50"))
    root = ET.fromstring(to_svg(figure))
    legend = next(element for element in root.iter() if "role-legend" in element.get("class", "").split())
    named = {element.text for element in legend.iter() if element.tag.endswith("text")}
    assert named == {"Dense", "DPF", "DPF + FT"}, "one-shot has no run at 50 %"


def test_the_legend_of_a_file_without_rows_is_empty(task):
    figure = next(figure for figure in every_choice(task) if figure.name.endswith("-accuracy-50"))
    empty = replace(figure, spec=figure.spec | {"datasets": {"rows": []}})
    [legend] = {tuple(channel["legend"]["values"]) for channel in _by_series(empty.with_fitted_legend(600))}
    assert legend == ()


def test_the_filters_of_a_figure_apply_to_all_of_its_layers(figures):
    for figure in figures.values():
        assert figure.spec["data"] == {"name": "rows"}
        assert not any(layer.get("data") for layer in figure.spec.get("layer", []))


def test_values_outside_the_axis_are_marked_and_described(task, monkeypatch):
    entries = [entry for entry in task.entries if entry.group.level is None]
    assert "Triangles" not in curve_figure(TRAINING[0], entries, task.series, None).caption
    monkeypatch.setattr(curves, "limits", lambda values: (max(values) - 1, max(values)))
    figure = curve_figure(TRAINING[0], entries, task.series, None)
    assert "Triangles" in figure.caption
    assert any("edge" in json.dumps(layer) for layer in figure.spec["layer"])
    assert "Dense" in to_svg(figure)
