"""Random augmentation of images: the effect of each function, and reproducibility."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data.augment import crop, erase, flip, mixup

IMAGES = torch.randint(1, 256, (101, 3, 7, 5), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("change", [flip, lambda x, generator: crop(x, 2, generator), erase])
@pytest.mark.parametrize("images", [IMAGES, IMAGES.float()])
def test_the_same_again(change: Any, images: Tensor) -> None:
    before = images.clone()
    first, again, other = (change(images, generator=seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == images.shape and first.dtype == images.dtype and torch.equal(images, before)
    assert change(images[:0], generator=seeded()).shape == (0, 3, 7, 5)


def test_flip() -> None:
    flipped = flip(IMAGES, 0.5, seeded())
    turned = torch.tensor([bool((a == b.flip(-1)).all()) for a, b in zip(flipped, IMAGES, strict=True)])
    assert 30 < turned.sum() < 70
    assert torch.equal(flipped[~turned], IMAGES[~turned])
    assert torch.equal(flip(IMAGES, 0.0), IMAGES) and torch.equal(flip(IMAGES, 1.0), IMAGES.flip(-1))


def test_crop_shifts_images_and_pads_with_zeros() -> None:
    moved, seen = crop(IMAGES, 2, seeded()), set()
    wide = torch.nn.functional.pad(IMAGES, (2, 2, 2, 2))
    for one, padded in zip(moved, wide, strict=True):
        windows = [(y, x) for y in range(5) for x in range(5) if torch.equal(one, padded[:, y : y + 7, x : x + 5])]
        assert len(windows) == 1
        seen |= set(windows)
    assert len(seen) > 20
    assert crop(IMAGES, 0) is IMAGES


def test_erase_wipes_one_rectangle() -> None:
    images = torch.ones(200, 2, 20, 30)
    result = erase(images, 0.5, (0.1, 0.2), seeded(), fill=-1.0)
    holes = result[:, 0] == -1
    assert torch.equal(result[:, 1] == -1, holes)
    touched = holes.any(-1).any(-1)
    assert 70 < touched.sum() < 130
    for hole in holes[touched]:
        rows, columns = hole.any(1).nonzero(), hole.any(0).nonzero()
        size = len(rows) * len(columns)
        assert (
            hole.sum() == size and rows[-1] - rows[0] + 1 == len(rows) and columns[-1] - columns[0] + 1 == len(columns)
        )
        assert 0.05 * 600 < size < 0.25 * 600
    assert torch.equal(erase(images, 0.0), images)


def test_mixup_is_a_mean_of_two() -> None:
    images, labels = torch.randn(64, 1, 3, 3), torch.arange(64)
    mixed = mixup(images, labels, 0.4, seeded())
    share = mixed.share[:, None, None, None]
    assert torch.allclose(mixed.images, share * images + (1 - share) * images[mixed.others], atol=1e-6)
    assert torch.equal(mixed.labels, labels) and sorted(mixed.others.tolist()) == labels.tolist()
    assert ((mixed.share >= 0) & (mixed.share <= 1)).all()
    assert torch.equal(mixup(images, labels, 0.4, seeded()).images, mixed.images)
    many = mixup(torch.zeros(4000, 1, 1, 1), torch.zeros(4000), 0.4, seeded()).share
    assert abs(many.mean() - 0.5) < 0.02 and abs(many.var() - 1 / (4 * 1.8)) < 0.01  # of Beta(α, α): 1 / (4(2α + 1))
    plain = mixup(images, labels, 0.0)
    assert plain.images is images and (plain.share == 1).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: flip(IMAGES[0]), "flip: images (3×7×5) must be (batch, channels, height, width)."),
        (lambda: flip(IMAGES, 1.5), "flip: share (1.5) must lie in [0, 1]."),
        (lambda: crop(IMAGES, -1), "crop: padding (-1) must be 0 or more."),
        (lambda: erase(IMAGES, 0.5, (0.5, 0.1)), "erase: area (0.5, 0.1) must be two increasing fractions"),
        (lambda: mixup(IMAGES.float(), torch.zeros(101), -1), "mixup: alpha (-1) must be 0 or more."),
        (lambda: mixup(IMAGES, torch.zeros(101)), "must be floating point: a mean of bytes would be rounded."),
    ],
)
def test_settings_that_do_not_fit(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
