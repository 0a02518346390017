"""Image classifiers of Hugging Face's transformers, from small configurations with random weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

SHAPE = (3, 32, 32)
SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT", {**SMALL, "image_size": 32, "patch_size": 8}),
    "deit": ("DeiT", {**SMALL, "image_size": 32, "patch_size": 8}),
    "swin": (
        "Swin",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 8,
            "depths": [2, 2],
            "num_heads": [1, 2],
            "window_size": 2,
            "attn_implementation": "eager",
        },
    ),
    "convnextv2": ("ConvNextV2", {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1], "image_size": 32}),
    "poolformer": (
        "PoolFormer",
        {
            "depths": [1, 1],
            "hidden_sizes": [8, 16],
            "num_encoder_blocks": 2,
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "padding": [2, 1],
        },
    ),
    "regnet": (
        "RegNet",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4, "layer_type": "y"},
    ),
}


class Scores(nn.Module):
    """A model that gives its scores alone, as whoever exports one writes it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


def built(name: str) -> tuple[nn.Module, tuple[int, int, int]]:
    import transformers

    family, options = CONFIGURATIONS[name]
    config = getattr(transformers, f"{family}Config")(num_labels=5, **options)
    model = getattr(transformers, f"{family}ForImageClassification")(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, 0, parameter[0].numel() ** -0.5)  # theirs make all scores nearly equal
    return Scores(model), SHAPE
