"""POST /v1/rerank, /v2/rerank and /rerank."""

import falcon
import numpy as np

from ffwd_ort.engine.vectors import sigmoid
from ffwd_ort.server import responses
from ffwd_ort.server.middleware import Timing
from ffwd_ort.server.rerank_fields import rerank_request
from ffwd_ort.server.rerank_tokens import rerank_tokens
from ffwd_ort.server.route import ModelRoute


class Rerank(ModelRoute):
    """Documents by descending score; ties keep their order."""

    failure = "rerank_inference"

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Validate, tokenise, score, answer."""
        timing: Timing = req.context.timing
        request = self.read(req, rerank_request)
        model = request.model
        with timing.stage("tokenize"):
            work = rerank_tokens(request, self._rules)
        vectors = self.run(req, model.label, work.sequences).vectors
        with timing.stage("encode"):
            scores = work.score(vectors)
            # By the raw score: a sigmoid that saturates reorders nothing.
            order = np.argsort(-scores, kind="stable")[: request.top_n]
            shown = scores if request.raw_scores else sigmoid(scores)
            results = [
                {"index": int(i), "relevance_score": shown[i]}
                | ({"document": request.given[i]} if request.return_documents else {})
                for i in order
            ]
            answer = responses.rerank(req.context.id, model.label, results, work.query_tokens, work.total_tokens)
            resp.data = responses.encode(answer)
        responses.report_cuts(resp, work.cut)
