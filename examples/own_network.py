"""Verify a torch module of your own against two perturbations at once."""

import torch

import shakeproof as sp

torch.manual_seed(0)
module = torch.nn.Sequential(
    torch.nn.Conv2d(1, 4, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(4 * 8 * 8, 3),
)
network = sp.load(module, torch.rand(1, 1, 16, 16))
image = torch.rand(1, 16, 16, dtype=torch.float64)

both = sp.motion_blur(size=5, angle=0) + sp.brightness(max=0.1)
result = sp.verify(network, image, both, strength=(0.5, 1.0), timeout=30.0)
print(result.status, result.reason or "", f"{result.pieces} boxes")
