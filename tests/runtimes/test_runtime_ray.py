"""A Ray cluster whose workers and machines are killed: their parts are done again, and nothing else changes."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable

import pytest

import turnout as to
from example_experiments import ternary, three_users
from parity import difference, played, shrunk
from turnout.errors import optional
from turnout.recipes import digits
from turnout.runtimes.crew import WORKERS, RemoteWorkers

HERE = to.runtime.InProcess(device="cpu", threads=1, precision="float64", chunk=1)
TERNARY = shrunk(ternary(), rounds=5)
SCORES = shrunk(three_users(), rounds=3)


def disturbed(
    disturb: Callable[[list[int], int], None], settings: to.runtime.Ray, monkeypatch: pytest.MonkeyPatch,
    experiment: to.Experiment = TERNARY, stage: str = "work",
) -> None:  # fmt: skip
    """Something happens in every round while its parts are at work, and the results are those of one process."""
    work, rounds = RemoteWorkers.each, itertools.count()

    def each(self, what, common, parts, meanwhile):
        victims = [self.group.ray.get(actor.pid.remote()) for actor in self.group._idle]

        def then() -> None:
            if what == stage:
                disturb(victims, next(rounds))
            meanwhile()

        return work(self, what, common, parts, then)

    monkeypatch.setattr(RemoteWorkers, "each", each)
    with WORKERS.reused():
        found = difference(played(experiment, HERE), played(experiment, settings))
    assert found.largest == 0.0, str(found)


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_a_repetition_of_its_part(monkeypatch):
    """In one round one of them, in another all of them."""
    killed = []

    def kill(pids: list[int], t: int) -> None:
        for pid in {1: pids[:1], 3: pids}.get(t, []):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    disturbed(kill, to.runtime.Ray(workers=2, compute=HERE), monkeypatch)
    assert len(killed) >= 2


@pytest.mark.slow
def test_a_worker_that_has_built_a_model_and_dies_before_it_learns_is_done_without(monkeypatch):
    """The second question of a round of the score track: who gets it builds the models again."""

    def kill(pids: list[int], t: int) -> None:
        if t == 1:
            os.kill(pids[0], signal.SIGKILL)

    disturbed(kill, to.runtime.Ray(workers=2, compute=HERE), monkeypatch, SCORES, "learn")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_machine_that_dies_costs_a_repetition_of_its_part(monkeypatch):
    """A cluster of two, one of which is gone from the third round on."""
    optional("ray", "this test", "ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)

    def lose(pids: list[int], t: int) -> None:
        if t == 2:
            cluster.remove_node(second, allow_graceful=False)

    try:
        disturbed(lose, to.runtime.Ray(address=cluster.address, workers=2, compute=HERE), monkeypatch)
    finally:
        cluster.shutdown()


def test_an_address_where_nobody_is_says_so_at_once():
    experiment = shrunk(digits()).but(runtime=to.runtime.Ray(address="127.0.0.1:1"))
    with pytest.raises(to.UserError, match=r"'127.0.0.1:1': no Ray cluster answers there"):
        played(experiment, experiment.runtime)


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"cpus": 0}, {"gpus": 1.5}])
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(to.UserError, match=f"Ray.{next(iter(wrong))}"):
        to.runtime.Ray(**wrong)
