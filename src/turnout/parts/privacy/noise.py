"""Noise as a stream: independent in each round, or correlated by a factorisation with O(bands) vectors of state.

A draw belongs to (key, round, name), so that a resumed run continues the same stream. It is made on the device of the
sum that it hides: only the server draws, so processes and clusters have no part in it. On a GPU it is drawn beside the
training of clients, in a CUDA stream of its own.

Shape letters: P numbers of a sum, J buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from turnout.machine.memory import to_device
from turnout.parts.privacy.factorisation import Factorisation
from turnout.rng import rng_seed
from turnout.types import State


def draw_noise(key: int, t: int, name: str, like: Tensor) -> Tensor:
    """Independent standard normal numbers of an address, on the device of `like` and in its shape."""
    generator = torch.Generator(like.device).manual_seed(rng_seed(key, "privacy", t, name))
    return torch.empty_like(like, memory_format=torch.contiguous_format).normal_(generator=generator)


def next_noise(
    factorisation: Factorisation, stream: State, like: Tensor, address: tuple[int, int, str]
) -> tuple[Tensor, State]:
    """Row t of C⁻¹ z at an address (key, t, name), and the stream after it. `stream`: {} before the first.

    Rounds since the last one without a release are passed over, because separation is counted in rounds.
    """
    key, t, name = address
    if factorisation.noise == "gaussian":
        return draw_noise(key, t, name, like), {}
    noise, stream = like, dict(stream)
    for s in range(stream.get("next", 0), t + 1):
        fresh = draw_noise(key, s, name, like).div_(factorisation.coefs[0])
        step = _next_buffered if factorisation.noise == "blt" else _next_banded
        noise = step(factorisation, stream, fresh, s)
        stream["next"] = s + 1
    return noise, stream


def _next_banded(factorisation: Factorisation, stream: State, fresh: Tensor, s: int) -> Tensor:
    """x_s = (z_s - Σ_i c_i x_{s-i}) / c_0, over the last bands - 1 rounds; each stays as one vector in its slot."""
    bands = len(factorisation.coefs) - 1
    for i in range(1, min(bands, s) + 1):
        earlier = stream[str((s - i) % bands)] = stream[str((s - i) % bands)].to(fresh)  # a checkpoint is read on a CPU
        fresh.sub_(earlier.view_as(fresh), alpha=factorisation.coefs[i] / factorisation.coefs[0])
    stream[str(s % bands)] = fresh
    return fresh


def _next_buffered(factorisation: Factorisation, stream: State, fresh: Tensor, s: int) -> Tensor:
    """x_s = z_s / c_0 - Σ_j s_j b_j, then b_j <- d_j b_j + x_s."""
    flat_P = fresh.view(-1)
    if "buffers" in stream:
        buffer_JP = stream["buffers"].to(fresh)
        decay_J, scale_J = _buffer_factors(factorisation, fresh.device, fresh.dtype)
        flat_P.sub_(scale_J @ buffer_JP)
        stream["buffers"] = torch.addcmul(flat_P, decay_J[:, None], buffer_JP)
    else:
        stream["buffers"] = flat_P.expand(len(factorisation.decay), -1).clone()
    return fresh


@contextmanager
def beside_training(device: torch.device) -> Iterator[None]:
    """Queue work on a GPU in the stream of noise, which does not wait for what is queued otherwise."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.stream(_noise_stream(device)):
        yield


def drawn(noise: Tensor) -> Tensor:
    """Noise that was drawn `beside_training`, for use in the current stream."""
    if noise.is_cuda:
        now = torch.cuda.current_stream(noise.device)
        now.wait_stream(_noise_stream(noise.device))
        noise.record_stream(now)  # or its memory could be used again before it is read
    return noise


@lru_cache(maxsize=8)
def _noise_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@lru_cache(maxsize=8)
def _buffer_factors(factorisation: Factorisation, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """d_j and s_j on a device, where they stay for all rounds."""
    exact_2J = torch.tensor([factorisation.decay, factorisation.scale], dtype=torch.float64)
    decay_J, scale_J = to_device(exact_2J, device, dtype)
    return decay_J, scale_J
