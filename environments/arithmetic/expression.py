"""An arithmetic expression over natural numbers."""

import re
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Self

OPERATORS = "+-*"
NUMBER = r"(?:0|[1-9]\d{0,8})"
EXPRESSION = re.compile(rf"{NUMBER}(?:[{re.escape(OPERATORS)}]{NUMBER})+", re.ASCII)


@dataclass(frozen=True)
class Expression:
    """Expression `operands[0] operators[0] operands[1] ...`, with the usual precedence, left-associative."""

    operands: tuple[int, ...]
    operators: str
    """One of `OPERATORS` between each pair of neighbouring operands: one character fewer than `operands`."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the expression written in `text`, or None if `text` is not one.

        Spaces, brackets, signs and leading zeros are not allowed, and each number must be below a billion.
        """
        if not EXPRESSION.fullmatch(text):
            return None
        operands = re.split(rf"[{re.escape(OPERATORS)}]", text)
        return cls(tuple(map(int, operands)), "".join(re.findall(rf"[{re.escape(OPERATORS)}]", text)))

    def __str__(self) -> str:
        operands = map(str, self.operands)
        return "".join(chain.from_iterable(zip_longest(operands, self.operators, fillvalue="")))

    @property
    def value(self) -> int:
        """Value of the expression."""
        terms = [self.operands[0]]
        for operator, operand in zip(self.operators, self.operands[1:], strict=True):
            if operator == "*":
                terms[-1] *= operand
            else:
                terms.append(operand if operator == "+" else -operand)
        return sum(terms)
