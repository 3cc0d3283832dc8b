"""Pictures of recorded maps: their values match the dense weights, and files are written."""

import inspect
import re

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from torch import nn

import regard
from regard.attention.word_weights import spell, word_weights
from regard.lens.head_profile import MEASURES, profile
from regard.lens.patch_weights import Patches
from regard.lens.seen import Seen
from regard.pictures import alignment_matrix, head_grid, link_diagram, notebook_html
from regard.pictures.heatmap import draw as draw_map
from regard.pictures.image_overlay import overlay
from tests.allocations import peak_allocated
from tests.pictures.fakes import pixels

MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def a_map(*lead, queries=11, keys=13, seed=0, **options):
    make = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(*lead, size, 5, generator=make) for size in (queries, keys))
    return regard.attend(2 * q, k, k, return_map=True, **options)[1]


@pytest.fixture(scope="module")
def seen():
    torch.manual_seed(3)
    layers = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(12, 3, 16, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    with torch.no_grad(), regard.watch(layers) as result:
        layers(3 * torch.randn(2, 10, 12))
    return result


def dense_profile(w, position):
    """Compute a profile from dense weights (H, Tq, Tk) in float64 and the position of each query."""
    keys = torch.arange(w.shape[-1])
    away = keys - position[:, None]
    parts = [torch.special.entr(w), w * away.abs(), w[..., :1], w * (away == -1), w * (away == 0)]
    return torch.stack([part.sum((-2, -1)) / w.shape[-2] for part in parts], -1)


@pytest.mark.parametrize(
    "options, ahead",
    [
        ({}, 0),
        ({"is_causal": True}, 0),
        ({"is_causal": True, "causal_offset": 2}, 2),
        ({"attn_mask": regard.masks.causal(11, 13, offset=2)}, 2),  # as a cache gives it, cell by cell
        ({"window": (3, 1), "causal_offset": 1}, 1),
        ({"weighting": "hard"}, 0),
        ({"similarity": lambda q, k: q @ k.transpose(-2, -1)}, 0),
    ],
)
def test_profiles_match_the_dense_weights(options, ahead):
    m = a_map(2, 3, **options)
    for batch in (0, 1):
        expected = dense_profile(m.dense()[batch].double(), torch.arange(11) + ahead)
        assert torch.allclose(profile(m, batch=batch).values[0], expected, atol=1e-5)


def test_profiles_are_streamed_in_blocks(monkeypatch):
    monkeypatch.setattr("regard.attention.streamed_views.BLOCK", 16)
    m = a_map(3, is_causal=True)
    assert torch.allclose(profile(m).values[0], dense_profile(m.dense().double(), torch.arange(11)), atol=1e-5)
    offset = a_map(2, 3, is_causal=True, causal_offset=torch.tensor([0, 2]))
    expected = dense_profile(offset.dense()[1].double(), torch.arange(11) + 2)
    assert torch.allclose(profile(offset, batch=1).values[0], expected, atol=1e-5)


def test_a_profile_of_all_layers_by_name(seen):
    result = seen.profile()
    assert result.values.shape == (2, 3, 5) and list(result) == list(MEASURES)
    assert torch.equal(result["same"][1], profile(seen[1])["same"][0])
    assert repr(result).startswith("Profile(2 × 3 heads; on average entropy ")
    with pytest.raises(KeyError, match="'entropie'"):
        result["entropie"]
    panels = [axes for axes in result.draw().axes if axes.images]
    for axes, measure in zip(panels, MEASURES, strict=True):
        assert np.allclose(axes.images[0].get_array(), result[measure])
    bars = profile(seen[0]).draw().axes[2].patches
    assert np.allclose([bar.get_width() for bar in bars], result["first"][0])


@pytest.mark.parametrize("reduce", ["max", "mean"])
def test_thumbnails_have_the_colours_of_the_pooled_weights(seen, reduce):
    picture = seen.grid(scale="linear", side=8, reduce=reduce, batch=1)
    high = max(float(m.at(1).pool(8, 8, reduce=reduce).max()) for m in seen)
    for row, m in enumerate(seen):
        for head in range(3):
            top, left = row * (8 + head_grid.GAP), head * (8 + head_grid.GAP)
            part = pixels(picture)[top : top + 8, left : left + 8]
            pooled = m.pool(8, 8, reduce=reduce)[1, head].numpy() / high
            expected = 255 * matplotlib.colormaps.get_cmap(head_grid.PAPER)(pooled)[..., :3]
            assert np.abs(part - expected).max() <= 1.01


def test_a_grid_of_a_token_range_of_some_layers_and_heads(seen):
    picture = seen.grid(layers=1, heads=[2], tokens=slice(2, 6), scale="linear", limits=(0, 1), side=40)
    part = pixels(picture)
    cell = part[5::10, 5::10]
    expected = 255 * matplotlib.colormaps.get_cmap(head_grid.PAPER)(seen[1][0, 2, 2:6, 2:6].numpy())[..., :3]
    assert cell.shape == expected.shape and np.abs(cell - expected).max() <= 1.01
    assert [t.get_text() for t in picture.axes[0].get_xticklabels()] == ["2"]


def test_links_are_the_strongest_of_the_span():
    m = a_map(2, 3)
    result = link_diagram.strongest(m, slice(4, 7), head=1, batch=1, top=2)
    values, keys = m.dense()[1, 1, 4:7].topk(2)
    assert [(link.query, link.key) for link in result] == [(4 + i // 2, int(k)) for i, k in enumerate(keys.flatten())]
    assert np.allclose([link.weight for link in result], values.flatten())
    mean = link_diagram.strongest(m, -1, top=1)
    assert mean[0].weight == pytest.approx(float(m.dense()[0].mean(0)[10].max()), abs=1e-6)
    assert [link.key for link in link_diagram.strongest(a_map(3, is_causal=True), 0, top=3)] == [
        0
    ]  # no line for nothing


def test_tokens_of_links_never_overlap():
    m = a_map(queries=30, keys=300).tokens([f"w{i}" for i in range(30)], [f"a rather long key {i}" for i in range(300)])
    picture = link_diagram.links(m, slice(0, 30), top=2)
    FigureCanvasAgg(picture).draw()
    boxes = [text.get_window_extent() for text in picture.axes[0].texts if text.get_text()]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert min(box.x0 for box in boxes) >= 0 and max(box.x1 for box in boxes) <= picture.bbox.x1


def test_subwords_are_merged_to_words():
    assert spell(["new@@", "est", "low"]) == (["newest", "low"], [0, 0, 1])
    assert spell(["The", "Ġcat", "fish", "<|end|>", "x"]) == (
        ["The", "catfish", "<|end|>", "x"],
        [0, 1, 1, 2, 3],
    )
    weights = a_map().dense()
    merged = word_weights(weights, source=[0, 0, *range(1, 12)], target=[0] * 4 + list(range(1, 8)))
    assert torch.allclose(merged.sum(-1), torch.ones(8))
    assert merged[0, 0] == pytest.approx(float(weights[:4, :2].sum() / 4), abs=1e-6)


def test_an_alignment_shows_words():
    m = a_map(3, queries=4, keys=5).tokens(["▁das", "▁neu", "este", "</s>"], ["▁the", "▁new", "est", "▁one", "</s>"])
    axes = alignment_matrix.alignment(m, head=2).axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["das", "neueste", "</s>"]
    assert float(axes.images[0].get_array()[1, 1]) == pytest.approx(float(m[2, 1:3, 1:3].sum() / 2), abs=1e-6)


def test_patch_weights(seen):  # 10 tokens: one, and 3 × 3
    assert torch.allclose(seen.patch_weights(1)[0], seen[1][0, :, 0, 1:].mean(0).reshape(3, 3))
    weights, mark = seen.patch_weights(0, head=2, query=(1, 2), batch=1)
    assert mark == (1, 2) and torch.allclose(weights, seen[0][1, 2, 6, 1:].reshape(3, 3))
    assert torch.allclose(seen.patch_weights(rollout=True)[0], seen.rollout().row(0)[1:].reshape(3, 3))
    seen.patches = Patches(2, 5)  # no class token: what all look at on average
    try:
        assert torch.allclose(seen.patch_weights(1)[0], seen[1].dense()[0].mean((0, 1)).reshape(2, 5), atol=1e-6)
        every = torch.stack([seen.rollout().row(i) for i in range(10)]).mean(0)
        assert torch.allclose(seen.patch_weights(rollout=True)[0], every.reshape(2, 5), atol=1e-6)
    finally:
        seen.patches = None


@pytest.mark.parametrize("format", MAGIC)
def test_every_picture_in_every_format(seen, tmp_path, format):
    seen.image = torch.randint(0, 255, (12, 12, 3), dtype=torch.uint8)
    seen.tokens(query=[f"t{i}" for i in range(10)])
    try:
        seen.grid(tmp_path / f"grid.{format}")
        seen.profile(path=tmp_path / f"profile.{format}")
        seen.links(query=slice(2, 5), path=tmp_path / f"links.{format}")
        seen.alignment(path=tmp_path / f"alignment.{format}")
        seen.overlay(path=tmp_path / f"overlay.{format}", query=(0, 1), rollout=True).save(tmp_path / f"again.{format}")
    finally:
        seen.image = None
    files = sorted(tmp_path.iterdir())
    assert len(files) == 6 and all(file.read_bytes().startswith(MAGIC[format]) for file in files)


def test_a_map_of_twenty_thousand_tokens_draws_in_little_memory(tmp_path):
    m = a_map(1, queries=20_000, keys=20_000, window=(16, 16))  # dense: 1.6 GB

    def draw():
        head_grid.grid(m, tmp_path / "grid.png", side=64)
        link_diagram.links(m, slice(9000, 9004), path=tmp_path / "links.svg")
        profile(m, path=tmp_path / "profile.png")

    assert peak_allocated(draw) < 400 << 20


def test_notebook_html_of_maps_and_seen(seen, monkeypatch):
    m = a_map(3).tokens(["<script>"] * 11, ["b"] * 13)
    shown = m._repr_html_()
    assert "3 × 11 × 13" in shown and "data:image/png;base64," in shown and "<script" not in shown
    assert "&lt;script&gt;" in shown
    shown = seen._repr_html_()
    assert "layers.1.self_attn" in shown and "2 × 3 × 10 × 10" in shown and shown.count("<img") == 1
    assert "(empty)" in Seen()._repr_html_()
    assert "nothing to draw" in a_map(3, queries=0)._repr_html_()
    monkeypatch.setattr(notebook_html, "MAX_WEIGHTS", 300)
    assert "the first 2 of 3 heads" in a_map(3)._repr_html_()
    assert "1 layers × 3 heads" in seen._repr_html_()
    monkeypatch.setattr(notebook_html, "MAX_WEIGHTS", 20)
    assert "not drawn automatically" in a_map(3)._repr_html_() and "not drawn automatically" in seen._repr_html_()


def test_pictures_name_layer_head_and_part(seen):
    assert seen.links(1, head=2).axes[0].texts[-1].get_text() == "layers.1.self_attn, head 2"
    assert seen.links(0, query=slice(2, 5)).axes[0].texts[-1].get_text() == (
        "layers.0.self_attn, mean of heads\ntokens 2 to 4 of 10"
    )
    assert seen.links(0, query=slice(0, 3), title="").axes[0].texts[-1].get_text() == "tokens 0 to 2 of 10"
    assert draw_map(seen[0], batch=0).get_suptitle() == "layers.0.self_attn"
    assert draw_map(seen[0].at(0, 2)).get_suptitle() == "layers.0.self_attn, head 2"


def test_an_overlay_has_a_scale():
    weights = np.array([[0.1, 0.2], [0.3, 0.4]])
    picture = overlay(np.zeros((8, 8, 3), np.uint8), weights)
    assert picture.axes[1].images[1].get_clim() == (0, 0.4) and picture.axes[2].get_ylabel() == "weight"


def test_a_map_is_displayed_with_the_scale_of_show(monkeypatch):
    scales = []
    grid = head_grid.grid
    monkeypatch.setattr(
        notebook_html, "grid", lambda *args, **options: scales.append(options["scale"]) or grid(*args, **options)
    )
    a_map(3)._repr_html_()
    assert scales == [inspect.signature(draw_map).parameters["scale"].default]


@pytest.mark.parametrize(
    "draw, message",
    [
        (lambda s: s.grid("map.jpg"), "grid: path (map.jpg) must end in .png"),
        (lambda s: s.grid(scale="cubic"), "grid: scale ('cubic') must be one of linear, log"),
        (lambda s: s.grid(reduce="min"), "grid: reduce ('min') must be one of max, mean, sum"),
        (lambda s: s.grid(heads=3), "grid: heads (3) must lie in 0…2"),
        (lambda s: s.grid(layers="lstm"), "grid: layers ('lstm') must select some of the 2 recorded layers: layers.0"),
        (lambda s: s.grid(tokens=slice(20, 30)), "grid: tokens (slice(20, 30, None)) must be a range of the 10"),
        (lambda s: s.grid(layers=[0, 99]), "seen: layers (99) must lie in 0…1; got 99. There are 2 layers."),
        (lambda s: s.grid(side=3), "grid: side (3) must lie in 8…1024"),
        (lambda s: Seen().grid(), "seen: there is no map"),
        (lambda s: Seen().profile(), "seen: there is no map"),
        (lambda s: s.profile(batch=2), "profile: batch (2) must lie in 0…1"),
        (lambda s: s.links(query=slice(5, 5)), "links: query (slice(5, 5, None)) must be a span of 1 to 64"),
        (lambda s: s.links(query=0, top=0), "links: top (0) must be at least 1"),
        (lambda s: s.links(query=0, head="max"), "links: head ('max') must be a number in 0…2 or 'mean'"),
        (lambda s: alignment_matrix.alignment(a_map()), "alignment: tokens (None) must be set for queries and keys"),
        (lambda s: s.overlay(), "overlay: seen.image (None) must be the input image"),
        (lambda s: s.patch_weights(query=(3, 0)), "overlay: query (3, 0) must lie in 3 rows × 3 columns"),
        (lambda s: s.patch_weights(residual=0.1), "overlay: residual must be passed with rollout=True"),
    ],
)
def test_errors_name_the_bad_input(seen, draw, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        draw(seen)
