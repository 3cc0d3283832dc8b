"""Heatmaps, checked by their pixels, labels and files."""

import itertools
import warnings

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from regard.pictures import heatmap, panels
from tests.pictures.fakes import FakeMap, HugeMap, attention, crop, pixels

ENGLISH = ["the", "cat", "sat", "down", "."]
FRENCH = ["le", "chat", "s'est", "assis", "."]


def labels(axis):
    return [tick.get_text() for tick in axis.get_ticklabels()]


def test_small_map_shows_every_label_and_every_weight():
    weights = attention(5, 5)
    figure = heatmap.draw(FakeMap(weights, ENGLISH, FRENCH))
    axes, bar = figure.axes
    assert labels(axes.yaxis) == ENGLISH
    assert labels(axes.xaxis) == FRENCH
    assert (axes.get_ylabel(), axes.get_xlabel(), bar.get_ylabel()) == ("query", "key", "weight")
    assert [text.get_text() for text in axes.texts] == [f"{weight:.2f}" for weight in weights.flatten().tolist()]


def test_weights_are_written_only_if_they_fit_and_are_few():
    def written(*shape, **options):
        return len(heatmap.draw(FakeMap(attention(*shape)), **options).axes[0].texts)

    assert (written(5, 5), written(30, 30), written(16, 9, 9)) == (25, 0, 0)
    assert (written(5, 5, annotate=False), written(30, 30, annotate=True)) == (0, 900)


