"""GET /openapi.json and /docs: the contract as a document, and as a page that shows it."""

from importlib.resources import files

import falcon

from ffwd_ort.server.middleware import Resource


class Packaged(Resource):
    """A file of the package, read once; in every state, behind the key."""

    name: str
    content_type: str

    def __init__(self) -> None:
        self.data = files("ffwd_ort.server").joinpath("assets", self.name).read_bytes()

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer with the file."""
        resp.content_type = self.content_type
        resp.data = self.data

    on_head = on_get


class OpenApi(Packaged):
    """The contract as OpenAPI 3.1."""

    name = "openapi.json"
    content_type = falcon.MEDIA_JSON


class Docs(Packaged):
    """A page for people that draws itself from the document; it fetches nothing else."""

    name = "docs.html"
    content_type = "text/html; charset=utf-8"
