"""How late interaction is laid out: what PyLate's and sentence-transformers' files say, and which damage is named."""

import json
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ffwd_ort.cache import BundleCache
from ffwd_ort.checkpoint import read_checkpoint
from ffwd_ort.config import ModelSpec
from ffwd_ort.engine.model import Limits, settle
from ffwd_ort.errors import AdmissionError, CheckpointError, RefusedError
from ffwd_ort.export import plan_export
from ffwd_ort.late import LateRecipe, settle_late
from ffwd_ort_conformance.tiny import VOCABULARY, TinyBert, write_bert, write_json
from ffwd_ort_conformance.tiny_late import write_colbert, write_pplx_late

SETTINGS, MASK = "config_sentence_transformers.json", "2_MultiVectorMask/config.json"
TRUNK = "sentence_bert_config.json"
PUNCTUATION = tuple(string.punctuation)


def recipe(folder: Path) -> LateRecipe:
    found = read_checkpoint(folder).late
    assert found is not None
    return found


# --- PyLate ----------------------------------------------------------------------------------------


def test_a_pylate_folder_says_all_of_its_layout(tmp_path: Path) -> None:
    folder = write_colbert(tmp_path / "tiny", skiplist_words=["!", "the"])
    assert recipe(folder) == LateRecipe("[Q] ", "[D] ", 16, False, None, ("!", "the"), True, 100)
    checkpoint = read_checkpoint(folder)
    assert checkpoint.scores_tokens and checkpoint.trained_length == 100


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"query_length": None}, "query_length", 32),
        ({"query_length": 1024}, "query_length", 1024),
        ({"do_query_expansion": False}, "query_length", None),
        ({"do_query_expansion": None}, "query_length", 16),
        ({"attend_to_expansion_tokens": True}, "attend", True),
        ({"attend_to_expansion_tokens": None}, "attend", False),
        ({"skiplist_words": None}, "skip_words", PUNCTUATION),
        ({"skiplist_words": []}, "skip_words", ()),
        ({"query_prefix": None}, "query_marker", ""),
        ({"document_prefix": "text: "}, "document_marker", "text: "),
        ({"document_length": None}, "document_length", None),
    ],
)
def test_each_pylate_key_is_read_and_has_pylates_default(
    tmp_path: Path, changes: dict[str, Any], field: str, value: object
) -> None:
    assert getattr(recipe(write_colbert(tmp_path / "tiny", **changes)), field) == value


@pytest.mark.parametrize("key", ["query_prefix", "document_prefix", "do_query_expansion", "skiplist_words"])
def test_one_of_pylates_own_keys_is_enough_to_tell_its_folder(tmp_path: Path, key: str) -> None:
    folder = write_colbert(tmp_path / "tiny")
    write_json(folder / SETTINGS, {key: json.loads((folder / SETTINGS).read_text())[key]})
    assert recipe(folder).query_length == 32
    write_json(folder / SETTINGS, {"model_type": "ColBERT"})
    assert recipe(folder) == LateRecipe(attend=False)
    write_json(folder / SETTINGS, {"prompts": {"query": "q: "}})
    assert read_checkpoint(folder).late is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"query_prefix": 3}, "query_prefix is 3"),
        ({"document_prefix": ["[D] "]}, r"document_prefix is \['\[D\] '\]"),
        ({"skiplist_words": "abc"}, "skiplist_words is 'abc'"),
        ({"do_query_expansion": "no"}, "do_query_expansion is 'no'; true or false"),
        ({"attend_to_expansion_tokens": 1}, "attend_to_expansion_tokens is 1; true or false"),
        ({"skiplist_words": ["a", 5]}, r"skiplist_words is \['a', 5\]"),
        *[({"query_length": n}, f"query_length is {n!r}; .*from 1 to 1024") for n in (0, -1, 1025, "32", True, 8.0)],
        *[({"document_length": n}, f"document_length is {n!r}; .*from 1 to 1048576") for n in (0, "x", 1 << 21)],
    ],
)
def test_a_pylate_value_that_makes_no_sense_is_refused_with_the_file(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"config_sentence_transformers\.json: .*{says}"):
        read_checkpoint(write_colbert(tmp_path / "tiny", **changes))


# --- sentence-transformers' own layout -------------------------------------------------------------


