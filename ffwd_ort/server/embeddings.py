"""POST /v1/embeddings."""

import falcon

from ffwd_ort.engine.vectors import CODECS
from ffwd_ort.server import responses
from ffwd_ort.server.middleware import Timing
from ffwd_ort.server.route import ModelRoute
from ffwd_ort.server.validation import embeddings_request, tokens


class Embeddings(ModelRoute):
    """One vector per text, in the order of the texts."""

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Validate, tokenise, encode, answer."""
        timing: Timing = req.context.timing
        request = self.read(req, embeddings_request)
        model = request.model
        with timing.stage("tokenize"):
            texts = tokens(request, self._rules)
            sequences = model.sequences(texts, prompt=request.prompt, pooling=request.pooling)
        result = self.run(req, model.label, sequences)
        with timing.stage("encode"):
            vectors = model.finish(result.pooled, dimensions=request.dimensions)
            encoded = CODECS[model.api][request.encoding_format](vectors)
            count = sum(len(text.ids) for text in texts)
            resp.data = responses.encode(responses.embeddings(model.label, encoded, count))
        responses.report_cuts(resp, sum(text.truncated for text in texts))
