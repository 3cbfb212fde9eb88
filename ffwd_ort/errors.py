"""Domain errors. Each has a kind; tables elsewhere turn kinds into exit codes and HTTP answers."""

from typing import ClassVar


class FfwdError(Exception):
    """Base of every error this package raises on purpose; the message is for the person at the terminal."""

    kind: ClassVar[str] = "internal"


class UsageError(FfwdError):
    """Names a flag or argument, the value it was given and what is permitted."""

    kind = "usage"


class RefusedError(FfwdError):
    """Says no before anything is served: what was found, and what is required."""

    kind = "refused"


class SourceError(RefusedError):
    """A model source cannot be had or makes no sense."""

    kind = "source"


class CheckpointError(RefusedError):
    """A checkpoint directory is damaged, incomplete or contradicts itself; names the file."""

    kind = "checkpoint"


class AdmissionError(RefusedError):
    """A sound checkpoint that no family plugin can serve correctly."""

    kind = "admission"


class BundleError(RefusedError):
    """A bundle is damaged, from a newer version, or made for something else."""

    kind = "bundle"


class ProviderError(RefusedError):
    """An execution provider was asked for by name and is not to be had."""

    kind = "provider"


class RequestError(FfwdError):
    """Base of the reasons for which one request gets no result."""

    kind = "internal"


class Overloaded(RequestError):
    """The queue is as long as the request timeout: accepting more would only let it expire."""

    kind = "overloaded"


class DeadlineExceeded(RequestError):
    """The request waited longer than it may for its first encode step."""

    kind = "deadline"


class NotReady(RequestError):
    """Models are still loading, or the engine has failed."""

    kind = "not_ready"


class Draining(RequestError):
    """The process is shutting down and takes no new work."""

    kind = "draining"


class Abandoned(RequestError):
    """Nobody waits for this request any more."""

    kind = "abandoned"


class InferenceFailed(RequestError):
    """The runtime raised while it ran this request alone."""

    kind = "inference"


class NonFiniteVector(RequestError):
    """The model produced NaN or infinity for this request."""

    kind = "non_finite"


class TokenizationFailed(RequestError):
    """The tokenizer raised, or a text became no token at all."""

    kind = "tokenization"
