"""`watch` records every call under its name, and the output of the model is bit-identical."""

from __future__ import annotations

import dataclasses
import gc
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import regard
from regard.attention.request import Request
from regard.lens import function_mode
from regard.lens import recorders as record
from regard.lens import watch as watching
from regard.lens.patch_weights import Patches


class Attention(nn.Module):
    """A plain user of scaled_dot_product_attention."""

    def __init__(self, width: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        return self.out(context.transpose(1, 2).flatten(-2))

    def weights(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, _ = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() if mask is None else mask
        return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf).softmax(-1)


class Stack(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(0))


def test_sdpa_calls_are_recorded_by_name_without_changing_the_result(x: Tensor) -> None:
    model = Stack()
    plain = model(x)
    with regard.watch(model) as seen:
        watched = model(x)
    assert torch.equal(plain, watched)
    assert seen.names == ["blocks.0", "blocks.1", "blocks.2"] and seen.kinds == ["causal"] * 3
    torch.testing.assert_close(seen["blocks.0"].dense(), model.blocks[0].weights(x))
    assert len(seen) == 3 and seen[-1].shape == (2, 3, 7, 7) and "blocks.1" in seen and "blocks" in seen
    assert "blocks.9" not in seen
    with pytest.raises(KeyError, match=r"'blocks' must name one module; got blocks.0"):
        seen["blocks"]
    with pytest.raises(KeyError, match=r"must name an attention module; got blocks.0"):
        seen["head"]


class Attributes(nn.Module):
    is_causal = True

    @property
    def is_cross_attention(self) -> bool:
        return True


def test_kind_attributes_of_modules() -> None:
    """A class attribute, a property or an instance attribute counts; a number that is not True does not."""
    plain = nn.Linear(1, 1)
    assert watching._is_true(Attributes(), "is_causal") and watching._is_true(Attributes(), "is_cross_attention")
    assert not watching._is_true(plain, "is_causal")
    plain.is_causal = 1
    assert not watching._is_true(plain, "is_causal")
    plain.is_causal = True
    assert watching._is_true(plain, "is_causal")


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"is_causal": True, "scale": 2.0}])
def test_the_fast_request_equals_the_checked_request(options: dict[str, Any]) -> None:
    q, k, v = (torch.randn(2, 3, t, 8, requires_grad=True) for t in (5, 7, 7))
    result = record.RECORDERS[F.scaled_dot_product_attention](q, k, v, **options).source.request()
    expected = Request.of(q, k, v, **options).kept()
    assert result.q.data_ptr() == q.data_ptr() and not result.q.requires_grad and not result.k.requires_grad
    assert torch.equal(result.q, expected.q) and torch.equal(result.k, expected.k)
    names = [field.name for field in dataclasses.fields(Request) if field.name not in "qk"]
    assert {name: getattr(result, name) for name in names} == {name: getattr(expected, name) for name in names}


def test_the_tokens_of_a_batch_are_refused(x: Tensor) -> None:
    """Seven texts of seven tokens fit the lengths, and each text would become one label."""
    model = Stack()
    with regard.watch(model) as seen:
        model(x)
    batch: Any = [list("abcdefg")] * 7
    with pytest.raises(ValueError, match=r"seen: tokens \(query\) must be those of one sequence; got 7 sequences\."):
        seen.tokens(batch)


def test_a_loaded_capture_has_the_same_maps(x: Tensor, tmp_path: Path) -> None:
    model = Stack()
    with regard.watch(model) as seen:
        model(x)
    seen.tokens(query=list("abcdefg"))
    seen.image = torch.zeros(4, 6, 3, dtype=torch.uint8)
    seen.patches = Patches(2, 3, 1)
    loaded = regard.load_capture(seen.save(tmp_path / "x.safetensors"))
    assert loaded.names == seen.names and loaded.kinds == seen.kinds and loaded.patches == Patches(2, 3, 1)
    assert loaded.image is not None and loaded.image.shape == (4, 6, 3)
    for one, other in zip(seen, loaded, strict=True):
        assert torch.equal(one.dense(), other.dense()) and other.key_tokens == list("abcdefg")


