"""Adapters of many clients on one base: milliseconds a round and peak memory, beside one adapter on the same tokens.

    python benchmarks/finetuning.py [--size 126M] [--clients 16,64,256] [--peers] [--engines] [--rounds 4]

A round is 5 steps of 4 texts of 128 tokens a client, plain SGD, LoRA of rank 8 on queries and values. Everything on one
device, in turns, with the base in bfloat16 on a GPU and in float32 on a CPU; adapters and losses in float32.

central     one adapter in plain torch, 5 steps on the texts of all clients at once: what the tokens alone cost
turnout     a whole round of the library: train, weigh, sum, step
--engines   also other engines of the library, for up to 16 clients
--peers     two ways of other systems, re-enacted in plain torch with the same decoder: "one by one" (pfl: one base,
            users one after another, adapters swapped) and "base per client" (FlowerTune: every message builds the
            model and loads the base from a file); 8 clients each, scaled to the number of clients
--size      tiny (4 layers of 256, 64 tokens), 126M (12 layers of 768) or 1B (18 layers of 2,048)
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

import turnout as to
from turnout.running.tracks.prepare import prepare

STEPS, TEXTS, RANK, LR = 5, 4, 8, 1e-3


@dataclass(frozen=True)
class Size:
    """Layers, width, heads, tokens in the vocabulary, and of a text."""

    layers: int
    width: int
    heads: int
    words: int
    length: int


SIZES = {
    "dry": Size(2, 32, 2, 64, 8),
    "tiny": Size(4, 256, 4, 4096, 64),
    "126M": Size(12, 768, 12, 52_000, 128),
    "1B": Size(18, 2048, 16, 52_000, 128),
}


class Block(nn.Module):
    def __init__(self, size: Size):
        super().__init__()
        d = size.width
        self.heads, self.before, self.after = size.heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        q, k, v = (
            f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        h = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(h.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.after(x))))


class Decoder(nn.Module):
    """A plain decoder whose last layer is its embedding."""

    def __init__(self, size: Size):
        super().__init__()
        self.words, self.places = nn.Embedding(size.words, size.width), nn.Embedding(size.length, size.width)
        self.layers, self.last = nn.ModuleList(Block(size) for _ in range(size.layers)), nn.LayerNorm(size.width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places.weight[: x.shape[1]]
        for layer in self.layers:
            h = layer(h)
        return functional.linear(self.last(h), self.words.weight)


def next_token(scores: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)


class PlainLoRA(nn.Module):
    """As one writes it in plain torch: weights in float32, products in the type of the base."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base, made = base, {"device": base.weight.device, "dtype": torch.float32}
        self.A = nn.Parameter(torch.randn(RANK, base.in_features, **made) / math.sqrt(3 * base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, RANK, **made))

    def forward(self, x: Tensor) -> Tensor:
        change = functional.linear(functional.linear(x, self.A.to(x.dtype)), self.B.to(x.dtype))
        return self.base(x) + 2.0 * change


def with_adapters(base: Decoder) -> tuple[Decoder, list[nn.Parameter]]:
    base.requires_grad_(False)
    found = []
    for layer in base.layers:
        for name in ("q_proj", "v_proj"):
            adapter = PlainLoRA(getattr(layer, name))
            setattr(layer, name, adapter)
            found += [adapter.A, adapter.B]
    return base, found


def make_decoder(size: Size, device: str, dtype: torch.dtype) -> Decoder:
    torch.manual_seed(0)
    with torch.device(device):
        return Decoder(size).to(dtype)


def texts(size: Size, clients: int) -> Tensor:
    return torch.randint(
        0, size.words, (clients * STEPS * TEXTS, size.length + 1), generator=torch.Generator().manual_seed(1)
    )


def plain_steps(model: nn.Module, own: list[nn.Parameter], batches: list[Tensor]) -> None:
    """Plain SGD steps of one adapter; on a CPU with all cores, of which the library's threads each have one."""
    torch.set_num_threads(os.cpu_count() or 1)
    for ids in batches:
        loss = next_token(model(ids[:, :-1]).float(), ids[:, 1:]).mean()
        grads = torch.autograd.grad(loss, own)
        with torch.no_grad():
            torch._foreach_add_(own, grads, alpha=-LR)


def timed(one: Callable[[], object], rounds: int, device: str) -> dict[str, float]:
    """The median of milliseconds a round, and the most memory during one; the first rounds warm up."""
    cuda, took = device == "cuda", []
    for i in range(rounds + 2):
        if cuda and i == 2:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        one()
        if cuda:
            torch.cuda.synchronize()
        took.append((time.perf_counter() - start) * 1000)
    found = {"ms": statistics.median(took[2:])}
    return found | ({"GiB": torch.cuda.max_memory_allocated() / 2**30} if cuda else {})


