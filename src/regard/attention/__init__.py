"""Attention: query, key, value → context and map."""

from . import masks
from .attend import attend
from .map import AttentionMap
from .packed import attend_packed
from .settle import settle
from .similarity import Additive, Bilinear

__all__ = ["Additive", "AttentionMap", "Bilinear", "attend", "attend_packed", "masks"]

settle()
