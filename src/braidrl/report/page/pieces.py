"""Texts of single tokens: a string, or bytes if the token is part of a character."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Self

import msgspec

Piece = str | list[int]
"""Text of a token, or its bytes if they are not valid UTF-8 on their own."""
SPACE = "▁"
"""Space character of sentencepiece vocabularies."""


class Vocabulary:
    """Vocabulary of a `tokenizer.json`."""

    def __init__(self, vocabulary: dict[int, str], special: dict[int, str], bytelevel: bool) -> None:
        self.vocabulary = vocabulary
        self.special = special
        self.bytelevel = bytelevel

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a `tokenizer.json`. Raises `ValueError` if the file is not one."""
        try:
            data = msgspec.json.decode(path.read_bytes())
            vocab = data["model"]["vocab"]
            entries = vocab.items() if isinstance(vocab, dict) else ((t[0], i) for i, t in enumerate(vocab))
            vocabulary = {number: token for token, number in entries}
            special = {token["id"]: token["content"] for token in data["added_tokens"]}
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a valid tokenizer.json: {error!r}; set another one with --tokenizer"
            ) from None
        return cls(vocabulary, special, "ByteLevel" in _kinds(data.get("decoder")))

    def of(self, ids: Iterable[int]) -> dict[int, Piece]:
        """Return the pieces of the given ids, without ids outside the vocabulary."""
        found = {number: self._piece(number) for number in set(ids)}
        return {number: piece for number, piece in sorted(found.items()) if piece is not None}

    def _piece(self, number: int) -> Piece | None:
        if number in self.special:
            return self.special[number]
        token = self.vocabulary.get(number)
        if token is None:
            return None
        data = self._bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return list(data)

    def _bytes(self, token: str) -> bytes:
        if self.bytelevel:
            table = byte_alphabet()
            return b"".join(bytes([table[c]]) if c in table else c.encode() for c in token)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return token.replace(SPACE, " ").encode()


@cache
def byte_alphabet() -> dict[str, int]:
    """Return the byte of each character in GPT-2's byte-level alphabet.

    Printable bytes are represented by themselves, the others by consecutive characters from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _kinds(decoder: Any) -> set[str]:
    """Return the types of a decoder and of its nested decoders."""
    if not decoder:
        return set()
    return {decoder["type"]}.union(*(_kinds(part) for part in decoder.get("decoders", ())))
