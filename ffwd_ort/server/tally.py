"""What a request's texts come to in tokens: which are too long, and whether they are too many together."""

from ffwd_ort.engine.model import Cap
from ffwd_ort.server.errors import Invalid, Problem
from ffwd_ort.server.fields import RequestRules

FAR = 16  # a text that is far too long says more of its request than one that is a little
USELESS = 2  # times the request limit: beyond it nothing more is counted, nearby the count is exact
Place = tuple[str | int, ...]


class Tally:
    """Admits a request's texts as they are tokenised, and says when there are so many that it is no use going on.

    Tokenising a body of 64 MiB to the end took 15 GB and a minute. `name` is the field of the texts, `noun` what one
    of them is called; with `counts_refused`, texts that are too long count towards the request limit all the same.
    """

    def __init__(self, rules: RequestRules, cap: Cap, name: str, noun: str, *, counts_refused: bool = True) -> None:
        self._most = rules.max_request_tokens
        self._cap = cap
        self._name = name
        self._noun = noun
        self._counts_refused = counts_refused
        self._problems: list[Problem] = []
        self._wasted = 0
        self.total = 0

    def add(self, where: Place, tokens: int, counted: int, at_least: bool) -> bool:
        """Count a text that has `tokens`, of `counted` before a cut; tell whether there is any use in going on.

        There is none only where `check` will raise: a text that fits, cut or not, wastes nothing.
        """
        fits = tokens <= self._cap.tokens
        if fits or self._counts_refused:
            self.total += tokens
        if not fits:
            self._problems.append(too_long(where, self._noun, counted, self._cap, at_least=at_least))
            self._wasted += tokens * FAR if at_least else 0 if self._counts_refused else tokens
        return not self._stopped

    @property
    def _stopped(self) -> bool:
        return max(self.total, self._wasted) > USELESS * self._most

    def check(self, *before: Problem) -> None:
        """Raise Invalid with the problems `before`, the request's own and the texts', if there are any."""
        over = over_request_limit(self._name, self.total, self._most, at_least=self._stopped)
        problems = [*before, *([over] if over else []), *self._problems]
        if problems:
            raise Invalid(problems)


def over_request_limit(name: str, total: int, most: int, *, at_least: bool = False) -> Problem | None:
    """Say that a request carries too many tokens, if it does."""
    if total <= most:
        return None
    counted = f"at least {total}" if at_least else str(total)
    bound = f"(counted {counted}; bound by --max-request-tokens {most})"
    return Problem((name,), f"request exceeds the request token limit {bound}", "value_error.context_length")


def too_long(where: Place, noun: str, counted: int, cap: Cap, *, at_least: bool = False) -> Problem:
    """Say that a text has more tokens than the label's cap, and what binds that."""
    count = f"at least {counted}" if at_least else str(counted)
    message = f"{noun} exceeds {cap.tokens} token limit (counted {count}; bound by {cap.bound_by})"
    return Problem(where, message, "value_error.context_length")
