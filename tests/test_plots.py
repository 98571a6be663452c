import itertools

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from pcv.report import figures, plots
from pcv.report.plots import shared
from tests.synthetic import make_predictions, make_results

LONG = "varying_intercepts_and_slopes"
MODELS = (LONG, "slopes", "common", "varying_intercepts_only", "pooled")


def texts(figure: Figure) -> list[Text]:
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text.axes is not None
    ]


def titles(figure: Figure) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes]


def is_clipped(figure: Figure) -> list[str]:
    """Texts that stick out of the figure."""
    figure.draw_without_rendering()
    page = figure.bbox.padded(1)
    boxes = {text: text.get_window_extent() for text in texts(figure)}
    return [
        text.get_text()
        for text, box in boxes.items()
        if not (page.contains(*box.min) and page.contains(*box.max))
    ]


@pytest.mark.parametrize("models", [MODELS[:1], ("slopes", "common"), MODELS])
@pytest.mark.parametrize("folds", [5, 400])
def test_every_figure_builds_in_one_style(models: tuple[str, ...], folds: int) -> None:
    comparison, diagnostics, _ = make_results(models, folds)
    for figure in figures(comparison, diagnostics, make_predictions(diagnostics)).values():
        assert figure.get_figwidth() == plots.WIDTH
        assert {text.get_fontsize() for text in texts(figure)} <= {plots.SMALL, plots.NORMAL}
    assert plots.SMALL >= 9


@pytest.mark.parametrize(("models", "folds"), [(("slopes",), 30), (MODELS, 30), (MODELS, 400)])
def test_no_text_is_clipped(models: tuple[str, ...], folds: int) -> None:
    comparison, diagnostics, _ = make_results(models, folds, khat_of_worst=1.4)
    for name, figure in figures(comparison, diagnostics, make_predictions(diagnostics)).items():
        assert is_clipped(figure) == [], name


@pytest.mark.parametrize(
    ("categories", "kind", "panels"), [(2, None, 1), (4, "ordinal", 3), (4, "categorical", 4)]
)
@pytest.mark.parametrize("lowest", [0, 1])
def test_calibration_of_categories(
    categories: int, kind: str | None, panels: int, lowest: int
) -> None:
    """By isotonic regression, one panel for each probability of at most a category."""
    _, diagnostics, _ = make_results((LONG,))
    (predicted,) = make_predictions(diagnostics).values()
    rng, number = np.random.default_rng(1), predicted.sizes["unit"]
    p = rng.dirichlet(np.ones(categories), number).cumsum(1)[:, :-1]
    if kind is None:
        lowest = 0
    else:
        predicted.attrs["categories"] = kind
    predicted["y"][:] = (rng.random((number, 1)) > p).sum(1) + lowest
    predicted["y_rep"][:] = (rng.random((4, 25, number, 1)) > p).sum(-1) + lowest
    figure = plots.calibration({LONG: predicted})
    assert len(figure.axes) == panels
    shown = plots.observed(predicted, LONG).axes[0]
    assert shown.get_title("left").endswith("how probable they were")
    assert is_clipped(shown.figure) == []
    event = {None: "1", "ordinal": f"at most {lowest}", "categorical": f"{lowest}"}[kind]
    assert figure.axes[0].get_title("left").endswith(f"frequency of outcome {event}")
    assert is_clipped(figure) == []
    assert figure.get_figwidth() == plots.WIDTH
    assert {text.get_fontsize() for text in texts(figure)} <= {plots.SMALL, plots.NORMAL}


def test_calibration_of_counts_and_of_continuous_replicates() -> None:
    """They have coverage, even if the outcome takes few values."""
    _, diagnostics, _ = make_results((LONG,))
    (predicted,) = make_predictions(diagnostics).values()
    number = predicted.sizes["unit"]
    predicted["y"][:] = np.arange(number) % 2
    titles = [plots.calibration({LONG: predicted}).axes[0].get_title("left")]
    predicted["y"][:] = np.arange(number) % 5
    predicted["y_rep"][:] = np.arange(number) % 4
    titles.append(plots.calibration({LONG: predicted}).axes[0].get_title("left"))
    assert all("coverage, less that if calibrated" in title for title in titles)


def test_pits_are_drawn_once_per_unit_and_of_single_units_too() -> None:
    _, diagnostics, _ = make_results(("slopes",))
    (predicted,) = make_predictions(diagnostics).values()
    one = plots.pit({"slopes": predicted.isel(unit=[0])})
    assert bands_of(one) == []
    twice = xr.concat([predicted, predicted], "unit")
    lines = [plots.pit({"slopes": x}).axes[0].lines[0].get_ydata() for x in (predicted, twice)]
    np.testing.assert_array_equal(*lines)


