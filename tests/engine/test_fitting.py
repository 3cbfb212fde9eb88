"""Shapes fitted to memory: what is left out first, and where the limit is read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ffwd_ort.bundle import Bundle
from ffwd_ort.cache import BundleCache
from ffwd_ort.config import ModelSpec
from ffwd_ort.engine.fitting import fit, largest
from ffwd_ort.engine.machine import Memory, available_cores, memory_limit
from ffwd_ort.engine.model import Limits, settle
from ffwd_ort.engine.packing import Packing
from ffwd_ort.engine.shapes import seq_ladder

MEBI = 1 << 20


@pytest.fixture(scope="module")
def bundle(tiny: Path, cache_dir: Path) -> Bundle:
    return BundleCache(cache_dir).open(str(tiny))


def test_the_step_becomes_smaller_before_rows_become_shorter_and_what_is_kept_fits(bundle: Bundle) -> None:
    full = Packing(seq_ladder(4096), 16_384, 1000.0)
    needed = largest(full, bundle.manifest)
    seen = []
    for divisor in (1, 2, 4, 8, 16, 64, 256, 4096):
        fitted = fit(full, bundle.manifest, needed // divisor + 1)
        seen.append((fitted.budget, len(fitted.seqs)))
        if fitted.seqs:
            assert largest(fitted, bundle.manifest) <= needed // divisor
            assert fitted.seqs == full.seqs[: len(fitted.seqs)]
            longer = full.seqs[len(fitted.seqs) :][:1]
            assert not longer or fit(Packing(longer, longer[0], 1000.0), bundle.manifest, needed // divisor).seqs == ()
    assert seen == sorted(seen, reverse=True) and seen[0] == (16_384, 9)
    assert seen[1][0] < 16_384 and seen[1][1] == 9, "the ladder is whole while a smaller step is enough"
    assert fit(full, bundle.manifest, 0).seqs == ()


def test_what_bounds_a_step_is_said(bundle: Bundle) -> None:
    spec = ModelSpec("m", "m")
    assert settle(spec, bundle, Limits(step_tokens=256)).step_bound_by == "--step-tokens"
    bound = settle(spec, bundle, Limits(step_tokens=512, max_batch_tokens=128))
    assert (bound.packing.budget, bound.step_bound_by) == (128, "--max-batch-tokens")


def test_a_step_that_memory_made_smaller_is_served_and_reported(bundle: Bundle, cache_dir: Path) -> None:
    """In a process of its own, whose addresses are limited."""
    script = """if True:
        import json, resource, sys
        import onnxruntime
        from pathlib import Path
        from ffwd_ort.bundle import open_bundle
        from ffwd_ort.config import ModelSpec
        from ffwd_ort.engine.machine import Memory, held_of
        from ffwd_ort.engine.model import Limits, settle
        bundle = open_bundle(Path(sys.argv[1]))
        limit = held_of(Memory(0, "RLIMIT_AS")) + (48 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        served = settle(ModelSpec("m", "m"), bundle, Limits(step_tokens=16384, memory_utilization=1.0))
        print(json.dumps([served.packing.budget, served.step_bound_by, served.cap.tokens, str(served.room)]))
    """
    command = [sys.executable, "-c", script, str(bundle.path)]
    budget, bound_by, cap, room = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert 16 <= budget < 16384 and bound_by == "fitted to memory" and cap == 128
    assert "GiB (RLIMIT_AS)" in room


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "1073741824", "cpu.max": "100000 100000"}, (1 << 30, 1)),
        ("0::/\n", {"memory.max": "max", "cpu.max": "max 100000"}, None),
        (
            "0::/a/b\n",
            {"a/b/memory.max": "max", "a/memory.max": "536870912", "a/b/cpu.max": "50000 100000"},
            (1 << 29, 1),
        ),
        ("0::/host/path\n", {"memory.max": "268435456"}, (1 << 28, None)),
        ("0::/a\n", {"a/memory.max": "max", "a/memory.high": "134217728"}, (1 << 27, None)),
        (
            "4:memory:/x/y\n3:cpu,cpuacct:/x\n1:name=systemd:/\n",
            {
                "memory/x/y/memory.limit_in_bytes": "268435456",
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu/x/cpu.cfs_quota_us": "100000",
                "cpu/x/cpu.cfs_period_us": "100000",
            },
            (1 << 28, 1),
        ),
        ("garbage\n", {"memory.max": "garbage", "cpu.max": "garbage"}, None),
    ],
    ids=["v2", "v2 without limits", "v2 nested", "v2 of the host", "v2 high", "v1 nested", "garbage"],
)
def test_the_groups_of_this_process_and_those_around_them_bound_it(
    tmp_path: Path, membership: str, files: dict[str, str], expected: tuple[int, int | None] | None
) -> None:
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text + "\n")
    (tmp_path / "membership").write_text(membership)
    where = (tmp_path / "cgroup", tmp_path / "membership")
    nowhere = (tmp_path / "none", tmp_path / "none")
    memory, cores = memory_limit(*where), available_cores(*where)
    if expected is None:
        assert (memory, cores) == (memory_limit(*nowhere), available_cores(*nowhere))
        return
    assert memory == Memory(expected[0], "cgroup")
    assert cores == min(available_cores(*nowhere), expected[1] or 1 << 30)
