"""BERT for inference: what it says is what the module says."""

from dataclasses import replace

import pytest
import torch

from regard.models import Bert
from regard.models.fast_encoder import Inference
from tests.models.test_bert import CONFIG, V, W


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("lengths", [[5], [1], [7, 7, 7, 3, 3, 1], [3, 7, 3], [19, 1]])
def test_the_same_numbers(activation: str, lengths: list[int]) -> None:
    bert = Bert(replace(CONFIG, activation=activation)).eval().double()
    for parameter in bert.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(1, V, (sum(lengths),))
    found = Inference(bert)(ids, lengths)
    assert found.shape == (sum(lengths), W) and not found.requires_grad
    for text, hidden in zip(ids.split(lengths), found.split(lengths), strict=True):
        torch.testing.assert_close(hidden, bert(text[None])[0].detach(), rtol=1e-9, atol=1e-10)


def test_the_model_is_left_alone() -> None:
    bert = Bert(CONFIG).eval()
    before = {name: value.clone() for name, value in bert.state_dict().items()}
    encode, ids = Inference(bert), torch.randint(1, V, (9,))
    first = encode(ids, [5, 4])
    assert torch.equal(encode(ids, [5, 4]), first)
    assert all(torch.equal(value, before[name]) for name, value in bert.state_dict().items())
    bert(ids[None]).sum().backward()  # its parameters are no inference tensors


def test_lengths_are_of_all_ids() -> None:
    with pytest.raises(AssertionError, match="5 tokens in lengths, 4 ids"):
        Inference(Bert(CONFIG))(torch.ones(4, dtype=torch.long), [5])
