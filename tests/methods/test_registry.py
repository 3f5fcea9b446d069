"""Methods by name, those of other packages too."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regrow
from regrow.methods.registry import METHODS, attach, find_method, method_names, method_options
from tests.methods import every_method
from tests.methods.networks import Training, steps

TRAINING = Training(convs=(5,), hidden=(7,), momentum=0.9, decay=0.001, seed=3)
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["SparseMomentum", "sparse-momentum", "sparse_momentum", "SPARSEMOMENTUM"])
def test_names_do_not_depend_on_case_and_hyphens(name):
    assert find_method(name) is regrow.SparseMomentum


def test_every_built_in_method_runs_through_the_tests_for_all_methods():
    assert {find_method(name).__name__ for name in METHODS} == set(every_method.METHODS)


def test_every_exported_method_is_known_and_bases_are_not():
    exported = {
        name
        for name in regrow.__all__
        if isinstance(cls := getattr(regrow, name), type) and issubclass(cls, regrow.Pruner)
    }
    assert exported - {"Pruner", "DropAndGrow"} <= set(method_names())
    assert not {"Pruner", "DropAndGrow"} & set(method_names())


@pytest.mark.parametrize(
    ("typed", "meant"), [("rigel", "rigl"), ("dfp", "dpf"), ("spf", "sfp"), ("one_shoot", "oneshot")]
)
def test_the_error_for_a_misspelled_method_names_the_nearest(typed, meant):
    with pytest.raises(ValueError, match=rf"unknown method '{typed}'. Did you mean '{meant}'\? Known methods: .*DPF"):
        find_method(typed)


def test_options_are_those_that_the_class_takes():
    assert method_options(regrow.DPF)["every"] == "auto"
    assert method_options(regrow.DPF)["sparsity"] is ...
    assert method_options(regrow.SparseMomentum)["include_last"] is True
    assert method_options(regrow.RigL)["scope"] == "erk"
    assert "unit" not in method_options(regrow.RigL)
    assert "every" not in method_options(regrow.OneShot)


def test_a_framework_warns_if_its_training_has_no_mask_update():
    model = TRAINING.model()
    with pytest.warns(UserWarning, match=r"SRSTE makes no mask update in this training \(steps: 9, every=10\)"):
        attach("srste", model, TRAINING.optimizer(model), 9, {"every": 10}).detach()


def test_the_example_in_the_docs_runs_and_is_known_by_name():
    model = TRAINING.model()
    optimizer = TRAINING.optimizer(model)
    [code] = re.findall(r"```python\n(.*?)```", (DOCS / "own-method.md").read_text(), re.DOTALL)
    namespace = {"model": model, "optimizer": optimizer}
    exec(code.replace("1000", "2"), namespace)
    list(steps(model, optimizer, 4))
    assert namespace["pruner"].sparsity == pytest.approx(0.75, abs=0.01)
    assert find_method("halving") is namespace["Halving"]
    assert namespace["pruner"].state_dict()["method"] == "Halving"


def test_a_package_adds_a_method_by_an_entry_point(tmp_path):
    (tmp_path / "elsewhere.py").write_text(
        "import regrow\n"
        "class Elsewhere(regrow.Pruner):\n"
        "    def next_masks(self, t):\n"
        "        return self.keep_top(self.weights, self.schedule(t))\n"
        "nothing = 3\n"
    )
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[regrow.methods]\nelse-where = elsewhere:Elsewhere\nwrong = elsewhere:nothing\n"
    )
    program = (
        "import sys\n"
        "from regrow.methods.registry import find_method, method_names\n"
        "assert 'else-where' in method_names() and 'elsewhere' not in sys.modules\n"
        "assert find_method('elsewhere').__module__ == 'elsewhere'\n"
        "try: find_method('wrong')\n"
        "except TypeError as error: print(error)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(regrow.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "method 'wrong' is elsewhere:nothing, which is not a subclass of regrow.Pruner\n"


def test_a_pruner_without_next_masks_is_refused():
    model = TRAINING.model()

    class Silent(regrow.Pruner):
        pass

    with pytest.raises(TypeError, match="Silent does not define how it prunes"):
        Silent(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.5)
