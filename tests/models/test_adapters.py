"""Adapters on any model: which parameters are trained, clients of different ranks, and where the base comes from."""

from __future__ import annotations

import hashlib
import http.server
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import turnout as to
from turnout.errors import UserError
from turnout.parts.terms.base import LocalTerm
from turnout.types import Tensors

DATA = to.data.Digits(clients=4, partition=to.partition.Classes(per_client=3))


def experiment(model: object, **algorithm: object) -> to.Experiment:
    return to.Experiment(
        to.World(DATA, to.participation.Dropout(0.2)),
        model,
        to.Algorithm(to.Local(to.SGD(0.1, momentum=0.5), epochs=1, batch_size=20), **algorithm),
        rounds=2,
        runtime=to.runtime.InProcess(precision="float64"),
    )


def adapted(**settings: object) -> to.models.Adapted:
    return to.models.Adapted(to.models.MLP(8), to.LoRA(targets="linear1", **settings))


def test_only_the_adapter_is_trained_and_sent(tmp_path: Path) -> None:
    run = to.run(experiment(adapted(rank=2)), tmp_path / "run")
    first, last = adapted(rank=2), run.weights()
    assert {name for name in last if "lora" in name} == {"linear1.lora_A.weight", "linear1.lora_B.weight"}
    width = 2 * 64 + 8 * 2
    assert set(run.frame(clients=True)["bytes_up"].dropna()) == {4 * width}
    again = to.run(experiment(first).but(rounds=1), tmp_path / "again").weights()
    assert torch.equal(again["output.weight"], last["output.weight"])
    assert not torch.equal(again["linear1.lora_B.weight"], last["linear1.lora_B.weight"])


@pytest.mark.parametrize("terms", [(), (to.terms.Scaffold(1), to.terms.Proximal(0.1))], ids=["plain", "terms"])
def test_a_client_of_rank_1_trains_as_if_the_adapter_had_rank_1(terms: tuple[object, ...], tmp_path: Path) -> None:
    few = to.run(experiment(adapted(rank=3, alpha=6.0, ranks=(1,)), terms=terms), tmp_path / "few").weights()
    one = to.run(experiment(adapted(rank=1, alpha=2.0), terms=terms), tmp_path / "one").weights()
    A, B = (few[f"linear1.lora_{factor}.weight"] for factor in "AB")
    torch.testing.assert_close(A[:1], one["linear1.lora_A.weight"])
    torch.testing.assert_close(B[:, :1], one["linear1.lora_B.weight"])
    assert float(B[:, :1].abs().max()) > 1e-3
    assert not B[:, 1:].any()
    assert float(A[1:].abs().max()) > 1e-3  # as they began


class Push(LocalTerm):
    """Pulls at everything."""

    name = "push"

    def transform_grad(self, grad_cP: Tensor, at: Any, server_state: Tensors, client_state: Tensors) -> Tensor:
        return grad_cP + 1.0


def test_a_term_does_not_reach_what_a_client_does_not_have(tmp_path: Path) -> None:
    weights = to.run(experiment(adapted(rank=3, ranks=(1,)), terms=(Push(),)), tmp_path / "run").weights()
    assert weights["linear1.lora_B.weight"][:, :1].all()
    assert not weights["linear1.lora_B.weight"][:, 1:].any()


def test_clients_of_different_ranks_each_train_their_own_directions(tmp_path: Path) -> None:
    run = to.run(experiment(adapted(rank=3, ranks=(1, 3))), tmp_path / "run")
    B = run.weights()["linear1.lora_B.weight"]
    assert B.any(0).all()


def test_ranks_and_targets_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"LoRA\.ranks has 4, and rank is 3"):
        to.LoRA(rank=3, ranks=(2, 4))
    with pytest.raises(UserError, match=r"matches no linear layer of the base: its linear layers are linear1, output"):
        to.LoRA(targets="*.q_proj").add_to(to.models.MLP(8).build((4,), 3))
    with pytest.raises(UserError, match="matches no block"):
        to.models.Adapted(to.models.MLP(8), to.LoRA(targets="*"), checkpoint="layers.*").build((4,), 3)


class Counting(http.server.SimpleHTTPRequestHandler):
    asked: list[str]

    def log_message(self, *about: object) -> None:
        self.asked.append(self.path)


def test_the_base_is_fetched_once_by_its_hash_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_DATA", str(tmp_path / "data"))
    served, asked = tmp_path / "served", list[str]()
    served.mkdir()
    torch.manual_seed(5)
    base = to.models.MLP(8).build((1, 8, 8), 10)
    save_file(base.state_dict(), served / "base.safetensors")
    checksum = hashlib.sha256((served / "base.safetensors").read_bytes()).hexdigest()
    handler = type("Handler", (Counting,), {"asked": asked})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(served))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/base.safetensors"
        model = to.models.Adapted(to.models.MLP(8), to.LoRA(rank=2, targets="linear1"), address, checksum)
        trained = [to.run(experiment(model), tmp_path / name).weights() for name in ("one", "two")]
        other = to.models.Adapted(to.models.MLP(8), to.LoRA(rank=2, targets="linear1"), address, "0" * 64)
        with pytest.raises(UserError, match="damaged or changed"):
            to.run(experiment(other), tmp_path / "three")
        server.shutdown()
    assert asked == ["/base.safetensors"] * 2  # once for the two runs, once for the hash that is wrong
    for weights in trained:
        torch.testing.assert_close(weights["linear1.base_layer.weight"].float(), base.linear1.weight)
    kept = tmp_path / "data" / "models" / f"base-{checksum[:16]}.safetensors"
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="delete it, or give the right file"):
        to.run(experiment(model), tmp_path / "four")


def test_an_address_needs_a_hash() -> None:
    with pytest.raises(UserError, match="give its SHA-256 as checksum"):
        to.models.Adapted(nn.Linear(2, 2), weights="https://example.org/base.safetensors")


def test_resuming_with_another_base_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(1)
    files = []
    for i in range(2):
        files.append(tmp_path / f"base{i}.safetensors")
        save_file(to.models.MLP(8).build((1, 8, 8), 10).state_dict(), files[-1])
    path = tmp_path / "base.safetensors"
    path.write_bytes(files[0].read_bytes())
    model = to.models.Adapted(to.models.MLP(8), to.LoRA(rank=2, targets="linear1"), str(path))
    to.run(experiment(model), tmp_path / "run")
    path.write_bytes(files[1].read_bytes())
    with pytest.raises(UserError, match=r"has other initial values .*linear1\.base_layer\.weight"):
        to.run(experiment(model).but(rounds=3), tmp_path / "run", resume=True)
