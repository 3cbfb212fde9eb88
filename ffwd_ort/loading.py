"""From settings to an engine: the one place where sources, bundles, sessions and labels meet."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ffwd_ort.bundle import Bundle
from ffwd_ort.config import ModelSpec, ServerConfig
from ffwd_ort.engine.engine import Engine, Loader
from ffwd_ort.engine.machine import available_cores
from ffwd_ort.engine.model import Limits, settle
from ffwd_ort.engine.sessions import Runner, SessionSettings, open_runner

CPU_STEP_TOKENS, GPU_STEP_TOKENS = 512, 16_384

OpenRunner = Callable[[Bundle, SessionSettings], Runner]


def limits_of(config: ServerConfig) -> Limits:
    """Gather what the server allows every label."""
    steps = config.step_tokens or (GPU_STEP_TOKENS if config.provider == "cuda" else CPU_STEP_TOKENS)
    return Limits(
        max_seq=config.max_seq,
        max_batch_tokens=config.max_batch_tokens,
        step_tokens=steps,
        batch_size=config.batch_size,
        memory_utilization=config.memory_utilization,
        workers=config.workers,
    )


def session_settings_of(config: ServerConfig) -> SessionSettings:
    """Divide the cores among the workers. Idle threads spin only where no other pool wants the cores."""
    cores = config.threads or available_cores()
    return SessionSettings(config.provider, max(1, cores // config.workers), spinning=config.workers == 1)


def make_engine(
    specs: Sequence[tuple[ModelSpec, Bundle]],
    limits: Limits,
    settings: SessionSettings,
    *,
    open_session: OpenRunner = open_runner,
    **options: Any,
) -> Engine:
    """Make an engine for labels whose bundles are at hand; it loads them once it is started."""
    loaders = [
        Loader(spec.label, partial(settle, spec, bundle, limits), partial(_open, open_session, settings))
        for spec, bundle in specs
    ]
    return Engine(loaders, **options)


def _open(open_session: OpenRunner, settings: SessionSettings, bundle: Bundle) -> Runner:
    return open_session(bundle, settings)
