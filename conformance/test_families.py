"""Every family beside BERT, in tiny random checkpoints: ids and vectors of transformers and sentence-transformers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ffwd_ort import SentenceEncoder
from ffwd_ort_conformance.hard_strings import HARD_STRINGS
from ffwd_ort_conformance.levels import MAX_BACKEND, MAX_INVARIANCE, distance
from ffwd_ort_conformance.references import encode, hidden_states, sentence_transformer, token_ids
from ffwd_ort_conformance.tiny import TEXTS, TinyBert, write_bert
from ffwd_ort_conformance.tiny_families import (
    TinyDecoder,
    TinyEncoder,
    TinyGemma3,
    TinyRoberta,
    write_decoder,
    write_encoder,
    write_gemma3,
    write_roberta,
)

SAMPLE = [*TEXTS, " ".join(TEXTS), " ".join(TEXTS * 2), "the <pad> tide <pad>", *HARD_STRINGS]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

Write = Callable[[Path], Path]
VARIANTS: dict[str, Write] = {
    "roberta": lambda folder: write_roberta(folder, TinyRoberta()),
    "roberta-cls": lambda folder: write_roberta(folder, TinyRoberta(pooling=("cls_token",), seed=3)),
    "xlm-roberta": lambda folder: write_roberta(folder, TinyRoberta(model_type="xlm-roberta")),
    "camembert": lambda folder: write_roberta(folder, TinyRoberta(model_type="camembert", normalize=False)),
    "qwen3": lambda folder: write_decoder(folder, TinyDecoder(head_norms=True, append_eos=True)),
    "qwen3-sharded-bfloat16": lambda folder: write_decoder(
        folder, TinyDecoder(head_norms=True, append_eos=True, shards=2, dtype="bfloat16")
    ),
    "qwen2": lambda folder: write_decoder(
        folder, TinyDecoder(model_type="qwen2", qkv_bias=True, head_width=12, pooling=("mean_tokens",))
    ),
    "qwen2-sliding": lambda folder: write_decoder(
        folder,
        TinyDecoder(
            model_type="qwen2",
            qkv_bias=True,
            head_width=12,
            config={"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
        ),
    ),
    "llama": lambda folder: write_decoder(folder, TinyDecoder(model_type="llama", append_eos=True)),
    "llama3-scaling": lambda folder: write_decoder(
        folder, TinyDecoder(model_type="llama", config={"rope_scaling": LLAMA3})
    ),
    "linear-scaling": lambda folder: write_decoder(
        folder, TinyDecoder(model_type="llama", config={"rope_scaling": {"type": "linear", "factor": 2.0}})
    ),
    "dynamic-scaling": lambda folder: write_decoder(
        folder, TinyDecoder(model_type="llama", config={"rope_scaling": {"type": "dynamic", "factor": 2.0}})
    ),
    "yarn-scaling": lambda folder: write_decoder(folder, TinyDecoder(head_norms=True, config={"rope_scaling": YARN})),
    "gemma3": lambda folder: write_gemma3(folder),
    "gemma3-causal": lambda folder: write_gemma3(folder, TinyGemma3(both_ways=False, dense=(), seed=5)),
    "bert-dense": lambda folder: write_bert(
        folder, TinyBert(dense=((24, "torch.nn.modules.activation.Tanh"), (40, "torch.nn.modules.linear.Identity")))
    ),
    "distilbert": lambda folder: write_encoder(folder, TinyEncoder()),
    "mpnet": lambda folder: write_encoder(folder, TinyEncoder(model_type="mpnet", positions=300)),
    "modernbert": lambda folder: write_encoder(
        folder, TinyEncoder(model_type="modernbert", layers=7, heads=4, pooling=("cls_token",))
    ),
    "nomic": lambda folder: write_encoder(folder, TinyEncoder(model_type="nomic_bert", heads=4)),
    "mistral-window": lambda folder: write_decoder(
        folder, TinyDecoder(model_type="mistral", config={"sliding_window": 7})
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_ids_and_vectors_equal_the_references(name: str, tmp_path: Path, cache_dir: Path) -> None:
    folder = VARIANTS[name](tmp_path / "tiny")
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir, step_tokens=256) as encoder:
        model, cap = encoder.model, encoder.model.cap.tokens
        mine = [text.ids.tolist() for text in model.tokenizer.encode(SAMPLE)]
        terminal = [mine[0][-1]] if model.tokenizer.specials == 1 else []
        # transformers 5 ignores add_eos_token beside a tokenizer.json: the terminal is ours to compare.
        assert mine == [ids + (terminal if ids[-1:] != terminal else []) for ids in token_ids(folder, SAMPLE)]

        reference = sentence_transformer(folder, cap)
        texts = [text for text, ids in zip(SAMPLE, mine, strict=True) if len(ids) <= cap]
        spelled = [text + "<|endoftext|>" for text in texts] if terminal else texts
        expected = encode(reference, spelled)
        batched = encoder.encode(texts, normalize=False)
        found = distance(batched, expected)
        assert found.conforms, str(found)
        norms = np.linalg.norm(batched, axis=1, keepdims=True)
        alone = np.stack([encoder.encode(text, normalize=False) for text in texts])
        assert np.abs((alone - batched) / norms).max() <= MAX_INVARIANCE
    with SentenceEncoder(folder, provider="numpy", cache_dir=cache_dir, step_tokens=256) as slow:
        few = slow.encode(texts[:8], normalize=False)
    assert np.abs((few - batched[:8]) / norms[:8]).max() <= MAX_BACKEND


# Authors' code that is not in transformers: the nearest causal model with a mask both ways. Not the authors' code.
BOTH_WAYS = {
    "pplx": (
        "qwen3",
        TinyDecoder(model_type="bidirectional_pplx_qwen3", head_norms=True, pooling=("mean_tokens",), normalize=False),
    ),
    "gte-qwen2": (
        "qwen2",
        TinyDecoder(
            model_type="qwen2",
            qkv_bias=True,
            head_width=12,
            append_eos=True,
            pooling=("lasttoken",),
            config={"is_causal": False},
        ),
    ),
}


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_decoders_seen_both_ways_equal_transformers_under_a_full_mask(
    name: str, tmp_path: Path, cache_dir: Path
) -> None:
    stand_in, tiny = BOTH_WAYS[name]
    folder = write_decoder(tmp_path / "tiny", tiny)
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir, step_tokens=256) as encoder:
        encoded = encoder.model.tokenizer.encode(SAMPLE)
        texts = [text for text, one in zip(SAMPLE, encoded, strict=True) if one.counted <= encoder.model.cap.tokens]
        ids = [one.ids.tolist() for one in encoded if one.counted <= encoder.model.cap.tokens]
        states = hidden_states(folder, ids, both_ways_as=stand_in)
        expected = np.stack([s.mean(0) if tiny.pooling == ("mean_tokens",) else s[-1] for s in states])
        found = distance(encoder.encode(texts, normalize=False), expected)
    assert found.conforms, str(found)
