"""Models of transformers and peft: one from a local folder as a setting, and what any of them needs to train.

Neither library is imported unless a model of theirs is used.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnout.errors import UserError, optional
from turnout.models.layers import check_choice

HEADS = {
    "causal-lm": "AutoModelForCausalLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "masked-lm": "AutoModelForMaskedLM",
    "image-classification": "AutoModelForImageClassification",
}


@dataclass(frozen=True)
class Pretrained:
    """A model of transformers from a local folder (config.json and safetensors); nothing is downloaded.

    path      the folder, as `save_pretrained` writes it
    head      what the model predicts: causal-lm, sequence-classification, token-classification, masked-lm or
              image-classification; a classification head has as many outputs as the data has classes
    weights   False for random weights of the same shape, from config.json alone
    """

    path: Path | str
    head: str = "causal-lm"
    weights: bool = True

    def __post_init__(self) -> None:
        check_choice("head", self.head, tuple(HEADS))

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        transformers = optional("transformers", "models.Pretrained", "finetuning")
        folder = Path(self.path).expanduser()
        if not (folder / "config.json").is_file():
            raise UserError(
                f"model path {str(self.path)!r} has no config.json: give the folder of a model as save_pretrained "
                "writes it (download one with: hf download NAME --local-dir FOLDER)"
            )
        outputs = {"num_labels": classes} if self.head.endswith("classification") else {}
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, **outputs)
        make = getattr(transformers, HEADS[self.head])
        how = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}
        try:
            if self.weights:
                made = make.from_pretrained(folder, config=config, ignore_mismatched_sizes=bool(outputs), **how)
            else:
                made = make.from_config(config)
        except (OSError, ValueError) as error:
            raise UserError(f"the model in {folder} cannot be loaded as {self.head}: {_line(error)}") from error
        module: nn.Module = made
        return module


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def without_cache(module: nn.Module) -> nn.Module:
    """The same module, which keeps no keys and values for generating text while it is trained; and transformers' code
    for masks knows `vmap`, as it knows other tracers: it may not ask for the values of a mask there."""
    if "transformers" not in sys.modules:
        return module
    from transformers import PreTrainedModel, masking_utils

    if not any(isinstance(inner, PreTrainedModel) for inner in module.modules()):
        return module
    for inner in module.modules():
        if isinstance(inner, PreTrainedModel) and getattr(inner.config, "use_cache", False):
            inner.config.use_cache = False
    if not hasattr(masking_utils.is_tracing, "knows_vmap"):
        masking_utils.is_tracing = _KnowsVmap(masking_utils.is_tracing)
    return module


class _KnowsVmap:
    """transformers' `is_tracing`, which is also true inside `vmap`."""

    knows_vmap = True

    def __init__(self, known: Any):
        self.known = known

    def __call__(self, tensor: Tensor | None = None) -> bool:
        inside = isinstance(tensor, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        return inside or bool(self.known(tensor))


KINDS = {"pretrained": Pretrained}
