"""The command line as people call it, with its mistakes."""

import dataclasses
import re
import signal
import subprocess
import sys
import threading
from queue import Queue

import pytest
import torch

from regrow import models
from regrow.cli import demo, main
from regrow.cli.train import _hide_writer
from regrow.methods.registry import find_method
from regrow.runs.folder import read_metrics, read_recipe
from regrow.runs.stop import StoppedError
from regrow.train.display import Display, result_table
from regrow.train.run import run
from tests.train.test_run import METHODS, QUICK


def call(capsys, *arguments):
    """Run a command in this process; return its exit code, and what it said."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "finished"
    run(QUICK, folder)
    return folder


QUICK_OPTIONS = ("--width", "4", "--epochs", "2", "--batch", "256", "--threads", "1")


def test_python_m_regrow_shows_the_commands():
    done = subprocess.run([sys.executable, "-m", "regrow"], capture_output=True, text=True, check=False)
    assert done.returncode == 2, "a command is missing"
    for command in ("train", "sweep", "demo", "recipes", "methods", "inspect", "env", "completion"):
        assert command in done.stdout


def test_training_shows_a_summary_a_line_per_epoch_and_the_result(capsys, tmp_path):
    code, said, _ = call(capsys, "train", "digits", *QUICK_OPTIONS, "--out", tmp_path / "run")
    assert code == 0
    assert "small · Digits · dpf 90 %" in said
    assert "parameters  1,702, 1,476 of them targeted" in said
    assert "epoch 2/2  top-1 " in said
    assert "top-1" in "".join(said.splitlines()[-7:])
    assert f"files in {tmp_path / 'run'}" in said.replace("\n", "")


@pytest.mark.parametrize("method", ["dpf", "incremental", "sfp", "dns"])
def test_a_training_too_short_for_its_sparsity_is_refused_before_it_starts(capsys, tmp_path, method):
    short = (*QUICK_OPTIONS, "--method", method, "--every", "1000")
    code, said, problem = call(capsys, "train", "digits", *short, "--out", tmp_path / "new" / "short")
    assert (code, said) == (2, "")
    assert "the sparsity of 90.0% is not reached" in problem
    assert problem.endswith("Lower --ramp-end or --every, or raise --epochs.\n")
    assert not list(tmp_path.iterdir())


def test_a_result_below_the_target_says_so():
    recipe = dataclasses.asdict(QUICK)
    found = {"recipe": recipe, "sparsity": 0.5, "evaluated_on": "test", "seconds": 1, "top1": 50.0}
    costs = {"nonzeros": 5, "parameters": 10, "macs_kept": 5, "macs": 10}
    shown = [cell for column in result_table({**found, **costs}).columns for cell in column.cells]
    assert any("50.00 % of the targeted weights; the target is 90 %" in str(cell) for cell in shown)


def test_a_training_that_reaches_its_sparsity_says_nothing_about_a_target(capsys, tmp_path):
    enough = (*QUICK_OPTIONS, "--every", "1")
    rounded = (*QUICK_OPTIONS, "--method", "sfp", "--sparsity", "0.3")
    compressed = (*QUICK_OPTIONS, "--method", "feedback", "--options", "compressor='sign'")
    for name, options in {"enough": enough, "rounded": rounded, "compressed": compressed}.items():
        code, said, _ = call(capsys, "train", "digits", *options, "--out", tmp_path / name)
        assert code == 0
        assert "the target is" not in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--method", "sfp"), "90 % of the filters, reached after 1.5 epochs"),
        (("--method", "one-shot"), "90 % of the weights, in one step after 2 epochs"),
        (("--method", "RigL"), "90 % of the weights, from the first step"),
        (("--method", "acdc"), "90 % of the weights, on the method's own schedule"),
        (("--method", "dns"), "90 % of the weights, reached after 1.5 epochs"),
    ],
)
def test_the_start_table_shows_what_is_pruned_and_when(capsys, tmp_path, options, said):
    shown = call(capsys, "train", "digits", *QUICK_OPTIONS, *options, "--out", tmp_path / "run")[1]
    assert said in shown


def test_the_same_command_again_shows_the_finished_run(capsys, tmp_path):
    arguments = ("train", "digits", *QUICK_OPTIONS, "--out", tmp_path / "run")
    assert call(capsys, *arguments)[0] == 0
    code, said, _ = call(capsys, *arguments)
    assert code == 0
    assert "epoch 1/2" not in said
    assert "done in" in said


def test_a_recipe_file_is_trained_with_the_options_on_top(capsys, tmp_path):
    (tmp_path / "mine.toml").write_text(QUICK.changed(epochs=9, every="auto").to_toml(), encoding="utf-8")
    code, said, _ = call(capsys, "train", tmp_path / "mine.toml", "--epochs", "1", "--out", tmp_path / "run")
    assert code == 0
    assert "epoch 1/1" in said


def test_help_shows_the_values_of_the_recipe(capsys):
    code, said, _ = call(capsys, "train", "cifar-wrn28-2", "--help")
    assert code == 0
    said = " ".join(said.replace("│", " ").split())
    assert "(default: wrn28-2)" in said
    assert "(default: 0.3 0.6 0.8)" in said


def test_a_dry_run_estimates_the_time_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said, _ = call(capsys, "train", "digits", *QUICK_OPTIONS, "--dry-run")
    assert code == 0
    assert "12 steps, 6 per epoch: about" in said
    assert "conv3" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "method",
    [
        *METHODS,
        ("feedback", "--options", "compressor='4 bits'"),
        ("dpf", "--epochs", "1", "--limit", "64"),
        ("dpf", "--options", "threshold=soft"),
        ("sfp", "--batch", "64"),  # whose 21 steps per epoch have other divisors than 6 of 256
    ],
)
def test_every_method_has_a_dry_run_that_reports_what_it_did(capsys, tmp_path, monkeypatch, method):
    monkeypatch.chdir(tmp_path)
    chosen = (method,) if isinstance(method, str) else method
    code, said, errors = call(capsys, "train", "digits", *QUICK_OPTIONS, "--method", *chosen, "--dry-run")
    assert code == 0, errors
    assert "about" in said
    cls = find_method(chosen[0])
    assert ("masks were made" in said) == (cls.has_mask and not cls.ends_dense)


def test_a_dry_run_with_the_mask_of_another_run(capsys, finished):
    code, said, _ = call(
        capsys, "train", "digits", "--width", "4", "--method", "fixed", "--masks", finished, "--dry-run"
    )
    assert code == 0
    assert "small · Digits · fixed\n" in said
    assert "90.0 % of the 1,476 targeted weights" in said


@pytest.mark.parametrize("name", ["imagenet-resnet50", "nonsense"])
def test_a_recipe_after_the_options_is_an_error(capsys, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for options in (("--out", tmp_path / "run"), ("--epochs", "1"), ("--no-bf16", "--dry-run")):
        code, _, said = call(capsys, "train", *options, name)
        assert (code, said) == (2, f"regrow: unexpected {name!r}: one RECIPE comes first, before all options\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "digts"), "Did you mean 'digits'"),
        (("train", "digits", "--model", "resnet-20"), "Did you mean 'resnet20'"),
        (("train", "digits", "--data", "cifar"), "Did you mean 'cifar10'"),
        (("train", "digits", "--method", "dfp"), "Did you mean 'dpf'"),
        (("train", "digits", "--method", "dfp", "--dry-run"), "Did you mean 'dpf'"),
        (("train", "digits", "--method", "feedback"), "feedback needs --options compressor=VALUE"),
        (("train", "digits", "--method", "feedback", "--dry-run"), "feedback needs --options compressor=VALUE"),
        (("train", "digits", "--options", "settle=0.1", "--dry-run"), "settle is a field of recipes: --settle"),
        (
            ("train", "digits", "--options", "threshold=weak", "--dry-run"),
            "threshold must be 'hard' (ŵ = m⊙w) or 'soft'",
        ),
        (("train", "digits", "--sparsity", "90"), "Did you mean 0.9?"),
        (("train", "digits", "--wieght-decay", "0.1"), "--weight-decay"),
        (("train", "digits", "--lr", "fast"), "could not convert string to float: 'fast'"),
        (("train", "digits", "--targets", "conv9"), "no weight matches target 'conv9'"),
        (("train", "digits", "--seed", "99999999999999999999999"), "seed must be below 2**63"),
        (("recipes", "cifar-resnet-20"), "Did you mean 'cifar-resnet20'"),
        (("inspect", "resnet-20"), "Did you mean 'resnet20'"),
        (("trein", "digits"), "unknown command 'trein'. Did you mean 'train'? The commands are train, sweep, "),
        (("version",), "regrow: unknown command 'version'. The commands are train, sweep, "),
        (("train", "sweep.toml"), "sweep.toml is a sweep: regrow sweep sweep.toml"),
        (
            ("train", "digits", "--method", "rigl", "--settle", "0.1"),
            "rigl has no option settle, got 0.1. It is for dpf.",
        ),
        (("train", "digits", "--epochs", "0"), "0 needs --init"),
        (("xyz",), "regrow: unknown command 'xyz'. The commands are train, sweep, "),
        (("train", "digits", "--save-every", "-3"), "--save-every must be at least 0, got -3"),
        (("train", "digits", "--save-every", "nan"), "--save-every must be at least 0, got nan"),
        (("train", "digits", "--nproc", "0"), "--nproc must be at least 1, got 0"),
        (("train", "digits", "--nproc", "-2", "--dry-run"), "--nproc must be at least 1, got -2"),
        (("train", "digits", "--sparsity=0.9", "--method", "SR-STE"), "--sparsity is not for method SR-STE"),
        (("train", "digits", "--method", "dense", "--sparsity", "0.9"), "--sparsity is not for method dense"),
        (("report",), "a report needs at least one run"),
        (("report", "runs", "-o", "r.csv"), "--out must be an .html file, got r.csv"),
        (("train", "digits", "--restarts", "-1"), "--restarts must be at least 0, got -1"),
    ],
)
def test_a_mistake_is_an_error_with_a_suggestion(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text("[grid]\nseed = [0, 1]\n")
    code, _, said = call(capsys, *arguments)
    assert code == 2
    assert message in " ".join(said.replace("│", " ").split())
    assert "Traceback" not in said


def test_missing_data_is_a_failure_that_says_how_to_get_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGROW_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, _, said = call(capsys, "train", "imagenet-resnet50", "--device", "cpu", "--no-bf16")
    assert code == 1
    assert "ImageNet" in said


def test_resuming_a_folder_without_a_run_is_an_error(capsys, tmp_path):
    for recipe in ((), ("digits",)):
        code, _, said = call(capsys, "train", *recipe, "--resume", tmp_path / "typo")
        assert code == 1
        assert "is not a run folder: it has no recipe.toml" in said
        assert not (tmp_path / "typo").exists()


def test_resuming_with_another_value_is_refused(capsys, finished):
    code, _, said = call(capsys, "train", "--resume", finished, "--lr", "0.7")
    assert code == 1
    assert "lr is 0.1 there and 0.7 here" in said


def test_only_differing_fields_of_another_run_are_listed(capsys, finished):
    code, _, said = call(
        capsys, "train", "digits", "--out", finished, "--width", "4", "--batch", "256", "--epochs", "7"
    )
    assert code == 1
    assert "holds another run: " in said
    assert "epochs is 3 there and 7 here" in said
    assert "width is" not in said


@pytest.mark.parametrize("form", ["--resume={}", "--save-every=9 --resume {}", "--resume {} --save-every 9"])
def test_resume_uses_the_recipe_of_the_folder_for_every_spelling_of_the_option(capsys, finished, form):
    code, said, errors = call(capsys, "train", *form.format(finished).split())
    assert code == 0, errors
    assert "small · Digits · dpf 90 %: done in" in said


def test_methods_are_listed_and_explained(capsys):
    code, said, _ = call(capsys, "methods")
    assert code == 0
    assert "RigL            RigL (Evci et al. 2020): drop the smallest weights" in said
    code, said, _ = call(capsys, "methods", "sparse-momentum")
    assert code == 0
    assert "Different from the authors' code" in said
    assert "  drop_fraction  (default 0.5)\n" in said
    assert "  sparsity  (required)\n" in said
    code, _, said = call(capsys, "methods", "rigel")
    assert (code, said.startswith("regrow: unknown method 'rigel'. Did you mean 'rigl'?")) == (2, True)


def test_recipes_are_listed_and_printed(capsys, tmp_path):
    assert "cifar-resnet20" in call(capsys, "recipes")[1]
    code, said, _ = call(capsys, "recipes", "cifar-small")
    assert code == 0
    assert "stem_stride = 2\n" in said


def test_inspect_shows_a_network_a_run_and_a_file(capsys, finished):
    assert "40.81 M" in call(capsys, "inspect", "resnet20")[1]
    for path in (finished, finished / "model.safetensors"):
        code, said, _ = call(capsys, "inspect", path)
        assert code == 0
        assert "90.0 % of the 1,476 targeted weights" in said


def test_a_network_by_name_has_nothing_pruned_by_chance(capsys, monkeypatch):
    built = models.build

    def build(name, **options):
        network = built(name, **options)
        with torch.no_grad():
            network.fc.weight[0, 0] = 0.0
        return network

    monkeypatch.setattr(models, "build", build)
    assert "pruned 0 of " in call(capsys, "inspect", "resnet20")[1]


def test_inspect_shows_a_run_that_is_not_finished(capsys, tmp_path):
    class EnoughError(Exception):
        pass

    def leave(event):
        if getattr(event, "step", 0) == 8:
            raise EnoughError

    with pytest.raises(EnoughError):
        run(QUICK, tmp_path / "run", listeners=[leave])
    code, said, _ = call(capsys, "inspect", tmp_path / "run")
    assert code == 0
    assert "not finished: after 6 steps" in said


def test_env_and_completion_print_their_contents(capsys):
    said = call(capsys, "env")[1]
    assert all(f"\n{name} " in said for name in ("torch", "compiler", "cache"))
    for shell in ("bash", "zsh"):
        assert "weight-decay" in call(capsys, "completion", shell)[1]


@pytest.mark.slow
def test_the_demo_shows_that_one_shot_pruning_loses_accuracy_and_dpf_does_not(capsys, tmp_path):
    from regrow.cli.demo import comparison

    code, said, _ = call(capsys, "demo", "--out", tmp_path / "demo")
    assert code == 0
    top1 = {row.name: row.top1 for row in comparison(tmp_path / "demo")}
    assert top1["one-shot"] < 50 < 90 < top1["DPF"]
    assert abs(top1["DPF"] - top1["dense"]) < 3
    picture = (tmp_path / "demo" / "accuracy.svg").read_text(encoding="utf-8")
    packed = (tmp_path / "demo" / "digits-dpf.regrow").stat().st_size
    assert f"DPF {top1['DPF']:.1f} %, {packed / 1e3:.0f} kB" in picture
    assert "fine-tuning" in picture
    assert (tmp_path / "demo" / "accuracy.png").stat().st_size > 10_000
    assert re.search(r"\n +accuracy +sparsity +weights left +epochs *\n", said)
    assert "δ" not in said
    assert "flips" not in said
    assert "What to try next" in said
    _, again, _ = call(capsys, "demo", "--out", tmp_path / "demo")
    assert "\ndense: finished run found, not repeated\none-shot: finished run found" in again


def test_folder_names_are_printed_without_markup(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "a[red]b:cat:"
    code, said, _ = call(capsys, "train", "digits", *QUICK_OPTIONS, "--out", name)
    assert code == 0
    assert f"folder      {name} " in said
    assert f"files in {name}\n" in said
    fixed = ("--method", "fixed", "--masks", name, "--out", f"{name}2")
    assert f"from {name} " in call(capsys, "train", "digits", *QUICK_OPTIONS, *fixed)[1]


def test_warnings_are_printed_without_markup(capsys):
    Display().warn("layer [0] has 3 [/] of :cat:")
    assert capsys.readouterr().out == "warning: layer [0] has 3 [/] of :cat:\n"


def test_the_demo_names_the_extra_that_its_figures_need(capsys, tmp_path, monkeypatch):
    def draw(out, files):
        raise ImportError

    quick = {name: recipe.changed(width=4, epochs=1, batch=256) for name, recipe in demo.RECIPES.items()}
    monkeypatch.setattr(demo, "RECIPES", quick)
    monkeypatch.setattr(demo, "draw", draw)
    code, said, _ = call(capsys, "demo", "--out", tmp_path / "[demo]")
    assert code == 0
    assert 'needs altair: pip install "regrow[report]" (in a clone' in said
    assert f"regrow inspect {tmp_path / '[demo]' / 'DPF'}" in said


@pytest.mark.parametrize("command", [["train", "--help"], ["recipes"], ["--version"]])
def test_closing_the_pipe_early_prints_no_error(command):
    with subprocess.Popen(
        [sys.executable, "-m", "regrow", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_another_broken_pipe_is_not_hidden(monkeypatch, capsys):
    def die(arguments):
        raise BrokenPipeError(32, "a worker died")

    monkeypatch.setattr("regrow.cli.call", die)
    with pytest.raises(SystemExit, match="1"):
        main(["recipes"])
    assert "a worker died" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoppedError(signal.SIGINT, 7, "runs/mine")])
def test_an_interrupted_command_says_so_in_one_line(monkeypatch, capsys, error):
    def stop(arguments):
        raise error

    monkeypatch.setattr("regrow.cli.call", stop)
    code, _, said = call(capsys, "report", "runs")
    assert code == 130
    assert said.startswith("regrow: stopped by SIGINT")
    assert said.count("\n") == 1


def test_a_closed_stdout_is_not_an_error():
    command = f"{sys.executable} -m regrow --version >&-"
    done = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_soft_filter_pruning_is_evaluated_only_when_it_has_just_pruned(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, said = call(
        capsys, "train", "digits", *QUICK_OPTIONS, "--method", "sfp", "--every", "7", "--ramp-end", "0.5"
    )
    assert code == 2
    assert re.search(r"every must divide the \d+ steps of an epoch, got 7", said)


def test_reproduce_says_where_the_experiments_are(capsys):
    code, said, _ = call(capsys, "reproduce")
    assert (code, said.count("\n")) == (0, 1)
    assert "python -m reproduce" in said


@pytest.mark.parametrize(
    "command",
    [
        ("train", "digits", "--sparsity", "conv9=0.5,*=0.9", "--out", "new/run"),
        ("train", "digits", "--targets", "conv9", "--out", "new/run"),
        ("train", "digits", "--method", "fixed", "--masks", "missing", "--out", "new/run"),
        ("train", "digits", "--init", "missing", "--out", "new/run"),
        ("train", "digits", "--model", "nosuchpackage:build"),
        ("train", "cifar-small", "--data", "cifar1", "--out", "new/run"),
        ("sweep", "missing.toml", "--out", "new"),
        ("export", "missing", "--out", "new/model.onnx"),
        ("report", "missing", "-o", "new/report.html"),
        ("inspect", "missing"),
    ],
)
def test_a_failed_command_leaves_no_folder(capsys, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    assert call(capsys, *command)[0] != 0
    assert not list(tmp_path.iterdir())


def test_a_failed_export_leaves_no_folder(capsys, tmp_path, finished):
    out = tmp_path / "new" / f"{'long' * 80}.regrow"
    assert call(capsys, "export", finished, "--to", "packed", "--out", out)[0] != 0
    assert not list(tmp_path.iterdir())


def test_each_pattern_has_its_sparsity_on_the_command_line(capsys, tmp_path):
    options = (*QUICK_OPTIONS, "--ramp-by", "step", "--every", "1", "--exclude", "conv1")
    chosen = ("--sparsity", "conv2=0.5,*=0.8")
    code, said, _ = call(capsys, "train", "digits", *options, *chosen, "--out", tmp_path / "run")
    assert code == 0
    assert "small · Digits · dpf conv2 50 %, * 80 %" in said
    layers = read_metrics(tmp_path / "run")[-1]["layers"]
    assert layers == {"conv2.weight": pytest.approx(0.5), "conv3.weight": pytest.approx(0.8, abs=1e-3)}
    assert read_recipe(tmp_path / "run").level == {"conv2": 0.5, "*": 0.8}


def test_selftest_compares_the_code_for_accelerators_with_the_cpu(capsys):
    code, said, _ = call(capsys, "selftest", "--device", "cpu", "--network", "small", "--steps", "1")
    assert code == 0
    assert said.count(" equal") == 20
    assert "mask update, layer" in said
    assert "all masks are those of the CPU" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is available")
def test_selftest_says_which_device_can_be_used_instead(capsys):
    code, said, problem = call(capsys, "selftest", "--device", "cuda")
    assert (code, said) == (2, "")
    assert "device 'cuda' is not available on this machine: use --device" in problem


def test_only_errors_of_tensorboards_thread_are_hidden(capsys, monkeypatch):
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    monkeypatch.setattr(threading, "excepthook", _hide_writer)

    class Full:
        def write(self, data):
            raise OSError("Too many open files")

    queue = Queue()
    queue.put(b"data")
    for thread in (writer._AsyncWriterThread(queue, Full(), 1), threading.Thread(target=Full().write, args=(b"",))):
        thread.start()
        thread.join()
        assert ("Too many open files" in capsys.readouterr().err) == (type(thread) is threading.Thread)
