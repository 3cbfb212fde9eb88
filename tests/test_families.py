"""Which checkpoints are admitted, and how families' plugins are found, reported and kept apart."""

import importlib
import json
import subprocess
import sys
from configparser import ConfigParser
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from ffwd_ort.cache import BundleCache
from ffwd_ort.checkpoint import read_checkpoint
from ffwd_ort.cli.main import main
from ffwd_ort.errors import AdmissionError, RefusedError
from ffwd_ort.export import EXPORTERS_GROUP, OPTIMUM, Exporter, plan_export
from ffwd_ort.families import MODELS_GROUP, ModelFamily, admit, families, find_plugin, find_plugins, plugin_fingerprint
from ffwd_ort_conformance.tiny import TinyBert, write_bert, write_json

ROOT = Path(__file__).parents[1]
GROUPS = {
    MODELS_GROUP: ("models", "ffwd_ort_models", "FAMILY", ModelFamily),
    EXPORTERS_GROUP: ("exporters", "ffwd_ort_exporters", "EXPORTER", Exporter),
}
FAMILY = (
    "from ffwd_ort.families import ModelFamily\n"
    'FAMILY = ModelFamily("{name}", ("{name}",), needs_evidence={evidence})\n'
)
EXPORTER = (
    "from ffwd_ort_exporters.bert import BertTrunk\n"
    "from ffwd_ort_exporters.native import native_exporter\n"
    'EXPORTER = native_exporter("{name}", BertTrunk)\n'
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bert(tmp_path / "tiny", TinyBert(layers=1, hidden=12, heads=3, intermediate=16, positions=32))


def edit(folder: Path, **changes: Any) -> None:
    """Set keys of config.json."""
    path = folder / "config.json"
    write_json(path, {**json.loads(path.read_text()), **changes})


def install(site: Path, name: str, points: dict[str, dict[str, str]], modules: dict[str, str]) -> None:
    """Lay a package down as an installer would: modules, and the metadata that announces them."""
    info = site / f"{name}-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in named.items()) for group, named in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for module, source in modules.items():
        (site / f"{module}.py").write_text(source)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, searched first."""
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(path)
    return path


# --- admission -------------------------------------------------------------------------------------


@pytest.mark.parametrize("architectures", [["BertModel"], ["BertForMaskedLM"], ["BertForPreTraining"], [], None])
def test_a_bert_trunk_is_admitted_with_or_without_a_masked_language_head(
    folder: Path, architectures: list[str] | None
) -> None:
    edit(folder, architectures=architectures)
    admission = admit(read_checkpoint(folder))
    assert (admission.family.name, admission.kind) == ("bert", "embedding")


def test_admission_says_on_what_evidence(folder: Path) -> None:
    assert admit(read_checkpoint(folder)).evidence == "its pooling module"
    (folder / "modules.json").unlink()
    (folder / "1_Pooling" / "config.json").unlink()
    assert admit(read_checkpoint(folder)).evidence == "the family's default recipe (mean pooling)"


@pytest.mark.parametrize("model_type", ["t5", "BERT", "", None, 5])
def test_an_unknown_model_type_is_refused_naming_what_was_found_and_the_families_there_are(
    folder: Path, model_type: object
) -> None:
    edit(folder, model_type=model_type, architectures=["SomethingModel"])
    with pytest.raises(AdmissionError) as caught:
        admit(read_checkpoint(folder))
    message = str(caught.value)
    assert message.startswith(f"tiny: model_type {str(model_type if model_type is not None else '')!r}")
    assert "architectures ['SomethingModel']" in message
    assert "Families: bert (bert)" in message


@pytest.mark.parametrize(
    ("architecture", "meaning"),
    [
        ("MyBertForSequenceClassification", "a reranker or classifier"),
        ("BertForTokenClassification", "a token classifier"),
        ("BertForQuestionAnswering", "a question-answering model"),
        ("BertLMHeadForCausalLM", "a text generator"),
    ],
)
def test_a_head_that_makes_it_something_else_is_refused_saying_what_it_is(
    folder: Path, architecture: str, meaning: str
) -> None:
    edit(folder, architectures=[architecture])
    with pytest.raises(AdmissionError) as caught:
        admit(read_checkpoint(folder))
    assert f"{architecture} is {meaning}, not an embedding model" in str(caught.value)
    assert "Families: bert (bert)" in str(caught.value)


def test_a_cross_encoder_has_one_label_or_is_refused_with_their_count(folder: Path) -> None:
    edit(folder, architectures=["BertForSequenceClassification"], id2label={"0": "no", "1": "maybe", "2": "yes"})
    with pytest.raises(AdmissionError, match="BertForSequenceClassification has 3 labels, and reranking needs one"):
        admit(read_checkpoint(folder))
    edit(folder, id2label={"0": "yes"})
    assert admit(read_checkpoint(folder)).kind == "cross_encoder"


@pytest.mark.parametrize("architectures", [["MyOwnBertModel"], ["BertModel", "MyOwnBertModel"]])
def test_a_custom_architecture_is_refused_naming_the_ones_of_its_family(folder: Path, architectures: list[str]) -> None:
    edit(folder, architectures=architectures)
    with pytest.raises(
        AdmissionError, match=r"MyOwnBertModel is not an architecture of the family bert \(BertModel, BertForMaskedLM"
    ):
        admit(read_checkpoint(folder))


def test_dense_modules_after_several_poolings_are_refused_rather_than_left_out(tmp_path: Path) -> None:
    tiny = TinyBert(pooling=("cls_token", "mean_tokens"), dense=((8, "torch.nn.modules.activation.Tanh"),))
    with pytest.raises(AdmissionError, match=r"Dense modules after cls and mean pooling.*wrong vectors"):
        plan_export(read_checkpoint(write_bert(tmp_path / "tiny", tiny)))


# --- plugins: ours ---------------------------------------------------------------------------------


def declared(group: str) -> dict[str, str]:
    """Read a group of entry points from setup.cfg."""
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    lines = [line.partition("=") for line in parser["options.entry_points"][group].strip().splitlines()]
    return {name.strip(): value.strip() for name, _, value in lines}


@pytest.mark.parametrize("group", GROUPS)
def test_every_plugin_file_is_announced_in_setup_cfg_and_every_announcement_has_its_file(group: str) -> None:
    folder, package, attribute, kind = GROUPS[group]
    found = {}
    for path in sorted((ROOT / folder).glob("*.py")):
        if path.stem != "__init__":
            plugin = getattr(importlib.import_module(f"{package}.{path.stem}"), attribute, None)
            if isinstance(plugin, kind):
                found[path.stem] = f"{package}.{path.stem}:{attribute}"
    assert declared(group) == found


def test_every_file_in_models_is_a_family() -> None:
    files = {path.stem for path in (ROOT / "models").glob("*.py")} - {"__init__"}
    assert files == set(declared(MODELS_GROUP))


def test_every_family_has_an_exporter_of_its_name_and_all_of_them_load() -> None:
    models, exporters = find_plugins(MODELS_GROUP, ModelFamily), find_plugins(EXPORTERS_GROUP, Exporter)
    assert [plugin.problem for plugin in (*models, *exporters)] == [None] * (len(models) + len(exporters))
    assert {plugin.name: plugin.value.name for plugin in models} == {name: name for name in declared(MODELS_GROUP)}
    assert {plugin.name: plugin.value.family for plugin in exporters} == {
        name: name for name in declared(EXPORTERS_GROUP)
    }
    assert set(declared(MODELS_GROUP)) | {OPTIMUM} == set(declared(EXPORTERS_GROUP))


def test_the_installed_entry_points_are_those_of_setup_cfg() -> None:
    installed = {(p.group, p.name): p.value for p in distribution("ffwd_ort").entry_points if p.group in GROUPS}
    assert installed == {(group, name): value for group in GROUPS for name, value in declared(group).items()}


def test_core_code_names_no_plugin_package() -> None:
    for path in (ROOT / "ffwd_ort").rglob("*.py"):
        source = path.read_text()
        assert "ffwd_ort_models" not in source, path
        assert "ffwd_ort_exporters" not in source, path


# --- plugins: strangers' ---------------------------------------------------------------------------

BROKEN = {
    "missing import": ("import no_such_module_anywhere\n", "no_such_module_anywhere"),
    "syntax error": ("FAMILY = \n", "SyntaxError"),
    "leaves the interpreter": ("import sys\nsys.exit(4)\n", "SystemExit"),
    "wrong object": ("FAMILY = {'name': 'x'}\n", "is a dict, not a ModelFamily"),
    "no such attribute": ("FAMILIES = []\n", "FAMILY"),
    "wrong arguments": ("from ffwd_ort.families import ModelFamily\nFAMILY = ModelFamily()\n", "TypeError"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_plugin_is_reported_by_name_and_stops_no_other(site: Path, folder: Path, how: str) -> None:
    source, expected = BROKEN[how]
    module = f"broken_{how.replace(' ', '_')}"
    install(site, "stranger", {MODELS_GROUP: {"broken": f"{module}:FAMILY"}}, {module: source})
    plugins = {plugin.name: plugin for plugin in find_plugins(MODELS_GROUP, ModelFamily)}
    assert plugins["broken"].value is None
    assert expected in str(plugins["broken"].problem)
    assert plugins["broken"].source == "stranger 2.0"
    assert plugins["bert"].problem is None
    assert sorted(family.name for family in families()) == sorted(declared(MODELS_GROUP))
    assert admit(read_checkpoint(folder)).family.name == "bert"
    with pytest.raises(RefusedError, match=r"the ffwd_ort\.models plugin 'broken' of stranger 2\.0 is broken"):
        find_plugin(MODELS_GROUP, "broken", ModelFamily)


@pytest.mark.parametrize("value", ["not a reference at all!", "module_that_is_not_there:FAMILY", ""])
def test_an_entry_point_that_points_nowhere_is_reported_by_name(site: Path, value: str) -> None:
    install(site, "stranger", {MODELS_GROUP: {"nowhere": value}}, {})
    plugins = {plugin.name: plugin for plugin in find_plugins(MODELS_GROUP, ModelFamily)}
    assert plugins["nowhere"].problem
    assert plugins["bert"].problem is None


def test_a_package_without_metadata_still_has_its_plugins_reported(site: Path) -> None:
    install(site, "stranger", {MODELS_GROUP: {"nameless": "module_that_is_not_there:FAMILY"}}, {})
    (site / "stranger-2.0.dist-info" / "METADATA").unlink()
    plugins = {plugin.name: plugin for plugin in find_plugins(MODELS_GROUP, ModelFamily)}
    assert plugins["nameless"].problem
    assert plugins["bert"].problem is None


def test_the_models_command_shows_a_broken_plugin_beside_the_sound_ones(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = {MODELS_GROUP: {"shaky": "shaky_family:FAMILY"}, EXPORTERS_GROUP: {"shaky": "shaky_exporter:EXPORTER"}}
    install(
        site, "stranger", points, {"shaky_family": "raise OSError('no disk')\n", "shaky_exporter": "EXPORTER = 5\n"}
    )
    assert main(["models"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["families"]
    assert ["shaky", "stranger", "2.0", "broken:", "OSError:", "no", "disk"] in lines
    assert [
        "shaky",
        "stranger",
        "2.0",
        "broken:",
        "shaky_exporter:EXPORTER",
        "is",
        "a",
        "int,",
        "not",
        "a",
        "Exporter",
    ] in lines
    assert [line[:2] for line in lines].count(["bert", "ffwd_ort"]) == 2


def test_a_broken_plugin_stops_no_export_in_a_real_process(site: Path, folder: Path, tmp_path: Path) -> None:
    install(
        site, "stranger", {MODELS_GROUP: {"a": "quits:FAMILY"}, EXPORTERS_GROUP: {"a": "quits:X"}}, {"quits": "exit(9)"}
    )
    script = f"import sys; sys.path.insert(0, {str(site)!r}); from ffwd_ort.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", script, "export", str(folder), "-o", str(tmp_path / "bundle"), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "bundle" / "manifest.json").is_file()


def test_a_strangers_family_exports_by_its_own_plugins_alone(site: Path, folder: Path, tmp_path: Path) -> None:
    install(
        site,
        "stranger",
        {MODELS_GROUP: {"sprat": "sprat_family:FAMILY"}, EXPORTERS_GROUP: {"sprat": "sprat_graph:EXPORTER"}},
        {"sprat_family": FAMILY.format(name="sprat", evidence=False), "sprat_graph": EXPORTER.format(name="sprat")},
    )
    edit(folder, model_type="sprat", architectures=["SpratModel"])
    bundle = BundleCache(tmp_path / "cache").open(str(folder))
    assert bundle.manifest.family == "sprat"
    # The exporter's source is part of what a bundle depends on.
    before = plugin_fingerprint(EXPORTERS_GROUP, "sprat")
    (site / "sprat_graph.py").write_text(EXPORTER.format(name="sprat") + "# another version\n")
    assert plugin_fingerprint(EXPORTERS_GROUP, "sprat") != before


def test_a_family_that_needs_evidence_is_admitted_only_with_sentence_transformers_files(
    site: Path, folder: Path
) -> None:
    modules = {"shy_family": FAMILY.format(name="shy", evidence=True)}
    install(site, "stranger", {MODELS_GROUP: {"shy": "shy_family:FAMILY"}}, modules)
    edit(folder, model_type="shy", architectures=["ShyForCausalLM"])
    with pytest.raises(AdmissionError, match=r"ShyForCausalLM is a text generator"):
        admit(read_checkpoint(folder))
    edit(folder, architectures=["ShyModel"])
    assert admit(read_checkpoint(folder)).family.name == "shy"
    (folder / "modules.json").unlink()
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(AdmissionError, match=r"evidence missing: sentence-transformers files.*Families: bert"):
        admit(read_checkpoint(folder))


def test_a_head_that_a_family_claims_as_its_own_architecture_is_admitted(site: Path, folder: Path) -> None:
    source = (
        "from ffwd_ort.families import ModelFamily\n"
        'FAMILY = ModelFamily("claims", ("claims",), architectures=("ClaimsForCausalLM",))\n'
    )
    install(site, "stranger", {MODELS_GROUP: {"claims": "claims_family:FAMILY"}}, {"claims_family": source})
    edit(folder, model_type="claims", architectures=["ClaimsForCausalLM"])
    assert admit(read_checkpoint(folder)).family.name == "claims"
    edit(folder, architectures=["OtherForCausalLM"])
    with pytest.raises(AdmissionError, match=r"OtherForCausalLM is a text generator"):
        admit(read_checkpoint(folder))


@pytest.mark.parametrize(
    "value",
    [
        None,
        "not_there.graph:EXPORTER",
        "not_there.at.all:EXPORTER",
        "not_there:EXPORTER",
        "not a reference at all!",
    ],
)
def test_a_family_whose_exporter_is_missing_or_broken_is_refused_by_name(
    site: Path, folder: Path, value: str | None
) -> None:
    points = {MODELS_GROUP: {"lone": "lone_family:FAMILY"}, **({EXPORTERS_GROUP: {"lone": value}} if value else {})}
    install(site, "stranger", points, {"lone_family": FAMILY.format(name="lone", evidence=False)})
    edit(folder, model_type="lone", architectures=[])
    with pytest.raises(RefusedError, match=r"ffwd_ort\.exporters plugin 'lone'"):
        plan_export(read_checkpoint(folder))
