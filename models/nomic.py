"""Nomic BERT (nomic-embed-text): rotary positions and SwiGLU in BERT's post-norm block, with task prefixes."""

from ffwd_ort.families import ModelFamily

FAMILY = ModelFamily(
    name="nomic",
    model_types=("nomic_bert",),
    architectures=("NomicBertModel", "NomicBertForMaskedLM"),
    positions_key=("max_position_embeddings", "n_positions"),
    prompts={"query": "search_query: ", "document": "search_document: "},
)
