"""Packages of others: timm is searched for where set-up installs it, and nothing else sees the torchvision it needs."""

import importlib.util
import sys
from pathlib import Path

import pytest

from bench import _peers


def test_timm_leaves_no_torchvision_behind() -> None:
    if not _peers.installed("timm"):
        pytest.skip("timm is not installed")
    before = list(sys.path), importlib.util.find_spec("torchvision")
    assert _peers.load("timm") is _peers.load("timm")
    assert (list(sys.path), importlib.util.find_spec("torchvision")) == before


def test_other_packages_are_not_searched_for_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "timmy.py").touch()
    monkeypatch.setattr(_peers, "APART", tmp_path)
    assert not _peers.installed("timmy")
    with pytest.raises(ImportError):
        _peers.load("timmy")
