"""POST /v1/embeddings, and TEI's /embed."""

from typing import Any

import falcon

from ffwd_ort.engine.model import ServedModel
from ffwd_ort.engine.vectors import CODECS
from ffwd_ort.server import responses, validation
from ffwd_ort.server.middleware import Timing
from ffwd_ort.server.route import ModelRoute
from ffwd_ort.server.validation import embed_request, embeddings_request, tokens


class Embeddings(ModelRoute):
    """One vector per text, in the order of the texts."""

    check = staticmethod(embeddings_request)

    def serves(self, model: ServedModel) -> bool:
        """Tell whether a label makes one vector per text."""
        return validation.serves(model)

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Validate, tokenise, encode, answer."""
        timing: Timing = req.context.timing
        request = self.read(req, self.check)
        model = request.model
        with timing.stage("tokenize"):
            texts = tokens(request, self._rules)
            sequences = model.sequences(texts, prompt=request.prompt, pooling=request.pooling)
            count = sum(len(text.ids) for text in texts)
            self.account(req, len(texts), count)
        result = self.run(req, model.label, sequences)
        with timing.stage("encode"):
            vectors = model.finish(result.pooled, dimensions=request.dimensions)
            encoded = CODECS[model.api][request.encoding_format](vectors)
            resp.data = responses.encode(self.shape(model.label, encoded, count))
        responses.report_cuts(resp, sum(text.truncated for text in texts))

    def shape(self, label: str, encoded: Any, count: int) -> Any:
        """Shape the answer as OpenAI does."""
        return responses.embeddings(label, encoded, count)


class Embed(Embeddings):
    """A bare list of float vectors."""

    check = staticmethod(embed_request)

    def shape(self, label: str, encoded: Any, count: int) -> Any:
        """Shape the answer as TEI does."""
        return encoded
