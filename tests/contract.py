"""The packaged OpenAPI document, and what an answer has against it."""

import copy
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator

Json = dict[str, Any]
METHODS = ("get", "post")
# Objects that may hold more than they name: what a client sent, and an error that a validation error extends.
OPEN = ("Error", "Document")


def load() -> Json:
    """Read the document."""
    text = files("ffwd_ort.server").joinpath("assets", "openapi.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def operations(document: Json) -> dict[tuple[str, str], Json]:
    """Return every operation by its path and method."""
    return {(path, m): item[m] for path, item in document["paths"].items() for m in METHODS if m in item}


def resolve(document: Json, node: Any) -> Any:
    """Follow references."""
    while "$ref" in node:
        found = document
        for step in node["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        node = found
    return node


class Answers:
    """Holds answers to the document, and to its silence: fields that it does not name are faults too."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self._operations = operations(document)
        self._components = copy.deepcopy(document["components"])
        for name, schema in self._components["schemas"].items():
            if name not in OPEN and not name.endswith("Request"):
                _close(schema)

    def faults(self, path: str, method: str, status: int, headers: Mapping[str, str], body: bytes) -> list[str]:
        """Say what is wrong with an answer. `headers` have names in lower case."""
        known = self._operations[path, method.lower()]["responses"].get(str(status))
        if known is None:
            return [f"status {status} is not documented"]
        response = resolve(self.document, known)
        found = [fault for name, header in response["headers"].items() for fault in self._header(name, header, headers)]
        ((media, content),) = response["content"].items()
        if headers.get("content-type", "").partition(";")[0] != media:
            found.append(f"content type {headers.get('content-type')}")
        if media == "application/json":
            schema = Draft202012Validator({**content["schema"], "components": self._components})
            found += [f"{error.json_path}: {error.message}"[:300] for error in schema.iter_errors(json.loads(body))]
        return found

    def _header(self, name: str, header: Json, headers: Mapping[str, str]) -> list[str]:
        header = resolve(self.document, header)
        value = headers.get(name.lower())
        if value is None:
            return [f"no header {name}"] if header.get("required") else []
        parsed: Any = int(value) if value.isdigit() and name in ("X-Truncated", "Retry-After") else value
        return [] if Draft202012Validator(header["schema"]).is_valid(parsed) else [f"{name}: {value}"]


def _close(node: Any) -> None:
    if isinstance(node, dict):
        if node.get("type") == "object" and "properties" in node:
            node["unevaluatedProperties"] = False
        for inner in node.values():
            _close(inner)
    elif isinstance(node, list):
        for inner in node:
            _close(inner)
