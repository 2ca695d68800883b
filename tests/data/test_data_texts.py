"""Texts as tokens: who owns which windows, padding and masks, tokenizers from a folder, and what is refused."""

from __future__ import annotations

import pytest
import torch

import turnout as to
from turnout.errors import UserError
from turnout.inputs import Inputs
from turnout.testing import check_data
from word_tokenizer import write_tokenizer


def test_a_file_is_a_client_and_its_text_is_cut_into_windows(tmp_path):
    for name, text in {"ann": "abcdefghij", "bob": "xyz", "eve": "q"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    data = to.data.Texts(tmp_path, length=4, test_share=0.0).load(0)
    assert data.names == ("ann", "bob")  # eve's single token predicts nothing
    x, y = data.train(torch.tensor([0])).of(0)
    assert isinstance(x, Inputs)
    order = x["input_ids"][:, 0].argsort()
    assert x["input_ids"][order].tolist() == [[97, 98, 99, 100], [101, 102, 103, 104], [105, 106, 0, 0]]
    assert x["attention_mask"][order].tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]]
    assert y[order].tolist() == [[97, 98, 99, 100], [101, 102, 103, 104], [105, 106, -100, -100]]
    assert (data.classes, data.input_shape) == (256, (4,))


def test_texts_keep_the_promises_of_data(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"{name} says: hello, hello " * 3)
    check_data(to.data.Texts(tmp_path, length=7))


def test_letters_beyond_ascii_are_several_bytes(tmp_path):
    (tmp_path / "a.txt").write_text("zä")
    x, _ = to.data.Texts(tmp_path / "a.txt", length=4, test_share=0.0).load(0).train(torch.tensor([0])).of(0)
    assert x["input_ids"].tolist() == [[122, 0xC3, 0xA4, 0]]


def test_rows_of_a_table_belong_to_owners_or_are_clients(tmp_path):
    (tmp_path / "t.csv").write_text("text,who\nabc,ann\nxyz,bob\ndef,ann\n")
    owned = to.data.Texts(tmp_path / "t.csv", length=8, owner_column="who", test_share=0.0).load(0)
    assert (owned.names, owned.examples(torch.arange(2)).tolist()) == (("ann", "bob"), [2, 1])
    rows = to.data.Texts(tmp_path / "t.csv", length=8, test_share=0.0).load(0)
    assert rows.names == ("row 0", "row 1", "row 2")
    divided = to.data.Texts(tmp_path / "t.csv", length=8, clients=1, test_share=0.0).load(0)
    assert divided.examples(torch.tensor([0])).tolist() == [3]


def test_a_label_column_makes_a_text_a_sample(tmp_path):
    (tmp_path / "t.csv").write_text("text,mood,who\nabcdefgh,good,ann\nxy,bad,bob\n")
    data = to.data.Texts(tmp_path / "t.csv", length=4, label_column="mood", owner_column="who", test_share=0.0).load(0)
    assert (data.labels, data.classes) == (("bad", "good"), 2)
    x, y = data.train(torch.arange(2)).of(0)
    assert (x["input_ids"].tolist(), y.tolist()) == ([[97, 98, 99, 100]], [1])


@pytest.mark.parametrize("way", ["folder", "file"])
def test_a_tokenizer_of_a_folder(way, tmp_path):
    folder = write_tokenizer(tmp_path / "words")
    (tmp_path / "a.txt").write_text("the cat sat purring")
    given = folder if way == "folder" else folder / "tokenizer.json"
    spec = to.data.Texts(tmp_path / "a.txt", tokenizer=given, length=6, test_share=0.0)
    data = spec.load(0)
    assert data.train(torch.tensor([0])).of(0)[0]["input_ids"].tolist() == [[1, 2, 3, 0, 0, 0]]
    assert (data.classes, spec.tokens().text([1, 4])) == (5, "the mat")
    assert data.words != to.data.Texts(tmp_path / "a.txt", test_share=0.0).load(0).words


def test_what_a_device_declares_is_what_it_has(tmp_path):
    from turnout.data.description import described, enrolment_of, read_text

    (tmp_path / "t.csv").write_text("text,mood\nab,good\ncd,bad\nef,bad\ngh,good\n")
    for more in ({}, {"label_column": "mood", "clients": 1}):
        spec = to.data.Texts(tmp_path / "t.csv", length=5, **more).fixed()
        found = described(enrolment_of(spec.load(0)), "")
        declared = spec.declared()
        assert declared is not None
        for name in ("inputs", "input_shape", "target_shape", "target_type", "classes", "labels", "words"):
            assert getattr(declared, name) == getattr(found, name), name
        assert read_text(found.text(), "it") == found
        assert found.sample(2)["attention_mask"].sum() == 10


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"length": 1}, "at least 2 tokens"),
        ({"labels": ("a",)}, "lists every class"),
        ({"label_column": "x"}, "plain text, which has no column"),
        ({"tokenizer": "nowhere"}, "nowhere"),
        ({"tokenizer": "empty"}, "no tokenizer that can be loaded"),
    ],
)
def test_mistakes_are_explained(settings, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=words):
        to.data.Texts("a.txt", **settings).load(0)


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UserError, match=r"a\.txt cannot be read as a text in UTF-8"):
        to.data.Texts(tmp_path).load(0)


def test_samples_of_a_data_set_with_several_inputs_are_filled_up():
    """As a tokenized data set has them: dictionaries of lists, of different lengths."""
    rows = [{"input_ids": [5, 6, 7], "kind": 1.0, "labels": [5, 6, 7]}, {"input_ids": [8], "kind": 2.0, "labels": [8]}]
    tested = [{"input_ids": [1, 2, 3, 4], "kind": 0.0, "labels": [1, 2, 3, 4]}]
    spec = to.data.FromDataset(rows, owner=[0, 1], x=("input_ids", "kind"), y="labels", test=tested)
    data = spec.load(0)
    x, y = data.train(torch.tensor([0])).of(0)
    assert x["input_ids"].tolist() == [[5, 6, 7, 0]]
    assert (x["attention_mask"].tolist(), x["kind"].tolist()) == ([[1, 1, 1, 0]], [1.0])
    assert y.tolist() == [[5, 6, 7, -100]]
    assert data.central_test()[0]["input_ids"].tolist() == [[1, 2, 3, 4]]
    labelled = [{"input_ids": [5, 6], "y": "good"}, {"input_ids": [8], "y": "bad"}]
    found = to.data.FromDataset(labelled, owner=[0, 0], x=("input_ids",), y="y", test_share=0.0).load(0)
    x, y = found.train(torch.tensor([0])).of(0)
    assert sorted(zip(x["input_ids"].tolist(), y.tolist(), strict=True)) == [([5, 6], 1), ([8, 0], 0)]
    assert found.labels == ("bad", "good")
    with pytest.raises(UserError, match="no part 'nothing'"):
        to.data.FromDataset(rows, owner=[0, 1], x=("nothing",), y="labels").load(0)
