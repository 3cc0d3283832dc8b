"""Products of many rows: oneDNN and PyTorch's operators against float64."""

import pytest
import torch
from torch.nn import functional as F

from regard.attention.native import many_rows
from regard.attention.native.many_rows import Epilogue, linear_


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("epilogue", ["store", "add", "gate"])
def test_products_equal_those_in_float64(
    epilogue: Epilogue, biased: bool, onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not onednn:
        monkeypatch.setattr(many_rows, "onednn", lambda: None)
    generator = torch.Generator().manual_seed(0)
    out = 2 * 29 if epilogue == "gate" else 29
    x, weight = torch.randn(67, 31, generator=generator), torch.randn(out, 31, generator=generator)
    bias, y = torch.randn(out, generator=generator), torch.randn(67, 29, generator=generator)
    before = y.double()
    linear_(x, weight, bias if biased else None, y, epilogue)
    product = F.linear(x.double(), weight.double(), bias.double() if biased else None)
    if epilogue == "gate":
        gate, up = product.tensor_split(2, -1)
        wanted = F.silu(gate) * up
    else:
        wanted = product + before if epilogue == "add" else product
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-4)


def test_other_dtypes_use_pytorch() -> None:
    x, weight = torch.ones(40, 3, dtype=torch.float64), torch.eye(2, 3, dtype=torch.float64)
    y = torch.ones(40, 2, dtype=torch.float64)
    linear_(x, weight, None, y, "add")
    assert torch.equal(y, torch.full_like(y, 2))
