"""Files that are there whole or not at all."""

from pathlib import Path

import pytest

from regard.data.files import replacing


@pytest.mark.parametrize("former", [None, "old"])
def test_a_failure_leaves_what_was_there(tmp_path: Path, former: str | None) -> None:
    path = tmp_path / "a.txt"
    if former:
        path.write_text(former)
    with pytest.raises(RuntimeError), replacing(path) as made:
        made.write_text("half")
        raise RuntimeError
    assert [p.read_text() for p in tmp_path.iterdir()] == ([former] if former else [])


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder"
    for text in ("first", "second"):
        with replacing(path) as made:
            made.mkdir()
            (made / "x").write_text(text)
            assert not path.exists() if text == "first" else (path / "x").read_text() == "first"
        assert (path / "x").read_text() == text
    assert [p.name for p in path.parent.iterdir()] == ["folder"]
    with replacing(tmp_path / "b") as made:
        made.write_text("b")
    with replacing(tmp_path / "b") as made:
        made.write_text("c")
    assert (tmp_path / "b").read_text() == "c"
