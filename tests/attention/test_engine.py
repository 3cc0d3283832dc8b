"""The C++ kernels are loaded, selected by instruction set, and run in torch's threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from regard.attention.native import engine

ROOT = Path(__file__).parent.parent.parent
OPEN = (2**60, 2**60, 0, 0, 0, 0, 0, 0, 0, 0)

needs_module = pytest.mark.skipif(engine.module is None, reason=engine.reason)


@pytest.fixture
def module() -> Iterator[ModuleType]:
    assert engine.module is not None
    used = engine.module.isa()
    yield engine.module
    engine.module.use_isa(used)


def dot_forward(module: ModuleType, q: Tensor, k: Tensor, v: Tensor, threads: int, rows_per_task: int = 5) -> Tensor:
    (b, h, tq, d), (tk, dv) = q.shape, v.shape[-2:]
    context, softmax = torch.full((b, h, tq, dv), torch.nan), torch.full((2, b, h, tq), torch.nan)
    views = [(x.data_ptr(), *x.stride()[:3]) for x in (q, k, v, context)]
    problem = (b, h, 1, tq, tk, d, dv), *views[:3], (0, d**-0.5, 0.0), OPEN
    rows = softmax.data_ptr(), *softmax.stride()[:3]
    module.dot_forward(problem, None, views[3], rows, rows_per_task, threads)
    return context


def python(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **environment}, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_machine_with_a_compiler_has_the_module() -> None:
    if os.environ.get("REGARD_NATIVE") == "0" or not shutil.which(os.environ.get("CXX", "c++")):
        pytest.skip("no compiler, or switched off")
    assert engine.module is not None, engine.reason


@needs_module
def test_it_names_its_instruction_set(module: ModuleType) -> None:
    assert module.isas()[0] == "baseline"
    assert set(module.isas()) <= {"baseline", "avx2", "avx512"}
    assert python("from regard.attention.native import engine; print(engine.module.isa())").strip() == module.isas()[-1]


@needs_module
def test_the_environment_caps_the_instruction_set() -> None:
    script = "from regard.attention.native import engine; print(engine.module.isa(), *engine.module.isas())"
    used, *supported = python(script, REGARD_MAX_CPU_ISA=engine.ISAS[-1]).split()  # this process may have a cap itself
    assert used == supported[-1]
    for cap in engine.ISAS[:-1]:
        used, *runnable = python(script, REGARD_MAX_CPU_ISA=cap).split()
        allowed = [name for name in supported if engine.ISAS.index(name) <= engine.ISAS.index(cap)]
        assert runnable == allowed and used == allowed[-1]


@needs_module
def test_an_unknown_cap_is_refused() -> None:
    script = "from regard.attention.native import engine; print(engine.module, engine.reason)"
    refused = python(script, REGARD_MAX_CPU_ISA="avx3").strip()
    assert refused == "None REGARD_MAX_CPU_ISA (avx3) must be one of baseline, avx2, avx512"


@needs_module
def test_every_instruction_set_gives_the_context(module: ModuleType) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 23, 13), torch.randn(2, 3, 29, 13), torch.randn(2, 3, 29, 7)
    exact = torch.softmax(q.double() @ k.double().mT / 13**0.5, -1) @ v.double()
    for name in module.isas():
        module.use_isa(name)
        assert module.isa() == name
        for threads in (1, 2, 3):
            error = (dot_forward(module, q, k, v, threads) - exact).abs().max().item()
            assert error < 2e-6, (name, threads, error)


@needs_module
def test_an_unknown_instruction_set_is_refused(module: ModuleType) -> None:
    used = module.isa()
    with pytest.raises(ValueError, match=r"isa \('avx3'\) must be one that runs here: baseline"):
        module.use_isa("avx3")
    assert module.isa() == used


@needs_module
@pytest.mark.parametrize("size", [6, 8])
def test_a_tuple_of_another_size_is_refused(module: ModuleType, size: int) -> None:
    four = (0, 0, 0, 0)
    with pytest.raises(TypeError, match="sizes must be a tuple of 7 items"):
        module.dot_forward(((0,) * size, four, four, four, (0, 1.0, 0.0), OPEN), None, four, four, 1, 1)
    with pytest.raises(ValueError, match="rows_per_task must be at least 1"):
        module.dot_forward(((0,) * 7, four, four, four, (0, 1.0, 0.0), None), None, four, four, 0, 1)


@needs_module
def test_an_exception_in_a_task_reaches_the_caller(module: ModuleType) -> None:
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the sanitizer ends the process instead")
    sizes = (2, 2**16, 2**16, 4, 1, 2**30, 1)  # no machine has memory for so many queries of that width
    problem = sizes, *[(0, 0, 0, 0)] * 3, (0, 1.0, 0.0), OPEN
    for threads in (1, 2):
        with pytest.raises(MemoryError):
            module.dot_forward(problem, None, (0, 0, 0, 0), (0, 0, 0, 0), 1, threads)


@pytest.mark.parametrize(
    ("setting", "words"), [("0", "switched off by REGARD_NATIVE=0"), ("/nowhere.so", "got no such file")]
)
def test_regard_works_without_the_module_and_names_the_reason(setting: str, words: str) -> None:
    script = """
import regard, torch
from regard.attention.native import engine
assert engine.module is None
x = torch.randn(1, 2, 3, 5)
assert regard.attend(x, x, x).shape == x.shape
print(engine.reason)
"""
    assert words in python(script, REGARD_NATIVE=setting)


THREADS = """
import os, torch
from tests.attention.test_engine import dot_forward, engine
torch.set_num_threads({threads})
q = torch.randn(8, 4, 64, 64)

def kernel():
    for _ in range(20):
        dot_forward(engine.module, q, q, q, torch.get_num_threads())

def elementwise():
    torch.randn(2**20).exp_()

def threads():
    return set(os.listdir("/proc/self/task"))

{first}()
before = threads()
{second}()
print(len(before) > 1, threads() == before)
"""


@needs_module
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="lists threads where Linux does")
@pytest.mark.parametrize("order", [("elementwise", "kernel"), ("kernel", "elementwise")])
def test_tasks_run_in_the_threads_of_torch(order: tuple[str, str]) -> None:
    """The first starts the threads; the second starts none."""
    script = THREADS.format(threads=4, first=order[0], second=order[1])
    assert python(script, OMP_NUM_THREADS="4", OMP_DYNAMIC="false").split() == ["True", "True"]


@needs_module
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="lists threads where Linux does")
def test_one_thread_starts_no_others() -> None:
    script = THREADS.format(threads=1, first="elementwise", second="kernel")
    assert python(script).split()[1] == "True"


@needs_module
def test_own_threads_are_used_if_torch_has_no_pool() -> None:
    script = """
import torch
from tests.attention.test_engine import dot_forward, engine
engine.module.use_pool(0)
q = torch.randn(3, 5, 17, 64)
one, four = (dot_forward(engine.module, q, q, q, threads) for threads in (1, 4))
print(torch.equal(one, four))
"""
    assert python(script).strip() == "True"


@needs_module
def test_calls_from_several_threads_at_once(module: ModuleType) -> None:
    from concurrent.futures import ThreadPoolExecutor

    torch.manual_seed(0)
    qs = [torch.randn(2, 3, 40 + i, 16) for i in range(8)]
    alone = [dot_forward(module, q, q, q, 1) for q in qs]
    with ThreadPoolExecutor(4) as workers:
        together = list(workers.map(lambda q: dot_forward(module, q, q, q, 2), qs * 10))
    assert all(torch.equal(a, b) for a, b in zip(alone * 10, together, strict=True))
