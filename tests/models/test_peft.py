"""Adapters of peft and models of transformers, as they are; random values, no download."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import turnout as to
from commands import turnout
from turnout.engine.batches import Batch
from turnout.engine.gradients import Looped
from turnout.engine.network import Network
from turnout.engine.trainers import make_trainer
from turnout.errors import UserError
from turnout.inputs import Inputs
from turnout.layout import lay_out
from turnout.models.adapters import lora_of
from turnout.running.adapter_files import merged_weights, write_adapter
from turnout.running.tracks.prepare import prepare
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


def gpt2() -> nn.Module:
    """Linear layers whose weights are [inputs, outputs], and dropout everywhere."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=1, eos_token_id=2, **sizes))


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


def trained(model: object, folder: Path, **runtime: str) -> to.Run:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(1, WORDS, (24, 7), generator=generator)
    data = to.data.Own(ids[:, :-1].clone(), ids[:, 1:].clone(), torch.arange(24) % 4, test_share=0.2, classes=WORDS)
    experiment = to.Experiment(
        to.World(data, to.participation.Dropout(0.3)),
        model,
        to.Algorithm(to.Local(to.Adam(0.02), epochs=2, batch_size=4)),
        task=to.tasks.NextCharacter(),
        rounds=2,
        runtime=to.runtime.InProcess(**runtime),
    )
    return to.run(experiment, folder)


def peft_llama() -> nn.Module:
    return with_peft(llama(), target_modules=["q_proj", "v_proj"])


OURS = to.models.Adapted(llama, to.LoRA(rank=2, alpha=6.0))
ON_GPT2 = to.models.Adapted(gpt2, to.LoRA(rank=2, targets="*.c_attn"))


