"""A frozen base in 8 or 4 bits: torchao packs the weights of its linear layers, and each product unpacks them.

The forward and the backward pass unpack a layer's weights when they need them and keep nothing, so that one unpacked
layer is held at a time. Where all clients' rows go through a layer together (engine/joined.py), that happens twice a
step, whatever their number.

Shape letters: o outputs, i inputs.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from turnout.errors import UserError, optional

BLOCK = 64  # values with a common scale, in 4 bits
PACKED = ("int8", "nf4")


class PackedMatrix:
    """A matrix in 8 bits with a scale for each row, or in 4 bits (NF4, Dettmers et al., 2023); copies share it."""

    def __init__(self, weight_oi: Tensor, precision: str, library: Any):
        weight_oi = weight_oi.detach().contiguous()
        if precision == "int8":
            self.held: Any = library.Int8Tensor.from_hp(weight_oi, library.PerRow())
        else:
            self.held = library.to_nf4(weight_oi, BLOCK, math.gcd(weight_oi.numel() // BLOCK, 256))
        self.shape = weight_oi.shape

    def __deepcopy__(self, memo: object) -> PackedMatrix:
        return self

    def unpacked(self, dtype: torch.dtype) -> Tensor:
        is_nf4 = hasattr(self.held, "get_original_weight")
        found: Tensor = self.held.get_original_weight() if is_nf4 else self.held.dequantize()
        return found.to(dtype)

    @property
    def nbytes(self) -> int:
        return sum(getattr(self.held, name).nbytes for name in self.held.__tensor_flatten__()[0])


class PackedProduct(torch.autograd.Function):
    """x Wᵀ of a packed W, which has no gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, W: PackedMatrix) -> Tensor:
        return functional.linear(x, W.unpacked(x.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, PackedMatrix], output: Tensor) -> None:
        ctx.W = inputs[1]

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None]:
        return torch.matmul(given[0], ctx.W.unpacked(given[0].dtype)), None


class PackedLinear(nn.Module):
    """A frozen linear layer with packed weights; its bias is a parameter as before."""

    def __init__(self, packed: PackedMatrix, bias: nn.Parameter | None):
        super().__init__()
        self.packed, self.bias = packed, bias
        self.out_features, self.in_features = packed.shape

    @property
    def weight(self) -> Tensor:
        """Unpacked, for code that reads it."""
        return self.packed.unpacked(torch.bfloat16 if self.bias is None else self.bias.dtype)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = PackedProduct.apply(x, self.packed)
        return y if self.bias is None else y + self.bias


def is_transposed(layer: nn.Module) -> bool:
    """Whether this is the linear layer of GPT-2 in transformers, whose weight is [inputs, outputs]."""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")


def pack(module: nn.Module, precision: str) -> nn.Module:
    """Pack the weights of all frozen linear layers of a model, in place.

    Others stay as they are: embeddings and norms, weights that another layer has too (an output layer that is the
    embedding), and those whose number is not a multiple of 64.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # about kernels for other processors, which are not used here
    try:
        library = optional("torchao.quantization", f"runtime.base_precision = {precision!r}", "quantized")
    finally:
        logging.disable(before)
    layers = {layer for layer in module.modules() if type(layer) is nn.Linear or is_transposed(layer)}
    uses = Counter(id(p) for layer in module.modules() for p in layer.parameters(recurse=False))
    made = dict[nn.Module, nn.Module]()
    for layer in layers:
        frozen = not any(p.requires_grad for p in layer.parameters())
        weight: Any = layer.weight
        if frozen and uses[id(weight)] == 1 and weight.numel() % BLOCK == 0:
            packed = PackedMatrix(weight.T if is_transposed(layer) else weight, precision, library)
            made[layer] = PackedLinear(packed, layer.bias)  # type: ignore[arg-type]
    if not made:
        raise UserError(
            f"runtime.base_precision = {precision!r} packs frozen linear layers, and this model has none whose number "
            "of weights is a multiple of 64: use 'bfloat16'"
        )
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if child in made:
                setattr(parent, name, made[child])
    return module


def frozen_bytes(*modules: nn.Module) -> int:
    """Bytes of the frozen parameters and packed matrices of models, each counted once."""
    found: dict[object, int] = {}
    for module in modules:
        found |= {p.data_ptr(): p.nbytes for p in module.parameters() if not p.requires_grad}
        found |= {
            id(layer.packed): layer.packed.nbytes for layer in module.modules() if isinstance(layer, PackedLinear)
        }
    return sum(found.values())
