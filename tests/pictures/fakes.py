"""Fake maps with only the methods that pictures need, and functions to read pictures back."""

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from regard.pictures.terminal import shrink


class FakeMap:
    """A map with the methods that pictures need, which records the calls."""

    def __init__(self, weights, query_tokens=None, key_tokens=None):
        self.weights, self.query_tokens, self.key_tokens = weights, query_tokens, key_tokens
        self.shape, self.asked = tuple(weights.shape), []

    def __getitem__(self, index):
        self.asked.append(index)
        return self.weights[index]

    def pool(self, rows, cols, reduce="max"):
        self.asked.append((rows, cols, reduce))
        return shrink(self.weights, rows, cols)


class HugeMap:
    """A map too large to exist, with one link, of weight 1, at (query, key)."""

    query_tokens = key_tokens = None

    def __init__(self, length, query, key, heads=()):
        self.shape, self.link = (*heads, length, length), (query, key)

    def __getitem__(self, index):
        raise AssertionError("a huge map must be pooled, not read cell by cell")

    def pool(self, rows, cols, reduce="max"):
        assert rows < 2000 and cols < 2000
        length = self.shape[-1]
        cells = torch.zeros(*self.shape[:-2], rows, cols)
        cells[..., self.link[0] * rows // length, self.link[1] * cols // length] = 1.0
        return cells


def attention(*shape, seed=0):
    return torch.softmax(3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), -1)


def pixels(figure, axes=0):
    """Return the pixels of a panel, (height, width, 3) in 0…255."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = np.asarray(canvas.buffer_rgba())[..., :3]
    return crop(image, figure, axes)


def crop(image, figure, axes=0):
    box = figure.axes[axes].get_position()
    height, width = image.shape[:2]
    top, bottom = round((1 - box.y1) * height), round((1 - box.y0) * height)
    return image[top:bottom, round(box.x0 * width) : round(box.x1 * width)]
