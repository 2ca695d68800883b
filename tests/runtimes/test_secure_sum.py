"""The protocol of secure sums: dropouts at every stage, what is revealed, and what a sum costs."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Sequence

import pytest
import torch
from scipy.stats import hypergeom

import turnout as to
from turnout.parts.privacy.discrete import PrivateSum, discrete_gaussian
from turnout.parts.secure import HALF, LEAK, LOSS, SecureSum
from turnout.running.config.read import from_table, to_toml
from turnout.running.records.records import Records
from turnout.runtimes.secure_sum import SecureClient, SecureServer, SumLost, _stream, bytes_up, whole_numbers


def protocol(whole_CV: torch.Tensor, rule: SecureSum, gone: Sequence[set[int]] = ({}, {}, {}, {})):
    """All stages among clients in this process; clients vanish before keys, shares, work and reveal."""
    clients = {c: SecureClient(c, least=rule.least) for c in range(len(whole_CV))}
    server, here = SecureServer(rule, len(whole_CV)), set(clients) - set(gone[0])
    server.announce({c: clients[c].announce() for c in sorted(here)})
    here -= set(gone[1])
    server.boxes = {c: clients[c].share(server.keys_for(c), server.threshold) for c in sorted(here)}
    here -= set(gone[2])
    masked = {c: clients[c].mask(whole_CV[c], server.boxes_for(c)) for c in sorted(here)}
    here -= set(gone[3])
    revealed = {c: clients[c].reveal(masked, len(masked)) for c in sorted(here)}
    return server, masked, revealed


def vectors(clients: int, entries: int = 50) -> torch.Tensor:
    generator = torch.Generator().manual_seed(clients)
    return torch.randint(-(2**31), 2**31, (clients, entries), generator=generator, dtype=torch.int64).to(torch.int32)


@pytest.mark.parametrize("gone", [*itertools.product((set(), {0, 5}), (set(), {1}), (set(), {2, 7}), (set(), {3}))])
def test_the_sum_is_exact_when_clients_vanish_at_every_stage(gone):
    whole_CV = vectors(12)
    server, masked, revealed = protocol(whole_CV, SecureSum(dropout=0.5), gone)
    arrived = sorted(set(range(12)) - gone[0] - gone[1] - gone[2])
    assert sorted(masked) == arrived
    assert torch.equal(server.total(masked, revealed), whole_CV[arrived].sum(0, dtype=torch.int32))


def test_a_sparse_graph_gives_the_same_sum():
    rule, whole_CV = SecureSum(dropout=0.1, corrupt=0.02), vectors(40)
    server, masked, revealed = protocol(whole_CV, rule, (set(), {4}, {9, 30}, {11}))
    neighbours, _ = rule.neighbourhood(40)
    assert neighbours < 39
    assert {len(found) for found in server.neighbours.values()} == {neighbours}
    assert all(a in server.neighbours[b] for a, found in server.neighbours.items() for b in found)
    arrived = sorted(set(range(40)) - {4, 9, 30})
    assert torch.equal(server.total(masked, revealed), whole_CV[arrived].sum(0, dtype=torch.int32))


def test_too_few_shares_lose_the_sum():
    rule = SecureSum(dropout=0.3)
    server, masked, revealed = protocol(vectors(10), rule)
    few = dict(list(revealed.items())[: server.threshold - 1])
    with pytest.raises(SumLost, match="too many have dropped out"):
        server.total(masked, few)


def test_a_wrong_share_loses_the_sum_instead_of_spoiling_the_model():
    server, masked, revealed = protocol(vectors(6), SecureSum(dropout=0.0), ({}, {}, {}, {}))
    victim = next(iter(masked))
    for shares in revealed.values():
        if victim in shares:
            shares[victim] = shares[victim][:2] + bytes(16)
    with pytest.raises(SumLost, match="were wrong"):
        server.total(masked, revealed)


def test_a_client_never_reveals_both_secrets_nor_answers_twice():
    whole_CV, rule = vectors(6), SecureSum(dropout=0.3)
    clients = {c: SecureClient(c, least=3) for c in range(6)}
    server = SecureServer(rule, 6)
    server.announce({c: client.announce() for c, client in clients.items()})
    server.boxes = {c: client.share(server.keys_for(c), server.threshold) for c, client in clients.items()}
    masked = {c: client.mask(whole_CV[c], server.boxes_for(c)) for c, client in clients.items()}
    with pytest.raises(SumLost, match="does not follow"):  # another vector under the same masks
        clients[0].mask(whole_CV[1], server.boxes_for(0))
    with pytest.raises(SumLost, match="too few"):
        clients[1].reveal([], total=2)
    first = clients[2].reveal(masked, len(masked))
    assert all(len(share) == 18 for share in first.values())
    with pytest.raises(SumLost, match="does not follow"):
        clients[2].reveal(set(masked) - {0}, len(masked) - 1)


def test_boxes_are_for_their_receiver_alone():
    server, _, revealed = protocol(vectors(5), SecureSum(dropout=0.2))
    a, b, c = list(server.boxes)[:3]
    eavesdropper = SecureClient(c)
    eavesdropper.neighbours, eavesdropper.threshold, eavesdropper.stage = server.keys_for(c), 1, "work"
    eavesdropper.boxes = {a: server.boxes[a][b]}
    assert eavesdropper.reveal([a], total=5) == {}
    assert revealed[b]


NOISED = PrivateSum(least=6, dropout=0.5, corrupt=0.1, clip=0.8, multiplier=1.5)


@pytest.mark.parametrize(
    "gone", [({}, {}, {}, {}), ({0}, {}, {}, {}), ({}, {1}, {}, {}), ({}, {}, {2, 7}, {}), ({0}, {1}, {2}, {3})]
)
def test_noise_of_all_survivors_is_in_the_sum_wherever_clients_vanish(gone):
    """12 asked, one of which may be corrupt; clients that vanish after sending their vector are in the sum."""
    value_CV = torch.randn(12, 2000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    keys = [f"client {c}".encode().ljust(32, b".") for c in range(12)]
    server, masked, revealed = protocol(whole_numbers(NOISED, value_CV, 12, keys), NOISED, gone)
    arrived, tolerance = sorted(masked), 5 * (2 / 2000) ** 0.5
    noise_V = server.total(masked, revealed).long() - NOISED.encode(value_CV[arrived], 12).long().sum(0)
    own = {c: discrete_gaussian(NOISED.variance(12), 2000, _stream(keys[c], torch.int64)) for c in arrived}
    assert torch.equal(noise_V, sum(own.values()))
    assert float(noise_V.double().var()) == pytest.approx(len(arrived) * NOISED.variance(12), rel=tolerance)
    for corrupt in (arrived[0], arrived[-1]):  # its noise is known: that of the others must be enough
        variance = float((noise_V - own[corrupt]).double().var()) * NOISED.step(12) ** 2
        left = (len(arrived) - 1) / NOISED.honest(12) * (NOISED.multiplier * NOISED.clip) ** 2
        assert left >= (NOISED.multiplier * NOISED.clip) ** 2
        assert variance == pytest.approx(left, rel=tolerance)


def test_masked_vectors_look_random_and_differ_from_round_to_round():
    """No masked vector correlates with its own, even where all vectors are the same."""
    whole_CV = torch.arange(4000, dtype=torch.int32).expand(8, -1)
    first, second = (protocol(whole_CV, SecureSum())[1] for _ in range(2))
    for rows in (first, second):
        for masked_V in rows.values():
            both = torch.stack([masked_V.double(), whole_CV[0].double()])
            assert abs(float(torch.corrcoef(both)[0, 1])) < 5 / 4000**0.5
    assert not any(torch.equal(first[c], second[c]) for c in first)


@pytest.mark.parametrize("clients", [5, 20, 100, 400])
@pytest.mark.parametrize("dropout", [0.0, 0.2, 0.5])
def test_neighbourhoods_keep_their_promise(clients: int, dropout: float):
    """Against scipy's hypergeometric distribution; all clients are neighbours where fewer do not suffice."""
    rule = SecureSum(dropout=dropout, corrupt=0.1)
    neighbours, threshold = rule.neighbourhood(clients)
    gone, corrupt, others = int(dropout * clients), int(0.1 * clients), clients - 1
    if neighbours < others:
        assert clients * hypergeom.sf(neighbours - threshold, others, gone, neighbours) <= LOSS
        assert clients * hypergeom.sf(threshold - 1, others, corrupt, neighbours) <= LEAK
    else:
        assert neighbours - gone >= threshold > corrupt


