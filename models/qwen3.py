"""Qwen3 (Qwen3-Embedding): a causal decoder whose terminal token's state is the vector."""

from ffwd_ort.families import ModelFamily

# What Qwen3-Embedding's authors put before queries; documents get nothing. No space before the text.
QUERY = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"

FAMILY = ModelFamily(
    name="qwen3",
    model_types=("qwen3",),
    architectures=("Qwen3Model", "Qwen3ForCausalLM"),
    pooling="last",
    normalize=True,
    terminal="<|endoftext|>",
    needs_evidence=True,
    prompts={"query": QUERY},
    splitting="qwen2",
)
