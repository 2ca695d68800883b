"""Adapters of peft and models of transformers, as they are; random values, no download."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import turnout as to
from turnout.engine.batches import Batch
from turnout.engine.gradients import Looped
from turnout.engine.network import Network
from turnout.engine.trainers import make_trainer
from turnout.inputs import Inputs
from turnout.layout import lay_out
from turnout.models.adapters import lora_of
from turnout.settings import InProcess

WORDS = 23
SMALL = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 16}  # fmt: skip


def llama() -> nn.Module:
    """Grouped queries."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, bos_token_id=1, eos_token_id=2, **SMALL))


def bert() -> nn.Module:
    """Dropout within attention."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(num_labels=3, **SMALL))


def with_peft(base: nn.Module, **settings: object) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(base, LoraConfig(r=2, **settings))


MODELS = {
    "llama": lambda: with_peft(llama(), target_modules=["q_proj", "v_proj"]),
    "llama with dropout": lambda: with_peft(llama(), target_modules=["q_proj", "v_proj"], lora_dropout=0.2),
    "llama with our adapter": lambda: to.LoRA(rank=2).add_to(llama()),
    "bert": lambda: with_peft(bert(), target_modules=["query", "value"], task_type="SEQ_CLS"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_as_it_is_goes_through_one_pass(name: str) -> None:
    module = MODELS[name]().double()
    task = to.tasks.Classification() if name == "bert" else to.tasks.NextCharacter(ignore=-100)
    network = Network.of(module, lay_out(module), task.loss)
    found = [lora_of(layer) for layer in module.modules() if lora_of(layer) is not None]
    assert len(found) == 4
    assert all(low.plain == (name != "llama with dropout") for low in found)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, WORDS, (2, 3, 6), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 1, 4:] = 0
    y = ids % 3 if name != "bert" else ids[:, :, 0] % 3
    x = Inputs({"input_ids": ids, "attention_mask": mask})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = make_trainer(InProcess(device="cpu"), network, None, x[0], y[0])
    assert trainer.gradients.title == "joined"
    flat_cP = network.first_weights() + 0.2 * torch.randn(2, network.layout.width, generator=generator).double()
    batch = Batch(x, y, None, torch.arange(2 * network.keys).view(2, -1))
    one, other = torch.empty_like(flat_cP), torch.empty_like(flat_cP)
    loss_c = trainer.gradients.gradient(flat_cP, {}, batch, one)
    torch.testing.assert_close(loss_c, Looped(network.twin()).gradient(flat_cP, {}, batch, other))
    assert float(other.abs().amax(1).min()) > 1e-3
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
