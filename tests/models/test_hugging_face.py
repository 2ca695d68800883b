"""Models of transformers and peft (random weights, no network): every engine, files, the command line, and what is
refused before the first round."""

from __future__ import annotations

import copy
import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import turnout as to
from turnout.cli import main
from turnout.errors import UserError
from turnout.inputs import Inputs

LETTERS = "the cat sat on the mat and looked at the moon "


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    """A decoder with grouped queries for bytes: 256 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, num_key_value_heads=2, max_position_embeddings=32, **sizes))


@pytest.fixture(scope="module")
def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    quiet = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.1}
    return BertForSequenceClassification(
        BertConfig(vocab_size=256, max_position_embeddings=32, num_labels=2, **sizes, **quiet)
    )


@pytest.fixture(scope="module")
def folder(llama: nn.Module, bert: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of four owners (one table), and the two models as save_pretrained writes them."""
    home = tmp_path_factory.mktemp("texts")
    rows = [["text", "who", "mood"]]
    for i in range(24):
        rows.append([LETTERS[i % 7 : i % 7 + 3 + i % 11], "abcd"[i % 4], ["good", "bad"][i % 2]])
    with (home / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    llama.save_pretrained(home / "llama")  # type: ignore[operator]
    bert.save_pretrained(home / "bert")  # type: ignore[operator]
    return home


class Planned:
    """In every round one client is absent and one finishes part of its work."""

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        return torch.tensor([1.0, 0.5, 0.0, 1.0], dtype=torch.float64).roll(t)[client_C]


def experiment(folder: Path, model: object, labelled: bool, engine: str = "vmap", **changes: object) -> to.Experiment:
    return to.Experiment(
        world=to.World(
            to.data.Texts(folder / "t.csv", length=12, owner_column="who", label_column="mood" if labelled else None),
            Planned(),
        ),
        model=model,
        task=to.tasks.Classification() if labelled else to.tasks.NextToken(),
        algorithm=to.Algorithm(local=to.Local(to.AdamW(lr=0.01), epochs=2, batch_size=2, clip=1.0)),
        runtime=to.runtime.InProcess(engine=engine, precision="float64", device="cpu", threads=1),
        rounds=2,
    ).but(**changes)


@pytest.mark.parametrize("kind", ["llama", "bert", "peft"])
def test_vectorised_equals_the_loop(kind, llama, bert, folder, tmp_path, capsys):
    """To 1e-6: transformers computes norms and rotations in single precision."""
    model = bert if kind == "bert" else llama
    if kind == "peft":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    runs = {}
    for engine in ("loop", "vmap"):
        runs[engine] = to.run(experiment(folder, model, kind == "bert", engine), tmp_path / engine)
        assert f"{engine} engine" in capsys.readouterr().err
    for name, value in runs["loop"].weights().items():
        torch.testing.assert_close(value, runs["vmap"].weights()[name], rtol=0, atol=2e-6)
    assert runs["loop"].final("global_loss") == pytest.approx(runs["vmap"].final("global_loss"), rel=1e-6)
    if kind == "peft":
        model.unload()


FILE = """
rounds = 2
task = "{task}"
model = {model}

[world.data]
kind = "texts"
path = "t.csv"
length = 12
owner_column = "who"
{label}

[algorithm.local]
batch_size = 2
clip = 1.0
optimizer = {{ kind = "adamw", lr = 0.02 }}
schedule = {{ kind = "warm-up", rounds = 1, then = {{ kind = "cosine", rounds = 5 }} }}
"""


@pytest.mark.parametrize("adapter", [False, True], ids=["whole", "adapter"])
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_file_runs_resumes_predicts_and_exports(kind, adapter, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    labelled = kind == "bert"
    words, head, targets = {
        "llama": ({"task": "next-token", "label": ""}, "causal-lm", "*.q_proj|*.v_proj"),
        "bert": (
            {"task": "classification", "label": 'label_column = "mood"'},
            "sequence-classification",
            "*.query|*.value",
        ),
    }[kind]
    model = f'{{ kind = "pretrained", path = "{kind}", head = "{head}" }}'
    if adapter:
        model = (
            f'{{ kind = "adapted", base = {model}, adapter = {{ rank = 3, targets = "{targets}", ranks = [3, 1] }} }}'
        )
    file = tmp_path / "e.toml"
    file.write_text(FILE.format(model=model, **words))
    command = ["run", str(file), "--quiet", "--out"]
    assert main([*command, str(tmp_path / "whole"), "--set", "rounds=3"]) == 0
    assert main([*command, str(tmp_path / "parts")]) == 0
    assert main([*command, str(tmp_path / "parts"), "--set", "rounds=3", "--resume"]) == 0
    whole, parts = to.open_run(tmp_path / "whole"), to.open_run(tmp_path / "parts")
    for name, value in whole.weights().items():
        assert torch.equal(value, parts.weights()[name]), name
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "parts"), "t.csv"]) == 0
    shown = capsys.readouterr()
    rows = list(csv.DictReader(shown.out.splitlines()))
    assert len(rows) == 24
    if labelled:
        assert {row["prediction"] for row in rows} <= {"good", "bad"}
        assert "predictions are as in column 'mood'" in shown.err
    else:
        assert all(1 < float(row["perplexity"]) < 1000 for row in rows)
        assert "the perplexity of all texts together is" in shown.err
    assert main(["export", str(tmp_path / "parts"), "--card", str(tmp_path / "card.md")]) == 0
    assert "- Input: input_ids 12 numbers (int64), attention_mask 12 numbers" in (tmp_path / "card.md").read_text()
    for name in ("m.safetensors", "m.pt2"):
        assert main(["export", str(tmp_path / "parts"), "--model", str(tmp_path / name)]) == 0
    data = to.data.Texts("t.csv", length=12)
    x = data.inputs(["the cat", "sat"])
    program = torch.export.load(tmp_path / "m.pt2").module()
    expected = parts.model()(**x.tensors).logits
    torch.testing.assert_close(program(*x.tensors.values()), expected)
    if adapter:
        adapter_is_read_by_peft(tmp_path, to.models.Pretrained(kind, head).build((12,), 2), x, expected)


