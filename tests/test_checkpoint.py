"""What a checkpoint's files say, in both generations of sentence-transformers, and which damage is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffwd_ort.cache import BundleCache
from ffwd_ort.checkpoint import read_checkpoint
from ffwd_ort.errors import AdmissionError, CheckpointError, RefusedError
from ffwd_ort.export import hash_files, plan_export
from ffwd_ort.modules import PoolingConfig
from ffwd_ort_conformance.tiny import TinyBert, write_bert, write_json

SMALL = TinyBert(layers=1, hidden=12, heads=3, intermediate=16, positions=32)
OLDER, NEWER = "sentence_transformers.models", "sentence_transformers.base.modules"
JSON_FILES = (
    "config.json",
    "tokenizer_config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "1_Pooling/config.json",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bert(tmp_path / "tiny", SMALL)


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file."""
    write_json(path, {**json.loads(path.read_text()), **changes})


def write_modules(folder: Path, *modules: tuple[str, str]) -> None:
    """Write modules.json from (type, path)."""
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (kind, path) in enumerate(modules)]
    write_json(folder / "modules.json", listed)


def write_pooling(folder: Path, **config: Any) -> None:
    write_json(folder / "1_Pooling" / "config.json", config)


# --- pooling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "mode"),
    [
        ("cls_token", "cls"),
        ("max_tokens", "max"),
        ("mean_tokens", "mean"),
        ("mean_sqrt_len_tokens", "mean_sqrt_len"),
        ("weightedmean_tokens", "weighted_mean"),
        ("lasttoken", "last"),
    ],
)
def test_each_older_boolean_key_is_its_pooling(folder: Path, key: str, mode: str) -> None:
    keys = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    write_pooling(folder, **{f"pooling_mode_{k}": k == key for k in keys})
    assert read_checkpoint(folder).pooling == PoolingConfig((mode,))


def test_several_older_keys_concatenate_in_sentence_transformers_order_whatever_the_files_order(folder: Path) -> None:
    keys = ("lasttoken", "weightedmean_tokens", "mean_sqrt_len_tokens", "mean_tokens", "max_tokens", "cls_token")
    write_pooling(folder, **{f"pooling_mode_{key}": True for key in keys})
    assert read_checkpoint(folder).pooling == PoolingConfig(
        ("cls", "max", "mean", "mean_sqrt_len", "weighted_mean", "last")
    )


@pytest.mark.parametrize(
    ("written", "modes"),
    [
        ("mean", ("mean",)),
        ("cls", ("cls",)),
        ("lasttoken", ("last",)),
        ("mean_sqrt_len_tokens", ("mean_sqrt_len",)),
        ("weightedmean", ("weighted_mean",)),
        (["mean"], ("mean",)),
        (["mean", "cls"], ("mean", "cls")),
        (["lasttoken", "mean", "cls"], ("last", "mean", "cls")),
    ],
)
def test_the_newer_pooling_mode_is_read_as_string_and_as_list_in_the_files_order(
    folder: Path, written: object, modes: tuple[str, ...]
) -> None:
    write_pooling(folder, embedding_dimension=12, pooling_mode=written)
    assert read_checkpoint(folder).pooling == PoolingConfig(modes)


def test_the_newer_key_wins_over_older_ones_beside_it(folder: Path) -> None:
    write_pooling(folder, pooling_mode="cls", pooling_mode_mean_tokens=True)
    assert read_checkpoint(folder).pooling == PoolingConfig(("cls",))


