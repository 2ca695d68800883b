"""No paper: adapters and full fine-tuning of a pretrained decoder while clients are absent.

A small decoder of bytes is pretrained on half of the authors (presidents before 1897, the first plays), then fine-tuned
by the others, each a client that is absent in 30 to 70 % of the rounds. FedIT averages the factors A and B apart,
FFA-LoRA freezes A, FedSA-LoRA keeps B at home, FlexLoRA (here with one rank for all) averages the products B A;
full fine-tuning trains and sends everything. Global perplexity is of the common model on everybody's test windows,
personal perplexity a mean over clients, each with the model it would use. Differences are in percent of the perplexity,
100 ln(a / b). A run's perplexity is its mean over the last fifth of the rounds.

The claims were written before the first run at paper scale. Those of others are about large models and other texts, and
about clients that are all there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from safetensors.torch import save_file

from turnout import AdamW, Algorithm, Evaluate, Experiment, Local, LoRA, World, aggregation, partition, personal, tasks
from turnout.machine.files import replacing
from turnout.models.adapters import Adapted
from turnout.parts.schedules import Cosine, WarmUp
from turnout.world.participation import Dropout, GroupDropout, Participation
from turnout_papers.authors import Authors, Decoder
from turnout_papers.bench.data import Halves
from turnout_papers.studies.claims import BySeed, Claim, above, difference, mean_over
from turnout_papers.studies.drawing import WAYS, megabytes, spent, times_fewer, within
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
    row,
)

FEDIT, FFA, FEDSA, PRODUCT, FULL = METHODS = ("FedIT", "FFA", "FedSA", "ProductMean", "full fine-tuning")
ALGORITHMS: dict[str, dict[str, Any]] = {
    FEDSA: {"personal": personal.lora_b},
    PRODUCT: {"aggregation": aggregation.ProductMean()},
}
GLOBAL, PERSONAL = "global_perplexity", "personal_perplexity"
BASE = "pretraining"
TIED = "50 % tied"
ABSENCES: dict[str, Participation] = {
    **{f"{rate} %": Dropout(rate / 100) for rate in (30, 50, 70)},
    TIED: GroupDropout((0.8, 0.2)),  # the first half of the clients, and the rest
}
TUNED_AT = "50 %"  # absence
NO_WORSE, NEAR_FULL = 1.0, 5.0  # percent of the perplexity
FEWER = 10.0  # times fewer bytes


@dataclass(frozen=True)
class AdapterSize:
    """How large the study is at one scale.

    texts        of authors.py; the base is pretrained on the first halves of all of them
    decoder      its size
    length       bytes of a sample
    most         windows of 128 bytes of an author in fine-tuning; twice as many in pretraining
    pretraining  rounds, mini-batches in a round, and samples of one; one client has all text
    tuning       the same, of each client
    rank         of the adapters
    absences     some of `ABSENCES`
    rates        learning rates to choose from
    seeds        that judge
    """

    texts: tuple[str, ...]
    decoder: Decoder
    length: int
    most: int
    pretraining: tuple[int, int, int]
    tuning: tuple[int, int, int]
    rank: int
    absences: tuple[str, ...]
    rates: tuple[float, ...]
    seeds: int


SIZES = {
    "smoke": AdapterSize(
        ("made-up",), Decoder(1, 16, 2), 32, 12, (2, 5, 8), (2, 2, 4), 2, ("30 %", TIED), (0.01,), seeds=2
    ),
    "small": AdapterSize(
        ("presidents", "speakers"), Decoder(2, 64, 2), 64, 60, (30, 50, 32), (15, 5, 4), 4, ("30 %", "70 %"),
        (3e-4, 1e-3, 3e-3, 1e-2, 3e-2), seeds=3,
    ),
    "paper": AdapterSize(
        ("presidents", "speakers"), Decoder(4, 192, 4), 128, 400, (30, 100, 64), (30, 5, 8), 8, tuple(ABSENCES),
        (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2), seeds=3,
    ),
}  # fmt: skip


def variant(text: str, absence: str, method: str, rate: float | None = None) -> str:
    return f"{text}, {absence} absent, {method}" + ("" if rate is None else f", lr={rate:g}")


def pretraining(size: AdapterSize) -> Experiment:
    """One client that has the text of the first half of the authors."""
    rounds, steps, batch = size.pretraining
    first = Authors(
        "+".join(size.texts), half=0, length=size.length, most=2 * size.most, clients=1, partition=partition.IID(),
        test_share=0.1,
    )  # fmt: skip
    schedule = WarmUp(max(1, rounds // 15), then=Cosine(rounds, least=0.1))
    local = Local(AdamW(2e-3), steps=steps, batch_size=batch, schedule=schedule, clip=1.0)
    return Experiment(
        World(first), size.decoder, Algorithm(local), tasks.NextToken(), rounds,
        evaluate=Evaluate(every=max(1, rounds // 6), personal=True),
    )  # fmt: skip


@dataclass(frozen=True)
class Base:
    """The file of the pretrained decoder, and its SHA-256."""

    path: str
    checksum: str


def base_of(curves: Curves) -> Base:
    """The pretrained decoder as a file in the folder of its run; the same one whenever it is written again."""
    run = curves.runs[BASE][TUNING_SEEDS]
    path = run.folder / "base.safetensors"
    with replacing(path) as part:
        save_file(run.weights(), part)
    return Base(str(path), hashlib.sha256(path.read_bytes()).hexdigest())


def experiment(size: AdapterSize, text: str, absence: str, method: str, rate: float, base: Base) -> Experiment:
    rounds, steps, batch = size.tuning
    local = Local(AdamW(rate, moments="fresh", weight_decay=0.0), steps=steps, batch_size=batch, clip=1.0)
    found = Experiment(
        World(Halves(Authors(text, length=size.length, most=size.most, test_share=0.1)), ABSENCES[absence]),
        size.decoder, Algorithm(local, **ALGORITHMS.get(method, {})), tasks.NextToken(), rounds,
        evaluate=Evaluate(every=max(1, rounds // 6), personal=True),
    )  # fmt: skip
    if method == FULL:
        return found.but(start=base.path)
    adapter = LoRA(size.rank, "layers.*", frozen_a=method == FFA)
    return found.but(model=Adapted(size.decoder, adapter, base.path, base.checksum))


def plan(scale: str) -> StudyPlan:
    """Pretraining; `finetuning` gives what follows from it."""
    size = SIZES[scale]
    _, steps, batch = size.tuning
    notes = [
        f"base: {size.decoder.layers} layers of {size.decoder.width}, bytes as tokens, {size.length} of them a sample, "
        f"pretrained on the first half of the authors of {' and '.join(size.texts)} together; one base for all seeds",
        f"fine-tuning: the other authors, {size.most * 128 // 1000} kB of text each at most, a tenth of it for tests; "
        f"{size.tuning[0]} rounds of {steps} steps of AdamW (fresh in every round) on {batch} samples; all are asked",
        f"adapters: rank {size.rank} beside every linear layer of every block; the base is on the devices before the "
        "first round and costs no bytes; full fine-tuning sends every parameter both ways",
        f"learning rate in {size.rates}, chosen for every method and text by its personal perplexity on seed "
        f"{TUNING_SEEDS} with {TUNED_AT} absent, and judged on {size.seeds} others; nothing else is tuned",
        f"{TIED}: 80 % of the first half of the clients are absent, and 20 % of the rest",
        "FedSA has no common model, so it has no global perplexity; a client that was never there has the base",
    ]
    shrunk = "less text, a smaller decoder, fewer rounds" if scale == "small" else "made-up text"
    return StudyPlan.at(scale, [Part(BASE, {BASE: pretraining(size)}, 1, TUNING_SEEDS)], notes, shrunk)


def chosen(size: AdapterSize, text: str, method: str, curves: Curves) -> float | None:
    options = {variant(text, TUNED_AT, method, rate): rate for rate in size.rates}
    return choose(curves, options, score, size.seeds)


def finetuning(scale: str, curves: Curves) -> list[Part]:
    """The runs that rates are chosen on, and when they have ended those that are compared."""
    if BASE not in curves.runs:
        return []
    size, base = SIZES[scale], base_of(curves)
    tuning = {
        variant(text, TUNED_AT, method, rate): experiment(size, text, TUNED_AT, method, rate, base)
        for text, method, rate in product(size.texts, METHODS, size.rates)
    }
    parts, judged = [Part("tuning", tuning, 1, TUNING_SEEDS)], {}
    for (text, absence), method in product(cases(scale), METHODS):
        if (rate := chosen(size, text, method, curves)) is not None:
            judged[variant(text, absence, method)] = experiment(size, text, absence, method, rate, base)
    return [*parts, Part("judged", judged, size.seeds)] if judged else parts


def cases(scale: str) -> list[tuple[str, str]]:
    return list(product(SIZES[scale].texts, SIZES[scale].absences))


def score(curve: Curve) -> float:
    """Minus the logarithm of the perplexity over the last fifth of the rounds, in percent."""
    return -100 * math.log(curve.end(5).mean())


def gain(curve: Curve) -> float:
    """Percent below the perplexity of the base, which is measured before the first round."""
    return score(curve) + 100 * math.log(curve.value_T[0])


def gain_within(curves: Curves, ours: str, theirs: str) -> dict[int, float]:
    """Percent below the base when a run had sent at most as many bytes as another one's whole run; its last measure."""
    used, allowed = spent(curves, ours), spent(curves, theirs)
    found = dict[int, float]()
    for seed, curve in curves.of(GLOBAL).finite(ours).items():
        value = within(curve, used[seed], allowed[seed][-1]) if seed in allowed else 0.0
        found |= {seed: 100 * math.log(curve.value_T[0] / value)} if value else {}
    return found


