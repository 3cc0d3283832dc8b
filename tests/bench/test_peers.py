"""timm is imported from its own folder, and no other package sees the torchvision installed there."""

import importlib.util
import sys
from pathlib import Path

import pytest

from bench import _peers


def test_importing_timm_hides_its_torchvision() -> None:
    if not _peers.installed("timm"):
        pytest.skip("timm is not installed")
    before = list(sys.path), importlib.util.find_spec("torchvision")
    assert _peers.load("timm") is _peers.load("timm")
    assert (list(sys.path), importlib.util.find_spec("torchvision")) == before


def test_other_packages_are_not_imported_from_that_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "timmy.py").touch()
    monkeypatch.setattr(_peers, "FOLDER", tmp_path)
    assert not _peers.installed("timmy")
    with pytest.raises(ImportError):
        _peers.load("timmy")
