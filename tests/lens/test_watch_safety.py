"""`watch` is safe: calls belong to the right model, and errors in a recorder do not reach the model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard.lens import function_mode, recorders
from regard.lens import watch as watching
from tests.lens.test_watch import Attention, Flexible, Stack


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(0))


class Generates(nn.Module):
    """A model with a method that runs another model, as assisted generation does."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Attention()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)

    def generate(self, x: Tensor, assistant: nn.Module) -> Tensor:
        return self(assistant(x)) + self(x)

    def encode(self, x: Tensor) -> Tensor:
        return self.block(x)


def test_another_model_run_by_a_method_is_not_recorded(x: Tensor) -> None:
    model, assistant = Generates(), Stack(2)
    with regard.watch(model) as seen, regard.watch(assistant) as other:
        model.generate(x, assistant)
        model.encode(x)
    assert seen.names == ["block", "block#2", "block#3"] and not seen.missed
    assert other.names == ["blocks.0", "blocks.1"] and not other.missed
    torch.testing.assert_close(seen[1].dense(), model.block.weights(x))


class Trains(nn.Module):
    """A training step with a teacher, registered or not."""

    def __init__(self, teacher: nn.Module, registered: bool) -> None:
        super().__init__()
        self.student = Attention()
        if registered:
            self.teacher = teacher
        self.held = [teacher]

    def training_step(self, x: Tensor) -> Tensor:
        return (self.student(x) - self.held[0](x)).square().mean()

    def forward(self, x: Tensor) -> Tensor:
        return self.training_step(x)


def test_a_teacher_is_recorded_if_it_is_part_of_the_model(x: Tensor) -> None:
    with regard.watch(model := Trains(Attention(), registered=True)) as seen:
        model.training_step(x).backward()
    assert seen.names == ["student", "teacher"] and not seen.missed
    with regard.watch(model := Trains(Attention(), registered=False)) as seen:
        model.training_step(x).backward()
    assert seen.names == ["student"] and not seen.missed  # another model, which a method of this one ran
    words = r"Trains: it calls a Attention, which attends and is not a submodule of the model; register it"
    with pytest.warns(UserWarning, match=words), regard.watch(model) as seen:
        model(x).backward()  # inside the forward pass: part of what the model computes, and not to be left out silently
    assert seen.names == ["student"] and len(seen.missed) == 1


def test_a_module_that_two_models_share_belongs_to_the_one_that_runs(x: Tensor) -> None:
    model, other = Stack(2), Stack(2)
    other.blocks[1] = model.blocks[1]
    with regard.watch(model) as seen:
        model(x)
    assert seen.names == ["blocks.0", "blocks.1"] and not seen.missed
    words = r"blocks.1: it was called by a Stack, outside the model"
    with pytest.warns(UserWarning, match=words), regard.watch(model) as seen:
        other(x)
    assert not seen.names and len(seen.missed) == 1
    with regard.watch(model) as seen:
        model.blocks[1](x)  # called by the user: no other model in between
        nn.Sequential(model)(x)  # a wrapper
    assert seen.names == ["blocks.1", "blocks.0", "blocks.1#2"] and not seen.missed


def test_a_module_that_is_registered_inside_the_block_is_known(x: Tensor) -> None:
    model = Stack(1)
    with regard.watch(model) as seen:
        model.blocks.append(Attention())
        model(x)
    assert seen.names == ["blocks.0", "blocks.1"] and not seen.missed


