"""Study `friends`: paper 003, Figures 1, 2 and 5 to 9: Full, Dropout, Stale and FDMS when clients drop out.

Clustered (five clusters of clients, each with two classes of its own) and general settings, three dropout ratios, other
E and K, other levels of non-IID-ness, FedProx. The paper has curves and no table: what it claims are orderings. The
accuracy of a run is its mean over the last fifth of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import turnout.models as models
from turnout.data import CIFAR10, MNIST, Digits, Equal, FashionMNIST
from turnout.data.partition import Clustered, Partition, Shards
from turnout.experiment import Algorithm, DataSpec, Experiment, Model, World
from turnout.parts.local import Local
from turnout.parts.optimizers import SGD
from turnout.parts.substitution.base import Spread, Substitution, Unused
from turnout.parts.substitution.friends import Friends
from turnout.parts.substitution.stale import Stale
from turnout.parts.terms.proximal import Proximal
from turnout.parts.weighting import ByShare, Shares
from turnout.recipes.friends import LOCAL_TEST
from turnout.runtimes.settings import InProcess
from turnout.statistics.paired import BySeed, difference
from turnout.studies.claims import Claim, above, better
from turnout.studies.drawing import Chart, over_rounds, picture
from turnout.studies.study import Curve, Curves, Part, Plan, Row, Study, not_run, row
from turnout.world.participation import Always, Dropout, Participation, Stratified

METHODS: dict[str, Substitution] = {"Full": Unused(), "Dropout": Spread(), "Stale": Stale(), "FDMS": Friends()}
AUTHORS_STALE = "Stale weights"  # what the authors' code calls Stale: the last weights, not the last update
ALPHAS = (0.3, 0.5, 0.7)
MU = 0.2  # of FedProx
# partition of the general setting, and of its other levels: (partitions a client picks, partitions of CIFAR-10)
GENERAL = {"general": (2, 200), "general low": (5, 500), "general high": (1, 100)}


@dataclass(frozen=True)
class Setting:
    """A case without its dropout ratio and method."""

    data: str
    split: str = "clustered"
    clients: int = 20
    epochs: int = 2
    prox: bool = False
    independent: bool = False  # clients drop out independently, so friends may be absent too (Appendix B)

    @property
    def name(self) -> str:
        """The data and the split, and what differs from the usual setting.

        >>> Setting("MNIST", clients=40).name, Setting("CIFAR-10", prox=True).name
        ('MNIST clustered K=40', 'CIFAR-10 clustered FedProx')
        """
        words = [self.data, self.split] + [f"K={self.clients}"] * (self.clients != 20)
        words += [f"E={self.epochs}"] * (self.epochs != 2) + ["FedProx"] * self.prox
        return " ".join(words)

    def case(self, alpha: float) -> str:
        return f"{self.name} alpha={alpha}" + (" independent" if self.independent else "")

    @property
    def methods(self) -> dict[str, Substitution]:
        """What is compared; both readings of Stale where nothing else varies."""
        usual = self == Setting(self.data)
        return METHODS | ({AUTHORS_STALE: Stale(form="weights")} if usual else {})


@dataclass(frozen=True)
class Size:
    """How large the study is at one scale; `rounds` by data set."""

    rounds: dict[str, int]
    seeds: int


SIZES = {
    "smoke": Size({"Digits": 3}, seeds=2),
    "small": Size({"Digits": 50}, seeds=5),
    "paper": Size({"MNIST": 100, "CIFAR-10": 500, "FMNIST": 300}, seeds=10),
}


def cases(scale: str) -> list[tuple[Setting, float]]:
    """The cases of the paper's figures; at smaller scales Digits stands for all data sets."""
    if scale == "paper":
        mnist, cifar = Setting("MNIST"), Setting("CIFAR-10")
        clustered, general = [mnist, cifar, Setting("FMNIST")], replace(cifar, split="general")
        varied = [mnist, cifar]
    else:
        mnist = cifar = Setting("Digits")
        clustered, general, varied = [mnist], replace(mnist, split="general"), [mnist]
    if scale == "smoke":
        some = [(mnist, alpha) for alpha in ALPHAS]
        return [*some, (replace(mnist, clients=40), 0.5), (general, 0.5)]
    found = [(s, alpha) for s in [*clustered, general] for alpha in ALPHAS]
    for s in varied:
        found += [(replace(s, epochs=epochs), 0.5) for epochs in (1, 5)]
        found += [(replace(s, clients=40), 0.5), (replace(s, independent=True), 0.5)]
    found += [(replace(cifar, prox=True), 0.5)]
    return found + [(replace(general, split=split), 0.5) for split in ("general low", "general high")]