def write_native(folder: Path, trunk: Mapping[str, Any], mask: Mapping[str, Any], *, normalize: bool = True) -> Path:
    """Write a MultiVectorEncoder as sentence-transformers 6 saves it."""
    write_colbert(folder)
    write_json(folder / SETTINGS, {"model_type": "MultiVectorEncoder", "prompts": {"query": "[Q] "}})
    kinds = ["Transformer", "Dense", "MultiVectorMask", *(["Normalize"] if normalize else [])]
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    modules = [{"idx": i, "name": str(i), "path": paths[i], "type": f"m.{kind}"} for i, kind in enumerate(kinds)]
    write_json(folder / "modules.json", modules)
    write_json(folder / "1_Dense/config.json", json.loads((folder / "1_Dense/config.json").read_text()) | ON_TOKENS)
    write_json(folder / TRUNK, trunk)
    write_json(folder / MASK, mask)
    if normalize:
        write_json(folder / "3_Normalize/config.json", ON_TOKENS)
    return folder


ON_TOKENS = {"module_input_name": "token_embeddings"}
EXPANSION = {"length": 16, "strategy": "min", "token": "[UNK]", "attend": True}


def test_sentence_transformers_own_layout_is_read_of_its_mask_and_its_trunk(tmp_path: Path) -> None:
    trunk = {"query_expansion": EXPANSION, "query_length": 40, "document_length": 90}
    folder = write_native(tmp_path / "tiny", trunk, {"skiplist_words": ["!"], "skiplist_tasks": ["document"]})
    assert recipe(folder) == LateRecipe("", "", 16, True, "[UNK]", ("!",), True, 90)
    assert plan_export(read_checkpoint(folder)).admission.kind == "late"
    plain = write_native(tmp_path / "plain", {"query_expansion": None}, {"skiplist_words": None}, normalize=False)
    assert recipe(plain) == LateRecipe("", "", None, False, None, (), False, None)


@pytest.mark.parametrize(
    ("mask", "error", "says"),
    [
        ({"keep_only_token_ids": [5]}, AdmissionError, "keep_only_token_ids, or a skiplist for queries"),
        ({"skiplist_words": ["!"], "skiplist_tasks": ["query", "document"]}, AdmissionError, "skiplist for queries"),
        ({"skiplist_words": "!"}, CheckpointError, "skiplist_words is '!'"),
    ],
)
def test_a_mask_that_is_not_understood_is_refused_with_its_file(
    tmp_path: Path, mask: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=rf"2_MultiVectorMask/config\.json: .*{says}"):
        read_checkpoint(write_native(tmp_path / "tiny", {}, mask))


@pytest.mark.parametrize(
    ("trunk", "says"),
    [
        ({"query_expansion": "yes"}, "query_expansion is 'yes'"),
        ({"query_expansion": {"length": "16"}}, "query_expansion.length is '16'"),
        ({"query_expansion": {"token": "[MASK]"}}, "query_expansion has no length"),
        ({"query_expansion": {"length": 8, "token": 5}}, "query_expansion.token is 5"),
        ({"query_expansion": {"length": 2000}}, "query_expansion.length is 2000"),
        ({"document_length": -1}, "document_length is -1"),
    ],
)
def test_an_expansion_that_makes_no_sense_is_refused(tmp_path: Path, trunk: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=rf"sentence_bert_config\.json: {says}"):
        read_checkpoint(write_native(tmp_path / "tiny", trunk, {}))


# --- admission -------------------------------------------------------------------------------------


def test_a_dense_module_on_tokens_without_a_layout_is_refused_saying_what_is_missing(tmp_path: Path) -> None:
    folder = write_colbert(tmp_path / "tiny")
    (folder / SETTINGS).unlink()
    missing = r"PyLate's config_sentence_transformers\.json .*query_prefix.* or a MultiVectorMask module"
    with pytest.raises(AdmissionError, match=f"tiny: .*nothing says how queries and documents are laid out.*{missing}"):
        plan_export(read_checkpoint(folder))


def test_a_family_that_has_a_layout_needs_no_file_for_it(tmp_path: Path) -> None:
    export = plan_export(read_checkpoint(write_pplx_late(tmp_path / "tiny")))
    assert (export.admission.kind, export.head, export.normalize, export.checkpoint.late) == (
        "late",
        "tokens",
        True,
        None,
    )


def test_a_layout_beside_a_pooling_is_refused(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "tiny", TinyBert(normalize=False))
    write_json(folder / SETTINGS, {"query_prefix": "[Q] "})
    with pytest.raises(AdmissionError, match="both pool a text and make a vector of every token"):
        plan_export(read_checkpoint(folder))


