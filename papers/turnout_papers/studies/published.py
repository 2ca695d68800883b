"""Numbers as the papers print them."""

from __future__ import annotations

# Flexible participation, Table 3: (B over A, C over B) in percent for |T| = 1..8.
TABLE_3: dict[tuple[str, str], tuple[tuple[float, float], ...]] = {
    ("MNIST", "IID"): (
        (-0.6, 0.3), (1.9, 0.1), (5.6, 0.1), (8.3, 0.7), (10.4, 2.6), (14.0, 2.2), (5.8, 1.9), (11.8, 2.4),
    ),
    ("MNIST", "non-IID"): (
        (0.2, -0.3), (9.5, 1.8), (19.3, 1.6), (33.8, 3.3), (33.2, 3.2), (28.7, 6.2), (36.0, 3.6), (43.4, 6.9),
    ),
    ("EMNIST", "IID"): (
        (0.7, -0.6), (0.9, 0.1), (4.2, 0.7), (4.8, 1.0), (6.9, 1.1), (6.6, 1.2), (4.0, 1.5), (7.6, 1.2),
    ),
    ("EMNIST", "non-IID"): (
        (-0.1, -0.7), (17.0, -2.0), (34.2, 1.8), (37.9, 4.8), (30.2, 2.5), (22.5, 3.0), (25.3, 2.2), (18.6, 1.8),
    ),
    ("SYNTHETIC", "IID"): (
        (-0.6, 0.5), (2.1, 0.1), (6.6, 0.0), (9.0, 0.7), (11.6, 3.0), (16.4, 2.5), (6.3, 1.9), (14.4, 2.8),
    ),
    ("SYNTHETIC", "non-IID"): (
        (0.1, -0.4), (9.6, 1.5), (22.2, 1.8), (38.2, 3.2), (33.3, 3.9), (30.5, 7.9), (37.9, 4.5), (41.6, 8.0),
    ),
}  # fmt: skip

# Flexible participation, Table 4: rounds after τ0 until accuracy is back at that of round τ0 - 1: (fast, vanilla).
TABLE_4: dict[str, dict[int, tuple[int, int]]] = {
    "MNIST": {10: (4, 4), 30: (22, 27), 50: (55, 63), 70: (59, 66)},
    "EMNIST": {10: (4, 3), 30: (11, 12), 50: (14, 19), 70: (21, 24)},
    "SYNTHETIC": {10: (1, 1), 30: (4, 6), 50: (7, 12), 70: (3, 8)},
}

# Flexible participation, Table 5: rounds after τ0 until the losses of include and exclude coincide, by (α, β) and τ0.
TABLE_5: dict[float, dict[int, int]] = {
    0.1: {10: 2, 15: 5, 20: 3, 25: 3, 30: 9, 35: 3, 40: 10, 45: 26, 50: 40},
    0.5: {10: 1, 15: 3, 20: 9, 25: 14, 30: 13, 35: 7, 40: 12, 45: 36, 50: 34},
    1.0: {10: 10, 15: 9, 20: 27, 25: 18, 30: 34, 35: 17, 40: 28, 45: 62, 50: 77},
}

# EFL, Table 2: best mean test accuracy over clients, percent.
TABLE_2_BMTA: dict[str, dict[str, float]] = {
    "MNIST": {"FedAvg": 98.30, "FedGATE": 99.15, "VRL-SGD": 98.86, "APFL": 98.49, "FedAMP": 99.06, "EFL": 99.10},
    "CIFAR-100": {"FedAvg": 2.27, "FedGATE": 80.94, "VRL-SGD": 2.81, "APFL": 77.19, "FedAMP": 81.17, "EFL": 81.38},
    "Sentiment140": {"FedAvg": 59.14, "FedGATE": 68.84, "VRL-SGD": 68.62, "APFL": 68.81, "FedAMP": 69.01, "EFL": 68.95},
    "Shakespeare": {"FedAvg": 51.35, "FedGATE": 54.71, "VRL-SGD": 52.33, "APFL": 55.27, "FedAMP": 58.42, "EFL": 60.49},
}

# MTFL, Table 1: rounds to 95 % (MNIST) or 55 % (CIFAR), (FedAvg, FedAdam); W 200 C .5, 200 C 1, 400 C .5, 400 C 1.
_TABLE_1_ADAM: dict[tuple[str, bool], tuple[tuple[int, int], ...]] = {
    ("MNIST", True): ((11, 10), (11, 9), (19, 14), (19, 15)),
    ("MNIST", False): ((186, 42), (183, 35), (110, 44), (109, 44)),
    ("CIFAR", True): ((14, 20), (12, 20), (18, 18), (18, 19)),
    ("CIFAR", False): ((217, 80), (212, 100), (261, 99), (207, 144)),
}
TABLE_1_ADAM: dict[tuple[str, bool, int, float, str], float] = {
    (data, iid, clients, share, method): cell[i]
    for (data, iid), cells in _TABLE_1_ADAM.items()
    for (clients, share), cell in zip(((200, 0.5), (200, 1.0), (400, 0.5), (400, 1.0)), cells, strict=True)
    for i, method in enumerate(("FedAvg", "FedAdam"))
}

