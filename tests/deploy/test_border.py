"""What devices send, at the border: every hand-made answer is refused, noted, and as if its device had been absent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from test_flower import world

import hand_made
import turnout as to
from deployments import Deployment, deployed
from flower_grid import HereGrid, devices_of
from forgers import Forger, HandMade
from hand_made import BAD_HELLOS, TWO_HUNDRED, listed
from turnout.deploy.apps import GridLink
from turnout.deploy.demo import compare
from turnout.deploy.server import serve_experiment
from turnout.deploy.settings import Flower
from turnout.machine.checksums import load_tensors
from turnout.machine.terminal import COMMANDS
from turnout.running.records.records import Records
from turnout.runtimes.remote import HEAD, REPLY

GOOD = 2
Results = tuple[dict[str, torch.Tensor], dict[str, list[float]], str]


def results(out: Path) -> Results:
    """The model of a run, its curves, and what its records say was refused."""
    with Records.read(out / "records.sqlite") as records:
        curves = {name: records.curve(name)[1].tolist() for name in records.metrics()}
        refused = "; ".join(str(words) for words in records.rounds().get("refused", ()) if words)
    return to.open_run(out).model().state_dict(), curves, refused


def devices_for(experiment: to.Experiment, answers: list[HandMade], folder: Path, silent: bool) -> list[object]:
    """Two devices that are well, and a forger for each answer."""
    good = devices_of(experiment, [str(i) for i in range(GOOD)], folder)
    (honest,) = devices_of(experiment, [str(GOOD)], folder)
    return [*good, *(Forger(honest, str(GOOD + i), [answer], silent) for i, answer in enumerate(answers))]


def for_so_many(experiment: to.Experiment, answers: list[HandMade], **runtime: object) -> to.Experiment:
    clients = GOOD + len(answers)
    given = {"clients": clients, "start_with": clients, "round_seconds": 60.0, "request_seconds": 60.0} | runtime
    settings = {f"runtime.{name}": value for name, value in given.items()}
    return experiment.but(rounds=2, **settings, **{"world.data": to.data.Digits(clients=clients)})


def check_absent(experiment: to.Experiment, answers: list[HandMade], tmp_path: Path) -> None:
    """The run with these answers is that of a run in which their devices are silent, and all of them are on record."""
    found = []
    for silent in (False, True):
        out = tmp_path / f"run-{silent}"
        devices = devices_for(experiment, answers, tmp_path / f"devices-{silent}", silent)
        serve_experiment(GridLink(HereGrid(devices)), experiment, out)
        found.append(results(out))
    (model, curves, refused), (without, curves_without, nothing) = found
    assert nothing == ""
    missing = [str(answer) for i, answer in enumerate(answers) if f"{GOOD + i}: " not in refused]
    assert missing == []
    for name, value in model.items():
        assert torch.equal(value, without[name]), name
    assert curves == curves_without


SHARES = {"weighting": to.weighting.ByShare()}
some = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])  # every fourth answer, or all


@some
def test_work(every: int, tmp_path: Path) -> None:
    answers = hand_made.WORK[::every]
    check_absent(for_so_many(world(**SHARES), answers), answers, tmp_path)


@some
def test_requests(every: int, tmp_path: Path) -> None:
    answers = hand_made.REQUEST[::every]
    check_absent(for_so_many(world(**SHARES), answers), answers, tmp_path)


@some
@pytest.mark.parametrize("compression", [to.compression.Dense(), to.compression.SparseTernary(keep=0.1)])
def test_work_that_does_not_count(compression: object, every: int, tmp_path: Path) -> None:
    """Scheme A takes complete work alone; what else is sent must have its form too."""
    dense = isinstance(compression, to.compression.Dense)
    answers = [made for made in hand_made.UNFINISHED if not (dense and made.name.endswith("since"))][::every]
    experiment = world(weighting=to.weighting.CompleteOnly(), compression=compression)
    check_absent(for_so_many(experiment, answers), answers, tmp_path)


@some
def test_goodbyes(every: int, tmp_path: Path) -> None:
    experiment, answers = world(terms=[to.terms.Scaffold()], **SHARES), hand_made.LEAVE[::every]
    check_absent(for_so_many(experiment, answers), answers, tmp_path)


@some
def test_measurements(every: int, tmp_path: Path) -> None:
    """The server has no data: devices test the model, and one that sends nonsense has no part in the results."""
    answers = hand_made.MEASURE[::every]
    experiment = for_so_many(world(**SHARES), answers, server_data=False)
    check_absent(experiment.but(**{"evaluate.every": 1}), answers, tmp_path)


@some
def test_introductions(every: int, tmp_path: Path) -> None:
    """Whose hello is refused is never a member: the run is that of the other devices."""
    forged, found = hand_made.HELLO[::every], []
    experiment = for_so_many(world(**SHARES), forged, start_with=GOOD)
    for answers in (forged, []):
        devices = devices_for(experiment, answers, tmp_path / f"devices-{len(answers)}", silent=False)
        serve_experiment(GridLink(HereGrid(devices)), experiment, tmp_path / f"run-{len(answers)}")
        found.append(results(tmp_path / f"run-{len(answers)}"))
    (model, curves, refused), (alone, curves_alone, _) = found
    assert [str(a) for i, a in enumerate(forged) if f"node {100 + GOOD + i}: " not in refused] == []
    assert all(torch.equal(value, alone[name]) for name, value in model.items())
    assert curves == curves_alone


@some
def test_gradients(every: int, tmp_path: Path) -> None:
    """A device joins in round 2, and members are asked for their gradients."""
    answers, found = hand_made.SLOPE[::every], []
    experiment = for_so_many(world(**SHARES), answers, server_data=True)
    for silent in (False, True):
        out, folder = tmp_path / f"run-{silent}", tmp_path / f"devices-{silent}"
        devices = devices_for(experiment, answers, folder, silent)
        first, rest = devices[0], devices[1:]
        begin = experiment.but(rounds=1, **{"runtime.start_with": len(rest)})
        serve_experiment(GridLink(HereGrid(rest)), begin, out)
        serve_experiment(GridLink(HereGrid([first, *rest])), begin.but(rounds=2), out)
        found.append(results(out))
    (model, _, refused), (without, _, nothing) = found
    assert nothing == ""
    assert [str(a) for i, a in enumerate(answers) if f"{GOOD + i}: " not in refused] == []
    assert all(torch.equal(value, without[name]) for name, value in model.items())


# -- the score track


def score_world(clients: int) -> to.Experiment:
    """Clients with the same labels."""
    return to.Experiment(
        world=to.World(to.data.Arriving(to.data.Digits(), (("3", "5"),) * clients, per_label=6, public=12)),
        model=to.models.MLP(8),
        algorithm=to.scores.Scores(
            local=to.Local(to.SGD(0.1), epochs=1, batch_size=5), distil=to.scores.Distil(epochs=1)
        ),
        rounds=2,
        runtime=Flower(clients=clients, start_with=clients, round_seconds=60.0, request_seconds=60.0, server_data=True),
    )


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("question", "table"), [("work", hand_made.BUILT), ("learn", hand_made.TAUGHT), ("measure", hand_made.LATEST)]
)
def test_scores(question: str, table: dict[str, tuple[object, ...]], every: int, tmp_path: Path) -> None:
    answers = listed(question, REPLY, table)[::every]
    clients = GOOD + len(answers)
    experiment, found = score_world(clients), []
    for silent in (False, True):
        out = tmp_path / f"run-{silent}"
        devices = devices_of(experiment, [str(i) for i in range(clients)], tmp_path / f"devices-{silent}")
        forgers = [Forger(d, d.name, [a], silent) for d, a in zip(devices[GOOD:], answers, strict=True)]
        serve_experiment(GridLink(HereGrid([*devices[:GOOD], *forgers])), experiment, out)
        with Records.read(out / "records.sqlite") as records:
            curves = {name: records.curve(name)[1].tolist() for name in records.metrics()}
            refused = "; ".join(str(words) for words in records.rounds().get("refused", ()) if words)
        found.append((curves, refused, load_tensors(out / "checkpoint.safetensors", "")[0]))
    (curves, refused, state), (without, nothing, state_without) = found
    assert nothing == ""
    assert [str(a) for i, a in enumerate(answers) if f"{GOOD + i}: " not in refused] == []
    assert curves == without
    assert state.keys() == state_without.keys()
    assert all(torch.equal(value, state_without[name]) for name, value in state.items())


# -- what passes the border is bounded, and can be printed


def test_results_weigh_as_much_as_the_samples_a_device_enrolled_with(tmp_path: Path) -> None:
    """global_accuracy = sum of min(tested_c, n_c) accuracy_c over the sum of min(tested_c, n_c)."""
    experiment = world().but(rounds=1, **{"runtime.server_data": False, "evaluate.per_client": True})
    devices = devices_of(experiment, "012", tmp_path / "devices")
    liar = Forger(devices[2], "2", [HandMade("measure", HEAD, "tested", 2**39)])
    serve_experiment(GridLink(HereGrid([*devices[:2], liar])), experiment, tmp_path / "run")
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        clients, accuracy_C = records.client_evaluation("client_accuracy")
        pooled = records.curve("global_accuracy")[1][-1]
    assert clients.tolist() == [0, 1, 2]
    counts = []
    for device in devices:
        data, one = device.tasks.clients.federation, torch.tensor([0])
        tested = 2**39 if device is devices[2] else int(data.test(one, 0).count_C[0])
        counts.append(min(tested, int(data.examples(one)[0])))
    wanted = sum(n * a for n, a in zip(counts, accuracy_C.tolist(), strict=True)) / sum(counts)
    assert pooled == pytest.approx(wanted, abs=1e-12)


NASTY = "\x1b]0;mine\x07 \x1b[2J \u202e\nround 9: all is well"


def test_what_a_device_says_does_not_command_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = world().but(rounds=1, **{"runtime.start_with": 2})
    good, rude, honest = devices_of(experiment, "012", tmp_path / "devices")
    rude.refusal = lambda: NASTY
    forger = Forger(honest, "2", [HandMade("hello", HEAD, "error", NASTY)])
    serve_experiment(GridLink(HereGrid([good, rude, forger])), experiment, tmp_path / "run")
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        words = [str(records.rounds()[name][0]) for name in ("declined", "refused")]
    assert all("mine" in said for said in words)
    said = "".join([*words, *capsys.readouterr()])
    assert not COMMANDS.search(said)
    assert "\nround 9" not in said


def test_an_honest_reply_that_does_not_count_is_taken(tmp_path: Path) -> None:
    """Of incomplete work under scheme A with an encoded update; what it has downloaded is on record."""
    experiment = world(weighting=to.weighting.CompleteOnly(), compression=to.compression.SparseTernary(keep=0.1)).but(
        rounds=1, **{"runtime.round_seconds": 2.0}
    )
    devices = devices_of(experiment, "012", tmp_path / "devices")
    devices[1].tasks.slowness = 1.1
    serve_experiment(GridLink(HereGrid(devices)), experiment, tmp_path / "run")
    with Records.read(tmp_path / "run" / "records.sqlite") as records:
        rounds, clients = records.rounds(), records.clients()
    assert "refused" not in rounds
    assert (rounds["answered"].tolist(), rounds["counted"].tolist()) == ([3], [2])
    assert clients["bytes_down"][1] > 0


@pytest.mark.slow
def test_two_hundred_answers_over_a_real_superlink(tmp_path: Path) -> None:
    """Eight devices with registered keys send them over TLS, two more are refused: the run ends as it should, and the
    replay, in which whoever was refused is absent, has the same model to the bit."""
    forgers, rounds = [str(i) for i in range(GOOD, GOOD + 10)], 40
    deployment = Deployment(
        tmp_path / "app", tls=True, rounds=rounds, clients=GOOD + 10, start_with=GOOD + 8, server_data=False,
        round_seconds=60.0, request_seconds=60.0,
    )  # fmt: skip
    good = [str(i) for i in range(GOOD)]
    deployment.let_in(*good, *forgers)
    files = [deployment.device(name, name) for name in forgers]
    with deployed(deployment):
        deployment.start(files[0], [sys.executable, hand_made.__file__, *map(str, files)])
        for name in good:
            deployment.start(deployment.device(name, name))
        deployment.until(rounds + 1, seconds=1500.0)
    sent = next(deployment.folder.glob(f"{files[0].stem}.*.log")).read_text()
    missing = [made for made in [*TWO_HUNDRED, *BAD_HELLOS] if f"sent {str(made)!a}\n" not in sent]
    assert missing == []
    out, said = deployment.folder / "run", list[str]()
    with Records.read(out / "records.sqlite") as records:
        assert records.last_round() == rounds - 1
        assert min(records.column("answered")) >= GOOD
        refused = [
            words for outbox in records.rounds()["refused"] if isinstance(outbox, str) for words in outbox.split("; ")
        ]
    assert len(refused) >= len(TWO_HUNDRED) + len(BAD_HELLOS)
    compare(out, said.append)
    assert said[-1].endswith("gives the same model, to the bit"), said
    assert (deployment.folder / "server" / "superlink.log").read_text().count("Traceback") == 0
