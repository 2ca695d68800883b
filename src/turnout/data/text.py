"""Texts from table files: `Characters` for predicting the next character, `Sentences` for classification.

Shape letters: S samples.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from turnout.data.columns import listed_once, number_labels
from turnout.data.description import Description
from turnout.data.federation import digest
from turnout.data.partitioned import MayHaveOwners, Pool
from turnout.data.text_table import Columns, read_tables
from turnout.errors import UserError

WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[^\w\s]")
PADDING, UNKNOWN = 0, 1


@dataclass(frozen=True)
class Characters(MayHaveOwners):
    """Next-character prediction: x is `length` characters, y the character that follows each of them.

    An owner's texts are joined by line breaks and cut into windows without overlap; an incomplete window at the end is
    dropped, and so is an owner with less text than a window. Devices that hold texts each need `labels` (`fixed()`
    gives them).

    path            the table file, a pattern or a folder
    text_column     the column of the texts
    owner_column    the column that names the owner, or several together: ("play", "speaker")
    length          the characters of a window
    min_characters  owners with less text are left out
    labels          the classes: characters in their order; None for those that occur, in code order
    """

    path: Path | str
    text_column: str = "text"
    owner_column: Columns = None
    length: int = 80
    min_characters: int = 0
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1:
            raise UserError(f"Characters(length={self.length}): a window has at least 1 character")
        if self.labels is not None and (not listed_once(self.labels) or any(len(label) != 1 for label in self.labels)):
            raise UserError("Characters(labels=...): list every character once, each as a text of its own")

    def read(self, data_dir: Path | None = None) -> Pool:
        table = read_tables(self.path, data_dir)
        owner_S, owners = table.owners(self.owner_column)
        owned: dict[str, list[str]] = {name: [] for name in owners or ("",)}
        texts = table.column(self.text_column)
        for owner, text in zip([0] * len(texts) if owner_S is None else owner_S.tolist(), texts, strict=True):
            owned[owners[owner] if owners else ""].append(text)
        least = max(self.length + 1, self.min_characters)
        kept = {name: "\n".join(parts) for name, parts in owned.items() if sum(map(len, parts)) >= least}
        if not kept:
            raise UserError(f"{table.path}: no owner has enough text; lower length or min_characters")
        labels = self.labels or tuple(sorted(set("".join(kept.values()))))
        number, x, y = {label: i for i, label in enumerate(labels)}, [], []
        for owner, text in kept.items():
            if strange := sorted(set(text) - set(labels)):
                whose = f"the text of {owner!r}" if owner else "the text"
                raise UserError(
                    f"{whose} has the character {strange[0]!r}, which is not among the labels: add it there"
                )
            code, end = torch.tensor([number[letter] for letter in text]), (len(text) - 1) // self.length * self.length
            x.append(code[:end].view(-1, self.length))
            y.append(code[1 : end + 1].view(-1, self.length))
        count = torch.tensor([len(windows) for windows in x])
        window_owner = (torch.repeat_interleave(count), tuple(kept)) if self.owner_column else (None, ())
        return Pool(torch.cat(x), torch.cat(y), len(labels), labels, None, *window_owner)

    def fixed(self, seed: int = 0, data_dir: Path | None = None) -> Characters:
        """The same texts with their characters as labels, for devices to share."""
        return replace(self, labels=self.read(data_dir).labels)

    def declared(self) -> Description | None:
        return None if self.labels is None else _described(self, (self.length,), self.labels)


@dataclass(frozen=True)
class Sentences(MayHaveOwners):
    """Text classification: x is the last `length` words as numbers, y the class in the label column.

    The `vocabulary - 2` most frequent words (ties in alphabetical order) have the numbers from 2 on; 0 is padding and
    1 any other word, so a model needs an embedding of `vocabulary` rows. Padding comes first, so that a recurrent model
    ends on the last word.

    path          the table file, a pattern or a folder
    text_column   the column of the texts
    label_column  the column of the classes
    owner_column  the column that names the owner, or several together
    length        the words of a sample
    vocabulary    how many numbers there are for words, with padding and unknown
    labels        the classes in their order; None for those that occur
    words         the words that have the numbers from 2 on, in that order; None for the most frequent ones

    Devices that hold texts each need both in the experiment, or each would number by its own texts: `fixed()` gives
    them as learnt from these texts, and `turnout deploy init` writes them.
    """

    path: Path | str
    text_column: str = "text"
    label_column: str = "target"
    owner_column: Columns = None
    length: int = 25
    vocabulary: int = 10_000
    labels: tuple[str, ...] | None = None
    words: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1 or self.vocabulary < 3:
            raise UserError("Sentences needs a length of at least 1 and a vocabulary of at least 3")
        if not listed_once(self.labels) or not listed_once(self.words):
            raise UserError("Sentences: list every label and every word once, or leave the list out")
        if len(self.words or ()) > self.vocabulary - 2:
            raise UserError(
                f"Sentences: there are {len(self.words or ())} words, and vocabulary={self.vocabulary} has room for "
                f"{self.vocabulary - 2}: raise vocabulary, also that of the model"
            )
        for word in self.words or ():
            if WORD.findall(word.lower()) != [word]:
                raise UserError(f"Sentences: {word!r} is never found in a text: list single words in small letters")

    def read(self, data_dir: Path | None = None) -> Pool:
        return self._read(data_dir)[0]

    def fixed(self, seed: int = 0, data_dir: Path | None = None) -> Sentences:
        """The same texts with labels and words as learnt from them, for devices to share."""
        pool, known = self._read(data_dir)
        return replace(self, labels=pool.labels, words=known)

    def _read(self, data_dir: Path | None) -> tuple[Pool, tuple[str, ...]]:
        """The samples, and the words that have numbers of their own, in the order of the numbers."""
        table = read_tables(self.path, data_dir)
        y, labels = number_labels(table, self.label_column, table.column(self.label_column), self.labels)
        owner_S, owners = table.owners(self.owner_column)
        texts = [WORD.findall(text.lower()) for text in table.column(self.text_column)]
        counted = Counter(word for words in texts for word in words)
        known = self.words or tuple(sorted(counted, key=lambda word: (-counted[word], word))[: self.vocabulary - 2])
        number = {word: i + 2 for i, word in enumerate(known)}
        x = np.full((len(texts), self.length), PADDING, np.int64)
        for i, words in enumerate(texts):
            if used := [number.get(word, UNKNOWN) for word in words[-self.length :]]:
                x[i, -len(used) :] = used
        return Pool(torch.from_numpy(x), y, len(labels), labels, None, owner_S, owners, digest(repr(known))), known

    def declared(self) -> Description | None:
        if self.labels is None or self.words is None:
            return None
        return _described(self, (), self.labels, digest(repr(self.words)))


def _described(
    data: Characters | Sentences, target_shape: tuple[int, ...], labels: tuple[str, ...], words: str = ""
) -> Description:
    return Description(
        clients=data.clients or 1, input_shape=(data.length,), input_type="int64", target_shape=target_shape,
        target_type="int64", classes=len(labels), labels=labels, words=words,
    )  # fmt: skip


KINDS = {"characters": Characters, "sentences": Sentences}
