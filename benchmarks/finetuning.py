"""Adapters of many clients on one base: milliseconds a round and peak memory, beside one adapter on the same tokens.

    python benchmarks/finetuning.py [--size 126M] [--clients 16,64,256] [--peers] [--engines] [--rounds 4]
    python benchmarks/finetuning.py --base-precision nf4 --optimizer adamw --inputs dict
    python benchmarks/finetuning.py --check --size tiny --clients 8 --optimizer adamw --inputs dict

A round is 5 steps of 4 texts of 128 tokens a client, plain SGD, LoRA of rank 8 on queries and values. Everything on one
device, in turns, with the base in bfloat16 on a GPU and in float32 on a CPU; adapters and losses in float32.

central     one adapter in plain torch, 5 steps on the texts of all clients at once: what the tokens alone cost
turnout     a whole round of the library: train, weigh, sum, step
--engines   also other engines of the library, for up to 16 clients
--peers     two ways of other systems, re-enacted in plain torch with the same decoder: "one by one" (pfl: one base,
            users one after another, adapters swapped) and "base per client" (FlowerTune: every message builds the
            model and loads the base from a file); 8 clients each, scaled to the number of clients
--size      tiny (4 layers of 256, 64 tokens), 126M (12 layers of 768) or 1B (18 layers of 2,048)
--base-precision   of turnout's base; central stays in bfloat16 (float32 on a CPU)
--optimizer sgd, adamw (moments averaged with the weights) or adamw-local (kept by each client); central is plain SGD
--inputs    tensor, or dict: texts of unequal length with an attention mask, for central as well
--check     only compare: adapters after two rounds on this device, and of the plain loop on the CPU in float64

"kept" is what tensors hold between rounds beyond what they held before the first, in adapters: a client's own state,
and one more copy of the server's. "added a client" is how much it grows from one number of clients to the next.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

import turnout as to
from turnout.running.tracks.prepare import prepare
from turnout.settings import BASE_PRECISIONS

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

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        h = self.before(x)
        q, k, v = (
            f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        h = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        x = x + self.o_proj(h.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.after(x))))


class Decoder(nn.Module):
    """A plain decoder whose last layer is its embedding."""

    def __init__(self, size: Size):
        super().__init__()
        self.words, self.places = nn.Embedding(size.words, size.width), nn.Embedding(size.length, size.width)
        self.layers, self.last = nn.ModuleList(Block(size) for _ in range(size.layers)), nn.LayerNorm(size.width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        h, mask, T = self.words(input_ids) + self.places.weight[: input_ids.shape[1]], None, input_ids.shape[1]
        if attention_mask is not None:
            places = torch.ones(T, T, dtype=torch.bool, device=h.device)
            mask = (attention_mask.bool()[:, None, None] & places.tril()) | places.diag().diag()
        for layer in self.layers:
            h = layer(h, mask)
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


def masked(ids: Tensor) -> Tensor:
    """Which tokens of a text are real, where texts have from half to all of the length."""
    least = ids.shape[1] // 2
    length = torch.randint(least, ids.shape[1] + 1, (len(ids),), generator=torch.Generator().manual_seed(2))
    return (torch.arange(ids.shape[1]) < length[:, None]).long()


def plain_steps(model: nn.Module, own: list[nn.Parameter], batches: list[Tensor], masks: Sequence[Tensor] = ()) -> None:
    """Plain SGD steps of one adapter; on a CPU with all cores, of which the library's threads each have one."""
    torch.set_num_threads(os.cpu_count() or 1)
    for i, ids in enumerate(batches):
        if masks:
            scores = model(ids, masks[i])[:, :-1].flatten(0, 1).float()
            target = torch.where(masks[i] == 1, ids, -100)[:, 1:].flatten()
            loss = functional.cross_entropy(scores, target, ignore_index=-100)
        else:
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


def central(size: Size, clients: int, rounds: int, device: str, dtype: torch.dtype, inputs: str) -> dict[str, float]:
    model, own = with_adapters(make_decoder(size, device, dtype))
    ids = texts(size, clients)
    masks = list(masked(ids)[:, :-1].to(device).chunk(STEPS)) if inputs == "dict" else []
    batches = list((ids[:, :-1] if masks else ids).to(device).chunk(STEPS))
    return timed(lambda: plain_steps(model, own, batches, masks), rounds, device)


OPTIMIZERS = {"sgd": to.SGD(LR), "adamw": to.AdamW(LR), "adamw-local": to.AdamW(LR, moments="local")}


