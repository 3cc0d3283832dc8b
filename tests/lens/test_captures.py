"""Captures restore every kind of request; other files are rejected with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import regard
from regard.lens import captures
from regard.lens.patch_weights import Patches
from regard.lens.seen import Seen


class Asks(nn.Module):
    """Calls `attend` with the given options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return regard.attend(q, k, k, **self.options)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "boolean mask": {"attn_mask": drawn(2, 1, 5, 7) > 0},
    "float mask": {"attn_mask": drawn(4, 1, 7)},
    "window": {"is_causal": True, "window": (2, None), "causal_offset": 2},
    "offsets and lengths": {"is_causal": True, "causal_offset": [0, 2], "lengths": torch.tensor([7, 4])},
    "softcap and scale": {"softcap": 0.7, "scale": 3.0},
    "hard": {"weighting": "hard"},
    "uniform": {"weighting": "uniform", "lengths": 3},
    "cosine": {"similarity": "cosine"},
    "bilinear": {"similarity": regard.Bilinear(drawn(6, 6))},
    "additive": {"similarity": regard.Additive(drawn(4, 6))},
}


def seen_of(options: dict[str, Any]) -> Seen:
    model = Asks(**options)
    with regard.watch(model) as seen:
        model(drawn(2, 4, 5, 6), drawn(2, 4, 7, 6) + 0.3)
    return seen


@pytest.mark.parametrize("asked", ASKED)
def test_every_request_is_restored(asked: str, tmp_path: Path) -> None:
    _, expected = regard.attend(
        drawn(2, 4, 5, 6), drawn(2, 4, 7, 6) + 0.3, drawn(2, 4, 7, 6), **ASKED[asked], return_map=True
    )
    seen = seen_of(ASKED[asked])
    loaded = regard.load_capture(seen.save(tmp_path / "x.safetensors"))
    torch.testing.assert_close(loaded[0].dense(), expected.dense())
    assert loaded.names == ["Asks"] and loaded.kinds == seen.kinds


def test_grouped_heads_shared_masks_tokens_and_picture(tmp_path: Path) -> None:
    model = Asks(enable_gqa=True, attn_mask=torch.ones(5, 5, dtype=torch.bool).tril())
    q, k = drawn(1, 4, 5, 6), drawn(1, 2, 5, 6)
    with regard.watch(model) as seen:
        model(q, k)
        model(q * 2, k * 2)
    seen.tokens(query=["a", "b", "c", "d", "é"])
    seen.image, seen.patches = torch.arange(12, dtype=torch.uint8).reshape(2, 2, 3), Patches(2, 2, 1)
    path = seen.save(tmp_path / "deep" / "x.safetensors")
    loaded = regard.load_capture(str(path))
    assert loaded.names == ["Asks", "Asks#2"] and loaded.kinds == ["causal", "causal"]
    assert loaded[1].query_tokens == loaded[0].key_tokens == ["a", "b", "c", "d", "é"]
    assert loaded.image is not None and seen.image is not None and torch.equal(loaded.image, seen.image)
    assert loaded.patches == Patches(2, 2, 1)
    for one, other in zip(seen, loaded, strict=True):
        assert torch.equal(one.dense(), other.dense())
    with safe_open(path, framework="pt") as file:
        assert len(file.keys()) == 2 * 2 + 1 + 1  # the mask once
    again = loaded.filter(layers=0).save(tmp_path / "y.safetensors")  # what was loaded can be saved
    assert len(regard.load_capture(again)) == 2


def test_a_similarity_that_is_code_is_rejected(tmp_path: Path) -> None:
    seen = seen_of({"similarity": lambda q, k: q @ k.mT})
    with pytest.raises(ValueError, match=r"the similarity of Asks must be a dot product.*which is code"):
        seen.save(tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_not_captures(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="it does not exist"):
        regard.load_capture(tmp_path / "x.safetensors")
    path = seen_of({}).save(tmp_path / "x.safetensors")
    whole = path.read_bytes()
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    (tmp_path / "cut").write_bytes(whole[:-5])
    (tmp_path / "flipped").write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    (tmp_path / "text").write_text("hello")
    for name in ("cut", "flipped", "text"):
        with pytest.raises(ValueError, match=f"capture: .*{name} must"):
            regard.load_capture(tmp_path / name)

    def changed(**fields: Any) -> Path:
        words = json.dumps({**json.loads(metadata["regard"]), **fields})
        signed = {"regard": words, "regard_sha256": captures._digest(metadata["sha256"], words)}
        save_file(tensors, tmp_path / "other", {**metadata, **signed})
        return tmp_path / "other"

    save_file(tensors, tmp_path / "foreign", {"format": "pt"})
    with pytest.raises(ValueError, match=r"must be a file written by Seen.save"):
        regard.load_capture(tmp_path / "foreign")
    with pytest.raises(ValueError, match=r"must have version 2 or earlier; got 3. Upgrade regard."):
        regard.load_capture(changed(version=3))
    (call,) = json.loads(metadata["regard"])["calls"]
    for wrong in ({"q": "9"}, {"lead": [3, 4]}, {"kind": "odd"}, {"query_tokens": 0}, {"similarity": {"kind": "x"}}):
        with pytest.raises(ValueError, match="must describe its maps"):
            regard.load_capture(changed(calls=[{**call, **wrong}]))


def test_the_digest_covers_the_description_and_is_required(tmp_path: Path) -> None:
    seen = seen_of({"scale": 0.25})
    path = seen.save(tmp_path / "x.safetensors")
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def loaded(**changes: str | None) -> Seen:
        save_file(tensors, tmp_path / "y", {k: v for k, v in {**metadata, **changes}.items() if v is not None})
        return regard.load_capture(tmp_path / "y")

    other = metadata["regard"].replace('"scale": 0.25', '"scale": 0.65')
    assert other != metadata["regard"] and len(loaded()) == 1
    for changes in ({"regard": other}, {"regard_sha256": None}, {"sha256": None}, {"regard_sha256": "0" * 64}):
        with pytest.raises(ValueError, match=r"capture: .*y must .*digest"):
            loaded(**changes)
    old = json.dumps({**json.loads(metadata["regard"]), "version": 1})  # as files written before are
    assert torch.equal(loaded(regard=old, regard_sha256=None)[0].dense(), seen[0].dense())
    with pytest.raises(ValueError, match=r"digest of the tensors is missing"):
        loaded(regard=old, regard_sha256=None, sha256=None)
