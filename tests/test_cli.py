"""The commands, as a user meets them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from regard import __version__, demo
from regard.attention import engine
from regard.cli import main


def test_demo_writes_pictures_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "Ab", "--steps", "2", "--out", str(tmp_path / "deep/er")]) == 0
    said = capsys.readouterr().out
    picture = tmp_path / "deep/er/ab.png"
    assert "ab →" in said and str(picture) in said.replace("\n", "")
    assert min(Image.open(picture).size) > 100


def test_the_model_of_the_demo_learns_to_look() -> None:
    from rich.console import Console

    torch.manual_seed(0)
    model = demo.Speller()
    right = demo.train(model, 400, Console(quiet=True))
    written, seen = demo.spell(model, "regard")
    assert right > 0.97 and written == "drager"
    assert seen.top(1).indices.flatten().tolist() == [5, 4, 3, 2, 1, 0]  # it looks where it reads


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["demo", "naïve"], "word ('naïve') must be 1 to 12 letters a–z; got 5 characters"),
        (["demo", "a" * 13], "must be 1 to 12 letters a–z; got 13 characters"),
        (["demo", "--steps", "0"], "steps (0) must be at least 1; 500 are enough"),
    ],
)
def test_bad_input_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["demo", "ab", "--steps", "1", "--out", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_ctrl_c_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupted)
    assert main(["demo"]) == 130
    assert "stopped" in capsys.readouterr().err


def test_info_says_which_backend_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    assert __version__ in said and torch.__version__ in said
    rows = [line.split() for line in said.splitlines()]
    assert any(row[:2] == ["causal", "native" if engine.module else "torch"] for row in rows)
    assert engine.module is None or engine.module.isa() in said
    assert any(row[:2] == ["additive", "native" if engine.module else "blocked"] for row in rows)
    assert any(row[:2] == ["callable", "blocked"] for row in rows)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in ((["--help"], "demo"), (["--version"], __version__), (["demo", "--help"], "--out")):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0 and said in capsys.readouterr().out
