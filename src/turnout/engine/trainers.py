"""Choosing how a network is trained: engine, device and chunk size, once, from the settings and one batch.

Small models are bound by the interpreter, so training clients together always pays. From a few megabytes a step on it
depends on the layers, so a short trial finds the fastest engine on this machine.
"""

from __future__ import annotations

import platform
import time
import warnings
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor, nn

from turnout.engine.backprop import Loss, stack_of
from turnout.engine.batches import Batch
from turnout.engine.by_hand import ByHand
from turnout.engine.dropout import AddressedCalls, draws_inside
from turnout.engine.gradients import Gradients, Looped, Vmapped, WorkerPool
from turnout.engine.job import Job
from turnout.engine.joined import Joined, can_join, per_client
from turnout.engine.kernels.graphs import storage
from turnout.engine.kernels.native import NativeSteps
from turnout.engine.network import ForClients, Network
from turnout.engine.train import Trainer
from turnout.errors import UserError
from turnout.inputs import Inputs
from turnout.machine.memory import free_bytes, keep_freed_memory
from turnout.machine.threads import cores
from turnout.machine.triton_tools import without_kernels
from turnout.models.adapters import is_checkpointed
from turnout.models.recurrent import LSTMLayer
from turnout.parts.optimizers import Optimizer
from turnout.rng import rng
from turnout.settings import InProcess
from turnout.types import Samples, State, Tensors, flatten, unflatten

NOT_IN_C = (
    "runtime.engine = 'native' needs a C compiler (cc, gcc, clang or $CC) and a model of at most 1 MiB on a CPU: an "
    "nn.Sequential of Linear, Conv2d, BatchNorm, MaxPool2d, ReLU, Dropout and Flatten layers under the classification "
    "task; use 'auto'"
)

# how far apart two engines may be, of the loss and of the gradient's length
ROUNDING = {torch.float32: (1e-4, 1e-3), torch.bfloat16: (2e-2, 1e-1)}
NOT_JOINED = (
    "runtime.engine = 'joined' needs trainable parameters in Linear, LayerNorm, RMSNorm or Embedding layers or in "
    "adapters, and no batch statistics: use 'auto'"
)

TRIAL_FROM = 4 << 20  # bytes of one client's step from which engines are compared
TRIAL_STEPS = 2  # local steps of a client
TRIAL_CLIENTS = 3  # of each thread
TURNS = 4  # timed runs of each engine, in turns, after the first
HOPELESS = 6.0  # an engine whose first run takes so many times the fastest's is not tried again
BEHIND = 1.25  # nor is one that has taken so many times the best's in the turns so far

CACHE = {"by-hand": 4 << 20, "vmap": 16 << 20}  # bytes a chunk may touch on a CPU: measured in benchmarks/chunk.py


def make_trainer(
    settings: InProcess, network: Network, loss: Loss | None, x: Tensor, y: Tensor, optimizer: Optimizer | None = None
) -> Trainer:
    """A trainer for a network; the chunk size follows from the memory a client needs for a batch like x, y.

    With an `optimizer`, the engines that can train a large model are compared in a short trial.
    """
    torch.set_num_threads(1)  # a pool of one worker works in this thread; beside a GPU waking others costs milliseconds
    cost = client_bytes(network, x, y)
    gradients = pick_gradients(settings.engine, network, None if isinstance(x, Inputs) else loss, x.is_cuda)
    if not isinstance(gradients, ByHand):  # hand-written layers draw only addressed numbers
        gradients = addressed_gradients(gradients, network, x)
    if isinstance(gradients, Joined):
        gradients = as_the_loop(gradients, network, x, y)
    if not isinstance(gradients, Looped | Joined):
        gradients = checked_gradients(gradients, network, x, y)
    trainer = trainer_of(settings, gradients, cost, x)
    if settings.engine == "native" and trainer.native is None:
        raise UserError(NOT_IN_C)
    decided = settings.engine != "auto" or x.is_cuda or network.draws or cost < TRIAL_FROM
    decided = decided or isinstance(gradients, Joined)  # which does what the loop does, less often
    if optimizer is None or decided:
        return trainer
    others: list[Gradients] = [Looped(network.twin())]
    if any(isinstance(module, nn.Conv2d) for module in network.module.modules()):
        others.append(Looped(network.twin(), channels_last=True))
    if isinstance(trainer.gradients, ByHand):
        others.append(checked_gradients(Vmapped(network.twin()), network, x, y))
        others.append(trainer.gradients.twin())
    without_c = replace(settings, engine="by-hand")
    trainers = {other.title: trainer_of(without_c, other, cost, x) for other in others}
    trainers[trainer.title(optimizer)] = trainer
    return trainers[quickest(trainers, x, y, optimizer)]


