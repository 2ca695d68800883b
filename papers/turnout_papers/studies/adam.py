"""Study `adam`: paper 004, Table 1: rounds to a target accuracy, FedAvg against the paper's FedAdam (distributed Adam).

E and FedAvg's learning rate are chosen on seeds of their own; then both methods are judged on others. FedAdam sends
three times as much a round, so bytes to the target are compared beside the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import turnout.models as models
from turnout.data import CIFAR10, MNIST, Digits
from turnout.experiment import Algorithm, DataSpec, Experiment, Model, Stop, World
from turnout.settings import InProcess
from turnout_papers.recipes.multitask import adam, asking, sgd, table_1
from turnout_papers.studies.claims import Claim, best_elsewhere, by_signs, sooner
from turnout_papers.studies.drawing import band, picture
from turnout_papers.studies.published import TABLE_1_ADAM
from turnout_papers.studies.study import Curve, Curves, Part, Plan, Row, Study, not_run, row
from turnout_papers.studies.traffic import WAYS, spent

METHODS = ("FedAvg", "FedAdam")
TUNING_SEEDS = 100  # the first of the seeds that settings are chosen on


@dataclass(frozen=True)
class Size:
    """How large the study is at one scale."""

    data: tuple[str, ...]
    clients: tuple[int, ...]
    rounds: int
    epochs: tuple[int, ...]
    rates: tuple[float, ...]
    tuning: int
    seeds: int


SIZES = {
    "smoke": Size(("digits",), (20,), 3, (1,), (0.1, 0.3), tuning=1, seeds=2),
    "small": Size(("digits",), (20, 40), 180, (1, 5), (0.1, 0.3, 1.0, 3.0), tuning=2, seeds=5),
    "paper": Size(("MNIST", "CIFAR"), (200, 400), 200, (1, 3), (0.1, 0.3, 1.0), tuning=1, seeds=5),
}
TARGETS = {"digits": 0.9, "MNIST": 0.95, "CIFAR": 0.55}


@dataclass(frozen=True)
class Case:
    """A cell of Table 1."""

    data: str
    clients: int
    share: float
    iid: bool

    @property
    def name(self) -> str:
        return f"{self.data} {'IID' if self.iid else 'non-IID'} W={self.clients} C={self.share:g}"


@dataclass(frozen=True)
class Setting:
    """What is tuned; the rate is FedAvg's."""

    method: str
    epochs: int
    rate: float | None = None

    @property
    def name(self) -> str:
        return f"{self.method} E={self.epochs}" + ("" if self.rate is None else f" lr={self.rate:g}")


def cases(scale: str) -> list[Case]:
    size = SIZES[scale]
    return [Case(d, w, c, iid) for d in size.data for iid in (True, False) for w in size.clients for c in (0.5, 1.0)]


def settings(scale: str) -> list[Setting]:
    size = SIZES[scale]
    tuned = [Setting("FedAvg", epochs, rate) for epochs in size.epochs for rate in size.rates]
    return tuned + [Setting("FedAdam", epochs) for epochs in size.epochs]


def experiment(case: Case, setting: Setting, rounds: int) -> Experiment:
    """One run; it stops at the target, as later rounds are not used."""
    local = adam(setting.epochs) if setting.rate is None else sgd(setting.rate, setting.epochs)
    data, model = world_of(case)
    return Experiment(
        world=World(data),
        model=model,
        algorithm=Algorithm(local=local, selection=asking(case.share), nonfinite="absent"),
        rounds=rounds,
        stop=Stop(target=TARGETS[case.data]),
        runtime=InProcess(device="cpu", threads=1) if case.data == "digits" else InProcess(),
    )


def world_of(case: Case) -> tuple[DataSpec, Model]:
    kind = {"digits": Digits, "MNIST": MNIST, "CIFAR": CIFAR10}[case.data]
    data = kind(clients=case.clients, partition=table_1(case.iid), test_share=0.0)
    if case.data == "CIFAR":
        return data, models.mtfl_cifar_cnn()
    return data, models.MLP(32, 32, batch_norm=(1,)) if case.data == "digits" else models.mtfl_mnist_mlp()