def test_whole_numbers_neither_wrap_nor_lose_more_than_half_a_step():
    rule = SecureSum(limit=2.0)
    for clients in (1, 3, 100, 10_000):
        value_RV = torch.tensor([[2.0, -2.0, 5.0, 1e-3, 0.0]], dtype=torch.float64)
        whole_RV = rule.encode(value_RV, clients)
        assert int(whole_RV.abs().max()) * clients < HALF
        error_RV = rule.decode(whole_RV, clients) - value_RV.clamp(-2, 2)
        assert float(error_RV.abs().max()) <= rule.step(clients) / 2


def experiment(**algorithm) -> to.Experiment:
    return to.Experiment(
        world=to.World(
            to.data.Digits(clients=16, partition=to.partition.Dirichlet(0.5)), to.participation.Traces(first=5)
        ),
        model=to.models.MLP(8),
        algorithm=to.Algorithm(
            local=to.Local(to.SGD(0.1), epochs=3), membership=to.Membership(join="vanilla"), **algorithm
        ),
        rounds=3,
    )


@pytest.mark.parametrize("by", ["samples", "uniform"])
@pytest.mark.parametrize("weighting", [to.weighting.FedAvg(), to.weighting.ByWork(), to.weighting.CompleteOnly()])
def test_a_secure_run_ends_where_the_plain_one_does(tmp_path, by: str, weighting):
    """Absent and partial clients, unequal sizes; equal up to the step of the whole numbers."""
    parts = {"weighting": weighting, "shares": to.weighting.Shares(by=by)}
    plain = to.run(experiment(**parts), tmp_path / "plain", quiet=True)
    secure = to.run(experiment(secure=SecureSum(least=2), **parts), tmp_path / "secure", quiet=True)
    for a, b in zip(plain.model().parameters(), secure.model().parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5, rtol=0)
    losses = [run.final("train_loss") for run in (plain, secure)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_lost_sum_and_entries_beyond_the_limit_are_in_the_record(tmp_path):
    for name, rule in {"lost": SecureSum(least=16), "cut": SecureSum(limit=0.01)}.items():
        to.run(experiment(secure=rule, weighting=to.weighting.CompleteOnly()), tmp_path / name, quiet=True)
    with Records.read(tmp_path / "lost/records.sqlite") as records:
        assert any("the secure sum is lost" in str(why) for why in records.column("failed"))
    with Records.read(tmp_path / "cut/records.sqlite") as records:
        assert any(count > 0 for count in records.column("beyond_limit"))


def test_fewer_clients_than_a_sum_needs_are_refused(tmp_path):
    with pytest.raises(to.UserError, match=r"algorithm\.secure\.least = 17 is more than the 16 clients"):
        to.run(experiment(secure=SecureSum(least=17)), tmp_path / "few", quiet=True)


def test_bytes_of_a_round_are_those_of_all_stages(tmp_path):
    run = to.run(experiment(secure=True, weighting=to.weighting.ByWork()), tmp_path / "run", quiet=True)
    entries = sum(p.numel() for p in run.model().parameters()) + 1
    with Records.read(tmp_path / "run/records.sqlite") as records:
        counted, sent = records.column("counted").tolist(), records.column("bytes_up").tolist()
    assert sent == [n * bytes_up(n - 1, entries) for n in map(int, counted)]


REFUSED = {
    "compression": to.compression.Quantise(),
    "substitution": to.substitution.Friends(),
    "aggregation": to.aggregation.CoordinateMedian(),
    "terms": [to.terms.Scaffold()],
    "mixing": to.mixing.FedAMP(),
    "max_weight": 2.0,
    "scale_at": "server",
    "membership": to.Membership(),
}


@pytest.mark.parametrize("part", REFUSED)
def test_parts_that_need_single_updates_are_refused_by_name(part: str):
    settings = {"membership": to.Membership(join="vanilla"), part: REFUSED[part]}
    with pytest.raises(to.UserError, match=f"algorithm.{part} needs updates of single clients"):
        to.Algorithm(secure=True, **settings)


def test_statistics_and_metrics_of_single_clients_are_refused(tmp_path):
    with pytest.raises(to.UserError, match="personal = batch-norm"):
        to.run(experiment(secure=True).but(model=to.models.MLP(8, batch_norm=True)), tmp_path / "a", quiet=True)
    with pytest.raises(to.UserError, match=r"evaluate\.gradients"):
        to.run(experiment(secure=True).but(**{"evaluate.gradients": True}), tmp_path / "b", quiet=True)


@pytest.mark.parametrize("given", [True, {"least": 5, "limit": 4.0}])
def test_a_file_asks_for_it_with_a_word_or_a_table(given):
    found = from_table({"algorithm": {"secure": given, "membership": {"join": "vanilla"}}})
    assert found.algorithm.secure == (SecureSum() if given is True else SecureSum(**given))
    assert from_table(tomllib.loads(to_toml(found))) == found


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(to.UserError, match="below 1"):
        SecureSum(dropout=0.6, corrupt=0.4)
    with pytest.raises(to.UserError, match="could unmask the others"):
        SecureSum(dropout=0.6, corrupt=0.39).neighbourhood(10)
