"""A real server whose session fails, is slow or waits: `python -m tests.server.edge.faulty BUNDLE HOW --port N …`.

HOW is `raise`, `slow`, `loading:GATE` or `running:GATE`; the last two wait until the file GATE is there.

The session is handed in through `make_engine`, as any other provider would be.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gunicorn.app.base import BaseApplication

from ffwd_ort.bundle import Bundle, open_bundle
from ffwd_ort.cli.server import make_parser
from ffwd_ort.config import ServerConfig, make_config
from ffwd_ort.engine.sequences import Floats
from ffwd_ort.engine.sessions import Runner, SessionSettings, open_runner
from ffwd_ort.loading import limits_of, make_engine, session_settings_of
from ffwd_ort.server.app import Application, create_app
from ffwd_ort.server.lifecycle import settings

POISON = 9  # a token id: a step with it raises
SLOW_SECONDS = 1.5
PATH = "/secret/place/model.onnx"


class Faulty:
    """A session that raises for one token, or takes its time or waits once it has served its warm-up."""

    def __init__(self, inner: Runner, how: str) -> None:
        self._inner, self._how = inner, how
        self.provider, self.execution_providers = inner.provider, inner.execution_providers

    def run(self, feeds: Mapping[str, npt.NDArray[np.generic]]) -> Floats:
        """Run a step, or do not."""
        ids = feeds["input_ids"]
        if self._how == "raise" and (ids == POISON).any():
            raise RuntimeError(f"node 7 of {PATH} failed")
        if self._how == "slow" and ids.any():  # the warm-up's texts are padding
            time.sleep(SLOW_SECONDS)
        if ids.any():
            wait_for(self._how, "running")
        return self._inner.run(feeds)


def wait_for(how: str, stage: str) -> None:
    """Wait for the gate, if this is the stage that has one."""
    given, _, gate = how.partition(":")
    while given == stage and not Path(gate).exists():
        time.sleep(0.01)


def main(bundle: str, how: str, *arguments: str) -> None:
    """Serve."""
    given = vars(make_parser().parse_args(["--model", f"m={bundle}:rerank=cosine", *arguments]))
    config = make_config(given)

    def open_session(opened: Bundle, chosen: SessionSettings) -> Runner:
        wait_for(how, "loading")
        return Faulty(open_runner(opened, chosen), how)

    serve(config, bundle, open_session=open_session)


def serve(config: ServerConfig, bundle: str, **options: Any) -> None:
    """Run gunicorn around an engine that is made with these options."""

    class Server(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            for name, value in settings(config).items():
                self.cfg.set(name, value)

        def load(self) -> Application:
            pairs = [(config.models[0], open_bundle(Path(bundle)))]
            made: Any = make_engine(pairs, limits_of(config), session_settings_of(config), **options)
            return create_app(made, config)

    Server().run()


if __name__ == "__main__":
    main(*sys.argv[1:])