def data_of(setting: Setting) -> tuple[DataSpec, Model, int]:
    """Data, model and batch size."""
    few = setting.data == "Digits"
    partition: Partition = Clustered()
    if setting.split in GENERAL:
        each, partitions = GENERAL[setting.split]
        partition = Shards(each) if few else Shards(each, partitions)
    if few:  # all samples are dealt out: 71 or 72 each among 20, 35 or 36 among 40
        return Digits(clients=setting.clients, partition=partition, test_share=0.0), models.MLP(50), 10
    samples = {"MNIST": 200, "FMNIST": 200, "CIFAR-10": 1000 if setting.split == "clustered" else 500}[setting.data]
    dealt: dict[str, Any] = {"clients": setting.clients, "partition": partition, "test_share": 0.2}
    dealt |= {"sizes": Equal(samples * 20 // setting.clients), "local_test": LOCAL_TEST}
    if setting.data == "CIFAR-10":
        return CIFAR10(**dealt, mean=(0.5,), std=(0.5,)), models.fdms_cifar_cnn(), 20
    kind = MNIST if setting.data == "MNIST" else FashionMNIST
    return kind(**dealt), models.fdms_mnist_cnn(dropout=0.5), 5


def experiment(setting: Setting, alpha: float, substitution: Substitution, rounds: int) -> Experiment:
    """One case with one method: plain SGD, uniform shares, server learning rate 1 (the authors' code)."""
    data, model, batch_size = data_of(setting)
    kind = Dropout if setting.independent else Stratified
    participation: Participation = kind(alpha, full_first_round=True) if alpha else Always()
    return Experiment(
        world=World(data, participation),
        model=model,
        algorithm=Algorithm(
            local=Local(SGD(lr=0.1), epochs=setting.epochs, batch_size=batch_size),
            terms=(Proximal(MU),) if setting.prox else (),
            substitution=substitution,
            weighting=ByShare(),
            shares=Shares(by="uniform"),
        ),
        rounds=rounds,
        runtime=InProcess(device="cpu", threads=1) if setting.data == "Digits" else InProcess(),
    )


def variant(setting: Setting, alpha: float, method: str) -> str:
    """What an experiment is called; Full is one for all dropout ratios."""
    return f"{setting.name} Full" if method == "Full" else f"{setting.case(alpha)} {method}"


def plan(scale: str) -> Plan:
    size = SIZES[scale]
    parts: dict[str, dict[str, Experiment]] = {}
    for setting, alpha in cases(scale):
        variants = parts.setdefault(setting.data, {})
        for method, substitution in setting.methods.items():
            ratio = 0.0 if method == "Full" else alpha
            rounds = size.rounds[setting.data]
            variants[variant(setting, alpha, method)] = experiment(setting, ratio, substitution, rounds)
    return Plan([Part(name, variants, size.seeds) for name, variants in parts.items()], notes(scale))


def notes(scale: str) -> list[str]:
    """What was shrunk, and what had to be decided."""
    found = [
        "as the authors' code: server learning rate 1 (the paper prints 0.1), stratified dropout, everybody present in "
        "round 0 (here for Dropout too, so that all methods see the same turnout)",
        "Stale: the last update, as the paper says; Stale weights: the last weights, as in the authors' code",
        "accuracy of a run: mean over the last fifth of its rounds",
        "independent: every client drops out by itself, so a friend need not be there (Appendix B); no claim is made",
    ]
    if scale == "paper":
        code = (
            "as the authors' code: a client trains on the first 80 % of its samples, sorted by class, so on 62.5 % of "
        )
        code += (
            "one class and 37.5 % of the other; CIFAR-10's pixels in [-1, 1]; half of MNIST's second convolution and "
        )
        return [*found, code + "hidden layer dropped in training", "Fashion-MNIST with MNIST's network"]
    shrunk = f"{SIZES[scale].rounds['Digits']} rounds"
    shrunk += ", a network with one hidden layer of 50, batches of 10, about 72 samples a client (K = 40: 36)"
    return [f"shrunk: Digits instead of MNIST, CIFAR-10 and Fashion-MNIST, {shrunk}", *found]


def accuracy(curve: Curve) -> float:
    """Percent, mean over the last fifth of the rounds."""
    return 100 * curve.end(5).mean()


def early(curve: Curve) -> float:
    """Percent, mean over the second tenth of the rounds, while accuracy is still rising on CIFAR-10."""
    tenth = int(curve.round_T[-1] + 1) // 10
    return 100 * curve.mean(after=tenth - 1, upto=2 * tenth - 1)


@dataclass(frozen=True)
class Results:
    """The accuracies of a case, by method."""

    setting: Setting
    alpha: float
    curves: Curves

    @property
    def there(self) -> list[str]:
        """The methods that were run; Full, which cases share, is none of this case's own."""
        found = [method for method in self.setting.methods if self.has(method)]
        return [] if found == ["Full"] else found

    def has(self, *methods: str) -> bool:
        return self.curves.has(*(variant(self.setting, self.alpha, method) for method in methods))

    def why_missing(self) -> str:
        return self.curves.why_missing(*(variant(self.setting, self.alpha, method) for method in self.setting.methods))

    def of(self, method: str, number: Callable[[Curve], float] = accuracy) -> dict[int, float]:
        return self.curves.each(variant(self.setting, self.alpha, method), number)

    @property
    def gain(self) -> dict[int, float]:
        """FDMS over Dropout."""
        return difference(self.of("FDMS"), self.of("Dropout"))

    def gap(self, method: str) -> dict[int, float]:
        """How far a method is from Full, either way."""
        return {seed: abs(v) for seed, v in difference(self.of("Full"), self.of(method)).items()}


def rows(scale: str, curves: Curves) -> list[Row]:
    found = []
    for setting, alpha in cases(scale):
        results, case = Results(setting, alpha, curves), setting.case(alpha)
        found += [row(case, f"accuracy {method}", results.of(method)) for method in results.there]
        for other in ("Dropout", "Stale"):
            if results.has("FDMS", other):
                found.append(row(case, f"FDMS over {other}", difference(results.of("FDMS"), results.of(other))))
        if setting.data == "CIFAR-10" and results.has("FDMS", "Dropout"):
            soon = difference(*(results.of(method, early) for method in ("FDMS", "Dropout")))
            found.append(row(case, "FDMS over Dropout, second tenth of the rounds", soon))
        if not results.there:
            found.append(not_run(case, "FDMS over Dropout"))
    return found


def claims(scale: str, curves: Curves) -> list[Claim]:
    found = []
    for setting, alpha in cases(scale):
        if setting.split == "clustered" and not setting.independent:
            found += _case_claims(Results(setting, alpha, curves))
    return found + _trend_claims(scale, curves)


def _case_claims(results: Results) -> list[Claim]:
    case, others = results.setting.case(results.alpha), {"Dropout": "Dropout", "Stale": "Stale"}
    if AUTHORS_STALE in results.setting.methods:
        others[AUTHORS_STALE] = "Stale as in the authors' code (the last weights)"
    found = [_beats(f"{case}: FDMS > {words}", results, other) for other, words in others.items()]
    closer = f"{case}: |Full - FDMS| < |Full - Dropout|"
    if not results.has("Full", "FDMS", "Dropout"):
        return [*found, Claim(closer, False, results.why_missing())]
    return [*found, above(closer, difference(results.gap("Dropout"), results.gap("FDMS")), unit="points")]


def _beats(claim: str, results: Results, other: str) -> Claim:
    if not results.has("FDMS", other):
        return Claim(claim, False, results.why_missing())
    return better(claim, results.of("FDMS"), results.of(other), "points")


def _trend_claims(scale: str, curves: Curves) -> list[Claim]:
    """How the gain over Dropout changes from one case to another."""
    known = {setting.case(alpha): Results(setting, alpha, curves) for setting, alpha in cases(scale)}
    compared = []
    for data in SIZES[scale].rounds:
        base = f"{data} clustered"
        pairs = [(f"{base} alpha=0.7", f"{base} alpha=0.3", "larger at alpha = 0.7 than at 0.3")]
        pairs += [(f"{base} K=40 alpha=0.5", f"{base} alpha=0.5", "larger at K = 40 than at 20 (alpha = 0.5)")]
        for alpha in ALPHAS:
            words = f"smaller in the general setting (alpha = {alpha})"
            pairs.append((f"{base} alpha={alpha}", f"{data} general alpha={alpha}", words))
        compared += [(data, *pair) for pair in pairs if pair[0] in known and pair[1] in known]
    return [
        _larger(f"{data}: FDMS's gain over Dropout is {words}", known[more], known[less])
        for data, more, less, words in compared
    ]


def _larger(claim: str, more: Results, less: Results) -> Claim:
    if not (more.has("FDMS", "Dropout") and less.has("FDMS", "Dropout")):
        return Claim(claim, False, (less if more.has("FDMS", "Dropout") else more).why_missing())
    gains: tuple[BySeed, BySeed] = more.gain, less.gain
    return better(claim, *gains, "points")


def pictures(scale: str, curves: Curves) -> dict[str, str]:
    """Accuracy over the rounds, a chart a case, a file a data set."""
    charts: dict[str, list[Chart]] = {}
    for setting, alpha in cases(scale):
        if there := Results(setting, alpha, curves).there:
            names = {method: variant(setting, alpha, method) for method in there}
            chart = (f"{setting.case(alpha)}: accuracy", "round", over_rounds(curves, names))
            charts.setdefault(setting.data, []).append(chart)
    return {f"{data}.svg": picture(found, "percent") for data, found in charts.items()}


STUDY = Study(
    name="friends",
    reproduces="paper 003, Figures 1, 2, 5 to 9: friends' updates in place of those that are missing",
    metric="global_accuracy",
    plan=plan,
    rows=rows,
    claims=claims,
    pictures=pictures,
)
