"""The first call of an elementwise function in a process is as precise as the second."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
{imports}
import torch
wrong = 0
for _ in range({processes}):
    child = os.fork()  # each is a process in which no elementwise function has run, but for what was imported
    if not child:
        torch.set_num_threads(2)
        x = torch.randn(512, 8, 8, 32, generator=torch.Generator().manual_seed(0))
        s = x @ x.mT
        s = s - s.amax(-1, keepdim=True)
        os._exit(not torch.equal(torch.exp(s), torch.exp(s)))
    wrong += os.waitpid(child, 0)[1] != 0
sys.exit(wrong)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs many processes that are fast to start")
def test_the_first_exponentials_are_the_second() -> None:
    script = SCRIPT.format(imports="import regard", processes=60)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.returncode} of 60 processes differ {done.stderr}"
