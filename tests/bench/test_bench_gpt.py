"""The benchmark of a pretrained language model, with a small one."""

from pathlib import Path

import pytest
import torch

from bench import gpt
from bench.harness import Options, measure, measure_figure
from regard.models import GPT, GPTConfig, save_gpt
from tests.data.test_model_tokenizer import byte_level

transformers = pytest.importorskip("transformers")


def test_contenders_agree_and_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tokenizer = gpt.ModelTokenizer(byte_level())
    torch.manual_seed(0)
    model = GPT(GPTConfig.llama(vocabulary=len(tokenizer), width=24, heads=4, kv_heads=2, layers=2)).eval()
    save_gpt(model, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    monkeypatch.setattr(gpt, "both", lambda options: (model, tokenizer, theirs))
    [case] = gpt.cases(Options(quick=True))
    result, modules = measure(case, rounds=2, seconds=1e-4)
    assert modules.bar is None and modules.median > 0
    assert result.bar == ">= 1.2" and result.shape == "0 million parameters, 64 tokens"
    most, share, text = (measure_figure(figure) for figure in gpt.figures(Options(quick=True)))
    assert most.met and share.met and share.median == 1 and text.met and text.median == gpt.QUICK
    with torch.no_grad():
        model.norm.weight[3] += 1
    most, *_ = (measure_figure(figure) for figure in gpt.figures(Options(quick=True)))
    assert most.met is False


def test_greedy_texts_are_compared_until_they_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig.llama(vocabulary=60, width=24, heads=4, layers=2)).eval()
    save_gpt(model, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    written = theirs.generate(torch.tensor([[5, 7, 9]]), do_sample=False, max_new_tokens=20, eos_token_id=-1)[0, 3:]
    assert gpt.same_tokens(model, theirs, [5, 7, 9], 20) == 20
    theirs.generation_config.eos_token_id = int(written[4])  # an end token does not end the comparison
    assert gpt.same_tokens(model, theirs, [5, 7, 9], 20) == 20
    changed = written[None].clone()
    changed[0, 6] = 1 - changed[0, 6].clamp(max=1)
    answer = torch.cat((torch.tensor([[5, 7, 9]]), changed), 1)
    monkeypatch.setattr(theirs, "generate", lambda *_, **__: answer)
    assert gpt.same_tokens(model, theirs, [5, 7, 9], 20) == 6
