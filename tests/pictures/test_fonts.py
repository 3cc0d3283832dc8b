"""Readable labels: visible forms, glyphs, shaping, and warnings for missing glyphs."""

import warnings

import matplotlib
import numpy as np
import pytest
import torch
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from regard.pictures import fonts, heatmap

shaping = pytest.mark.skipif(
    matplotlib.__version_info__ < fonts.SHAPING_SINCE, reason="this matplotlib does not handle right-to-left text"
)
CHINESE, JAPANESE, ARABIC, HEBREW = "注意力机制", "日本語かな", "مرحبا بالعالم", "שלום עולם"


@pytest.fixture
def bare(monkeypatch):
    """Use only the fonts of matplotlib, and reset the warnings."""
    own = [entry for entry in font_manager.fontManager.ttflist if "mpl-data" in entry.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    monkeypatch.setattr(fonts, "FONT_PACKAGES", ())
    monkeypatch.setattr(fonts, "_warned", set())
    fonts._cover.cache_clear()
    yield monkeypatch
    fonts._cover.cache_clear()


def make_font(path, name, characters):
    """A font whose every glyph is a black square as high as a capital."""
    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for corner in ((100, 700), (900, 700), (900, 0)):
        pen.lineTo(corner)
    pen.closePath()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "square"])
    builder.setupCharacterMap({ord(character): "square" for character in characters})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "square": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (1000, 0), "square": (1000, 100)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": name, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return path


def drawn(text, families, points=40):
    """Return the trimmed pixels of a text: 0 is background, 1 is ink."""
    figure = Figure(figsize=(6, 2), dpi=100)
    figure.text(0.1, 0.4, text, family=families, size=points, parse_math=False)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    ink = 1 - np.asarray(canvas.buffer_rgba())[..., 0] / 255
    rows, columns = np.nonzero(ink > 0.5)
    return ink[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]


def width(text, families):
    return RendererAgg(1, 1, 100).get_text_width_height_descent(text, FontProperties(family=families, size=40), False)[
        0
    ]


def has_glyphs(text, families):
    """Return whether the font files that matplotlib selects for these families have every character."""
    files = [font_manager.findfont(FontProperties(family=[family])) for family in families]
    faces = [font_manager.get_font(file) for file in files]
    return all(any(face.get_char_index(ord(letter)) for face in faces) for letter in text if not letter.isspace())


