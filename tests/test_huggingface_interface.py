"""Guarantees of "regard" as an attention implementation of transformers, for any use of masks by a model."""

from __future__ import annotations

import ast
import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard

transformers = pytest.importorskip("transformers")
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask  # noqa: E402

from regard import huggingface  # noqa: E402

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def build(kind: str, implementation: str = "eager", **settings: Any) -> Any:
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    return cls._from_config(cls.config_class(**SMALL, **settings), attn_implementation=implementation).eval()


def text(left: bool = False) -> dict[str, Tensor]:
    ids = torch.randint(3, 61, (2, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[-1, slice(0, 2) if left else slice(9, None)] = 0
    return {"input_ids": ids, "attention_mask": mask}


IMPORTS = {
    "regard first": """
import sys
import regard
assert not any(name.startswith("transformers") for name in sys.modules)
import transformers
assert "transformers.modeling_utils" not in sys.modules
""",
    "transformers first": """
import sys
import transformers
import regard
assert "transformers.modeling_utils" not in sys.modules
""",
    "models first": """
import transformers
from transformers import BertModel
import regard
""",
}
MODEL = """
config = transformers.BertConfig(
    vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)
model = transformers.BertModel(config)
model.set_attn_implementation("regard")
assert model.config._attn_implementation == "regard"
"""


@pytest.mark.parametrize("order", IMPORTS)
def test_regard_is_registered_in_any_order_of_imports_and_imports_nothing(order: str) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS[order] + MODEL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["Llama", "NllbMoe"])  # one supports "sdpa", the other adds its masks
@pytest.mark.parametrize("make", [create_causal_mask, create_bidirectional_mask])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("inference", [False, True])
def test_masks_have_the_type_that_the_class_expects(kind: str, make: Any, padding: str, inference: bool) -> None:
    config = getattr(transformers, f"{kind}Model").config_class(**SMALL)
    padding_mask = None if padding == "none" else text(padding == "left")["attention_mask"]
    arguments = {"inputs_embeds": torch.zeros(2, 11, 24), "attention_mask": padding_mask, "past_key_values": None}
    masks = {}
    with torch.inference_mode(inference):
        for config._attn_implementation in ("eager", "regard"):
            masks[config._attn_implementation] = make(config, **arguments)
    ours, eager = masks["regard"], masks["eager"]
    if make is create_bidirectional_mask and padding == "none":
        assert ours is None and eager is None
        return
    allowed = eager == 0
    assert torch.equal(ours, allowed if kind == "Llama" else eager)
    meaning = huggingface._meaning(ours, 11, 11)
    if padding == "none":
        assert meaning is not None and meaning.allowed is None  # causal: the kernels need no mask
    elif kind == "NllbMoe":
        assert meaning is not None and torch.equal(meaning.allowed, allowed)
    else:
        assert meaning is None
    assert huggingface._meaning(ours, 1, 11) is None and huggingface._meaning(ours[..., :11], 11, 11) is None


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("inference", [False, True])
def test_in_place_changes_of_a_mask_are_respected(changed: bool, inference: bool) -> None:
    module, generator = torch.nn.Identity(), torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 7, 4, generator=generator) for _ in range(3))
    with torch.inference_mode(inference):
        mask = huggingface.mask(batch_size=2, q_length=7, kv_length=7)  # no config: an additive mask
        assert mask is not None
        if changed:
            mask[:, :, :, 2] = torch.finfo(torch.float32).min / 2
            mask[:, :, 5] += torch.arange(7.0)
        context, m = huggingface.attention(module, q, k, v, mask, scaling=0.5)
    scores = (q.double() @ k.double().mT) * 0.5 + mask.double()
    torch.testing.assert_close(context.transpose(1, 2), (scores.softmax(-1) @ v.double()).float())
    assert m is not None and (m.request.mask.dense is None) == (not changed)


def test_without_a_mask_every_key_is_visible_as_under_eager() -> None:
    module = torch.nn.Identity()
    module.is_causal = True  # type: ignore[assignment]
    x = torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    context, _ = huggingface.attention(module, x, x, x, None, is_causal=True, sliding_window=2)
    expected = torch.softmax(x @ x.mT / 2, -1) @ x
    torch.testing.assert_close(context.transpose(1, 2), expected)


