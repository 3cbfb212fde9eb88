"""The zoo as a table: what each family plugin says, for people and for the README."""

from collections.abc import Iterator

from ffwd_ort.families import CONTEXTUAL, EMBEDDING, LATE, ModelFamily, families

HEADER = ("family", "model_type", "kinds", "pooling", "normalised", "terminal", "prompts", "api")


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each family: what applies where a checkpoint's own files are silent."""
    for family in families():
        yield (
            family.name,
            ", ".join(family.model_types),
            ", ".join(_kinds(family)),
            family.pooling,
            "yes" if family.normalize else "no",
            _code(family.terminal) if family.terminal else "as the tokenizer says",
            ", ".join(_prompts(family)) or "none",
            ", ".join(family.api_modes),
        )


def _kinds(family: ModelFamily) -> Iterator[str]:
    """Yield the kinds of label that a family's checkpoints can be; late needs a Dense module on every token."""
    yield from (EMBEDDING, LATE)
    if family.separator:
        yield CONTEXTUAL
    if family.rerankers:
        yield "reranker"


def _prompts(family: ModelFamily) -> Iterator[str]:
    for name, text in family.prompts.items():
        yield f"{name} {_code(text)}"


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|").replace("\n", "\\n") + "`"


def markdown() -> str:
    """Write the table as Markdown."""
    lines = [HEADER, ("---",) * len(HEADER), *rows()]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines) + "\n"
