"""How many files of the package a step visits: what a reader has to open to follow it."""

import sys
from pathlib import Path

import regrow
from tests.core.nets import batches, sgd, small_cnn, train

PACKAGE = Path(regrow.__file__).parent


def visited(run):
    """Return the modules of the package whose functions are called while `run` runs."""
    files = set()
    sys.setprofile(lambda frame, event, _: files.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return {Path(file).relative_to(PACKAGE).as_posix() for file in files if file.startswith(str(PACKAGE))}


def test_a_step_of_dpf_with_a_mask_update_visits_ten_files():
    model = small_cnn()
    optimizer = sgd(model)
    regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.9, end=10), every=1)
    core = ("pruner", "hooks", "weights", "schedule", "budget", "units", "select", "bits", "distributed")
    expected = {"methods/dpf.py", *(f"core/{name}.py" for name in core)}
    assert visited(lambda: train(model, optimizer, batches(3))) <= expected


def test_attaching_a_pruner_visits_at_most_fourteen_files():
    model = small_cnn()
    optimizer = sgd(model)
    files = visited(lambda: regrow.DPF(model, optimizer, sparsity=0.9))
    assert len(files) <= 14, files
