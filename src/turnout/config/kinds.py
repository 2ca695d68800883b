"""The short names of parts in experiment files: one table per role, made of the public classes.

A role is the type a setting is annotated with. Where a part is not in its table, a dotted path `package.module:Name`
stands for the user's own.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Callable
from typing import Any

import turnout.data as data
import turnout.models as models
import turnout.task as task
from turnout.data import partition
from turnout.errors import Mistake, nearest
from turnout.experiment import Algorithm, AlgorithmSpec, DataSpec
from turnout.layout import Predicate
from turnout.parts import optimizers, personal, schedules, selection, weighting
from turnout.parts.aggregation import Aggregation, WeightedSum
from turnout.parts.compression.base import Compression, Dense
from turnout.parts.compression.quantise import Quantise
from turnout.parts.compression.ternary import LiteralTernary, SparseTernary, TopK
from turnout.parts.mixing import Common, FedAMP, Mixing
from turnout.parts.server import Apply, ServerAdagrad, ServerAdam, ServerStep, ServerYogi
from turnout.parts.substitution import base as substitution
from turnout.parts.substitution.friends import Friends
from turnout.parts.substitution.stale import Stale
from turnout.parts.terms import base as terms
from turnout.parts.terms.apfl import APFL
from turnout.parts.terms.control_variates import VRLSGD, FedGATE, Scaffold
from turnout.parts.terms.elastic import Elastic
from turnout.parts.terms.mime import MimeLite
from turnout.parts.terms.proximal import Proximal
from turnout.runtimes.settings import InProcess, RuntimeSpec
from turnout.tracks.scores.settings import Scores, paper_literal
from turnout.world import participation
from turnout.world.events import EventLog, Events, Join, Leave
from turnout.world.random_events import RandomEvents

Maker = Callable[..., Any]


def kind_name(maker: Maker) -> str:
    """The short name of a class or function.

    >>> kind_name(weighting.ByWork), kind_name(partition.IID), kind_name(models.digits_cnn)
    ('by-work', 'iid', 'digits-cnn')
    """
    name = getattr(maker, "__name__", type(maker).__name__)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower().replace("_", "-")


def _table(*makers: Maker, **others: Maker) -> dict[str, Maker]:
    return {kind_name(maker): maker for maker in makers} | others


KINDS: dict[Any, dict[str, Maker]] = {
    DataSpec: _table(
        data.Synthetic, data.Digits, data.MNIST, data.FashionMNIST, data.EMNIST, data.CIFAR10, data.CIFAR100,
        data.ImageFolder, data.Characters, data.Sentences, data.Table, data.ClientFiles, data.Own, data.Loader,
        data.Stream, data.Noisy, data.Arriving, data.WithPublic,
    ),
    partition.Partition: _table(
        partition.IID, partition.OneLabel, partition.Classes, partition.Shards, partition.Dirichlet,
        partition.Clustered, partition.Natural,
    ),
    data.Sizes: _table(data.Equal, data.Pareto, data.LogNormal),
    participation.Participation: _table(
        participation.Always, participation.Traces, participation.Homogeneous, participation.Dropout,
        participation.Stratified, participation.OnOff, participation.FleetLog,
    ),
    selection.Selection: _table(selection.Everyone, selection.Fraction, selection.Count, selection.AsLogged),
    models.ModelSpec: _table(
        models.Logistic, models.MLP, models.CNN, models.ResNet, models.CharacterLSTM, models.SentenceLSTM,
        models.digits_cnn, models.mcmahan_cnn, models.fdms_mnist_cnn, models.fdms_cifar_cnn, models.pfl_cifar_cnn,
        models.mtfl_cifar_cnn, models.vgg11, models.resnet50,
    ),
    task.TaskSpec: _table(task.Classification, task.NextCharacter, task.Regression, task.Task),
    AlgorithmSpec: {"weights": Algorithm} | _table(Scores, paper_literal),
    optimizers.Optimizer: _table(optimizers.SGD, optimizers.Adam),
    schedules.Schedule: _table(schedules.Constant, schedules.InverseClock, schedules.TheoryRate, schedules.Custom),
    terms.Term: _table(Proximal, Elastic, Scaffold, APFL, MimeLite, **{"vrl-sgd": VRLSGD}, fedgate=FedGATE),
    Mixing: _table(Common, fedamp=FedAMP),
    Predicate: _table(personal.batch_norm, personal.everything, personal.Named),
    Compression: _table(Dense, SparseTernary, TopK, Quantise, LiteralTernary, none=Dense),
    substitution.Substitution: _table(substitution.Unused, substitution.Dropout, Stale, Friends),
    weighting.Weighting: _table(
        weighting.CompleteOnly, weighting.ByShare, weighting.ByWork, fednova=weighting.FedNova,
        A=weighting.CompleteOnly, B=weighting.ByShare, C=weighting.ByWork,
    ),
    Aggregation: _table(WeightedSum),
    ServerStep: _table(Apply, ServerAdam, ServerYogi, ServerAdagrad),
    Events: _table(Join, Leave, EventLog, RandomEvents),
    RuntimeSpec: _table(InProcess),
}  # fmt: skip

ROLE_NAMES = {
    DataSpec: "data",
    partition.Partition: "partition",
    data.Sizes: "sizes",
    participation.Participation: "participation",
    selection.Selection: "selection",
    models.ModelSpec: "model",
    task.TaskSpec: "task",
    AlgorithmSpec: "algorithm",
    optimizers.Optimizer: "optimizer",
    schedules.Schedule: "schedule",
    terms.Term: "term",
    Mixing: "mixing",
    Predicate: "personal",
    Compression: "compression",
    substitution.Substitution: "substitution",
    weighting.Weighting: "weighting",
    Aggregation: "aggregation",
    ServerStep: "server",
    Events: "event",
    RuntimeSpec: "runtime",
}


UNSAID = {AlgorithmSpec: "weights"}  # the kind of a table that names none


def find(role: Any, kind: str, path: str) -> Maker:
    """The class or function a short name or a dotted path stands for."""
    if ":" in kind:
        return imported(kind, path)
    table = KINDS[role]
    if kind not in table:
        raise Mistake(f"{path}: there is no {ROLE_NAMES[role]} of kind {kind!r}: {nearest(kind, table)}")
    return table[kind]


def imported(dotted: str, path: str) -> Any:
    """What a dotted path `package.module:Name` names."""
    module, _, name = dotted.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise Mistake(f"{path}: cannot import {module!r} ({error}): is its folder on PYTHONPATH?") from error
    except AttributeError as error:
        raise Mistake(f"{path}: module {module!r} has nothing called {name!r}") from error
    except SyntaxError as error:
        raise Mistake(f"{path}: {error.filename}, line {error.lineno}: {error.msg}") from error
    except Exception as error:  # whatever a person's module does when it is imported
        raise Mistake(f"{path}: importing {module!r} failed: {type(error).__name__}: {error}") from error


def name_of(role: Any, thing: Any) -> str:
    """How a part is written in a file: its short name, else its dotted path."""
    maker = thing if callable(thing) and not _is_instance_of_kind(role, thing) else type(thing)
    for kind, known in KINDS.get(role, {}).items():
        if known is maker and len(kind) > 1:
            return kind
    return f"{maker.__module__}:{maker.__qualname__}"


def _is_instance_of_kind(role: Any, thing: Any) -> bool:
    return any(isinstance(known, type) and isinstance(thing, known) for known in KINDS.get(role, {}).values())


def settable(maker: Any) -> dict[str, Any]:
    """The settings of a class or function with their type hints."""
    if dataclasses.is_dataclass(maker):
        hints = typing.get_type_hints(maker)
        return {f.name: hints[f.name] for f in dataclasses.fields(maker) if f.init}
    function = maker.__init__ if inspect.isclass(maker) else maker
    hints = typing.get_type_hints(function)
    names = [n for n, p in inspect.signature(function).parameters.items() if n != "self" and p.kind != p.VAR_POSITIONAL]
    return {name: hints.get(name, Any) for name in names}


def role_in(hint: Any) -> Any:
    """The role a hint names, through optionals and tuples."""
    if isinstance(hint, list):  # the arguments of a function
        return None
    if hint in KINDS:
        return hint
    return next((found for a in typing.get_args(hint) if (found := role_in(a)) is not None), None)
