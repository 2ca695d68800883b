"""A trained adapter as peft reads it, and a model whose adapter is merged into its base."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, cast

from safetensors.torch import save_file
from torch import Tensor, nn

from turnout.errors import UserError
from turnout.machine.files import replacing
from turnout.models.adapters import LoRALinear, lora_of
from turnout.models.quantized import is_transposed
from turnout.tasks import Predictor
from turnout.types import Tensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of every name in peft's files


def write_adapter(model: nn.Module, folder: Path) -> str:
    """Write a trained adapter into a folder for `PeftModel.from_pretrained(base, folder)`; returns a description."""
    model = _inner(model)
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(model, "peft_config"):  # peft's own
        cast(Any, model).save_pretrained(folder)
        return f"the adapter, as peft writes it ({CONFIG}, {WEIGHTS})"
    layers = {path: layer for path, layer in model.named_modules() if isinstance(layer, LoRALinear)}
    first, tensors = next(iter(layers.values())), Tensors()
    for path, layer in layers.items():
        for factor, part in (("lora_A", layer.lora_A), ("lora_B", layer.lora_B)):
            tensors[f"{PREFIX}{path}.{factor}.weight"] = part.weight.detach().clone().contiguous()
    rank = first.lora_A.out_features
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": first.scaling * rank,
        "lora_dropout": getattr(first.lora_dropout, "p", 0.0),
        "target_modules": list(layers),
        "bias": "none",
        "fan_in_fan_out": is_transposed(first.base_layer),
        "inference_mode": True,
        "task_type": None,
        "base_model_name_or_path": None,
    }
    with replacing(folder / WEIGHTS) as temporary:
        save_file(tensors, temporary, {"format": "pt"})
    with replacing(folder / CONFIG) as temporary:
        temporary.write_text(json.dumps(config, indent=2) + "\n")
    beside = [n for n, p in model.named_parameters() if p.requires_grad and "lora_" not in n]
    note = f"; {len(beside)} trained tensors of the base are no part of it: --merged has them" if beside else ""
    return f"an adapter of rank {rank} on {len(layers)} layers ({CONFIG}, {WEIGHTS}){note}"


def merged_weights(model: nn.Module) -> Tensors:
    """The tensors of the base under its own names, with the adapter's change added: W + s B A."""
    model = _inner(model)
    layers = {path: low for path, layer in model.named_modules() if (low := lora_of(layer)) is not None}
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    changed = dict[str, Tensor]()
    for path, low in layers.items():
        if others := [name for name in names[id(low.base.weight)] if not name.startswith(f"{path}.")]:
            raise UserError(
                f"the adapter on {path} cannot be merged, as {others[0]} is the same tensor and would change too: use "
                "--adapter DIR"
            )
        change = low.scale * low.B.weight @ low.A.weight
        changed[f"{path}.base_layer.weight"] = low.base.weight + (change.T if is_transposed(low.base) else change)
    if hasattr(model, "peft_config"):  # it may have more than two factors (DoRA), and copies of layers
        whole = cast(Any, copy.deepcopy(model)).merge_and_unload().state_dict()
        return {name: value.detach().clone().contiguous() for name, value in whole.items()}
    found = Tensors()
    for name, value in model.state_dict().items():
        owner = next((path for path in layers if name.startswith(f"{path}.")), None)
        if owner is not None and not name.startswith(f"{owner}.base_layer."):
            continue  # a factor
        own = name.replace(".base_layer.", ".") if owner is not None else name
        found[own] = changed.get(name, value).detach().clone().contiguous()
    return found


def _inner(model: nn.Module) -> nn.Module:
    inner = model.model if isinstance(model, Predictor) else model
    if not any(lora_of(layer) is not None for layer in inner.modules()):
        raise UserError("this run's model has no adapter (models.Adapted, or peft's LoRA): use --model FILE")
    return inner
