"""POST /v1/rerank, /v2/rerank and /rerank."""

import falcon
import numpy as np

from ffwd_ort.engine.vectors import sigmoid
from ffwd_ort.server import responses
from ffwd_ort.server.middleware import Timing
from ffwd_ort.server.rerank_fields import rerank_pairs, rerank_request
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
            pairs = rerank_pairs(request, self._rules)
        scores = self.run(req, model.label, model.pair_sequences(pairs)).pooled[:, 0]
        with timing.stage("encode"):
            # By the raw score: a sigmoid that saturates reorders nothing.
            order = np.argsort(-scores, kind="stable")[: request.top_n]
            shown = scores if request.raw_scores else sigmoid(scores)
            results = [
                {"index": int(i), "relevance_score": shown[i]}
                | ({"document": request.given[i]} if request.return_documents else {})
                for i in order
            ]
            query_tokens = pairs[0].query * len(pairs)
            total = sum(len(pair.ids) for pair in pairs)
            answer = responses.rerank(req.context.id, model.label, results, query_tokens, total)
            resp.data = responses.encode(answer)
        responses.report_cuts(resp, sum(pair.truncated for pair in pairs))
