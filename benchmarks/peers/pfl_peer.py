"""pfl (Apple's pfl-research): FederatedAveraging on a SimulatedBackend with a PyTorch model.

Given every advantage: all data on the device beforehand, each user's dataset object (and its slices into batches) made
once, no evaluation, no metrics, no privacy. `--processes 2` trains users in two processes joined by torch.distributed,
as pfl's own multi-process simulation does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from cases import Case, build_model, make_tensors, mean_loss
from side import Clock, Options, read_options, report_check, report_times, settle


class Net(nn.Module):
    """The case's model with the two methods pfl asks of a module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x_B: Tensor, y_B: Tensor) -> Tensor:
        return mean_loss(self.net(x_B), y_B)

    @torch.no_grad()
    def metrics(self, x_B: Tensor, y_B: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(x_B, y_B).item() * len(y_B), len(y_B))}


class Laps(TrainingProcessCallback):
    """Times each central iteration."""

    def __init__(self, device: str) -> None:
        self.clock = Clock(device)

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.clock.start()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int) -> Any:
        self.clock.lap()
        return False, Metrics()


def make_backend(case: Case, device: str) -> SimulatedBackend:
    """All users in memory on the device, asked in turn, weighted by their samples."""
    x_NS, y_NS = make_tensors(case, device)
    users = [PyTorchTensorDataset((x_NS[c], y_NS[c]), user_id=str(c)) for c in range(case.population)]
    sampler = MinimizeReuseUserSampler(list(range(case.population)))
    dataset = FederatedDataset(users.__getitem__, sampler)
    return SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[WeightByDatapoints()])


def train(options: Options, rounds: int) -> tuple[list[float], nn.Module]:
    """Run so many central iterations; the milliseconds of each, and the model at the end."""
    os.environ["PFL_PYTORCH_DEVICE"] = options.device
    settle(options)
    case = options.case
    module = Net(build_model(case, dropout=not options.check)).to(options.device)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    # pfl always evaluates at iteration 0, before and after each user's training: one more reason for a warm-up.
    algorithm = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds + 1,
        train_cohort_size=case.cohort,
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=case.lr, local_batch_size=case.batch)
    laps = Laps(options.device)
    FederatedAveraging().run(
        algorithm_params=algorithm,
        backend=make_backend(case, options.device),
        model=model,
        model_train_params=local,
        callbacks=[laps],
        send_metrics_to_platform=False,
    )
    return laps.clock.laps, module.net


def main(options: Options) -> None:
    """Time rounds, or check one; of several processes only the first speaks."""
    rounds = 1 if options.check else options.warmup + options.rounds
    laps, net = train(options, rounds)
    if torch.distributed.is_initialized():  # otherwise its threads may outlive the interpreter and abort
        torch.distributed.destroy_process_group()
    if int(os.environ.get("RANK", 0)) > 0:
        return
    if options.check:
        report_check("pfl", options, net.state_dict())
    else:
        report_times("pfl", options, laps)


def launch(processes: int) -> None:
    """Become torch's launcher, which starts this program once per process."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    os.execv(sys.executable, [sys.executable, *launcher, *sys.argv])


if __name__ == "__main__":
    given = read_options("Time rounds of pfl.")
    if given.processes > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        launch(given.processes)
    main(given)
