"""Parser of JMS selectors (JMS 2.0, 3.8.1.1): from tokens to a condition, by recursive descent.

Law: a text is a condition or is rejected with the place. Ordering and arithmetic are for numbers, so a string there is rejected
at once. Nesting is limited, because each level is several calls deep here, and some when a message is looked at.

    condition = conjunction { OR conjunction }          sum     = product { (+|-) product }
    conjunction = negation { AND negation }             product = factor { (*|/) factor }
    negation = NOT negation | test                      factor  = (+|-) factor | literal | identifier | ( condition )
    test = sum [ (=|<>|<|<=|>|>=) sum | [NOT] BETWEEN sum AND sum
               | [NOT] IN ( string {, string} ) | [NOT] LIKE string [ESCAPE string] | IS [NOT] NULL ]
"""

from dataclasses import dataclass

from lockstep.core.amqp import selector_terms as terms
from lockstep.core.amqp.selector_fields import ID_NAMES, string_of_id
from lockstep.core.amqp.selector_lexer import LONG_MAX, Kind, Token, bad_selector, tokens_of

NESTING_MAX = 32
"""Of parentheses, NOT and signs; people write two or three, generators rarely ten."""


@dataclass(frozen=True, slots=True)
class Operand:
    """What was read: one of a condition, a string, a number, and an identifier, of which only messages tell what it is."""

    term: terms.Term
    kind: str
    """condition, string, number, identifier"""
    condition: terms.Condition | None = None
    """Of conditions."""
    text: str = ""
    """Of a string, and the name of an identifier."""


