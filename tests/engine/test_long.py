"""Long texts in bounded memory, and refused by name where there is not enough of it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ffwd_ort import SentenceEncoder
from ffwd_ort.cache import BundleCache
from ffwd_ort.config import ModelSpec
from ffwd_ort.engine.machine import memory_limit, resident_memory
from ffwd_ort.engine.model import Limits, settle
from ffwd_ort.errors import RefusedError
from ffwd_ort_conformance.tiny import TinyBert, write_bert
from ffwd_ort_conformance.tiny_families import TinyDecoder, TinyEncoder, write_decoder, write_encoder

PEAK = """
import sys
from ffwd_ort import SentenceEncoder
from ffwd_ort.cache import BundleCache
from ffwd_ort.config import ModelSpec
from ffwd_ort.engine.machine import memory_limit, resident_memory
from ffwd_ort.engine.model import Limits, settle
from ffwd_ort.errors import RefusedError
from ffwd_ort_conformance.tiny import long_text

def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024

with SentenceEncoder(sys.argv[1], provider="cpu", cache_dir=sys.argv[2], max_seq=32768) as encoder:
    encoder.encode(long_text(1000))
    before = peak()
    vector = encoder.encode(long_text(int(sys.argv[3])), truncate=True)
    print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize("tokens", [8192, 32768])
@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3"])
def test_memory_grows_with_the_length_and_not_with_its_square(
    family: str, tokens: int, tmp_path: Path, cache_dir: Path
) -> None:
    """The packed form would keep 4 bytes * heads * tokens² of scores: 17 GB for 32768 tokens and 4 heads."""
    tinies: dict[str, Callable[[Path], Path]] = {
        "bert": lambda folder: write_bert(folder, TinyBert(positions=32768)),
        "modernbert": lambda folder: write_encoder(
            folder, TinyEncoder(model_type="modernbert", layers=4, heads=4, positions=32768)
        ),
        "qwen3": lambda folder: write_decoder(folder, TinyDecoder(head_norms=True, head_width=24, positions=32768)),
    }
    folder = tinies[family](tmp_path / "tiny")
    with SentenceEncoder(folder, provider="cpu", cache_dir=cache_dir):
        pass  # exported in this process, so that the other one only runs it
    command = [sys.executable, "-c", PEAK, str(folder), str(cache_dir), str(tokens)]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < 16 * tokens / 1024 + 32, f"{grown} MiB more for {tokens} tokens"


def test_a_length_that_does_not_fit_the_memory_is_refused_at_start_up_by_name(tmp_path: Path, cache_dir: Path) -> None:
    """Heads of 20 have no flash kernel: rows of 32768 would keep 34 GB of scores. Heads of 24 have one."""
    room = (resident_memory() + (2 << 30)) / memory_limit().bytes
    limits = Limits(max_seq=32000, max_batch_tokens=32768, memory_utilization=room)
    spec = ModelSpec("m", "m")
    for width, fits in ((20, False), (24, True)):
        tiny = TinyDecoder(head_norms=True, head_width=width, positions=32768)
        bundle = BundleCache(cache_dir).open(str(write_decoder(tmp_path / str(width), tiny)))
        if fits:
            assert settle(spec, bundle, limits).cap.tokens == 32000
        else:
            with pytest.raises(RefusedError, match=r"m: rows of 32768 tokens do not fit .*--max-seq 4096 would fit"):
                settle(spec, bundle, limits)
            fitted = settle(spec, bundle, Limits(max_batch_tokens=32768, memory_utilization=room)).cap
            assert fitted.tokens == 4096 and fitted.bound_by == "--max-seq, fitted to memory"


def test_the_row_lengths_that_fit_leave_none_out_in_the_middle(tmp_path: Path, cache_dir: Path) -> None:
    """A long row needs less memory than a packed one half as long; a short text would go into it with padding."""
    bundle = BundleCache(cache_dir).open(str(write_bert(tmp_path / "tiny", TinyBert(positions=32768))))
    full = settle(ModelSpec("m", "m"), bundle, Limits(max_batch_tokens=32768)).packing.seqs
    found = set()
    for mebibytes in range(8, 400, 8):
        room = (resident_memory() + (mebibytes << 20)) / memory_limit().bytes
        limits = Limits(max_batch_tokens=32768, memory_utilization=room)
        try:
            seqs = settle(ModelSpec("m", "m"), bundle, limits).packing.seqs
        except RefusedError:
            continue
        assert seqs == full[: len(seqs)]
        found.add(len(seqs))
    assert len(found) > 2
