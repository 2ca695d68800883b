"""The numbers of replication.md are those of the records: sentences are made from these, and must be on the page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from turnout_papers.studies.published import TABLE_3

DOCS = Path(__file__).parent.parent / "docs"
PAGE_LINES = (DOCS / "replication.md").read_text("utf-8").splitlines()
PAGE = " ".join(" ".join(PAGE_LINES).split())
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
Read = Callable[[str, str], float]

# Numbers that are made of several of the records: what they are, and the calculation (or the sentence it stands in).
DERIVED = {
    "34.0": "the mean of Table 3's column over T >= 3", "10.7": "the same",
    "32.4": "the same, MNIST", "4.1": "the same, C over B",
    "0.8": "99.10 - 98.30", "79": "81.38 - 2.27", "9.1": "60.49 - 51.35", "9.9": "39.76 - 29.88",
    "500": "rounds", "100": "runs", "1.29": "ratios of the errors", "1.17": "the same", "1.03": "the same",
    "1e6": "order", "39": "runs: 13 settings, 3 seeds", "1.24": "25.6 / 20.6", "1.26": "136 / 108",
    "1.18": "20.6 / 17.5", "1.08": "108 / 100",
    "5.4": "4 scenarios, and 7 of 20 pairs of seeds in the other 4", "11.8": "6.4 + 5.4", "1.4": "7 / 5; 27.4 / 19.6",
    "0.001": "a rate", "1.22": "10.05 / 8.22", "1.27": "38 / 30",
}  # fmt: skip


def rows_of(*pages: str) -> dict[tuple[str, str], dict]:
    """The rows of records by case and metric; of a number that is in several, that of the last."""
    found = {}
    for page in pages:
        rows = json.loads((DOCS / "studies" / "paper" / f"{page}.json").read_text("utf-8"))["rows"]
        found |= {(row["case"], row["metric"]): row for row in rows}
    return found


def read(page: str) -> Read:
    """A number of a study's record by case and metric."""
    found = rows_of(*page.split(" and "))
    return lambda case, metric: float(found[case, metric]["ours"])


def shown(row: dict, places: int = 0) -> str:
    return f"{row['ours']:.{places}f} ± {row['spread']:.{places}f}"


def gradients(r: Read) -> str:
    methods = ("MT-FedAdam", "FedAdam", "Independent")
    first, last = ([r(layer, f"{m} ratio") for m in methods] for layer in ("first layer W", "output W"))
    return (
        f"first layer: personal {first[0]:.2f}, FedAdam {first[1]:.1f}, independent {first[2]:.2f}; "
        f"output layer {last[0]:.2f}, {last[1]:.2f}, {last[2]:.2f}"
    )


def figure_4(r: Read) -> str:
    mt, fed, alone = (r("4 classes", f"personal {m}") for m in ("MT-FedAdam", "FedAdam", "Independent"))
    over, central = r("4 classes", "MT over independent"), r("4 classes", "central MT-FedAdam")
    return (
        f"personal {mt:.1f} (78), FedAdam {fed:.1f} (64), independent {alone:.1f} (60); "
        f"over independent {over:.1f} (18); central {central:.1f} (63)"
    )


def figure_6(r: Read) -> str:
    mt, fed, alone = (r("2 classes, noise", f"personal {m}") for m in ("MT-FedAdam", "FedAdam", "Independent"))
    over = r("2 classes, noise", "MT over independent")
    return f"{mt:.1f} (84), FedAdam {fed:.1f} (30), independent {alone:.1f} (75); over independent {over:.1f} (9)"


def friends_cifar(r: Read) -> str:
    over = [r(f"CIFAR-10 clustered alpha={a}", "FDMS over Dropout") for a in (0.3, 0.5, 0.7)]
    stale = [r(f"CIFAR-10 clustered alpha={a}", "FDMS over Stale") for a in (0.3, 0.5, 0.7)]
    full = r("CIFAR-10 clustered alpha=0.3", "accuracy Full")
    return (
        f"FDMS over Dropout {over[0]:+.1f}, {over[1]:+.1f}, {over[2]:+.1f} points at alpha = 0.3, 0.5, 0.7; over Stale "
        f"{stale[0]:.1f}, {stale[1]:.1f} (both refuted), {stale[2]:+.1f} (holds); Full {full:.1f}"
    )


def bytes_mnist(r: Read) -> str:
    lost = r("MNIST: dense", "accuracy") - r("MNIST: ternary 1%", "accuracy")
    times = r("MNIST: ternary 1%", "times fewer bytes than dense")
    return f"{times:.0f} times fewer bytes for {lost:.1f} points of accuracy"