class Calls(nn.Module):
    """A module that attends through one function, or a layer below it."""

    def __init__(self, attend: Any, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.attend, self.layer = attend, layer

    def forward(self, x: Tensor) -> Any:
        return self.attend(x) if self.layer is None else self.attend(self.layer, x)


def attending() -> dict[str, tuple[nn.Module, Any]]:
    """A model for every function that has a recorder."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 2, 16, 0.0, batch_first=True).eval()  # an even number of heads: fast paths
    attention = nn.MultiheadAttention(12, 2, batch_first=True).eval()
    ops = torch.ops.aten.scaled_dot_product_attention
    kernels = {
        f"kernel {number}": (Calls(lambda x, f=f: f(*(x.view(2, 1, -1, 12),) * 3)[0]), f)
        for number, f in enumerate(function for functions, _ in recorders.KERNELS for function in functions)
    }
    projections = [attention.in_proj_weight, attention.in_proj_bias, *attention.out_proj.parameters()]
    modules = (layer.norm1, layer.norm2, layer.linear1, layer.linear2)
    weights = [*projections, False, False, 1e-5, *(p for module in modules for p in module.parameters())]
    multi, whole = torch.ops.aten._native_multi_head_attention, torch.ops.aten._transformer_encoder_layer_fwd
    fast = {
        **{
            f"operator {f}": (Calls(lambda x, f=f: f(x, x, x, 12, 2, *projections)[0]), f)
            for f in (multi, multi.default)
        },
        **{f"operator {f}": (Calls(lambda x, f=f: f(x, 12, 2, *weights)), f) for f in (whole, whole.default)},
    }
    dot, packed = torch.ops.regard.dot.default, torch.ops.regard.packed.default
    numbers, lengths = (None, None, 1, 1.0, None), torch.tensor([7, 7])
    return {
        **fast,
        "exported": (Calls(lambda x: dot(*(x.view(2, 1, -1, 12),) * 3, None, None, None, *numbers)[0]), dot),
        "exported packed": (
            Calls(lambda x: packed(*(x.view(1, 14, 12),) * 3, lengths, lengths, *numbers, "auto")),
            packed,
        ),
        "sdpa": (Attention(), F.scaled_dot_product_attention),
        "aten": (Calls(lambda x: ops(x, x, x)), ops),
        "aten default": (Calls(lambda x: ops.default(x, x, x)), ops.default),
        **kernels,
        "regard": (Calls(lambda x: regard.attend(x, x, x)), regard.attend),
        "packed": (
            Calls(lambda x: regard.attend_packed(*(x.reshape(14, 3, 4),) * 3, torch.tensor([7, 7]))),
            regard.attend_packed,
        ),
        "multi head": (Calls(lambda m, x: m(x, x.clone(), x)[0], attention), F.multi_head_attention_forward),
        "fast multi head": (Calls(lambda m, x: m(x, x, x)[0], attention), torch._native_multi_head_attention),
        "fast layer": (Calls(lambda m, x: m(x), layer), torch._transformer_encoder_layer_fwd),
        "flex": (Calls(lambda m, x: m(x[:, None]), Flexible()), None),
    }


def test_every_recorder_has_a_model_here(x: Tensor) -> None:
    elsewhere = ("attend_with_sink",)  # it has tests of its own
    ours = {f for f in recorders.RECORDERS if getattr(f, "__name__", "") not in elsewhere}
    assert {function for _, function in attending().values()} - {None} == ours
    for model, _ in attending().values():
        with torch.no_grad(), regard.watch(model) as seen:
            model(x)
        assert len(seen) == 1 and not seen.missed


def test_exported_programs_are_recorded_or_listed_as_missed(x: Tensor) -> None:
    x, lengths = x.view(2, 7, 3, 4).transpose(1, 2), torch.tensor([3, 4])
    packed = x[0].transpose(0, 1)  # (7, H, D)
    options: dict[str, Any] = {"is_causal": True, "window": (2, None)}
    for attend, q in (
        (
            lambda q: regard.attend(
                q, q, q, causal_offset=torch.tensor([0, 1]), lengths=torch.tensor([7, 5]), **options
            ),
            x,
        ),
        (lambda q: regard.attend_packed(q, q, q, lengths, causal_offset=torch.tensor([1, 0]), **options), packed),
    ):
        with regard.watch(model := Calls(attend)) as plain:
            model(q)
        with torch.no_grad(), regard.watch(program := torch.export.export(model, (q,)).module()) as seen:
            program(q)
        torch.testing.assert_close(seen[0].dense(), plain[0].dense())
        assert not seen.missed
    for softmax in (lambda x: x.softmax(-1), lambda x: torch.ops.aten._softmax(x, -1, False)):
        program = torch.export.export(Calls(softmax), (x,)).module()
        with pytest.warns(UserWarning, match="matmul and softmax"), regard.watch(program) as seen:
            program(x)
        assert not seen and len(seen.missed) == 1


@pytest.mark.parametrize("causal", [False, True])
def test_kernels_of_sdpa_are_recorded_with_all_options(causal: bool) -> None:
    q, k, mask = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(5, 5)
    scores = 0.3 * q @ k.mT + (torch.full((5, 5), -torch.inf).triu(1) if causal else mask)
    for functions, operator in recorders.KERNELS:
        names = [argument.name for argument in operator._schema.arguments]
        for function in functions:
            options = {"is_causal": True} if causal else {"attn_mask": mask}
            for model in (
                Calls(lambda x, f=function, o=options: f(q, k, k, **o, scale=0.3)[0]),
                Calls(lambda x, f=function, o=options: f(query=q, key=k, value=k, **o, scale=0.3)[0]),
            ):
                with regard.watch(model) as seen:
                    model(q)
                torch.testing.assert_close(seen[0].dense(), scores.softmax(-1))
        assert {"query", "key", "value", "attn_mask", "is_causal", "scale"} <= set(names)


class Explicit(nn.Module):
    """Attention written as matmul and softmax."""

    def __init__(self, softmax: Any) -> None:
        super().__init__()
        self.softmax = softmax

    def forward(self, x: Tensor) -> Tensor:
        return self.softmax(x @ x.mT) @ x


class ExplicitAttention(Explicit):
    pass


def softmaxes() -> list[Any]:
    return [
        lambda s: torch.softmax(s, -1),
        lambda s: F.softmax(s, dim=-1, dtype=torch.float32),
        lambda s: F.softmax(input=s, dim=s.ndim - 1),
        lambda s: s.softmax(dim=-1),
        nn.Softmax(-1),
    ]


def test_attention_written_as_matmul_and_softmax_is_listed_as_missed(x: Tensor) -> None:
    heads = x[:, None]  # (B, 1, T, width)
    for softmax in softmaxes():
        for model, inputs in ((Explicit(softmax), heads), (ExplicitAttention(softmax), x)):
            root = nn.Sequential(model, Attention()) if inputs is x else nn.Sequential(model)
            plain = root(inputs)
            with pytest.warns(UserWarning, match=r"0: attention computed by matmul"), regard.watch(root) as seen:
                watched = root(inputs)
                root(inputs)
            assert torch.equal(plain, watched) and len(seen.missed) == 1
            assert seen.names == (["1", "1#2"] if inputs is x else [])
    for softmax in (lambda s: s.softmax(-2), nn.Softmax(1), lambda s: s.flatten(1).softmax(-1).view_as(s)):
        with regard.watch(model := Explicit(softmax)) as seen:
            model(heads)
        assert not seen.missed  # not over the last of four dimensions
    with regard.watch(model := Explicit(nn.Softmax(-1))) as seen:
        model(x)
    assert not seen.missed  # three dimensions may be anything, such as a vocabulary
    with regard.watch(Attention()) as seen:
        Explicit(softmaxes()[0])(heads)
    assert not seen.missed  # outside the model


def test_compiled_functions_are_listed_as_missed() -> None:
    """Without recompilation, in every watch, and only if they attend."""
    x, graphs = torch.randn(1, 2, 6, 4), []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    functions = {
        True: (lambda x: F.scaled_dot_product_attention(x, x, x) + 1, lambda x: regard.attend(x, x, x)),
        False: (lambda x: x + 1,),
    }
    for attends, group in functions.items():
        for function in group:
            compiled = torch.compile(function, backend=backend, fullgraph=True)
            model = Calls(compiled)
            with torch.no_grad():
                plain = model(x)
                counts = []
                for _ in range(3):
                    watch = regard.watch(model)
                    with warnings.catch_warnings(), watch as seen:
                        warnings.simplefilter("ignore")
                        assert torch.equal(model(x), plain)
                    counts.append(len(graphs))
                    assert any("torch.compile" in words for words in seen.missed) == attends
            assert counts[0] == counts[2]
    with regard.watch(model := Calls(lambda x: x)) as seen:
        model(x)
    assert not seen.missed


@pytest.mark.parametrize("kind", attending())
@pytest.mark.parametrize("error", [ValueError("broken"), AssertionError(), MemoryError("none left"), TypeError("odd")])
def test_a_recorder_that_raises_does_not_reach_the_model(
    kind: str, error: Exception, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, function = attending()[kind]

    def raises(*args: Any, **kwargs: Any) -> None:
        raise error

    if function is None:
        monkeypatch.setattr(function_mode, "flex_attention", raises)
    else:
        monkeypatch.setattr(function_mode, "RECORDERS", {**recorders.RECORDERS, function: raises})
    with torch.no_grad():
        plain = model(x)
        with pytest.warns(UserWarning, match="could not be recorded"), regard.watch(model) as seen:
            watched = model(x)
    assert torch.equal(plain, watched) and not seen.names
    assert len(seen.missed) == 1 and (str(error) or "AssertionError") in seen.missed[0]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (watching.Watch, "_add"),
        (watching.WatchedModules, "caller"),
        (watching.Watch, "_track"),
        (watching.Watch, "before_write"),
    ],
)
@pytest.mark.parametrize("kind", attending())
def test_a_watch_that_fails_does_not_reach_the_model(
    kind: str, part: type, name: str, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(part, name, raises)
    model = attending()[kind][0]
    with torch.no_grad():
        plain = model(x)
        with pytest.warns(UserWarning, match="broken"), regard.watch(model) as seen:
            watched = model(x).mul_(1)
    assert torch.equal(plain, watched) and any("broken" in words for words in seen.missed)


@pytest.mark.parametrize("name", ["resolve", "copy_storage"])
def test_calls_that_cannot_be_copied_are_listed_as_missed(
    name: str, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*args: Any) -> None:
        raise RuntimeError("no copy")

    monkeypatch.setattr(watching.Call, name, raises)
    model = nn.MultiheadAttention(12, 3, batch_first=True)
    with pytest.warns(UserWarning, match="no copy"), regard.watch(model) as seen:
        model(x, x, x)
        if name == "copy_storage":
            with torch.no_grad():
                model.in_proj_weight.mul_(2)
    assert not seen.names and seen.missed == ["MultiheadAttention: no copy"]


def test_a_recorder_that_is_registered_late_is_used(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that was called before is cached as ignored."""

    def mine(q: Tensor) -> Tensor:
        if torch.overrides.has_torch_function_unary(q):
            return torch.overrides.handle_torch_function(mine, (q,), q)
        return q

    with regard.watch(model := Calls(mine)) as seen:
        model(x)
    assert not seen.names
    monkeypatch.setitem(recorders.RECORDERS, mine, lambda q: recorders.scaled_dot_product_attention(q, q, q))
    with regard.watch(model) as seen:
        model(x)
    assert len(seen) == 1


class Subclass(Tensor):
    """A tensor subclass without other changes."""


class Masked(Subclass):
    pass


def test_tensors_without_data_are_listed_as_missed(x: Tensor) -> None:
    sdpa = Calls(lambda x: F.scaled_dot_product_attention(x, x, x))
    with (
        FakeTensorMode(),
        pytest.warns(UserWarning, match="query is a FakeTensor"),
        regard.watch(sdpa) as seen,
    ):
        sdpa(torch.randn(2, 7, 12))
    assert not seen.names
    with regard.watch(sdpa) as seen:
        sdpa(x.as_subclass(Subclass))  # its numbers are its own
    torch.testing.assert_close(seen[0].dense()[:, 0], (x @ x.mT / 12**0.5).softmax(-1))
    masked = Calls(lambda x: F.scaled_dot_product_attention(x, x, x, torch.zeros(7, 7).as_subclass(Masked)))
    with pytest.warns(UserWarning, match="attn_mask is a Masked"), regard.watch(masked) as seen:
        masked(x)
    assert not seen.names
    with pytest.warns(UserWarning, match="transformed by torch.func"), regard.watch(sdpa) as seen:
        torch.vmap(sdpa)(x[:, None])
    assert not seen.names


@pytest.fixture
def group() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_distributed_tensors_are_listed_as_missed(x: Tensor, group: Any) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    model = Calls(lambda x: F.scaled_dot_product_attention(x, x, x))
    with pytest.warns(UserWarning, match="query is a DTensor"), regard.watch(model) as seen:
        model(distribute_tensor(x, group, [Shard(0)]))
    assert not seen.names


@pytest.mark.parametrize("training", [False, True])
def test_sharded_weights_are_used_before_they_are_freed(x: Tensor, training: bool, group: Any) -> None:
    """FSDP2 frees the weights it gathered as soon as a layer has run."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 2, 16, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    with torch.set_grad_enabled(training):
        with regard.watch(model) as expected:
            model(x)
        for one in model.layers:
            fully_shard(one, mesh=group)
        fully_shard(model, mesh=group)
        plain = model(x)
        with regard.watch(model) as seen:
            watched = model(x)
            if training:
                watched.sum().backward()
    assert torch.equal(plain, watched) and seen.names == expected.names and not seen.missed
    for one, other in zip(seen, expected, strict=True):
        torch.testing.assert_close(one.dense(), other.dense(), atol=1e-6, rtol=1e-5)


def test_accessing_a_freed_tensor_raises(x: Tensor) -> None:
    with torch.no_grad(), regard.watch(model := nn.MultiheadAttention(12, 3, batch_first=True)) as seen:
        model(x, x, x)
    model.in_proj_weight.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"a tensor of MultiheadAttention .* it was freed"):
        seen[0]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_nn_transformer_under_autocast(x: Tensor, norm_first: bool, training: bool, inside: bool) -> None:
    """Inside and after the autocast region, the weights match those of the model without autocast."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 2, 16, 0.0, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    with torch.set_grad_enabled(training):
        with regard.watch(model) as expected:
            model(x)
        with torch.autocast("cpu", torch.bfloat16):
            plain = model(x)
            with regard.watch(model) as seen:
                watched = model(x)
            if inside:
                assert seen[1].dense().dtype == torch.float32
    assert torch.equal(plain, watched) and not seen.missed
    for one, other in zip(seen, expected, strict=True):
        assert one.request.q.dtype == torch.bfloat16
        torch.testing.assert_close(one.dense(), other.dense(), atol=2e-2, rtol=0)