@pytest.mark.parametrize(
    "config",
    [
        {"pooling_mode": "attention"},
        {"pooling_mode": ["mean", "attention"]},
        {"pooling_mode": []},
        {"pooling_mode_attention": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_attention": True},
        {"pooling_mode_mean_tokens": False},
    ],
)
def test_an_unknown_pooling_or_none_at_all_is_refused_with_the_file_and_what_there_is(
    folder: Path, config: dict[str, Any]
) -> None:
    write_pooling(folder, **config)
    with pytest.raises(AdmissionError, match=r"1_Pooling/config\.json.*there are cls, last, max, mean"):
        read_checkpoint(folder)


@pytest.mark.parametrize("written", [5, [5], [["mean"]], {"mean": True}, True])
def test_a_pooling_mode_of_the_wrong_type_is_an_error_that_names_the_file(folder: Path, written: object) -> None:
    write_pooling(folder, pooling_mode=written)
    with pytest.raises(RefusedError, match=r"1_Pooling/config\.json"):
        read_checkpoint(folder)


@pytest.mark.parametrize(("config", "include"), [({}, True), ({"include_prompt": False}, False)])
def test_include_prompt_is_true_unless_the_file_says_false(
    folder: Path, config: dict[str, bool], include: bool
) -> None:
    write_pooling(folder, pooling_mode="mean", **config)
    pooling = read_checkpoint(folder).pooling
    assert pooling is not None
    assert pooling.include_prompt is include


@pytest.mark.parametrize("written", ["false", 0, None])
def test_include_prompt_that_is_no_boolean_is_refused_not_guessed(folder: Path, written: object) -> None:
    write_pooling(folder, pooling_mode="mean", include_prompt=written)
    with pytest.raises(CheckpointError, match=r"1_Pooling/config\.json.*include_prompt"):
        read_checkpoint(folder)


def test_max_pooling_alone_or_beside_others_asks_the_graph_for_every_tokens_state(folder: Path) -> None:
    for modes, head in ((("mean",), "pooled"), (("max",), "tokens"), (("mean", "max"), "tokens")):
        write_pooling(folder, pooling_mode=list(modes))
        export = plan_export(read_checkpoint(folder))
        assert (export.admission.kind, export.head, export.pooling.modes) == ("embedding", head, modes)


def test_dense_modules_after_max_pooling_are_refused_because_leaving_them_out_would_change_the_vectors(
    folder: Path,
) -> None:
    write_modules(folder, ("m.Transformer", ""), ("m.Pooling", "1_Pooling"), ("m.Dense", "2_Dense"))
    write_dense(folder)
    write_pooling(folder, pooling_mode_max_tokens=True)
    with pytest.raises(AdmissionError, match="Dense modules after max pooling are not available"):
        plan_export(read_checkpoint(folder))


# --- modules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [OLDER, NEWER, "sentence_transformers.sentence_transformer.modules.pooling"])
def test_module_types_are_known_by_class_name_under_older_and_newer_paths(folder: Path, prefix: str) -> None:
    write_modules(
        folder,
        (f"{prefix}.Transformer", ""),
        (f"{prefix}.Pooling", "1_Pooling"),
        (f"{prefix}.Dense", "2_Dense"),
        (f"{prefix}.Normalize", "3_Normalize"),
    )
    write_dense(folder, bias=False)
    checkpoint = read_checkpoint(folder)
    assert checkpoint.pooling == PoolingConfig(("mean",))
    assert checkpoint.normalize is True
    (dense,) = checkpoint.dense_modules
    assert (dense.folder, dense.in_features, dense.out_features, dense.bias) == ("2_Dense", 16, 8, False)
    assert dense.activation == "Tanh"


def write_dense(folder: Path, **changes: object) -> None:
    config = {"in_features": 16, "out_features": 8, "activation_function": "torch.nn.modules.activation.Tanh"}
    write_json(folder / "2_Dense" / "config.json", config | changes)
    (folder / "2_Dense" / "model.safetensors").write_bytes(b"")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"in_features": "16"}, CheckpointError, "in_features and out_features must be positive"),
        ({"out_features": 0}, CheckpointError, "in_features and out_features must be positive"),
        ({"module_input_name": "token_weights"}, AdmissionError, "'token_weights'"),
        ({"use_residual": True}, AdmissionError, "residual"),
    ],
)
def test_a_dense_module_that_is_not_understood_is_refused(
    folder: Path, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    write_modules(folder, ("m.Transformer", ""), ("m.Pooling", "1_Pooling"), ("m.Dense", "2_Dense"))
    write_dense(folder, **changes)
    with pytest.raises(error, match=message):
        read_checkpoint(folder)


def test_a_dense_module_on_tokens_makes_a_vector_of_every_token_and_then_nothing_may_pool(folder: Path) -> None:
    write_modules(folder, ("m.Transformer", ""), ("m.Pooling", "1_Pooling"), ("m.Dense", "2_Dense"))
    write_dense(folder)
    assert read_checkpoint(folder).scores_tokens is False
    write_dense(folder, module_input_name="token_embeddings")
    assert read_checkpoint(folder).scores_tokens is True
    with pytest.raises(AdmissionError, match="its modules both pool a text and make a vector of every token"):
        plan_export(read_checkpoint(folder))
    write_modules(folder, ("m.Transformer", ""), ("m.Dense", "2_Dense"), ("m.Dense", "3_Dense"))
    write_json(folder / "3_Dense" / "config.json", {"module_input_name": "sentence_embedding"})
    with pytest.raises(AdmissionError, match="3_Dense: a Dense module of 'sentence_embedding'"):
        read_checkpoint(folder)


def test_a_dense_module_without_weights_or_out_of_its_place_is_refused(folder: Path) -> None:
    write_modules(folder, ("m.Transformer", ""), ("m.Pooling", "1_Pooling"), ("m.Dense", "2_Dense"))
    write_json(folder / "2_Dense" / "config.json", {"in_features": 16, "out_features": 8})
    with pytest.raises(CheckpointError, match=r"2_Dense/model\.safetensors is missing"):
        read_checkpoint(folder)
    write_modules(folder, ("m.Transformer", ""), ("m.Dense", "2_Dense"), ("m.Pooling", "1_Pooling"))
    with pytest.raises(AdmissionError, match="order Transformer, Dense, Pooling"):
        read_checkpoint(folder)


def test_without_a_normalize_module_vectors_are_not_normalised_and_without_modules_nothing_is_said(
    folder: Path,
) -> None:
    write_modules(folder, (f"{OLDER}.Transformer", ""), (f"{OLDER}.Pooling", "1_Pooling"))
    assert read_checkpoint(folder).normalize is False
    (folder / "modules.json").unlink()
    assert read_checkpoint(folder).normalize is None
    assert read_checkpoint(folder).pooling == PoolingConfig(("mean",))  # the folder alone is enough
    shutil.rmtree(folder / "1_Pooling")
    assert read_checkpoint(folder).pooling is None


def test_a_normalize_module_for_tokens_is_refused_because_it_would_change_the_vectors(folder: Path) -> None:
    write_json(folder / "2_Normalize" / "config.json", {"module_input_name": "token_embeddings"})
    with pytest.raises(AdmissionError, match=r"2_Normalize/config\.json.*token_embeddings"):
        read_checkpoint(folder)
    write_json(folder / "2_Normalize" / "config.json", {"module_input_name": "sentence_embedding"})
    assert read_checkpoint(folder).normalize is True


def test_the_pooling_folder_is_the_one_that_modules_json_names(folder: Path) -> None:
    write_modules(folder, (f"{OLDER}.Transformer", ""), (f"{OLDER}.Pooling", "pool"))
    write_json(folder / "pool" / "config.json", {"pooling_mode": "cls"})
    assert read_checkpoint(folder).pooling == PoolingConfig(("cls",))
    (folder / "pool" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"pool/config\.json is missing, though modules\.json names it"):
        read_checkpoint(folder)


def test_a_trunk_in_its_own_folder_is_read_there_prompts_and_pooling_outside(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "tiny", TinyBert(layers=1, prompts=(("query", "q: "),)))
    trunk = folder / "0_Transformer"
    trunk.mkdir()
    for name in (
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "sentence_bert_config.json",
        "model.safetensors",
    ):
        (folder / name).rename(trunk / name)
    write_modules(folder, (f"{OLDER}.Transformer", "0_Transformer"), (f"{OLDER}.Pooling", "1_Pooling"))
    checkpoint = read_checkpoint(folder)
    assert checkpoint.weight_files == (trunk.resolve() / "model.safetensors",)
    assert checkpoint.tokenizer_file == trunk.resolve() / "tokenizer.json"
    assert checkpoint.trained_length == 64
    assert checkpoint.prompts == {"query": "q: "}
    assert {"0_Transformer/config.json", "modules.json", "1_Pooling/config.json"} <= set(hash_files(checkpoint))


@pytest.mark.parametrize("kind", ["sentence_transformers.models.CNN", "custom_st.Transformerish", "", "Asym"])
def test_an_unknown_module_is_refused_with_its_type_and_the_known_ones(folder: Path, kind: str) -> None:
    write_modules(folder, (f"{OLDER}.Transformer", ""), (kind, "9_New"))
    with pytest.raises(
        AdmissionError, match=r"modules\.json.*Transformer, Pooling, Dense, MultiVectorMask, Normalize"
    ) as caught:
        read_checkpoint(folder)
    assert repr(kind) in str(caught.value)


def test_two_pooling_modules_are_refused(folder: Path) -> None:
    write_modules(folder, (f"{OLDER}.Transformer", ""), (f"{OLDER}.Pooling", "1_Pooling"), (f"{OLDER}.Pooling", "2"))
    with pytest.raises(AdmissionError, match=r"modules\.json has 2 Pooling modules"):
        read_checkpoint(folder)


@pytest.mark.parametrize("path", ["../elsewhere", "1_Pooling/../../elsewhere", "/etc"])
@pytest.mark.parametrize("kind", ["Transformer", "Pooling", "Dense"])
def test_a_module_path_that_leaves_the_folder_is_refused(folder: Path, kind: str, path: str) -> None:
    shutil.copytree(folder, folder.parent / "elsewhere")
    write_modules(folder, (f"{OLDER}.{kind}", path))
    with pytest.raises(CheckpointError, match=r"modules\.json.*leaves the checkpoint's folder") as caught:
        read_checkpoint(folder)
    assert repr(path) in str(caught.value)


# --- lengths, prompts, Matryoshka ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "tokenizer", "length"),
    [
        ({"max_seq_length": 20}, {"model_max_length": 30}, 20),
        ({}, {"model_max_length": 30}, 30),
        ({"max_seq_length": None}, {"model_max_length": 30}, 30),
        ({"max_seq_length": 20}, {}, 20),
        ({}, {"model_max_length": 1000000000000000019884624838656}, None),
        ({}, {"model_max_length": 1e30}, None),
        ({}, {"model_max_length": 30.0}, 30),
        ({"max_seq_length": 0}, {"model_max_length": True}, None),
        ({}, {}, None),
    ],
)
def test_trained_length_is_max_seq_length_else_model_max_length_and_1e30_means_none(
    folder: Path, sentence: dict[str, Any], tokenizer: dict[str, Any], length: int | None
) -> None:
    write_json(folder / "sentence_bert_config.json", sentence)
    write_json(folder / "tokenizer_config.json", tokenizer)
    assert read_checkpoint(folder).trained_length == length