def weights_of(model: nn.Module, *inputs: Tensor, **options: Any) -> dict[str, Tensor]:
    """Return the weights of every nn.MultiheadAttention of a model for its recorded inputs."""
    result: dict[str, Tensor] = {}

    def ask(name: str) -> Any:
        def hook(module: nn.MultiheadAttention, args: Any, kwargs: Any) -> None:
            if name in result:
                return
            result[name] = torch.empty(0)
            asked = {**kwargs, "need_weights": True, "average_attn_weights": False, "is_causal": False}
            result[name] = module(*args, **asked)[1]

        return hook

    hooks = [
        module.register_forward_pre_hook(ask(name), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, nn.MultiheadAttention)
    ]
    with torch.no_grad():
        model(*inputs, **options)
    for hook in hooks:
        hook.remove()
    return result


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_every_attention_of_nn_transformer_is_recorded(x: Tensor, training: bool, norm_first: bool) -> None:
    model = nn.Transformer(12, 2, 2, 2, 16, 0.0, batch_first=True, norm_first=norm_first).train(training)
    arguments = {
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(4),
        "src_key_padding_mask": torch.arange(7) >= torch.tensor([[7], [5]]),
        "tgt_is_causal": True,
    }
    inputs = (x, x[:, :4] * 0.5)
    with torch.set_grad_enabled(training):
        plain = model(*inputs, **arguments)
        with regard.watch(model) as seen:
            watched = model(*inputs, **arguments)
    assert torch.equal(plain, watched) and not seen.missed
    assert seen.names == [
        "encoder.layers.0.self_attn",
        "encoder.layers.1.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
        "decoder.layers.1.self_attn",
        "decoder.layers.1.multihead_attn",
    ]
    assert seen.kinds == ["self", "self", "causal", "cross", "causal", "cross"]
    for name, weights in weights_of(model, *inputs, **arguments).items():
        rows = slice(0, 5) if name.startswith("encoder") else slice(None)  # the fast path drops padded queries
        torch.testing.assert_close(seen[name].dense()[:, :, rows], weights[:, :, rows], atol=1e-5, rtol=0)


def test_layers_that_select_nothing_are_reported(x: Tensor) -> None:
    model = Stack(2)
    words = r"watch: layers \(-1, 77, nope, decoder.\*\) must select attention modules; there are 2: blocks"
    with pytest.warns(UserWarning, match=words), regard.watch(model, layers=[0, -1, 77, "nope", "decoder.*"]) as seen:
        model(x)
    assert seen.names == ["blocks.0"]
    with warnings.catch_warnings(action="error"), regard.watch(model, layers=["blocks", 1]) as seen:
        model(x)
    assert seen.names == ["blocks.0", "blocks.1"]


def test_the_fast_path_stays_enabled(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.TransformerEncoderLayer(12, 2, 16, batch_first=True).eval()
    taken = []
    fast = record.RECORDERS[torch._transformer_encoder_layer_fwd]
    recorders = {torch._transformer_encoder_layer_fwd: lambda *args: (taken.append("fast"), fast(*args))[1]}
    monkeypatch.setattr("regard.lens.function_mode.RECORDERS", recorders)
    before = torch.overrides.has_torch_function
    with torch.no_grad(), regard.watch(model), regard.watch(model) as seen:
        model(x)
    assert taken == ["fast", "fast"] and seen.names == ["self_attn"]
    assert torch.overrides.has_torch_function is before


MASKS = {
    "none": {},
    "keys": {"key_padding_mask": torch.arange(7) >= torch.tensor([[7], [5]])},
    "added": {"key_padding_mask": torch.randn(2, 7), "attn_mask": torch.randn(7, 7)},
    "pairs": {"attn_mask": torch.ones(7, 7, dtype=torch.bool).triu(2)},
    "heads": {"attn_mask": torch.randn(2 * 3, 7, 7)},
}


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}])
def test_the_causal_hint_of_multihead_attention_replaces_the_mask(x: Tensor, options: dict[str, Any]) -> None:
    """Without weights and padding, PyTorch computes `is_causal` and ignores `attn_mask`."""
    model = nn.MultiheadAttention(12, 3, batch_first=True, **options)
    with regard.watch(model) as seen:
        for need_weights in (True, False):
            _, weights = model(x, x, x, attn_mask=torch.zeros(7, 7), is_causal=True, need_weights=need_weights)
            assert (weights is None) is not need_weights
    assert bool((seen[0].dense() > 0).all())
    weights = seen[1].dense()  # (B, H, 7, 7 and extra keys)
    assert torch.equal(weights > 0, torch.ones_like(weights, dtype=torch.bool).tril())


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}, {"kdim": 12, "vdim": 12}])
@pytest.mark.parametrize("training", [False, True])
def test_multihead_attention_of_pytorch(x: Tensor, mask: str, options: dict[str, Any], training: bool) -> None:
    model = nn.MultiheadAttention(12, 3, batch_first=True, **options).train(training)
    arguments = MASKS[mask]
    with torch.set_grad_enabled(training):
        plain, expected = model(x, x, x, average_attn_weights=False, **arguments)
        with regard.watch(model) as seen:
            watched, _ = model(x, x, x, average_attn_weights=False, **arguments)
            model(x, x, x, need_weights=False, **arguments)
    assert torch.equal(plain, watched) and seen.names == ["MultiheadAttention", "MultiheadAttention#2"]
    for m in seen:
        torch.testing.assert_close(m.dense(), expected.detach(), atol=1e-6, rtol=1e-5)