def bytes_cifar(r: Read) -> str:
    dense, ternary = (r(f"CIFAR-10: {name}", "accuracy") for name in ("dense", "ternary 1%"))
    times = r("CIFAR-10: ternary 1%", "times fewer bytes than dense")
    return f"{times:.0f} times fewer bytes for {dense - ternary + 1e-9:.1f} points of {dense:.1f}"


def labels(r: Read) -> str:
    gain = [r(f"average, User_{i}", "increase") for i in (2, 3, 1)]
    return f"{gain[0]:+.1f} and {gain[1]:+.1f} points for two users, {gain[2]:.1f} for the third (23.2, 9.3, 17.4)"


def synthetic(r: Read) -> str:
    efl, avg, prox = (r(f"SYNTHETIC {m}", "lost") for m in ("EFL", "FedAvg", "FedProx"))
    return f"EFL loses {efl:.1f} points, FedAvg {avg:.1f}, FedProx {prox:.1f}, SCAFFOLD none"


def noniid(r: Read) -> str:
    efl, avg, prox, apfl = (r(f"CIFAR-10 {m}", "lost") for m in ("EFL", "FedAvg", "FedProx", "APFL"))
    return f"EFL loses {efl:.1f} points, FedAvg {avg:.1f}, FedProx {prox:.1f}, APFL {apfl:.1f}"


def arrivals_emnist(r: Read) -> str:
    fast, vanilla = ([r(f"EMNIST τ0={t}", f"rounds, {k}") for t in (10, 30, 50, 70)] for k in ("fast", "vanilla"))
    return f"fast {', '.join(f'{v:.1f}' for v in fast)} rounds, vanilla {', '.join(f'{v:.1f}' for v in vanilla)}"


def adam_readings(r: Read) -> str:
    base = "MNIST non-IID W=200 C=0.5"
    avg, adam = (
        [r(f"{base}{reading}", f"rounds {m}") for reading in ("", " shards", " he", " shards he")]
        for m in ("FedAvg", "FedAdam")
    )
    return (
        f"classes drawn, torch's first weights: FedAvg {avg[0]:.0f} rounds, FedAdam {adam[0]:.0f}; shards, torch: "
        f"{avg[1]:.0f} and {adam[1]:.0f}; classes, He: {avg[2]:.0f} and {adam[2]:.0f}; shards, He: {avg[3]:.0f} and "
        f"{adam[3]:.0f}"
    )


def adam_glorot(r: Read) -> str:
    drawn, shards = (f"MNIST non-IID W=200 C=0.5{split} glorot" for split in ("", " shards"))
    assert r(drawn, "rounds FedAdam") == 100  # as long as a run lasts
    return (
        f"classes drawn: FedAvg {r(drawn, 'rounds FedAvg'):.0f} rounds, FedAdam does not arrive in 100 in any seed; "
        f"shards: {r(shards, 'rounds FedAvg'):.0f} and {r(shards, 'rounds FedAdam'):.0f}"
    )


def adam_cifar_all(r: Read) -> str:
    (avg_200, adam_200), (avg_400, adam_400) = (
        [r(f"CIFAR non-IID W={w} C=1", f"rounds {m}") for m in ("FedAvg", "FedAdam")] for w in (200, 400)
    )
    return (
        f"FedAvg {avg_200:.1f} rounds with W = 200 (212), {avg_400:.1f} with W = 400 (207); FedAdam with W = 400 "
        f"{adam_400:.1f} (144), sooner in 5 of 5 seeds; with W = 200 it arrives in 1 of 5; where the others count as "
        f"100 the mean is {adam_200:.1f} (100)"
    )


def friends_epochs(r: Read) -> str:
    cases = [f"CIFAR-10 clustered {words} alpha=0.5" for words in ("E=5", "FedProx")]
    over, stale = ([r(case, f"FDMS over {m}") for case in cases] for m in ("Dropout", "Stale"))
    return (
        f"FDMS over Dropout {over[0]:+.1f} (E = 5) and {over[1]:+.1f} points (FedProx), over Stale {stale[0]:+.1f} and "
        f"{stale[1]:+.1f}; Full {r(cases[0], 'accuracy Full'):.1f} and {r(cases[1], 'accuracy Full'):.1f}"
    )


