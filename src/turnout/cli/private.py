"""`turnout privacy`: ε of a run, or of a turnout that was logged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.common import say
from turnout.errors import UserError

IF = "valid only if who turns up does not depend on the models that were released"
NOT_COVERED = (
    "not covered: records.sqlite, turnout.csv and the report (losses, sample counts and metrics of clients are as they "
    "were), clients/, checkpoint.safetensors; secret: noise.key"
)
SECURE = (
    "against the server too: it sees sums of at least {least} devices, each of which added its noise",
    "not covered: who took part, how much work each did, sample counts and times",
)


def privacy(
    of: Annotated[Path, typer.Argument(metavar="RUN|LOG.csv", help="A run's folder, or a CSV of round,client,work.")],
    delta: Annotated[float | None, typer.Option(help="δ, for a log.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε, for a log: which noise it takes.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="For a log: which ε this noise gives.")] = None,
    noise: Annotated[str, typer.Option(help="gaussian, banded or blt.")] = "gaussian",
    separation: Annotated[int, typer.Option(metavar="B", help="Least rounds between participations.")] = 1,
    most: Annotated[int | None, typer.Option(metavar="K", help="Most participations of a client.")] = None,
) -> None:
    """Show ε of a run, or of a turnout that was logged.

    Of a run: ε that it promises, and ε of the turnout that happened. Of a log: what a server that enforces a least
    separation would have declined, and the noise for an ε, or the ε of a noise.

    \\b
    turnout privacy runs/mine
    turnout privacy runs/mine/turnout.csv --epsilon 4 --delta 1e-6 --separation 10
    turnout privacy checkins.csv --noise-multiplier 2 --delta 1e-6 --noise blt --separation 20 --most 5
    """
    if (of / "experiment.toml").is_file():
        lines = _of_run(of)
    else:
        if delta is None or (epsilon is None) == (noise_multiplier is None):
            raise UserError("for a log give --delta, and one of --epsilon and --noise-multiplier")
        lines = _of_log(of, delta, epsilon, noise_multiplier, noise, separation, most)
    for line in lines:
        say(line, stderr=False)


def _of_run(folder: Path) -> list[str]:
    import numpy as np

    from turnout.experiment import Algorithm
    from turnout.parts.secure import SecureSum
    from turnout.running.result import Run, open_run

    run = open_run(folder)
    algorithm = run.experiment.algorithm if isinstance(run, Run) else None
    private, secure = (getattr(algorithm, name, None) for name in ("privacy", "secure"))
    if private is None or not isinstance(run, Run):
        raise UserError(f"{folder} is not a private run: its experiment has no algorithm.privacy")
    private = private.tied(run.experiment.rounds)
    state = private.begin()
    with run.records() as records:
        columns, done = records.rounds(), run.rounds()
    found = {n: np.asarray(columns.get(n, [np.nan]), dtype=float) for n in ("epsilon", "epsilon_realised")}
    so_far, realised = (float(np.nanmax(value)) if np.isfinite(value).any() else 0.0 for value in found.values())
    covered = ["covered: the models, and what clients download", NOT_COVERED]
    if not isinstance(algorithm, Algorithm):
        covered[0] = "covered: the global scores, and what clients download; not the clients' own models"
    if private.noise_at == "client":
        covered = [
            "covered: all that clients send, so also what the server has",
            "not covered: clients/ of a simulation",
        ]
    if isinstance(secure, SecureSum):
        covered = [line.format(least=secure.least) for line in SECURE]
    often = "as often as that allows" if private.most is None else f"at most {private.most} times"
    return [
        f"{folder}: noise {private.noise}, its multiplier {state['multiplier']:.4g}, clip {private.clip:g}, "
        f"n0 {private.n0:g}",
        f"enforced: a client takes part {often}, at least {private.min_separation} rounds apart",
        f"ε = {so_far:.4g} at δ = {private.delta:g} after {done} rounds, for that participation",
        f"ε = {private.epsilon_after(state, run.experiment.rounds):.4g} after all {run.experiment.rounds} rounds",
        f"ε = {realised:.4g} for the turnout that happened; {IF}",
        *covered,
    ]


def _of_log(
    path: Path,
    delta: float,
    epsilon: float | None,
    multiplier: float | None,
    noise: str,
    separation: int,
    most: int | None,
) -> list[str]:
    import torch

    from turnout.parts.privacy.accountant import epsilon_of, mu_of
    from turnout.parts.privacy.factorisation import factorise
    from turnout.parts.privacy.ledger import count_again, kept_participations
    from turnout.parts.privacy.private import Private
    from turnout.world.log import read_turnout

    table = read_turnout(path)
    Private(1.0, 1, delta, epsilon, multiplier, noise, separation, most).tied(table.rounds)  # checks the settings
    came = table.work_N > 0
    if not came.any():
        raise UserError(f"{path}: no client took part in any round")
    all_M = torch.from_numpy(table.client_N[came]).long(), torch.from_numpy(table.round_N[came]).long()
    client_M, round_M = kept_participations(all_M[0], all_M[1], separation, most)
    declined = len(all_M[0]) - len(client_M)
    factorisation = factorise(noise, table.rounds, separation, most)
    enforced = factorisation.sensitivity(table.rounds, separation, most)
    realised = min(enforced, count_again(client_M, round_M, factorisation, table.rounds)["most"] ** 0.5)
    often = int(torch.bincount(client_M).max())
    k = -(-table.rounds // separation)
    k = k if most is None else min(k, most)
    lines = [
        f"{path}: {len(all_M[0]):,} participations of {table.clients:,} clients in {table.rounds:,} rounds",
        f"with a separation of {separation} and at most {k} times: {declined:,} of them would have been declined "
        f"({100 * declined / len(all_M[0]):.1f} %), no client took part more than {often} times",
    ]
    for sensitivity, words in ((enforced, "for that promise"), (realised, f"for this turnout; {IF}")):
        if multiplier is not None:
            lines.append(
                f"noise multiplier {multiplier:g}: ε = {epsilon_of(sensitivity / multiplier, delta):.4g} {words}"
            )
        elif epsilon is not None:
            lines.append(f"ε = {epsilon:g}: noise multiplier {sensitivity / mu_of(epsilon, delta):.4g} {words}")
    return lines
