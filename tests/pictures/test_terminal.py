"""Drawings in the terminal, read back character by character."""

import io

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from regard.pictures import terminal

WORDS = ["注意力", "שלום", "مرحبا", "the", "", "\n", "e\u0301", "internationalisation", "👍", "x"]


def coloured(drawing, width=80):
    """Lines of cells (character, foreground, background) on a terminal of 16 million colours."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=width, no_color=False)
    lines = []
    for line in console.render_lines(drawing, pad=False):
        cells = []
        for segment in line:
            style = segment.style
            front = style.color.get_truecolor() if style and style.color else None
            back = style.bgcolor.get_truecolor() if style and style.bgcolor else None
            cells += [(character, front, back) for character in segment.text]
        lines.append(cells)
    return lines


def printed(drawing, **options):
    console = Console(file=io.StringIO(), width=80, **options)
    console.print(drawing)
    return console.file.getvalue()


def test_small_matrix_has_labels_weights_and_shades():
    weights = torch.tensor([[0.75, 0.25, 0.0], [0.0, 0.5, 0.5]])
    lines = str(terminal.draw(weights, ["le", "chat"], ["the", "cat", "sat"], width=60)).splitlines()
    assert [line.split() for line in lines] == [
        ["the", "cat", "sat"],
        ["le", "█", "0.75", "░", "0.25", "0.00"],
        ["chat", "0.00", "▓", "0.50", "▓", "0.50"],
        ["0", "░▒▓█", "0.75"],
    ]


def test_labels_are_above_their_columns():
    lines = str(terminal.draw(torch.eye(3), list("abc"), ["the", "cat", "sat"], width=60)).splitlines()
    for row, key in enumerate(("the", "cat", "sat")):
        assert lines[0].index(key) + len(key) == lines[row + 1].index("1.00") + 4


def test_positions_are_labels_without_tokens():
    lines = str(terminal.draw(torch.eye(3), width=60)).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == lines[0].split() == ["0", "1", "2"]


def test_key_labels_are_vertical_if_they_do_not_fit():
    keys = [f"k{i:02}" for i in range(20)]
    lines = str(terminal.draw(torch.eye(4, 20), list("abcd"), keys, width=50)).splitlines()
    stacked = ["".join(line[2 + 2 * i] for line in lines[:3]) for i in range(20)]
    assert stacked == keys
    assert [line.index("██") for line in lines[3:7]] == [2, 4, 6, 8]


def test_wide_and_right_to_left_labels_keep_cells_in_their_columns():
    drawing = terminal.draw(torch.eye(10, 20), WORDS, WORDS * 2, width=70)
    lines = str(drawing).splitlines()
    starts = [cell_len(line[: line.index("██")]) for line in lines[-11:-1]]
    assert starts == [starts[0] + 2 * i for i in range(10)]
    heads = lines[:-11]
    assert heads[-1].count("力") == 2 and "意" in heads[-2] and "注" in heads[-3]
    arabic = next(line for line in lines if line.startswith("مرحبا"))
    assert arabic.startswith("مرحبا\u200e")  # keeps a terminal that reorders from moving the cells


@pytest.mark.parametrize("width", [20, 33, 80, 200])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1), (5, 5), (50, 70), (70, 50), (999, 1001)])
@pytest.mark.parametrize("tokens", [False, True])
def test_no_line_exceeds_the_width(width, shape, tokens):
    names = [(WORDS * 400)[:n] if tokens else None for n in shape]
    drawing = terminal.draw(torch.rand(shape), *names, width=width)
    assert max(cell_len(line) for line in str(drawing).splitlines()) <= width
    assert max(cell_len("".join(c for c, *_ in line)) for line in coloured(drawing, width)) <= width
    assert len(str(drawing).splitlines()) <= max(75, width)


@pytest.mark.parametrize("query, key", [(0, 0), (999, 999), (0, 999), (517, 123)])
def test_one_link_of_a_large_matrix_is_visible(query, key):
    weights = torch.zeros(1000, 1000)
    weights[query, key] = 1.0
    drawing = terminal.draw(weights, width=80)
    body = str(drawing).splitlines()[1:-1]
    row = next(i for i, line in enumerate(body) if "█" in line)
    assert sum(line.count("█") for line in body) == 1
    assert row == query * len(body) // 1000
    assert body[row].index("█") - 4 == key * 76 // 1000
    cells = [line[4:] for line in coloured(drawing)[1:-1]]
    bright = [
        (2 * y + (front < back), x)
        for y, l in enumerate(cells)
        for x, (_, front, back) in enumerate(l)
        if front != back
    ]
    assert bright == [(query * 76 // 1000, key * 76 // 1000)]
    assert {character for line in cells for character, *_ in line} == {"▀"}


def test_colour_if_supported_else_shades(monkeypatch):
    drawing = terminal.draw(torch.eye(3), list("abc"), width=60)
    assert "\x1b[" in printed(drawing, force_terminal=True, color_system="truecolor")
    assert "48;2;252;253;191" in printed(drawing, force_terminal=True, color_system="truecolor")
    assert "█" not in printed(drawing, force_terminal=True, color_system="truecolor")
    piped = printed(drawing)
    assert "\x1b[" not in piped and "█" in piped
    assert [line.rstrip() for line in piped.splitlines()] == str(drawing).splitlines()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "█" in printed(drawing, force_terminal=True, color_system="truecolor")


def test_colour_brightens_with_weight_and_ink_contrasts():
    lines = coloured(terminal.draw(torch.linspace(0, 1, 5)[None], width=60))
    backs = list(dict.fromkeys(back for _, _, back in lines[1] if back))
    assert [sum(back) for back in backs] == sorted(sum(back) for back in backs) and len(backs) == 5
    inks = [sum(front) for character, front, _ in lines[1] if character == "."]
    assert inks[0] > 600 and inks[-1] == 0


def test_nan_is_visible():
    weights = torch.eye(3)
    weights[1, 1] = torch.nan
    assert "? nan" in str(terminal.draw(weights, width=60))
    assert "??" in str(terminal.draw(weights.repeat(1, 8), width=60))
    assert str(terminal.draw(torch.zeros(2, 2), width=60)).splitlines()[-1] == "0  ░▒▓█ 1"


def test_pooled_weights_keep_the_original_positions():
    tokens = [f"w{i}" for i in range(50_000)]
    text = str(terminal.draw(torch.eye(64), tokens, width=60, lengths=(50_000, 40_000)))
    assert text.splitlines()[0].split() == ["0", "39999"]
    assert text.splitlines()[1].split()[:2] == ["0", "w0"]
    positions = [int(line.split()[0]) for line in text.splitlines()[1:-1] if line[0].isdigit()]
    assert positions == sorted(positions) and positions[-1] > 40_000


def test_first_and_last_key_are_named():
    assert str(terminal.draw(torch.rand(100, 1), width=60)).splitlines()[0].split() == ["0"]
    assert str(terminal.draw(torch.rand(100, 100), width=60)).splitlines()[0] == "   0" + " " * 54 + "99"


def test_shrink_keeps_maxima_and_smaller_sides():
    weights = torch.rand(2, 3, 10, 7)
    small = terminal.shrink(weights, 5, 9)
    assert small.shape == (2, 3, 5, 7)
    assert torch.equal(small, weights.unflatten(-2, (5, 2)).amax(-2))
    assert terminal.shrink(weights, 10, 7) is weights


@pytest.mark.parametrize(
    "weights, options, message",
    [
        (torch.rand(2, 3, 3), {}, r"draw: weights \(\(2, 3, 3\)\) must be a matrix .* got 3 dimensions and 18 cells"),
        (torch.rand(0, 3), {}, r"draw: weights \(\(0, 3\)\) .* got 2 dimensions and 0 cells"),
        (torch.eye(3), {"query_tokens": ["a"]}, r"draw: query_tokens \(1\) must name each of 3 positions; got 1"),
        (torch.eye(3), {"key_tokens": list("abcd")}, r"draw: key_tokens \(4\) must name each of 3 positions; got 4"),
        (torch.eye(3), {"key_tokens": list("abc"), "lengths": (9, 9)}, r"key_tokens \(3\) must name each of 9"),
    ],
)
def test_errors_name_the_input(weights, options, message):
    with pytest.raises(ValueError, match=message):
        terminal.draw(weights, **options)
