"""The reference libraries, in float32 and cut where we cut."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def sentence_transformer(folder: Path, max_length: int) -> Any:
    """Load a checkpoint as its authors' library does; its own length limit is set to ours."""
    import torch
    from sentence_transformers import SentenceTransformer

    # A bfloat16 folder would load, and compute, in bfloat16: 6e-3 away.
    model = SentenceTransformer(
        str(folder), device="cpu", trust_remote_code=False, model_kwargs={"dtype": torch.float32}
    )
    model.max_seq_length = max_length
    return model


def encode(model: Any, texts: Sequence[str], **options: Any) -> np.ndarray:
    """Encode with the reference, one text at a time: its own batches differ from that by more than its rounding."""
    vectors = model.encode(list(texts), batch_size=1, convert_to_numpy=True, show_progress_bar=False, **options)
    return np.asarray(vectors, np.float32)


def token_ids(folder: Path, texts: Sequence[str]) -> list[list[int]]:
    """Tokenise with the checkpoint's own tokenizer, whole."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    return [tokenizer(text, truncation=False, padding=False)["input_ids"] for text in texts]


def hidden_states(folder: Path, texts: Sequence[Sequence[int]], *, both_ways_as: str | None = None) -> list[np.ndarray]:
    """Run the trunk alone in transformers, text by text: [tokens, hidden] float32 each.

    `both_ways_as` names the causal model type that stands in for authors' code which is not in transformers:
    it is given a mask in which every token sees every other.
    """
    import torch
    from transformers import AutoConfig, AutoModel

    options = {}
    if both_ways_as is not None:
        given = json.loads((folder / "config.json").read_text()) | {"model_type": both_ways_as}
        given.pop("is_causal", None)
        options["config"] = AutoConfig.for_model(**given)
    model = AutoModel.from_pretrained(str(folder), dtype=torch.float32, trust_remote_code=False, **options).eval()
    states = []
    for ids in texts:
        tokens = torch.tensor([list(ids)])
        mask = torch.zeros(1, 1, len(ids), len(ids)) if both_ways_as else torch.ones_like(tokens)
        with torch.inference_mode():
            output = model(input_ids=tokens, attention_mask=mask)
        states.append(np.asarray(output.last_hidden_state[0].numpy(), np.float32))
    return states


def late_encoder(folder: Path, max_length: int) -> Any:
    """Load a late-interaction model with sentence-transformers; long queries are kept whole, as we keep them."""
    import torch
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(
        str(folder), device="cpu", trust_remote_code=False, model_kwargs={"dtype": torch.float32}
    )
    trunk = model[0]
    trunk.query_length = trunk.document_length = None
    trunk.max_seq_length = max_length
    if trunk.query_expansion is not None:
        trunk.query_expansion = dict(trunk.query_expansion) | {"strategy": "min"}
    return model


def encode_tokens(model: Any, texts: Sequence[str], *, query: bool) -> list[np.ndarray]:
    """Encode with a late-interaction reference, text by text, since batches pad: [tokens that score, dim] each."""
    run = model.encode_query if query else model.encode_document
    return [np.asarray(run([text], convert_to_numpy=True, show_progress_bar=False)[0], np.float32) for text in texts]


class CrossReference:
    """A cross-encoder in transformers, in float32."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self._model = AutoModelForSequenceClassification.from_pretrained(str(folder), dtype=torch.float32).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(str(folder))

    def score(self, query: str, document: str, max_length: int) -> tuple[list[int], float]:
        """Score one pair, only the document cut; return its ids and its logit."""
        import torch

        options = {"truncation": "only_second", "max_length": max_length, "return_tensors": "pt"}
        given = self._tokenizer(query, document, **options)
        with torch.inference_mode():
            return given["input_ids"][0].tolist(), float(self._model(**given).logits[0, 0])