def rows(scale: str, curves: Curves) -> Iterator[ResultRow]:
    size = SIZES[scale]
    for (text, absence), method in product(cases(scale), METHODS):
        name = variant(text, absence, method)
        for metric, kind in ((GLOBAL, "global"), (PERSONAL, "personal")):
            measured = curves if metric == PERSONAL else curves.of(metric)
            if kind == "personal" or method != FEDSA:
                yield measured.row(name, f"{kind} perplexity", name, lambda curve: curve.end(5).mean())
                yield measured.row(name, f"{kind}, % below the base", name, gain)
        if method in (FEDIT, FFA, PRODUCT):
            found = gain_within(curves, name, variant(text, absence, FFA))
            yield row(name, "global at FFA's bytes, % below the base", found)
        for way in WAYS:
            yield row(name, f"MB {way.removeprefix('bytes_')}", megabytes(curves, name, (way,)))
        rate = chosen(size, text, method, curves)
        yield row(name, "learning rate", {} if rate is None else {0: rate})


def compared(curves: Curves, text: str, absences: Sequence[str], ours: str, theirs: str) -> BySeed:
    """How many percent lower the perplexity of a method is than another's: a mean over absences, seed by seed."""
    gaps = [
        difference(*(curves.each(variant(text, absence, method), score) for method in (ours, theirs)))
        for absence in absences
    ]
    return mean_over(gaps)