# MTFL, Figures 4 to 6, as its text gives them (percent): (classes, noisy) -> method -> mean personal accuracy.
FIGURES_4_TO_6: dict[tuple[int, bool], dict[str, float]] = {
    (4, False): {"Independent": 60, "FedAdam": 64, "MT-FedAdam": 78},
    (4, True): {},  # "increase UA by 16 %" over independent; FedAdam not above it
    (2, True): {"Independent": 75, "FedAdam": 30, "MT-FedAdam": 84},
}

# Labels and models, Table 3 (percent, averages over 15 iterations): user -> (local update, global update).
TABLE_3_LABELS: dict[str, tuple[float, float]] = {
    "User_1": (63.66, 81.02),
    "User_2": (74.3, 97.47),
    "User_3": (68.72, 78.02),
}

# Labels and models, Table 4: on a Raspberry Pi 2.
TABLE_4_LABELS = {"s an epoch": 1.8, "ms an inference": 15.0}

# MTFL, Table 2, on Raspberry Pis: seconds a round, and percent of them in each phase; MNIST, then CIFAR-10.
TABLE_2_TESTBED: dict[str, dict[str, float]] = {
    "FedAvg": {"round": 30, "download": 5, "training": 88, "upload": 6, "server": 1},
    "MTFL": {"round": 38, "download": 11, "training": 76, "upload": 12, "server": 1},
    "Independent": {"round": 29},
    "CIFAR-10 FedAvg": {"round": 108, "download": 5, "training": 86, "upload": 5, "server": 4},
    "CIFAR-10 MTFL": {"round": 136, "download": 11, "training": 74, "upload": 12, "server": 3},
    "CIFAR-10 Independent": {"round": 100},
}

# McMahan et al. (2017): rounds to 97 % (2NN, E = 1) and 99 % (CNN, E = 5) by (network, IID, B or None, C). A cell that
# the table leaves empty ("-") is left out.
FEDAVG_ROUNDS: dict[tuple[str, bool, int | None, float], int] = {
    (network, iid, batch, share): rounds
    for network, iid, batch, column in (
        ("2NN", True, 10, (316, 87, 77, 75, 70)),
        ("2NN", False, 10, (3275, 664, 619, 443, 380)),
        ("2NN", True, None, (1455, 1474, 1658)),
        ("2NN", False, None, (4278, 1796, 1528)),
        ("CNN", True, 10, (50, 18, 18, 18, 16)),
        ("CNN", False, 10, (956, 206, 200, 261, 97)),
        ("CNN", True, None, (387, 339, 337, 164, 246)),
        ("CNN", False, None, (1181, 1100, 978, 1067)),
    )
    for share, rounds in zip((0.0, 0.1, 0.2, 0.5, 1.0), column, strict=False)
}

# SCAFFOLD (Karimireddy et al., 2020), Table 3: rounds to 50 % on EMNIST by (method, epochs, percent of similarity).
_NEVER = "1000+"
_TABLE_3_SCAFFOLD: dict[tuple[str, int], tuple[int | str, int, int]] = {
    ("SGD", 1): (317, 365, 416),
    ("SCAFFOLD", 1): (77, 62, 60),
    ("SCAFFOLD", 5): (152, 20, 10),
    ("SCAFFOLD", 10): (286, 16, 7),
    ("SCAFFOLD", 20): (266, 11, 4),
    ("FedAvg", 1): (258, 74, 83),
    ("FedAvg", 5): (428, 34, 10),
    ("FedAvg", 10): (711, 25, 6),
    ("FedAvg", 20): (_NEVER, 18, 4),
    ("FedProx", 1): (_NEVER, 979, 459),
    ("FedProx", 5): (_NEVER, 794, 351),
    ("FedProx", 10): (_NEVER, 894, 308),
    ("FedProx", 20): (_NEVER, 916, 351),
}
SCAFFOLD_ROUNDS: dict[tuple[str, int, int], int | str] = {
    (*of, similar): rounds
    for of, by_similarity in _TABLE_3_SCAFFOLD.items()
    for similar, rounds in zip((0, 10, 100), by_similarity, strict=True)
}

# FedBuff (Nguyen et al., 2022), abstract: how many times more client updates others need ("3.3", "up to 2.5").
FEDBUFF_SPEED_UPS: dict[str, float] = {"FedAvg": 3.3, "asynchronous": 2.5}

# PFLlib's leaderboard (pfllib.com/benchmark.html), Fashion-MNIST: best accuracy in percent, three trials, by split.
PFLLIB_FASHION: dict[tuple[str, str], str] = {
    ("pathological", "FedAvg"): "80.41 ± 0.08",
    ("pathological", "FedProx"): "78.08 ± 0.15",
    ("pathological", "APFL"): "99.41 ± 0.02",
    ("pathological", "FedAMP"): "99.42 ± 0.03",
    ("practical", "FedAvg"): "85.85 ± 0.19",
    ("practical", "FedProx"): "85.63 ± 0.57",
    ("practical", "APFL"): "97.25 ± 0.08",
    ("practical", "FedAMP"): "97.20 ± 0.06",
}