def trainer_of(settings: InProcess, gradients: Gradients, cost: int, x: Tensor) -> Trainer:
    """The trainer with these gradients, its chunks and threads as set or by rules of thumb."""
    on_gpu, network = x.is_cuda, gradients.network
    threads = 1 if on_gpu else settings.threads or cores()
    if on_gpu:
        most = min(torch.cuda.mem_get_info(x.device)[0] // 2 // cost, 1024)
    elif isinstance(gradients, Looped):
        most = 1  # a client does all of its steps while its weights are in the cache
    elif isinstance(gradients, Joined):
        most = min((free_bytes(x.device) or 0) // 4 // (threads * cost), 256)
    else:
        most = min(CACHE["vmap" if isinstance(gradients, Vmapped) else "by-hand"] // cost, 256)
    chunk = settings.chunk or max(1, most)
    native = None
    if settings.engine in ("auto", "native") and isinstance(gradients, ByHand):
        native = NativeSteps.of(gradients.stack, network.layout, x, network.dropout_keys)
    return Trainer(network, WorkerPool(gradients, threads), chunk, cost, settings.chunk is not None, native)


def quickest(trainers: dict[str, Trainer], x: Tensor, y: Tensor, optimizer: Optimizer) -> str:
    """The name of the trainer that takes least time a client, for steps on batches like x, y."""
    jobs = {name: trial_job(trainer, x, y, optimizer) for name, trainer in trainers.items()}

    def seconds_a_client(name: str) -> float:
        start = time.perf_counter()
        trainers[name].train(jobs[name])
        return (time.perf_counter() - start) / len(jobs[name].client_C)

    first = {name: seconds_a_client(name) for name in trainers}
    hopeful = [name for name, value in first.items() if value <= HOPELESS * min(first.values())]
    turns: list[dict[str, float]] = []
    while len(turns) < TURNS and len(hopeful) > 1:
        turns.append({name: seconds_a_client(name) for name in hopeful})
        # Times the fastest of the same turn, as a shared machine is faster or slower from turn to turn; and the median,
        # as a burst of other work can hit any single run.
        times = {name: median(turn[name] / min(turn.values()) for turn in turns) for name in hopeful}
        best = min(times.values())
        hopeful = sorted((name for name in hopeful if times[name] <= BEHIND * best), key=times.__getitem__)
    return hopeful[0]


def trial_job(trainer: Trainer, x: Tensor, y: Tensor, optimizer: Optimizer) -> Job:
    """A few clients that all hold the samples x, y and take steps of length 0."""
    network, clients = trainer.network, TRIAL_CLIENTS * trainer.threads
    rows = torch.arange(len(x)).repeat(clients)
    return Job(
        client_C=torch.arange(clients),
        steps_C=torch.full((clients,), TRIAL_STEPS),
        samples=Samples(x, y, rows, torch.full((clients,), len(x))),
        start_P=network.first_weights(),
        states={name: value.clone() for name, value in network.first_states().items()},
        lr=1e-30,  # no step, but a number that an optimizer may divide by
        batch_size=len(x),
        drop_single=False,
        seed=0,
        t=0,
        optimizer=optimizer,
    )


@dataclass(frozen=True)
class Place:
    """Where a run computes.

    device   CPU or GPU
    dtype    the type of floating-point numbers
    """

    device: torch.device
    dtype: torch.dtype

    def put(self, value: Tensor) -> Tensor:
        """A tensor on this device; floats as this type of number."""
        return value.to(self.device, self.dtype) if value.is_floating_point() else value.to(self.device)

    def put_module(self, module: nn.Module, rounded: torch.dtype | None = None) -> nn.Module:
        """A module on this device, in place; its parameters as another type of number, if one is given."""
        for parameter in module.parameters() if rounded is not None else ():
            parameter.data = parameter.data.to(self.device, rounded)
        for value in [*module.parameters(), *module.buffers()]:
            value.data = value.data if value.dtype == rounded else self.put(value.data)
        return module

    def put_all(self, tensors: Tensors) -> Tensors:
        return {name: self.put(value) for name, value in tensors.items()}

    def put_tree(self, tree: State) -> State:
        tensors, plain = flatten(tree)
        return unflatten(self.put_all(tensors), plain)

    def share(self) -> int:
        """Bytes of a GPU that clients' own rows may take: a third of its free memory; 0 without a GPU."""
        return torch.cuda.mem_get_info(self.device)[0] // 3 if self.device.type == "cuda" else 0

    def describe(self) -> dict[str, str]:
        """The device and its name, for the run's records."""
        cuda = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if cuda else platform.processor() or "cpu"
        return {"device": str(self.device), "device_name": name}


def place_of(settings: InProcess) -> Place:
    """The device and type of numbers for `runtime`'s settings; also sets torch's global switches for them."""
    name = settings.device
    try:
        device = torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    except RuntimeError as error:
        raise UserError(f"runtime.device = {name!r} is not a device: use 'auto', 'cpu' or 'cuda'") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError("runtime.device = 'cuda', but no GPU is available here: use 'auto' or 'cpu'")
        if device.index is not None:
            torch.cuda.set_device(device)  # CUDA graphs are captured on the current device
        torch.backends.cuda.matmul.allow_tf32 = settings.precision == "tf32"
        torch.backends.cudnn.allow_tf32 = settings.precision == "tf32"
        # every client has weights of its own, which cannot lie in memory as cuDNN's recurrent kernels want them
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    keep_freed_memory()
    return Place(device, torch.float64 if settings.precision == "float64" else torch.float32)


def base_type(settings: InProcess, module: nn.Module) -> torch.dtype | None:
    """The type that a frozen base computes in, if not that of the clients' weights."""
    if settings.base_precision == "as-precision":
        return None
    if all(parameter.requires_grad for parameter in module.parameters()):
        raise UserError(
            f"runtime.base_precision = {settings.base_precision!r} is for frozen parameters, and this model has none: "
            "leave it out, or put an adapter on the model (models.Adapted)"
        )
    if settings.precision == "float64":
        raise UserError("runtime.base_precision has no use with runtime.precision = 'float64': leave one of them out")
    return torch.bfloat16


def pick_gradients(engine: str, network: Network, loss: Loss | None, on_gpu: bool) -> Gradients:
    if engine in ("loop", "channels-last"):
        return Looped(network, channels_last=engine == "channels-last")
    if engine == "vmap":
        return Vmapped(network)
    if engine == "joined":
        if per_client(network) is None:
            raise UserError(NOT_JOINED)
        return Joined(network)
    gradients = fastest(network, loss)
    if engine == "by-hand" and not isinstance(gradients, ByHand):
        raise UserError(
            "runtime.engine = 'by-hand' needs an nn.Sequential of Linear, Conv2d, BatchNorm, MaxPool2d, ReLU, Softmax, "
            "Flatten and Dropout layers under the classification or regression task: use 'auto'"
        )
    recurrent = any(isinstance(module, nn.RNNBase | LSTMLayer) for module in network.module.modules())
    if recurrent and not on_gpu:
        return Looped(network)  # torch's recurrent kernels, one client a core
    return gradients


def fastest(network: Network, loss: Loss | None) -> ByHand | Joined | Vmapped:
    """By hand if the model is a plain stack and its loss has a hand-written form; in one pass if part of it is frozen
    and the rest has forms for several clients; else under `vmap`."""
    stack = stack_of(network.module, loss) if loss is not None else None
    if stack is not None:
        return ByHand(network, stack)
    return Joined(network) if can_join(network) else Vmapped(network)


def addressed_gradients(gradients: Gradients, network: Network, x: Tensor) -> Gradients:
    """The same gradients, or the plain loop (with a warning) if only the loop can address the model's random draws."""
    x = x if network.rounded is None or not x.is_floating_point() else x.to(network.rounded)
    if draws_inside(network.module, x, training=False):
        raise UserError(
            "the model draws random numbers in evaluation mode too, so its metrics would differ every time: in "
            "its forward pass write F.dropout(x, p, training=self.training), or use a layer, nn.Dropout(p)"
        )
    calls = None
    if can_join(network) and not is_checkpointed(network.module):  # by then a call would have another number
        calls = AddressedCalls(torch.zeros(1, dtype=torch.int64, device=x.device))
    network.draws = draws_inside(network.module, x, True, calls)
    network.calls_dropout = calls is not None and calls.calls > 0 and not network.draws
    if not network.draws or isinstance(gradients, Looped):
        return gradients
    warnings.warn(
        "this model draws random numbers inside its forward pass (dropout called as a function, or within attention), "
        "so clients train one at a time, slowly; layers (nn.Dropout) can be vectorised",
        stacklevel=2,
    )
    return Looped(network)


def checked_gradients(gradients: Gradients, network: Network, x: Tensor, y: Tensor) -> Gradients:
    """The same gradients, or the plain loop (with a warning) if the model cannot be vectorised."""
    flat_cP = network.first_weights().expand(2, -1).clone()
    states = {name: value.expand(2, *value.shape).clone() for name, value in network.first_states().items()}
    keys_ck = torch.zeros(2, len(network.dropout_keys), dtype=torch.int64, device=flat_cP.device)
    batch = Batch(torch.stack([x, x]), torch.stack([y, y]), None, keys_ck)
    try:
        with without_kernels():  # a cohort needs other kernels than two clients
            gradients.gradient(flat_cP, states, batch, torch.empty_like(flat_cP))
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0][:160]
        warnings.warn(
            f"this model cannot be vectorised, so clients train one at a time, slowly: {reason}", stacklevel=2
        )
        return Looped(network)
    return gradients


def as_the_loop(gradients: Joined, network: Network, x: Tensor, y: Tensor) -> Gradients:
    """The same gradients if they are the plain loop's for two clients, else those under `vmap` (with a warning).

    They differ if a layer mixes samples, or if the model reads a trained weight outside of its layer.
    """
    flat_cP, (loss, rounding) = (
        network.first_weights().expand(2, -1).clone(),
        ROUNDING[network.rounded or torch.float32],
    )
    flat_cP += 0.1 * torch.randn(flat_cP.shape, generator=rng(0, "two clients")).to(flat_cP)  # B of an adapter is 0
    keys_ck = torch.arange(2 * network.keys, device=flat_cP.device).view(2, -1)
    batch = Batch(torch.stack([x, torch.flip(x, [0])]), torch.stack([y, y.flip(0)]), None, keys_ck)
    found, wanted, states = torch.empty_like(flat_cP), torch.empty_like(flat_cP), network.first_states()
    own = {name: value.expand(2, *value.shape).clone() for name, value in states.items()}
    loop = Looped(network.twin())
    try:
        loss_c, wanted_c = gradients.gradient(flat_cP, own, batch, found), loop.gradient(flat_cP, own, batch, wanted)
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0][:160]
    else:
        same = bool(((loss_c - wanted_c).abs() <= loss * wanted_c.abs()).all())
        near_c = (found - wanted).norm(dim=1) <= rounding * wanted.norm(dim=1)
        if same and bool(near_c.all()) and all(torch.equal(own[name][0], states[name]) for name in own):
            return gradients
        reason = "it mixes samples, or reads a trained weight outside of its layer"
    warnings.warn(
        f"the clients' samples cannot go through this model together, so it is slower: {reason}", stacklevel=2
    )
    return Vmapped(network)


def client_bytes(network: Network, x: Tensor, y: Tensor) -> int:
    """Bytes of one client's local step: its weights, and tensors that the forward pass saves for the backward pass.

    Of a model with a frozen base, which may have scores of a large vocabulary, also two temporary copies of these.
    """
    total, common = 0, {storage(p) for p in network.module.parameters() if not p.requires_grad}  # held once

    def count(saved: Tensor) -> Tensor:
        nonlocal total
        total += saved.numel() * saved.element_size() if not common or storage(saved) not in common else 0
        return saved

    with torch.autograd.graph.saved_tensors_hooks(count, count), ForClients():
        network.module.eval()
        network.losses(x, y).mean()
    with torch.no_grad():
        total += 2 * network.scores(x).nbytes if common else 0
    return total + network.layout.width * x.element_size()
