"""`turnout privacy` of runs and logs, and ε where runs are shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import turnout as to
from commands import turnout, work_in
from turnout.parts.privacy.accountant import epsilon_of, mu_of
from turnout.view.report.page import write_report
from worlds import world

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_in(tmp_path, monkeypatch)


def private_run(parts: dict | None = None, **settings) -> to.Run:
    private = to.Private(
        **({"clip": 0.2, "n0": 4, "delta": 1e-3, "noise_multiplier": 1.0, "min_separation": 2} | settings)
    )
    local = to.Local(to.SGD(lr=0.1), steps=4, batch_size=4)
    return to.run(
        world([8, 12, 4, 16], 1.0, 1.0, 0.0, 1.0, local=local, privacy=private, **(parts or {})).but(rounds=5),
        "run",
        quiet=True,
    )


def test_a_secure_run_says_that_epsilon_holds_against_the_server(capsys: Capture) -> None:
    private_run({"secure": to.SecureSum(least=2, corrupt=0.0), "membership": to.Membership(join="vanilla")})
    assert turnout("privacy", "run") == 0
    shown = capsys.readouterr().out
    assert "against the server too: it sees sums of at least 2 devices" in shown
    assert "noise.key" not in shown
    assert turnout("show", "run") == 0
    assert "ε (δ = 0.001)" in capsys.readouterr().out
    assert "ε that is promised" in write_report(Path("run")).read_text(encoding="utf-8")


def test_epsilon_of_a_run_is_shown_with_its_condition(capsys: Capture) -> None:
    private_run(most=2)
    assert turnout("privacy", "run") == 0
    shown = capsys.readouterr().out
    promised = epsilon_of(2**0.5, 1e-3)  # two participations in five rounds, of at most two
    assert f"ε = {promised:.4g} at δ = 0.001 after 5 rounds" in shown
    assert f"ε = {promised:.4g} after all 5 rounds" in shown
    assert "takes part at most 2 times, at least 2 rounds apart" in shown
    assert re.search(rf"ε = {promised:.4g} for the turnout that happened; valid only if", shown)
    assert "not covered: records.sqlite" in shown
    assert turnout("show", "run") == 0
    assert "ε (δ = 0.001)" in capsys.readouterr().out
    page = write_report(Path("run")).read_text(encoding="utf-8")
    assert "ε that is promised" in page
    assert "ε of the turnout that happened" in page


def test_a_log_shows_what_a_separation_declines_and_the_noise_for_an_epsilon(capsys: Capture) -> None:
    """Ada comes in rounds 0, 1 and 3, Bob once, Cy never: with b = 2 Ada's round 1 is declined."""
    Path("log.csv").write_text("round,client,work\n0,ada,1\n1,ada,0.5\n3,ada,1\n2,bob,1\n2,cy,0\n3,cy,0\n")
    assert turnout("privacy", "log.csv", "--epsilon", 2, "--delta", 1e-5, "--separation", 2) == 0
    shown = capsys.readouterr().out
    assert "4 participations of 3 clients in 4 rounds" in shown
    assert "1 of them would have been declined (25.0 %), no client took part more than 2 times" in shown
    needed = 2**0.5 / mu_of(2.0, 1e-5)
    assert shown.count(f"ε = 2: noise multiplier {needed:.4g}") == 2
    assert turnout("privacy", "log.csv", "--noise-multiplier", 3, "--delta", 1e-5, "--most", 1) == 0
    assert f"noise multiplier 3: ε = {epsilon_of(1 / 3, 1e-5):.4g} for that promise" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["log.csv"], "give --delta, and one of --epsilon and --noise-multiplier"),
        (["log.csv", "--delta", 1e-5, "--epsilon", 1, "--separation", 9], "more than the 2 rounds"),
        (["log.csv", "--delta", 1e-5, "--epsilon", 1, "--noise", "laplace"], "noise"),
        (["absent.csv", "--delta", 1e-5, "--epsilon", 1], "no client took part"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(arguments, words, capsys: Capture) -> None:
    Path("log.csv").write_text("round,client,work\n0,ada,1\n1,ada,0.5\n")
    Path("absent.csv").write_text("round,client,work\n0,ada,0\n")
    assert turnout("privacy", *arguments) == 2
    assert words in capsys.readouterr().err


def test_a_run_without_privacy_says_so(capsys: Capture) -> None:
    to.run(to.Experiment(rounds=1), "plain", quiet=True)
    assert turnout("privacy", "plain") == 2
    assert "is not a private run" in capsys.readouterr().err
