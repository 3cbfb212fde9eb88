"""One line a request on standard error: what was asked and how long it took, never a text or a key."""

import sys
import time
from typing import Any, TextIO

import orjson


class AccessLog:
    """Writes lines as text or as JSON. GETs that succeed, or ask for the state, are left out unless `verbose`."""

    def __init__(self, form: str = "text", verbose: bool = False, stream: TextIO | None = None) -> None:
        self._json = form == "json"
        self._verbose = verbose
        self._stream = stream

    def write(
        self, request_id: str, method: str, route: str, status: int, account: Any, timing: Any, *, quiet: bool = False
    ) -> None:
        """Write a request's line; `account` and `timing` are the middleware's."""
        if quiet and not self._verbose:
            return
        fields: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": request_id,
            "method": method,
            "route": route,
            "model": account.label,
            "status": status,
            "texts": account.texts,
            "tokens": account.tokens,
        }
        if account.refusal:
            fields["refusal"] = account.refusal
        if timing is not None:
            fields |= {f"{stage}_ms": round(seconds * 1000, 3) for stage, seconds in timing.seconds.items()}
        line = orjson.dumps(fields).decode() if self._json else " ".join(f"{k}={v}" for k, v in fields.items())
        try:
            print(line, file=self._stream or sys.stderr, flush=True)
        except (OSError, ValueError):  # nobody reads standard error any more: that ends no request
            return