def test_a_folder_of_the_newer_generation_has_its_length_only_in_the_tokenizer(folder: Path) -> None:
    (folder / "sentence_bert_config.json").unlink()
    assert read_checkpoint(folder).trained_length == 64


def test_prompts_and_the_default_prompt_are_read(folder: Path) -> None:
    assert read_checkpoint(folder).prompts == {}
    assert read_checkpoint(folder).default_prompt_name is None
    prompts = {"query": "search: ", "document": ""}
    write_json(
        folder / "config_sentence_transformers.json",
        {"__version__": {"sentence_transformers": "6.2.0"}, "prompts": prompts, "default_prompt_name": "query"},
    )
    assert read_checkpoint(folder).prompts == prompts
    assert read_checkpoint(folder).default_prompt_name == "query"


@pytest.mark.parametrize("default", ["passage", "", 5, ["query"], {}])
def test_a_default_prompt_that_is_not_among_the_prompts_is_refused(folder: Path, default: object) -> None:
    given = {"prompts": {"query": "q: "}, "default_prompt_name": default}
    write_json(folder / "config_sentence_transformers.json", given)
    with pytest.raises(
        CheckpointError, match=r"config_sentence_transformers\.json: default_prompt_name is .*not among its prompts"
    ):
        read_checkpoint(folder)


