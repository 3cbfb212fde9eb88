"""POST /v1/contextualizedembeddings."""

from itertools import pairwise

import falcon
import numpy as np

from ffwd_ort.engine.model import ServedModel
from ffwd_ort.engine.vectors import CODECS
from ffwd_ort.server import contextual_fields, responses
from ffwd_ort.server.contextual_fields import contextual_request, document_length, document_tokens
from ffwd_ort.server.middleware import Timing
from ffwd_ort.server.route import ModelRoute


class Contextualized(ModelRoute):
    """One vector per chunk, each made in sight of its whole document."""

    failure = "contextual_inference"

    def serves(self, model: ServedModel) -> bool:
        """Tell whether a label makes a vector per chunk."""
        return contextual_fields.serves(model)

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Validate, tokenise, encode, answer."""
        timing: Timing = req.context.timing
        request = self.read(req, contextual_request)
        model = request.model
        with timing.stage("tokenize"):
            documents = document_tokens(request, self._rules)
            sequences = model.document_sequences(documents.chunks)
            count = sum(map(document_length, documents.chunks))
            self.account(req, len(sequences), count)
        result = self.run(req, model.label, sequences)
        with timing.stage("encode"):
            pooled = np.concatenate(result.vectors).reshape(-1, model.dim)
            vectors = model.finish(pooled, dimensions=request.dimensions)
            encoded = CODECS[model.api][request.encoding_format](vectors)
            bounds = np.cumsum([0, *map(len, documents.chunks)]).tolist()
            grouped = [encoded[start:end] for start, end in pairwise(bounds)]
            resp.data = responses.encode(responses.contextualized(model.label, grouped, count))
        responses.report_cuts(resp, documents.cut)
