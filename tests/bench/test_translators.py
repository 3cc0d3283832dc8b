"""Benchmarks against other translators: equal networks, and parsing of their output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from bench import peers, training
from bench.decoding import marian
from regard.data import Corpus
from regard.models import Transformer, TransformerConfig


def test_marian_is_the_same_network() -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = TransformerConfig(40, 40, width=16, heads=2, hidden=24, encoder_layers=2, norm_first=False, tie="all")
    ours = Transformer(config).eval()
    theirs = marian(ours)
    source, target = torch.randint(4, 40, (3, 7)), torch.randint(4, 40, (3, 5))
    lengths = torch.tensor([7, 2, 5])
    with torch.no_grad():
        expected = ours(source, lengths, target, torch.tensor([5, 5, 5]))  # (3, 5, 40)
        mask = (torch.arange(7) < lengths[:, None]).long()
        logits = theirs(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_speed_is_parsed_from_their_log() -> None:
    line = "2026 - INFO - joeynmt.training - Epoch   1, Step:       50, Batch Loss:     7.08, Batch Acc: 0.06, "
    match = training.SPEED.search(line + "Tokens per Sec:      882, Lr: 0.000035")
    assert match is not None and float(match[1]) == 882
    assert training.SPEED.search("Tokens per Sec of nothing: Step: 3") is None


def test_a_peer_without_output_of_its_speed_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no such module\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match="no such module"):
        training._theirs(str(program), tmp_path, 1)


def test_their_configuration_has_our_sizes() -> None:
    model, options = training.MODELS["transformer"]
    config = TransformerConfig()
    theirs = json.loads(json.dumps(training._configuration(model)))["model"]["encoder"]
    assert (theirs["hidden_size"], theirs["ff_size"]) == (config.width, config.hidden)
    assert (theirs["num_layers"], theirs["num_heads"]) == (config.encoder_layers, config.heads)
    assert options == ["--dropout", str(theirs["dropout"])]


def test_a_missing_environment_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_JOEYNMT", "/nowhere/python")
    with pytest.raises(SystemExit, match=r"REGARD_JOEYNMT \(/nowhere/python\) must name the Python .* with a and b"):
        peers.python("REGARD_JOEYNMT", "a and b")


def test_joeynmt_batches_end_when_padded_tokens_reach_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "TOKENS", 12)
    lengths = np.array([[3, 2], [1, 4], [2, 6], [5, 5], [2, 2]])
    batches = [batch.tolist() for batch in training.joeynmt_batches(lengths, np.array([0, 1, 2, 3, 4]))]
    assert batches == [[0, 1, 2], [3, 4]]  # 3 × 6 ≥ 12, and the rest
    cells = 3 * (3 + 6) + 2 * (5 + 5)
    assert training.padding(lengths, [np.array(batch) for batch in batches]) == pytest.approx(1 - 32 / cells)


def test_batching_of_both_programs_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "TOKENS", 60)
    pairs = [([5] * length, [6] * length) for length in (1, 9) * 50]
    text = training.batching(Corpus.write(tmp_path / "corpus", pairs))
    match = re.fullmatch(r"batching: JoeyNMT .* (\d+)% padding; ours .* (\d+)% padding", text)
    assert match is not None and int(match[1]) > 30 and int(match[2]) < 5


def test_the_program_that_runs_first_alternates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[str] = []

    def speed(name: str, tokens: float) -> float:
        started.append(name)
        return tokens

    monkeypatch.setattr(training, "python", lambda *_: "python")
    monkeypatch.setattr(training, "_prepare", lambda *_: None)
    monkeypatch.setattr(training, "_ours", lambda *_: speed("ours", 30.0))
    monkeypatch.setattr(training, "_theirs", lambda *_: speed("theirs", 10.0))
    monkeypatch.setattr(training, "batching", lambda corpus: "batching")
    monkeypatch.setattr(training.Corpus, "open", lambda path: None)
    assert training._ratio("transformer", 2, 1) == 3.0
    assert started == ["ours", "theirs", "theirs", "ours"]
