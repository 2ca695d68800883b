"""Study `adapters`: texts by author, the decoder, claims on made-up curves, and the smoke scale end to end."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from turnout.errors import UserError
from turnout_papers.authors import Authors, Decoder
from turnout_papers.studies import adapters as study
from turnout_papers.studies.drawing import WAYS
from turnout_papers.studies.running import run_study
from turnout_papers.studies.study import Curve, Curves, Part, StudyPlan

# by method: of the base's perplexity, and what 70 % absence costs beside 30 %
AS_CLAIMED = dict(
    zip(study.METHODS, ((0.90, 0.02), (0.905, 0.01), (0.85, 0.04), (0.88, 0.02), (0.88, 0.03)), strict=True)
)
OTHERWISE = dict(
    zip(study.METHODS, ((1.10, 0.04), (1.20, 0.05), (1.25, 0.02), (1.15, 0.04), (0.90, 0.01)), strict=True)
)


# -- texts and decoder


def test_halves_are_of_authors_and_windows_are_of_their_text():
    first, second = (Authors("made-up", half=half, length=32, most=5).read(None) for half in (0, 1))
    assert first.owners == tuple(f"author {i}" for i in range(4))
    assert second.owners == tuple(f"author {i}" for i in range(4, 8))
    assert second.owner_S.bincount().tolist() == [5 * 128 // 32] * 4
    assert torch.equal(second.x, second.y)
    whole = Authors("made-up").read(None)
    assert torch.equal(whole.x[:12:11].flatten(), Authors("made-up", most=2).read(None).x[:2].flatten())


def test_speakers_are_those_with_enough_text_by_play(tmp_path: Path):
    speech = "To be, or not to be: that is the question. " * 30  # 1,290 bytes
    lines = [
        f'{play},{name},"{speech}"' for play, name in (("b", "Ann"), ("a", "Eve"), ("a", "Bob")) for _ in range(10)
    ]
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare/by_role.csv").write_text("\n".join(["play,speaker,text", *lines, 'a,Few,"Aye."']))
    first, second = (Authors("speakers", half=half).read(tmp_path) for half in (0, 1))
    assert first.owners + second.owners == ("a / Bob", "a / Eve", "b / Ann")
    assert bytes(second.x[0].tolist()).decode() == (speech + "\n" + speech)[:128]
    with pytest.raises(UserError, match="--only addresses"):
        Authors("presidents+speakers").read(tmp_path)


def test_the_decoder_sees_only_what_came_before():
    model = Decoder(2, 16, 2).build((12,), 256)
    byte_BT = torch.randint(256, (1, 12), generator=torch.Generator().manual_seed(0))
    changed_BT = byte_BT.clone()
    changed_BT[0, 7] += 1
    before, after = model(byte_BT), model(changed_BT)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


# -- claims


def made_up(found: dict[str, tuple[float, float]], tied: float, adapter: float) -> Curves:
    """Three seeds that hardly differ; `tied`: what such absence costs, of what 70 % do; `adapter`: bytes a round."""
    curves: dict[str, dict[int, Curve]] = {}
    sent: dict[str, dict[int, Curve]] = {}
    for (text, absence), (method, (level, cost)) in product(study.cases("paper"), found.items()):
        lost = {"30 %": 0.0, "50 %": 0.5, "70 %": 1.0, study.TIED: tied}[absence]
        name = study.variant(text, absence, method)
        values = {seed: 4.0 * (level + lost * cost) * (1 + 1e-5 * seed) for seed in range(3)}
        curves[name] = {seed: Curve(np.array([-1, 0, 1]), np.array([4.0, v, v])) for seed, v in values.items()}
        bytes_ = 150.0 if method == study.FULL else adapter
        sent[name] = {seed: Curve(np.arange(2), np.full(2, bytes_ + 0.01 * seed)) for seed in range(3)}
    common = {name: by_seed for name, by_seed in curves.items() if not name.endswith(study.FEDSA)}
    return Curves(curves, more={study.GLOBAL: Curves(common)} | dict.fromkeys(WAYS, Curves(sent)))


def test_claims_on_numbers_that_bear_them_out_and_on_others():
    found = study.STUDY.decide("paper", made_up(AS_CLAIMED, tied=1.0, adapter=10.0))
    assert [claim.outcome for claim in found] == ["holds"] * 24
    found = study.STUDY.decide("paper", made_up(OTHERWISE, tied=0.0, adapter=20.0))
    assert [claim.outcome for claim in found] == ["refuted"] * 24


def test_percent_of_a_perplexity():
    curve = Curve(np.array([-1, 4, 9]), np.array([4.0, 3.5, 3.0]))
    assert study.score(curve) == pytest.approx(-100 * np.log(3.0))
    assert study.gain(curve) == pytest.approx(100 * np.log(4.0 / 3.0))


def test_what_a_run_has_gained_at_the_bytes_of_another():
    curve = Curve(np.array([-1, 0, 1, 2]), np.array([4.0, 3.8, 3.5, 3.0]))
    sent = {"dear": {0: Curve(np.arange(3), np.full(3, 5.0))}, "cheap": {0: Curve(np.arange(3), np.full(3, 4.0))}}
    curves = Curves({}, more={study.GLOBAL: Curves({"dear": {0: curve}})} | dict.fromkeys(WAYS, Curves(sent)))
    found = study.gain_within(curves, "dear", "cheap")  # of 30 bytes, both ways, it has sent 20 by the second round
    assert found == {0: pytest.approx(100 * np.log(4.0 / 3.5))}
    assert study.gain_within(curves, "dear", "none") == {}


def test_without_its_files_the_study_says_so():
    missing = Curves({}, {study.BASE: "there is no addresses.npz"})
    assert study.finetuning("paper", missing) == []
    assert all(row.ours == "not run" for row in study.rows("paper", missing))
    assert {claim.evidence for claim in study.STUDY.decide("paper", missing)} == {"not run: there is no addresses.npz"}


# -- runs


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "study"
    found = run_study(study.STUDY, "smoke", folder, quiet=True, jobs=1)
    assert not [row for row in found.rows if row.ours == "not run"]
    assert all(claim.ran for claim in found.claims)
    return folder


def test_every_method_starts_from_the_base_and_sends_its_own_part(smoke: Path):
    size = study.SIZES["smoke"]
    path = smoke / "pretraining" / "base.safetensors"
    base = study.Base(str(path), hashlib.sha256(path.read_bytes()).hexdigest())
    found = run_study(study.STUDY, "smoke", smoke, quiet=True, so_far=True)  # of the same base, or it would be refused
    assert hashlib.sha256(path.read_bytes()).hexdigest() == base.checksum
    megabytes = {row.case: row.ours for row in found.rows if row.metric == "MB up"}
    sent = {method: megabytes[study.variant("made-up", "30 %", method)] for method in study.METHODS}
    width, rank = size.decoder.width, size.rank
    adapter = 4 * 2 * width * rank + 2 * (width + 4 * width) * rank
    whole = sum(p.numel() for p in size.decoder.build((size.length,), 256).parameters())
    assert sent[study.FULL] / sent[study.FEDIT] == pytest.approx(whole / adapter)
    assert sent[study.FFA] == pytest.approx(sent[study.FEDIT] / 2)
    assert sent[study.FEDSA] == pytest.approx(sent[study.FEDIT] / 2)
    assert sent[study.PRODUCT] == sent[study.FEDIT]
    ElementTree.parse(smoke / "adapters.svg")
    for method in study.METHODS:
        made = study.experiment(size, "made-up", "30 %", method, 0.01, base)
        assert (made.start == base.path) == (method == study.FULL)
        assert getattr(made.model, "checksum", base.checksum) == base.checksum


def test_a_base_that_was_changed_is_refused(smoke: Path):
    base = study.Base(str(smoke / "pretraining" / "base.safetensors"), "0" * 64)
    made = study.experiment(study.SIZES["smoke"], "made-up", "30 %", study.FEDIT, 0.01, base)
    with pytest.raises(UserError, match="has SHA-256"):
        made.model.base_file()


def test_a_perplexity_that_is_not_finite_ranks_last(tmp_path: Path):
    good = study.pretraining(study.SIZES["smoke"]).but(rounds=1)
    wild = good.but(**{"algorithm.local.optimizer.lr": 1e38})
    part = Part("both", {"good": good, "wild": wild}, seeds=1)
    found = {}
    seen = replace(
        study.STUDY, plan=lambda scale: StudyPlan([part]), rows=lambda scale, curves: found.update(curves.curves) or (),
        claims=lambda scale, curves: (), figures=lambda scale: {}, then=None,
    )  # fmt: skip
    run_study(seen, "smoke", tmp_path / "out", quiet=True, jobs=1)
    assert np.isfinite(found["good"][0].value_T).all()
    assert found["wild"][0].value_T.tolist() == [np.inf]
