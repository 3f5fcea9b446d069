"""The code in the documentation runs, its links lead somewhere, and it knows every public name."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import regrow
from docs.methods_table import class_list
from regrow import models
from tests.core.nets import batches, small_cnn

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)


class Alternatives:
    """The package for pages that show several pruners of one model: each takes the place of the one before.

    All but `Fixed` get an optimizer of their own and, unless the page's is None, a copy of the model as well.
    """

    def __init__(self, make_model):
        self.make_model, self.before = make_model, None

    def __getattr__(self, name):
        made = getattr(regrow, name)
        if not (isinstance(made, type) and issubclass(made, regrow.Pruner)):
            return made

        def attach(model, optimizer, *rest, **options):
            if self.before is not None:
                self.before.detach()
            if made is not regrow.Fixed:
                model = model if optimizer is None else self.make_model()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            self.before = made(model, optimizer, *rest, **options)
            return self.before

        return attach


def run_steps(model, optimizer, start, stop):
    data = list(batches(6))
    for t in range(start, stop):
        x, y = data[t % len(data)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def small():
    return models.build("small", classes=10, channels=1, size=8)


def names(make_model=small):
    model = make_model()
    return {
        "regrow": regrow,
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "loader": list(batches(6)),
        "steps": 8,
        "total": 8,
        "train": lambda model, optimizer: run_steps(model, optimizer, 0, 8),
        "run_steps": run_steps,
        "evaluate": lambda model: 0.5,
    }


def run_page(page, known):
    blocks = python_blocks(page)
    assert blocks
    for block in blocks:
        exec(block, known)
    return known


def test_the_tutorial_ends_with_a_sparse_model_that_is_right_and_runs_everywhere():
    known = run_page("tutorial", {})
    assert known["accuracy"]() > 85
    agree = known["logits"].argmax(1) == known["model"](known["test"].images.float() / 240).argmax(1)
    assert agree.all()
    assert known["pruner"].stats().delta == 0, "the mask is fixed, as the page says, and the dense weights are dropped"
    assert Path("digits.regrow").stat().st_size < 20_000
    assert all(Path(name).is_file() for name in ("digits.onnx", "digits.c", "digits.h"))


@pytest.mark.filterwarnings("ignore:all of .* is pruned")
def test_the_page_about_methods_runs():
    model = small_cnn()
    original = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    special = {"regrow": Alternatives(small_cnn), "optimizer": None, "model": model, "original": original}
    known = run_page("methods", names(small_cnn) | special)
    assert known["levels"][-1].sparsity == pytest.approx(0.9, abs=0.001)
    assert known["longer"] >= 8


@pytest.mark.filterwarnings("ignore:all of .* is pruned")
@pytest.mark.parametrize("page", ["sparsity", "structured"])
def test_pages_that_show_alternatives_run(page):
    run_page(page, names() | {"regrow": Alternatives(small)})


@pytest.mark.parametrize("page", ["resume", "arm", "algorithm", "migrate"])
def test_pages_that_tell_a_story_run(page):
    known = names()
    if page == "resume":
        known["pruner"] = regrow.DPF(known["model"], known["optimizer"], sparsity=regrow.Cubic(0.9, end=1000))
        run_steps(known["model"], known["optimizer"], 0, 20)
        python, again = python_blocks(page), names()
        exec(python[0], known)
        exec(python[1], again)
        assert again["pruner"].step == 20
        assert all(map(torch.equal, again["model"].parameters(), known["model"].parameters()))
        for block in python[2:]:
            exec(block, again)
        assert again["pruner"].sparsity == pytest.approx(known["pruner"].sparsity, abs=0.001)
    else:
        run_page(page, known)


def test_the_pages_about_files_and_small_networks_run():
    resnet = models.build("resnet8", classes=10, channels=3, size=32)
    regrow.OneShot(resnet, torch.optim.SGD(resnet.parameters(), lr=0.1), sparsity=0.5, unit="filter", floor=4).detach()
    regrow.save(nn.Linear(3, 2), "own.regrow")
    known = run_page("packed-files", {"regrow": regrow, "torch": torch, "model": resnet})
    assert known["state"].keys() == {"weight", "bias"}
    run_page("shrink", known | {"model": resnet})


@pytest.mark.slow
def test_the_page_about_speed_runs(capsys):
    known = run_page("deploy", {"regrow": regrow, "torch": torch})
    torch.testing.assert_close(known["logits"], known["model"](known["x"]), atol=1e-4, rtol=1e-4)
    assert capsys.readouterr().out


def test_the_page_about_the_theorems_runs():
    assert run_page("theory", {})["found"].holds


def test_the_page_about_the_paper_runs(capsys):
    Path("results").symlink_to(ROOT / "results")
    run_page("reproduce", {})
    assert "92.48" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_and_its_report_are_made_as_their_pages_say():
    run_page("training", {})
    run_page("report", {})
    assert Path("report.html").is_file()
    assert list(Path("figures").glob("*.svg"))


def test_the_bare_parameter_of_attention_can_be_named():
    known = names()
    exec(python_blocks("frameworks")[-1], known)
    assert len(known["pruner"].targets) == 8


def test_every_public_name_is_in_the_reference():
    reference = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("api*.md")) + class_list()
    missing = [name for name in regrow.__all__ if f":: regrow.{name}\n" not in reference and name != "__version__"]
    assert missing == []


def test_every_option_of_a_pruner_is_in_the_reference():
    reference = (DOCS / "api.md").read_text(encoding="utf-8")
    options = [name for name in inspect.signature(regrow.Pruner).parameters if name not in ("model", "optimizer")]
    assert "sparsity" in options
    assert [name for name in options if f"| `{name}` |" not in reference] == []


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *ROOT.glob("*/README.md")], ids=lambda p: p.name
)
def test_links_between_files_have_a_target(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


def test_the_documentation_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", tmp_path / "trees"]
    built = subprocess.run([*command, DOCS, tmp_path / "html"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "html" / "results.html").read_text(encoding="utf-8")
    assert "Incremental" in page
    assert "JPEG q75" in page


@pytest.mark.slow
def test_the_numbers_in_the_readme_are_those_in_results():
    from benchmarks import headline
    from benchmarks.pages import MARKS

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.split(MARKS[0])[1].split(MARKS[1])[0] == headline.readme(), "run `python -m benchmarks.pages`"


@pytest.mark.slow
def test_the_picture_in_the_readme_is_drawn_from_the_results(tmp_path):
    from benchmarks.headline import write_pictures

    write_pictures(tmp_path)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "_static").glob("accuracy-*.svg")}
    assert drawn == kept, "run `python -m benchmarks.pages`"