def test_a_late_checkpoint_under_another_flag_is_refused_naming_both(tmp_path: Path) -> None:
    bundle = BundleCache(tmp_path / "cache").open(str(write_colbert(tmp_path / "tiny")))
    with pytest.raises(RefusedError, match="--model m: tiny is of kind late, which --model cannot serve"):
        settle(ModelSpec("m", "tiny"), bundle, Limits())
    assert settle(ModelSpec("m", "tiny", kind=None), bundle, Limits()).scorer == "maxsim"


def test_a_cap_below_the_padded_query_is_refused(tmp_path: Path, cache_dir: Path) -> None:
    bundle = BundleCache(cache_dir).open(str(write_colbert(tmp_path / "tiny")))
    late = ModelSpec("m", "tiny", kind="late")
    with pytest.raises(RefusedError, match=r"--late-model m: a cap of 15 tokens \(--max-seq\) leaves no room"):
        settle(late, bundle, Limits(max_seq=15))
    assert settle(late, bundle, Limits(max_seq=16)).cap.tokens == 16


# --- the recipe's tokens in the tokenizer ----------------------------------------------------------

TOKENS = {token: i for i, token in enumerate((*VOCABULARY, "[Q] ", "[D]"))}
Look = Callable[[str], int | None]
KNOWN: Look = TOKENS.get


def test_a_marker_the_tokenizer_knows_is_a_token_with_or_without_its_space() -> None:
    late, prompts = settle_late(LateRecipe("[Q] ", "[D] "), {"query": "[Q] find: "}, KNOWN, ["[MASK]"])
    assert (late.query_marker, late.document_marker) == (TOKENS["[Q] "], TOKENS["[D]"])
    assert prompts == {"query": "find: ", "document": ""}, "the marker is not written a second time"


def test_a_marker_the_tokenizer_does_not_know_is_written_before_the_text() -> None:
    given = {"query": "query: find: ", "other": "x"}
    late, prompts = settle_late(LateRecipe("query: ", "text: "), given, KNOWN, ["[MASK]"])
    assert (late.query_marker, late.document_marker) == (None, None)
    assert (late.query_text, late.document_text) == ("query: ", "text: ")
    assert prompts == {"query": "find: ", "document": "", "other": "x"}, "an operator may name another prompt"


def test_a_prefix_of_several_words_is_text_though_the_tokenizer_knows_its_first() -> None:
    assert KNOWN("tide") is not None
    late, _ = settle_late(LateRecipe("tide query: ", "tide "), {}, KNOWN, ["[MASK]"])
    assert (late.query_marker, late.query_text) == (None, "tide query: ")
    assert (late.document_marker, late.document_text) == (KNOWN("tide"), "")


def test_without_markers_prompts_stay_as_they_are() -> None:
    late, prompts = settle_late(LateRecipe(), {"query": "find: ", "document": "d: "}, KNOWN, ["[MASK]"])
    assert (late.query_marker, prompts) == (None, {"query": "find: ", "document": "d: "})


def test_queries_are_padded_with_the_token_the_recipe_names_else_the_first_that_there_is() -> None:
    def pad(named: str | None, *others: str | None) -> int:
        return settle_late(LateRecipe(expansion=named), {}, KNOWN, others)[0].expansion_id

    assert pad("[UNK]", "[MASK]") == TOKENS["[UNK]"]
    assert pad(None, None, "<mask>", "[MASK]", "[SEP]") == TOKENS["[MASK]"]


def test_a_missing_expansion_token_is_refused_unless_nothing_is_padded() -> None:
    for named, others, says in (("<pad>", ["[MASK]"], "<pad>"), (None, [None, "<mask>", "</s>"], "<mask> or </s>")):
        with pytest.raises(AdmissionError, match=f"padded with {says}, which the tokenizer does not have"):
            settle_late(LateRecipe(expansion=named), {}, KNOWN, others)
    assert settle_late(LateRecipe(query_length=None), {}, KNOWN, ["<mask>"])[0].query_length == 0


def test_words_to_skip_are_those_that_are_one_token() -> None:
    late, _ = settle_late(LateRecipe(skip_words=("!", "the", "no such word", "!")), {}, KNOWN, ["[MASK]"])
    assert late.skip_ids == tuple(sorted((TOKENS["!"], TOKENS["the"])))
