"""Images of a Hugging Face model: the pixels are those of its processor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import BitImageProcessor, ViTImageProcessor

from regard.server.huggingface_target import read_image

SCALE = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.2, 0.1], "resample": 2, "do_convert_rgb": True}


@pytest.mark.parametrize("shortest", [32, 48])
@pytest.mark.parametrize("size", [(90, 40), (40, 90), (91, 41), (20, 20)])
def test_pixels_of_a_processor_that_crops(tmp_path: Path, size: tuple[int, int], shortest: int) -> None:
    crop = {"height": 32, "width": 32}
    compare(BitImageProcessor(size={"shortest_edge": shortest}, crop_size=crop, **SCALE), size, tmp_path)


@pytest.mark.parametrize("size", [(90, 40), (32, 32)])
def test_pixels_of_a_processor_that_resizes_both_sides(tmp_path: Path, size: tuple[int, int]) -> None:
    compare(ViTImageProcessor(size={"height": 32, "width": 32}, **SCALE), size, tmp_path)


def compare(processor: BitImageProcessor | ViTImageProcessor, size: tuple[int, int], folder: Path) -> None:
    width, height = size
    pixels = torch.arange(3 * width * height).mul(37).remainder(251).to(torch.uint8)
    Image.frombytes("RGB", size, pixels.numpy().tobytes()).save(folder / "image.png")
    processor.save_pretrained(folder)
    with Image.open(folder / "image.png") as picture:
        expected = processor(picture, return_tensors="pt")["pixel_values"]
    shown, values = read_image(folder / "image.png", folder, {"image_size": 32})
    assert shown.shape == (32, 32, 3) and shown.dtype == torch.uint8
    torch.testing.assert_close(values, expected, atol=1e-6, rtol=0)