def plan(scale: str) -> Plan:
    """The runs that settings are chosen on; `judged` gives those that are compared."""
    size = SIZES[scale]
    variants = {
        variant(case, setting.name): experiment(case, setting, size.rounds)
        for case in cases(scale)
        for setting in settings(scale)
    }
    notes = [
        "FedAdam is the paper's name for distributed Adam; its authors' later code calls it FedAvg-Adam",
        f"E in {size.epochs} and FedAvg's learning rate in {size.rates} chosen on "
        f"{size.tuning} seed{'s' if size.tuning > 1 else ''} from {TUNING_SEEDS} on, judged on {size.seeds} others; "
        "batches of 20 (authors' code)",
        f"a run ends at its target ({', '.join(f'{d} {100 * TARGETS[d]:g} %' for d in size.data)} of central accuracy) "
        f"or after {size.rounds} rounds, "
        f"which counts as such: FedAvg may spend the bytes of {size.rounds // 3} of FedAdam's",
    ]
    if scale == "paper":
        notes.append("for its cost: of the paper's E = 1 to 5 only these two are tried, and one seed is tuned on")
    else:
        notes.insert(0, "shrunk: 8x8 digits, two hidden layers of 32, fewer clients; the published columns are W = 200")
    return Plan([Part("tuning", variants, size.tuning, TUNING_SEEDS)], notes)


def variant(case: Case, what: str) -> str:
    return f"{case.name} {what}"


def chosen(scale: str, case: Case, method: str, curves: Curves) -> Setting | None:
    """The setting of fewest rounds on the tuning seeds (of equal ones the highest accuracy), of those that ran."""
    own = {variant(case, s.name): s for s in settings(scale) if s.method == method}
    own = {name: setting for name, setting in own.items() if curves.has(name)}
    if not own:
        return None
    last = SIZES[scale].rounds

    def score(curve: Curve) -> float:
        found = rounds_to(curve, TARGETS[case.data])
        return -float(last if found is None else found) + 0.5 * float(curve.value_T[-1])

    return own[best_elsewhere({name: curves.each(name, score) for name in own}, range(SIZES[scale].seeds))]


def judged(scale: str, curves: Curves) -> list[Part]:
    """Both methods with their chosen settings, on seeds they were not chosen on."""
    size, variants = SIZES[scale], {}
    for case in cases(scale):
        for method in METHODS:
            setting = chosen(scale, case, method, curves)
            if setting is not None:
                variants[variant(case, method)] = experiment(case, setting, size.rounds)
    return [Part("judged", variants, size.seeds)] if variants else []


def rounds_to(curve: Curve, target: float) -> int | None:
    """Rounds trained when the target is first reached, None if it never is."""
    there = curve.round_T[(curve.value_T >= target) & (curve.round_T >= 0)]
    return int(there[0]) + 1 if len(there) else None


def rounds_by_seed(curves: Curves, case: Case, what: str) -> dict[int, int | None]:
    found = curves.curves[variant(case, what)]
    return {seed: rounds_to(curve, TARGETS[case.data]) for seed, curve in found.items()}


@dataclass(frozen=True)
class Spent:
    """Bytes both ways up to the target, or all that were spent without reaching it."""

    bytes: int
    reached: bool

    def less_than(self, other: Spent) -> bool:
        """Whether the target took fewer bytes here. A run that never reached it needs more than it spent."""
        return self.reached and self.bytes < other.bytes


def bytes_by_seed(curves: Curves, case: Case, what: str) -> dict[int, Spent]:
    by_round, found = spent(curves, variant(case, what)), {}
    for seed, rounds in rounds_by_seed(curves, case, what).items():
        until = by_round[seed][:rounds]  # all of them where the target was not reached
        found[seed] = Spent(int(until[-1]) if len(until) else 0, rounds is not None)
    return found