def friends_varied(r: Read) -> str:
    few, many, usual = (f"CIFAR-10 clustered {words}alpha=0.5" for words in ("E=1 ", "K=40 ", ""))
    over, stale = ([r(case, f"FDMS over {m}") for case in (few, many)] for m in ("Dropout", "Stale"))
    return (
        f"FDMS over Dropout {over[0]:+.1f} (E = 1) and {over[1]:+.1f} points (K = 40, where it gains "
        f"{over[1] - r(usual, 'FDMS over Dropout'):.1f} more than at K = 20: undecided), over Stale {stale[0]:+.1f} "
        f"and {stale[1]:.1f}"
    )


def friends_levels(r: Read) -> str:
    low, high = (f"CIFAR-10 general {level} alpha=0.5" for level in ("low", "high"))
    behind = [r(case, "accuracy Full") - r(case, "accuracy FDMS") for case in (low, high)]
    behind_full = f"behind Full {behind[0]:.1f} and {behind[1]:.1f}"
    far = shown(rows_of("friends-cifar-varied")[high, "FDMS over Stale"], 1)
    return f"over Stale {r(low, 'FDMS over Stale'):+.1f} and {far} (digits -6.1 ± 1.2), {behind_full}"


def table_3(case: str, r: Read) -> str:
    """Both gains for T = 2 to 8, and what the paper has."""
    data, split = case.replace(" short", "").split()
    words = []
    for k, metric in enumerate(("B over A", "C over B")):
        ours = ", ".join(f"{r(f'{case} |T|={j}', metric):.1f}" for j in range(2, 9))
        printed = ", ".join(str(pair[k]) for pair in TABLE_3[data, split][1:])
        words.append(f"{metric} {'' if k else 'at T = 2 to 8: '}{ours} {'' if k else 'points '}({printed})")
    return ", ".join(words)


def emnist(r: Read) -> str:
    case = "EMNIST non-IID |T|=8"
    ends = [r(case, f"accuracy {scheme}") for scheme in "ABC"]
    return (
        f"B over A {r(case, 'B over A'):.1f} points (18.6), C over B {r(case, 'C over B'):.1f} (1.8); "
        f"A, B and C end at {ends[0]:.1f}, {ends[1]:.1f} and {ends[2]:.1f} %"
    )


def friends_fashion(r: Read) -> str:
    over = [r(f"FMNIST clustered alpha={a}", "FDMS over Dropout") for a in (0.3, 0.5, 0.7)]
    return f"FDMS over Dropout {over[0]:.1f}, {over[1]:+.1f}, {over[2]:+.1f} points at alpha = 0.3, 0.5, 0.7 where"


def friends_printed(r: Read) -> str:
    case = "MNIST clustered rate=0.1 all samples alpha={}"
    over, stale = ([r(case.format(a), f"FDMS over {m}") for a in (0.3, 0.5, 0.7)] for m in ("Dropout", "Stale"))
    return (
        f"FDMS over Dropout {over[0]:+.1f}, {over[1]:+.1f}, {over[2]:+.1f} points at alpha = 0.3, 0.5, 0.7, over Stale "
        f"{stale[0]:.1f}, {stale[1]:+.1f}, {stale[2]:+.1f}; Full {r(case.format(0.3), 'accuracy Full'):.1f}"
    )


def noisy_gradients(r: Read) -> str:
    layers = {
        "first layer": "first layer W",
        "γ": "first BatchNorm γ",
        "β": "first BatchNorm β",
        "output layer": "output W",
    }

    def of(method: str) -> str:
        both = {name: [r(at, f"{method} at first, {who}") for who in ("noisy", "clean")] for name, at in layers.items()}
        return ", ".join(f"{name} {noisy:.3f} and {clean:.3f}" for name, (noisy, clean) in both.items())

    return f"{of('MT-FedAdam')}; with FedAdam: {of('FedAdam')}"


def mcmahan(r: Read) -> str:
    small, whole = r("2NN IID B=10 C=0.1", "rounds"), r("2NN IID B=all C=0.1", "rounds")
    skewed = r("2NN non-IID B=10 C=0.1", "rounds")
    return (
        f"from all samples to batches of 10 a factor of {whole / small:.0f}, printed {1474 / 87:.0f}; batches of 10, "
        f"C = 0.1: from non-IID to IID {skewed / small:.1f}, printed {664 / 87:.1f}"
    )


def mcmahan_cnn(r: Read) -> str:
    one, ten = (r(f"CNN IID B=10 C={share}", "rounds") for share in ("0", "0.1"))
    return f"C = 0 needs {one:.1f} rounds (50 printed), C = 0.1 {ten:.1f} (18)"


