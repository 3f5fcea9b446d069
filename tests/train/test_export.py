"""`regrow export` on real runs, through the command line."""

import re
import shutil
import subprocess
import sys

import pytest
import torch

import regrow


def cli(*arguments):
    return subprocess.run([sys.executable, "-m", "regrow", *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "filters"
    options = ["--unit", "filter", "--sparsity", "0.5", "--epochs", "2", "--every", "2", "--out", folder]
    done = cli("train", "digits", *options)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_shrunk_network_has_the_same_outputs_and_fewer_weights(run):
    done = cli("export", run, "--shrink")
    assert done.returncode == 0, done.stderr
    small = torch.export.load(run / "model.pt2").module()
    masked = regrow.load(run)
    for batch in (1, 5):
        x = torch.randn(batch, *masked.architecture.input_shape)
        with torch.no_grad():
            assert torch.allclose(small(x), masked(x), atol=1e-5)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in masked.parameters())


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "onnx", "--dtype", "int8"], "--dtype int8 is for packed files"),
        (["--sparse"], "--sparse is for ONNX files"),
        (["--to", "onxx"], "onnx"),
        (["--weights", "int8"], "--weights and --lanes are for C files"),
        (["--to", "c", "--out", "net.cpp"], "must end in .c"),
    ],
)
def test_options_that_do_not_go_together_are_answered(run, arguments, message):
    done = cli("export", run, *arguments)
    assert done.returncode == 2
    assert message in done.stderr + done.stdout


def test_a_missing_run_is_named(tmp_path):
    done = cli("export", tmp_path / "nothing")
    assert done.returncode == 1
    assert "nothing" in done.stderr
