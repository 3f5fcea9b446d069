"""`regrow export` on real runs, through the command line."""

import re
import shutil
import subprocess
import sys

import pytest
import torch

import regrow
from regrow import data
from regrow.cli import main
from regrow.export.wasm_template import info_of


def cli(*arguments):
    return subprocess.run([sys.executable, "-m", "regrow", *map(str, arguments)], capture_output=True, text=True)


def said_by(capsys, *arguments):
    """Run a command in this process; return its exit code, and what it said of an error."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code, capsys.readouterr().err


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "filters"
    options = ["--unit", "filter", "--sparsity", "0.5", "--epochs", "2", "--every", "2", "--out", folder]
    done = cli("train", "digits", *options)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_shrunk_network_has_the_same_outputs_and_fewer_weights(run):
    for options in ((), ("--shrink",)):  # the second does not overwrite the first
        done = cli("export", run, "--to", "program", *options)
        assert done.returncode == 0, done.stderr
    small = torch.export.load(run / "model-shrunk.pt2").module()
    masked = regrow.load(run)
    for batch in (1, 5):
        x = torch.randn(batch, *masked.architecture.input_shape)
        with torch.no_grad():
            assert torch.allclose(small(x), masked(x), atol=1e-5)
    whole = torch.export.load(run / "model.pt2").module()
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in whole.parameters())


def test_a_packed_file_comes_back_as_the_same_model(run, tmp_path):
    done = cli("export", run, "--out", tmp_path / "net.regrow")
    assert done.returncode == 0, done.stderr
    assert "bytes" in done.stdout
    packed, plain = regrow.load(tmp_path / "net.regrow").state_dict(), regrow.load(run).state_dict()
    assert all(torch.equal(packed[name], tensor) for name, tensor in plain.items())


def test_onnx_files_are_checked_before_they_are_written(run, tmp_path):
    done = cli("export", run, "--to", "onnx", "--shrink", "--sparse", "--out", tmp_path / "net.onnx")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "net.onnx").stat().st_size > 0


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_c_file_says_what_it_needs_and_checks_itself(run, tmp_path):
    done = cli("export", run, "--to", "c", "--weights", "int8", "--out", tmp_path / "net.c")
    assert done.returncode == 0, done.stderr
    assert re.search(r"flash +[\d,]+ bytes.*\nRAM +[\d,]+ bytes", done.stdout)
    sources = [str(tmp_path / name) for name in ("net.c", "net_main.c")]
    subprocess.run(["gcc", "-std=c99", *sources, "-o", str(tmp_path / "check"), "-lm"], check=True)
    subprocess.run([str(tmp_path / "check")], check=True)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_an_exported_webassembly_module_stores_the_normalization_of_the_run(run, tmp_path):
    done = cli("export", run, "--to", "wasm", "--weights", "fp16", "--out", tmp_path / "web")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "web").iterdir()) == [
        *("index.html", "model.d.ts", "model.js", "model.wasm")
    ]
    assert "checked in node" in done.stdout
    info = info_of((tmp_path / "web" / "model.wasm").read_bytes())
    assert (tuple(info["mean"]), tuple(info["std"])) == (data.info("digits").mean, data.info("digits").std)
    shrunk = cli("export", run, "--to", "wasm", "--shrink", "--out", tmp_path / "small")
    assert shrunk.returncode == 0, shrunk.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")
def test_the_command_that_checks_a_c_file_works_where_it_was_printed(run, tmp_path):
    done = cli("export", run, "--to", "c", "--out", tmp_path / "a folder" / "net.c")
    command = next(line for line in done.stdout.splitlines() if line.startswith("    cc "))
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "onnx", "--dtype", "int8"], "--dtype is for --to packed, not for --to onnx"),
        (["--sparse"], "--sparse is for --to onnx, not for --to packed"),
        (["--to", "onxx"], "onnx"),
        (["--weights", "int8"], "--weights is for --to c or --to wasm, not for --to packed"),
        (["--to", "c", "--out", "net.cpp"], "must end in .c"),
        (["--shrink", "--round-to", "0"], "regrow: --round-to must be at least 1, got 0. Did you mean 8?\n"),
        (["--round-to", "8"], "regrow: --round-to 8 needs --shrink.\n"),
    ],
)
def test_options_that_exclude_each_other_are_explained(run, arguments, message):
    done = cli("export", run, *arguments)
    assert done.returncode == 2
    assert message in done.stderr + done.stdout


def test_a_missing_run_is_named(tmp_path):
    done = cli("export", tmp_path / "nothing")
    assert done.returncode == 1
    assert "nothing" in done.stderr


@pytest.mark.parametrize("to", ["packed", "onnx", "program", "c"])
def test_a_file_that_cannot_be_written_is_named_in_one_line(run, tmp_path, capsys, to):
    ending = {"packed": "regrow", "onnx": "onnx", "program": "pt2", "c": "c"}[to]
    (tmp_path / "file").touch()
    for out in (tmp_path / "file" / f"net.{ending}", tmp_path / "file" / "deeper" / f"net.{ending}"):
        code, said = said_by(capsys, "export", run, "--to", to, "--out", out)
        assert (code, said.startswith(f"regrow: cannot write {out}: "), said.count("\n")) == (1, True, 1)
    (tmp_path / "folder").mkdir()
    code, said = said_by(capsys, "export", run, "--to", to, "--out", tmp_path / "folder")
    assert code == 2
    assert said.endswith(f"folder is a folder. Did you mean {tmp_path / 'folder' / f'model.{ending}'}?\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc, where nobody may make files")
def test_a_path_that_the_system_refuses_is_named_in_one_line(run, capsys):
    code, said = said_by(capsys, "export", run, "--out", "/proc/net.regrow")
    assert code == 1
    assert said.startswith("regrow: cannot write /proc/net.regrow: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", ["export", "bench"])
def test_a_file_without_a_network_asks_for_the_callable_that_builds_it(tmp_path, capsys, command):
    regrow.save({"weight": torch.ones(3, 4)}, tmp_path / "own.regrow")
    code, said = said_by(capsys, command, tmp_path / "own.regrow")
    assert code == 2
    assert "is not in regrow.models: name the callable that builds it, --model package.module:callable" in said


def test_a_run_that_is_not_finished_says_how_to_finish_it(run, tmp_path, capsys):
    shutil.copy(run / "recipe.toml", tmp_path)
    code, said = said_by(capsys, "export", tmp_path)
    assert (code, said.endswith(f"Resume: regrow train --resume {tmp_path}\n")) == (1, True)
    shutil.copy(run / "result.json", tmp_path)
    assert "has no model.safetensors" in said_by(capsys, "export", tmp_path)[1]
