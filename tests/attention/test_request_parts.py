"""`Request.of_parts`, which captures, operators and derivatives use, validates its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.attention.masks import Mask
from regard.attention.request import Request
from regard.attention.similarity import Additive, Dot


def parts(**changes: Any) -> dict[str, Any]:
    q, k, v = torch.zeros(2, 6, 3, 8), torch.zeros(2, 3, 5, 8), torch.zeros(2, 3, 5, 7)
    return {"q": q, "k": k, "v": v, "similarity": Dot(1.0), "lead": (2, 6), "groups": 2, **changes}


def test_valid_parts() -> None:
    offset = torch.zeros(2, 1, 1, 1, dtype=torch.int64)
    mask = Mask(torch.ones(3, 5, dtype=torch.bool), 2, 0, offset, offset + 5)
    request = Request.of_parts(**parts(mask=mask, softcap=2.0))
    assert request.shape == (2, 6, 3, 5) and request.mask is mask and request.dropout_p == 0
    assert Request.of_parts(**parts(v=None)).v is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": torch.zeros(2, 3, 5, 9)}, "key (2×3×5×9) must be as wide as query (8); got 9"),
        ({"k": torch.zeros(2, 3, 5, 8).double()}, "key must have the dtype of query (float32); got float64"),
        ({"v": torch.zeros(2, 3, 4, 7)}, "value (2×3×4×7) must have one row for each key (2×3×5×8): 5 rows; got 4"),
        ({"v": torch.zeros(2, 6, 5, 7)}, "value (2×12) must broadcast to the leading (2, 6)"),
        ({"groups": 3}, "key (2×9) must broadcast to the leading (2, 6)"),
        ({"lead": (2, 3)}, "query (2×6) must broadcast to the leading (2, 3)"),
        ({"groups": 0}, "groups (0) must be 1"),
        ({"softcap": -1.0}, "softcap (-1.0) must be a positive number"),
        ({"mask": Mask(torch.ones(3, 6, dtype=torch.bool))}, "attn_mask (3×6) must broadcast to 2×6×3×5"),
        ({"mask": Mask(None, -1, 0)}, "window ((-1, 0)) must be"),
        ({"mask": Mask(lengths=torch.tensor([5, 5]))}, "lengths (2) must broadcast to 2×6×1×1"),
        ({"mask": Mask(right=0, offset=torch.zeros(2, 1, 1, 1))}, "causal_offset must be integers on cpu; got float32"),
        ({"similarity": Additive(torch.zeros(7))}, "Additive(w): w (7) must be 8"),
    ],
)
def test_invalid_parts(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        Request.of_parts(**parts(**changes))
    assert message in str(raised.value)
