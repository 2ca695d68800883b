"""Every row of the table of docs/privacy.md: allowed, changed with a sentence, or refused with an alternative."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import turnout as to
from turnout.errors import UserError
from turnout.parts.substitution.base import Substitutes
from worlds import play, ready, world

COUNTS = [8, 12, 4, 16]
FRACTIONS = (1.0, 0.5, 0.0, 1.0)
STEPS = to.Local(to.SGD(lr=0.1), steps=4, batch_size=4)
PRIVATE = to.Private(clip=0.2, n0=4, delta=1e-3, noise_multiplier=1.0)
BANDED = to.Private(clip=0.2, n0=4, delta=1e-3, noise_multiplier=1.0, noise="banded", min_separation=2)


class ByLoss(to.selection.Selection):
    """Asks by the last losses."""

    def choose(self, members, t, seed, state=None):
        return members.ids()

    def observe(self, state, applied):
        return {"loss": applied.loss_R}


@dataclass(frozen=True)
class PublicTable(to.substitution.NoSubstitution):
    """The next client stands in, whatever was sent."""

    lends = True

    def lend(self, state, share_C, counts_C, updates):
        return Substitutes(torch.where(counts_C & ~counts_C.roll(1), share_C.roll(1), 0.0))


REFUSED = {
    "Stale": ({"substitution": to.substitution.Stale()}, "use Spread"),
    "Friends": ({"substitution": to.substitution.Friends()}, "use Spread, or .* public table"),
    "median": ({"aggregation": to.aggregation.CoordinateMedian()}, "use WeightedSum"),
    "trimmed mean": ({"aggregation": to.aggregation.TrimmedMean()}, "use WeightedSum"),
    "geometric median": ({"aggregation": to.aggregation.GeometricMedian()}, "use WeightedSum"),
    "Krum": ({"aggregation": to.aggregation.Krum()}, "use WeightedSum"),
    "multi-Krum": ({"aggregation": to.aggregation.MultiKrum()}, "use WeightedSum"),
    "nearest mixing": ({"aggregation": to.aggregation.NearestMixing()}, "use WeightedSum"),
    "NormClip by the median length": ({"aggregation": to.aggregation.NormClip()}, "use WeightedSum"),
    "CentredClip": ({"aggregation": to.aggregation.CentredClip(limit=1.0)}, "use WeightedSum"),
    "FedAMP": ({"mixing": to.mixing.FedAMP()}, "use terms.APFL or personal layers"),
    "decide": ({"membership": to.Membership(leave="decide")}, "use 'include' or 'exclude'"),
    "gate": ({"membership": to.Membership(gate=1.0)}, "use no gate"),
    "by loss": ({"selection": ByLoss()}, "use Everyone, Fraction or Count"),
    "two places": ({"selection": to.selection.MinSeparation(3)}, "set privacy.min_separation"),
    "shared personal layers": ({"personal": to.personal.Named("output.*"), "share_personal": True}, "stay at home"),
    "federated moments": ({"local": to.Local(to.Adam(0.01, moments="federated"), steps=4)}, "use 'local'"),
    "memory of a term": ({"terms": [to.terms.Elastic(memory=True)]}, "leave memory out"),
    "positions": ({"terms": [to.terms.Elastic(fisher_keep=0.1)]}, "no fisher_keep"),
    "FedNova of epochs": (
        {"weighting": to.weighting.FedNova(), "local": to.Local(to.SGD(0.1), epochs=2)}, "set local.steps, or ByWork",
    ),
    "VRL-SGD of epochs": ({"terms": [to.terms.VRLSGD()], "local": to.Local(to.SGD(0.1), epochs=2)}, "set local.steps"),
    "dropping beside SCAFFOLD": (
        {"terms": [to.terms.Scaffold()], "membership": to.Membership(drop=to.membership.DropInactive())},
        "leave drop out, or that term",
    ),
    "FedNova and correlated noise": ({"weighting": to.weighting.FedNova(), "privacy": BANDED}, "use ByWork"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_part_that_reveals_more_is_refused_with_an_alternative(name):
    parts, instead = REFUSED[name]
    without = {key: value for key, value in parts.items() if key != "privacy"}
    if name != "two places":
        world(COUNTS, **({"local": STEPS} | without))  # goes without privacy
    with pytest.raises(UserError, match=instead):
        world(COUNTS, **({"local": STEPS, "privacy": PRIVATE} | parts))


ALLOWED = {
    "FedAvg": {"weighting": to.weighting.FedAvg()},
    "scheme A": {"weighting": to.weighting.CompleteOnly()},
    "scheme B": {"weighting": to.weighting.ByShare()},
    "scheme C": {"weighting": to.weighting.ByWork()},
    "scheme C at the server": {"weighting": to.weighting.ByWork(), "scale_at": "server"},
    "FedNova": {"weighting": to.weighting.FedNova()},
    "include": {"membership": to.Membership(leave="include")},
    "drop": {"membership": to.Membership(drop=to.membership.DropInactive())},
    "spread": {"substitution": to.substitution.Spread()},
    "public table": {"substitution": PublicTable()},
    "8 bits": {"compression": to.compression.Quantise()},
    "ternary": {"compression": to.compression.SparseTernary(keep=0.2)},
    "top k": {"compression": to.compression.TopK(0.5)},
    "SCAFFOLD": {"terms": [to.terms.Scaffold()]},
    "FedGATE": {"terms": [to.terms.FedGATE()]},
    "VRL-SGD": {"terms": [to.terms.VRLSGD()]},
    "MimeLite": {"terms": [to.terms.MimeLite()]},
    "elastic": {"terms": [to.terms.Elastic(1e-3)]},
    "FedProx": {"terms": [to.terms.Proximal()]},
    "APFL": {"terms": [to.terms.APFL()]},
    "server Adam": {"server": to.server.ServerAdam()},
    "personal": {"personal": to.personal.Named("output.*")},
    "max_weight": {"max_weight": 0.5},
    "Adam": {"local": to.Local(to.Adam(0.01), steps=4, batch_size=4)},
    "adaptive clip": {"privacy": to.Private(0.2, n0=4, delta=1e-3, noise_multiplier=1.0, quantile=0.5, clip_noise=2.0)},
    "banded": {"privacy": BANDED},
}


@pytest.mark.parametrize("name", ALLOWED)
def test_an_allowed_part_runs_and_moves_the_model_by_the_noised_sum(name):
    parts = {"local": STEPS, "privacy": PRIVATE} | ALLOWED[name]
    experiment = world(COUNTS, *FRACTIONS, **parts).but(model=to.models.MLP(4))
    server, records = play(ready(experiment), 3)
    assert records[0].counted in (2, 3)
    assert bool(torch.isfinite(server.shared_P).all())
    assert records[0].extra["epsilon"] > 0


CHANGED = {
    "shares": ({}, "shares are uniform"),
    "NormClip": ({"aggregation": to.aggregation.NormClip(limit=1.0)}, "NormClip is left out"),
    "leaving": ({"terms": [to.terms.Scaffold()]}, "clients that leave stay in the objective"),
    "moments": ({"local": to.Local(to.Adam(0.01), steps=4)}, "moments of the local optimizer stay at home"),
    "scheme A": ({"weighting": to.weighting.CompleteOnly(), "privacy": BANDED}, "scheme A divides by n0"),
    "Adam": ({"server": to.server.ServerAdam(), "privacy": BANDED}, "less than its full gain"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_part_that_is_changed_says_so(name):
    parts, words = CHANGED[name]
    track = ready(world(COUNTS, **({"local": STEPS, "privacy": PRIVATE} | parts)))
    assert any(words in sentence for sentence in track.warnings)
    assert track.algorithm.shares.by == "uniform"
    assert track.algorithm.membership.surveyed == 0
    assert isinstance(track.algorithm.selection, to.selection.MinSeparation)


def test_without_privacy_nothing_is_said():
    assert not any("privacy" in sentence for sentence in ready(world(COUNTS)).warnings)


def test_stop_rules_by_private_metrics_are_marked():
    experiment = world(COUNTS, local=STEPS, privacy=PRIVATE).but(stop=to.Stop(target=0.9))
    assert any("stop.target" in sentence for sentence in ready(experiment).warnings)


def test_batch_norm_statistics_stay_at_home_or_are_refused():
    experiment = world(COUNTS, local=STEPS, privacy=PRIVATE).but(model=to.models.MLP(4, batch_norm=True))
    with pytest.raises(UserError, match=r"algorithm\.personal = batch-norm"):
        ready(experiment)
    play(ready(experiment.but(**{"algorithm.personal": to.personal.batch_norm})))


def test_single_updates_are_not_compared_in_hindsight():
    with pytest.raises(UserError, match=r"evaluate\.substitution"):
        ready(world(COUNTS, privacy=PRIVATE).but(evaluate=to.Evaluate(substitution=True)))


def test_nothing_shared_is_nothing_to_protect():
    with pytest.raises(UserError, match=r"algorithm\.privacy acts on shared parameters"):
        ready(world(COUNTS, privacy=PRIVATE, personal=to.personal.everything))
