"""Attention: query, key, value → context and map."""

from . import masks
from .attend import attend
from .map import AttentionMap
from .settle import settle
from .similarity import Additive, Bilinear

__all__ = ["Additive", "AttentionMap", "Bilinear", "attend", "masks"]

settle()
