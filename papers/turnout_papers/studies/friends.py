"""Study `friends`: paper 003, Figures 1, 2 and 5 to 9: Full, Dropout, Stale and FDMS when clients drop out.

The paper has curves and no table: what it claims are orderings. The accuracy of a run is its mean over the last fifth
of the rounds. friend_cases.py has the cases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from turnout.experiment import Experiment
from turnout.statistics import BySeed, difference
from turnout_papers.studies.claims import Claim, above, better
from turnout_papers.studies.drawing import Chart, over_rounds, picture
from turnout_papers.studies.friend_cases import ALPHAS, AUTHORS_STALE, SIZES, Setting, accuracy, cases, experiment
from turnout_papers.studies.study import Curve, Curves, Part, Plan, Row, Study, not_run, row


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
