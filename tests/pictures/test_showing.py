"""Pictures in files, notebooks, windows and terminals, and `show_heatmaps`."""

import base64
import io
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread

import regard
from regard.pictures import heatmap
from tests.pictures.fakes import FakeMap, HugeMap, attention, pixels


@pytest.mark.parametrize(
    "name, start", [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF"), ("A.PNG", b"\x89PNG")]
)
def test_save_writes_the_format_of_the_suffix(tmp_path, name, start):
    path = heatmap.save(FakeMap(attention(3, 3)), str(tmp_path / name))
    assert path == tmp_path / name
    assert path.read_bytes().startswith(start)
    assert os.listdir(tmp_path) == [name]  # noqa: PTH208
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_vector_formats_contain_a_single_link(tmp_path):
    text = heatmap.save(HugeMap(50_000, 12_345, 43_210), tmp_path / "map.svg").read_text()
    images = [base64.b64decode(each) for each in re.findall(r"data:image/png;base64,([^\"]+)", text)]
    panel = max((imread(io.BytesIO(image)) for image in images), key=np.size)[..., :3]
    assert (panel.sum(-1) < 0.3).sum() >= 4


def test_trim_settings_do_not_move_pixels(tmp_path):
    fake = FakeMap(attention(9, 9))
    plain = heatmap.save(fake, tmp_path / "plain.png").read_bytes()
    with matplotlib.rc_context({"savefig.bbox": "tight", "savefig.dpi": 50}):
        assert heatmap.save(fake, tmp_path / "map.png").read_bytes() == plain


def test_save_rejects_other_suffixes_and_missing_directories_before_drawing(tmp_path):
    huge = HugeMap(50_000, 1, 1)
    huge.pool = None
    with pytest.raises(ValueError, match=r"save: path \(map\.jpg\) must end in \.png, \.svg or \.pdf; got '\.jpg'"):
        heatmap.save(huge, "map.jpg")
    with pytest.raises(FileNotFoundError, match=r"save: path \(.*none/map\.png\) must be in an existing directory"):
        heatmap.save(huge, tmp_path / "none" / "map.png")


def test_a_failed_save_keeps_only_the_old_picture(tmp_path, monkeypatch):
    path = heatmap.save(FakeMap(attention(3, 3)), tmp_path / "map.png")
    before = path.read_bytes()

    def fail(self, target, **options):
        Path(target).write_bytes(b"half a pic")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        heatmap.save(FakeMap(attention(4, 4)), path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["map.png"]


def test_threads_draw_identical_pictures(tmp_path):
    fake = FakeMap(attention(2, 9, 9), list("abcdefghi"))
    alone = heatmap.save(fake, tmp_path / "alone.png").read_bytes()
    threads = [threading.Thread(target=heatmap.save, args=(fake, tmp_path / f"{i}.png")) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((tmp_path / f"{i}.png").read_bytes() == alone for i in range(4))


def run(code):
    environment = {**os.environ, "COLUMNS": "60"}
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND"):
        environment.pop(name, None)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=True).stdout


def test_import_is_light_and_saving_needs_no_pyplot(tmp_path):
    code = (
        "import sys, torch, regard\n"
        "assert 'matplotlib' not in sys.modules\n"
        "_, m = regard.attend(*torch.eye(3).expand(3, 3, 3), return_map=True)\n"
        f"m.save({str(tmp_path / 'map.png')!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    run(code)
    assert (tmp_path / "map.png").stat().st_size > 1000


@pytest.mark.parametrize("before", ["", "import matplotlib; matplotlib.use('TkAgg')\n"])
def test_show_without_a_display_draws_in_the_terminal(before):
    code = (
        f"{before}import torch, regard\n"
        "_, m = regard.attend(*torch.eye(2).expand(3, 2, 2), scale=9.0, return_map=True)\n"
        "m.tokens(query=['le', 'chat'], key=['the', 'cat']).show(title='two [words]')\n"
        "from matplotlib import _pylab_helpers; assert not _pylab_helpers.Gcf.figs\n"
    )
    lines = run(code).splitlines()
    assert lines[0] == "two [words]"
    assert lines[1].split() == ["the", "cat"]
    assert lines[2].split() == ["le", "█", "1.00", "0.00"]


def test_show_prints_every_panel_and_true_positions(monkeypatch, capsys):
    monkeypatch.setattr(heatmap, "_show_window", lambda map, options: False)
    heatmap.show(HugeMap(50_000, 25_000, 10, (2,)))
    out = capsys.readouterr().out
    assert out.count("49999") == 2 and "head 0" in out and "head 1" in out
    with pytest.raises(TypeError, match="colour"):
        heatmap.show(FakeMap(torch.eye(2)), colour="red")


def test_show_displays_in_a_notebook(monkeypatch):
    shown = []
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.append))
    heatmap.show(FakeMap(torch.eye(3)), title="here")
    assert imread(io.BytesIO(shown[0]._repr_png_())).ndim == 3
    assert shown[0].get_suptitle() == "here"


def test_show_opens_a_window_if_possible(monkeypatch):
    import matplotlib.pyplot as plt

    opened = []
    monkeypatch.setattr(matplotlib, "get_backend", lambda: "TkAgg")
    monkeypatch.setattr(plt, "figure", opened.append)
    monkeypatch.setattr(plt, "show", lambda: opened.append("shown"))
    heatmap.show(FakeMap(torch.eye(3)))
    assert isinstance(opened[0], Figure) and opened[1] == "shown"


def test_show_prints_if_matplotlib_cannot_open_its_figure(monkeypatch, capsys):
    import matplotlib.pyplot as plt

    def refuse(figure):
        raise ValueError("The passed figure is not managed by pyplot")  # before matplotlib 3.11

    monkeypatch.setattr(matplotlib, "get_backend", lambda: "TkAgg")
    monkeypatch.setattr(plt, "figure", refuse)
    heatmap.show(FakeMap(torch.eye(3)), title="in the terminal")
    assert "in the terminal" in capsys.readouterr().out


def test_no_pyplot_figures_are_left(tmp_path):
    import matplotlib.pyplot as plt

    heatmap.save(FakeMap(attention(3, 3)), tmp_path / "map.png")
    heatmap.show_heatmaps(torch.rand(1, 2, 3, 4), "Keys", "Queries")
    assert plt.get_fignums() == []


def as_map(matrices):
    return FakeMap(matrices)


@pytest.mark.parametrize("kind", [torch.Tensor.requires_grad_, torch.Tensor.numpy, torch.Tensor.tolist, list, as_map])
def test_show_heatmaps_accepts_any_four_dimensions(kind):
    matrices = torch.rand(2, 3, 5, 7)
    figure = heatmap.show_heatmaps(kind(matrices.clone()), "Keys", "Queries", titles=["a", "b", "c"], figsize=(7, 4))
    *drawn, bar = figure.axes
    assert [axes.get_title() for axes in drawn] == ["a", "b", "c"] * 2
    assert [axes.get_xlabel() for axes in drawn] == [""] * 3 + ["Keys"] * 3
    assert [axes.get_ylabel() for axes in drawn] == ["Queries", "", ""] * 2
    for axes, matrix in zip(drawn, matrices.flatten(0, 1), strict=True):
        assert np.allclose(axes.images[0].get_array(), matrix)
    assert drawn[0].get_shared_y_axes().joined(drawn[0], drawn[5])
    assert bar.get_ylim() == pytest.approx((0, float(matrices.max())))
    assert tuple(figure.get_size_inches()) == pytest.approx((7, 4))


def test_show_heatmaps_as_in_the_book(tmp_path):
    figure = heatmap.show_heatmaps(torch.eye(10).reshape(1, 1, 10, 10), xlabel="Keys", ylabel="Queries")
    red = pixels(figure)[..., 1] < 50
    assert red.mean() == pytest.approx(0.1, abs=0.02)
    heatmap.show_heatmaps(np.eye(4)[None, None], "k", "q", path=tmp_path / "eye.png")
    assert imread(tmp_path / "eye.png").ndim == 3
    assert [a.get_title() for a in heatmap.show_heatmaps(torch.rand(2, 1, 3, 3), "k", "q", ["a", "b"]).axes] == [
        "a",
        "b",
        "",
    ]


def test_show_heatmaps_keeps_a_single_link_of_a_large_matrix():
    matrix = torch.zeros(1, 1, 3000, 3000)
    matrix[0, 0, 1234, 777] = 1
    assert (pixels(heatmap.show_heatmaps(matrix, "k", "q"))[..., 1] < 50).sum() >= 4


@pytest.mark.parametrize(
    "matrices, titles, message",
    [
        (torch.eye(5), None, r"matrices \(\(5, 5\)\) must have 4 dimensions .* got 2\. Reshape .* \(1, 1, 5, 5\)"),
        (torch.zeros(1, 1, 1, 5, 5), None, r"got 5\. Reshape them, for example to \(-1, 1, 5, 5\)"),
        (torch.zeros(1, 3, 5, 5), ["a", "b"], r"titles \(2\) must name each of the 3 columns or each of the 3 panels"),
        ([[[[1.0, 2.0], [3.0]]]], None, r"matrices \(list\) must be numbers .* Make all rows equally long"),
        (torch.zeros(1, 1, 0, 5), None, r"show_heatmaps: map \(\(1, 1, 0, 5\)\) must have at least one query"),
    ],
)
def test_show_heatmaps_errors_name_the_input(matrices, titles, message):
    with pytest.raises(ValueError, match=message):
        heatmap.show_heatmaps(matrices, "k", "q", titles)


def test_pictures_of_a_real_map_show_its_weights(tmp_path):
    q, k = torch.randn(2, 3, 11, 8), torch.randn(2, 3, 13, 8)
    _, map = regard.attend(q, k, k, return_map=True)
    figure = heatmap.draw(map)
    drawn = torch.stack([torch.as_tensor(axes.images[0].get_array().data) for axes in figure.axes[:-1]])
    assert torch.allclose(drawn.unflatten(0, (2, 3)), map.dense().float())
    assert imread(map.save(tmp_path / "map.png", scale="log", heads=0)).ndim == 3
    assert len(regard.show_heatmaps(map, "Keys", "Queries").axes) == 7
    long = torch.randn(1, 4, 1500, 8)
    _, map = regard.attend(long, long, long, is_causal=True, return_map=True)
    drawn = torch.as_tensor(heatmap.draw(map, heads=2).axes[0].images[0].get_array().data)
    assert torch.allclose(drawn, map.pool(544, 544)[0, 2].float())
