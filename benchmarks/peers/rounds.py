"""Contenders take turns, so that a slow minute of a shared machine slows them all."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.peers.contenders import REFERENCE, Contender
from benchmarks.peers.process import ContenderFailed, Process

REST_SECONDS = 0.1  # before each run: the threads of the one before stop spinning


@dataclass
class Measured:
    """What was found of one contender."""

    versions: dict[str, str]
    load_seconds: float
    peak_mb: float | None = None
    least_cosine: dict[str, float] = field(default_factory=dict)  # by set of texts
    seconds: dict[str, list[float]] = field(default_factory=dict)  # by set of texts, one a round


class Race:
    """Starts contenders, runs their rounds, and keeps who fell out and why."""

    def __init__(self, sets: Sequence[str], work: Path) -> None:
        self._sets, self._work = sets, work
        self._processes: dict[str, Process] = {}
        self.measured: dict[str, Measured] = {}
        self.left_out: dict[str, str] = {}

    def start(self, contenders: Sequence[Contender], folder: Path, texts: Path, threads: int) -> None:
        """Load each, one after the other, and have it encode every set once: its warm-up, and its vectors."""
        for contender in contenders:
            print(f"loading {contender.name}", flush=True)
            try:
                process = Process(contender, folder, texts, threads, self._work)
            except ContenderFailed as failure:
                self.left_out[contender.name] = str(failure)
                continue
            self._processes[contender.name] = process
            self.measured[contender.name] = Measured(process.versions, process.load_seconds)
            for name in self._sets:
                self._ask(contender.name, f"vectors {name} {self._vectors(contender, name)}")

    def compare_vectors(self) -> None:
        """Find each contender's smallest cosine with the reference's vectors, over all texts of a set."""
        if REFERENCE not in self._processes:
            return
        for name in self._sets:
            reference = _unit(np.load(self._vectors(self._processes[REFERENCE].contender, name)))
            for label, process in self._processes.items():
                theirs = _unit(np.load(self._vectors(process.contender, name)))
                self.measured[label].least_cosine[name] = float((reference * theirs).sum(1).min())

    def run(self, rounds: int) -> None:
        """Time every set on every contender, round by round, the order turned by one each time."""
        for turn in range(rounds):
            print(f"round {turn + 1} of {rounds}", flush=True)
            for name in self._sets:
                order = list(self._processes)
                first = turn % max(1, len(order))
                for label in order[first:] + order[:first]:
                    answer = self._ask(label, f"run {name}")
                    if answer is not None:
                        self.measured[label].seconds.setdefault(name, []).append(answer["seconds"])
        for label in list(self._processes):
            answer = self._ask(label, "peak")
            if answer is not None:
                self.measured[label].peak_mb = answer["peak_mb"]

    def close(self) -> None:
        """End every worker."""
        for process in self._processes.values():
            process.close()

    def _ask(self, label: str, command: str) -> dict | None:
        """Ask one contender; one that fails is closed and left out from here on."""
        try:
            return self._processes[label].ask(command, REST_SECONDS)
        except (KeyError, ContenderFailed) as failure:
            if label in self._processes:
                self._processes.pop(label).close()
                self.measured.pop(label)
                self.left_out[label] = str(failure)
            return None

    def _vectors(self, contender: Contender, name: str) -> Path:
        return self._work.absolute() / f"{contender.slug}-{name}.npy"  # infinity changes its folder


def _unit(vectors: np.ndarray) -> np.ndarray:
    doubled = vectors.astype(np.float64)
    return doubled / np.linalg.norm(doubled, axis=1, keepdims=True)
