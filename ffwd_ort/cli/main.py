"""ffwd-ort: what is done with models besides serving them."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ffwd_ort.cli.conformance import REFERENCES
from ffwd_ort.cli.parser import Parser, exit_code
from ffwd_ort.errors import UsageError
from ffwd_ort.version import VERSION


def make_parser() -> Parser:
    """Make the parser of every subcommand."""
    parser = Parser(prog="ffwd-ort", description="Export and inspect models.")
    parser.add_argument("--version", action="version", version=f"ffwd_ort {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    export = commands.add_parser("export", help="write a checkpoint's bundle")
    export.add_argument("source", metavar="SRC")
    export.add_argument("-o", "--output", type=Path, metavar="BUNDLE", help="folder to write; without it, the cache")
    export.add_argument(
        "--exporter",
        choices=["native", "optimum"],
        default="native",
        help="the family's own, or transformers' model by optimum where there is none (default native)",
    )
    kinds = ["embedding", "contextual", "late", "reranker"]
    export.add_argument("--kind", choices=kinds, help="refuse what labels of this kind could not be served from")
    export.add_argument("--target", choices=["cpu"], default="cpu", help="what it is for (default cpu)")
    export.add_argument("--dtype", choices=["f32", "int8"], default="f32", help="int8 is approximate (default f32)")
    export.add_argument("--check", action="store_true", help="compare with the NumPy evaluator and say the difference")
    export.add_argument("--quiet", action="store_true", help="no progress bar")
    export.set_defaults(run=run_export)

    inspect = commands.add_parser("inspect", help="what would be served, and why")
    inspect.add_argument("source", metavar="SRC|BUNDLE")
    inspect.add_argument("--verify", action="store_true", help="read every file of a bundle and check its hash")
    inspect.set_defaults(run=run_inspect)

    conformance = commands.add_parser("conformance", help="compare a checkpoint's vectors with a reference library's")
    conformance.add_argument("source", metavar="SRC")
    conformance.add_argument("--reference", choices=REFERENCES, help="default: the first that is installed")
    conformance.add_argument("--report", type=Path, metavar="F.json", help="write what was found as JSON, too")
    conformance.set_defaults(run=run_conformance)

    bench = commands.add_parser("bench", help="load a running server, or the engine: vectors/s, latencies, fill")
    bench.add_argument("target", metavar="URL|SRC", help="http://HOST:PORT of a server, or a source to load here")
    bench.add_argument("--model", metavar="LABEL", help="the server's label; may be left out where there is one")
    bench.add_argument("--concurrency", type=int, default=8, metavar="N", help="clients at a time (default 8)")
    bench.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long (default 10)")
    bench.add_argument("--batch", type=int, default=1, metavar="N", help="texts a request (default 1)")
    bench.add_argument("--words", type=int, default=8, metavar="N", help="words a text (default 8)")
    bench.add_argument("--file", type=Path, metavar="F.txt", help="texts, one a line, instead")
    bench.add_argument("--api-key", metavar="KEY")
    bench.add_argument("--json", action="store_true", help="the figures as one JSON object")
    bench.set_defaults(run=run_bench)

    models = commands.add_parser("models", help="families, exporters and plugins, and where they came from")
    models.add_argument("--markdown", action="store_true", help="the families as the README's table")
    models.set_defaults(run=run_models)

    doctor = commands.add_parser("doctor", help="what this machine offers")
    doctor.set_defaults(run=run_doctor)

    cache = commands.add_parser("cache", help="list or remove exported bundles and fetched checkpoints")
    actions = cache.add_subparsers(dest="action", required=True, metavar="ls|rm", parser_class=Parser)
    listing = actions.add_parser("ls", help="list them, with sizes")
    remove = actions.add_parser("rm", help="remove some, or all")
    remove.add_argument("keys", nargs="*", metavar="KEY")
    remove.add_argument("--all", action="store_true", help="every one")
    listing.set_defaults(run=run_cache_ls)
    remove.set_defaults(run=run_cache_rm)
    for command in (export, inspect, conformance, bench, listing, remove):
        command.add_argument("--cache-dir", type=Path, metavar="DIR", help="another cache folder")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the codes of cli.md."""
    arguments = make_parser().parse_args(argv)
    return exit_code("ffwd-ort", lambda: arguments.run(arguments))