def experiment_of(size: Size, clients: int, optimizer: str, inputs: str, **runtime: str) -> to.Experiment:
    base = make_decoder(size, "cpu", torch.float32)
    ids = texts(size, clients)
    owner = torch.arange(clients).repeat_interleave(STEPS * TEXTS)
    task: object = to.tasks.Task(loss=next_token)
    if inputs == "dict":
        ids, mask, task = ids[:, :-1], masked(ids)[:, :-1], to.tasks.NextToken()
        samples = {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask == 1, ids, -100)}
        data = to.data.Own(samples, owner=owner, classes=size.words, test_share=0.0)
    else:
        data = to.data.Own(ids[:, :-1].clone(), ids[:, 1:].clone(), owner, (ids[:4, :-1], ids[:4, 1:]), test_share=0.0)
    return to.Experiment(
        to.World(data, to.participation.Always()),
        to.models.Adapted(base, to.LoRA(rank=RANK, targets="*.q_proj|*.v_proj")),
        to.Algorithm(to.Local(OPTIMIZERS[optimizer], steps=STEPS, batch_size=TEXTS)),
        task=task,
        runtime=to.runtime.InProcess(**runtime),
    )


def kept_bytes(device: str) -> int:
    """Bytes of all tensors that are alive; on a GPU by its allocator."""
    gc.collect()
    if device == "cuda":
        return torch.cuda.memory_allocated()
    plain = (Tensor, nn.Parameter)  # a packed matrix consists of such
    alive = [value for value in gc.get_objects() if type(value) in plain]
    return sum({value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in alive}.values())


def turnout(size: Size, clients: int, rounds: int, optimizer: str, inputs: str, **runtime: str) -> dict[str, float]:
    device, track = runtime["device"], prepare(experiment_of(size, clients, optimizer, inputs, **runtime))
    state, t = track.begin(), 0

    def one() -> None:
        nonlocal state, t
        state, _ = track.round(state, t)
        t += 1

    held = kept_bytes(device)
    torch.set_num_threads(1)
    found, about = timed(one, rounds, device), track.runtime.describe()
    adapter, memory = 4 * track.model.layout.width, track.memory()
    return found | {
        "adapter MB": adapter / 1e6, "kept": (kept_bytes(device) - held) / adapter, "base GiB": memory["base"] / 2**30,
        "estimated GiB": sum(memory.values()) / 2**30, "engine": about["engine"], "chunk": about["chunk"],
    }  # fmt: skip


def check(size: Size, clients: int, optimizer: str, inputs: str, **runtime: str) -> dict[str, float]:
    """How far the adapter's change in two rounds is from that of the plain loop on the CPU in float64, of its length.

    With a rounded or packed base the loop has it too, so what differs is the order of sums.
    """
    changes = {}
    exact = {"precision": "float64"} if runtime["base_precision"] == "as-precision" else {}
    loop = {**runtime, "device": "cpu", "engine": "loop", **exact}
    ways = {"loop on the CPU": loop, "here": runtime} | ({"here in float64": {**runtime, **exact}} if exact else {})
    for name, way in ways.items():
        track = prepare(experiment_of(size, clients, optimizer, inputs, **way))
        state = track.begin()
        first = state.shared_P.cpu().double()
        for t in range(2):
            state, _ = track.round(state, t)
        changes[name] = state.shared_P.cpu().double() - first
    wanted = changes.pop("loop on the CPU")
    return {name: float((found - wanted).norm() / wanted.norm()) for name, found in changes.items()}


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
    parser.add_argument("--base-precision", choices=BASE_PRECISIONS)
    parser.add_argument("--optimizer", default="sgd", choices=OPTIMIZERS)
    parser.add_argument("--inputs", default="tensor", choices=("tensor", "dict"))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    size, device = SIZES[args.size], args.device
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    base_precision = args.base_precision or ("bfloat16" if device == "cuda" and not args.check else "as-precision")
    how = {"optimizer": args.optimizer, "inputs": args.inputs, "device": device, "base_precision": base_precision}
    found: dict[str, dict[str, float]] = {}

    def note(name: str, row: dict[str, float]) -> None:
        found[name] = row
        print(name, json.dumps(row), flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(found, indent=1))

    before: tuple[int, float] | None = None
    for clients in map(int, args.clients.split(",")):
        if args.check:
            note(f"{clients} apart", check(size, clients, **how))
            continue
        limit = central(size, clients, args.rounds, device, dtype, args.inputs)
        note(f"{clients} central", limit)
        _forget()
        engines = ("auto", "vmap", "loop") if args.engines and clients <= 16 else ("auto",)
        for engine in engines:
            ours = turnout(size, clients, args.rounds, **how, engine=engine)
            ours |= {f"times central, {unit}": ours[unit] / limit[unit] for unit in limit}
            if before is not None and engine == "auto":
                ours["added a client"] = (ours["kept"] - before[1]) / (clients - before[0])
            before = (clients, ours["kept"]) if engine == "auto" else before
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
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
