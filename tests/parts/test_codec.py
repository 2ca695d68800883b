"""Messages as bytes against loops written here (SPEC §3.2): what is picked, what it costs, what hostile bytes do."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from encoded import bytes_rows
from turnout.errors import UserError
from turnout.layout import Slot
from turnout.parts.compression.codec.byte import Byte, Dither, turned
from turnout.parts.compression.codec.messages import message_of, pieces_of
from turnout.parts.compression.codec.picks import largest, largest_with_torch
from turnout.parts.compression.codec.sparse import Ternary, Values
from turnout.rng import key

SIZES = (40, 7, 1, 12)
PHI = (1 + math.sqrt(5)) / 2


def slots_of(*sizes: int) -> tuple[Slot, ...]:
    return tuple(Slot(f"w{i}", (n,), sum(sizes[:i]), n) for i, n in enumerate(sizes))


SLOTS = slots_of(*SIZES)


def rows(seed: int, clients: int = 3, dtype: torch.dtype = torch.float64, width: int = 60) -> torch.Tensor:
    return torch.randn(clients, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def largest_by_hand(x: list[float], keep: float) -> list[int]:
    """Exactly k = max(⌈n q⌉, 1) of the largest |x|, ties by lowest index; what is 0 is not sent. Sorted."""
    k = max(math.ceil(round(len(x) * keep, 9)), 1)
    order = sorted(range(len(x)), key=lambda i: (-abs(x[i]), i))[:k]
    return sorted(i for i in order if x[i] != 0)


def st_by_hand(x: list[float], keep: float) -> list[float]:
    """ST(T; q) of SPEC §3.2: sign(T_i) μ on the picked, μ the mean over k; μ travels as float32."""
    k = max(math.ceil(round(len(x) * keep, 9)), 1)
    picked = largest_by_hand(x, keep)
    mu = struct.unpack("f", struct.pack("f", sum(abs(x[i]) for i in picked) / k))[0]
    return [math.copysign(mu, x[i]) if i in picked else 0.0 for i in range(len(x))]


def golomb(n: int, k: int) -> int:
    """b* = 1 + floor(log2(log(φ - 1) / log(1 - q))), at least 0."""
    if k == n:
        return 0
    return max(0, 1 + math.floor(math.log2(math.log(PHI - 1) / math.log(1 - k / n))))


def message_by_hand(x: list[float], sizes: tuple[int, ...], keep: float) -> bytes:
    """The format of codec/sparse.py written bit after bit, as a string."""
    flags = counts = signs = rests = quotients = ""
    floats = b""
    start = 0
    for n in sizes:
        own, start = x[start : start + n], start + n
        k = max(math.ceil(round(n * keep, 9)), 1)
        picked, b = largest_by_hand(own, keep), golomb(n, k)
        flags += "1" if len(picked) < k else "0"
        counts += format(len(picked), f"0{k.bit_length()}b") if len(picked) < k else ""
        before = -1
        for i in picked:
            gap, before = i - before - 1, i
            signs += "1" if own[i] < 0 else "0"
            rests += format(gap % 2**b, f"0{b}b") if b else ""
            quotients += "0" * (gap >> b) + "1"
        floats += struct.pack("<f", sum(abs(own[i]) for i in picked) / k)
    bits = flags + counts + signs + rests + quotients
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)) + floats


numbers = st.lists(
    st.one_of(st.integers(-3, 3).map(float), st.floats(-1e3, 1e3, width=32)), min_size=sum(SIZES), max_size=sum(SIZES)
)


@settings(max_examples=60, deadline=None)
@given(x=numbers, keep=st.sampled_from([0.02, 0.1, 0.25, 0.5, 0.9, 1.0]), whole=st.booleans())
def test_sparse_ternary_is_the_loop_to_the_last_bit(x, keep, whole):
    """Ties, zeros, tensors of one entry; picked entries, magnitudes and the bytes themselves."""
    sizes = (sum(SIZES),) if whole else SIZES
    x_CP, codec = torch.tensor([x], dtype=torch.float64), Ternary(keep, "model" if whole else "tensor")
    coded = codec.write(x_CP.clone(), SLOTS)
    decoded_P, start = codec.read(coded, SLOTS, torch.float64)[0], 0
    for n in sizes:
        expected = torch.tensor(st_by_hand(x[start : start + n], keep), dtype=torch.float64)
        torch.testing.assert_close(decoded_P[start : start + n], expected, rtol=2e-7, atol=1e-45)
        assert (decoded_P[start : start + n] != 0).sum() <= max(math.ceil(round(n * keep, 9)), 1)
        assert len(decoded_P[start : start + n].abs().unique()) <= 2  # {0, μ}
        start += n
    (message,) = bytes_rows(coded)
    by_hand = message_by_hand(x, sizes, keep)
    floats = 4 * len(sizes)
    assert message[:-floats] == by_hand[:-floats]
    assert struct.unpack(f"<{len(sizes)}f", message[-floats:]) == pytest.approx(
        struct.unpack(f"<{len(sizes)}f", by_hand[-floats:]), rel=2e-7
    )


def test_the_bits_are_counted_as_in_the_specification():
    """k positions, floor((g - 1) / 2^b) + 1 + b each, k signs, 32 bits a tensor; more is one flag a tensor."""
    x_CP, keep = rows(1, clients=5, width=1300), 0.03
    coded = Ternary(keep).write(x_CP.clone(), slots_of(1000, 300))
    for x, length in zip(x_CP.tolist(), coded.bytes_C.tolist(), strict=True):
        bits = 2
        for own, k in ((x[:1000], 30), (x[1000:], 9)):
            picked, b = largest_by_hand(own, keep), golomb(len(own), k)
            gaps = [i - j for i, j in zip(picked, [-1, *picked[:-1]], strict=True)]
            bits += sum((g - 1) // 2**b + 1 + b for g in gaps) + len(picked)
        assert length == math.ceil(bits / 8) + 2 * 4
        assert length < 1300 * 4 / 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("codec", [Ternary(0.1), Ternary(0.1, "model"), Values(0.2), Byte()], ids=str)
def test_message_and_residual_are_the_input_to_one_rounding(codec, dtype):
    """SPEC §8 item 7; exactly zero is sent where nothing was picked."""
    x_CP = rows(2, clients=4, dtype=dtype)
    x_CP[1] = 0
    x_CP[2, :40] = 0
    left_CP = x_CP.clone()
    coded = codec.write(left_CP, SLOTS)
    sent_CP = codec.read(coded, SLOTS, dtype)
    assert torch.equal(left_CP, x_CP - sent_CP)
    assert torch.equal(sent_CP[1], torch.zeros_like(sent_CP[1]))
    assert sent_CP.dtype == dtype
    torch.testing.assert_close(sent_CP + left_CP, x_CP, rtol=torch.finfo(dtype).eps, atol=0)
    if not isinstance(codec, Byte):
        untouched_CP = sent_CP == 0
        assert torch.equal(left_CP[untouched_CP], x_CP[untouched_CP])


@pytest.mark.parametrize("codec", [Ternary(0.1), Values(0.1), Byte()], ids=str)
def test_many_messages_at_once_are_each_by_itself(codec):
    x_CP = rows(3, clients=6, dtype=torch.float32)
    x_CP[4, 5:] = 0
    together = bytes_rows(codec.write(x_CP.clone(), SLOTS))
    assert together == [bytes_rows(codec.write(x_CP[i : i + 1].clone(), SLOTS))[0] for i in range(6)]
    again = message_of(together, codec.longest(SLOTS))
    torch.testing.assert_close(
        codec.read(again, SLOTS, torch.float32)[4], codec.read(message_of([together[4]], 999), SLOTS, torch.float32)[0]
    )


def test_values_arrive_as_they_were():
    x_CP = rows(4, dtype=torch.float32)
    sent_CP = Values(0.1).read(Values(0.1).write(x_CP.clone(), SLOTS), SLOTS, torch.float32)
    for x, sent in zip(x_CP.split(SIZES, 1)[0], sent_CP.split(SIZES, 1)[0], strict=True):
        assert sent.nonzero().squeeze(1).tolist() == largest_by_hand(x.tolist(), 0.1)
        assert torch.equal(sent[sent != 0], x[sent != 0])


def test_a_byte_an_entry_is_never_further_off_than_a_step():
    x_CP = rows(7)
    for dither in (None, Dither(key(0, "a"), torch.arange(3))):
        left_CP = x_CP.clone()
        coded = Byte(dither).write(left_CP, SLOTS)
        assert coded.bytes_C.tolist() == [4 * 4 + 60] * 3
        for x, left in zip(x_CP.split(SIZES, 1), left_CP.split(SIZES, 1), strict=True):
            step = x.abs().amax(1, keepdim=True) / 127
            assert (left.abs() <= step * (0.5 if dither is None else 1) + 1e-6).all()


def test_dither_is_the_sum_of_a_column_and_a_row_modulo_one():
    column_n, row_C1 = torch.tensor([0.25, 0.75, 0.5]), torch.tensor([[0.5], [0.125]])
    assert turned(column_n, row_C1).tolist() == [[0.75, 0.25, 0.0], [0.375, 0.875, 0.625]]


def test_stochastic_rounding_is_right_in_the_mean():
    """Over rounds, for each entry and for sums over clients; the largest of a tensor has no error at all."""
    x_CP, sent = rows(8, clients=3), []
    for t in range(400):
        dither = Dither(key(0, "a", t), torch.tensor([3, 1, 8]))
        sent.append(Byte(dither).read(Byte(dither).write(x_CP.clone(), SLOTS), SLOTS, torch.float64))
    errors = torch.stack(sent) - x_CP
    step = (x_CP.abs().amax(1, keepdim=True) / 127).max()
    assert (errors.mean(0).abs() < 5 * 0.5 * step / math.sqrt(400)).all()
    assert (errors.sum(1).mean(0).abs() < 5 * 0.5 * step * math.sqrt(3) / math.sqrt(400)).all()


CODECS = [Ternary(0.1), Ternary(0.5, "model"), Values(0.1), Byte()]


def read_or_refuse(codec, message: bytes) -> torch.Tensor | None:
    try:
        x_CP = codec.read(message_of([message], codec.longest(SLOTS)), SLOTS, torch.float32)
    except UserError:
        return None
    assert x_CP.shape == (1, sum(SIZES))
    assert torch.isfinite(x_CP).all()
    return x_CP


@settings(max_examples=150, deadline=None)
@given(codec=st.sampled_from(CODECS), message=st.binary(max_size=120))
def test_any_bytes_are_decoded_or_refused(codec, message):
    read_or_refuse(codec, message)


@settings(max_examples=150, deadline=None)
@given(
    codec=st.sampled_from(CODECS),
    seed=st.integers(0, 5),
    cut=st.integers(0, 80),
    flips=st.lists(st.integers(0, 700), max_size=4),
    more=st.binary(max_size=3),
)
def test_changed_messages_are_decoded_or_refused(codec, seed, cut, flips, more):
    """A bit here, a byte less there: refused, or numbers that could have been sent."""
    x_CP = rows(seed, clients=1, dtype=torch.float32)
    x_CP[:, : seed * 8] = 0
    (whole,) = bytes_rows(codec.write(x_CP.clone(), SLOTS))
    message = bytearray(whole[: max(0, len(whole) - cut)] + more)
    for flip in flips:
        if flip < 8 * len(message):
            message[flip // 8] ^= 1 << flip % 8
    got = read_or_refuse(codec, bytes(message))
    if bytes(message) == whole:
        assert got is not None
    if got is not None and not isinstance(codec, Byte):
        pieces = pieces_of(SLOTS, codec.keep, codec.scope)
        assert all((got[0, p.start : p.start + p.size] != 0).sum() <= p.keep for p in pieces)


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    keep=st.sampled_from([0.02, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 50),
    spread=st.sampled_from([1.0, 3.0, 1e30]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_largest_are_the_same_in_c_and_with_torch(sizes, keep, seed, spread, dtype):
    """With ties, zeros of both signs, rows inside a wider matrix."""
    g = torch.Generator().manual_seed(seed)
    x_CP = (torch.randn(3, sum(sizes) + 5, generator=g, dtype=dtype) * spread).mul_(torch.rand(1, generator=g))
    x_CP[1] = x_CP[1].sign() * (x_CP[1] / spread).abs().round()
    x_CP[2] *= -0.0
    x_CP[2, ::3] = 1.0
    pieces = pieces_of(slots_of(*sizes), keep, "tensor")
    found, expected = (pick(x_CP[:, : sum(sizes)], pieces) for pick in (largest, largest_with_torch))
    assert torch.equal(found.there_CK, expected.there_CK)
    assert torch.equal(found.column_CK[found.there_CK], expected.column_CK[expected.there_CK])


@pytest.mark.parametrize("step", [math.nan, math.inf, -1e-9, 1e37])
def test_a_step_that_cannot_be_sent_is_refused(step):
    """1e37 is a number, 127 times it is none in float32."""
    message = struct.pack("<4f", 0.5, step, 0.5, 0.5) + bytes(sum(SIZES))
    with pytest.raises(UserError, match="a step is too large or negative"):
        Byte().read(message_of([message], Byte().longest(SLOTS)), SLOTS, torch.float32)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_every_shorter_and_longer_message_is_refused(codec):
    (whole,) = bytes_rows(codec.write(rows(9, clients=1), SLOTS))
    for length in range(len(whole)):
        assert read_or_refuse(codec, whole[:length]) is None, length
    assert read_or_refuse(codec, whole + b"\0") is None
    with pytest.raises(UserError, match="message 1 cannot be decoded: it is longer"):
        message_of([whole, bytes(10**6)], codec.longest(SLOTS))


@pytest.mark.parametrize("codec", CODECS[:3], ids=str)
def test_no_message_is_longer_than_the_longest(codec):
    x_CP = torch.zeros(2, sum(SIZES))
    x_CP[0, -1], x_CP[1] = 1, torch.arange(60.0)  # one entry far behind; the largest ones last
    assert 0 <= codec.longest(SLOTS) - max(codec.write(x_CP, SLOTS).bytes_C.tolist()) <= 4  # not by much


def test_nothing_to_send():
    for codec in CODECS:
        coded = codec.write(torch.zeros(2, 0), ())
        assert bytes_rows(coded) == [b"", b""]
        assert codec.read(coded, (), torch.float32).shape == (2, 0)
        assert bytes_rows(codec.write(torch.zeros(0, 60), SLOTS)) == []