def run_export(arguments: Any) -> None:
    """Write a bundle where it is wanted, or into the cache."""
    from ffwd_ort.cache import BundleCache
    from ffwd_ort.cli.progress import progress_bar

    cache = BundleCache(arguments.cache_dir)
    asked = {"exporter": arguments.exporter, "kind": arguments.kind, "dtype": arguments.dtype}
    began = time.monotonic()
    with progress_bar("exporting", quiet=arguments.quiet) as progress:
        if arguments.output is None:
            bundle = cache.open(arguments.source, progress, **asked)
        else:
            bundle = cache.export_to(arguments.source, arguments.output, progress, **asked)
    size = sum(entry.size for entry in bundle.manifest.files.values())
    print(f"{bundle.path}: {size / 1e6:.1f} MB in {time.monotonic() - began:.1f} s")
    if arguments.check:
        from ffwd_ort.cli.check import worst_difference

        print(f"worst difference from the NumPy evaluator: {worst_difference(bundle):.1e}")


def run_inspect(arguments: Any) -> None:
    """Print what a source says and what would be served."""
    from ffwd_ort.cli.inspect import describe_source

    for name, value in describe_source(arguments.source, arguments.cache_dir, verify=arguments.verify):
        print(f"{name:>18}  {value}")


def run_conformance(arguments: Any) -> None:
    """Compare a source with a reference."""
    from ffwd_ort.cli import conformance

    conformance.run_conformance(arguments.source, arguments.reference, arguments.report, arguments.cache_dir)


def run_bench(arguments: Any) -> None:
    """Measure and print."""
    from ffwd_ort.cli.bench import Load, make_texts, measure, read_texts, report

    for name, least in (("concurrency", 1), ("seconds", 0.1), ("batch", 1), ("words", 1)):
        if getattr(arguments, name) < least:
            raise UsageError(f"--{name} {getattr(arguments, name)}: at least {least} is permitted")
    texts = read_texts(arguments.file) if arguments.file else make_texts(arguments.words)
    load = Load(arguments.concurrency, arguments.seconds, arguments.batch, texts)
    options = {"model": arguments.model, "api_key": arguments.api_key, "cache_dir": arguments.cache_dir}
    report(measure(arguments.target, load, **options), arguments.json)


def run_models(arguments: Any) -> None:
    """Print the zoo."""
    from ffwd_ort.cli.zoo import markdown
    from ffwd_ort.export import EXPORTERS_GROUP, Exporter
    from ffwd_ort.families import MODELS_GROUP, ModelFamily, find_plugins

    if arguments.markdown:
        print(markdown(), end="")
        return
    for title, group, kind in (("families", MODELS_GROUP, ModelFamily), ("exporters", EXPORTERS_GROUP, Exporter)):
        print(title)
        for plugin in find_plugins(group, kind):
            said = f"broken: {plugin.problem}" if plugin.problem else _summary(plugin.value)
            print(f"  {plugin.name:<10} {plugin.source:<18} {said}")


def _summary(value: Any) -> str:
    if not hasattr(value, "model_types"):
        return str(value.summary)
    types = ", ".join(value.model_types)
    return (
        f"model_type {types}; {value.pooling} pooling unless its files say otherwise; api {', '.join(value.api_modes)}"
    )


def run_doctor(arguments: Any) -> None:
    """Print what was found."""
    from ffwd_ort.cli.doctor import findings, versions

    for name, value in [*versions(), *findings()]:
        print(f"{name:>16}  {value}")


def run_cache_ls(arguments: Any) -> None:
    """Print the cached bundles."""
    from ffwd_ort.cache import BundleCache

    cache = BundleCache(arguments.cache_dir)
    bundles = cache.list()
    for bundle in bundles:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(bundle.used))
        print(f"{bundle.key}  {bundle.size / 1e6:9.1f} MB  {used}  {bundle.family:<10} {bundle.problem or bundle.name}")
    total = sum(bundle.size for bundle in bundles)
    print(f"{len(bundles)} kept, {total / 1e6:.1f} MB in {cache.root}")


def run_cache_rm(arguments: Any) -> None:
    """Remove cached bundles."""
    from ffwd_ort.cache import BundleCache

    cache = BundleCache(arguments.cache_dir)
    keys = [bundle.key for bundle in cache.list()] if arguments.all else arguments.keys
    if not keys and not arguments.all:
        raise UsageError("cache rm: name the keys to remove (see ffwd-ort cache ls), or give --all")
    for key in keys:
        cache.remove(key)
        print(f"removed {key}")


if __name__ == "__main__":
    sys.exit(main())
