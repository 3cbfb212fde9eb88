"""A real server with a clock of its own: `python -m tests.server.fast_clock BUNDLE GATE --port N …`.

Its engine's clock is FAST: a step counts as stuck after 1.5 s. Steps with a text in them wait for the file GATE.
"""

import sys
import time
from pathlib import Path
from typing import Any

from gunicorn.app.base import BaseApplication

from ffwd_ort.bundle import open_bundle
from ffwd_ort.cli.server import make_parser
from ffwd_ort.config import make_config
from ffwd_ort.engine.sessions import open_runner
from ffwd_ort.loading import limits_of, make_engine, session_settings_of
from ffwd_ort.server.app import Application, create_app
from ffwd_ort.server.lifecycle import settings
from tests.server.edge.faulty import Faulty

FAST = 20.0  # times as fast as the real one


def main(bundle: str, gate: str, *arguments: str) -> None:
    """Serve."""
    config = make_config(vars(make_parser().parse_args(["--model", f"m={bundle}", *arguments])))

    class Server(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            for name, value in settings(config).items():
                self.cfg.set(name, value)

        def load(self) -> Application:
            pairs = [(config.models[0], open_bundle(Path(bundle)))]
            options: dict[str, Any] = {
                "open_session": lambda opened, chosen: Faulty(open_runner(opened, chosen), f"running:{gate}"),
                "clock": lambda: time.monotonic() * FAST,
            }
            return create_app(make_engine(pairs, limits_of(config), session_settings_of(config), **options), config)

    Server().run()


if __name__ == "__main__":
    main(*sys.argv[1:])
