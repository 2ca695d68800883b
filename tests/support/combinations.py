"""Whole algorithms at random: every part with every other, each drawn from the address (seed, what it is).

`combination(seed)` is one of them, on a tiny world. It may make no sense: then `wrong` is what its UserError must say,
which this file knows by itself (`NONSENSE`), from the settings alone.

A new part is one more option in `Draws`; a new rule about what cannot be combined is one more row of `NONSENSE`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

import turnout as to
from turnout.parts.terms.base import LocalTerm, PersonalModel, TermTraits, sends
from turnout.rng import key, rng
from turnout.world import participation

T = TypeVar("T")
ROUNDS = 5
COUNTS = (9, 12, 7, 2, 14, 6, 10)  # training and test samples of each client; client 3 is left with a batch of one
SILENT = 2  # the client that is never there, in half of the worlds
SICK = 4  # the client whose data is spoilt, where nonfinite = "absent"


@dataclass(frozen=True)
class Combination:
    """Settings by path, parts that may refuse their own settings as partials.

    `wrong` is what a UserError must say of them before the first round, None where they are fine.
    """

    seed: int
    settings: Settings

    @property
    def wrong(self) -> str | None:
        return next((says for is_so, says in NONSENSE if is_so(self.settings)), None)

    @property
    def sick(self) -> bool:
        return bool(self.settings["algorithm.nonfinite"] == "absent")

    def experiment(self) -> to.Experiment:
        """Raises a UserError for some that make no sense; `prepare` raises it for the others."""
        sections: dict[str, dict[str, Any]] = {}
        for path, value in self.settings.items():
            section, _, name = path.rpartition(".")
            sections.setdefault(section, {})[name] = value() if isinstance(value, functools.partial) else value
        return to.Experiment(
            world=to.World(**sections["world"]),
            model=sections[""]["model"],
            algorithm=to.Algorithm(**sections["algorithm"]),
            evaluate=to.Evaluate(**sections["evaluate"]),
            rounds=ROUNDS,
            seed=self.seed,
            runtime=to.runtime.InProcess(device="cpu", precision="float64", **sections["runtime"]),
        )

    def __str__(self) -> str:
        shown = ", ".join(f"{path} = {value!r}" for path, value in self.settings.items() if path != "world.data")
        again = f"COMBINATIONS={self.seed} pytest tests/system/test_combinations.py"
        return f"combination {self.seed}: {shown}\nagain: {again}"


def combination(seed: int) -> Combination:
    """The combination of a seed."""
    draws = Draws(seed)
    draws = PrivateDraws(seed) if draws.chance("private", 2) else draws
    found = {path: draw() for path, draw in draws.everything().items()}
    return Combination(seed, found)


Settings = dict[str, Any]


def _given(part: str, name: str) -> Callable[[Settings], Any]:
    return lambda s: s[f"algorithm.{part}"].keywords.get(name)


def has_norm(s: Settings) -> bool:
    return bool(getattr(s["model"], "batch_norm", False))


def _lends(s: Settings) -> bool:
    return bool(s["algorithm.substitution"].func.lends)


def _norm_at_home(s: Settings) -> bool:
    return s["algorithm.personal"] in (to.personal.batch_norm, to.personal.everything)


def _nothing_shared(s: Settings) -> bool:
    only_head = isinstance(s["model"], to.models.Logistic) and s["algorithm.personal"] is not None
    return only_head or s["algorithm.personal"] is to.personal.everything


def _in_parts(s: Settings) -> bool:
    """Whether clients may finish a part of the work."""
    found = s["world.participation"]
    found = found.inner if isinstance(found, Silent) else found
    return isinstance(getattr(found, "when_up", None) or found, to.participation.Traces | to.participation.Homogeneous)


def _candidates_by_distance(s: Settings) -> bool:
    candidates, similarity = (_given("substitution", name)(s) for name in ("candidates", "similarity"))
    return candidates is not None and similarity == "distance"


def _gate_without_survey(s: Settings) -> bool:
    return _given("membership", "gate")(s) is not None and not _given("membership", "surveyed")(s)


def _unseen_average(s: Settings) -> bool:
    return s["evaluate.activations"] and _norm_at_home(s) and s["algorithm.newcomers"] != "average"


def _nothing_to_calibrate(s: Settings) -> bool:
    return s["algorithm.newcomers"] == "calibrated" and not (_norm_at_home(s) and has_norm(s))


def _path_under_adam(s: Settings) -> bool:
    adam = isinstance(s["algorithm.local"].optimizer, to.Adam)
    return adam and any(
        term in (to.terms.Scaffold(2), to.terms.FedGATE(), to.terms.VRLSGD()) for term in s["algorithm.terms"]
    )


def _acts_on_shared(s: Settings) -> bool:
    others = (
        s["algorithm.terms"] or s["algorithm.compression"] != to.compression.Dense() or s["algorithm.mixing"].personal
    )
    return _lends(s) or bool(others) or s["algorithm.privacy"] is not None


def _robust(s: Settings) -> bool:
    return s["algorithm.aggregation"] not in (to.aggregation.WeightedSum(), to.aggregation.ProductMean())


def _elastic(s: Settings, setting: str) -> bool:
    return any(isinstance(term, to.terms.Elastic) and getattr(term, setting) for term in s["algorithm.terms"])


def sends_beside(terms: tuple[Any, ...]) -> bool:
    return any(sends(term) or isinstance(term, PersonalModel) for term in terms)


def _late_and_together(s: Settings) -> bool:
    """Late replies are used, and something needs those of one round together."""
    together = _lends(s) or s["algorithm.mixing"].personal or sends_beside(s["algorithm.terms"])
    return s["algorithm.closing"].uses_late and together


def _median_of_zeros(s: Settings) -> bool:
    by_parameter = isinstance(s["algorithm.aggregation"], to.aggregation.CoordinateMedian | to.aggregation.TrimmedMean)
    return by_parameter and isinstance(s["algorithm.compression"], to.compression.TopK)


def _half_a_product(s: Settings) -> bool:
    halves = s["algorithm.personal"] in (to.personal.lora_b, to.personal.everything) or s["model"] is FROZEN_A
    return halves and s["algorithm.aggregation"] == to.aggregation.ProductMean()


def _federated_moments(s: Settings) -> bool:
    return getattr(s["algorithm.local"].optimizer, "moments", "") == "federated"


def _private(is_so: Callable[[Settings], Any]) -> Callable[[Settings], Any]:
    return lambda s: s["algorithm.privacy"] is not None and is_so(s)


def _correlated(s: Settings) -> bool:
    return bool(s["algorithm.privacy"].keywords["noise"] != "gaussian")


def _unclipped(s: Settings) -> bool:
    return s["algorithm.aggregation"] not in (to.aggregation.WeightedSum(), to.aggregation.NormClip(0.1))


def _by_steps(s: Settings) -> bool:
    told = (to.terms.FedGATE(), to.terms.VRLSGD())
    return s["algorithm.local"].steps is None and any(term in told for term in s["algorithm.terms"])


def _leaving_is_a_message(s: Settings) -> bool:
    sent = any(isinstance(term, to.terms.Scaffold | to.terms.VRLSGD) for term in s["algorithm.terms"])
    return sent and _given("membership", "drop")(s) is not None


def _gated(s: Settings) -> bool:
    return _given("membership", "leave")(s) == "decide" or _given("membership", "gate")(s) is not None


# What makes no sense, and what its UserError says to do instead, in the order in which it is found: parts, the
# algorithm, then all of it against the work and the model.
NONSENSE: tuple[tuple[Callable[[Settings], Any], str], ...] = (
    (_private(lambda s: _correlated(s) and s["algorithm.privacy"].keywords["quantile"]), "leave quantile out"),
    (_candidates_by_distance, "use similarity = 'cosine', or no candidates"),
    (_gate_without_survey, "set membership.surveyed above 0"),
    (lambda s: s["algorithm.share_personal"] and s["algorithm.personal"] is None, "set both, or neither"),
    (
        lambda s: s["algorithm.newcomers"] == "average" and not s["algorithm.share_personal"],
        "needs something to average: set algorithm.share_personal",
    ),
    (lambda s: s["algorithm.mixing"].personal and _lends(s), "leave it out with FedAMP"),
    (lambda s: _given("membership", "stand_in")(s) and not _lends(s), "set algorithm.substitution"),
    (
        lambda s: (
            s["algorithm.aggregation"] != to.aggregation.WeightedSum()
            and s["algorithm.substitution"].func is to.substitution.Stale
        ),
        "use Friends or Spread",
    ),
    (lambda s: _robust(s) and s["algorithm.mixing"].personal, "leave one of them out"),
    (lambda s: _robust(s) and _elastic(s, "fisher_keep"), "leave fisher_keep out"),
    (lambda s: _robust(s) and _elastic(s, "memory"), "leave memory out"),
    (_median_of_zeros, "hardly anything would be learned"),
    (_path_under_adam, "use SGD, or Scaffold(option=1), which measures gradients"),
    (_late_and_together, "uses late replies, "),
    (_private(lambda s: s["algorithm.substitution"].func is to.substitution.Stale), "rounds it took no part in; use"),
    (_private(lambda s: s["algorithm.substitution"].func is to.substitution.Friends), "use Spread, or a substitution"),
    (_private(_unclipped), "use WeightedSum"),
    (_private(lambda s: s["algorithm.mixing"].personal), "use terms.APFL or personal layers"),
    (_private(_gated), "losses or gradients that are not noised; use"),
    (_private(lambda s: s["algorithm.share_personal"]), "leave it out, so that they stay at home"),
    (_private(_federated_moments), "use 'local'"),
    (_private(lambda s: _elastic(s, "memory")), "leave memory out"),
    (_private(lambda s: _elastic(s, "fisher_keep")), "no fisher_keep"),
    (_private(_by_steps), "set local.steps"),
    (_private(_leaving_is_a_message), "leave drop out, or that term"),
    (
        _private(lambda s: s["algorithm.weighting"] == to.weighting.FedNova() and s["algorithm.local"].steps is None),
        "set local.steps, or ByWork",
    ),
    (_private(lambda s: s["algorithm.weighting"] == to.weighting.FedNova() and _correlated(s)), "use ByWork, or noise"),
    (
        _private(lambda s: s["algorithm.privacy"].keywords["min_separation"] > ROUNDS),
        "set most = 1 instead, or a separation",
    ),
    (lambda s: _in_parts(s) and s["algorithm.local"].full_work == 1, "Ask for at least 2"),
    (lambda s: s["algorithm.personal"] is to.personal.batch_norm and not has_norm(s), "keeps nothing at the client"),
    (_nothing_to_calibrate, "set algorithm.personal = batch-norm on a model with BatchNorm"),
    (lambda s: s["evaluate.activations"] and not has_norm(s), "looks at BatchNorm layers, and this model has none"),
    (_unseen_average, "set algorithm.share_personal and algorithm.newcomers = 'average'"),
    (_private(lambda s: has_norm(s) and not _norm_at_home(s)), "set algorithm.personal = batch-norm, so that"),
    (_private(lambda s: s["evaluate.substitution"]), "which a private run does not keep: leave it out"),
    (_half_a_product, "and there is no such pair"),
    (lambda s: _nothing_shared(s) and _federated_moments(s), "nothing is shared: use 'local' or 'auto'"),
    (lambda s: _nothing_shared(s) and _acts_on_shared(s), "so nothing is shared: leave algorithm."),
    (lambda s: s["algorithm.closing"] != to.closing.WaitForAll() and s["world.devices"] is None, "set world.devices"),
)


@dataclass(frozen=True)
class Silent:
    """The same participation, but one client is never there."""

    inner: participation.Participation

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None = None) -> Tensor:
        return torch.where(client_C == SILENT, 0.0, self.inner.fraction(client_C, t, full_work, seed, groups))


@dataclass(frozen=True)
class Tally(LocalTerm, TermTraits):
    """A term with state everywhere: it pulls towards the mean of where clients began, and counts their steps."""

    name: str = "tally"
    sends: ClassVar[float] = 1

    def server_state(self, initial_P: Tensor) -> dict[str, Tensor]:
        return {"mean": initial_P.clone()}

    def client_state(self, initial_P: Tensor) -> dict[str, Tensor]:
        return {"steps": torch.zeros(1), "last": torch.zeros_like(initial_P)}

    def transform_grad(
        self, grad_cP: Tensor, at: Any, server_state: dict[str, Tensor], client_state: dict[str, Tensor]
    ) -> Tensor:
        client_state["steps"] = client_state["steps"] + 1
        return grad_cP + 0.05 * (at.x_cP - server_state["mean"]) + 0.02 * client_state["last"]

    def finish(self, at: Any, server_state: dict[str, Tensor], client_state: dict[str, Tensor]) -> tuple[Any, Any]:
        return {"end": at.x_cP.clone()}, {"steps": client_state["steps"], "last": at.x_cP - at.start_cP}

    def server_update(
        self, server_state: dict[str, Tensor], upload: dict[str, Tensor], applied: Any
    ) -> tuple[Any, Any]:
        return {"mean": upload["end"].mean(0)}, {"tallied": float(len(upload["end"]))}


@functools.cache
def samples(features: tuple[int, ...], seed: int) -> to.data.Own:
    """Clients of unequal sizes, mixed signs, each with labels of its own liking and test samples of its own."""
    generator = rng(seed, "samples")
    owner = torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))
    x = torch.randn(len(owner), *features, generator=generator) + 0.3 * owner.view(-1, *[1] * len(features))
    y = (torch.rand(len(owner), generator=generator) * 3 + owner).long() % 3
    test = torch.randn(20, *features, generator=generator), torch.randint(0, 3, (20,), generator=generator)
    return to.data.Own(x, y, owner, test=test if seed % 2 else None, test_share=0.3)


class WithDropout:
    """Layers that a predicate can name, and Dropout between them."""

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, classes))

    def __repr__(self) -> str:
        return "WithDropout()"


MODELS = {
    "logistic": to.models.Logistic(),
    "mlp": to.models.MLP(4),
    "norm": to.models.MLP(4, batch_norm=True),
    "two norms": to.models.MLP(4, 3, batch_norm=True),
    "convolution": to.models.CNN(channels=(2,), kernel=2, hidden=(4,), batch_norm=True),
    "dropout": WithDropout(),
    "adapter": to.models.Adapted(to.models.MLP(4), to.LoRA(rank=2, targets="linear*", train="output.*")),
    "ranks": to.models.Adapted(to.models.MLP(4), to.LoRA(rank=3, targets="*", ranks=(1, 3, 2))),
}


FROZEN_A = to.models.Adapted(
    to.models.MLP(4), to.LoRA(rank=2, targets="linear*", train="output.*", frozen_a=True, dropout=0.2)
)


class Draws:
    """One draw for every setting; each is addressed, so a new option elsewhere does not change it."""

    def __init__(self, seed: int):
        self.seed = seed

    def one(self, what: str, *options: T) -> T:
        return options[key(self.seed, "combination", what) % len(options)]

    def chance(self, what: str, of_ten: int) -> bool:
        return key(self.seed, "combination", what) % 10 < of_ten

    def rarely(self, what: str) -> bool:
        """For what makes no sense: seldom enough that most combinations do."""
        return key(self.seed, "combination", what) % 50 == 0

    def everything(self) -> dict[str, Callable[[], Any]]:
        return {
            "model": lambda: FROZEN_A if self.frozen_a() else MODELS[self.model()],
            "world.data": self.data,
            "world.participation": self.participation,
            "world.events": self.events,
            "world.devices": self.devices,
            "world.attack": self.attack,
            "world.attackers": lambda: self.one("attackers", (1, SICK, 6), 0.3) if self.attack() else 0.0,
            "algorithm.closing": self.closing,
            "algorithm.local": self.local,
            "algorithm.terms": self.terms,
            "algorithm.personal": self.personal,
            "algorithm.share_personal": lambda: self.shares_personal() or self.rarely("share personal alone"),
            "algorithm.newcomers": self.newcomers,
            "algorithm.mixing": self.mixing,
            "algorithm.compression": self.compression,
            "algorithm.substitution": self.substitution,
            "algorithm.weighting": self.weighting,
            "algorithm.shares": lambda: to.weighting.Shares(
                self.one("by", "samples", "uniform"), self.one("over", "normalised", "normalised", "unbiased")
            ),
            "algorithm.aggregation": self.aggregation,
            "algorithm.server": self.server,
            "algorithm.selection": self.selection,
            "algorithm.membership": self.membership,
            "algorithm.scale_at": lambda: self.one("scale at", "client", "client", "server"),
            "algorithm.max_weight": lambda: self.one("cap", None, None, None, None, 0.3),
            "algorithm.privacy": self.privacy,
            "algorithm.nonfinite": lambda: self.one("nonfinite", "stop", "stop", "stop", "absent"),
            "evaluate.every": lambda: self.one("every", 1, 2),
            "evaluate.per_client": lambda: self.chance("per client", 3),
            "evaluate.substitution": self.hindsight,
            "evaluate.recovery": lambda: self.chance("recovery", 2),
            "evaluate.gradients": lambda: self.chance("gradients", 2),
            "evaluate.activations": self.activations,
            "runtime.engine": lambda: self.one("engine", *["auto"] * 5, "vmap"),
            "runtime.threads": lambda: self.one("threads", 1, 1, 2),
            "runtime.chunk": lambda: self.one("chunk", None, None, 1, 2),
        }

    def privacy(self) -> Any:
        return None

    def hindsight(self) -> bool:
        return self.chance("hindsight", 3)

    def model(self) -> str:
        return self.one("model", *MODELS, "norm")

    def frozen_a(self) -> bool:
        return self.model() == "adapter" and self.chance("frozen A", 4)

    def data(self) -> to.data.Own:
        return samples((1, 5, 5) if self.model() == "convolution" else (5,), self.one("samples", 0, 1))

    def participation(self) -> participation.Participation:
        found = self.one(
            "participation",
            to.participation.Always(),
            to.participation.Traces(first=8),
            to.participation.Dropout(0.4),
            to.participation.Dropout(0.3, full_first_round=True, when_up=to.participation.Traces(first=5)),
            to.participation.Stratified(0.5, when_up=to.participation.Homogeneous()),
            to.participation.OnOff(2.0, 2.0),
            to.participation.OnOff(3.0, 1.0, when_up=to.participation.Traces(first=3)),
        )
        return Silent(found) if self.chance("silent", 5) else found

    def events(self) -> tuple[Any, ...]:
        return self.one(
            "events",
            (),
            (),
            (to.Join(6, 1), to.Leave(0, 2)),
            (to.Leave(1, 1), to.Join(1, 3), to.Leave(SILENT, 2)),
            (to.Join(5, 2), to.Join(6, 2), to.Leave(5, 4)),
            (to.events.RandomEvents(joins=0.5, leaves=0.5, returns=0.5, waiting=2),),
        )

    def attack(self) -> tuple[Any, ...]:
        """What is sent instead of an update, with or without a look at the others', and what is claimed."""
        sent = (to.attacks.SignFlip(), to.attacks.Noise(1.0), to.attacks.ALIE(), to.attacks.InnerProduct())
        claimed = (to.attacks.FreeRider(), to.attacks.ClaimWork(), to.attacks.ClaimExamples(3.0))
        return (self.one("attack", *sent, *claimed),) if self.chance("attacked", 2) else ()

    def devices(self) -> Any:
        """Time hangs on how long messages are, and with BatchNorm and compression that hangs on rounding."""
        norm = "norm" in self.model() or self.model() == "convolution"
        if not self.chance("timed", 3) or (norm and not isinstance(self.compression(), to.compression.Dense)):
            return None
        alike = to.devices.Alike(samples_per_second=10.0, latency=0.1)
        spread = to.devices.SpreadDevices(samples_per_second=10.0, compute_spread=1.0, noise=0.2)
        return self.one("devices", alike, spread, spread, to.devices.Tiers())

    def closing(self) -> Any:
        if self.devices() is None and not self.rarely("closing alone"):
            return to.closing.WaitForAll()
        together = self.substitution().func.lends or self.mixing().personal or sends_beside(self.terms())
        late = "discard" if together and not self.rarely("late together") else self.one("late", "use", "discard")
        closings = (
            to.closing.Deadline(seconds=2.0),
            to.closing.Deadline(seconds=2.0, partial=False, late=late),
            to.closing.FirstReplies(share=0.6, late=late),
            to.closing.FirstReplies(count=2, seconds=3.0, late=late),
        )
        buffered = (to.closing.Buffered(size=2), to.closing.Buffered(size=1, concurrency=3)) if late == "use" else ()
        return self.one("closing", to.closing.WaitForAll(), to.closing.WaitForAll(), *closings, *buffered)

    def local(self) -> to.Local:
        work = self.one(
            "work", {"epochs": 2}, {"epochs": 3}, {"steps": 4}, {"steps": 5}, {"epochs": 2}, {"steps": 3}, {"epochs": 1}
        )
        schedule = self.one(
            "schedule",
            to.schedules.Constant(),
            to.schedules.Constant(),
            to.InverseClock(),
            to.schedules.TheoryRate(1.0, 2.0, 4.0, 400.0),
        )
        return to.Local(self.optimizer(), **work, batch_size=4, schedule=schedule)

    def optimizer(self) -> Any:
        # eps and tau: below BatchNorm a bias has no gradient but rounding, and a small number would make steps of it
        moments = self.one("moments", "auto", "federated", "local", "fresh")
        adam = to.Adam(lr=0.02, eps=1e-2, moments=moments, count=self.one("count", "carry", "reset", "none"))
        adamw = to.AdamW(lr=0.02, eps=1e-2, moments=moments, weight_decay=0.1)
        sgd, decay = to.SGD(lr=0.1), to.SGD(0.1, weight_decay=0.1)
        return self.one("optimizer", sgd, sgd, to.SGD(lr=0.05, momentum=0.5), decay, adam, adamw)

    def terms(self) -> tuple[Any, ...]:
        found = ((to.terms.Proximal(0.3), 3), (self.elastic(), 3), (Tally(), 1), (to.terms.APFL(), 1))
        listed = [term for term, of_ten in found if self.chance(term.name, of_ten)]
        if self.chance("variates", 3):
            listed.append(self.variate())
        return tuple(listed)

    def variate(self) -> Any:
        """A correction by what a client remembers; most need SGD."""
        measured, requires_plain_sgd = (
            (to.terms.Scaffold(1), to.terms.MimeLite(0.5)),
            (to.terms.Scaffold(2), to.terms.FedGATE(), to.terms.VRLSGD()),
        )
        sgd = isinstance(self.optimizer(), to.SGD) or self.chance("variates with Adam", 1)
        return self.one("variate", *measured, *(requires_plain_sgd if sgd else ()))

    def elastic(self) -> Any:
        step = self.one("elastic step", {}, {"step": "proximal"}, {"decoupled": True})
        keep = {"fisher_every": self.one("fisher every", 1, 1, 2), "fisher_keep": self.one("fisher keep", None, 0.4)}
        memory, reduce = self.chance("elastic memory", 4), self.one("elastic reduce", "sum", "mean")
        return to.terms.Elastic(0.1, samples=4, reduce=reduce, memory=memory, **keep, **step)

    def personal(self) -> Any:
        head = to.personal.Named("4.*" if self.model() == "dropout" else "output.*")
        norm = to.personal.batch_norm
        if self.model() in ("adapter", "ranks"):
            found = self.one("personal", None, None, head, to.personal.lora_b)
        elif "norm" in self.model() or self.model() == "convolution":
            found = self.one("personal", None, norm, norm, norm, head)
        else:
            found = norm if self.rarely("no norm") else self.one("personal", None, None, head)
            found = None if self.model() == "logistic" and found is head and not self.rarely("only head") else found
        return to.personal.everything if self.chance("independent", 1) and self.chance("so", 5) else found

    def shares_personal(self) -> bool:
        return self.personal() is not None and self.chance("share personal", 4)

    def newcomers(self) -> str:
        average = self.shares_personal() and self.chance("newcomers", 6)
        if average or self.rarely("newcomers alone"):
            return "average"
        norm = "norm" in self.model() or self.model() == "convolution"
        at_home = norm and self.personal() in (to.personal.batch_norm, to.personal.everything)
        calibrated = at_home and self.chance("calibrated", 4)
        return "calibrated" if calibrated or self.rarely("calibrated alone") else "initial"

    def activations(self) -> bool:
        shown = self.newcomers() == "average" or self.personal() is None
        has_norm = "norm" in self.model() or self.model() == "convolution"
        return self.chance("activations", 2) if shown and has_norm else self.rarely("activations alone")

    def mixing(self) -> Any:
        alone = not self.substitution().func.lends or self.rarely("mixing and substitution")
        return to.mixing.FedAMP(sigma=2.0) if alone and self.chance("mixing", 2) else to.mixing.SharedStart()

    def compression(self) -> Any:
        directions = self.one("directions", "both", "both", "up")
        way = {"directions": directions, "feedback": not self.chance("forgetful", 1)}
        absent = {"residual_decay": self.one("decay", 1.0, 0.5), "reset_after": self.one("reset", None, None, 2)}
        scope, keep_down = self.one("scope", "tensor", "model"), self.one("keep down", None, 0.5)
        return self.one(
            "compression",
            *[to.compression.Dense()] * 4,
            to.compression.SparseTernary(0.3, keep_down, scope, **way, **absent),
            to.compression.SparseTernary(0.1, **way),
            to.compression.TopK(0.2, keep_down, scope, **way, **absent),
            to.compression.Quantise(self.one("rounding", "stochastic", "nearest"), **way),
        )

    def substitution(self) -> Any:
        candidates = self.one("candidates", None, to.substitution.Candidates(theta_scale=0.05, min_common=1))
        more = {
            "near_tie": self.one("near tie", 0.0, 0.0, 0.1),
            "weight_by_work": self.chance("weight by work", 3),
            "remember": self.one("remember", 10_000, 3),
            "project_above": self.one("project above", 1e9, 0.0),
            "client_sketch": self.one("client sketch", 0, 0, 16),
        }
        friends = functools.partial(to.substitution.Friends, candidates=candidates, **more)
        others = (
            functools.partial(kind)
            for kind in (to.substitution.NoSubstitution, to.substitution.Spread, to.substitution.Stale)
        )
        return self.one("substitution", *others, functools.partial(to.substitution.Stale, "weights"), friends, friends)

    def weighting(self) -> Any:
        return self.one(
            "weighting",
            to.weighting.CompleteOnly(),
            to.weighting.ByShare(),
            to.weighting.ByWork(),
            to.weighting.FedAvg(),
            to.weighting.FedNova(),
        )

    def aggregation(self) -> Any:
        by_parameter = (to.aggregation.CoordinateMedian(), to.aggregation.TrimmedMean(0.2))
        sparse = isinstance(self.compression(), to.compression.TopK) and not self.rarely("median of sparse messages")
        whole = (
            to.aggregation.GeometricMedian(steps=4),
            to.aggregation.NormClip(),
            to.aggregation.NormClip(0.1),
            to.aggregation.CentredClip(steps=2),
        )
        whole = (*whole, to.aggregation.Krum(), to.aggregation.MultiKrum(), to.aggregation.MultiKrum(0.1, keep=0.5))
        added = self.substitution().func is to.substitution.Stale and not self.rarely("median of old rows")
        mixed = self.mixing().personal and not self.rarely("median and mixing")
        halves = self.personal() in (to.personal.lora_b, to.personal.everything) or self.frozen_a()
        halves = halves and not self.rarely("half a product")
        if self.model() in ("adapter", "ranks") and not (added or mixed or halves) and self.chance("products", 5):
            return to.aggregation.ProductMean()
        if added or mixed or not self.chance("robust", 2):
            return to.aggregation.WeightedSum()
        return self.one("aggregation", *(() if sparse else by_parameter), *whole)

    def server(self) -> Any:
        apply = to.server.ServerSGD()
        adaptive = (kind(tau=1e-2) for kind in (to.server.ServerAdam, to.server.ServerYogi, to.server.ServerAdagrad))
        return self.one("server", apply, apply, apply, to.server.ServerSGD(0.5), *adaptive)

    def selection(self) -> Any:
        everyone = to.selection.Everyone()
        return self.one("selection", everyone, everyone, to.selection.Fraction(0.6), to.selection.Count(4))

    def membership(self) -> Any:
        drop = to.membership.DropInactive(J=1.0, C=0.1, rarely=math.inf, least=1)
        surveyed, lends = self.one("surveyed", 200, 2, 0), self.substitution().func.lends
        return functools.partial(
            to.Membership,
            join=self.one("join", "fast-reboot", "vanilla"),
            gate=self.one("gate", None, None, 0.5) if surveyed or self.chance("gate alone", 1) else None,
            surveyed=surveyed,
            leave=self.one("leave", "include", "exclude", "decide"),
            rule=self.one("rule", "crossing", "literal", "sqrt"),
            stand_in=self.chance("stand in", 2) and (lends or self.rarely("stand in alone")),
            drop=self.one("drop", None, None, drop),
        )


