"""Devices that hold texts fine-tune a model of transformers: clients that share only bytes with the server, devices
through Flower in one process and (slow) as processes of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_device_data import refused

import turnout as to
from bytes_runtime import BytesOnly, Process
from deployments import Deployment, deployed
from flower_grid import HereGrid
from turnout.deploy.apps import GridLink
from turnout.deploy.device import DeviceSettings, make_device
from turnout.deploy.server import serve_experiment
from turnout.deploy.settings import Flower
from turnout.running.config.read import load, to_toml
from word_tokenizer import write_tokenizer

LINES = {"ann": "the cat sat on the mat. ", "bob": "a dog ran in the fog. ", "eve": "to be or not to be. "}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two models as save_pretrained writes them, a text of each client, and a table of short ones with labels."""
    from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"vocab_size": 256, "max_position_embeddings": 32}
    LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **sizes)).save_pretrained(tmp_path / "llama")
    BertForSequenceClassification(BertConfig(num_labels=2, **sizes)).save_pretrained(tmp_path / "bert")
    (tmp_path / "texts").mkdir()
    for i, (name, line) in enumerate(LINES.items()):
        (tmp_path / "texts" / f"{name}.txt").write_text(line * (4 + i))
        rows = [f"{line[j : j + 7]},{name},{['good', 'bad'][j % 2]}" for j in range(8 + i)]
        (tmp_path / "texts" / f"{name}.csv").write_text("\n".join(["text,who,mood", *rows]) + "\n")
    return tmp_path


def experiment(home: Path, kind: str = "llama", **changes: object) -> to.Experiment:
    own = {"length": 12, "test_share": 0.3, "local_test": "last"}
    if kind == "llama":
        base, targets, task = to.models.Pretrained(home / kind), "*.q_proj|*.v_proj", to.tasks.NextToken()
        data = to.data.Texts(home / "texts" / "*.txt", **own)
    else:
        base = to.models.Pretrained(home / kind, head="sequence-classification")
        targets, task = "*.query|*.value", to.tasks.Classification()
        of_table = {"owner_column": "who", "label_column": "mood", "labels": ("good", "bad")}
        data = to.data.Texts(home / "texts" / "*.csv", **of_table, **own)
    local = to.Local(to.AdamW(lr=0.01, moments="fresh"), steps=2, batch_size=4, clip=1.0)
    adapted = to.models.Adapted(base, to.LoRA(rank=2, targets=targets, train="classifier.*"))
    given = to.Experiment(to.World(data), adapted, to.Algorithm(local=local), task=task, rounds=2)
    return given.but(**changes)


def same(one: to.Run, other: to.Run) -> None:
    """But for rounding: clients train in other chunks."""
    weights = other.weights()
    for name, value in one.weights().items():
        torch.testing.assert_close(value, weights[name], rtol=0, atol=1e-6)


def test_clients_that_share_only_bytes_with_the_server(home):
    here = to.runtime.InProcess(device="cpu", threads=1)
    changes = {"world.participation": to.participation.Dropout(0.4), "rounds": 3}
    one = to.run(experiment(home, runtime=here, **changes), home / "one", quiet=True)
    process = Process()
    try:
        other = to.run(experiment(home, runtime=BytesOnly((process,), here), **changes), home / "two", quiet=True)
    finally:
        process.close()
    same(one, other)
    assert one.curve("global_perplexity")[1] == pytest.approx(other.curve("global_perplexity")[1], rel=1e-5)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_three_devices_with_a_text_each_and_the_replay_agrees(kind, home):
    runtime = Flower(clients=3, start_with=3, server_data=False, round_seconds=60.0)
    given = experiment(home, kind, runtime=runtime)
    nodes = []
    for name in LINES:
        own = replace(given.world.data, path=home / "texts" / f"{name}{Path(given.world.data.path).suffix}")
        nodes.append(make_device(given, DeviceSettings(client=name, folder=home / name, data=own)))
    serve_experiment(GridLink(HereGrid(nodes)), given, home / "run")
    assert refused(home / "run") == ""
    run = to.open_run(home / "run")
    assert run.curve("answered")[1] == [3, 3]
    same(run, to.run(load(home / "run" / "replay.toml"), home / "again", quiet=True))


def test_a_device_with_another_tokenizer_is_refused(home):
    given = experiment(home, runtime=Flower(clients=2, start_with=1, server_data=False, round_seconds=60.0), rounds=1)
    words = replace(given.world.data, tokenizer=write_tokenizer(home / "words"))
    devices = {"ann": given.world.data, "bob": words}
    nodes = [
        make_device(given, DeviceSettings(client=name, folder=home / name, data=data)) for name, data in devices.items()
    ]
    serve_experiment(GridLink(HereGrid(nodes)), given, home / "run")
    assert "its words are numbered by another list" in refused(home / "run")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_three_devices_as_processes_of_their_own(kind, home):
    deployment = Deployment(home / "app", tls=False, rounds=3, clients=3, start_with=3)
    given = experiment(home, kind, runtime=load(home / "app" / "experiment.toml").runtime, rounds=3)
    (home / "app" / "experiment.toml").write_text(to_toml(given))
    with deployed(deployment):
        for name in LINES:
            deployment.start(deployment.device(name))
        deployment.until(3)
    run = to.open_run(home / "app" / "run")
    assert run.curve("answered")[1] == [3, 3, 3]