def bands_of(figure: Figure) -> list[PolyCollection]:
    return [x for x in figure.axes[0].collections if isinstance(x, PolyCollection)]


def test_bands_are_of_independent_pits() -> None:
    _, diagnostics, _ = make_results(("slopes",))
    predictions = make_predictions(diagnostics)
    assert len(bands_of(plots.pit(predictions))) == 1
    shared_by_fold = predictions["slopes"]["pit"].values[::5]
    predictions["slopes"]["pit"][:] = np.repeat(shared_by_fold, 5)
    assert bands_of(plots.pit(predictions)) == []


def test_clipping_is_noticed() -> None:
    figure = Figure(figsize=(2, 1))
    figure.subplots().text(0, 0.5, "a text that is far too long for two inches")
    assert is_clipped(figure)


def test_names_beside_lines_do_not_overlap() -> None:
    comparison, _, _ = make_results(MODELS)
    comparison["p_better_at"][:] = 0.01
    for figure in (plots.difference(comparison), plots.probability(comparison)):
        figure.draw_without_rendering()
        for ax in figure.axes:
            boxes = [Text.get_window_extent(text) for text in ax.texts]
            assert len(boxes) >= len(MODELS) - 1
            for one, other in itertools.combinations(boxes, 2):
                assert min(one.y1, other.y1) - max(one.y0, other.y0) < 2


def test_difference_draws_both_uncertainties() -> None:
    comparison, _, _ = make_results()
    figure = plots.difference(comparison)
    assert titles(figure) == [f"{k}: elpd difference from slopes" for k in ("Joint", "Pointwise")]
    for ax, kind in zip(figure.axes, comparison["kind"].values, strict=True):
        common = comparison.sel(kind=kind, model="common")
        line = ax.lines[0]
        np.testing.assert_array_equal(line.get_xdata(), common["point"])
        np.testing.assert_array_equal(line.get_ydata(), common["diff_at"])
        band = ax.collections[0].get_paths()[0].vertices
        at_end = band[band[:, 0] == common["point"].values[-1], 1]
        np.testing.assert_allclose(np.ptp(at_end), 4 * common["mcse_diff_at"][-1])
        (bar,) = ax.containers
        ((low, high),) = (segment[:, 1] for segment in bar.lines[2][0].get_segments())
        np.testing.assert_allclose((high - low) / 2, common["dse"])
        np.testing.assert_allclose((high + low) / 2, common["elpd_diff"])
        assert any("common\n" in text.get_text() for text in ax.texts)


def test_each_kind_has_its_own_comparator() -> None:
    comparison, _, _ = make_results()
    comparison.attrs["reference_pointwise"] = "common"
    assert titles(plots.difference(comparison)) == [
        "Joint: elpd difference from slopes",
        "Pointwise: elpd difference from common",
    ]


def test_joint_scores_alone_make_one_panel() -> None:
    comparison, _, _ = make_results()
    joint = comparison.sel(kind=["joint"])
    for draw in (plots.difference, plots.uncertainty, plots.probability, plots.fold_differences):
        assert len(draw(joint).axes) == 1


def test_one_model_is_shown_by_its_elpd() -> None:
    comparison, _, _ = make_results(("slopes",))
    figure = plots.difference(comparison)
    assert titles(figure)[0] == "Joint: elpd of slopes"
    np.testing.assert_array_equal(
        figure.axes[0].lines[0].get_ydata(), comparison["elpd_at"].sel(kind="joint")[0]
    )
    assert "nothing to compare" in texts(plots.probability(comparison))[0].get_text()
    by_fold = plots.fold_differences(comparison).axes[0]
    assert by_fold.get_xlabel() == "elpd of slopes"


def test_a_model_keeps_its_look_and_no_two_share_a_part_of_it() -> None:
    styles = shared.styles_of(MODELS)
    for part in ("colour", "marker", "dash"):
        assert len({getattr(style, part) for style in styles.values()}) == len(MODELS)
    comparison, diagnostics, _ = make_results(MODELS)
    panels = {"difference": plots.difference(comparison), "khat": plots.khat(diagnostics)}
    for i, name in enumerate(MODELS[1:], 1):
        look = styles[name].colour, styles[name].marker
        for ax in (panels["difference"].axes[0], panels["khat"].axes[i]):
            assert look in [(line.get_color(), line.get_marker()) for line in ax.lines]


def test_few_folds_are_named_and_sorted() -> None:
    comparison, _, _ = make_results()
    figure = plots.fold_differences(comparison)
    values = comparison["fold_diff"].sel(kind="joint", model="common").to_series()
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == list(values.sort_values().index)
    np.testing.assert_allclose(figure.axes[0].containers[0].lines[0].get_xdata(), np.sort(values))


