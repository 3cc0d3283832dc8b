"""The Vision Transformer: its equations, error messages, and parity with transformers and timm."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from bench._peers import load
from regard.models.huggingface_vit import from_timm, labels_of, load_vit, save_vit, to_timm
from regard.models.vit import ViT, ViTConfig, patches, sinusoids_2d

SMALL = ViTConfig(classes=5, image=(12, 20), channels=3, patch=4, width=24, heads=3, hidden=40, layers=2)
GOLDENS = Path(__file__).parent / "goldens"


def peers(name: str) -> Any:
    try:
        return load(name)
    except ImportError:
        pytest.skip(f"{name} is not installed")


def random(config: ViTConfig) -> ViT:
    """All weights random, so that none can hide."""
    model = ViT(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_the_output_equals_blocks_over_embedded_patches(pool: Any, position: Any) -> None:
    model, images = random(replace(SMALL, pool=pool, position=position)), torch.randn(7, 3, 12, 20)
    x = model.patches(images).flatten(2).transpose(1, 2)  # (7, 15, 24), by the convolution
    first = pool == "class"
    table = model.positions if position == "learned" else sinusoids_2d(3, 5, 24).float()
    if first:
        assert model.first is not None
        x = torch.cat((model.first.expand(7, 1, -1), x), 1)
        table = table if position == "learned" else torch.cat((torch.zeros(1, 24), table))
    x = x + table
    for block in model.blocks:
        x = block(x)
    assert torch.allclose(model.encode(images), model.norm(x), atol=1e-5)
    pooled = x[:, 0] if first else x.mean(1)
    assert torch.allclose(model(images), model.classifier(model.norm(pooled)), atol=1e-5)


@pytest.mark.parametrize(("size", "shape"), [(2, (6, 10)), (4, (3, 5)), (8, (2, 3))])
def test_a_stem_makes_one_place_of_each_patch(size: int, shape: tuple[int, int]) -> None:
    config = replace(SMALL, patch=size, stem=6, image=(shape[0] * size, shape[1] * size), pool="mean")
    model, images = random(config), torch.randn(2, 3, *config.image)
    assert model.stem is not None
    indices = model.stem(images)  # (2, 3·p, rows, columns)
    assert indices.shape == (2, 3 * size, *shape)
    x = model.patches(indices).flatten(2).transpose(1, 2) + model.positions
    for block in model.blocks:
        x = block(x)
    assert torch.allclose(model.encode(images), model.norm(x), atol=1e-5)
    moved = images.clone()
    moved[:, :, 0, 0] += 1
    difference = (model.stem(moved) - indices).abs().sum((0, 1))  # a corner is not seen from the opposite one
    assert difference[0, 0] > 0 and not difference[-1, -1]


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_maps_do_not_change_the_output(pool: Any) -> None:
    model, images = random(replace(SMALL, pool=pool)), torch.randn(2, 3, 12, 20)
    logits, maps = model(images, return_maps=True)
    assert torch.equal(logits, model(images))
    tokens, all_maps = model.encode(images, return_maps=True)
    assert torch.equal(tokens, model.encode(images))
    length = 15 + (pool == "class")
    for one, other in zip(maps, all_maps, strict=True):
        assert one.shape == other.shape == (2, 3, length, length)
        assert torch.allclose(one.dense(), other.dense(), atol=1e-6)
        assert torch.allclose(one.dense().sum(-1), torch.ones(2, 3, length), atol=1e-5)


def test_patches_are_cut_row_by_row() -> None:
    images = torch.randn(2, 3, 8, 12)
    cut = patches(images, 4)
    assert cut.shape == (2, 6, 48)
    assert torch.equal(cut[1, 4].view(3, 4, 4), images[1, :, 4:8, 4:8])


def test_an_image_has_the_same_output_alone_and_in_a_batch() -> None:
    model, images = random(SMALL), torch.randn(5, 3, 12, 20)
    assert torch.allclose(model(images)[3:4], model(images[3:4]), atol=1e-5)
    assert model(images[:0]).shape == (0, 5)


def test_gradients_reach_every_weight() -> None:
    others = {"pool": "mean"}, {"position": "sinusoidal", "dropout": 0.1}, {"stem": 6}
    for config in (SMALL, *(replace(SMALL, **changed) for changed in others)):  # type: ignore[arg-type]
        model = random(config).train()
        model(torch.randn(2, 3, 16, 16)).square().sum().backward()
        for name, p in model.named_parameters():
            assert p.grad is not None, name
            # a bias of keys moves all scores of a query alike: softmax does not see it
            assert p.grad.abs().sum() > 0 or name.endswith("key.bias"), name


def test_the_defaults_are_under_a_million_parameters() -> None:
    assert sum(p.numel() for p in ViT(ViTConfig(classes=10)).parameters()) < 1_000_000


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"image": (28, 30)}, "vit: image (28×30) must be divisible by the patch (4); try 28 or 32 instead of 30."),
        ({"patch": 0}, "vit: patch (0) must be at least 1."),
        ({"classes": -1}, "vit: classes (-1) must be at least 0."),
        ({"stem": -1}, "vit: stem (-1) must be at least 0."),
        ({"stem": 8, "patch": 6, "image": (12, 24)}, "each halves the image; got patches of 6."),
        ({"stem": 8, "patch": 1}, "each halves the image; got patches of 1."),
        ({"pool": "max"}, "vit: pool ('max') must be one of class, mean."),
        ({"position": "rotary"}, "vit: position ('rotary') must be one of learned, sinusoidal."),
        ({"activation": "tanh"}, "vit: activation ('tanh') must be one of relu, gelu, silu."),
        ({"width": 30, "heads": 3, "position": "sinusoidal"}, "vit: width (30) must be divisible by 4"),
        ({"pooler": True}, "vit: pooler (True) must come without classes"),
        ({"width": 25}, "vit: width (25) must be divisible by heads (3)"),
    ],
)
def test_settings_that_do_not_fit(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ViT(replace(SMALL, **changed))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 1, 12, 20), "vit: images (2×1×12×20) must be (batch, 3, height, width)."),
        (torch.zeros(3, 12, 20), "must be (batch, 3, height, width)"),
        (torch.zeros(2, 3, 13, 20), "must be divisible by the patch (4); try 12 or 16 instead of 13"),
        (torch.zeros(2, 3, 3, 20), "try 4 instead of 3"),
        (torch.zeros(2, 3, 12, 20, dtype=torch.uint8), "must be floating point; got uint8. Divide bytes by 255"),
    ],
)
def test_images_that_do_not_fit(images: Tensor, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        ViT(SMALL)(images)
    assert message in str(caught.value)


# Hugging Face


def theirs(kind: str = "ViTForImageClassification", **changed: Any) -> Any:
    transformers = peers("transformers")
    sizes = {"image_size": 12, "patch_size": 4, "num_channels": 3, "hidden_size": 24, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 3, "intermediate_size": 40, "num_labels": 5, **changed}
    model = getattr(transformers, kind)(transformers.ViTConfig(**sizes)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def test_parity_with_hugging_face(tmp_path: Path) -> None:
    peer = theirs(id2label={n: f"class {n}" for n in range(5)})
    peer.save_pretrained(tmp_path)
    ours = load_vit(tmp_path)
    assert not ours.training and labels_of(tmp_path) == [f"class {n}" for n in range(5)]
    for size in ((12, 12), (20, 8), (4, 24), (24, 24)):
        images = torch.randn(2, 3, *size, requires_grad=True)
        again = images.detach().clone().requires_grad_()
        expected, got = peer(pixel_values=images, interpolate_pos_encoding=True).logits, ours(again)
        assert torch.allclose(got, expected, atol=1e-5), size
        hidden = peer.vit(images, interpolate_pos_encoding=True).last_hidden_state
        assert torch.allclose(ours.encode(again), hidden, atol=1e-5), size
        expected.square().sum().backward()
        got.square().sum().backward()
        assert torch.allclose(again.grad, images.grad, rtol=1e-5, atol=1e-5), size
    # their gradients, saved as if they were weights, have our names when they are read
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.copy_(parameter.grad)
    peer.save_pretrained(tmp_path / "gradients")
    gradients = load_vit(tmp_path / "gradients").state_dict()
    for name, parameter in ours.named_parameters():
        largest = max(1.0, float(gradients[name].abs().max()))  # sums over four sizes of images
        assert torch.allclose(parameter.grad, gradients[name], rtol=1e-5, atol=1e-5 * largest), name


def test_attention_is_that_of_hugging_face(tmp_path: Path) -> None:
    peer = theirs(attn_implementation="eager")
    peer.save_pretrained(tmp_path)
    images = torch.randn(2, 3, 12, 12)
    _, maps = load_vit(tmp_path)(images, return_maps=True)
    for ours, expected in zip(maps, peer(images, output_attentions=True).attentions, strict=True):
        assert torch.allclose(ours.dense(), expected, atol=1e-5)


def test_their_model_without_a_classifier(tmp_path: Path) -> None:
    peer = theirs("ViTModel")
    peer.save_pretrained(tmp_path)
    ours, images = load_vit(tmp_path), torch.randn(2, 3, 12, 12)
    assert ours.config.pooler and ours.config.classes == 0
    result = peer(images)
    assert torch.allclose(ours(images), result.pooler_output, atol=1e-5)
    assert torch.allclose(ours.encode(images), result.last_hidden_state, atol=1e-5)


@pytest.mark.parametrize("kind", ["ViTForImageClassification", "ViTModel"])
def test_there_and_back(kind: str, tmp_path: Path) -> None:
    transformers = peers("transformers")
    classes = {"classes": 5} if kind == "ViTForImageClassification" else {"classes": 0, "pooler": True}
    ours = random(replace(SMALL, image=(12, 12), dropout=0.1, **classes))
    save_vit(ours, tmp_path / "ours", list("abcde") if ours.config.classes else ())
    peer, metadata = getattr(transformers, kind).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(metadata[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    peer.save_pretrained(tmp_path / "theirs")
    back = load_vit(tmp_path / "theirs")
    assert back.config == ours.config
    for name, value in ours.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
    if ours.config.classes:
        assert labels_of(tmp_path / "theirs") == list("abcde") and peer.config.label2id["c"] == 2


def test_a_directory_that_is_no_vit(tmp_path: Path) -> None:
    model = random(replace(SMALL, image=(12, 12)))
    save_vit(model, tmp_path)
    path = tmp_path / "config.json"
    whole = json.loads(path.read_text())

    def refused(message: str, **changed: Any) -> None:
        path.write_text(json.dumps({name: value for name, value in (whole | changed).items() if value is not None}))
        with pytest.raises(ValueError, match=message):
            load_vit(tmp_path)

    refused("model_type \\('bert'\\) of .* must be 'vit'", model_type="bert")
    refused("must have hidden_size, patch_size", hidden_size=None, patch_size=None)
    refused("hidden_act \\('gelu_new'\\) must be one of relu, gelu, silu", hidden_act="gelu_new")
    refused("qkv_bias \\(False\\) must be True", qkv_bias=False)
    refused("config.json: patch \\('4'\\) must be of type int; got str", patch_size="4")
    refused("config.json: norm_epsilon \\(\\[\\]\\) must be of type float; got list", layer_norm_eps=[])
    refused("config.json: image \\(\\[8, 8, 3\\]\\) must be 2 values; got 3", image_size=[8, 8, 3])
    refused("hidden_act \\(\\[\\]\\) must be one of relu", hidden_act=[])
    refused("id2label \\({'a': 'b'}\\) of .* must have integers as keys", id2label={"a": "b"})
    refused("missing: .*classifier|another shape: classifier", id2label=5)
    refused("missing: vit.encoder.layer.2.*", num_hidden_layers=3)
    refused("of another shape: .*position_embeddings \\(10, 24\\) for \\(17, 24\\)", image_size=16)
    path.write_text(json.dumps(whole))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=re.escape(str(weights))):
        load_vit(tmp_path)


def test_models_that_hugging_face_cannot_represent_are_refused(tmp_path: Path) -> None:
    wrong = (
        ({"pool": "mean"}, "pool ('mean')"),
        ({"position": "sinusoidal"}, "position ('sinus"),
        ({"stem": 8}, "stem (8)"),
    )
    for changed, message in wrong:
        with pytest.raises(ValueError, match=re.escape(message)):
            save_vit(ViT(replace(SMALL, **changed)), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"labels \(2\) must be one for each class \(5\)"):
        save_vit(ViT(SMALL), tmp_path, ["a", "b"])


# timm


@pytest.mark.parametrize("kind", ["class", "mean"])
def test_the_output_equals_that_of_timm(kind: str) -> None:
    stored = load_file(GOLDENS / "timm.safetensors")
    state = {name.split("/")[2]: value for name, value in stored.items() if name.startswith(f"{kind}/state/")}
    ours = from_timm(state, heads=3)
    assert ours.config.pool == kind and ours.config.image == (12, 12) and ours.config.hidden == 48
    assert torch.allclose(ours(stored["images"]), stored[f"{kind}/logits"], atol=1e-5)
    back = to_timm(ours)
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)


@pytest.mark.parametrize("options", [{}, {"class_token": False, "global_pool": "avg"}])
def test_parity_with_timm(options: dict[str, Any]) -> None:
    timm = peers("timm")
    sizes = {"img_size": (12, 20), "patch_size": 4, "in_chans": 3, "embed_dim": 24, "depth": 2, "num_heads": 3}
    peer = timm.create_model("vit_tiny_patch16_224", num_classes=5, mlp_ratio=2, **sizes, **options).eval()
    ours = from_timm(peer.state_dict(), heads=3, image=(12, 20))
    images = torch.randn(2, 3, 12, 20)
    expected, got = peer(images), ours(images)
    assert torch.allclose(got, expected, atol=1e-5)
    expected.square().sum().backward()
    got.square().sum().backward()
    names = dict(peer.named_parameters())
    assert torch.allclose(ours.patches.weight.grad, names["patch_embed.proj.weight"].grad, atol=1e-5)
    assert torch.allclose(ours.positions.grad, names["pos_embed"].grad[0], atol=1e-5)
    fused = torch.cat([getattr(ours.blocks[1].attention, part).weight.grad for part in ("query", "key", "value")])
    assert torch.allclose(fused, names["blocks.1.attn.qkv.weight"].grad, atol=1e-5)
    other = random(ours.config)
    peer.load_state_dict(to_timm(other))
    assert torch.allclose(other(images), peer(images), atol=1e-5, rtol=1e-5)


def test_a_state_dict_that_is_no_plain_vit() -> None:
    with pytest.raises(ValueError, match=r"state \(1 tensors\) must be of timm's plain ViT; got no patch_embed"):
        from_timm({"conv.weight": torch.zeros(1)})
    state = to_timm(ViT(SMALL))
    with pytest.raises(ValueError, match=r"image must be given for 15 patches, which do not form a square"):
        from_timm(state, heads=3)
    with pytest.raises(ValueError, match=r"unexpected: blocks.0.ls1.gamma"):
        from_timm({**state, "blocks.0.ls1.gamma": torch.zeros(24)}, heads=3, image=(12, 20))
    with pytest.raises(ValueError, match=r"unexpected: blocks.0.attn.qkv.bias"):  # three equal parts are impossible
        from_timm({**state, "blocks.0.attn.qkv.bias": torch.zeros(71)}, heads=3, image=(12, 20))
    with pytest.raises(ValueError, match=r"stem \(8\) must be 0"):
        to_timm(ViT(replace(SMALL, stem=8)))
    with pytest.raises(ValueError, match="positions must be learned"):
        to_timm(ViT(replace(SMALL, position="sinusoidal")))