def fedprox(r: Read) -> str:
    case = "SYNTHETIC(1,1), 90 % stragglers: FedProx μ={}"
    whole, part = (r(case.format(mu), "accuracy over FedAvg, points") for mu in (1, 0))
    return f"μ = 1 gains {whole:.1f} points over FedAvg (90 % interval 9.3 to 20.8), of which {part:.1f} come from"


def scaffold(r: Read) -> str:
    avg = [r(f"FedAvg E={e} 0 %", "rounds") for e in (5, 10, 20)]
    return f"from E = 5 on ({avg[0]:.0f}, {avg[1]:.0f}, {avg[2]:.0f} rounds; 428, 711 and over 1,000 printed)"


SENTENCES: dict[str, tuple[str, Callable[[Read], str]]] = {
    "Figure 7": ("gradients", gradients),
    "Figure 4": ("personal", figure_4),
    "Figure 6": ("personal", figure_6),
    "Figure 1, CIFAR-10": ("friends-cifar", friends_cifar),
    "ternary, MNIST": ("bytes-mnist", bytes_mnist),
    "ternary, CIFAR-10": ("bytes-cifar", bytes_cifar),
    "Table 3, labels": ("labels", labels),
    "Figure 1, synthetic": ("noniid-synthetic", synthetic),
    "Figure 1, EFL": ("noniid-cifar", noniid),
    "Table 4, EMNIST": ("arrivals-emnist", arrivals_emnist),
    "Table 1, readings": ("adam-readings", adam_readings),
    "Table 1, Glorot": ("adam-glorot", adam_glorot),
    "Table 1, CIFAR-10, C = 1": ("adam-cifar-all", adam_cifar_all),
    "Figures 6 and 8, CIFAR-10": ("friends-cifar-epochs", friends_epochs),
    "Figures 6 and 7, CIFAR-10": ("friends-cifar-varied", friends_varied),
    "Figure 5, CIFAR-10": ("friends-cifar-varied", friends_levels),
    "Table 3, EMNIST": ("participation-emnist", emnist),
    "Table 3, MNIST IID": ("participation-mnist-iid", partial(table_3, "MNIST IID")),
    "Table 3, EMNIST, 25 rounds": ("participation-emnist-short", partial(table_3, "EMNIST short non-IID")),
    "Table 3, EMNIST IID, 25 rounds": ("participation-emnist-short-iid", partial(table_3, "EMNIST short IID")),
    "Figure 9": ("friends-fashion", friends_fashion),
    "Figure 1, as printed": ("friends-mnist-readings", friends_printed),
    "Figure 7, noisy clients": ("gradients", noisy_gradients),
    "McMahan, Table 1": ("fedavg-five and fedavg", mcmahan),
    "McMahan, the CNN": ("fedavg-cnn", mcmahan_cnn),
    "FedProx, Figure 7": ("fedprox", fedprox),
    "SCAFFOLD, Table 3": ("scaffold", scaffold),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences_are_made_from_the_records(name: str) -> None:
    page, sentence = SENTENCES[name]
    made = sentence(read(page))
    assert made in PAGE, f"the record of {page} says: {made}"


def test_the_table_of_mcmahan_is_made_from_the_record() -> None:
    rows = rows_of("fedavg-five", "fedavg").items()
    found = {case: row for (case, metric), row in rows if metric == "rounds" and row["ours"] is not None}
    assert len(found) == 16
    for case, row in found.items():
        cell = f"{shown(row)} ({row['published']})"
        share = case.rpartition("C=")[2]
        line = next(line for line in PAGE_LINES if line.startswith(f"| {share} | "))
        assert f" {cell} |" in line, f"{case} is {cell}"


def test_the_table_of_the_cnn_is_made_from_the_records() -> None:
    """In the columns of the page; a cell that is in several records is that of the last."""
    rows = rows_of("fedavg-cnn-all", "fedavg-cnn", "fedavg-cnn-more", "fedavg-cnn-rest").items()
    found = {case: row for (case, metric), row in rows if metric == "rounds" and isinstance(row["ours"], float)}
    assert len(found) == 17
    begin = next(i for i, line in enumerate(PAGE_LINES) if line.startswith("The CNN (E = 5"))
    columns = ["IID B=10", "non-IID B=10", "IID B=all", "non-IID B=all"]
    for case, row in found.items():
        data, _, share = case.removeprefix("CNN ").partition(" C=")
        line = next(line for line in PAGE_LINES[begin:] if line.startswith(f"| {share} | "))
        seeds = "" if row["repeats"] == 5 else f", {row['repeats']} seeds"
        assert line.strip("| ").split(" | ")[1 + columns.index(data)] == f"{shown(row)} ({row['published']}){seeds}", (
            case
        )


def test_the_tables_of_fedprox_and_scaffold_are_made_from_their_records() -> None:
    """A line for each share of stragglers, or each similarity and number of epochs; cells as the records have them."""
    found = dict[tuple[str, str], str]()
    for page, metric in (("fedprox", "accuracy, %"), ("scaffold", "rounds")):
        rows = json.loads((DOCS / "studies" / "paper" / f"{page}.json").read_text("utf-8"))["rows"]
        for row in (row for row in rows if row["metric"] == metric):
            if page == "fedprox" and row["case"].startswith("SYNTHETIC(1,1)"):
                slow = row["case"].partition(", ")[2].partition(" %")[0]
                found[f"| {slow} % | ", row["case"]] = f" {row['ours']:.1f} ± {row['spread']:.1f} |"
            elif page == "scaffold":
                epochs, similar = row["case"].replace("E=", "").split()[1:3]
                cell = f" {row['ours']:.0f} ± {row['spread']:.0f} ({row['published']}) |"
                found[f"| {similar} %, E = {epochs} | ", row["case"]] = cell
    assert len(found) == 10 + 39
    for (begins, case), cell in found.items():
        assert cell in next(line for line in PAGE_LINES if line.startswith(begins)), f"{case} is {cell}"


def test_the_table_of_pfllib_is_made_from_its_record() -> None:
    rows = rows_of("pfllib")
    for split, words in (("pathological", "two labels a client"), ("practical", "Dirichlet(0.1)")):
        cells = [rows[f"{split} {m}", "best accuracy, %"] for m in ("FedAvg", "FedProx", "SCAFFOLD", "APFL", "FedAMP")]
        line = " | ".join([f"{split}, {words}", *(f"{c['ours']:.1f} ± {c['spread']:.1f}" for c in cells)])
        assert f"| {line} |" in PAGE_LINES


def test_the_table_of_fedbuff_is_made_from_its_record() -> None:
    """At paper scale; the small one is in no record."""
    rows = rows_of("fedbuff")
    own = [rows["FedBuff", metric] for metric in ("client updates", "simulated seconds")]
    assert f"| FedBuff | {' | | '.join(shown(r) for r in own)} | |" in PAGE_LINES
    names = {"FedAvg": "FedAvg, waits for its hundred", "FedAvg over-selection": "FedAvg, over-selection"}
    published = {"FedAvg": " (3.3)", "asynchronous": " (up to 2.5)"}
    for case in ("FedAvg", "FedAvg over-selection", "asynchronous"):
        updates, more, seconds, longer = (
            rows[case, metric]
            for metric in ("client updates", "updates over FedBuff's", "simulated seconds", "seconds over FedBuff's")
        )
        cells = [
            shown(updates),
            f"{shown(more, 1)}{published.get(case, '')}",
            shown(seconds),
            shown(longer, 1),
        ]
        assert f"| {' | '.join([names.get(case, f'{case}, K = 1'), *cells])} |" in PAGE_LINES


def test_every_number_of_the_tables_is_on_a_page_that_its_row_links_to() -> None:
    """Rounded as it is shown; a number that is made of several is listed above."""
    links: list[str] = []
    lost = []
    for line in PAGE_LINES:
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("| ") or len(cells) != 4:
            continue
        own = re.findall(r"\((studies/[\w/-]+\.md)\)", cells[1])
        links = own + links if "the same" in cells[1] else own
        if links:
            known = [v for link in links for v in numbers(DOCS / link)]
            lost += [f"{cells[0]}: {word}" for word in NUMBER.findall(cells[3]) if not near(word, known)]
    assert not lost


def numbers(page: Path) -> list[float]:
    """All numbers of a page, and those of its record as they were before they were rounded."""
    found = [float(word.replace(",", "")) for word in NUMBER.findall(page.read_text("utf-8"))]
    if page.with_suffix(".json").exists():
        rows = json.loads(page.with_suffix(".json").read_text("utf-8"))["rows"]
        found += [row[key] for row in rows for key in ("ours", "spread") if isinstance(row[key], float)]
    return found


def near(word: str, known: list[float]) -> bool:
    places = len(word.partition(".")[2].partition("e")[0])
    value = abs(float(word.replace(",", "")))
    return word in DERIVED or any(abs(abs(v) - value) <= 0.5 * 10**-places + 1e-9 for v in known)