def test_long_titles_fit_their_panels():
    figure = heatmap.show_heatmaps(torch.rand(1, 3, 5, 5), "k", "q", titles=["a rather long title of a panel"] * 3)
    FigureCanvasAgg(figure).draw()
    boxes = [axes.title.get_window_extent() for axes in figure.axes[:3]]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_queries_run_down_and_keys_across():
    weights = torch.zeros(3, 5)
    weights[1, 4] = 1.0
    panel = pixels(heatmap.draw(FakeMap(weights), annotate=False))
    dark = panel.sum(-1) < 100
    rows, columns = np.nonzero(dark)
    cell = panel.shape[0] // 3
    assert set(rows // cell) == {1} and set(columns // cell) == {4}


def test_cells_have_the_colour_of_their_weight():
    weights = attention(4, 4)
    figure = heatmap.draw(FakeMap(weights), annotate=False, cmap="viridis", limits=(0.0, 2.0))
    panel, cell = pixels(figure), pixels(figure).shape[0] // 4
    middle = panel[cell // 2 :: cell, cell // 2 :: cell]
    expected = 255 * matplotlib.colormaps["viridis"](weights.numpy() / 2)[..., :3]
    assert np.abs(middle - expected).max() <= 1.01


@pytest.mark.parametrize("length", [2, 7, 97, 545, 1088])
def test_every_cell_is_drawn_and_all_have_one_size(length):
    order = torch.randperm(length, generator=torch.Generator().manual_seed(length))
    panel = pixels(heatmap.draw(FakeMap(torch.eye(length)[order]), annotate=False))
    cell = panel.shape[0] // length
    assert panel.shape[:2] == (length * cell, length * cell)
    centres = panel[cell // 2 :: cell, cell // 2 :: cell].sum(-1) < 100
    assert (centres == (torch.eye(length)[order] == 1).numpy()).all()


@pytest.mark.parametrize("size", [None, (3.0, 3.0), (9.0, 2.0)])
@pytest.mark.parametrize("query, key", [(0, 0), (49_999, 49_999), (0, 49_999), (12_345, 43_210)])
def test_one_link_in_fifty_thousand_tokens_is_visible(tmp_path, query, key, size):
    huge = HugeMap(50_000, query, key)
    image = imread(heatmap.save(huge, tmp_path / "map.png", size=size))[..., :3]
    panel = crop(image, heatmap.draw(huge, size=size))
    rows, columns = np.nonzero(panel.sum(-1) < 0.3)
    assert len(rows) >= 4  # two pixels square
    assert abs(rows.mean() / panel.shape[0] - query / 50_000) < 0.01
    assert abs(columns.mean() / panel.shape[1] - key / 50_000) < 0.01


def test_axes_of_a_huge_map_show_some_token_positions():
    axes = heatmap.draw(HugeMap(50_000, 1, 1)).axes[0]
    for axis in (axes.xaxis, axes.yaxis):
        assert labels(axis) == [str(position) for position in range(0, 50_000, 5000)]
        assert list(axis.get_ticklocs()) == list(range(0, 50_000, 5000))
    tokens = [f"w{i}" for i in range(300)]
    axes = heatmap.draw(FakeMap(torch.eye(300), tokens, tokens)).axes[0]
    assert labels(axes.yaxis)[:2] == ["0 w0", "10 w10"]


def test_labels_of_an_axis_never_overlap():
    for length in (3, 30, 60, 90, 400):
        tokens = [f"token{i}" for i in range(length)]
        figure = heatmap.draw(FakeMap(torch.eye(length), tokens, tokens))
        FigureCanvasAgg(figure).draw()
        boxes = [tick.get_window_extent() for tick in figure.axes[0].get_yticklabels()]
        assert all(upper.y0 >= lower.y1 - 2 for upper, lower in itertools.pairwise(boxes)), length
        assert min(box.x0 for box in boxes) >= 0, length


def test_grid_of_heads_shares_scale_axes_and_outer_labels():
    figure = heatmap.draw(FakeMap(attention(7, 5, 5), ENGLISH, ENGLISH))
    *heads, bar = figure.axes
    assert [axes.get_title() for axes in heads] == [f"head {i}" for i in range(7)]
    assert len({axes.images[0].norm for axes in heads}) == 1
    assert heads[0].get_shared_x_axes().joined(heads[0], heads[6])
    assert bar.get_ylim() == pytest.approx((0, float(attention(7, 5, 5).max())))
    shown = [[t for t in axes.get_yticklabels() if t.get_visible()] for axes in heads]
    assert [bool(each) for each in shown] == [True, False, False, False, True, False, False]
    assert [bool(axes.get_xlabel()) for axes in heads] == [False, False, False, True, True, True, True]


def test_titles_name_batch_and_head():
    def titles(shape, **options):
        return [axes.get_title() for axes in heatmap.draw(FakeMap(attention(*shape)), **options).axes[:-1]]

    assert titles((2, 2, 3, 3)) == ["batch 0, head 0", "batch 0, head 1", "batch 1, head 0", "batch 1, head 1"]
    assert titles((1, 2, 3, 3)) == ["head 0", "head 1"]
    assert titles((1, 1, 3, 3)) == titles((3, 3)) == [""]
    assert titles((2, 5, 3, 3), batch=1, heads=[0, -1]) == ["batch 1, head 0", "batch 1, head 4"]
    assert titles((8, 3, 3), heads=np.int64(3)) == ["head 3"]


def test_only_selected_heads_are_computed():
    fake = FakeMap(attention(2, 12, 5, 5))
    figure = heatmap.draw(fake, heads=3, batch=1)
    assert fake.asked == [(1, 3)]
    assert torch.equal(torch.as_tensor(figure.axes[0].images[0].get_array().data), fake.weights[1, 3])


def test_pooling_uses_the_reduction_and_labels_it():
    fake = FakeMap(torch.rand(2000, 2000))
    figure = heatmap.draw(fake, reduce="mean")
    assert fake.asked == [(544, 544, "mean")]
    assert figure.axes[-1].get_ylabel() == "weight (mean of 4 × 4)"


def test_log_scale_separates_small_weights_and_greys_zeros():
    weights = torch.tensor([[1.0, 1e-3], [1e-5, 0.0]])
    figure = heatmap.draw(FakeMap(weights), scale="log", annotate=False)
    panel, half = pixels(figure), pixels(figure).shape[0] // 4
    one, thousandth, least, zero = (panel[y, x].astype(int) for y in (half, 3 * half) for x in (half, 3 * half))
    assert one.sum() < thousandth.sum() < least.sum()
    assert tuple(zero) == (0xE9, 0xE9, 0xEC)
    assert figure.axes[0].images[0].norm.vmin == pytest.approx(1e-5)


def test_a_map_of_zeros_and_one_with_nan_can_be_drawn():
    for scale in ("linear", "log"):
        for weights in (torch.zeros(3, 3), torch.ones(3, 3)):
            low, high = heatmap.draw(FakeMap(weights), scale=scale).axes[-1].get_ylim()
            assert low < high == pytest.approx(1)
        heatmap.draw(FakeMap(torch.full((3, 3), torch.nan)), scale=scale)
    panel = pixels(heatmap.draw(FakeMap(torch.tensor([[1.0, torch.nan]])), annotate=False))
    assert tuple(panel[10, -10]) == (0xE9, 0xE9, 0xEC)


@pytest.mark.parametrize("token", ["$x_1$", r"$\frac$", "a_b^c", "%", "\\", "#"])
def test_tokens_are_not_parsed_as_mathematics(token):
    figure = heatmap.draw(FakeMap(torch.eye(2), [token, "a"], [token, "a"]))
    assert figure.axes[0].get_xticklabels()[0].get_text() == token
    pixels(figure)  # parsing would raise or change it
    assert not figure.axes[0].get_xticklabels()[0].get_parse_math()


def test_users_settings_do_not_move_pixels():
    fake = FakeMap(torch.eye(97))
    plain = pixels(heatmap.draw(fake))
    settings = {"figure.autolayout": True, "axes.grid": True, "axes.grid.which": "both", "axes.axisbelow": False}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("error")  # as of axes that an automatic layout cannot move
        assert np.array_equal(pixels(heatmap.draw(fake)), plain)


def test_size_grows_only_if_panels_do_not_fit():
    assert tuple(heatmap.draw(FakeMap(attention(5, 5)), size=(5.0, 4.0)).get_size_inches()) == pytest.approx((5, 4))
    box = heatmap.draw(FakeMap(attention(5, 5)), size=(9.0, 2.0)).axes[0].get_position()
    assert 0.35 < box.x0 < box.x1 < 0.6  # in the middle, with room for the colour bar
    assert heatmap.draw(FakeMap(attention(8, 5, 5)), size=(1.0, 1.0)).get_size_inches().min() > 1


@pytest.mark.parametrize(
    "shape, options, message",
    [
        ((8, 5, 5), {"heads": 8}, r"draw: heads \(8\) must lie in 0…7; got 8"),
        ((8, 5, 5), {"batch": 1}, r"draw: batch \(1\) must lie in 0…0; got 1"),
        ((5, 5), {"heads": 0}, r"draw: heads \(0\) must be None for a map \(Tq, Tk\)"),
        ((8, 12, 5, 5), {}, r"draw: map \(\(8, 12, 5, 5\)\) must give 1 to 64 panels; got 96"),
        ((2, 0, 5), {}, r"draw: map \(\(2, 0, 5\)\) must have at least one query and one key"),
        ((5, 5), {"scale": "cubic"}, r"draw: scale \('cubic'\) must be one of linear, log"),
        ((5, 5), {"reduce": "min"}, r"draw: reduce \('min'\) must be one of max, mean, sum"),
        ((5, 5), {"limits": (1, 0)}, r"draw: limits \(\(1, 0\)\) must be \(low, high\) with low < high"),
        ((5, 5), {"limits": (0, 1), "scale": "log"}, r"draw: limits \(\(0, 1\)\) .* 0 < low < high on a log scale"),
    ],
)
def test_errors_name_the_option(shape, options, message):
    with pytest.raises(ValueError, match=message):
        heatmap.draw(FakeMap(torch.zeros(shape)), **options)


def test_default_colours_darken_evenly_from_white():
    brightness = (panels.PAPER(np.linspace(0, 1, 64))[:, :3] @ [0.299, 0.587, 0.114]) * 255
    assert brightness[0] == pytest.approx(255)
    assert (np.diff(brightness) < 0).all()