def adapter_is_read_by_peft(folder: Path, base: nn.Module, x: Inputs, expected: Tensor) -> None:
    from peft import PeftModel

    merged = folder / "merged.safetensors"
    assert main(["export", str(folder / "parts"), "--adapter", str(folder / "a"), "--merged", str(merged)]) == 0
    with torch.no_grad():
        assert not torch.allclose(base.eval()(**x.tensors).logits, expected, atol=1e-5)
        whole = copy.deepcopy(base)
        whole.load_state_dict(load_file(merged))
        torch.testing.assert_close(whole(**x.tensors).logits, expected, rtol=0, atol=1e-5)
        loaded = PeftModel.from_pretrained(base, folder / "a").eval()
        torch.testing.assert_close(loaded(**x.tensors).logits, expected, rtol=0, atol=1e-5)


def test_weights_of_the_folder_are_the_first(llama, folder):
    built = to.models.Pretrained(folder / "llama").build((12,), 256)
    for (name, value), other in zip(built.state_dict().items(), llama.state_dict().values(), strict=True):
        assert torch.equal(value, other), name
    torch.manual_seed(1)
    fresh = to.models.Pretrained(folder / "llama", weights=False).build((12,), 256)
    assert fresh.state_dict().keys() == built.state_dict().keys()
    assert not torch.equal(fresh.lm_head.weight, built.lm_head.weight)


def test_a_classification_head_has_as_many_outputs_as_the_data_has_classes(folder):
    built = to.models.Pretrained(folder / "bert", head="sequence-classification").build((12,), 5)
    assert built.classifier.weight.shape == (5, 16)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"path": "nowhere"}, "has no config.json"),
        ({"path": "llama", "head": "causal"}, "head"),
        ({"path": "broken"}, "cannot be loaded as causal-lm"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(settings, words, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text((folder / "llama" / "config.json").read_text())
    with pytest.raises(UserError, match=words):
        to.models.Pretrained(**settings).build((12,), 256)


MAKERS = """
from torch import nn
from types import SimpleNamespace

def make(hidden, depth=1):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
    def forward(self, x):
        return SimpleNamespace(prediction=self.layer(x.flatten(1)))

def not_a_module(hidden=3):
    return [hidden]
"""


def test_any_callable_with_keywords_is_a_model(tmp_path, monkeypatch, capsys):
    """Without annotations, by its dotted path below the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_makers.py").write_text(MAKERS)
    data = '[world.data]\nkind = "digits"\nclients = 3\n'
    (tmp_path / "e.toml").write_text('rounds = 1\nmodel = { kind = "own_makers:make", hidden = 7 }\n' + data)
    assert main(["run", "e.toml", "--quiet", "--out", "run"]) == 0
    assert to.open_run("run").weights()["1.weight"].shape == (7, 64)
    for name, words in {
        "Odd": "return self.model(x)",
        "not_a_module": "must return one",
        "make": "the model cannot be made",
    }.items():
        capsys.readouterr()
        assert main(["run", "e.toml", "--set", f"model=own_makers:{name}", "--quiet", "--out", name]) == 2
        assert words in capsys.readouterr().err
    assert main(["run", "e.toml", "--set", "model=transformers:AutoModel", "--quiet", "--out", "no"]) == 2
    assert "--allow transformers" in capsys.readouterr().err


def test_an_input_that_the_model_does_not_take_is_explained(tmp_path):
    x = {"pixels": torch.zeros(4, 3), "extra": torch.zeros(4, 3)}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, pixels):
            return self.layer(pixels)

    data = to.data.Own(x, torch.tensor([0, 1, 0, 1]), owner=[0, 0, 1, 1])
    words = r"inputs pixels, extra .*'extra'.*its forward takes pixels\. .*def forward\(self, pixels, extra\)"
    with pytest.raises(UserError, match=words):
        to.run(to.Experiment(to.World(data), Model, rounds=1), tmp_path)
    one = to.Experiment(to.World(to.data.Own({"pixels": x["pixels"]}, data.y, owner=data.owner)), Model, rounds=1)
    with pytest.raises(UserError, match=r"cannot take the inputs pixels .*labels"):
        to.run(one.but(task=to.tasks.ModelLoss()), tmp_path)
    assert to.run(one, tmp_path / "run").weights()["layer.weight"].shape == (2, 3)


def test_turnout_does_not_import_transformers():
    libraries = "{'transformers', 'peft', 'tokenizers'}"
    code = f"import sys, turnout as to; to.models.MLP(3); assert not {libraries} & {{*sys.modules}}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_template_for_adapters_runs(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    file = tmp_path / "my.toml"
    assert main(["init", str(file), "--template", "lora"]) == 0
    here = [
        "world.data.path=t.csv",
        "world.data.owner_column=who",
        "world.data.tokenizer=bytes",
        "world.data.length=12",
    ]
    sets = [word for setting in [*here, "model.base.path=llama", "rounds=1"] for word in ("--set", setting)]
    assert main(["run", str(file), *sets, "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert any("lora_A" in name for name in to.open_run(tmp_path / "run").weights())
    assert main(["init", str(tmp_path / "b.toml"), "--template", "lore"]) == 2
    assert "lora" in capsys.readouterr().err
