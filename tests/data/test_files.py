"""Files that are there whole or not at all."""

import threading
from pathlib import Path

import pytest

from regard.data.files import one_at_a_time, replacing


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


def test_one_goes_first_and_the_other_waits(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with one_at_a_time(tmp_path / "new"):
            order.append("second")

    with one_at_a_time(tmp_path / "new"):
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]
