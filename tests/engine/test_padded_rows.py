"""Graphs that do not pack: no row ever holds two texts, from the plan to what the session is fed."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from ffwd_ort.bundle import Bundle
from ffwd_ort.cache import BundleCache
from ffwd_ort.config import ModelSpec
from ffwd_ort.engine.model import Limits
from ffwd_ort.engine.packing import Item, Packing, plan_step
from ffwd_ort.engine.sequences import Floats, make_sequence
from ffwd_ort.engine.sessions import OrtRunner, Runner, SessionSettings, open_runner
from ffwd_ort.engine.shapes import seq_ladder
from ffwd_ort.loading import make_engine

items = st.builds(Item, st.integers(1, 512), st.integers(1, 3))


@given(
    st.lists(items, min_size=1, max_size=30),
    st.lists(items, max_size=80),
    st.sampled_from([16, 100, 512, 4096]),
    st.one_of(st.none(), st.integers(1, 40)),
)
def test_no_row_of_a_plan_has_two_texts(first: list[Item], more: list[Item], budget: int, most: int | None) -> None:
    packing = Packing(seq_ladder(512), budget, 1152.0, most, packs=False)
    plan = plan_step(first, more, packing)
    assert all(len(row) == 1 for row in plan.rows)
    assert any(row == (0,) for row in plan.rows), "the first text is always placed"
    assert plan.shape in packing.shapes()


def test_a_step_has_as_many_rows_as_its_budget_takes() -> None:
    plan = plan_step([Item(60)] * 4, [Item(50), Item(64)] * 20, Packing(seq_ladder(128), 512, 1152.0, packs=False))
    assert (plan.shape.rows, plan.shape.seq) == (8, 64)


class Watched:
    """A session that keeps the segments it was fed."""

    def __init__(self, runner: OrtRunner, seen: list[npt.NDArray[np.generic]]) -> None:
        self.provider, self.execution_providers = runner.provider, runner.execution_providers
        self._runner, self._seen = runner, seen

    def run(self, feeds: Mapping[str, npt.NDArray[np.generic]]) -> Floats:
        self._seen.append(feeds["segment_ids"])
        return self._runner.run(feeds)


def test_the_engine_runs_a_bundle_as_its_manifest_says(tiny: Path, cache_dir: Path) -> None:
    packed = BundleCache(cache_dir).open(str(tiny))
    padded = Bundle(packed.path, msgspec.structs.replace(packed.manifest, packs=False))
    random = np.random.default_rng(5)
    ids = [random.integers(5, 100, n, dtype=np.int32) for n in (40, 3, 17, 64, 5, 5, 30)]
    vectors, segments = {}, {}
    for bundle in (packed, padded):
        seen: list[npt.NDArray[np.generic]] = []

        def watch(bundle: Bundle, settings: SessionSettings, seen: list[npt.NDArray[np.generic]] = seen) -> Runner:
            runner = open_runner(bundle, settings)
            assert isinstance(runner, OrtRunner)
            return Watched(runner, seen)

        settings = SessionSettings("cpu")
        spec = ModelSpec("x", "")
        engine = make_engine([(spec, bundle)], Limits(), settings, open_session=watch, warm_up_seconds=0.0)
        engine.start()
        engine.wait_until_loaded()
        seen.clear()  # of the warm-up
        result = engine.encode("x", [make_sequence(text, ("mean",)) for text in ids])
        engine.close()
        vectors[bundle.manifest.packs], segments[bundle.manifest.packs] = result.pooled, seen
    assert max(int(each.max()) for each in segments[True]) > 0, "texts share rows where they may"
    assert all(int(each.max()) == 0 for each in segments[False])
    assert np.abs(vectors[True] - vectors[False]).max() <= 2e-5
