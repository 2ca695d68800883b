"""Samples with several inputs: the same result from the plain loop and vectorised, with masks, short batches, absent
and partial clients; means over positions; positions that nobody uses are cut off.

Shape letters: S samples, B of a batch, T positions, K tokens, H hidden.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import turnout as to
from combinations import combination
from turnout.engine.network import ForClients
from turnout.errors import UserError
from turnout.inputs import Inputs
from turnout.parts.terms.control_variates import Scaffold
from turnout.running.tracks.prepare import prepare
from turnout.runtimes.client_pool import data_bytes
from turnout.tasks import NextToken

TOKENS, WIDTH = 11, 9
SIZES = [5, 8, 3, 6]  # with batches of 4: short batches of 1, none, 3 and 2


class Decoder(nn.Module):
    """Scores of the next token from the mean of what came before, and a loss like that of transformers' models."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(TOKENS, 6), nn.Dropout(dropout), nn.Linear(6, TOKENS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> SimpleNamespace:
        real_BT1 = attention_mask.unsqueeze(-1).to(self.embed.weight.dtype)
        mean_BTH = (self.embed(input_ids) * real_BT1).cumsum(1) / real_BT1.cumsum(1).clamp(min=1)
        logits = self.head(self.drop(torch.tanh(mean_BTH)))
        loss = None
        if labels is not None:
            loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return SimpleNamespace(logits=logits, loss=loss)


@dataclass(frozen=True)
class Planned:
    """In every round one client is absent and one finishes part of its work."""

    def fraction(self, client_C: Tensor, t: int, full_work: int, seed: int, groups: Tensor | None) -> Tensor:
        return torch.tensor([1.0, 0.5, 0.0, 1.0], dtype=torch.float64).roll(t)[client_C]


def texts(sizes: list[int] = SIZES, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Texts of 2 to 7 tokens in 9 places, and who owns them."""
    g, total = torch.Generator().manual_seed(seed), sum(sizes)
    length = torch.randint(2, 8, (total,), generator=g)
    mask = (torch.arange(WIDTH) < length[:, None]).long()
    ids = torch.randint(0, TOKENS, (total, WIDTH), generator=g) * mask
    labels = torch.where(mask == 1, ids, -100)
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}, owner


def experiment(engine: str, dropout: float = 0.0, **changes: object) -> to.Experiment:
    x, owner = texts()
    local = to.Local(optimizer=to.SGD(lr=0.5), epochs=2, batch_size=4)
    made = to.Experiment(
        world=to.World(
            data=to.data.Own(x, owner=owner, classes=TOKENS, test_share=0.3),
            participation=Planned(),
        ),
        model=lambda: Decoder(dropout),
        task=to.tasks.NextToken(),
        algorithm=to.Algorithm(local=local, weighting=to.weighting.ByWork()),
        runtime=to.runtime.InProcess(engine=engine, precision="float64", threads=1, chunk=4),
        rounds=3,
        seed=1,
    )
    return made.but(**changes) if changes else made


def same(one: to.Run, other: to.Run) -> None:
    a, b = one.weights(), other.weights()
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "changes",
    [{}, {"algorithm.terms": [Scaffold()]}, {"algorithm.local.optimizer": to.AdamW(lr=0.01)},
     {"algorithm.personal": to.personal.Named("head.*")}, {"task": to.tasks.ModelLoss(NextToken())}],
    ids=["sgd", "scaffold", "adamw", "personal", "the model's own loss"],
)  # fmt: skip
def test_vectorised_equals_the_loop(changes, tmp_path):
    loop, vmap = (to.run(experiment(engine, **changes), tmp_path / engine) for engine in ("loop", "vmap"))
    same(loop, vmap)
    about = "personal" if "algorithm.personal" in changes else "global"
    for name in (f"{about}_loss", f"{about}_perplexity", f"{about}_accuracy", "train_loss"):
        assert loop.curve(name)[1] == pytest.approx(vmap.curve(name)[1], rel=1e-9)
    losses = loop.curve("train_loss")[1]
    assert losses[-1] < losses[0]


def test_a_models_own_loss_gives_the_same_as_the_tasks_where_they_agree(tmp_path):
    own = to.run(experiment("vmap", task=to.tasks.ModelLoss(NextToken())), tmp_path / "own")
    same(own, to.run(experiment("vmap"), tmp_path / "task"))


def test_dropout_does_not_depend_on_the_engine(tmp_path):
    """Nothing is cut off in training then: a mask is drawn for every position."""
    same(*(to.run(experiment(engine, dropout=0.3), tmp_path / engine) for engine in ("loop", "vmap")))


def test_a_step_is_of_the_mean_over_all_positions_of_the_batch(tmp_path):
    """One client, one batch: the step is that of torch's own cross-entropy over flattened positions."""
    x, owner = texts([4])
    data = to.data.Own(x, owner=owner, classes=TOKENS, test_share=0.0)
    local = to.Local(optimizer=to.SGD(lr=0.5), steps=1, batch_size=4)
    found = to.run(experiment("vmap", world=to.World(data), algorithm=to.Algorithm(local=local), rounds=1), tmp_path)
    torch.manual_seed(0)
    model = Decoder().double()
    model.load_state_dict(first_weights(found))
    loss = model(**x).loss
    loss.backward()
    for name, parameter in model.named_parameters():
        after = parameter.detach() - 0.5 * parameter.grad
        torch.testing.assert_close(found.weights()[name].double(), after, rtol=0, atol=1e-6)
    assert found.curve("train_loss")[1][-1] == pytest.approx(loss.item())


def first_weights(run: to.Run) -> dict[str, Tensor]:
    track = prepare(run.experiment.but(**{"runtime.precision": "float64"}))
    return {name: value.double() for name, value in track.template.state_dict().items()}


def test_perplexity_is_exp_of_the_mean_over_tokens_of_all_samples(tmp_path):
    """Not a mean of the samples' perplexities, nor of their losses: texts have different lengths."""
    run = to.run(experiment("vmap"), tmp_path)
    model, data = run.model().double().requires_grad_(False), run.experiment.world.data.load(1, None)
    x, y = data.central_test()
    assert isinstance(x, Inputs)
    total, count, each = 0.0, 0, []
    for i in range(len(y)):
        logits = model(**x[i : i + 1].tensors).logits[0, :-1]
        loss_T = cross_entropy(logits, y[i, 1:], ignore_index=-100, reduction="none")[y[i, 1:] != -100]
        total, count, each = total + float(loss_T.sum()), count + len(loss_T), [*each, float(loss_T.mean())]
    assert run.final("global_perplexity") == pytest.approx(
        float(torch.tensor(total / count, dtype=torch.float64).exp())
    )
    assert total / count != pytest.approx(sum(each) / len(each), rel=1e-3)


def test_positions_that_nobody_uses_are_cut_off(tmp_path):
    widths = set[int]()

    class Watching(Decoder):
        def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> SimpleNamespace:
            widths.add(input_ids.shape[-1])
            return super().forward(input_ids, attention_mask, labels)

    here = {"runtime.device": "cpu"}  # a GPU cuts to a multiple of 32
    runs = [
        to.run(experiment("loop", **here, **given), tmp_path / str(len(given))) for given in ({}, {"model": Watching})
    ]
    same(*runs)
    assert min(widths) < 7  # of 9 places; texts have 2 to 7 tokens


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ({"a": torch.zeros(3, 2), "b": torch.zeros(2, 2)}, [0, 1, 0], "one row of each per sample"),
        ({"a b": torch.zeros(3, 2)}, [0, 1, 0], "no argument's name"),
        ({"a": torch.zeros(3, 2)}, None, "there are no targets"),
        (
            {"input_ids": torch.ones(1, 2, dtype=torch.int64), "attention_mask": torch.tensor([[1, 0]])},
            [[1, 1]], r"labels\[attention_mask == 0\] = -100",
        ),
        ({"a": torch.full((3, 2), torch.nan)}, [0, 1, 0], "a is NaN or infinite"),
    ],
)  # fmt: skip
def test_inputs_that_cannot_be_used_are_refused(x, y, words):
    with pytest.raises(UserError, match=words):
        to.data.Own(x, y, owner=[0] * len(next(iter(x.values())))).load()


