"""The residual network."""

import re
from typing import Any

import pytest
import torch

from regard.models.cnn import CNN, CNNConfig, ResidualBlock


def test_a_block_adds_to_its_input() -> None:
    block, x = ResidualBlock(5, 5).eval(), torch.rand(2, 5, 7, 9)
    torch.nn.init.zeros_(block.second.weight)
    assert torch.allclose(block(x), x, atol=1e-6)
    assert ResidualBlock(5, 5, stride=2)(x).shape == (2, 5, 4, 5)


@pytest.mark.parametrize("size", [(28, 28), (32, 32), (7, 9), (1, 1)])
def test_images_of_any_size(size: tuple[int, int]) -> None:
    model = CNN(CNNConfig(classes=3, channels=2, widths=(4, 6, 8), blocks=2)).eval()
    assert len(model.blocks) == 6
    images = torch.randn(5, 2, *size)
    logits = model(images)
    assert logits.shape == (5, 3) and torch.allclose(logits[2:3], model(images[2:3]), atol=1e-5)
    assert CNN(CNNConfig(channels=2, widths=(4, 6)))(images).shape == (5, 6)


def test_a_small_network_learns() -> None:
    assert sum(p.numel() for p in CNN(CNNConfig(classes=10)).parameters()) < 1_000_000
    torch.manual_seed(0)
    model = CNN(CNNConfig(classes=2, widths=(4, 8), blocks=1))
    images, labels = torch.randn(16, 1, 8, 8), torch.arange(16) % 2
    images[labels == 1, :, :4] += 2
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"widths": ()}, "cnn: widths (()) must be one number or more"),
        ({"widths": (4, 0)}, "cnn: widths ((4, 0)) must be"),
        ({"blocks": 0}, "cnn: blocks (0) must be at least 1."),
        ({"channels": 0}, "cnn: channels (0) must be at least 1."),
    ],
)
def test_sizes_that_do_not_fit(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        CNN(CNNConfig(classes=2, **changed))


def test_images_of_other_channels() -> None:
    with pytest.raises(ValueError, match=re.escape("must be (batch, 1, height, width)")):
        CNN(CNNConfig(classes=2))(torch.zeros(2, 3, 8, 8))
