"""The protocol of secure sums: pairwise masks that cancel, and secrets shared among neighbours for those who drop out.

    keys     each device sends fresh public keys                      the server draws who is whose neighbour
    shares   each shares two secrets among its neighbours, encrypted  the server passes the boxes on
    work     each sends its vector plus its own mask plus a mask for each neighbour, modulo 2^32
    reveal   each reveals one share of every neighbour: of its own mask where its vector arrived, of its pairwise
             masks where it did not. The server restores those secrets, removes the masks, and has the sum.

Never both secrets of one client are revealed, so no single vector can be unmasked. Devices that drop out at any stage
cost nothing but their own vector while enough neighbours remain; else the sum of that round is lost, and no update is
used. The server is trusted to follow the protocol; it may look at whatever it receives.

Keys are X25519, boxes ChaCha20-Poly1305, masks ChaCha20 (`cryptography`); secrets are shared by Shamir's scheme
(`pycryptodome`). Nothing of that is written here.

Shape letters: R replies, V entries of a vector that is summed, P shared parameters.
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from turnout.errors import UserError, optional
from turnout.parts.privacy.discrete import PrivateSum, Words
from turnout.parts.secure import SecureSum
from turnout.types import Message, Replies

KEY, SECRET, DIGEST = 32, 16, 32  # bytes of a public key, of a shared secret, of a digest
PUBLIC = 2 * KEY + DIGEST  # of what a client announces
SHARE = 2 + SECRET  # of one share: its index, and its value
BOX = 2 * SHARE + 16  # of an encrypted pair of shares


class SumLost(Exception):
    """Why the sum of a round cannot be had, or why a client does not continue."""


@lru_cache
def _library(module: str) -> Any:
    return optional(module, "a secure sum", "secure")


def _private_key(secret: bytes) -> Any:
    return _library("cryptography.hazmat.primitives.asymmetric.x25519").X25519PrivateKey.from_private_bytes(
        hashlib.blake2b(secret, digest_size=KEY, person=b"turnout-x25519").digest()
    )


def _public_key(secret: bytes) -> bytes:
    found: bytes = _private_key(secret).public_key().public_bytes_raw()
    return found


def _agreed(secret: bytes, public: bytes, purpose: str) -> bytes:
    """The key that two clients agree on for a purpose, from the secret of one and the public key of the other."""
    x25519 = _library("cryptography.hazmat.primitives.asymmetric.x25519")
    common = _private_key(secret).exchange(x25519.X25519PublicKey.from_public_bytes(public))
    hkdf, hashes = (_library(f"cryptography.hazmat.primitives.{name}") for name in ("kdf.hkdf", "hashes"))
    found: bytes = hkdf.HKDF(hashes.SHA256(), KEY, None, purpose.encode()).derive(common)
    return found


def _stream(key: bytes, dtype: torch.dtype) -> Words:
    """Draws entries that only holders of the key can tell from random ones, any number of times."""
    ciphers = _library("cryptography.hazmat.primitives.ciphers")
    stream = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    return lambda entries: torch.frombuffer(bytearray(stream.update(bytes(dtype.itemsize * entries))), dtype=dtype)


def _mask(key: bytes, entries: int) -> Tensor:
    return _stream(key, torch.int32)(entries)


def _own_mask(seed: bytes, entries: int) -> Tensor:
    return _mask(hashlib.blake2b(seed, digest_size=KEY, person=b"turnout-own-mask").digest(), entries)


def _pair_mask(secret: bytes, public: bytes, client: int, other: int, entries: int) -> Tensor:
    """What a client adds for a neighbour; the neighbour adds the opposite."""
    mask_V = _mask(_agreed(secret, public, "mask"), entries)
    return mask_V if client < other else -mask_V


def _shared(secret: bytes, threshold: int, parts: int) -> list[bytes]:
    split = _library("Crypto.Protocol.SecretSharing").Shamir.split(threshold, parts, secret)
    return [index.to_bytes(2, "big") + value for index, value in split]


def _restored(shares: Collection[bytes], threshold: int) -> bytes:
    pairs = [(int.from_bytes(share[:2], "big"), share[2:]) for share in shares]
    found: bytes = _library("Crypto.Protocol.SecretSharing").Shamir.combine(pairs[:threshold])
    return found


# -- a client's side


@dataclass
class SecureClient:
    """A client's side of one round. Its secrets never leave it but as shares, encrypted for one neighbour each.

    number       the client
    threshold    shares that restore a secret
    least        fewest clients of a sum
    mask_secret  of the key that pairwise masks come from
    box_secret   of the key that boxes are encrypted with
    seed         of its own mask
    neighbours   what each neighbour announced
    boxes        the encrypted shares it received, by neighbour
    stage        how far it is: "keys", "shares", "work" or "reveal". No stage is answered twice
    """

    number: int
    threshold: int = 0
    least: int = 2
    mask_secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET))
    box_secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET))
    seed: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET))
    neighbours: dict[int, bytes] = field(default_factory=dict)
    boxes: dict[int, bytes] = field(default_factory=dict)
    stage: str = "keys"

    def _enter(self, stage: str, after: str) -> None:
        """A second answer with the same secrets would let the server compare the two."""
        if self.stage != after:
            raise SumLost(f"the stage {stage!r} of a secure sum does not follow {self.stage!r}")
        self.stage = stage

    def announce(self) -> bytes:
        """Its public keys, and a digest of its seed."""
        seed = hashlib.sha256(self.seed).digest()
        return _public_key(self.mask_secret) + _public_key(self.box_secret) + seed

    def share(self, neighbours: Mapping[int, bytes], threshold: int) -> dict[int, bytes]:
        """An encrypted share of both secrets for each neighbour."""
        self._enter("shares", "keys")
        if self.number in neighbours or not 1 <= threshold <= len(neighbours):
            raise SumLost("a secure sum needs at least as many neighbours as its threshold")
        self.neighbours, self.threshold = dict(neighbours), threshold
        shares = (_shared(secret, threshold, len(neighbours)) for secret in (self.mask_secret, self.seed))
        aead = _library("cryptography.hazmat.primitives.ciphers.aead")
        return {
            other: aead.ChaCha20Poly1305(self._box_key(self.number, other)).encrypt(bytes(12), key + seed, None)
            for other, key, seed in zip(neighbours, *shares, strict=True)
        }

    def _box_key(self, sender: int, receiver: int) -> bytes:
        other = receiver if sender == self.number else sender
        public = self.neighbours[other][KEY : 2 * KEY]
        return _agreed(self.box_secret, public, f"box {sender} {receiver}")

    def mask(self, vector_V: Tensor, boxes: Mapping[int, bytes]) -> Tensor:
        """Its vector with all masks; `boxes` are from the neighbours that take part."""
        self._enter("work", "shares")
        if not boxes.keys() <= self.neighbours.keys() or len(boxes) < self.threshold:
            raise SumLost(f"{len(boxes)} neighbours take part in the secure sum, {self.threshold} are needed")
        self.boxes, entries = dict(boxes), len(vector_V)
        masked_V = vector_V + _own_mask(self.seed, entries)
        for other in boxes:
            masked_V += _pair_mask(self.mask_secret, self.neighbours[other][:KEY], self.number, other, entries)
        return masked_V

    def reveal(self, arrived: Collection[int], total: int) -> dict[int, bytes]:
        """A share of each neighbour: of the seed of those whose vectors `arrived`, of the mask secret of the others.

        `total` is the number of clients in the sum.
        """
        self._enter("reveal", "work")
        here = self.boxes.keys() & set(arrived)
        if total < self.least or len(here) < self.threshold:
            raise SumLost(f"the sum would have {total} clients, {len(here)} of them neighbours: too few to unmask")
        aead, found = _library("cryptography.hazmat.primitives.ciphers.aead"), dict[int, bytes]()
        for other, box in self.boxes.items():
            try:
                pair = aead.ChaCha20Poly1305(self._box_key(other, self.number)).decrypt(bytes(12), box, None)
            except Exception:  # a box that is not for this client, or damaged: others have a share too
                continue
            found[other] = pair[SHARE:] if other in here else pair[:SHARE]
        return found


# -- the server's side


class SecureServer:
    """The server's side of one round.

    rule     the settings
    clients  number of clients that were asked, which sets the step of the whole numbers
    """

    def __init__(self, rule: SecureSum, clients: int):
        self.rule, self.clients = rule, clients
        self.announced: dict[int, bytes] = {}
        self.neighbours: dict[int, list[int]] = {}
        self.boxes: dict[int, dict[int, bytes]] = {}  # by sender
        self.threshold = 0

    def announce(self, announced: Mapping[int, bytes]) -> None:
        """Draw who is whose neighbour: the next ones on a ring in random order."""
        if len(announced) < max(self.rule.least, 2):
            raise SumLost(f"{len(announced)} devices are there, and a secure sum needs {self.rule.least}")
        self.announced, ring = dict(announced), list(announced)
        random.SystemRandom().shuffle(ring)
        number, self.threshold = self.rule.neighbourhood(len(ring))
        whole = number == len(ring) - 1
        reach = range(1, len(ring)) if whole else [*range(1, number // 2 + 1), *range(-(number // 2), 0)]
        self.neighbours = {c: [ring[(i + d) % len(ring)] for d in reach] for i, c in enumerate(ring)}

    def keys_for(self, client: int) -> dict[int, bytes]:
        """What the neighbours of a client announced."""
        return {other: self.announced[other] for other in self.neighbours[client]}

    def boxes_for(self, client: int) -> dict[int, bytes]:
        """The boxes for a client, from neighbours that have shared their secrets."""
        senders = (other for other in self.neighbours[client] if other in self.boxes)
        return {other: self.boxes[other][client] for other in senders if client in self.boxes[other]}

    def total(self, masked: Mapping[int, Tensor], revealed: Mapping[int, Mapping[int, bytes]]) -> Tensor:
        """The sum of the vectors that arrived, from what clients revealed."""
        if len(masked) < self.rule.least:
            raise SumLost(f"the vectors of {len(masked)} devices arrived, and a secure sum needs {self.rule.least}")
        total_V = torch.stack(list(masked.values())).sum(0, dtype=torch.int32)
        entries = len(total_V)
        for client in self.boxes:
            if client in masked:
                seed = self._secret(client, revealed)
                if hashlib.sha256(seed).digest() != self.announced[client][2 * KEY :]:
                    raise SumLost(f"shares of client {client}'s mask were wrong")
                total_V -= _own_mask(seed, entries)
            elif neighbours := [c for c in self.neighbours[client] if c in masked and client in self.boxes_for(c)]:
                secret = self._secret(client, revealed)
                if _public_key(secret) != self.announced[client][:KEY]:
                    raise SumLost(f"shares of client {client}'s key were wrong")
                for other in neighbours:
                    public = self.announced[other][:KEY]
                    total_V += _pair_mask(secret, public, client, other, entries)
        return total_V

    def _secret(self, client: int, revealed: Mapping[int, Mapping[int, bytes]]) -> bytes:
        shares = [revealed[c][client] for c in self.neighbours[client] if client in revealed.get(c, {})]
        if len(shares) < self.threshold:
            raise SumLost(f"{len(shares)} devices that knew a secret of client {client} remain, {self.threshold} are "
                          "needed: too many have dropped out")  # fmt: skip
        return _restored(shares, self.threshold)


# -- updates as vectors, and back


def weights_of(by: str, examples_C: Tensor) -> Tensor:
    """What each client multiplies its vector with, at most 1: its sample count (`shares.by`), or the same for all."""
    if by == "uniform":
        return torch.ones(len(examples_C), dtype=torch.float64)
    return examples_C.double() / examples_C.max().clamp(min=1)


def vectors_of(rule: SecureSum, update_RP: Tensor, loss_R: Tensor, weight_R: Tensor) -> Tensor:
    """What is summed: weighted updates, and weighted losses as one more entry; of a private sum updates alone."""
    if isinstance(rule, PrivateSum):
        return update_RP
    row_RV = torch.cat([update_RP.to("cpu", torch.float64), loss_R.to("cpu", torch.float64)[:, None]], 1)
    return row_RV * weight_R[:, None]


def whole_numbers(rule: SecureSum, vector_RV: Tensor, clients: int, noise_keys: Sequence[bytes]) -> Tensor:
    """Vectors as whole numbers (int32, modulo 2^32); those of a private sum are clipped and noised, from a key each."""
    if not isinstance(rule, PrivateSum):
        return rule.encode(vector_RV, clients)
    entries = vector_RV.shape[1]
    try:
        rule.check(clients, entries)
    except UserError as why:
        raise SumLost(str(why)) from why
    whole_RV = rule.encode(vector_RV, clients)
    for whole_V, key in zip(whole_RV, noise_keys, strict=True):
        whole_V += rule.noise(entries, clients, _stream(key, torch.int64)).to(torch.int32)
    return whole_RV


def simulated_noise_key(seed: int, t: int, client: int) -> bytes:
    """The key of a simulated client's noise. Real devices draw theirs, and keep it nowhere."""
    return hashlib.blake2b(repr((seed, "privacy", t, client)).encode(), digest_size=KEY).digest()


