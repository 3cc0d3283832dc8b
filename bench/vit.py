"""Training speed of a Vision Transformer with under a million parameters: steps of ours, transformers and timm.

Images are 28×28 with 4×4 patches, the default of the recipe. All models start with the same weights and see the same
images, and the losses of the first step must agree. The peers run a plain PyTorch loop: loss, backward, fused AdamW.
Ours does what `fit` does in a step: sum the loss, divide and clip the gradients, fused AdamW. All run in one process,
so the C library setting of `fit` that keeps freed memory applies to all.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench._peers import load
from bench._skips import skip
from bench.harness import Case, Options, Versus
from bench.parity import Parity
from regard.core.process import keep_freed
from regard.models.huggingface_vit import save_vit, to_timm
from regard.models.vit import ViT, ViTConfig
from regard.training import Training
from regard.training.optimizer import Optimizer

CONFIG = ViTConfig(classes=10)
BATCH = 128
QUICK = 8
RATE = 1e-4
BAR, GOAL = ">= 1.0", ">= 1.3"
REASON = "1.3 was reached against an AdamW that is not fused; not yet measured against a fused one without other load"
Step = Callable[[], Tensor]


def cases(options: Options) -> Iterator[Case]:
    batch = QUICK if options.quick else BATCH
    torch.manual_seed(0)
    height, width = CONFIG.image
    images, labels = torch.randn(batch, CONFIG.channels, height, width), torch.arange(batch) % CONFIG.classes
    ours = ViT(CONFIG)
    contenders: dict[str, Step] = {}
    for name, make in (("transformers", transformers_vit), ("timm", timm_vit)):
        try:
            contenders[name] = plain_step(*make(ours), images, labels)
        except ImportError:
            skip("vit", name)
    contenders = {"regard": our_step(ours, images, labels), **contenders}
    peers = tuple(name for name in contenders if name != "regard")
    size = sum(p.numel() for p in ours.parameters())
    shape = f"{size:,} parameters, batch {batch}, {height}×{width}, patch {CONFIG.patch}"
    best = Versus("regard", peers) if options.quick else Versus("regard", peers, BAR, goal=GOAL, reason=REASON)
    versus = (best, *(Versus("regard", peer) for peer in peers)) if peers else ()
    yield Case("training step", shape, contenders, versus, Parity("regard", rtol=1e-4), most_rounds=40)


def our_step(model: ViT, images: Tensor, labels: Tensor) -> Step:
    """Return a step as in `training.Session`."""
    keep_freed()
    optimizer = Optimizer(model.train(), Training(steps=1, warmup=0, learning_rate=RATE))

    def step() -> Tensor:
        total = F.cross_entropy(model(images), labels, reduction="sum")
        total.backward()
        optimizer.step(RATE, len(images))
        return total.detach() / len(images)

    return step


def plain_step(model: nn.Module, logits: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> Step:
    """Return a step of a plain PyTorch training loop."""
    optimizer = torch.optim.AdamW(model.train().parameters(), RATE, fused=True)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(logits(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def transformers_vit(ours: ViT) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Return `ViTForImageClassification` with our weights and SDPA attention."""
    kind = load("transformers").ViTForImageClassification
    with tempfile.TemporaryDirectory() as folder:
        save_vit(ours, Path(folder))
        model = kind.from_pretrained(folder, attn_implementation="sdpa", trust_remote_code=False)
    return model, lambda images: model(pixel_values=images).logits


def timm_vit(ours: ViT) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Return timm's plain ViT with our weights and its default SDPA attention."""
    config = ours.config
    sizes: dict[str, Any] = {
        "img_size": config.image,
        "patch_size": config.patch,
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.layers,
        "num_heads": config.heads,
        "mlp_ratio": config.hidden / config.width,
        "num_classes": config.classes,
    }
    model = load("timm").create_model("vit_tiny_patch16_224", **sizes)
    model.load_state_dict(to_timm(ours))
    return model, model