def rows(scale: str, curves: Curves) -> list[Row]:
    found, last = [], SIZES[scale].rounds
    for case in cases(scale):
        for method in METHODS:
            published = TABLE_1_ADAM.get((case.data, case.iid, case.clients, case.share, method))
            setting = chosen(scale, case, method, curves)
            if setting is None or not curves.has(variant(case, method)):
                found.append(not_run(case.name, f"rounds {method}", published))
                continue
            rounds = {s: float(last if r is None else r) for s, r in rounds_by_seed(curves, case, method).items()}
            found.append(row(case.name, f"rounds {method}", rounds, published))
            found.append(Row(case.name, f"chosen {method}", setting.name.removeprefix(f"{method} "), None, 0, None))
            sent = bytes_by_seed(curves, case, method)
            found.append(row(case.name, f"MB {method}", {s: b.bytes / 1e6 for s, b in sent.items()}))
    return found


def claims(scale: str, curves: Curves) -> list[Claim]:
    """For each non-IID scenario one claim about rounds and one about bytes."""
    found = []
    for case in (c for c in cases(scale) if not c.iid):
        names = [variant(case, method) for method in METHODS]
        words = f"{case.name}: FedAdam reaches {100 * TARGETS[case.data]:g} % in fewer {{}} than the tuned FedAvg"
        if not curves.has(*names):
            why = curves.why_missing(*names, *(variant(case, setting.name) for setting in settings(scale)))
            found += [Claim(words.format(w), False, why) for w in ("rounds", "bytes")]
            continue
        theirs, ours = (rounds_by_seed(curves, case, method) for method in METHODS)
        found.append(sooner(words.format("rounds"), ours, theirs, SIZES[scale].rounds))
        found.append(cheaper(words.format("bytes"), *(bytes_by_seed(curves, case, m) for m in reversed(METHODS))))
    return found


def cheaper(claim: str, ours: dict[int, Spent], theirs: dict[int, Spent]) -> Claim:
    """Fewer bytes to the target, by the sign test; a seed in which that cannot be decided counts for neither side.

    >>> cheaper("saves", {s: Spent(2, True) for s in range(5)}, {s: Spent(3, False) for s in range(5)}).holds
    True
    """
    wins = sum(ours[seed].less_than(theirs[seed]) for seed in ours)
    losses = sum(theirs[seed].less_than(ours[seed]) for seed in ours)
    never = [sum(not s.reached for s in side.values()) for side in (ours, theirs)]
    counts = f"fewer in {wins} of {len(ours)} seeds, more in {losses}, undecided in {len(ours) - wins - losses}"
    reached = f"never reached: ours {never[0]}, theirs {never[1]}, which took more than was spent"
    return by_signs(claim, wins, losses, len(ours), counts, reached)


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """FedAvg's sensitivity: rounds to the target over its learning rate, on the tuning seeds, FedAdam beside it."""
    size, charts = SIZES[scale], []
    for case in cases(scale):
        if not curves.has(*(variant(case, s.name) for s in settings(scale))):
            continue
        lines = []
        for i, epochs in enumerate(size.epochs):
            names = [Setting("FedAvg", epochs, rate).name for rate in size.rates]
            lines.append(band(f"FedAvg E={epochs}", list(size.rates), _tuning(curves, case, names, size.rounds), i))
        best = chosen(scale, case, "FedAdam", curves)
        if best is not None:
            same = _tuning(curves, case, [best.name] * len(size.rates), size.rounds)
            lines.append(band(best.name, list(size.rates), same, len(size.epochs)))
        charts.append((f"{case.name}: rounds to the target", "FedAvg's learning rate", lines))
    return {"sensitivity.svg": picture(charts, log=True)} if charts else {}


def _tuning(curves: Curves, case: Case, names: Sequence[str], last: int) -> list[dict[int, float]]:
    found = [rounds_by_seed(curves, case, name) for name in names]
    return [{seed: float(last if r is None else r) for seed, r in by_seed.items()} for by_seed in found]


STUDY = Study(
    name="adam",
    reproduces="paper 004, Table 1: rounds (and bytes) to a target, tuned FedAvg against distributed Adam",
    metric="global_accuracy",
    plan=plan,
    rows=rows,
    claims=claims,
    pictures=pictures,
    more=WAYS,
    then=judged,
)