def mean_replies(sum_V: Tensor, weight: float, replies: Replies, bytes_each: int, like_P: Tensor) -> Replies:
    """The replies of a secure sum as the server's parts see them: in place of each update, the mean of all; in place
    of losses theirs, or NaN of a private sum."""
    mean_V, rows = sum_V / weight, len(replies.client_R)
    mean_P, loss = mean_V[: len(like_P)], mean_V[-1] if len(mean_V) > len(like_P) else mean_V.new_tensor(torch.nan)
    bytes_R = torch.full((rows,), bytes_each)
    message = Message({"update": mean_P.to(like_P).expand(rows, -1)}, bytes_R)
    report = {"loss": loss.expand(rows).clone(), "bytes_up": bytes_R}
    return Replies(replies.client_R, message, report=replies.report | report)


def bytes_up(neighbours: int, entries: int) -> int:
    """Bytes that one client sends in all stages of a round."""
    return PUBLIC + neighbours * (BOX + SHARE) + 4 * entries


def sum_in_process(
    rule: SecureSum, client_C: Tensor, weight_C: Tensor, replies: Replies, noise_key: Callable[[int], bytes]
) -> tuple[Replies, int]:
    """A secure sum of simulated clients, all stages of it, and how many entries were cut to the limit; raises SumLost
    where too few replied.

    client_C, weight_C  the clients that were asked, and their weights
    replies             with plain updates; those that are not finite do not take part
    noise_key           the key of a client's noise, for a private sum
    """
    update_RP, asked = replies.message.tensors["update"], len(client_C)
    weight_R = weight_C[torch.searchsorted(client_C, replies.client_R)]
    row_F = replies.report["finite"].nonzero().squeeze(1)
    rows = {int(replies.client_R[i]): i for i in row_F.tolist()}
    vector_FV = vectors_of(rule, update_RP, replies.report["loss"], weight_R)[row_F]
    clients, server = {c: SecureClient(c, least=rule.least) for c in rows}, SecureServer(rule, asked)
    server.announce({c: client.announce() for c, client in clients.items()})
    for c, client in clients.items():
        server.boxes[c] = client.share(server.keys_for(c), server.threshold)
    whole_FV = dict(zip(rows, whole_numbers(rule, vector_FV, asked, [*map(noise_key, rows)]), strict=True))
    masked = {c: client.mask(whole_FV[c], server.boxes_for(c)) for c, client in clients.items()}
    total_V = server.total(masked, {c: client.reveal(masked, len(masked)) for c, client in clients.items()})
    each = bytes_up(len(server.neighbours[next(iter(rows))]), len(total_V))
    found = mean_replies(rule.decode(total_V, asked), float(weight_R[row_F].sum()), replies, each, update_RP[0])
    return found, rule.beyond(vector_FV)
