"""POST /v1/tokenize: the ids that a request would encode, and whether they go over a limit. Nothing is run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import falcon

from ffwd_ort.engine.maxsim import query_sequence
from ffwd_ort.engine.model import Cap, ServedModel
from ffwd_ort.engine.scoring import MAXSIM, SCORERS
from ffwd_ort.engine.tokenization import Encoded
from ffwd_ort.errors import TokenizationFailed
from ffwd_ort.families import CONTEXTUAL, CROSS_ENCODER, LATE
from ffwd_ort.server import responses
from ffwd_ort.server.errors import Invalid, Problem
from ffwd_ort.server.fields import RequestRules, kept, read_boolean, read_direction, read_model, read_query
from ffwd_ort.server.middleware import Timing
from ffwd_ort.server.route import ModelRoute
from ffwd_ort.server.tally import too_long
from ffwd_ort.server.validation import read_input, read_prompt_name, read_text_type

# Ids that one answer lists: far above every cap. A body of 64 MiB could ask for 33 million.
MOST_LISTED = 1 << 18


@dataclass(frozen=True)
class TokenizeRequest:
    """A body of /v1/tokenize that passed the field phase."""

    model: ServedModel
    texts: list[str]
    bare: bool
    text_type: str | None
    prompt_name: str | None
    query: str | None
    truncate: bool
    direction: str


def tokenize_request(
    body: Mapping[str, Any], models: Mapping[str, ServedModel], rules: RequestRules
) -> TokenizeRequest:
    """Check the fields of /v1/tokenize; raise Invalid with every problem, in the order of the fields."""
    problems: list[Problem] = []
    model = read_model(body, models, lambda model: True, problems)
    text_type = read_text_type(body, model, problems)
    prompt_name = read_prompt_name(body, model, problems)
    query = _query(body, model, problems)
    truncate = read_boolean(body, "truncate", problems)
    direction = read_direction(body, problems)
    texts, _ = read_input(body, model, RequestRules(), problems, "input", None)
    if problems or model is None or texts is None:
        raise Invalid(problems)
    bare = isinstance(body["input"], str)
    return TokenizeRequest(model, texts, bare, text_type, prompt_name, query, bool(truncate), direction)


def _query(body: Mapping[str, Any], model: ServedModel | None, problems: list[Problem]) -> str | None:
    if "query" not in body:
        return None
    if model is not None and model.kind != CROSS_ENCODER:
        only = "query is only supported for cross-encoder models"
        problems.append(Problem(("query",), only, "extra_fields"))
        return None
    return read_query(body, problems)


def tokens_of(request: TokenizeRequest) -> list[Encoded]:
    """Tokenise as a request would; raise Invalid for a text that becomes no token, or more than can be listed."""
    found: list[Encoded] = []
    listed = 0
    try:
        for text in _encoded(request):
            listed += len(text.ids)
            found.append(text)
            if text.at_least or listed > MOST_LISTED:
                place = ("input",) if request.bare else ("input", len(found) - 1)
                cap = Cap(MOST_LISTED, "what one answer lists")
                raise Invalid([too_long(place, "input", listed, cap, at_least=True)])
    except TokenizationFailed as error:
        place = ("input",) if request.bare else ("input", error.args[0])
        where = ("query",) if error.args[0] is None else place
        raise Invalid([Problem(where, "tokenization failed", "value_error.tokenization")]) from None
    return found


def _encoded(request: TokenizeRequest) -> Iterator[Encoded]:
    model, texts = request.model, request.texts
    most = model.cap.tokens if request.truncate else None
    options: dict[str, Any] = {"direction": request.direction, "enough": MOST_LISTED if most is None else most}
    if request.query is not None:
        for pair in model.tokenizer.encode_pairs(request.query, texts, max_length=most, **options):
            yield Encoded(pair.ids, pair.counted, pair.at_least and most is None)
    elif model.kind == CONTEXTUAL:
        for chunk in model.tokenizer.encode_chunks(texts, **options):
            ids = chunk.ids[kept(most, request.direction)]
            yield Encoded(ids, chunk.counted, chunk.at_least and most is None)
    elif model.kind == LATE:
        yield from _late(request, most)
    else:
        prompt = model.prompt_for(request.text_type, request.prompt_name)
        for text in model.tokenizer.encode_each(texts, prompt=prompt, max_length=most, **options):
            yield Encoded(text.ids, text.counted, text.at_least and most is None)


def _late(request: TokenizeRequest, most: int | None) -> Iterator[Encoded]:
    model, late = request.model, request.model.manifest.late
    query = request.text_type == "query"
    enough = MOST_LISTED if most is None else most
    options: dict[str, Any] = {"max_length": most, "direction": request.direction, "enough": enough}
    for text in SCORERS[MAXSIM].encode(model, request.texts, query=query, **options):
        ids = query_sequence(text.ids, late, model.normalize).ids if query and late is not None else text.ids
        yield Encoded(ids, max(text.counted, len(ids)), text.at_least and most is None)


class Tokenize(ModelRoute):
    """Ids and counts."""

    def serves(self, model: ServedModel) -> bool:
        """Tell that every label has a tokenizer."""
        return True

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Validate, tokenise, answer."""
        timing: Timing = req.context.timing
        request = self.read(req, tokenize_request)
        cap = request.model.cap.tokens
        with timing.stage("tokenize"):
            texts = tokens_of(request)
            total = sum(len(text.ids) for text in texts)
            self.account(req, len(texts), total)
        with timing.stage("encode"):
            over = total > self._rules.max_request_tokens
            data = [
                {
                    "object": "tokens",
                    "index": i,
                    "token_count": len(text.ids),
                    "ids": text.ids.tolist(),
                    "truncated": text.truncated,
                    "exceeds_limit": over or len(text.ids) > cap,
                }
                for i, text in enumerate(texts)
            ]
            label = request.model.label
            answer = {"object": "list", "model": label, "max_tokens": cap, "data": data, "total_tokens": total}
            resp.data = responses.encode(answer)
        responses.report_cuts(resp, sum(text.truncated for text in texts))
