"""Have a bundle for every label before the server forks."""

import subprocess
import sys

from ffwd_ort.bundle import Bundle
from ffwd_ort.cache import BundleCache
from ffwd_ort.config import ModelSpec, ServerConfig
from ffwd_ort.engine.model import check_settings
from ffwd_ort.errors import BundleError, RefusedError

REFUSED = 3


def prepare(config: ServerConfig) -> list[Bundle]:
    """Find or make the bundle of each label, in order; raise RefusedError for one that cannot be served.

    An export runs in a process of its own: its graph libraries and their threads must not be in the
    process that forks, nor its memory in the one that serves.
    """
    cache = BundleCache(config.cache_dir)
    found = [
        cache.find(spec.source, spec.precision) for spec in config.models
    ]  # every source is looked at before the first export
    bundles = [bundle or _export(cache, spec) for bundle, spec in zip(found, config.models, strict=True)]
    for spec, bundle in zip(config.models, bundles, strict=True):
        check_settings(spec, bundle.manifest)
    return bundles


def _export(cache: BundleCache, spec: ModelSpec) -> Bundle:
    command = [sys.executable, "-m", "ffwd_ort.cli.main", "export", spec.source, "--dtype", spec.precision]
    command += ["--cache-dir", str(cache.root)]
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE if not sys.stderr.isatty() else None
    )
    bundle = cache.find(spec.source, spec.precision) if done.returncode == 0 else None
    if bundle is None:
        said = (done.stderr or b"").decode(errors="replace").strip().removeprefix("ffwd-ort: ")
        error = RefusedError if done.returncode == REFUSED else BundleError
        raise error(said or f"the export of {spec.source} failed with exit code {done.returncode}")
    return bundle