@pytest.mark.parametrize("prompts", [["q: "], {"query": 5}, {"query": None}, "q: "])
def test_prompts_that_do_not_map_names_to_texts_are_refused(folder: Path, prompts: object) -> None:
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts})
    with pytest.raises(CheckpointError, match=r"config_sentence_transformers\.json: prompts must map names to texts"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("config", "dims"),
    [
        ({}, None),
        ({"is_matryoshka": False}, None),
        ({"is_matryoshka": True}, ()),
        ({"is_matryoshka": True, "matryoshka_dimensions": [12, 4, 8]}, (4, 8, 12)),
        ({"matryoshka_dimensions": [6]}, (6,)),
        ({"matryoshka_dimensions": None}, None),
    ],
)
def test_matryoshka_dimensions_come_from_config_json_alone(
    folder: Path, config: dict[str, Any], dims: tuple[int, ...] | None
) -> None:
    edit(folder / "config.json", **config)
    assert read_checkpoint(folder).matryoshka_dims == dims


@pytest.mark.parametrize("written", [["many"], "64", 64, [0], [-8, 4], [True], [4.5]])
def test_matryoshka_dimensions_that_are_no_positive_integers_are_refused(folder: Path, written: object) -> None:
    edit(folder / "config.json", matryoshka_dimensions=written)
    with pytest.raises(CheckpointError, match=r"config\.json.*matryoshka_dimensions"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("config", "causal"),
    [({}, None), ({"is_causal": True}, True), ({"is_causal": False}, False), ({"is_causal": "no"}, None)],
)
def test_is_causal_counts_only_as_a_boolean(folder: Path, config: dict[str, Any], causal: bool | None) -> None:
    edit(folder / "config.json", **config)
    assert read_checkpoint(folder).is_causal is causal


