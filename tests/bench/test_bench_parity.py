"""Parity of contenders: accepted outputs, rejected outputs and error messages."""

import doctest
import math

import pytest
import torch

from bench import parity
from bench.parity import Parity, ParityError


def test_parity_passes_within_its_tolerance_and_compares_a_view_with_an_oracle() -> None:
    outputs = {"ours": lambda: (torch.tensor([1.0, 7.0]), {"grad": torch.tensor(3.0)}), "other": lambda: "not a tensor"}
    check = Parity(
        lambda: [1.0625, 3.0], rtol=0.0, atol=0.0625, contenders=("ours",), view=lambda o: (o[0][0], o[1]["grad"])
    )
    check.check("toy", outputs)
    with pytest.raises(ParityError, match=r"output 1 of ours \(3 at flat index 0\) must equal that of the oracle"):
        Parity(lambda: [1.0, 4.0], contenders=("ours",), view=check.view).check("toy", outputs)


@pytest.mark.parametrize(("got", "wanted"), [(math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan), (math.inf, 1.0)])
def test_parity_never_accepts_nan(got: float, wanted: float) -> None:
    with pytest.raises(ParityError, match="1 of 1 elements differ"):
        Parity("peer").check("toy", {"ours": lambda: got, "peer": lambda: wanted})


def test_parity_names_the_shapes() -> None:
    with pytest.raises(ParityError, match=r"toy: the outputs of ours \(\[\(2, 3\)\]\) .* got \[\(3, 2\)\]\."):
        Parity("peer").check("toy", {"ours": lambda: torch.ones(2, 3), "peer": lambda: torch.ones(3, 2)})


def test_docstring_examples() -> None:
    assert doctest.testmod(parity).failed == 0