@pytest.mark.parametrize(
    "token, shown",
    [
        ("the", "the"),
        ("", "∅"),
        (" ", "␣"),
        ("  the ", "␣␣the␣"),
        ("\u00a0the\u3000", "␣the␣"),
        ("New York", "New York"),
        ("\n", "↵"),
        ("\r\n", "⇤↵"),
        ("\t", "⇥"),
        (" \n", "␣↵"),
        ("Ġthe", "Ġthe"),
        ("▁the", "▁the"),
        ("##ing", "##ing"),
        ("\x00", "\\x00"),
        ("\u200b", "\\u200b"),
        ("\u202e", "\\u202e"),
        ("\ud800", "\\ud800"),
        ("\u0301", "◌\u0301"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        (7, "7"),
        ("a" * 17, "a" * 15 + "…"),
        ("注" * 9, "注" * 7 + "…"),
        ("e\u0301" * 99, "e\u0301" * 15 + "…"),
    ],
)
def test_label_is_visible_and_short(token, shown):
    assert fonts.label(token) == shown


@pytest.mark.parametrize("text", [ARABIC, HEBREW, "Ġ▁#␣∅↵⇥⇤…◌□", "naïve Ωμέγα Привет"])
def test_matplotlib_fonts_cover_these(bare, text):
    bare.setattr(fonts, "_warned", {fonts.RIGHT_TO_LEFT})  # matplotlib before 3.11: coverage is tested, not order
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        texts, families = fonts.fit([text])
    assert texts == [text]
    assert has_glyphs(text, families)


@pytest.mark.parametrize("version", [(3, 10, 8), (3, 11, 0)])
def test_right_to_left_text_needs_a_recent_matplotlib(bare, version):
    bare.setattr(matplotlib, "__version_info__", version)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fonts.fit(["the"])
        assert not caught
        for _ in range(2):
            fonts.fit([HEBREW])
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (version < (3, 11))
    assert all("right-to-left" in message and "pip install 'matplotlib>=3.11'" in message for message in messages)


@shaping
def test_right_to_left_text_is_ordered(bare):
    _, families = fonts.fit(["א"])
    # Logical א, I reads from the right: I stands at the left of א, just as in logical I, א.
    assert np.array_equal(drawn("אI", families), drawn("Iא", families))
    assert not np.array_equal(drawn("אב", families), drawn("בא", families))


@shaping
def test_arabic_letters_are_joined(bare):
    _, families = fonts.fit(["ب"])
    assert width("ببب", families) < 0.8 * 3 * width("ب", families)


def test_fonts_of_a_package_are_used(bare, tmp_path):
    (tmp_path / "some_fonts").mkdir()
    make_font(tmp_path / "some_fonts" / "tiny.ttf", "Tiny Sans SC", CHINESE)
    bare.syspath_prepend(tmp_path)
    bare.setattr(fonts, "FONT_PACKAGES", ("absent_package", "some_fonts"))
    texts, families = fonts.fit(["the", CHINESE])
    assert (texts, families) == (["the", CHINESE], ["sans-serif", "Tiny Sans SC"])
    assert drawn(CHINESE[0], families).mean() == pytest.approx(1, abs=0.05)  # the black square, not the hollow one
    assert drawn("□", families).mean() < 0.5
    assert np.array_equal(drawn("the", families), drawn("the", ["sans-serif"]))


def test_fonts_installed_after_matplotlibs_scan_are_used(bare, tmp_path):
    (tmp_path / "broken.ttf").write_bytes(b"not a font")
    path = make_font(tmp_path / "late.ttf", "Late Sans", CHINESE)
    bare.setattr(font_manager, "findSystemFonts", lambda: [str(tmp_path / "broken.ttf"), str(path)])
    assert fonts.fit([CHINESE]) == ([CHINESE], ["sans-serif", "Late Sans"])


@pytest.mark.parametrize("text, family", [("注か", "B Sans JP"), ("注한", "C Sans KR"), ("注", "D Sans SC")])
def test_han_glyphs_match_the_language_of_the_text(bare, tmp_path, text, family):
    for name in ("A Serif SC", "A Sans Mono SC", "A Sans", "B Sans JP", "C Sans KR", "D Sans SC"):
        font_manager.fontManager.addfont(make_font(tmp_path / f"{name}.ttf", name, "注か한"))
    assert fonts.fit([text])[1] == ["sans-serif", family]


def test_the_users_font_comes_first(bare, tmp_path):
    import matplotlib

    font_manager.fontManager.addfont(make_font(tmp_path / "own.ttf", "My Own", "abc"))
    with matplotlib.rc_context({"font.family": ["My Own", "Not Installed"]}):
        assert fonts.fit(["abc"]) == (["abc"], ["My Own"])
        assert fonts.fit(["abcé"]) == (["abcé"], ["My Own", "DejaVu Sans"])


def test_missing_characters_warn_once_with_a_remedy(bare):
    with pytest.warns(
        UserWarning, match=r"fonts: characters \(力意注\) must .*`pip install noto-cjk-sans-otc"
    ) as caught:
        assert fonts.fit(["注意力 the"]) == (["□□□ the"], ["sans-serif"])
    assert len(caught) == 1
    assert "of their script" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fonts.fit(["力 意"])[0] == ["□ □"]
    with pytest.warns(UserWarning, match=r"characters \(ह\) .* To display them, install the Noto font of their script"):
        fonts.fit(["注ह"])
    with pytest.warns(UserWarning, match=r"\(.{24}… and 76 more\)"):
        fonts.fit(["".join(map(chr, range(0x5000, 0x5064)))])


def test_a_picture_without_the_font_warns_once_and_never_by_glyph(bare, tmp_path):
    class Map:
        shape, query_tokens, key_tokens = (2, 2), ["注意", "力"], ["机", "制\u200d❤\ufe0f"]

        def __getitem__(self, index):
            return torch.eye(2)[index]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for suffix in ("png", "svg", "pdf"):
            heatmap.save(Map(), tmp_path / f"map.{suffix}", title="标题")
    assert [str(warning.message)[:6] for warning in caught] == ["fonts:"]


def test_real_cjk_fonts_if_installed():
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        texts, families = fonts.fit([CHINESE, JAPANESE, "한국어", ARABIC])
    if "□" in "".join(texts):
        pytest.skip("no CJK font here: pip install noto-cjk-sans-otc")
    assert has_glyphs(CHINESE + JAPANESE + "한국어", families)
    assert not np.array_equal(drawn("注", families), drawn("意", families))