@pytest.mark.parametrize("mask", ["none", "bool", "float", "causal"])
@pytest.mark.parametrize("heads", [4, 2])
def test_attention_of_several_clients_is_torchs(mask, heads):
    """With masks and heads that share keys; a query that may see nothing gets 0."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 2, n, 5, 6, generator=g, dtype=torch.float64) for n in (4, heads, heads))
    seen = torch.rand(3, 2, 1, 5, 5, generator=g) > 0.4
    seen[0, 0, 0, 2] = False
    given = {"bool": seen, "float": torch.randn(3, 2, 1, 5, 5, generator=g, dtype=torch.float64)}.get(mask)
    named = {"enable_gqa": heads != 4, "is_causal": mask == "causal", "scale": 0.3}

    def loss(q: Tensor, k: Tensor, v: Tensor, given: Tensor | None) -> Tensor:
        return (scaled_dot_product_attention(q, k, v, given, **named) * torch.arange(6)).square().sum()

    with ForClients(), warnings.catch_warnings():
        warnings.simplefilter("error")  # torch has no rule of its own
        places = (0, 0, 0, None if given is None else 0)
        found = vmap(grad(loss, (0, 1, 2)), places)(q, k, v, given)
    for i in range(3):
        expected = grad(loss, (0, 1, 2))(q[i], k[i], v[i], None if given is None else given[i])
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one[i], other)


@pytest.mark.parametrize("seed", range(4))
def test_a_dictionary_with_one_input_is_that_input(seed, tmp_path):
    """Whole algorithms at random, by which every part meets such samples; the layers are called by name."""
    given = next(
        found for i in range(20) if (found := combination(100 + 20 * seed + i)).wrong is None and not found.sick
    )
    plain = given.experiment().but(**{"runtime.engine": "vmap" if seed % 2 else "loop", "runtime.threads": 1})
    data = plain.world.data
    test = None if data.test is None else ({"input": data.test[0]}, data.test[1])
    several = plain.but(**{"world.data": replace(data, x={"input": data.x}, test=test)})
    one, other = (to.run(changed, tmp_path / str(i), quiet=True) for i, changed in enumerate((plain, several)))
    assert str(other.experiment.model) == str(one.experiment.model)
    for name, value in one.weights().items():
        assert torch.equal(value, other.weights()[name]), (str(given), name)
    assert one.curve("bytes_up") == other.curve("bytes_up")


def test_all_inputs_count_in_the_memory_of_the_data():
    x, owner = texts()
    data = to.data.Own(x, owner=owner, classes=TOKENS, test_share=0.0).load(0)
    assert data_bytes(data) >= sum(value.nbytes for value in x.values())