def cost(curves: Curves, text: str, method: str, more: str, less: str) -> BySeed:
    """How many percent higher a method's perplexity is with one absence than with another."""
    return difference(*(curves.each(variant(text, absence, method), score) for absence in (less, more)))


def claims(scale: str, curves: Curves) -> Iterator[Claim]:
    common = curves.of(GLOBAL)
    for text in SIZES[scale].texts:
        levels = [absence for absence in SIZES[scale].absences if absence != TIED]
        less, more, every = levels[0], levels[-1], f"{text}, mean over absences"
        yield above(
            f"{text}, {more} absent: FedIT's perplexity is below the base's (ours)",
            common.each(variant(text, more, FEDIT), gain), 0.0, "%",
        )  # fmt: skip
        for ours, theirs, measured, margin, words in (
            (FEDIT, FULL, common, NEAR_FULL, f"FedIT is within {NEAR_FULL:g} % of full fine-tuning, or better (LoRA)"),
            (FFA, FEDIT, common, NO_WORSE, f"FFA is no worse than FedIT by more than {NO_WORSE:g} % (FFA-LoRA)"),
            (PRODUCT, FEDIT, common, 0.0, "ProductMean is better than FedIT (FlexLoRA)"),
            (FEDSA, FEDIT, curves, 0.0, "FedSA's personal perplexity is lower than FedIT's (FedSA-LoRA)"),
            (FEDSA, FFA, curves, 0.0, "FedSA's personal perplexity is lower than FFA's (FedSA-LoRA)"),
        ):
            yield above(f"{every}: {words}", compared(measured, text, levels, ours, theirs), margin, "%")
        full, fedit = (variant(text, less, method) for method in (FULL, FEDIT))
        yield above(
            f"{text}: FedIT takes at least {FEWER:g} times fewer bytes than full fine-tuning (LoRA)",
            times_fewer(curves, full, fedit, FEWER), 0.0, f"times beyond {FEWER:g}",
        )  # fmt: skip
        if less != more:
            for ours, theirs, measured, words in (
                (FEDIT, FULL, common, "costs FedIT less than full fine-tuning"),
                (FFA, FEDIT, common, "costs FFA less than FedIT"),
                (FEDIT, FEDSA, curves, "costs FedIT less than FedSA, in personal perplexity"),
            ):
                lost = [cost(measured, text, method, more, less) for method in (theirs, ours)]
                yield above(f"{text}: absence of {more} instead of {less} {words} (ours)", difference(*lost), 0.0, "%")
        if TIED in SIZES[scale].absences and TUNED_AT in levels:
            for method in (FEDIT, FULL):
                words = f"{text}, {method}: absence tied to clients costs more than independent absence (ours)"
                yield above(words, cost(common, text, method, TIED, TUNED_AT), 0.0, "%")


def figures(scale: str) -> dict[str, list[Chart]]:
    """Perplexity over the bytes that have travelled, where half are absent (or, without such runs, most)."""
    size, charts = SIZES[scale], []
    absence = TUNED_AT if TUNED_AT in size.absences else size.absences[-1]
    for text, (metric, kind) in product(size.texts, ((GLOBAL, "global"), (None, "personal"))):
        lines = {method: variant(text, absence, method) for method in (FEDIT, FFA, PRODUCT, FULL, FEDSA)}
        charts.append(Chart(f"{text}, {absence} absent: {kind} perplexity", lines, metric, "number", bytes=True))
    return {"adapters.svg": charts}


STUDY = Study("adapters", __doc__, PERSONAL, plan, rows, claims, figures, (GLOBAL, *WAYS), then=finetuning)
