import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from pcv import report
from pcv.analysis.results.numbers import typeset
from pcv.analysis.results.predicted import table
from pcv.pipeline.stages.page import write_figures
from pcv.report import plots
from tests.synthetic import PROVENANCE, make_predictions, make_results

CAPTIONS = Path(__file__).parents[1] / "workflow" / "report"
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """The tags, ids, references and visible words of a page; fails on unbalanced tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())

    def every(self, attribute: str) -> Iterator[str]:
        return (attrs[attribute] for _, attrs in self.tags if attribute in attrs)


def render(
    results: Any = None,
    marks: tuple[str, ...] = (),
    draw: bool = False,
    caveat: str = "A caveat.",
    predicted: bool = True,
    **provenance: Any,
) -> str:
    comparison, diagnostics, frame = results or make_results()
    predictions = make_predictions(diagnostics) if predicted else {}
    figs = report.drawn(report.figures(comparison, diagnostics, predictions)) if draw else {}
    origin = {**PROVENANCE, **provenance}
    said = {"joint": [caveat], "pointwise": []}
    words = "Rats & slopes", marks, said
    parts = comparison, diagnostics, frame, origin, figs, *words
    return report.html(*parts, predictions=predictions)


@pytest.fixture(scope="module")
def text() -> str:
    return render(draw=True)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_needs_nothing_from_outside(text: str, page: Page) -> None:
    addresses = re.findall(r"https?://[^\"'\s<>]*", re.sub(r'xmlns(:\w+)?="[^"]*"', "", text))
    assert addresses == []
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not re.search(r"@import|url\((?!#)", text)
    assert list(page.every("src")) == []


def test_ids_are_unique_and_references_lead_somewhere(text: str, page: Page) -> None:
    ids = list(page.every("id"))
    assert len(ids) == len(set(ids))
    links = [link for name in ("href", "xlink:href") for link in page.every(name)]
    targets = {link.removeprefix("#") for link in links} | set(re.findall(r"url\(#([^)]+)\)", text))
    targets |= set(page.every("aria-labelledby"))
    assert len(targets) > len(report.CAPTIONS)
    assert targets <= set(ids)


def test_structure_is_semantic(page: Page) -> None:
    tags = [tag for tag, _ in page.tags]
    assert ("html", {"lang": "en"}) in page.tags
    assert "width=device-width, initial-scale=1" in page.every("content")
    assert tags.count("h1") == tags.count("main") == 1
    drawings = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert [d["aria-labelledby"].removeprefix("caption-") for d in drawings] == list(
        report.CAPTIONS
    )
    assert all(d["role"] == "img" and "width" not in d for d in drawings)
    assert tags.count("figure") == tags.count("figcaption") == len(report.CAPTIONS)
    regions = [attrs for tag, attrs in page.tags if attrs.get("class") == "scroll"]
    assert len(regions) == tags.count("table") == 9
    assert all(attrs["aria-label"] and attrs["tabindex"] == "0" for attrs in regions)


def test_the_verdict_comes_before_all_numbers(text: str) -> None:
    verdict = "slopes predicts whole folds best. The computation can be trusted."
    assert 0 < text.index(verdict) < text.index("<table")


def test_calibration_and_the_units_predicted_worst(page: Page) -> None:
    assert "Is the better one any good?" in page.words
    _, diagnostics, _ = make_results()
    predictions = make_predictions(diagnostics)
    units = table(predictions["slopes"], diagnostics["slopes"])
    first = page.words.index("slopes: the units that it predicts worst")
    cells = [word for word in page.words[first:] if word]
    start = cells.index("elpd") + 1
    lowest = units.sort_values("elpd", kind="stable").index[:10]
    assert cells[start : start + 60 : 6] == lowest.tolist()
    for predicted in predictions.values():
        inside = (2 * abs(predicted["pit"] - 0.5) <= 0.8).mean()
        assert any(
            word.startswith(f"{float(inside):.0%}\N{NO-BREAK SPACE}±") for word in page.words
        )


def test_tables_hold_the_numbers_of_the_comparison(page: Page) -> None:
    _, _, frame = make_results()
    for row in frame[frame["rank"] == 1].itertuples():
        for value in (row.elpd_diff, row.dse, row.elpd, row.se):
            assert f"{value:,.1f}".replace("-", "−") in page.words
        for value in (row.mcse_diff, row.mcse):
            assert f"{value:.2f}" in page.words
        assert f"{100 * row.p_better:.0f}%" in page.words
        ends = f"{row.eti90_lb:,.1f} to {row.eti90_ub:,.1f}"
        assert ends.replace("-", "−") in page.words
    assert "1.00 (0.25)" in page.words


def test_every_fold_and_its_numbers_are_listed(page: Page) -> None:
    _, diagnostics, _ = make_results()
    for folds in diagnostics.values():
        for k, fold in enumerate(folds["fold"].values):
            assert page.words.count(fold) >= 2
            assert f"{float(folds['rhat'][k]):.3f}" in page.words
            assert f"{float(folds['khat'][k]):.2f}".replace("-", "−") in page.words
            assert f"{float(folds['efmi'][k]):.2f}" in page.words
    assert "No fold is flagged." in page.words


def test_full_data_fits_and_origin_are_told(text: str, page: Page) -> None:
    _, diagnostics, _ = make_results()
    fit = diagnostics["common"]["fit_rhat"].to_series()
    assert f"{fit.max():.3f} ({fit.idxmax()})" in page.words
    assert "0.88" in page.words
    for word in ("0123abc", "2 CPU devices", "jax: 0.12.0", "fit/slopes: 6.3", "20231"):
        assert word in page.words
    assert "file: resources/rats.csv" in text
    assert Page(render(config="seed: 1  # as written")).words.count("seed: 1  # as written") == 1


def test_flagged_folds_stand_out() -> None:
    results = make_results(khat_of_worst=7.9)
    text = render(results)
    assert "Folds to look at" in text
    assert "No fold is flagged" not in text
    assert "common: k-hat 7.9: heavy-tailed predictive" in text
    rows = re.findall(r'<tr class="flagged"><th scope="row">([^<]*)', text)
    assert rows == ["common", "rat 11", "rat 11"]
    assert text.count("k-hat 7.9") == 1


def test_the_verdict_of_a_model_is_not_said_under_every_table() -> None:
    _, _, frame = results = make_results()
    frame["verdict"] = "1 of 30 folds is flagged: rat 11 (stuck)."
    page = Page(render(results))
    assert "stuck" not in " ".join(page.words)
    assert page.words.count("see Computation") == len(frame)


def test_an_mcse_that_is_a_lower_bound_is_shown_so() -> None:
    _, diagnostics, frame = results = make_results(khat_of_worst=7.9)
    frame["mcse_diff_is_bound"] = frame["model"] == "common"
    words = Page(render(results)).words
    fold = float(diagnostics["common"]["joint_mcse"][10])
    assert f"> {typeset(fold, fold)}" in words
    assert f"> {typeset(frame['mcse_diff'][1], frame['mcse_diff'][1])}" in words
    assert sum(word.startswith("> ") for word in words) == 3


def test_unmixed_chains_and_bad_fits_stand_out() -> None:
    _, diagnostics, _ = results = make_results()
    diagnostics["slopes"]["benchmark_share"] = 0.002
    diagnostics["common"].attrs["bad_fit"] = True
    rows = re.findall(r'<tr class="flagged"><th scope="row">([^<]*)', render(results))
    assert rows == ["slopes", "common"]


def test_batches_of_all_lengths_are_shown_and_short_ones_stand_out() -> None:
    _, diagnostics, _ = results = make_results()
    diagnostics["slopes"].attrs["batch_size"] = 5
    diagnostics["slopes"]["batch_check"][:2] = np.array([0.55, np.nan])
    del diagnostics["common"]["batch_check"]
    words = [word for word in Page(render(results)).words if word]
    at = words.index("Length of batches")
    assert words[at + 1 : at + 8] == ["model", "5", "10", "20", "50", "100", "verdict"]
    assert words[at + 8 : at + 15] == [
        *("slopes", "0.55", "–", "0.97", "0.99", "1.00", "batches of 5 are too short")
    ]
    assert "Length of batches" in Page(render()).words
    assert "batches of 20 are long enough" in Page(render()).words
    assert 'class="flagged"><th scope="row">slopes' in render(results)


def test_flagged_units_and_caveats_are_told() -> None:
    _, diagnostics, _ = results = make_results()
    diagnostics["common"]["pointwise_verdict"][2, 1] = "R-hat 1.4: chains disagree"
    page = Page(render(results, caveat="common: its Pr is a rough figure."))
    assert "No fold is flagged." in page.words
    assert "common: its Pr is a rough figure." in page.words
    at = page.words.index("common: R-hat 1.4: chains disagree")
    assert "rat 3, day 15" in page.words[at - 3 : at]
    assert "Units to look at" not in Page(render()).words
    diagnostics["common"]["pointwise_verdict"][:] = "stuck"
    assert "And 50 more: pointwise_verdict in diagnostics.zarr." in Page(render(results)).words


def test_draws_of_folds_that_ended_early_are_told() -> None:
    comparison, diagnostics, _ = results = make_results()
    diagnostics["common"]["n_draws"][:10] = 80
    comparison.attrs["until"] = "cv.until: settled. Draws per chain: 80 to 200."
    page = Page(render(results))
    assert "cv.until: settled. Draws per chain: 80 to 200." in page.words
    assert {"8 × 80 to 200", "8 × 200"} <= set(page.words)
    assert page.words.count("draws") == 1
    assert page.words.count("80") == 10


@pytest.mark.slow
def test_nested_rhat_is_named() -> None:
    comparison, diagnostics, _ = results = make_results()
    for part in (comparison, *diagnostics.values()):
        part.attrs["rhat_is_nested"] = True
    text = render(results, draw=True)
    for words in ("nested R-hat of 30 folds", ">nested R-hat max<", ">nested R-hat<", "reassigned"):
        assert words in text
    assert "R-hat of the log score of each fold, over draws. Bold" not in text
    assert "nested" not in render(draw=True).lower()


def test_nested_rhat_is_named_beside_rhat() -> None:
    _, diagnostics, _ = results = make_results()
    for folds in diagnostics.values():
        folds["nested_rhat_max"], folds["nested_benchmark_share"] = 1.2345, 0.004
    words = Page(render(results)).words
    assert [words.count(x) for x in ("nested R-hat max", "1.234", "<1%")] == [1, 2, 2]


def test_marks_are_a_banner(page: Page) -> None:
    marked = Page(render(marks=("The bad fit of common was allowed.", "Drawn on <one> core.")))
    assert ("aside", {"class": "warning", "aria-label": "Warning"}) in marked.tags
    assert {"The bad fit of common was allowed.", "Drawn on <one> core."} <= set(marked.words)
    assert "aside" not in {tag for tag, _ in page.tags}


def test_names_are_escaped() -> None:
    results = make_results(("<b>&", "common"), folds=6, fold_name='<i>{}&"\' id="x"')
    text = render(results, draw=True, git_commit="<script>alert(1)</script>")
    page = Page(text)
    assert not {"b", "i", "script"} & {tag for tag, _ in page.tags}
    assert "<b>&" in page.words
    assert '<i>1&"\' id="x"' in page.words
    assert "Rats & slopes" in page.words
    ids = list(page.every("id"))
    assert len(ids) == len(set(ids))


def test_one_model_has_scores_but_no_comparison() -> None:
    text = render(make_results(("slopes",), folds=5), draw=True)
    page = Page(text)
    assert "How well does the model predict?" in page.words
    assert "caption-probability" not in text
    assert "difference" not in page.words
    comparison, _, _ = make_results(("slopes",), folds=5)
    elpd = float(comparison["elpd"].sel(kind="joint", model="slopes"))
    assert f"{elpd:,.1f}".replace("-", "−") in page.words


def test_se_over_folds_is_told_where_it_differs(text: str) -> None:
    comparison, _, _ = results = make_results()
    comparison["dse_folds"].loc["pointwise", "common"] = 9.87
    assert "SE of the difference over folds instead of units: common 9.9." in render(results)
    assert "instead of units" not in text


def test_missing_values_are_dashes() -> None:
    comparison, diagnostics, frame = make_results()
    frame.loc[1, ["elpd_diff", "dse", "mcse_diff", "p_better"]] = float("nan")
    diagnostics["common"]["khat"][:] = float("nan")
    page = Page(render((comparison, diagnostics, frame)))
    cells = [word for word in page.words if word]
    row = cells[cells.index("Joint scores: 30 folds, marginal predictive") :]
    common = row.index("common")
    assert row[common : common + 5] == ["common", "–", "–", "–", "n/a"]


def test_figures_are_written_as_png_and_svg(tmp_path: Path) -> None:
    comparison, diagnostics, _ = make_results(folds=5)
    figs = {"difference": plots.difference(comparison), "khat": plots.khat(diagnostics)}
    paths = write_figures(report.drawn(figs), tmp_path / "new" / "figures")
    assert {path.name for path in paths} == {f"{n}.{e}" for n in figs for e in ("png", "svg")}
    for path in paths:
        if path.suffix == ".png":
            header = path.read_bytes()[:24]
            assert header.startswith(b"\x89PNG")
            assert int.from_bytes(header[16:20]) == round(200 * 4.8)
        else:
            assert ET.parse(path).getroot().tag.endswith("svg")


def test_svg_is_the_same_every_time() -> None:
    comparison, diagnostics, _ = make_results(folds=5)
    for draw, contents in ((plots.difference, comparison), (plots.khat, diagnostics)):
        first, second = (report.svg(draw(contents), "name") for _ in range(2))
        assert first == second


def test_png_and_svg_have_their_parts_in_the_same_places() -> None:
    """Places are found once: those of the SVG, without its own search, are the PNG's."""
    figures = [plots.difference(make_results(folds=5)[0]) for _ in range(2)]
    report.drawn({"name": figures[0]})
    report.svg(figures[1], "name")
    once, alone = ([ax.get_position().bounds for ax in figure.axes] for figure in figures)
    assert once == alone
    untouched = plots.difference(make_results(folds=5)[0])
    assert [ax.get_position().bounds for ax in untouched.axes] != once


def test_every_figure_has_its_captions() -> None:
    comparison, diagnostics, _ = make_results(folds=5)
    names = set(report.figures(comparison, diagnostics, make_predictions(diagnostics)))
    assert set(report.CAPTIONS) == names
    assert {path.stem for path in CAPTIONS.glob("*.rst")} == names | {
        *("page", "comparison", "paper", "cumulative")
    }
    assert all(path.read_text().strip() for path in CAPTIONS.glob("*.rst"))


def test_joint_scores_alone_make_one_table() -> None:
    comparison, diagnostics, frame = make_results()
    joint: xr.Dataset = comparison.sel(kind=["joint"])
    text = render((joint, diagnostics, frame[frame["kind"] == "joint"]))
    assert "Joint scores" in text
    assert "Pointwise scores" not in text
