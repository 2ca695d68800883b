"""Texts from CSV files: `Characters` for predicting the next character, `Sentences` for classification.

Shape letters: S samples.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from turnout.data.csv_files import Columns, number_values, read_csv
from turnout.data.files import find_path
from turnout.data.partition import Partition
from turnout.data.partitioned import Partitioned, Pool
from turnout.errors import Mistake

WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[^\w\s]")
PADDING, UNKNOWN = 0, 1


@dataclass(frozen=True)
class Characters(Partitioned):
    """Next-character prediction: x is `length` characters, y the character that follows each of them.

    An owner's texts are joined by line breaks and cut into windows without overlap; an incomplete window at the end is
    dropped, and so is an owner with less text than a window. The classes are the characters that occur, in code order.
    `min_characters` leaves out owners with less text than that. Several columns together may name an owner:
    ("play", "speaker").
    """

    path: Path | str
    text_column: str = "text"
    owner_column: Columns = None
    length: int = 80
    min_characters: int = 0
    clients: int | None = field(default=None, kw_only=True)
    partition: Partition | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1:
            raise Mistake(f"Characters(length={self.length}): a window has at least 1 character")

    def read(self, data_dir: Path | None = None) -> Pool:
        table = read_csv(find_path(self.path, data_dir))
        texts = table.column(self.text_column)
        owner_S, owners = table.owners(self.owner_column)
        said: list[list[str]] = [[] for _ in owners or ("",)]
        for owner, text in zip([0] * len(texts) if owner_S is None else owner_S.tolist(), texts, strict=True):
            said[owner].append(text)
        kept = {
            name: "\n".join(parts)
            for name, parts in zip(owners or ("",), said, strict=True)
            if sum(map(len, parts)) >= max(self.length + 1, self.min_characters)
        }
        if not kept:
            raise Mistake(f"{table.path}: no owner has enough text; lower length or min_characters")
        return self._windows(kept)

    def _windows(self, kept: dict[str, str]) -> Pool:
        codes = [np.frombuffer(text.encode("utf-32-le"), np.uint32) for text in kept.values()]
        known = np.unique(np.concatenate(codes))
        x, y, count = [], [], []
        for code in codes:
            number = np.searchsorted(known, code)
            windows = (len(number) - 1) // self.length
            x.append(number[: windows * self.length].reshape(windows, self.length))
            y.append(number[1 : windows * self.length + 1].reshape(windows, self.length))
            count.append(windows)
        owner_S = torch.repeat_interleave(torch.arange(len(count)), torch.tensor(count))
        labels = tuple(chr(code) for code in known)
        return Pool(
            torch.from_numpy(np.concatenate(x).astype(np.int64)),
            torch.from_numpy(np.concatenate(y).astype(np.int64)),
            len(labels),
            labels,
            owner_S=owner_S if self.owner_column else None,
            owners=tuple(kept) if self.owner_column else (),
        )


@dataclass(frozen=True)
class Sentences(Partitioned):
    """Text classification: x is the last `length` words as numbers, y the class in the label column.

    The `vocabulary - 2` most frequent words (ties in alphabetical order) have the numbers from 2 on; 0 is padding and
    1 any other word, so a model needs an embedding of `vocabulary` rows. Padding comes first, so that a recurrent model
    ends on the last word.
    """

    path: Path | str
    text_column: str = "text"
    label_column: str = "target"
    owner_column: Columns = None
    length: int = 25
    vocabulary: int = 10_000
    clients: int | None = field(default=None, kw_only=True)
    partition: Partition | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1 or self.vocabulary < 3:
            raise Mistake("Sentences needs a length of at least 1 and a vocabulary of at least 3")

    def read(self, data_dir: Path | None = None) -> Pool:
        table = read_csv(find_path(self.path, data_dir))
        y, labels = number_values(table.column(self.label_column))
        owner_S, owners = table.owners(self.owner_column)
        texts = [WORD.findall(text.lower()) for text in table.column(self.text_column)]
        counted = Counter(word for words in texts for word in words)
        ranked = sorted(counted, key=lambda word: (-counted[word], word))[: self.vocabulary - 2]
        number = {word: i + 2 for i, word in enumerate(ranked)}
        x = np.full((len(texts), self.length), PADDING, np.int64)
        for i, words in enumerate(texts):
            if used := [number.get(word, UNKNOWN) for word in words[-self.length :]]:
                x[i, -len(used) :] = used
        return Pool(torch.from_numpy(x), y, len(labels), labels, owner_S=owner_S, owners=owners)


KINDS = {"characters": Characters, "sentences": Sentences}
