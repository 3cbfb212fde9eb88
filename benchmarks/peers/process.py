"""The parent's end of a worker: start it, ask it, hold it still while others run."""

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, TextIO

from benchmarks.peers.contenders import Contender

WORK = Path("build/peers")
LOAD_SECONDS, ANSWER_SECONDS = 300.0, 120.0


class ContenderFailed(Exception):
    """A contender cannot take part; the message says why."""


def environment() -> dict[str, str]:
    """Return the workers' environment: no hub, no usage reports, and a hub's cache of their own."""
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    offline["HF_HOME"] = str(WORK.absolute() / "hub")  # infinity keeps its optimised graph there
    return {**os.environ, **offline}


class Process:
    """A worker, stopped by a signal except while it is asked: some libraries' threads spin when idle."""

    def __init__(self, contender: Contender, folder: Path, texts: Path, threads: int, logs: Path) -> None:
        python = contender.environment / "bin" / "python"
        if not python.exists():
            raise ContenderFailed(f"there is no environment {contender.environment}; `make bench-peers` makes it")
        self.contender = contender
        self._log_path = logs / f"{contender.slug}.log"
        self._log: TextIO = self._log_path.open("w")
        began = time.perf_counter()
        self._child = subprocess.Popen(
            [
                *(str(python), "-m", f"benchmarks.peers.workers.{contender.module}"),
                *(str(folder), str(texts), str(threads), contender.engine),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment(),
            text=True,
            bufsize=1,
            process_group=0,  # its own: should we be killed, the kernel hangs up on what is stopped in it
        )
        try:
            self.versions: dict[str, str] = self._answer(LOAD_SECONDS)["versions"]
        except ContenderFailed:
            self.close()
            raise
        self.load_seconds = time.perf_counter() - began
        self._signal(signal.SIGSTOP)

    def ask(self, command: str, rest: float = 0.0) -> dict[str, Any]:
        """Wake the worker, let the machine rest, send a command and return its answer."""
        self._signal(signal.SIGCONT)
        time.sleep(rest)
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(command + "\n")
        except BrokenPipeError:
            raise ContenderFailed(self._last_words()) from None
        try:
            return self._answer(ANSWER_SECONDS)
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End the worker."""
        self._child.kill()
        self._child.communicate()
        self._log.close()

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._child.stdout is not None
        if not select.select([self._child.stdout], [], [], seconds)[0]:
            raise ContenderFailed(f"no answer within {seconds:.0f} s")
        line = self._child.stdout.readline()
        answer = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            raise ContenderFailed(answer["error"].strip().splitlines()[0])
        return answer

    def _last_words(self) -> str:
        lines = [line for line in self._log_path.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it ended without a word"

    def _signal(self, number: signal.Signals) -> None:
        if self._child.poll() is None:
            self._child.send_signal(number)
