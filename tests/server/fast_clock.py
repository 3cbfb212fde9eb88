"""A real server with a clock of its own: `python -m tests.server.fast_clock BUNDLE GATE --port N …`.

Its engine's clock is FAST: a step counts as stuck after 1.5 s. Steps with a text in them wait for the file GATE.
"""

import sys
import time

from ffwd_ort.cli.server import make_parser
from ffwd_ort.config import make_config
from ffwd_ort.engine.sessions import open_runner
from tests.server.edge.faulty import Faulty, serve

FAST = 20.0  # times as fast as the real one


def main(bundle: str, gate: str, *arguments: str) -> None:
    """Serve."""
    config = make_config(vars(make_parser().parse_args(["--model", f"m={bundle}", *arguments])))

    serve(
        config,
        bundle,
        open_session=lambda opened, chosen: Faulty(open_runner(opened, chosen), f"running:{gate}"),
        clock=lambda: time.monotonic() * FAST,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
