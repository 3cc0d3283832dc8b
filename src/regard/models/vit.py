"""The Vision Transformer: an image as a sequence of patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import AttentionMap
from ..core.messages import nearest
from ..core.settings import refuse
from ..core.tensors import dtype, shape
from ..core.trace import trace_step
from ..core.typed_call import same_type
from ..layers import Dropout, EncoderBlock, FeedForward, MultiHeadAttention, sinusoids
from ..layers.stack import BatchLayout, run_encoder
from .bounds import out_of_bounds, too_large, uneven_heads, unknown_name
from .transformer import ACTIVATIONS

POOLS = ("class", "mean")
POSITIONS = ("learned", "sinusoidal")
LARGEST_IMAGE = 2**14


@dataclass(frozen=True)
class ViTConfig:
    """Sizes and names of a `ViT`. The defaults give 0.8 million parameters, for images of 28×28."""

    classes: int = 0
    """Number of classes; a recipe takes it from the data. 0: no classifier, the model returns one vector per image."""
    image: tuple[int, int] = (28, 28)
    """Height and width for the learned positions; they are interpolated for images of other sizes."""
    channels: int = 1
    """1 for grey, 3 for colour."""
    patch: int = 4
    """Height and width of a patch."""
    stem: int = 0
    """Channels of the convolutional stem, doubled whenever it halves the image; 0: patches of pixels."""
    width: int = 128
    """Width of embedded patches and blocks."""
    heads: int = 4
    """Number of attention heads; must divide the width."""
    hidden: int = 256
    """Inner width of the feed-forward layers."""
    layers: int = 6
    """Number of blocks."""
    pool: Literal["class", "mean"] = "class"
    """Input of the classifier: a class token that attends to all patches, or the mean of the patches."""
    position: Literal["learned", "sinusoidal"] = "learned"
    """Positional encoding of the patches."""
    activation: Literal["relu", "gelu", "silu"] = "gelu"
    """Activation of the feed-forward layers."""
    dropout: float = 0.0
    """Share of embeddings and of each sublayer's output dropped in training."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped in training; the fast kernels do not support it."""
    norm_epsilon: float = 1e-6
    """Epsilon of all layer norms."""
    pooler: bool = False
    """Without a classifier: whether to add a tanh layer, as in the ViTModel of `transformers`."""

    def errors(self) -> list[str]:
        """Return all errors in these settings, except the image size, which a recipe takes from the data.

        >>> ViTConfig(width=100, heads=3).errors()
        ['vit: width (100) must be divisible by heads (3); try 99 or 102.']
        """
        names = {"pool": POOLS, "position": POSITIONS, "activation": ACTIVATIONS}
        problems = [
            *out_of_bounds("vit", self),
            *uneven_heads("vit", self.width, self.heads),
            *unknown_name("vit", self, names),
        ]
        if self.stem > 0 and (self.patch < 2 or self.patch & (self.patch - 1)):
            problems.append(
                f"vit: stem ({self.stem}) must be 0 (none), or the channels of a convolution before patches of 2, 4, 8 "
                f"… pixels: each halves the image; got patches of {self.patch}."
            )
        if self.position == "sinusoidal" and self.width % 4:
            problems.append(
                f"vit: width ({self.width}) must be divisible by 4 for sinusoidal positions: sines and cosines of the "
                "row and of the column."
            )
        if self.pooler and self.classes:
            problems.append("vit: pooler (True) must come without classes: the classifier reads the normalized token.")
        size = self.width * (self.layers * (4 * self.width + 2 * self.hidden) + self.classes)
        return problems or too_large("vit", size)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches.

        >>> ViTConfig(image=(224, 192), patch=16).grid
        (14, 12)
        """
        return self.image[0] // self.patch, self.image[1] // self.patch


class ViT(nn.Module):
    """Embedded image patches with positions, encoder blocks, and a classifier.

        z₀ = [x_class; E·patch₁; …; E·patch_N] + P;   zₗ = block(zₗ₋₁);   y = classifier(norm(z_L[0]))

    With pool="mean" there is no class token, and y = classifier(norm(mean(z_L))). With a stem, 3×3 convolutions process
    the image first, and every second one halves it; each patch is one cell of the result (the hybrid of the paper; Xiao
    et al. 2021). This learns much faster from few images or in a short time.
    Shapes: images (B, C, H, W) → logits (B, classes), or features (B, width) if classes=0.
    Paper: Dosovitskiy et al. 2021, section 3.1. Sinusoidal positions encode the row in half of the channels and the
    column in the others. For images of another size than `config.image`, learned positions are interpolated (bicubic),
    as in `transformers` with `interpolate_pos_encoding=True`. A size that is not divisible by the patch is an error; a
    convolution would silently ignore the border.

    Raises:
        ValueError: for invalid sizes and names.

    >>> model = ViT(ViTConfig(classes=10, width=24, heads=3, hidden=48, layers=2))
    >>> logits, maps = model(torch.randn(5, 1, 28, 28), return_maps=True)
    >>> tuple(logits.shape), [m.shape for m in maps]
    ((5, 10), [(5, 3, 50, 50), (5, 3, 50, 50)])
    >>> tuple(model(torch.randn(5, 1, 20, 36)).shape)
    (5, 10)
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        refuse([*config.errors(), *_uneven_patches(config)])
        self.config = config
        width, first = config.width, int(config.pool == "class")
        self.stem, channels, size = None, config.channels, config.patch
        if config.stem:
            self.stem, channels, size = _stem(config), config.stem * config.patch // 2, 1
        # stored as the weights of a convolution, as in other checkpoints; computed as a matrix product
        self.patches = nn.Conv2d(channels, width, size, size)
        self.first = nn.Parameter(torch.empty(width)) if first else None
        rows, columns = config.grid
        learned = config.position == "learned"
        self.positions = nn.Parameter(torch.empty(first + rows * columns, width)) if learned else None
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width, config.norm_epsilon)
        self.pooler = nn.Linear(width, width) if config.pooler else None
        self.classifier = nn.Linear(width, config.classes) if config.classes else None
        self._initialize()

    @overload
    def forward(self, images: Tensor, *, return_maps: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, images: Tensor, *, return_maps: Literal[True]) -> tuple[Tensor, list[AttentionMap]]: ...
    @overload
    def forward(self, images: Tensor, *, return_maps: bool) -> Tensor | tuple[Tensor, list[AttentionMap]]: ...
    def forward(self, images: Tensor, *, return_maps: bool = False) -> Tensor | tuple[Tensor, list[AttentionMap]]:
        """Return logits (B, classes) or features (B, width); with return_maps also the maps, (B, heads, T, T) each."""
        # only the class token of the last block is read, so only that one is computed
        x, maps = self._encode(images, return_maps, first_token=self.first is not None)
        features = self.norm(x.mean(1) if self.first is None else x)  # (B, width)
        if self.pooler is not None:
            features = torch.tanh(self.pooler(features))
        output = features if self.classifier is None else self.classifier(features)
        return (output, maps) if return_maps else output

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    @same_type(forward)
    def encode(self, images: Tensor, *, return_maps: bool = False) -> Tensor | tuple[Tensor, list[AttentionMap]]:
        """Return all normalized tokens after the last block: (B, T, width), class token first; or (tokens, maps).

        >>> model = ViT(ViTConfig(classes=10, width=24, heads=3, hidden=48, layers=2))
        >>> tuple(model.encode(torch.randn(5, 1, 28, 28)).shape)      # a class token and 7·7 patches
        (5, 50, 24)
        """
        x, maps = self._encode(images, return_maps)
        return (self.norm(x), maps) if return_maps else self.norm(x)

    def _encode(
        self, images: Tensor, return_maps: bool, first_token: bool = False
    ) -> tuple[Tensor, list[AttentionMap]]:
        x = self._embed(images)  # (B, T, width)
        layout = BatchLayout.of(x, None)
        return run_encoder(self.blocks, x, layout, first_token=first_token, return_maps=return_maps)

    def _embed(self, images: Tensor) -> Tensor:
        self._check(images)
        patch, size = self.patches, self.config.patch
        if self.stem is None:
            inputs = patches(images, size)  # (B, N, C·p·p)
        else:
            with trace_step("stem", self.stem):
                inputs = self.stem(images).flatten(2).transpose(1, 2)  # (B, N, stem·p/2)
        with trace_step("patch embedding"):
            x = F.linear(inputs, patch.weight.flatten(1), patch.bias)  # (B, N, width)
        positions = self._positions(images.shape[-2] // size, images.shape[-1] // size).to(x.dtype)  # (T, width)
        with trace_step("position"):
            x = x + (positions if self.first is None else positions[1:])
        if self.first is None:
            return self.dropout(x)
        with trace_step("class token"):
            first = (self.first + positions[0]).expand(len(x), 1, -1)  # (B, 1, width)
        with trace_step("class token first"):
            return self.dropout(torch.cat((first, x), 1))  # (B, 1 + N, width)

    def _positions(self, rows: int, columns: int) -> Tensor:
        """Return one vector per token of a grid: (T, width)."""
        first = int(self.first is not None)
        if self.positions is None:
            table = sinusoids_2d(rows, columns, self.config.width, self.patches.weight.device)
            return F.pad(table, (0, 0, first, 0))  # the class token has no position
        if (rows, columns) == self.config.grid:
            return self.positions
        grid = self.positions[first:].T.reshape(1, -1, *self.config.grid)  # (1, width, rows, columns) as learned
        other = F.interpolate(grid, (rows, columns), mode="bicubic", align_corners=False)
        return torch.cat((self.positions[:first], other.flatten(2)[0].T))

    def _initialize(self) -> None:
        nn.init.trunc_normal_(self.patches.weight, std=self.patches.weight[0].numel() ** -0.5)
        nn.init.zeros_(self.patches.bias)  # type: ignore[arg-type]  # a convolution with a bias
        if self.classifier is not None:
            nn.init.trunc_normal_(self.classifier.weight, std=0.02)
            nn.init.zeros_(self.classifier.bias)
        if self.first is not None:
            nn.init.trunc_normal_(self.first, std=0.02)
        if self.positions is not None:
            # embedded patches have deviation 1; with BERT's 0.02, positions would be hard to distinguish for long
            nn.init.trunc_normal_(self.positions, std=0.2)

    def _check(self, images: Tensor) -> None:
        channels, size = self.config.channels, self.config.patch
        if images.ndim != 4 or images.shape[1] != channels:
            raise ValueError(f"vit: images ({shape(images)}) must be (batch, {channels}, height, width).")
        if not images.is_floating_point():
            raise ValueError(
                f"vit: images must be floating point; got {dtype(images)}. Divide bytes by 255, or let "
                "regard.data.image_batches.Normal normalize them to mean 0."
            )
        wrong = [n for n in images.shape[2:] if n < size or n % size]
        if wrong:
            raise ValueError(
                f"vit: height and width ({shape(images[0, 0])}) must be divisible by the patch ({size}); try "
                f"{nearest(wrong[0], size)} instead of {wrong[0]}: scale, crop or pad the images."
            )


def _uneven_patches(config: ViTConfig) -> list[str]:
    """Return an error if images cannot be split into patches."""
    for side in config.image if config.patch > 0 else ():
        if side < config.patch or side % config.patch:
            return [
                f"vit: image ({config.image[0]}×{config.image[1]}) must be divisible by the patch ({config.patch}); "
                f"try {nearest(side, config.patch)} instead of {side}."
            ]
        if side > LARGEST_IMAGE:
            return [f"vit: image ({side}) must be at most {LARGEST_IMAGE:,} pixels high and wide."]
    return []


def patches(images: Tensor, size: int) -> Tensor:
    """Split images into squares, row by row: (B, C, H, W) → (B, N, C·size·size).

    >>> patches(torch.arange(8.0).view(1, 1, 2, 4), 2).tolist()
    [[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]]
    """
    batch, channels, height, width = images.shape
    squares = images.reshape(batch, channels, height // size, size, width // size, size)
    return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def sinusoids_2d(rows: int, columns: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Compute sines and cosines of the row, then of the column: (rows · columns, width), float64.

    >>> sinusoids_2d(1, 2, 4).float()
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.0000, 1.0000, 0.8415, 0.5403]])
    """
    row, column = (sinusoids(torch.arange(n, device=device), width // 2) for n in (rows, columns))
    wide = (rows, columns, width // 2)
    return torch.cat((row[:, None].expand(wide), column.expand(wide)), -1).flatten(0, 1)


def _stem(config: ViTConfig) -> nn.Sequential:
    """Build the stem: (B, C, H, W) → (B, stem·p/2, H/p, W/p), with p a power of two."""
    parts: list[nn.Module] = []
    previous, channels = config.channels, config.stem
    for _ in range(config.patch.bit_length() - 1):
        for stride in (1, 2):
            parts += [nn.Conv2d(previous, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
            previous = channels
        channels *= 2
    return nn.Sequential(*parts)


def _block(config: ViTConfig) -> EncoderBlock:
    feedforward = FeedForward(config.width, config.hidden, activation=ACTIVATIONS[config.activation])
    for linear in (feedforward.up, feedforward.down):
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
    return EncoderBlock(
        MultiHeadAttention(config.width, config.heads, dropout=config.attention_dropout),
        feedforward,
        norm_first=True,
        dropout=config.dropout,
        norm=lambda width: nn.LayerNorm(width, config.norm_epsilon),
    )