def test_lower_casing_and_the_terminal_token_are_read_from_their_files(folder: Path) -> None:
    assert read_checkpoint(folder).lowercase is False
    assert read_checkpoint(folder).append_eos is None
    edit(folder / "sentence_bert_config.json", do_lower_case=True)
    edit(folder / "tokenizer_config.json", add_eos_token=True)
    assert read_checkpoint(folder).lowercase is True
    assert read_checkpoint(folder).append_eos is True


# --- damaged JSON ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"model_type": "bert",}', b"\xff\xfe\x00", b"[" * 100_000, b"5", b"null"],
    ids=["empty", "cut off", "trailing comma", "not UTF-8", "nested too deep", "a number", "null"],
)
def test_a_json_file_that_is_damaged_or_holds_no_object_is_named(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name}".replace(".", r"\.")):
        read_checkpoint(folder)


@pytest.mark.parametrize("listed", [{}, ["Transformer"], [None], "Transformer"])
def test_modules_json_must_be_a_list_of_objects(folder: Path, listed: object) -> None:
    write_json(folder / "modules.json", listed)
    with pytest.raises(CheckpointError, match=r"modules\.json must be a list of objects"):
        read_checkpoint(folder)


@pytest.mark.parametrize("written", ["BertModel", 5, {"a": 1}, [5], [None]])
def test_architectures_must_be_a_list_of_names(folder: Path, written: object) -> None:
    edit(folder / "config.json", architectures=written)
    with pytest.raises(CheckpointError, match=r"config\.json.*architectures"):
        read_checkpoint(folder)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [0, -3, "12", 12.0, None, True])
