"""What single tokens say: text, or the bytes of a part of a character."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Self

import msgspec

Piece = str | list[int]
"""Text of a token; where it is no text by itself, its bytes."""
SPACE = "▁"
"""What sentencepiece vocabularies write for a space."""


class Vocabulary:
    """The vocabulary of a `tokenizer.json`."""

    def __init__(self, vocabulary: dict[int, str], special: dict[int, str], bytelevel: bool) -> None:
        self.vocabulary = vocabulary
        self.special = special
        self.bytelevel = bytelevel

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read it. Raises `ValueError` when it is not one."""
        try:
            data = msgspec.json.decode(path.read_bytes())
            vocab = data["model"]["vocab"]
            entries = vocab.items() if isinstance(vocab, dict) else ((t[0], i) for i, t in enumerate(vocab))
            vocabulary = {number: token for token, number in entries}
            special = {token["id"]: token["content"] for token in data["added_tokens"]}
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no tokenizer.json: {error!r}; name one with --tokenizer") from None
        return cls(vocabulary, special, "ByteLevel" in _kinds(data.get("decoder")))

    def of(self, ids: Iterable[int]) -> dict[int, Piece]:
        """The pieces of those ids that it knows."""
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
    """The printable character that byte-level vocabularies write for each byte (as GPT-2 did): printable ones stand for
    themselves, the others follow each other from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _kinds(decoder: Any) -> set[str]:
    """Types of a decoder and of those that it is made of."""
    if not decoder:
        return set()
    return {decoder["type"]}.union(*(_kinds(part) for part in decoder.get("decoders", ())))