def test_of_many_folds_the_extremes_are_named() -> None:
    comparison, _, _ = make_results(folds=400)
    figure = plots.fold_differences(comparison)
    values = comparison["fold_diff"].sel(kind="joint", model="common").to_series().sort_values()
    named = {text.get_text() for text in figure.axes[0].texts}
    assert named == {*values.index[:3], *values.index[-3:]}


def test_missing_values_are_drawn_as_gaps_and_said() -> None:
    comparison, diagnostics, _ = make_results()
    for name in (
        "diff_at",
        "dse_at",
        "mcse_diff_at",
        "p_better_at",
        "fold_diff",
        "elpd_diff",
        "dse",
    ):
        comparison[name][0] = np.nan
    comparison["benchmark"][:] = np.nan
    for name in ("khat", "fit_rhat", "fit_ess", "rhat_at"):
        diagnostics["common"][name][:] = np.nan
    drawn = figures(comparison, diagnostics, make_predictions(diagnostics))
    for figure in drawn.values():
        figure.draw_without_rendering()
    assert "30 missing" in titles(drawn["rhat"])[1]
    assert "30 missing" in titles(drawn["khat"])[1]
    assert "common\n– ± –" in drawn["difference"].axes[0].texts[0].get_text()
    assert "63 of 63" in titles(drawn["full_data"])[1]


def test_a_stuck_chain_is_seen() -> None:
    _, diagnostics, _ = make_results()
    folds = diagnostics["common"]
    folds["rhat_at"][4, -1] = np.inf
    folds["khat"][6] = np.inf
    folds["rhat_max"] = np.inf
    (rhat,) = plots.rhat({"common": folds}).axes
    assert "max ∞, rat 5" in [text.get_text() for text in rhat.texts]
    assert "not finite" in titles(plots.benchmark({"common": folds}))[0]
    (khat,) = plots.khat({"common": folds}).axes
    assert "rat 7" in [text.get_text() for text in khat.texts]


def test_benchmark_shows_the_share_and_the_observed_value() -> None:
    comparison, _, _ = make_results()
    (ax,) = plots.benchmark({"all models": comparison}).axes
    share = float((comparison["benchmark"] >= comparison["rhat_max"]).mean())
    assert f"{100 * share:.0f}%" in ax.get_title(loc="left")
    assert ax.lines[0].get_xdata()[0] == comparison["rhat_max"]


def test_names_are_not_read_as_mathematics() -> None:
    comparison, diagnostics, _ = make_results(fold_name="$\\frac$ <b>&{}")
    for figure in figures(comparison, diagnostics, make_predictions(diagnostics)).values():
        figure.draw_without_rendering()
    labels = plots.fold_differences(comparison).axes[0].get_yticklabels()
    assert "$\\frac$ <b>&12" in {label.get_text() for label in labels}


@given(st.lists(st.text("ab_", min_size=1, max_size=40), min_size=1, max_size=6, unique=True))
@settings(max_examples=50)
def test_short_names_differ(names: list[str]) -> None:
    short = plots.shorten(names)
    assert len(set(short)) == len(names)
    assert max(map(len, short)) <= 18 + len("1: ")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
@settings(max_examples=50)
def test_labels_are_spread_without_changing_their_order(wanted: list[float]) -> None:
    heights = np.full(len(wanted), 0.1)
    places = shared.spread(np.array(wanted), heights)
    order = np.argsort(wanted, kind="stable")
    assert (np.diff(places[order]) >= 0.1 - 1e-9).all()
    assert places.min() >= 0.05 - 1e-9
    assert places.max() <= 0.95 + 1e-9


def test_labels_with_room_stay_where_they_belong() -> None:
    wanted = np.array([0.9, 0.1, 0.5])
    np.testing.assert_allclose(shared.spread(wanted, np.full(3, 0.1)), wanted)


def test_notebooks_show_figures_without_pyplot() -> None:
    comparison, _, _ = make_results()
    for figure in (plots.difference(comparison), plots.fold_differences(comparison)):
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_comparison_without_its_comparator_is_refused() -> None:
    comparison, _, _ = make_results()
    del comparison.attrs["reference_joint"]
    with pytest.raises(KeyError, match="reference_joint"):
        plots.difference(comparison)


def test_datasets_are_left_as_they_were() -> None:
    comparison, diagnostics, _ = make_results()
    before = comparison.copy(deep=True), {k: v.copy(deep=True) for k, v in diagnostics.items()}
    figures(comparison, diagnostics, make_predictions(diagnostics))
    xr.testing.assert_identical(comparison, before[0])
    for name, folds in diagnostics.items():
        xr.testing.assert_identical(folds, before[1][name])
