"""make bench-peers: ffwd_ort beside sentence-transformers, fastembed, infinity and llama.cpp, same model, same cores.

Ratios are what to read: machines are shared and noisy, so contenders take turns and medians are compared.
"""

import argparse
import json
import os
import sys
from datetime import date
from pathlib import Path

from benchmarks.peers.contenders import BASE, CONTENDERS
from benchmarks.peers.plot import draw
from benchmarks.peers.prepare import prepare
from benchmarks.peers.process import WORK
from benchmarks.peers.report import machine, print_table, results
from benchmarks.peers.rounds import Race
from benchmarks.peers.texts import peer_texts, token_counts
from benchmarks.workloads import minilm
from ffwd_ort.engine.machine import available_cores

MODEL = "all-MiniLM-L6-v2, float32, cut at 512 tokens, unit vectors"


def main() -> None:
    """Prepare, race, print the table, write the JSON and the picture."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--passages", type=int, default=160, help="how many of the corpus are encoded")
    parser.add_argument("--only", action="append", metavar="NAME", help="a contender; may be repeated")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), help="a folder for the files")
    arguments = parser.parse_args()
    known = [contender.name for contender in CONTENDERS]
    if unknown := set(arguments.only or []) - set(known):
        parser.error(f"no such contender: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if arguments.rounds < 1:
        parser.error("--rounds: at least 1 is needed")
    chosen = [c for c in CONTENDERS if c.name == BASE or not arguments.only or c.name in arguments.only]

    os.environ["HF_HUB_OFFLINE"] = "1"
    WORK.mkdir(parents=True, exist_ok=True)
    folder, problems = prepare(minilm(), WORK)
    for problem in problems:
        print(f"not made: {problem}")
    sets, source = peer_texts(arguments.passages)
    texts_file = WORK / "texts.json"
    texts_file.write_text(json.dumps(sets))
    tokens, threads = token_counts(folder, sets), available_cores()
    print(f"{MODEL}; {threads} threads; texts: {source}")
    for name, texts in sets.items():
        print(f"{name}: {len(texts)} texts, {tokens[name]} tokens")

    names = list(sets)
    race = Race(names, WORK)
    try:
        race.start(chosen, folder, texts_file, threads)
        if BASE in race.left_out:
            sys.exit(f"{BASE} itself cannot run: {race.left_out[BASE]}")
        race.compare_vectors()
        race.run(arguments.rounds)
    finally:
        race.close()
    found = results(race, names)
    print_table(found, names, tokens)
    facts = {
        "date": date.today().isoformat(),
        "machine": machine(threads),
        "model": MODEL,
        "source": source,
        "texts": {name: {"count": len(texts), "tokens": tokens[name]} for name, texts in sets.items()},
        "rounds": arguments.rounds,
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "peers.json").write_text(json.dumps({**facts, **found}, indent=1) + "\n")
    titles = {
        name: f"{len(texts)} {name}, {tokens[name] // len(texts)} tokens on average" for name, texts in sets.items()
    }
    caption = f"all-MiniLM-L6-v2 in float32, {threads} cores, {facts['date']}"
    draw(found, names, titles, caption, arguments.results / "peers.png")
    print(f"written to {arguments.results / 'peers.json'} and peers.png")


if __name__ == "__main__":
    sys.exit(main())
