"""On a GPU the first step is rehearsed, so that its kernels compile side by side; nothing else may come of it."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_engine import DEVICES, Residual, dense, image, prepared
from torch import Tensor, nn

from turnout.engine import gradients as engines
from turnout.engine.gradients import Vmapped
from turnout.engine.job import Trained
from turnout.engine.kernels import convolution, few_channels, optimizer_steps, pixels, small_layers
from turnout.engine.kernels import dense as dense_layers
from turnout.engine.network import Network
from turnout.layout import lay_out
from turnout.machine import triton_tools
from turnout.machine.triton_tools import COMPILE, RUN, blank, launches, rehearse, without_kernels
from turnout.parts.optimizers import SGD, Adam
from turnout.parts.terms.control_variates import Scaffold
from turnout.parts.terms.elastic import Elastic

MODULES = (convolution, few_channels, pixels, small_layers, dense_layers, optimizer_steps)
JOBS: dict[str, tuple[Callable[[], nn.Module], type | None, dict[str, Any]]] = {
    "by hand": (lambda: image(0.3), None, {}),
    "vmap": (Residual, Vmapped, {"optimizer": SGD(0.1, momentum=0.9)}),
    "adam": (dense, None, {"optimizer": Adam(0.1)}),
    "terms": (dense, None, {"terms": [Elastic(0.1), Scaffold()]}),
}


def pictures() -> nn.Module:
    """Convolutions of both kinds, pools, dropout, and a dense layer large enough for a kernel of its own."""
    first = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, nn.Dropout(0.3), nn.Flatten(), nn.Linear(288, 256), nn.ReLU(), nn.Linear(256, 3))


def with_rows(changes: dict[str, Any], width: int, device: str) -> dict[str, Any]:
    """What terms were sent and keep."""
    if "terms" not in changes:
        return changes
    row_P = torch.arange(width, dtype=torch.float64, device=device) / width
    down = {"elastic": {"U": row_P, "V": row_P, "Z": torch.ones(1, device=device)}, "scaffold": {"c": row_P}}
    return changes | {"server_term_states": down, "term_states": {"scaffold": {"c": row_P.expand(5, -1).clone()}}}


def outcome(found: Trained) -> list[Any]:
    return [found.flat_CP, found.loss_C, found.count_C, found.slots, found.term_states, found.uploads]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", JOBS)
def test_a_rehearsed_step_leaves_no_trace(what, device):
    make, kind, changes = JOBS[what]
    width = sum(p.numel() for p in make().parameters())
    trainer, job = prepared(make(), kind, 3, 1, device, **with_rows(changes, width, device))
    fresh, other = prepared(make(), kind, 3, 1, device, **with_rows(changes, width, device))
    module = copy.deepcopy(trainer.network.module.state_dict())
    trainer.first_step(job)
    for part in ("start_P", "states", "server_term_states", "term_states", "steps_C", "client_C"):
        torch.testing.assert_close(getattr(job, part), getattr(other, part), rtol=0, atol=0)
    torch.testing.assert_close(trainer.network.module.state_dict(), module, rtol=0, atol=0)
    off = 0 if device == "cpu" else 1e-10
    torch.testing.assert_close(outcome(trainer.train(job)), outcome(fresh.train(other)), rtol=off, atol=off)


def test_a_step_is_rehearsed_only_where_every_part_says_that_it_may_be_repeated():
    calls = []

    class Counts(SGD):
        """Not a function of tensors alone."""

        cuda_graph_safe = False

        def step(self, *given: Any) -> None:
            calls.append(len(given))

    trainer, job = prepared(dense(), None, 5, 1, "cpu", optimizer=Counts(0.1, momentum=0.9))
    trainer.first_step(job)
    assert not calls
    trainer.train(job)
    assert calls


def test_kernels_are_passed_over_and_leave_zeros_in_one_thread_alone():
    like, elsewhere = torch.ones(3, 4), []
    with without_kernels():
        thread = threading.Thread(target=lambda: elsewhere.append(launches.get()))
        thread.start()
        thread.join()
        assert not blank(like, 5, dtype=torch.uint8).any()
        assert not blank(like.T).any()
        assert blank(like.T).stride() == like.T.stride()
        assert launches.get() != RUN
    assert elsewhere == [RUN]
    assert launches.get() == RUN
    assert blank(like, 2, 3).shape == (2, 3)


@pytest.mark.parametrize("device", DEVICES)
def test_the_backward_pass_is_rehearsed_too(device):
    seen = []

    class Asks(torch.autograd.Function):
        """What becomes of a launch in the backward pass."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, d: Tensor) -> Tensor:
            seen.append(launches.get())
            return d

    x = torch.ones(3, device=device, requires_grad=True)
    with without_kernels():
        Asks.apply(x).sum().backward()
    Asks.apply(x).sum().backward()
    assert seen == [triton_tools.SKIP, RUN]


