"""The page of a report works offline, for everyone, in a real browser."""

import itertools
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from benchmarks.browser import chromium
from benchmarks.browser.chromium import Chromium
from regrow.report import Published, write_report
from regrow.report.published import in_the_paper
from regrow.runs.recipe import Recipe

pytest.importorskip("altair", reason='reports need pip install "regrow[report]"')
pytest.importorskip("vl_convert", reason='reports need pip install "regrow[report]"')


NEEDS_CHROMIUM = pytest.mark.skipif(chromium.find() is None, reason="needs Chromium (Debian's package chromium)")


class Outline(HTMLParser):
    """Collects what the tests ask about a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data):
        if self._open and data.strip():
            self.texts.setdefault(self._open[-1], []).append(data.strip())


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    """The report of the runs, with a repeated one and a published number."""
    folder = tmp_path_factory.mktemp("report")
    shutil.copytree(runs, folder / "runs")
    shutil.copytree(runs / "dense", folder / "runs" / "dense <copy> & more")
    published = {0.9: Published(90.88, 0.07, "300 epochs"), 0.5: Published(None, None, "300 epochs")}
    return write_report(
        [folder / "runs"],
        folder / "report.html",
        title="A <b>title</b>",
        published=lambda recipe, finetuned: None if finetuned else published.get(recipe.sparsity),
    )


@pytest.fixture(scope="module")
def outline(page):
    return Outline(page.read_text(encoding="utf-8"))


def test_the_page_loads_nothing_from_the_network(outline):
    loaded = [value for _, attrs in outline.tags for name, value in attrs.items() if name in ("src", "href") and value]
    assert loaded
    assert all(value.startswith("#") for value in loaded)
    (policy,) = (attrs["content"] for _, attrs in outline.tags if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"https?:", policy)


def test_the_page_has_one_title_and_headings_without_gaps(outline):
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch(r"h\d", tag)]
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))


def test_every_table_has_a_caption_and_every_control_a_label(outline):
    tags = [tag for tag, _ in outline.tags]
    assert tags.count("table") == tags.count("caption") > 3
    for index, tag in enumerate(tags):
        if tag in ("input", "select"):
            assert tags[index - 1] == "label"
    ids = [attrs["id"] for _, attrs in outline.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    named = [attrs["aria-labelledby"] for _, attrs in outline.tags if "aria-labelledby" in attrs]
    assert set(named) <= set(ids)


def test_the_table_has_our_mean_beside_the_published_one_with_its_scale(outline):
    cells = outline.texts["td"]
    assert "90.88 ± 0.07" in cells
    assert "did not converge" in cells
    assert "300 epochs" in outline.texts["small"]
    assert any(re.fullmatch(r"\d+\.\d\d ± \d+\.\d\d", text) for text in outline.texts["strong"])


def test_names_of_runs_cannot_break_the_page(page, outline):
    assert outline.texts["h1"] == ["A <b>title</b>"]
    assert any("dense <copy> & more" in text for text in outline.texts["li"])


def test_unfinished_and_repeated_runs_are_shown_as_such(outline):
    assert "Not finished, and in no mean" in outline.texts["caption"]
    assert any(text.endswith("unfinished") for text in outline.texts["th"])
    assert "Repeated runs" in outline.texts["h2"]


def test_the_recipe_and_the_environment_of_every_run_are_there(page, outline, tmp_path):
    recipes = outline.texts["pre"]
    assert len(recipes) == 5
    (tmp_path / "recipe.toml").write_text(recipes[0])
    assert Recipe.read(tmp_path / "recipe.toml").data == "digits"
    assert "torch" in outline.texts["th"]


def test_the_same_runs_give_the_same_page(page, tmp_path):
    lookup = {0.9: Published(90.88, 0.07, "300 epochs"), 0.5: Published(None, None, "300 epochs")}
    again = write_report(
        [page.parent / "runs"],
        tmp_path / "again.html",
        title="A <b>title</b>",
        published=lambda recipe, finetuned: None if finetuned else lookup.get(recipe.sparsity),
    )
    assert again.read_bytes() == page.read_bytes()


@pytest.mark.parametrize(
    ("recipe", "finetuned", "said"),
    [
        (Recipe(data="cifar10", model="resnet20", method="dpf", sparsity=0.9), False, "90.88 ± 0.07 | 300 epochs"),
        (Recipe(data="cifar10", model="resnet20", method="oneshot"), True, "90.18 ± 0.12 | 300 + 60 epochs"),
        (Recipe(data="cifar10", model="resnet20", method="dense"), False, "92.48 ± 0.20 | 300 epochs"),
        (Recipe(data="imagenet", model="resnet50", method="incremental", sparsity=0.8), False, "74.25 | 90 epochs"),
        (Recipe(data="cifar10", model="resnet20", width=8), False, None),
        (Recipe(data="cifar10", model="resnet20", holdout=5000), False, None),
        (Recipe(data="cifar10", model="resnet8"), False, None),
        (Recipe(data="cifar100", model="resnet20"), False, None),
        (Recipe(data="cifar10", model="resnet20", sparsity=0.123), False, None),
    ],
)
def test_the_papers_number_is_shown_only_for_the_same_setting(recipe, finetuned, said):
    found = in_the_paper(recipe, finetuned)
    assert (f"{found} | {found.scale}" if found else None) == said


def test_the_command_writes_page_and_figures(runs, tmp_path):
    command = [sys.executable, "-m", "regrow", "report", str(runs / "dpf90-s0"), "-o", str(tmp_path / "page.html")]
    ended = subprocess.run(
        [*command, "--figures", str(tmp_path / "figures")], check=True, capture_output=True, text=True
    )
    assert str(tmp_path / "page.html") in ended.stdout
    assert (tmp_path / "page.html").stat().st_size > 500_000
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".svg", ".png", ".pdf"}


@pytest.mark.parametrize("folder", [".", "/", ".."])
def test_a_folder_as_output_file_is_explained_in_one_line(runs, tmp_path, folder):
    command = [sys.executable, "-m", "regrow", "report", str(runs), "-o", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"regrow: --out must be a file, but {folder} is a folder. Did you mean ")
    assert done.stderr.count("\n") == 1


def test_a_folder_without_runs_is_explained_in_one_line(tmp_path):
    command = [sys.executable, "-m", "regrow", "report", str(tmp_path), "-o", str(tmp_path / "page.html")]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert ended.stderr.startswith("regrow: there is no run in")
    assert not (tmp_path / "page.html").exists()


INK = """
[...document.querySelectorAll('.chart')].map(chart => {
    const marks = [...chart.querySelectorAll('svg .mark-line path, svg .mark-rect path, svg .mark-symbol path')];
    const box = chart.querySelector('svg').getBoundingClientRect();
    return [chart.id, marks.filter(mark => mark.getAttribute('d')).length, box.width, box.height];
})
"""
DRAWN = "document.documentElement.dataset.drawn"


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_a_browser_draws_every_figure_without_errors(page):
    with Chromium() as browser:
        for look in ({"width": 1280}, {"width": 1280, "dark": True}, {"width": 390, "touch": True}):
            browser.screen(**look, height=900)
            browser.open(page.as_uri())
            browser.wait_for(DRAWN, 120)
            drawn = browser.evaluate(INK)
            assert len(drawn) == 11
            for name, marks, width, height in drawn:
                assert marks > 0, f"{name} is empty"
                assert width > 250, name
                assert height > 60, name
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
            background = browser.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            assert background == ("rgb(15, 18, 22)" if look.get("dark") else "rgb(245, 246, 248)")
        assert browser.errors == []


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_the_controls_of_the_page_change_its_figures(page):
    lines = "document.querySelectorAll('figure.accuracy .mark-line path[d]').length"
    with Chromium() as browser:
        browser.screen(1280, 900)
        browser.open(page.as_uri())
        browser.wait_for(DRAWN, 120)
        shown = browser.evaluate("[...document.querySelectorAll('input[name=shown]')].map(box => box.value)")
        assert set(shown) == {"Dense", "DPF", "DPF + FT", "OneShot"}
        assert browser.evaluate("document.querySelector('select[name=level]').value") == "0.9"
        controls = "document.querySelector('.controls')"
        assert browser.evaluate(f"{controls}.scrollWidth <= {controls}.clientWidth"), "no control is hidden"
        title = "document.querySelector('figure.accuracy h4').textContent"
        assert browser.evaluate(title) == "Accuracy, 90 %"
        points = "document.querySelectorAll('.tradeoff .mark-rule line').length"
        drawn = browser.evaluate(points)
        assert browser.evaluate(lines) == 3, "dense, DPF and one-shot"
        browser.evaluate("document.querySelector('input[value=Dense]').click()")
        browser.wait_for(f"{lines} === 2")
        browser.wait_for(f"{points} < {drawn}")
        level = "const level = document.querySelector('select[name=level]'); level.value = '0.5';"
        browser.evaluate(level + "level.dispatchEvent(new Event('change', {bubbles: true}))")
        browser.wait_for(f"{lines} === 2")
        assert browser.evaluate(title) == "Accuracy, 50 %"
        browser.evaluate("document.querySelector('button[data-all=true]').click()")
        browser.wait_for(f"{lines} === 3")
        browser.screen(1280, 900, dark=True)
        browser.wait_for("document.querySelector('figure.accuracy svg .background').getAttribute('fill') !== '#ffffff'")
        browser.wait_for(DRAWN, 120)
        assert browser.evaluate(lines) == 3, "the choice survives a change of the mode"
        assert browser.errors == []


def test_the_page_opens_with_a_sentence_and_three_numbers(page, outline):
    text = page.read_text(encoding="utf-8")
    opening = re.search(r'<p class="opening">(.*?)</p>\s*<ul class="numbers">(.*?)</ul>', text, re.DOTALL)
    assert opening is not None
    assert text.index("opening") < text.index("<table")
    assert re.fullmatch(
        r"(DPF|OneShot) 90\xa0%, the most accurate of 2 at 90\xa0%, has [\d.]+\xa0% accuracy; .*", opening[1]
    )
    found = re.findall(r"<strong>(.*?)</strong> (.*?)</li>", opening[2])
    assert [said for _, said in found] == ["points of accuracy against dense", "parameters left", "MACs left"]
    assert re.fullmatch(r"[+−]\d+\.\d", found[0][0])
    assert all(re.fullmatch(r"[\d.]+\xa0%", value) for value, _ in found[1:])


def test_recipes_are_shown_without_their_defaults(outline):
    assert any('method = "dense"' in recipe for recipe in outline.texts["pre"])
    assert not any("momentum" in recipe for recipe in outline.texts["pre"])


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_the_x_axis_of_the_trade_off_can_be_chosen(page):
    titles = "[...document.querySelectorAll('.tradeoff .role-axis-title text')].map(text => text.textContent).join()"
    with Chromium() as browser:
        browser.screen(390, 900, touch=True)
        browser.open(page.as_uri())
        browser.wait_for(DRAWN, 120)
        assert "pruned of the targeted weights" in browser.evaluate(titles)
        choose = "const axis = document.querySelector('select[name=figure]'); axis.selectedIndex = 1;"
        browser.evaluate(choose + "axis.dispatchEvent(new Event('change', {bubbles: true}))")
        browser.wait_for(f"{titles}.includes('parameters left')")
        assert browser.evaluate("document.querySelectorAll('.tradeoff .mark-text text').length") >= 3
        controls = "document.querySelector('.controls')"
        assert browser.evaluate(f"getComputedStyle({controls}).position") == "sticky"
        assert browser.evaluate(f"{controls}.clientHeight") < 60, "the legend is one row"
        assert browser.evaluate("document.querySelector('.scroll').classList.contains('overflows')")
        assert browser.errors == []


def test_the_page_holds_the_data_once_and_in_a_form_that_ends_no_script(page):
    text = page.read_text(encoding="utf-8")
    (payload,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    assert "<" not in payload
    assert len(json.loads(payload)["figures"]) == 13


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_figures_react_to_the_mouse_and_the_wheel_scrolls_the_page(page):
    texts = "[...document.querySelectorAll('figure.accuracy .role-axis-label text')].map(text => text.textContent)"
    labels = f"{texts}.sort().join()"
    tooltip = "(document.querySelector('#vg-tooltip-element.visible') || {}).innerText"
    with Chromium() as browser:
        browser.screen(1280, 900)
        browser.open(page.as_uri())
        browser.wait_for(DRAWN, 120)
        browser.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
        left, top, width, height = browser.box("figure.accuracy .chart")
        at = {"x": left + 0.6 * width, "y": top + 0.5 * height}
        browser.mouse("mouseMoved", **at)
        said = browser.wait_for(tooltip)
        assert re.search(r"DPF|Dense|OneShot", said)
        assert "epoch" in said
        before = browser.evaluate(labels)
        scrolled = browser.evaluate("scrollY")
        browser.mouse("mouseWheel", deltaX=0, deltaY=120, **at)
        browser.wait_for(f"scrollY > {scrolled}")
        assert browser.evaluate(labels) == before, "the wheel alone scrolls"
        browser.evaluate(f"scrollTo(0, {scrolled})")
        for _ in range(4):
            browser.mouse("mouseWheel", deltaX=0, deltaY=-240, modifiers=2, **at)
        browser.wait_for(f"{labels} !== {json.dumps(before)}")
        for clicks in (1, 2):
            for kind in ("mousePressed", "mouseReleased"):
                browser.mouse(kind, button="left", clickCount=clicks, **at)
        browser.wait_for(f"{labels} === {json.dumps(before)}")
        assert browser.errors == []
