"""The same random numbers in every run, independent of the order of tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20170612)