def test_a_causal_model_keeps_no_mask() -> None:
    model = build("LlamaModel", "regard")
    with torch.no_grad():
        maps = model(text()["input_ids"], output_attentions=True).attentions
    assert all(m.request.mask.dense is None and m.request.mask.right == 0 for m in maps)


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a process without compiled calls. A compiled call is not recorded, so it ends all verification."""
    monkeypatch.setattr(huggingface._process, "compiled", False)


class Unfaithful(transformers.LlamaModel):
    """A model that creates masks but computes attention without the interface."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        embedded = self.embed_tokens(input_ids)
        mask = create_causal_mask(self.config, embedded, attention_mask, past_key_values=None)
        return torch.softmax(embedded @ embedded.mT + mask[:, 0], -1) @ embedded


def test_a_model_that_creates_masks_but_never_calls_raises() -> None:
    config = transformers.LlamaConfig(**SMALL)
    model = Unfaithful._from_config(config, attn_implementation="regard")
    message = r"huggingface: Unfaithful must call the attention interface .*='regard'; it created masks but"
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            model(**text())
    model.set_attn_implementation("eager")
    model(**text())


class Composite(transformers.LlamaModel):
    """A model with a submodule that computes attention itself."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.part = Unfaithful(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, part: bool = True) -> Any:
        if part:
            self.part(input_ids, attention_mask)
        return super().forward(input_ids, attention_mask)


@pytest.mark.parametrize("part", [True, False])
def test_a_submodule_may_compute_attention_itself(part: bool) -> None:
    model = Composite._from_config(transformers.LlamaConfig(**SMALL), attn_implementation="regard").eval()
    with torch.no_grad():
        ours = model(**text(), part=part)[0]
        model(**text())
        model.set_attn_implementation("eager")
        torch.testing.assert_close(ours, model(**text())[0])


def test_the_check_ends_with_the_first_call_and_survives_errors_and_copies() -> None:
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    model = build("BartForConditionalGeneration", "regard", d_model=24, encoder_layers=1, decoder_layers=1, **heads)
    assert model._forward_hooks and model.model.encoder._forward_hooks
    with pytest.raises(IndexError):
        model(input_ids=torch.full((1, 3), 1000))
    duplicate = copy.deepcopy(model)
    for one in (model, duplicate):
        one(**text(), decoder_input_ids=text()["input_ids"])
    assert not any(m._forward_hooks for m in model.modules())
    model.set_attn_implementation("eager")
    model.set_attn_implementation("regard")
    assert model._forward_hooks


@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_model_or_layer_raises_no_false_alarm(whole: bool) -> None:
    model = build("BertModel")
    with torch.no_grad():
        expected = model(**text())[0]
        model.set_attn_implementation("regard")
        for module in [model] if whole else model.encoder.layer:
            module.compile(fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(model(**text())[0], expected)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("BloomModel", "it computes its attention itself"),
        ("GitModel", r"it has attention layers only for \['eager'\]"),
        ("SamModel", r"it has attention layers only for \['eager', 'sdpa'\]"),
    ],
)
def test_classes_that_do_not_call_the_interface_are_not_built_with_regard(kind: str, reason: str) -> None:
    cls = getattr(transformers, kind)
    with torch.device("meta"), pytest.raises(ValueError, match=rf"huggingface: {kind} must call .*: {reason}. Build"):
        cls._from_config(cls.config_class(), attn_implementation="regard")


@pytest.mark.parametrize("built", [False, True])
def test_output_attentions_of_a_config_works_if_it_is_set_before_regard(built: bool) -> None:
    model = build("BertModel", "regard" if built else "eager", output_attentions=True)
    model.set_attn_implementation("regard")
    assert all(isinstance(m, regard.AttentionMap) for m in model(**text()).attentions)
    with pytest.raises(ValueError, match="output_attentions"):  # the rule of transformers that docs/watch.md describes
        model.config.output_attentions = True


def test_code_of_a_model_directory_is_never_run() -> None:
    """Auto classes, and classes chosen by a variable, are loaded with trust_remote_code=False."""
    root = Path(__file__).parent.parent
    for file in (file for folder in ("src", "bench", "studies") for file in sorted((root / folder).rglob("*.py"))):
        source = file.read_text(encoding="utf-8")
        for node in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
            *_, cls, method = ["", *ast.unparse(node.func).split(".")]
            if method == "from_pretrained" and (cls.startswith("Auto") or cls.islower()):
                explicit = '"trust_remote_code": False' in source or "trust_remote_code=False" in ast.unparse(node)
                assert explicit, f"{file}:{node.lineno}"
