"""Requests that schemathesis thinks up from the OpenAPI document, and a server with a label of every kind to ask."""

import copy
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode

from ffwd_ort_conformance.tiny import TinyBert, write_bert
from ffwd_ort_conformance.tiny_families import TinyDecoder, write_cross_encoder, write_decoder
from ffwd_ort_conformance.tiny_late import write_pplx_late
from tests.contract import Answers, Json, load, resolve
from tests.serving import Server

SECONDS_TO_ANSWER = 10.0
POSTED = 0.9  # of all requests go to the routes that read a body


@dataclass
class Report:
    """What came of the requests."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)  # types of validation errors
    slowest: float = 0.0

    @property
    def count(self) -> int:
        """How many requests were answered."""
        return sum(self.statuses.values())


def start_fleet(place: Path, cache: Path) -> Server:
    """Start a server with labels of every kind, scorer and api, with prompts and token ids."""
    pplx = TinyDecoder(
        model_type="bidirectional_pplx_qwen3", hidden=16, head_norms=True, pooling=("mean_tokens",), normalize=False
    )
    prompts = (("query", "the tide: "), ("document", "a boat: "))
    tiny, prompted = write_bert(place / "tiny"), write_bert(place / "prompted", TinyBert(prompts=prompts))
    decoder = write_decoder(place / "pp", pplx)
    arguments = [
        *("--model", f"tiny={tiny}"),
        *("--model", f"mrl={prompted}:min_dim=16"),
        *("--model", f"ids={tiny}:token_ids=accept"),
        *("--model", f"pp={decoder}:api=perplexity:min_dim=4"),
        *("--model", f"cosr={prompted}:rerank=cosine"),
        *("--contextual-model", f"a/b={decoder}:min_dim=4"),
        *("--late-model", f"late={write_pplx_late(place / 'late')}"),
        *("--reranker-model", f"ce={write_cross_encoder(place / 'ce', 'bert')}"),
        *("--cache-dir", str(cache)),
    ]
    server = Server(arguments, place / "server.log")
    server.wait_ready(120)
    return server


def resident(server: Server) -> float:
    """Return the resident MiB of the worker, gunicorn's only child."""
    pid = server.process.pid
    worker = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
    return int(Path(f"/proc/{worker}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def named(document: Json, server: Server) -> Json:
    """Return the document with this server's labels in it: requests for made-up ones are all refused alike."""
    listed = server.get("/v1/models").json()["data"]
    document = copy.deepcopy(document)
    schemas = document["components"]["schemas"]
    for path, item in document["paths"].items():
        if "post" not in item:
            continue
        content = item["post"]["requestBody"]["content"]["application/json"]["schema"]
        for reference in [content, *content.get("anyOf", [])] if isinstance(content, dict) else []:
            if "$ref" in reference:
                request = schemas[reference["$ref"].rpartition("/")[2]]
                request["properties"]["model"] = {"enum": [e["id"] for e in listed if path in e["routes"]]}
                request["required"] = ["model", *(name for name in request["required"] if name != "model")]
    for parameter in document["paths"]["/v1/models/{label}"]["parameters"]:
        if parameter.get("name") == "label":
            parameter["schema"] = {"enum": [*(entry["id"] for entry in listed), "nope"]}
    return document


def explore(server: Server, most: int, number: int = 20261201) -> Report:
    """Send up to so many generated requests, the same ones for the same `number`, and hold the answers to the document.

    Half of the bodies fit the document and half do not; one that does not must be refused.
    """
    document = load()
    answers, report = Answers(document), Report()
    known = named(document, server)
    found = [result.ok() for result in schemathesis.openapi.from_dict(known).get_all_operations()]
    posts = [operation for operation in found if operation.method == "post"]
    for operation in found:
        share = (
            most * POSTED / len(posts) / 2 if operation in posts else most * (1 - POSTED) / (len(found) - len(posts))
        )
        modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE] if operation in posts else [GenerationMode.POSITIVE]
        for mode in modes:
            _send(server, operation, mode, max(1, int(share)), number, answers, report)
    return report


def _send(
    server: Server, operation: Any, mode: GenerationMode, most: int, number: int, answers: Answers, report: Report
) -> None:
    """Send requests of one route. What is wrong with an answer is kept, so that all of it is seen at once."""

    @seed(number)
    @settings(
        max_examples=most,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        began = time.monotonic()
        reply = case.call(base_url=server.url, timeout=SECONDS_TO_ANSWER)
        report.slowest = max(report.slowest, time.monotonic() - began)
        status = reply.status_code
        report.statuses[operation.label, status] += 1
        headers = {name.lower(): values[0] for name, values in reply.headers.items()}
        found = answers.faults(operation.path, operation.method, status, headers, reply.content)
        if status >= 500:
            found.append(f"{status}: {reply.text}")
        if status == 422:
            report.problems.update(problem["type"] for problem in reply.json()["detail"])
        if status == 200 and mode is GenerationMode.NEGATIVE and not _fits(answers.document, operation, case.body):
            found.append("a body that does not fit the document is accepted")
        report.faults += [f"{case.as_curl_command()}\n    {fault}" for fault in found]

    send()


def _fits(document: Json, operation: Any, body: Any) -> bool:
    """Tell whether a body is one of the document's; of some requests only the headers are wrong."""
    item = resolve(document, document["paths"][operation.path][operation.method])
    schema = item["requestBody"]["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": document["components"]}).is_valid(body)