def test_a_size_that_is_no_positive_integer_is_named(folder: Path, key: str, value: object) -> None:
    edit(folder / "config.json", **{key: value})
    with pytest.raises(CheckpointError, match=rf"config\.json: {key} is {value!r}; a positive integer is needed"):
        read_checkpoint(folder).integer(key)


@pytest.mark.parametrize(("key", "value"), [("layer_norm_eps", "tiny"), ("pad_token_id", "zero"), ("hidden_act", [])])
def test_other_values_of_the_wrong_type_are_refused_by_name_at_export(
    folder: Path, tmp_path: Path, key: str, value: object
) -> None:
    edit(folder / "config.json", **{key: value})
    with pytest.raises(RefusedError, match=key):
        BundleCache(tmp_path / "cache").open(str(folder))


def test_a_tokenizer_that_is_damaged_is_named_at_export(folder: Path, tmp_path: Path) -> None:
    cache = BundleCache(tmp_path / "cache")
    for content in (b"{", b"[]", b"{}", b'{"model": {"vocab": {"a": "b"}}}', b'{"model": {"vocab": {"a": 0}}}'):
        (folder / "tokenizer.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
            cache.open(str(folder))


# --- files that are not there ----------------------------------------------------------------------


def test_a_folder_without_config_json_or_that_is_no_folder_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"tiny has no config\.json, so it is not a checkpoint"):
        read_checkpoint(folder)
    with pytest.raises(CheckpointError, match=r"vocab\.txt is not a directory"):
        read_checkpoint(folder / "vocab.txt")


def test_the_first_vocabulary_that_there_is_is_taken_and_none_is_refused(folder: Path) -> None:
    for name in ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "vocab.json", "merges.txt"):
        (folder / name).write_text("{}")
    for name in ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "tokenizer.model"):
        assert read_checkpoint(folder).tokenizer_file.name == name
        (folder / name).unlink()
    assert read_checkpoint(folder).tokenizer_file.name == "spiece.model"
    (folder / "spiece.model").unlink()
    with pytest.raises(CheckpointError, match=r"none of tokenizer\.json, vocab\.txt, .*so it has no tokenizer"):
        read_checkpoint(folder)
    (folder / "vocab.json").write_text("{}")
    (folder / "merges.txt").unlink()
    with pytest.raises(CheckpointError, match=r"vocab\.json without merges\.txt"):
        read_checkpoint(folder)


def test_weights_in_a_bin_file_are_refused_as_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(
        CheckpointError, match=r"no model\.safetensors.*pytorch_model\.bin is a pickle, which is never loaded"
    ):
        read_checkpoint(folder)


