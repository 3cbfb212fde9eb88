"""Settings for a plain `gunicorn -c python:ffwd_ort.server.gunicorn_conf`, from the FFWD_* variables alone.

gunicorn reads this module's globals. Checkpoints are fetched and exported here, once, before it forks.
"""

import sys

from ffwd_ort.config import make_config
from ffwd_ort.errors import FfwdError, UsageError
from ffwd_ort.server.app import Application
from ffwd_ort.server.lifecycle import load_app, settings
from ffwd_ort.server.prepare import prepare

try:
    _config = make_config({})
    _bundles = prepare(_config)
except FfwdError as error:
    print(f"ffwd-server: {error}", file=sys.stderr)
    sys.exit(2 if isinstance(error, UsageError) else 3)

globals().update(settings(_config))
wsgi_app = "ffwd_ort.server.gunicorn_conf:application()"


def application() -> Application:
    """Make a worker's application."""
    return load_app(_config, _bundles)