class PrivateDraws(Draws):
    """The same with `algorithm.privacy`, and what it refuses is drawn rarely."""

    def privacy(self) -> Any:
        noise = self.one("noise", "gaussian", "gaussian", "banded", "blt")
        adapts = self.chance("quantile", 5) if noise == "gaussian" else self.rarely("correlated and adaptive")
        much = self.one("much noise", {"epsilon": 20.0}, {"noise_multiplier": 0.05})
        separation = 9 if self.rarely("separation beyond the end") else self.one("separation", 1, 1, 2, 3)
        return functools.partial(
            to.Private,
            clip=self.one("private clip", 0.05, 1.0),
            n0=4.0,
            delta=1e-3,
            noise=noise,
            min_separation=separation,
            most=self.one("most", None, 2, 3),
            quantile=0.5 if adapts else None,
            clip_noise=5.0 if adapts else None,
            beside=self.one("beside", 1.0, 0.3),
            **much,
        )

    def hindsight(self) -> bool:
        return self.rarely("private hindsight")

    def optimizer(self) -> Any:
        found = super().optimizer()
        federated = getattr(found, "moments", "") == "federated" and not self.rarely("private moments")
        return replace(found, moments="local") if federated else found

    def terms(self) -> tuple[Any, ...]:
        told = to.terms.FedGATE(), to.terms.VRLSGD()
        by_steps = self.local().steps is not None or self.rarely("private steps")
        return tuple(term for term in super().terms() if by_steps or term not in told)

    def elastic(self) -> Any:
        found = super().elastic()
        return found if self.rarely("private memory") else replace(found, memory=False, fisher_keep=None)

    def personal(self) -> Any:
        norm = "norm" in self.model() or self.model() == "convolution"
        return to.personal.batch_norm if norm and not self.rarely("private norm") else super().personal()

    def shares_personal(self) -> bool:
        return self.rarely("private shares") and super().shares_personal()

    def mixing(self) -> Any:
        return super().mixing() if self.rarely("private mixing") else to.mixing.SharedStart()

    def substitution(self) -> Any:
        kinds = (to.substitution.NoSubstitution, to.substitution.Spread)
        refused = self.rarely("private substitution")
        return super().substitution() if refused else functools.partial(self.one("private substitution kind", *kinds))

    def weighting(self) -> Any:
        found = super().weighting()
        fits = self.local().steps is not None and self.privacy().keywords["noise"] == "gaussian"
        nova = isinstance(found, to.weighting.FedNova) and not (fits or self.rarely("private FedNova"))
        return to.weighting.ByWork() if nova else found

    def aggregation(self) -> Any:
        allowed = (to.aggregation.WeightedSum(), to.aggregation.WeightedSum(), to.aggregation.NormClip(0.1))
        return super().aggregation() if self.rarely("private median") else self.one("private aggregation", *allowed)

    def membership(self) -> Any:
        found = super().membership()
        if self.rarely("private gate"):
            return found
        leave = "include" if found.keywords["leave"] == "decide" else found.keywords["leave"]
        sent = any(isinstance(term, to.terms.Scaffold | to.terms.VRLSGD) for term in self.terms())
        drop = None if sent and not self.rarely("private drop") else found.keywords["drop"]
        return functools.partial(to.Membership, **(found.keywords | {"leave": leave, "gate": None, "drop": drop}))
