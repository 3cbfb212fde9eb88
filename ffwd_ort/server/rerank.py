"""POST /v1/rerank, /v2/rerank and /rerank, which also takes TEI's shape."""

from typing import Any

import falcon
import numpy as np

from ffwd_ort.engine.model import ServedModel
from ffwd_ort.engine.vectors import sigmoid
from ffwd_ort.server import rerank_fields, responses
from ffwd_ort.server.middleware import Timing
from ffwd_ort.server.rerank_fields import RerankRequest, either_request, rerank_request
from ffwd_ort.server.rerank_tokens import RerankWork, rerank_tokens
from ffwd_ort.server.route import ModelRoute


class Rerank(ModelRoute):
    """Documents by descending score; ties keep their order."""

    failure = "rerank_inference"
    check = staticmethod(rerank_request)

    def serves(self, model: ServedModel) -> bool:
        """Tell whether a label scores documents."""
        return rerank_fields.serves(model)

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Validate, tokenise, score, answer."""
        timing: Timing = req.context.timing
        request = self.read(req, self.check)
        with timing.stage("tokenize"):
            work = rerank_tokens(request, self._rules)
            self.account(req, len(request.documents), work.total_tokens)
        vectors = self.run(req, request.model.label, work.sequences).vectors
        with timing.stage("encode"):
            scores = work.score(vectors)
            # By the raw score: a sigmoid that saturates reorders nothing.
            order = np.argsort(-scores, kind="stable")[: request.top_n].tolist()
            shown = scores if request.raw_scores else sigmoid(scores)
            shape = _texts if request.name == "texts" else _documents
            resp.data = responses.encode(shape(req.context.id, request, work, [(i, shown[i]) for i in order]))
        responses.report_cuts(resp, work.cut)


class EitherRerank(Rerank):
    """The same, or TEI's shape where the body has `texts`."""

    check = staticmethod(either_request)


def _documents(request_id: str, request: RerankRequest, work: RerankWork, ranked: list[tuple[int, Any]]) -> Any:
    results = [
        {"index": i, "relevance_score": score} | ({"document": request.given[i]} if request.return_documents else {})
        for i, score in ranked
    ]
    return responses.rerank(request_id, request.model.label, results, work.query_tokens, work.total_tokens)


def _texts(request_id: str, request: RerankRequest, work: RerankWork, ranked: list[tuple[int, Any]]) -> Any:
    return [
        {"index": i, "score": score} | ({"text": request.given[i]} if request.return_documents else {})
        for i, score in ranked
    ]