class SelectorParser:
    """Reads one text, once. `slots` then has the identifiers, each with its place in what the condition is given."""

    def __init__(self, text: str) -> None:
        """Raises `Rejected` for a text that is not made of tokens."""
        self.slots: dict[str, int] = {}
        self._tokens = tokens_of(text)
        self._next = 0
        self._nesting = 0

    def parse(self) -> terms.Condition:
        """The condition that the whole text is; raises `Rejected` if it is none."""
        at = self._token.at
        condition = self._as_condition(self._condition(), at)
        if self._token.kind is not Kind.END:
            raise self._unexpected("AND, OR or the end")
        return condition

    @property
    def length(self) -> int:
        """How many words and signs the text has: about what evaluating it takes, but for long values."""
        return len(self._tokens)

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self, *words: str) -> str | None:
        """The keyword or sign that comes next, if it is one of these; then it is behind us."""
        token = self._token
        if token.kind is not Kind.KEYWORD or token.value not in words:
            return None
        self._next += 1
        return str(token.value)

    def _require(self, word: str) -> None:
        if self._take(word) is None:
            raise self._unexpected(word)

    def _unexpected(self, wanted: str) -> Exception:
        token = self._token
        return bad_selector(f"expected {wanted}, found {str(token.value)[:40]!r}", token.at)

    def _string(self) -> str:
        token = self._token
        if token.kind is not Kind.STRING:
            raise self._unexpected("a string")
        self._next += 1
        return str(token.value)

    def _deeper(self) -> None:
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            raise bad_selector(f"nested more than {NESTING_MAX} levels", self._token.at)

    def _condition(self) -> Operand:
        return self._chain("OR")

    def _chain(self, word: str) -> Operand:
        """Conditions joined by OR, or by AND. A single operand is left as it is."""
        at = self._token.at
        first = self._chain("AND") if word == "OR" else self._negation()
        if self._token.kind is not Kind.KEYWORD or self._token.value != word:
            return first
        conditions = [self._as_condition(first, at)]
        while self._take(word):
            at = self._token.at
            operand = self._chain("AND") if word == "OR" else self._negation()
            conditions.append(self._as_condition(operand, at))
        return _tested(terms.disjunction(conditions) if word == "OR" else terms.conjunction(conditions))

    def _negation(self) -> Operand:
        if not self._take("NOT"):
            return self._test()
        self._deeper()
        at = self._token.at
        negated = _tested(terms.negation(self._as_condition(self._negation(), at)))
        self._nesting -= 1
        return negated

    def _test(self) -> Operand:
        at = self._token.at
        left = self._sum()
        if sign := self._take("=", "<>", "<", "<=", ">", ">="):
            return self._comparison(left, sign, at)
        if self._take("IS"):
            is_negated = self._take("NOT") is not None
            self._require("NULL")
            return _tested(terms.is_null(self._as_identifier(left, at)), is_negated)
        is_negated = self._take("NOT") is not None
        if self._take("BETWEEN"):
            return self._between(left, is_negated, at)
        if self._take("IN"):
            term, strings = self._as_identifier(left, at), self._strings()
            if left.text in ID_NAMES:
                strings = frozenset(map(string_of_id, strings))
            return _tested(terms.membership(term, strings), is_negated)
        if self._take("LIKE"):
            term = self._as_identifier(left, at)
            return _tested(self._likeness(term, is_id=left.text in ID_NAMES), is_negated)
        if is_negated:
            raise self._unexpected("BETWEEN, IN or LIKE")
        return left

    def _comparison(self, left: Operand, sign: str, at: int) -> Operand:
        right_at = self._token.at
        right = self._sum()
        if sign not in ("=", "<>"):
            return _tested(
                terms.comparison(sign, self._as_number(left, at), self._as_number(right, right_at))
            )
        return _tested(terms.comparison(sign, _beside(right, left), _beside(left, right)))

    def _between(self, left: Operand, is_negated: bool, at: int) -> Operand:
        """`a BETWEEN b AND c` is `a >= b AND a <= c`; `a NOT BETWEEN b AND c` is `a < b OR a > c`."""
        term = self._as_number(left, at)
        at = self._token.at
        low = self._as_number(self._sum(), at)
        self._require("AND")
        at = self._token.at
        high = self._as_number(self._sum(), at)
        if is_negated:
            return _tested(
                terms.disjunction([terms.comparison("<", term, low), terms.comparison(">", term, high)])
            )
        return _tested(
            terms.conjunction([terms.comparison(">=", term, low), terms.comparison("<=", term, high)])
        )

    def _strings(self) -> frozenset[str]:
        self._require("(")
        strings = [self._string()]
        while self._take(","):
            strings.append(self._string())
        self._require(")")
        return frozenset(strings)

    def _likeness(self, term: terms.Term, *, is_id: bool) -> terms.Condition:
        at = self._token.at
        pattern, escape = self._string(), ""
        if self._take("ESCAPE"):
            at = self._token.at
            escape = self._string()
            if len(escape) != 1:
                raise bad_selector("an escape is one character", at)
        kept = string_of_id(pattern) if is_id else pattern
        if not kept.startswith(("%", "_")):
            # Right behind the prefix a wildcard would find ids of all kinds.
            pattern = kept
        try:
            return terms.likeness(term, pattern, escape)
        except ValueError as error:
            raise bad_selector(str(error), at) from None

    def _sum(self) -> Operand:
        return self._calculation(("+", "-"))

    def _calculation(self, signs: tuple[str, str]) -> Operand:
        """Factors joined by * and /, or products joined by + and -."""
        at = self._token.at
        is_sum = signs == ("+", "-")
        first = self._calculation(("*", "/")) if is_sum else self._factor()
        others = []
        while sign := self._take(*signs):
            other_at = self._token.at
            other = self._calculation(("*", "/")) if is_sum else self._factor()
            others.append((sign, self._as_number(other, other_at)))
        return Operand(terms.arithmetic(self._as_number(first, at), others), "number") if others else first

    def _factor(self) -> Operand:
        sign = self._take("+", "-")
        if sign is None:
            return self._primary()
        token = self._token
        if sign == "-" and token.kind is Kind.NUMBER:
            self._next += 1
            assert not isinstance(token.value, str)
            return Operand(terms.literal(-token.value), "number")
        self._deeper()
        term = self._as_number(self._factor(), token.at)
        self._nesting -= 1
        return Operand(terms.negative(term) if sign == "-" else terms.positive(term), "number")

    def _primary(self) -> Operand:
        token = self._token
        if self._take("("):
            self._deeper()
            operand = self._condition()
            self._require(")")
            self._nesting -= 1
            return operand
        if word := self._take("TRUE", "FALSE"):
            return _tested(terms.truth(terms.literal(word == "TRUE")))
        match token.kind:
            case Kind.NAME:
                slot = self.slots.setdefault(str(token.value), len(self.slots))
                operand = Operand(terms.identifier(slot), "identifier", text=str(token.value))
            case Kind.STRING:
                operand = Operand(terms.literal(token.value), "string", text=str(token.value))
            case Kind.NUMBER:
                if token.value == LONG_MAX + 1 and isinstance(token.value, int):
                    raise bad_selector("a number beyond the range of long", token.at)
                operand = Operand(terms.literal(token.value), "number")
            case _:
                raise self._unexpected("a value")
        self._next += 1
        return operand

    def _as_condition(self, operand: Operand, at: int) -> terms.Condition:
        if operand.kind == "identifier":
            return terms.truth(operand.term)
        if operand.condition is None:
            raise bad_selector(f"a {operand.kind} is no condition", at)
        return operand.condition

    def _as_number(self, operand: Operand, at: int) -> terms.Term:
        if operand.kind not in ("number", "identifier"):
            raise bad_selector(f"a {operand.kind} where a number belongs", at)
        return operand.term

    def _as_identifier(self, operand: Operand, at: int) -> terms.Term:
        if operand.kind != "identifier":
            raise bad_selector(f"a {operand.kind} where an identifier belongs", at)
        return operand.term


def _beside(one: Operand, other: Operand) -> terms.Term:
    """The other one as it is compared with this one: a string beside an id is what that is in the message."""
    if one.kind == "identifier" and one.text in ID_NAMES and other.kind == "string":
        return terms.literal(string_of_id(other.text))
    return other.term


def _tested(condition: terms.Condition, is_negated: bool = False) -> Operand:
    if is_negated:
        condition = terms.negation(condition)
    return Operand(condition, "condition", condition)