def test_a_sequence_without_a_batch_and_one_with_the_length_first(x: Tensor) -> None:
    model = nn.MultiheadAttention(12, 3)
    with regard.watch(model) as seen:
        _, expected = model(x[0], x[1], x[1], average_attn_weights=False)
        _, first = model(x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1), average_attn_weights=False)
    torch.testing.assert_close(seen[0].dense()[0], expected.detach(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(seen[1].dense(), first.detach(), atol=1e-6, rtol=1e-5)
    assert seen.kinds == ["cross", "self"]


def test_a_checkpoint_is_recorded_once_and_a_second_pass_again(x: Tensor) -> None:
    model = Stack(1)
    for reentrant in (False, True):
        with regard.watch(model) as seen:
            y = checkpoint(model, x.clone().requires_grad_(), use_reentrant=reentrant)
            y.sum().backward()
            assert seen.names == ["blocks.0"]
            model(x)
        assert seen.names == ["blocks.0", "blocks.0#2"]


def test_optimizer_steps_do_not_change_recorded_maps(x: Tensor) -> None:
    model = nn.MultiheadAttention(12, 3, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)

    def step() -> Tensor:
        y, weights = model(x, x, x, average_attn_weights=False)
        y.sum().backward()
        return weights.detach().clone()

    with regard.watch(model) as seen:
        first = step()
        optimizer.step()  # seen: what it overwrites is found before
        second = step()
    optimizer.step()  # not seen: found when the block ended
    torch.testing.assert_close(seen[0].dense(), first, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(seen[1].dense(), second, atol=1e-6, rtol=1e-5)


class Overwrites(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(q, k, k)
        q.mul_(3)
        k[..., 0, :] = 0
        torch.neg(k, out=k)
        return y


def test_tensors_are_copied_before_the_model_overwrites_them(x: Tensor) -> None:
    q, k = x.clone(), (x + 1).clone()
    expected = (q @ k.mT / 12**0.5).softmax(-1)
    for keep in (None, "copy"):
        with torch.no_grad(), regard.watch(model := Overwrites(), keep=keep) as seen:
            model(q.clone(), k.clone())
        torch.testing.assert_close(seen[0].dense()[:, 0], expected)
    with regard.watch(model := Attention()) as seen:
        model(x)
    seen.calls[0].request.q.mul_(2)
    with pytest.raises(RuntimeError, match=r"a tensor of Attention .* overwritten in place"):
        seen[0]


def test_maps_under_autocast_use_the_autocast_dtype(x: Tensor) -> None:
    model = Attention()
    with torch.autocast("cpu", torch.bfloat16):
        plain = model(x)
        with regard.watch(model) as seen:
            watched = model(x)
    assert torch.equal(plain, watched) and seen.calls[0].request.q.dtype == torch.bfloat16
    mha = nn.MultiheadAttention(12, 3, batch_first=True)
    with torch.autocast("cpu", torch.bfloat16), regard.watch(mha) as seen:
        _, weights = mha(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(seen[0].dense(), weights.detach().float(), atol=1e-2, rtol=0)


def test_layers_heads_and_keep_limit_the_recording(x: Tensor) -> None:
    model = Stack()
    with regard.watch(model) as whole:
        model(x)
    with regard.watch(model, layers=[0, "*.2"], heads=[2, 0], keep=(torch.float16, "cpu")) as seen:
        model(x)
    assert seen.names == ["blocks.0", "blocks.2"] and seen[0].shape == (2, 2, 7, 7)
    assert seen.calls[0].request.k.dtype == torch.float16
    torch.testing.assert_close(seen[1].dense(), whole[2].dense()[:, [2, 0]], atol=1e-2, rtol=0)
    with regard.watch(nn.MultiheadAttention(12, 3, batch_first=True), heads=1) as seen, pytest.raises(RuntimeError):
        raise RuntimeError
    for wrong, name in (({"heads": []}, "heads"), ({"keep": torch.int8}, "keep"), ({"layers": 1.5}, "layers")):
        with pytest.raises(ValueError, match=f"watch: {name} "):
            regard.watch(model, **wrong)
    with pytest.warns(UserWarning, match=r"heads \(9,\) must lie in 0…2"), regard.watch(model, heads=9) as seen:
        model(x)
    with pytest.raises(KeyError, match=r"blocks.0: heads \(9,\)"):
        seen.filter()["blocks.0"]


def test_views_do_not_keep_a_larger_tensor_alive(x: Tensor) -> None:
    with regard.watch(model := Attention()) as seen:
        model(x)
    request = seen.calls[0].request
    assert request.q.untyped_storage().nbytes() == request.q.nbytes


def test_in_place_writes_of_known_functions_are_detected(x: Tensor) -> None:
    """Functions that neither attend nor write are cached as ignored, unless they are called with `out`."""

    class Negates(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            torch.neg(q)
            y = F.scaled_dot_product_attention(q, k, k)
            torch.neg(k, out=k)
            return y

    expected = (x @ x.mT / 12**0.5).softmax(-1)
    with torch.no_grad(), regard.watch(model := Negates()) as seen:
        model(x.clone(), x.clone())
    torch.testing.assert_close(seen[0].dense()[:, 0], expected)
    assert torch.neg in function_mode._ignored
    assert not function_mode._ignored & {*record.RECORDERS, Tensor.dim, Tensor.mul_, Tensor.__setitem__}


def test_recorded_calls_are_freed_with_the_last_reference(x: Tensor) -> None:
    model = Stack(1)
    with regard.watch(model) as seen:
        model(x)
    kept, modules = weakref.ref(seen.calls[0]), weakref.ref(model)
    del seen
    assert kept() is None
    watch = regard.watch(model)
    watch.__enter__()  # forgotten: the block is never exited
    model(x)
    del watch, model
    gc.collect()
    assert modules() is None
    left = torch.overrides._pop_mode()
    function_mode._fast_paths.close()
    assert isinstance(left, function_mode._Mode)


def test_only_the_watched_model_in_this_thread_and_only_in_the_block(x: Tensor) -> None:
    model, other = Stack(1), Stack(1)
    with pytest.raises(ZeroDivisionError), regard.watch(model) as seen:
        with regard.watch(other) as inner:
            other(x)
            model(x)
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        thread.join()
        raise ZeroDivisionError
    model(x)
    assert seen.names == ["blocks.0"] and inner.names == ["blocks.0"]
    assert not torch.equal(seen[0].dense(), inner[0].dense())
    with (
        pytest.raises(IndexError, match=r"computed by matmul and softmax cannot be recorded"),
        regard.watch(model) as seen,
    ):
        seen[0]


def test_models_that_cannot_be_recorded_are_rejected() -> None:
    model = Stack(1)
    with pytest.raises(ValueError, match=r"must run in Python; it is compiled"), regard.watch(torch.compile(model)):
        pass
    with torch.compiler.set_stance("force_eager"), regard.watch(torch.compile(model)) as seen:
        model(torch.randn(1, 3, 12))
    assert seen.names == ["blocks.0"]
    scripted = nn.Sequential(torch.jit.script(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match=r"watch: 0 \(RecursiveScriptModule\).*scripted"), regard.watch(scripted):
        pass
    with pytest.raises(ValueError, match=r"must be a torch.nn.Module; got function"):
        regard.watch(lambda x: x)  # type: ignore[arg-type]


class Flexible(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Tensor) -> Tensor:
        return flex_attention(q, q, q, **self.options)


_documents = torch.tensor([0, 0, 0, 1, 1, 1, 1])  # read by `global_documents`


def global_documents(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return _documents[i] == _documents[j]


class Documents(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.of_token = nn.Buffer(_documents.clone())

    def same(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.of_token[i] == self.of_token[j]


def mask_mods() -> dict[str, tuple[Any, Tensor]]:
    """Return mask functions that read a tensor from different scopes, with that tensor."""
    documents = _documents.clone()
    module = Documents()

    def closure(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return documents[i] == documents[j]

    def default(b: Tensor, h: Tensor, i: Tensor, j: Tensor, of: Tensor = documents) -> Tensor:
        return of[i] == of[j]

    def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i >= j

    return {
        "closure": (closure, documents),
        "default argument": (default, documents),
        "global": (global_documents, _documents),
        "module": (lambda b, h, i, j: module.same(b, h, i, j), module.of_token),
        "combined": (and_masks(causal, closure), documents),
        "view": (lambda b, h, i, j: documents.view(7, 1).mT[0][i] == documents.view(7, 1).mT[0][j], documents),
    }


@pytest.mark.parametrize("kind", mask_mods())
@pytest.mark.parametrize(
    ("write", "noticed"),
    [
        ("after watching", True),
        ("after watching in training", False),  # the mask is computed when watching ends
        ("after the map was computed", False),
        ("while watching", False),  # the mask is computed before the write
        ("while watching, unseen", True),
    ],
)
def test_flex_attention_detects_writes_to_tensors_of_its_mask(x: Tensor, kind: str, write: str, noticed: bool) -> None:
    mask_mod, documents = mask_mods()[kind]
    before = documents.clone()
    q = x.unflatten(-1, (3, 4)).transpose(1, 2)
    allowed = before[:, None] == before
    allowed = allowed.tril() if kind == "combined" else allowed
    expected = (q @ q.mT * 0.5).masked_fill(~allowed, -torch.inf).softmax(-1)
    model = Flexible(block_mask=create_block_mask(mask_mod, 1, 1, 7, 7, device="cpu"))
    try:
        with regard.watch(model) as seen, torch.set_grad_enabled(write.endswith("training")):
            model(q)
            if write == "while watching":
                documents.zero_()
            if write.endswith("unseen"):
                with torch._C.DisableTorchFunction():
                    documents.zero_()
        if write == "after the map was computed":
            seen[0].dense()
        documents.zero_()
        if not noticed:
            torch.testing.assert_close(seen[0].dense(), expected)
            return
        with pytest.raises(
            RuntimeError,
            match=r"a tensor of .*\(7\) must not change after the call was recorded; it was overwritten in place",
        ):
            seen[0].dense()
    finally:
        documents.copy_(before)


def test_flex_attention_is_recorded_and_a_score_mod_is_rejected(x: Tensor) -> None:
    q = x.unflatten(-1, (3, 4)).transpose(1, 2)
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 7, 7, device="cpu")
    model, expected = Flexible(block_mask=mask, scale=0.3), (q @ q.mT * 0.3)
    expected = expected.masked_fill(~torch.ones(7, 7, dtype=torch.bool).tril(), -torch.inf).softmax(-1)
    plain = model(q)
    with regard.watch(model) as seen:
        watched = model(q)
    assert torch.equal(plain, watched) and seen.kinds == ["causal"]
    torch.testing.assert_close(seen[0].dense(), expected)

    def steeper(score: Tensor, *at: Tensor) -> Tensor:
        return score * 2

    with (
        pytest.warns(UserWarning, match=r"Flexible: the score_mod 'steeper'"),
        regard.watch(m := Flexible(score_mod=steeper)),
    ):
        m(q)
