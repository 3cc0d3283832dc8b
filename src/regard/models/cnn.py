"""A residual network, for comparison with the Vision Transformer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from ..core.settings import refuse
from ..core.tensors import shape
from .bounds import SIZES, out_of_bounds, too_large


@dataclass(frozen=True)
class CNNConfig:
    """Sizes of a `CNN`. The defaults give 0.7 million parameters, for images of 28×28 and 32×32."""

    classes: int = 0
    """Number of classes; a recipe takes it from the data. 0: no classifier, the model returns one vector per image."""
    channels: int = 1
    """1 for grey, 3 for colour."""
    widths: tuple[int, ...] = (32, 64, 128)
    """Channels of each stage. Each stage after the first halves height and width."""
    blocks: int = 2
    """Number of residual blocks in a stage."""
    dropout: float = 0.0
    """Share of the last features dropped in training."""

    def errors(self) -> list[str]:
        """Return all errors in these settings, one sentence each.

        >>> CNNConfig(widths=()).errors()
        ['cnn: widths (()) must be one number or more, each from 1 to 65,536. Try 32 64 128.']
        """
        problems = out_of_bounds("cnn", self)
        low, high = SIZES["width"]
        if not self.widths or not all(low <= width <= high for width in self.widths):
            problems.append(
                f"cnn: widths ({self.widths}) must be one number or more, each from {low} to {high:,}. Try 32 64 128."
            )
        return problems or too_large("cnn", 18 * self.blocks * sum(width * width for width in self.widths))


class ResidualBlock(nn.Module):
    """Two convolutions with a residual connection.

        y = relu(x′ + norm(conv(relu(norm(conv(x))))))

    x′ is x, or a 1×1 convolution of x if width or size change. Shapes: (B, C, H, W) → (B, width, H/s, W/s).
    Paper: He et al. 2016, section 3.3, figure 2.

    >>> import torch
    >>> tuple(ResidualBlock(3, 5, stride=2)(torch.randn(2, 3, 7, 8)).shape)
    (2, 5, 4, 4)
    """

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        same = channels == width and stride == 1
        self.around = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))  # (B, width, H/s, W/s)
        return F.relu(self.around(x) + self.second_norm(self.second(y)))


class CNN(nn.Module):
    """A convolution, stages of residual blocks, global average pooling, and a classifier.

    Shapes: images (B, C, H, W) → logits (B, classes), or features (B, widths[-1]) if classes=0. Images may have any
    size. The network is designed for CIFAR and MNIST: the first stage does not reduce the resolution.
    Paper: He et al. 2016, section 4.2. Differs from it: shortcuts that change size use a 1×1 convolution, not padding.

    Raises:
        ValueError: for sizes below 1.

    >>> import torch
    >>> model = CNN(CNNConfig(classes=10, widths=(4, 8), blocks=1))
    >>> tuple(model(torch.randn(5, 1, 28, 28)).shape)
    (5, 10)
    """

    def __init__(self, config: CNNConfig) -> None:
        super().__init__()
        refuse(config.errors())
        self.config = config
        self.stem = nn.Conv2d(config.channels, config.widths[0], 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(config.widths[0])
        nn.init.kaiming_normal_(self.stem.weight, mode="fan_out", nonlinearity="relu")
        blocks, channels = [], config.widths[0]
        for stage, width in enumerate(config.widths):
            for number in range(config.blocks):
                blocks.append(ResidualBlock(channels, width, stride=2 if stage and not number else 1))
                channels = width
        self.blocks = nn.ModuleList(blocks)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(channels, config.classes) if config.classes else None

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != self.config.channels:
            raise ValueError(f"cnn: images ({shape(images)}) must be (batch, {self.config.channels}, height, width).")
        x = F.relu(self.stem_norm(self.stem(images)))  # (B, widths[0], H, W)
        for block in self.blocks:
            x = block(x)
        features = self.dropout(x.mean((2, 3)))  # (B, widths[-1])
        result: Tensor = features if self.classifier is None else self.classifier(features)
        return result