class Compiling:
    """Stands in for Triton's own: hands work to an executor, and waits at the end."""

    def __init__(self, executor: Any, ignore_errors: bool):
        self.executor, self.waiting = executor, list[Future[Any]]()

    def __enter__(self) -> None:
        handed.append(self)

    def __exit__(self, *error: object) -> None:
        for future in self.waiting:
            future.result()


handed: list[Compiling] = []


def test_a_rehearsal_waits_until_everything_is_ready_and_no_error_comes_of_it(monkeypatch):
    monkeypatch.setattr(triton_tools, "triton", SimpleNamespace(AsyncCompileMode=Compiling))
    meet, ready = threading.Barrier(2, timeout=20), []

    class Made:
        @property
        def run(self) -> None:
            ready.append(threading.get_ident())
            raise RuntimeError("too large for this GPU")

    def compiled() -> Made:
        meet.wait()  # two at a time, or this would fail
        return Made()

    def work() -> None:
        assert launches.get() == COMPILE
        handed[-1].waiting += [handed[-1].executor.submit(compiled) for _ in range(2)]
        raise ValueError("fails again when it counts")

    monkeypatch.setattr(triton_tools, "cores", lambda: 2)
    rehearse(work)
    assert len(set(ready)) == 2
    assert launches.get() == RUN


def test_who_interrupts_a_rehearsal_can_begin_again(monkeypatch):
    """In the same process: as long as Triton's mode is on, kernels are handed to threads that have ended."""

    class Waiting(Compiling):
        def __enter__(self) -> None:
            mode.set(self)

        def __exit__(self, *error: object) -> None:
            raise KeyboardInterrupt

    mode: ContextVar[Waiting | None] = ContextVar("mode", default=None)
    monkeypatch.setattr(triton_tools, "triton", SimpleNamespace(AsyncCompileMode=Waiting))
    with pytest.raises(KeyboardInterrupt):
        rehearse(lambda: None)
    assert mode.get() is None
    assert launches.get() == RUN


def test_a_module_is_not_called_by_a_rehearsal_but_its_twin(monkeypatch):
    class There(Tensor):
        """As if on a GPU."""

        is_cuda = True
        __torch_function__ = torch._C._disabled_torch_function_impl

    class Counting(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x)

    model, rehearsed = Counting(3, 2), []
    monkeypatch.setattr(engines, "rehearse", lambda work: rehearsed.append(work()))
    gradients = Vmapped(Network.of(model, lay_out(model), nn.CrossEntropyLoss(reduction="none")))
    gradients.outputs(torch.ones(2, 8), {}, torch.ones(2, 5, 3).as_subclass(There))
    assert len(rehearsed) == 1
    assert gradients.network.module.calls == 1


def test_without_triton_nothing_is_rehearsed(monkeypatch):
    monkeypatch.setattr(triton_tools, "triton", None)
    rehearse(lambda: pytest.fail("rehearsed"))


def kernels() -> list[Any]:
    return [k for module in MODULES for k in vars(module).values() if hasattr(k, "device_caches")]


def compiled_kernels() -> int:
    """How many are in memory, ready to be launched."""
    return sum(len(caches[0]) for kernel in kernels() for caches in kernel.device_caches.values())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [None, Vmapped], ids=["by hand", "vmap"])
def test_what_was_rehearsed_is_compiled(kind, device, monkeypatch):
    """On a GPU with Triton; elsewhere there are no kernels, and the work is the same."""
    results = []
    for side_by_side in (False, True):
        monkeypatch.setattr(triton_tools, "SIDE_BY_SIDE", side_by_side)
        trainer, job = prepared(pictures(), kind, 5, 1, device)
        trainer.network.module.float()
        start_P, x = job.start_P.float(), job.samples.x.float()
        job = dataclasses.replace(job, start_P=start_P, samples=dataclasses.replace(job.samples, x=x))
        one_step = dataclasses.replace(job, steps_C=job.steps_C.clamp(max=1))
        for kernel in kernels():
            kernel.device_caches.clear()
        rehearse(partial(trainer.first_step, one_step))
        before = compiled_kernels()
        trainer.train(one_step)
        assert not side_by_side or compiled_kernels() == before
        assert not side_by_side or before >= 5 or device == "cpu"
        results.append(trainer.train(job).flat_CP.cpu())
    assert torch.equal(*results)
