"""pplx-embed: Qwen3 seen both ways, the mean of all tokens, no prompt, no special tokens, never normalised."""

from ffwd_ort.families import ModelFamily
from ffwd_ort.late import LateRecipe

FAMILY = ModelFamily(
    name="pplx",
    model_types=("bidirectional_pplx_qwen3",),
    architectures=("PPLXQwen3Model", "PPLXQwen3ContextualModel"),
    pooling="mean",
    normalize=False,
    api_modes=("openai", "perplexity"),
    separator="<|endoftext|>",
    late=LateRecipe("[Q] ", "[D] "),
    splitting="qwen2",
    only_native=True,
)
