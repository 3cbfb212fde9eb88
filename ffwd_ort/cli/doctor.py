"""ffwd-ort doctor: what this machine offers, in plain words."""

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from ffwd_ort.engine.machine import available_cores, memory_limit
from ffwd_ort.engine.sessions import ORT_NAMES, import_onnxruntime
from ffwd_ort.errors import ProviderError
from ffwd_ort.sources import default_cache_dir
from ffwd_ort.version import VERSION

PACKAGES = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnx",
    "onnxscript",
    "tokenizers",
    "safetensors",
    "numpy",
    "gunicorn",
    "falcon",
)


def versions() -> Iterator[tuple[str, str]]:
    """Yield what is installed, with versions."""
    yield "ffwd_ort", VERSION
    yield "python", platform.python_version()
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


def findings() -> Iterator[tuple[str, str]]:
    """Yield a line each: what was looked at, and what was found."""
    yield "machine", f"{platform.system()} {platform.machine()}"
    yield "cores", f"{available_cores()} (by affinity and cgroup)"
    memory = memory_limit()
    yield "memory", f"{memory.bytes / 2**30:.1f} GiB (by the {memory.bound_by})"
    yield "cache", str(default_cache_dir())
    try:
        ort = import_onnxruntime()
    except ProviderError as error:
        yield "onnxruntime", str(error)
        return
    offered = ort.get_available_providers()
    for name, ort_name in ORT_NAMES.items():
        there = f"{ort_name} is in this build" if ort_name in offered else f"{ort_name} is not in this build"
        yield f"provider {name}", f"{there}{HINTS.get(name, '') if ort_name not in offered else ''}"


HINTS = {
    "cuda": "; with an NVIDIA GPU: pip uninstall onnxruntime && pip install 'ffwd_ort[cuda]'",
    "coreml": "; it comes with the macOS build of onnxruntime",
}
