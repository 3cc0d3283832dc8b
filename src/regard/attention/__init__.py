"""Attention: query, key, value → context and map."""

from ..core.process import warm_up
from . import masks
from .attend import attend
from .attention_map import AttentionMap
from .packed import attend_packed
from .packed_maps import PackedMaps
from .similarity import Additive, Bilinear, ScoreFunction, SimilarityArgument

__all__ = [
    "Additive",
    "AttentionMap",
    "Bilinear",
    "PackedMaps",
    "ScoreFunction",
    "SimilarityArgument",
    "attend",
    "attend_packed",
    "masks",
]

warm_up()
