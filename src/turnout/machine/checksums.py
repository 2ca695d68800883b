"""Files that carry a checksum of their content.

JSON has it under "checksum", a text as its last line, tensors in the metadata of their file, a program after its end,
so other programs can still read each file. A file without a checksum is accepted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from turnout.errors import UserError
from turnout.machine.files import read_whole, replacing, write_whole

KEY = "checksum"
LAST_LINE = "# checksum "
MARK = b"turnout-checksum"
NOT_AS_WRITTEN = "its content is not what was written"
# Errors that reading a damaged file may raise, beside our own: none of them names the file.
UNREADABLE = (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError)


class Damaged(UserError):
    """A file that differs from what was written; `then` says what to do about it."""

    def __init__(self, path: Path | str, why: object, then: str):
        super().__init__(f"{path} is damaged ({why}): {then}")


def digest(*pieces: bytes | memoryview) -> str:
    made = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        made.update(len(piece).to_bytes(8, "little"))
        made.update(piece)
    return made.hexdigest()


def json_text(value: Mapping[str, Any], allow_nan: bool = True) -> str:
    """A table as JSON with its checksum.

    >>> print(json_text({"a": 1}), end="")
    {
      "a": 1,
      "checksum": "92b949f41ab3fc95b06371bf755b2911"
    }
    """
    return json.dumps({**value, KEY: _of_table(value)}, indent=2, ensure_ascii=False, allow_nan=allow_nan) + "\n"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_whole(path, json_text(value))


def read_json(path: Path, then: str) -> dict[str, Any]:
    """The table of a JSON file; a damaged file raises an error that says what to do `then`."""
    try:
        return table_of(read_whole(path))
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
        raise Damaged(path, error, then) from error


def table_of(text: str | bytes) -> dict[str, Any]:
    """The table of a JSON text; ValueError if it is not one, or does not match its checksum."""
    table = json.loads(text)
    if not isinstance(table, dict):
        raise ValueError(f"a {type(table).__name__}, not a table")
    expected = table.pop(KEY, None)
    if expected is not None and expected != _of_table(table):
        raise ValueError(NOT_AS_WRITTEN)
    return table


def _of_table(value: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(dict(value)))  # as it will be read: tuples become lists, keys become texts
    return digest(json.dumps(plain, sort_keys=True).encode())


def text_with_checksum(text: str) -> str:
    """A text whose last line is its checksum, as a comment."""
    return f"{text}{LAST_LINE}{digest(text.encode())}\n"


def check_text(path: Path, text: str, then: str) -> None:
    """Refuse a text that was changed after it was written; one without a checksum is accepted."""
    body, mark, expected = text.rpartition(LAST_LINE)
    if mark and expected.strip() != digest(body.encode()):
        raise Damaged(path, "it was changed after it was written", then)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors, and a table about them, as one safetensors file, in one step."""
    described = json.dumps(dict(about))
    with replacing(path) as temporary:
        try:
            save_file(dict(tensors), temporary, {"turnout": described, KEY: _of_tensors(tensors, described)})
        except SafetensorError as error:
            raise OSError(None, str(error), str(path)) from error


def load_tensors(path: Path, then: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, and the table about them; a damaged file raises an error that says what to do `then`."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        described = metadata.get("turnout", "{}")
        if KEY in metadata and metadata[KEY] != _of_tensors(tensors, described):
            raise ValueError(NOT_AS_WRITTEN)
        about = json.loads(described)
        if not isinstance(about, dict):
            raise ValueError("the description of its content is missing")
    except UNREADABLE as error:
        raise Damaged(path, error, then) from error
    return tensors, about


def content(value: Tensor) -> memoryview:
    """The bytes of a tensor, for a checksum; on a CPU they are not copied.

    >>> content(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).T).tobytes()
    b'\\x01\\x03\\x02\\x04'
    """
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _of_tensors(tensors: Mapping[str, Tensor], about: str) -> str:
    made = hashlib.blake2b(about.encode(), digest_size=16)
    for name in sorted(tensors):
        value = tensors[name]
        made.update(repr((name, str(value.dtype), tuple(value.shape))).encode())
        made.update(content(value))
    return made.hexdigest()


def seal(path: Path) -> None:
    """Append a checksum to a program; its loader ignores bytes after the end."""
    content = path.read_bytes()
    path.write_bytes(content + MARK + digest(content).encode())


def is_whole(path: Path) -> bool:
    """Whether a sealed file matches its checksum."""
    body, mark, expected = path.read_bytes().rpartition(MARK)
    return bool(mark) and expected.decode("ascii", "replace") == digest(body)