@pytest.mark.parametrize(
    ("model", "build"), [(OURS, llama), (ON_GPT2, gpt2), (peft_llama, llama)], ids=["ours", "gpt2", "peft's"]
)
def test_peft_reads_an_exported_adapter(model: object, build: Callable[[], nn.Module], tmp_path: Path) -> None:
    from peft import PeftModel

    run = trained(model, tmp_path / "run")
    ids = torch.arange(12).view(2, 6) % WORDS
    own = run.model(module=model)
    with torch.no_grad():
        wanted = own(ids).logits
    assert "adapter_config.json" in write_adapter(own, tmp_path / "adapter")
    merged = merged_weights(own)
    base = build().eval()
    with torch.no_grad():
        plain = base(ids).logits
        other = build().eval()
        other.load_state_dict(merged)
        assert float((wanted - plain).abs().max()) > 1e-3  # it has learnt something
        torch.testing.assert_close(other(ids).logits, wanted, rtol=0, atol=1e-5)
        loaded = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
        torch.testing.assert_close(loaded(ids).logits, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_packed_base_trains_almost_the_same(kind: str, tmp_path: Path) -> None:
    model = {"llama": peft_llama, "gpt2": ON_GPT2}[kind]
    losses = {}
    for precision in ("bfloat16", "int8", "nf4"):
        run = trained(model, tmp_path / precision, base_precision=precision)
        losses[precision] = run.final("global_loss")
    assert losses["int8"] == pytest.approx(losses["bfloat16"], rel=0.01)
    assert losses["nf4"] == pytest.approx(losses["bfloat16"], rel=0.05)
    assert len(set(losses.values())) == 3


def test_what_an_adapter_is_more_than_two_factors_is_merged_by_peft(tmp_path: Path) -> None:
    dora = with_peft(llama(), target_modules=["q_proj", "v_proj"], use_dora=True)
    own = trained(dora, tmp_path / "run").model(module=dora)
    ids, base = torch.arange(12).view(2, 6) % WORDS, llama().eval()
    with torch.no_grad():
        wanted, plain = own(ids).logits, base(ids).logits
        base.load_state_dict(merged_weights(own))
        assert float((wanted - plain).abs().max()) > 1e-3
        torch.testing.assert_close(base(ids).logits, wanted, rtol=0, atol=1e-5)


def test_an_adapter_on_weights_that_two_layers_have_is_not_merged() -> None:
    base = llama()
    base.lm_head.weight = base.model.embed_tokens.weight
    with pytest.raises(UserError, match=r"on lm_head cannot be merged, as model\.embed_tokens\.weight is the same"):
        merged_weights(to.LoRA(rank=2, targets="lm_head").add_to(base))


def t5() -> nn.Module:
    """An encoder and a decoder."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(decoder_start_token_id=0, dropout_rate=0.0, **sizes))


def packed_llama() -> nn.Module:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = llama()
    quantize_(model, Int8WeightOnlyConfig())
    return to.LoRA(rank=2).add_to(model)


def with_prompt() -> nn.Module:
    from peft import PromptTuningConfig, get_peft_model

    return get_peft_model(llama(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (t5, r"reads one text and writes another.*decoder_input_ids.*NextCharacter\(ignore=-100\)"),
        (packed_llama, r"packed by another library \(Int8Tensor\).*set runtime.base_precision"),
        (with_prompt, r"gives \(3, 9, 23\) for targets \(3, 6\).*logits\[:, -input_ids.shape\[1\]:\]"),
    ],
    ids=["encoder and decoder", "packed", "prompt"],
)
def test_what_cannot_be_used_is_refused_with_what_to_write(make: Callable[[], nn.Module], words: str) -> None:
    ids = torch.arange(36).view(6, 6) % WORDS
    samples = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    given = to.Experiment(
        to.World(to.data.Own(samples, owner=[0, 0, 0, 1, 1, 1], test_share=0.0, classes=WORDS)),
        make,
        task=to.tasks.NextToken(),
    )
    with pytest.raises(UserError, match=words):
        prepare(given)


def test_a_model_that_reads_one_text_and_writes_another_as_advised(tmp_path: Path) -> None:
    ids = torch.arange(72).view(12, 6) % WORDS
    y = ids.flip(1)[:, :5]
    x = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": functional.pad(y, (1, -1))}
    data = to.data.Own(x, y, owner=torch.arange(12) % 3, test_share=0.0, classes=WORDS)
    task = to.tasks.NextCharacter(ignore=-100)
    local = to.Local(to.AdamW(0.02), epochs=20, batch_size=4)
    run = to.run(to.Experiment(to.World(data), t5, to.Algorithm(local), task=task, rounds=3), tmp_path / "run")
    losses = run.curve("train_loss")[1]
    assert losses[-1] < 0.8 * losses[0]


FILE = """
rounds = 2
[world]
data = { kind = "digits", clients = 5 }
[model]
kind = "adapted"
base = { kind = "mlp", hidden = [8] }
adapter = { rank = 2, targets = "linear*|output", train = "output.bias" }
[algorithm]
aggregation = "product-mean"
"""


def test_an_experiment_file_with_an_adapter_is_run_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lora.toml").write_text(FILE)
    assert turnout("run", "lora.toml", "--out", "run", "--quiet") == 0
    assert turnout("export", "run", "--adapter", "adapter", "--merged", "merged.safetensors") == 0
    told = capsys.readouterr().out
    assert (
        "adapter: an adapter of rank 2 on 2 layers (adapter_config.json, adapter_model.safetensors); 1 trained" in told
    )
    model = to.open_run("run").model()
    plain = to.models.MLP(8).build((1, 8, 8), 10).eval()
    plain.load_state_dict(load_file("merged.safetensors"))
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(plain(x), model(x))
    assert set(json.loads(Path("adapter/adapter_config.json").read_text())["target_modules"]) == {"linear1", "output"}
    assert turnout("export", "run", "--merged", "merged.onnx") != 0
    assert "name it something.safetensors" in capsys.readouterr().err


def test_a_model_without_an_adapter_is_not_exported_as_one(tmp_path: Path) -> None:
    data = to.data.Digits(clients=3)
    run = to.run(to.Experiment(to.World(data), to.models.MLP(4), rounds=1), tmp_path / "run")
    with pytest.raises(UserError, match="has no adapter"):
        write_adapter(run.model(), tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
