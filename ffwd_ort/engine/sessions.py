"""Open a bundle on an execution provider, and say truthfully which one it got."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ffwd_ort.bundle import Bundle
from ffwd_ort.engine.reference import ReferenceRunner
from ffwd_ort.engine.sequences import Floats
from ffwd_ort.errors import BundleError, ProviderError

log = logging.getLogger(__name__)

PROVIDERS = ("auto", "cpu", "cuda", "coreml", "numpy")
ORT_NAMES = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "coreml": "CoreMLExecutionProvider"}
# float32 means float32: TF32 would be 1e-3 away without a word.
ORT_OPTIONS: dict[str, dict[str, str]] = {"cuda": {"use_tf32": "0"}}
# What `auto` tries, in order. CoreML is left out: it has no Attention op, so it wants an export of its own.
AUTO = ("cuda", "cpu")


class Runner(Protocol):
    """A bundle on a provider. `execution_providers` is what the runtime reports, not what was asked for."""

    @property
    def provider(self) -> str:
        """Short name of the provider in use."""

    @property
    def execution_providers(self) -> tuple[str, ...]:
        """The runtime's own list for the loaded graph."""

    def run(self, feeds: Mapping[str, npt.NDArray[np.generic]]) -> Floats:
        """Run one encode step; returns [rows, slots, dim]."""


@dataclass(frozen=True)
class SessionSettings:
    """How sessions are opened: provider, intra-op threads, and whether idle threads spin for work."""

    provider: str = "auto"
    threads: int = 1
    spinning: bool = True


def import_onnxruntime() -> Any:
    """Import ONNX Runtime; raise ProviderError naming the extras if none of its builds is installed."""
    # It would report to its makers, ten seconds after it starts, whatever disable_telemetry_events() is told.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
    except ImportError as error:
        raise ProviderError(
            f"ONNX Runtime is not installed ({error}); install one of: pip install 'ffwd_ort[cpu]', 'ffwd_ort[cuda]'"
        ) from None
    return onnxruntime


def open_runner(bundle: Bundle, settings: SessionSettings) -> Runner:
    """Open a bundle; raise ProviderError if the provider asked for by name is not the one that answers."""
    if settings.provider == "numpy":
        return ReferenceRunner(bundle)
    ort = import_onnxruntime()
    available = ort.get_available_providers()
    wanted = AUTO if settings.provider == "auto" else (settings.provider,)
    for provider in wanted:
        if ORT_NAMES[provider] in available:
            runner = OrtRunner(bundle, provider, settings, ort)
            if runner.provider == provider:
                return runner
            log.warning("%s is installed but does not start on this machine", ORT_NAMES[provider])
    raise ProviderError(
        f"--provider {settings.provider}: not to be had here; this ONNX Runtime ({ort.__version__}) offers "
        f"{', '.join(available)}"
    )


class OrtRunner:
    """One ONNX Runtime session."""

    def __init__(self, bundle: Bundle, provider: str, settings: SessionSettings, ort: Any) -> None:
        options = ort.SessionOptions()
        # Measured: the plain graph is 15% faster than the fully fused one, whose SkipLayerNormalization is slow.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.intra_op_num_threads = settings.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Spinning: 64 tokens in 4.8 ms instead of 7.3; two spinning pools on the same cores: 2 to 2.7 times slower.
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(settings.spinning)))
        choice = (ORT_NAMES[provider], ORT_OPTIONS.get(provider, {}))
        try:
            self._session = ort.InferenceSession(bundle.graph, options, providers=[choice])
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise BundleError(f"ONNX Runtime cannot load {bundle.graph}: {error}") from None
        self.execution_providers = tuple(self._session.get_providers())
        names = {ort_name: name for name, ort_name in ORT_NAMES.items()}
        self.provider = names.get(self.execution_providers[0], self.execution_providers[0])

    def run(self, feeds: Mapping[str, npt.NDArray[np.generic]]) -> Floats:
        """Run one encode step; returns [rows, slots, dim]."""
        output: Floats = self._session.run(None, dict(feeds))[0]
        return output
