"""EFL, Figure 2: EFL without and with its elastic term, by the largest number of local epochs.

Without the term (λ = 0) and with the best λ (§5.3). λ is chosen on seeds of its own by final accuracy, then both are
judged on others. Final accuracy is the mean over the last fifth of the rounds, spread the standard deviation over them.
The paper has curves and no numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turnout.experiment import Experiment
from turnout_papers.studies.claims import NOT_RUN, UNTESTED, Claim, by_signs, either
from turnout_papers.studies.efl import FULL, PAPER, PAPER_NOTES, SHRUNK, SMALL, EFLSetting, EFLSize, efl, spread
from turnout_papers.studies.study import (
    TUNING_SEEDS,
    Chart,
    Curve,
    Curves,
    Part,
    ResultRow,
    Study,
    StudyPlan,
    choose,
    last_fifth,
)

CHOSEN = "best"


SIZES = {
    "smoke": EFLSize((SMALL,), (2,), rounds=5, seeds=2, strengths=(0.01, 0.03), tuning=1),
    "small": EFLSize((SMALL,), (2, 5, 10), rounds=30, seeds=5, strengths=(0.01, 0.03, 0.1), tuning=2),
    "paper": EFLSize(tuple(PAPER.values()), (20, 40), rounds=60, seeds=3, strengths=(0.003, 0.03, 0.3), tuning=1),
}


def case(setting: EFLSetting, epochs: int) -> str:
    return f"{setting.data} E={epochs}"


def variant(setting: EFLSetting, epochs: int, strength: float | str) -> str:
    return f"{case(setting, epochs)} lambda={strength if isinstance(strength, str) else format(strength, 'g')}"


def experiment(setting: EFLSetting, epochs: int, strength: float, rounds: int) -> Experiment:
    return setting.experiment(FULL, epochs, rounds, **efl(setting, strength))


def plan(scale: str) -> StudyPlan:
    """The runs that λ is chosen on; `judged` gives those that are compared."""
    size = SIZES[scale]
    variants = {
        variant(setting, epochs, strength): experiment(setting, epochs, strength, size.rounds)
        for setting, epochs in SIZES[scale].cases()
        for strength in size.strengths
    }
    parts = [Part("tuning", variants, size.tuning, TUNING_SEEDS)]
    skews = []
    for setting in size.settings:
        words = {2: "two", 4: "four"}[setting.classes] + " classes a client"
        if setting.data in ("Shakespeare", "Sentiment140"):
            words = f"{setting.data} as in `bmta`"
        elif setting is not SMALL:
            words = f"{words} ({setting.data})"
        skews.append(words)
    notes = [
        f"λ in {size.strengths} chosen by final accuracy on {size.tuning} seeds from {TUNING_SEEDS} on, judged on "
        f"{size.seeds} others; U and V are sums over reporters, the step is explicit",
        "EFL without compression, so that nothing but the term differs: scheme C, work by the first five traces of "
        f"flexible participation, {', '.join(skews)}",
        "final accuracy and spread: mean and standard deviation over the last fifth of the rounds",
    ]
    return StudyPlan.at(scale, parts, notes, f"{SHRUNK}, {size.rounds} rounds", PAPER_NOTES)


def chosen(scale: str, setting: EFLSetting, epochs: int, curves: Curves) -> float | None:
    """The λ of highest final accuracy on the tuning seeds, of those that ran; None if none did."""
    own = {variant(setting, epochs, strength): strength for strength in SIZES[scale].strengths}
    return choose(curves, own, last_fifth, SIZES[scale].seeds)


def judged(scale: str, curves: Curves) -> Sequence[Part]:
    size, variants = SIZES[scale], {}
    for setting, epochs in SIZES[scale].cases():
        strength = chosen(scale, setting, epochs, curves)
        if strength is not None:
            variants[variant(setting, epochs, "0")] = experiment(setting, epochs, 0.0, size.rounds)
            variants[variant(setting, epochs, CHOSEN)] = experiment(setting, epochs, strength, size.rounds)
    return [Part("judged", variants, size.seeds)] if variants else []


def pair(setting: EFLSetting, epochs: int) -> dict[str, str]:
    """Without and with the term."""
    return {"λ = 0": variant(setting, epochs, "0"), "best λ": variant(setting, epochs, CHOSEN)}


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    for setting, epochs in SIZES[scale].cases():
        label, strength = case(setting, epochs), chosen(scale, setting, epochs, curves)
        if strength is not None:
            yield ResultRow(label, "chosen λ", f"{strength:g}", None, 0, None)
        for what, number in (("accuracy", last_fifth), ("spread", spread)):
            for words, name in pair(setting, epochs).items():
                yield curves.row(label, f"{what} {words}", name, number)


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    for setting, epochs in SIZES[scale].cases():
        claim = f"{case(setting, epochs)}, non-IID: the best λ has higher final accuracy, or lower spread, than λ = 0"
        without, with_it = pair(setting, epochs).values()
        higher = curves.better("higher accuracy", with_it, without, last_fifth)
        yield either(claim, [higher, curves.better("lower spread", without, with_it, spread)])
        claim = f"{case(setting, epochs)}, non-IID: the best λ has lower training loss in the end than λ = 0"
        yield curves.of("train_loss").better(claim, without, with_it, final_loss, unit="")
        yield rescued(
            f"{case(setting, epochs)}, non-IID: where λ = 0 diverges, the best λ does not", curves, without, with_it
        )


def final_loss(curve: Curve) -> float:
    return curve.end(5).mean()


def rescued(claim: str, curves: Curves, without: str, with_it: str) -> Claim:
    """Of the seeds in which the first diverges, the second ends in more than one that ends only in the second."""
    ran = curves.curves.get(without, {}).keys() & curves.curves.get(with_it, {}).keys()
    if not ran:
        return Claim(claim, False, NOT_RUN)
    lost = {seed for seed in ran if seed not in curves.finite(without)}
    also = {seed for seed in ran if seed not in curves.finite(with_it)}
    if not lost | also:
        return Claim(claim, False, f"no run of either diverges in {len(ran)} seeds", neither=UNTESTED)
    counts = f"only λ = 0 diverges in {len(lost - also)} of {len(ran)} seeds, only the best λ in {len(also - lost)}"
    return by_signs(claim, len(lost - also), len(also - lost), len(ran), counts, f"both in {len(lost & also)}")


def figures(scale: str) -> dict[str, list[Chart]]:
    """Figure 2: test accuracy above, training loss below."""
    lines = {case(setting, epochs): pair(setting, epochs) for setting, epochs in SIZES[scale].cases()}
    return {
        "figure2-accuracy.svg": [Chart(f"{label}: accuracy", own) for label, own in lines.items()],
        "figure2-loss.svg": [
            Chart(f"{label}: training loss", own, "train_loss", "number") for label, own in lines.items()
        ],
    }


STUDY = Study("elastic", __doc__, "global_accuracy", plan, rows, claims, figures, ("train_loss",), then=judged)
