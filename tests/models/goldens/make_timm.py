"""Makes timm.safetensors beside it: two small models of timm 1.0.30, images, and what the models made of them.

python tests/models/goldens/make_timm.py
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

from bench._peers import load

SIZES = {"img_size": 12, "patch_size": 4, "in_chans": 3, "embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 2}
KINDS = {"class": {}, "mean": {"class_token": False, "global_pool": "avg"}}


def main() -> None:
    timm = load("timm")
    torch.manual_seed(0)
    images = torch.randn(2, 3, 12, 12)
    tensors = {"images": images}
    for kind, options in KINDS.items():
        model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **SIZES, **options).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        tensors |= {f"{kind}/state/{name}": value for name, value in model.state_dict().items()}
        tensors[f"{kind}/logits"] = model(images).detach()
    save_file(
        {name: value.contiguous() for name, value in tensors.items()}, Path(__file__).with_name("timm.safetensors")
    )


if __name__ == "__main__":
    main()
