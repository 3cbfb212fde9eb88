"""Build the bodies of answers. Nothing here decides anything."""

from collections.abc import Sequence
from typing import Any

import falcon
import orjson

from ffwd_ort.server.errors import Answer, Problem


def encode(body: Any) -> bytes:
    """Encode a body; float32 arrays become numbers that parse back to exactly their values."""
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def plain_error(answer: Answer, param: str | None = None) -> dict[str, Any]:
    """Shape an error as OpenAI clients read it."""
    return {"error": {"message": answer.message, "type": answer.type, "param": param, "code": answer.code}}


def validation_error(problems: Sequence[Problem]) -> dict[str, Any]:
    """Shape problems twice in one body: `error` for OpenAI clients, `detail` for those that read a list."""
    first = problems[0]
    error = {
        "message": first.msg,
        "type": "invalid_request_error",
        "param": ".".join(map(str, first.loc)) or None,
        "code": first.type,
    }
    detail = [{"loc": ["body", *p.loc], "msg": p.msg, "type": p.type} for p in problems]
    return {"error": error, "detail": detail}


def embeddings(label: str, encoded: Sequence[Any], tokens: int) -> dict[str, Any]:
    """Shape the answer of /v1/embeddings: one entry per text, in input order."""
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": e} for i, e in enumerate(encoded)],
        "model": label,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def contextualized(label: str, documents: Sequence[Sequence[Any]], tokens: int) -> dict[str, Any]:
    """Shape the answer of /v1/contextualizedembeddings: one list per document, in it one entry per chunk."""
    data = [
        {
            "object": "list",
            "index": d,
            "data": [{"object": "embedding", "index": c, "embedding": e} for c, e in enumerate(chunks)],
        }
        for d, chunks in enumerate(documents)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": label, "usage": usage}


def rerank(request_id: str, label: str, results: Sequence[Any], query_tokens: int, total_tokens: int) -> dict[str, Any]:
    """Shape the answer of /v1/rerank: results in descending order."""
    return {
        "object": "list",
        "id": request_id,
        "model": label,
        "results": results,
        "usage": {
            "query_tokens": query_tokens,
            "document_tokens": total_tokens - query_tokens,
            "total_tokens": total_tokens,
            "prompt_tokens": total_tokens,
        },
    }


def report_cuts(resp: falcon.Response, cut: int) -> None:
    """Say in a header how many texts were cut, if any were."""
    if cut:
        resp.set_header("X-Truncated", str(cut))