def test_no_weights_at_all_are_refused_without_talk_of_pickles(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors and no model\.safetensors\.index\.json$"):
        read_checkpoint(folder)


# --- shards ----------------------------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_bert(tmp_path / "sharded", TinyBert(layers=1, hidden=12, intermediate=16, positions=32, shards=3))


def test_a_sharded_index_lists_every_shard_once_in_order(sharded: Path) -> None:
    names = [path.name for path in read_checkpoint(sharded).weight_files]
    assert names == [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(
        CheckpointError,
        match=r"model-00002-of-00003\.safetensors is missing, though model\.safetensors\.index\.json names it",
    ):
        read_checkpoint(sharded)


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/outside.safetensors", "sub/inside.safetensors"])
def test_a_shard_outside_the_folder_is_refused_even_if_it_exists(sharded: Path, shard: str) -> None:
    for place in (sharded.parent / "outside.safetensors", sharded / "sub" / "inside.safetensors"):
        place.parent.mkdir(exist_ok=True)
        shutil.copy(sharded / "model-00001-of-00003.safetensors", place)
    write_json(sharded / "model.safetensors.index.json", {"weight_map": {"a": shard}})
    with pytest.raises(CheckpointError, match=r"index\.json: the shard .* lies outside the checkpoint's folder"):
        read_checkpoint(sharded)


@pytest.mark.parametrize("shard", ["", ".", "..", 5, None])
def test_a_shard_that_is_no_file_name_is_refused(sharded: Path, shard: object) -> None:
    write_json(sharded / "model.safetensors.index.json", {"weight_map": {"a": shard}})
    with pytest.raises(CheckpointError):
        read_checkpoint(sharded)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": []}, {"weight_map": "all"}, [], None])
def test_an_index_without_a_weight_map_is_named(sharded: Path, index: object) -> None:
    write_json(sharded / "model.safetensors.index.json", index)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json has no weight_map"):
        read_checkpoint(sharded)


def test_one_file_wins_over_an_index_beside_it(sharded: Path) -> None:
    (sharded / "model.safetensors").write_bytes(b"")
    assert [path.name for path in read_checkpoint(sharded).weight_files] == ["model.safetensors"]


# --- how the folder lies on disk -------------------------------------------------------------------


def link_as_the_hub_does(folder: Path, home: Path) -> Path:
    """Make a snapshot in which each file is a relative link into blobs/."""
    snapshot = home / "snapshots" / ("c" * 40)
    (home / "blobs").mkdir(parents=True)
    for number, path in enumerate(sorted(p for p in folder.rglob("*") if p.is_file())):
        shutil.copy(path, home / "blobs" / str(number))
        link = snapshot / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (len(link.relative_to(home).parts) - 1)
        link.symlink_to(f"{up}blobs/{number}")
    return snapshot


def test_a_snapshot_of_links_into_blobs_reads_and_exports_as_the_plain_folder(folder: Path, tmp_path: Path) -> None:
    snapshot = link_as_the_hub_does(folder, tmp_path / "models--org--tiny")
    plain, linked = read_checkpoint(folder), read_checkpoint(snapshot)
    assert linked.pooling == plain.pooling
    assert hash_files(linked) == hash_files(plain)
    bundle = BundleCache(tmp_path / "cache").open(str(snapshot))
    assert not any(path.is_symlink() for path in bundle.path.iterdir())


def test_a_folder_reached_through_a_link_is_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    assert read_checkpoint(tmp_path / "link").path == folder.resolve()


def test_a_read_only_checkpoint_is_read_and_exported_and_nothing_is_written_into_it(
    folder: Path, tmp_path: Path
) -> None:
    def state() -> dict[str, tuple[int, int]]:
        listed = [folder, *folder.rglob("*")]
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in listed}

    # The modes stop an ordinary user; the listing also tells on root.
    for path in sorted(folder.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    folder.chmod(0o555)
    before = state()
    try:
        BundleCache(tmp_path / "cache").open(str(folder))
        assert state() == before
    finally:
        for path in (folder, *(p for p in folder.rglob("*") if p.is_dir())):
            path.chmod(0o755)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: edit(folder / "config.json", layer_norm_eps=1e-5),
        lambda folder: edit(folder / "tokenizer_config.json", model_max_length=31),
        lambda folder: edit(folder / "sentence_bert_config.json", max_seq_length=31),
        lambda folder: write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "q: "}}),
        lambda folder: write_modules(folder, (f"{OLDER}.Transformer", ""), (f"{OLDER}.Pooling", "1_Pooling")),
        lambda folder: write_pooling(folder, pooling_mode="cls"),
        lambda folder: write_json(folder / "2_Normalize" / "config.json", {"module_input_name": "sentence_embedding"}),
    ],
    ids=["config", "tokenizer_config", "sentence_bert_config", "prompts", "modules", "pooling", "normalize"],
)
def test_every_file_that_was_read_is_among_the_hashed_ones(folder: Path, change: Callable[[Path], None]) -> None:
    before = hash_files(read_checkpoint(folder))
    change(folder)
    assert hash_files(read_checkpoint(folder)) != before