def central(size: Size, clients: int, rounds: int, device: str, dtype: torch.dtype) -> dict[str, float]:
    model, own = with_adapters(make_decoder(size, device, dtype))
    ids = texts(size, clients).to(device)
    return timed(lambda: plain_steps(model, own, list(ids.chunk(STEPS))), rounds, device)


def turnout(size: Size, clients: int, rounds: int, device: str, engine: str = "auto") -> dict[str, float]:
    base = make_decoder(size, "cpu", torch.float32)
    ids = texts(size, clients)
    owner = torch.arange(clients).repeat_interleave(STEPS * TEXTS)
    data = to.data.Own(ids[:, :-1].clone(), ids[:, 1:].clone(), owner, (ids[:4, :-1], ids[:4, 1:]), test_share=0.0)
    lora = to.LoRA(rank=RANK, targets="*.q_proj|*.v_proj")
    rounded = {"base_precision": "bfloat16"} if device == "cuda" else {}
    experiment = to.Experiment(
        to.World(data, to.participation.Always()),
        to.models.Adapted(base, lora),
        to.Algorithm(to.Local(to.SGD(LR), steps=STEPS, batch_size=TEXTS)),
        task=to.tasks.Task(loss=next_token),
        runtime=to.runtime.InProcess(device=device, engine=engine, **rounded),
    )
    track = prepare(experiment)
    state, t = track.begin(), 0

    def one() -> None:
        nonlocal state, t
        state, _ = track.round(state, t)
        t += 1

    held = torch.cuda.memory_allocated() if device == "cuda" else 0
    torch.set_num_threads(1)
    found, about = timed(one, rounds, device), track.runtime.describe()
    adapter, memory = 4 * track.model.layout.width, track.memory()
    kept = {"kept MB a client": (torch.cuda.memory_allocated() - held) / clients / 1e6} if device == "cuda" else {}
    return found | kept | {
        "adapter MB": adapter / 1e6, "state a client": memory["cohort"] / clients / adapter,
        "estimated GiB": sum(memory.values()) / 2**30, "engine": about["engine"], "chunk": about["chunk"],
    }  # fmt: skip


def one_by_one(size: Size, rounds: int, device: str, dtype: torch.dtype) -> dict[str, float]:
    """pfl's way: users one after another on one model; the adapter is loaded before and read after each."""
    model, own = with_adapters(make_decoder(size, device, dtype))
    ids, first = texts(size, 8).to(device), [value.detach().clone() for value in own]

    def one() -> None:
        total = [torch.zeros_like(value) for value in own]
        for mine in ids.chunk(8):
            with torch.no_grad():
                torch._foreach_copy_(own, first)
            plain_steps(model, own, list(mine.chunk(STEPS)))
            with torch.no_grad():
                torch._foreach_add_(total, own, alpha=1 / 8)

    return timed(one, rounds, device)


def base_per_client(size: Size, rounds: int, device: str, dtype: torch.dtype) -> dict[str, float]:
    """FlowerTune's way: every client message builds the model, loads the base from its file and moves it."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "base.safetensors"
    save_file(make_decoder(size, "cpu", dtype).state_dict(), path)
    ids = texts(size, 8).to(device)

    def one() -> None:
        for mine in ids.chunk(8):
            with torch.device("meta"):
                model = Decoder(size)
            model.load_state_dict(load_file(path, device=device), assign=True)
            model, own = with_adapters(model)
            plain_steps(model, own, list(mine.chunk(STEPS)))

    with folder:
        return timed(one, rounds, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="126M", choices=SIZES)
    parser.add_argument("--clients", default="16,64,256")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--engines", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    size, device = SIZES[args.size], args.device
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    found: dict[str, dict[str, float]] = {}

    def note(name: str, row: dict[str, float]) -> None:
        found[name] = row
        print(name, json.dumps(row), flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(found, indent=1))

    for clients in map(int, args.clients.split(",")):
        limit = central(size, clients, args.rounds, device, dtype)
        note(f"{clients} central", limit)
        _forget()
        engines = ("auto", "vmap", "loop") if args.engines and clients <= 16 else ("auto",)
        for engine in engines:
            ours = turnout(size, clients, args.rounds, device, engine)
            ours |= {f"times central, {unit}": ours[unit] / limit[unit] for unit in limit}
            note(f"{clients} turnout {engine}", ours)
            _forget()
    for name, way in (("one by one", one_by_one), ("base per client", base_per_client)) if args.peers else ():
        row = way(size, args.rounds, device, dtype)
        for clients in map(int, args.clients.split(",")):
            ours = found[f"{clients} turnout auto"]["ms"]
            row |= {f"ms, {clients} clients": row["ms"] * clients / 8}
            row |= {f"times turnout, {clients} clients": row["ms"] * clients / 8 / ours}
        note(name, row)
        _forget()


def _forget() -> None:
    import gc

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
