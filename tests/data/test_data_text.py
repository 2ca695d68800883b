"""Texts: windows of characters, numbered words, their owners; and what is wrong with a file."""

from pathlib import Path

import pytest
import torch

from turnout.data import Characters, Sentences
from turnout.data.partition import IID, OneLabel
from turnout.errors import UserError

PLAYS = """play,speaker,text
Ham,KING,"To be, or
not to be"
Mac,KING,"Is this a dagger which I see"
Ham,KING,"that is it"
Mac,FOOL,"Ay"
"""


@pytest.fixture
def plays(tmp_path: Path) -> Path:
    (tmp_path / "plays.csv").write_text(PLAYS)
    return tmp_path


def test_windows_predict_the_next_character(plays):
    data = Characters("plays.csv", owner_column="speaker", length=10, test_share=0).load(0, plays)
    said = "To be, or\nnot to be\nIs this a dagger which I see\nthat is it"
    assert data.names == ("KING",)
    assert data.labels == tuple(sorted(set(said)))
    x, y = data.train(torch.tensor([0]), 0).of(0)
    assert x.shape == y.shape == ((len(said) - 1) // 10, 10)

    def text(codes: torch.Tensor) -> str:
        return "".join(data.labels[code] for code in codes.flatten().tolist())

    order = x[:, 0].argsort()  # the client's rows are in a random order; the set of windows is what matters
    windows = {text(row): text(after) for row, after in zip(x[order], y[order], strict=True)}
    assert windows == {said[i : i + 10]: said[i + 1 : i + 11] for i in range(0, 10 * len(x), 10)}


def test_owners_by_several_columns_and_enough_text(plays):
    spec = Characters("plays.csv", owner_column=("play", "speaker"), length=5)
    assert spec.load(0, plays).names == ("Ham / KING", "Mac / KING")
    long = Characters("plays.csv", owner_column=("play", "speaker"), length=5, min_characters=29)
    assert long.load(0, plays).names == ("Ham / KING",)
    with pytest.raises(UserError, match="no owner has enough text"):
        Characters("plays.csv", owner_column="speaker", length=500).load(0, plays)


def test_characters_without_owners_are_dealt_but_not_by_label(plays):
    data = Characters("plays.csv", length=4, clients=3, partition=IID()).load(0, plays)
    assert data.clients == 3
    assert data.names is None
    with pytest.raises(UserError, match="not labels"):
        Characters("plays.csv", length=4, clients=3, partition=OneLabel()).load(0, plays)
    with pytest.raises(UserError, match=r"clients=\.\.\."):
        Characters("plays.csv", length=4).load(0, plays)


def test_words_are_numbered_by_frequency(tmp_path):
    (tmp_path / "tweets.csv").write_text("target,text\n4,Good good day!\n0,bad day\n4,\n0,a a a bad one\n")
    data = Sentences("tweets.csv", length=4, vocabulary=6, clients=2, test_share=0).load(0, tmp_path)
    # a x 3, then bad, day, good x 2 in alphabetical order; "!" and "one" are beyond the vocabulary.
    assert data.x.tolist() == [[5, 5, 4, 1], [0, 0, 3, 4], [0, 0, 0, 0], [2, 2, 3, 1]]
    assert (data.labels, data.y.tolist()) == (("0", "4"), [1, 0, 1, 0])
    with pytest.raises(UserError, match="vocabulary"):
        Sentences("tweets.csv", vocabulary=2)
