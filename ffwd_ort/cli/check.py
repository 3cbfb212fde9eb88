"""ffwd-ort export --check: the bundle on ONNX Runtime against onnx's NumPy evaluator."""

import numpy as np

from ffwd_ort.bundle import Bundle
from ffwd_ort.engine.packing import Plan, Positions, lay_out
from ffwd_ort.engine.reference import ReferenceRunner
from ffwd_ort.engine.sequences import make_sequence
from ffwd_ort.engine.sessions import SessionSettings, open_runner
from ffwd_ort.engine.shapes import EncodeShape
from ffwd_ort.errors import RefusedError

SEED = 20261130
LENGTHS = (5, 11, 2)  # three texts in one row, with padding after them


def worst_difference(bundle: Bundle) -> float:
    """Run random ids of several lengths on both, packed if the graph takes that; return the largest difference."""
    manifest = bundle.manifest
    random = np.random.default_rng(SEED)
    ids = [random.integers(0, manifest.sizes.vocabulary, n, dtype=np.int32) for n in LENGTHS]
    sequences = [make_sequence(text, manifest.pooling) for text in ids]
    texts = tuple(range(len(ids)))
    rows = (texts,) if manifest.packs else tuple((text,) for text in texts)
    plan = Plan(EncodeShape(len(rows), 64), 16, rows)
    positions = Positions(manifest.pad_id, manifest.position_offset, manifest.pad_positions)
    step = lay_out(plan, sequences, positions)
    mine = open_runner(bundle, SessionSettings("cpu")).run(step.feeds(manifest.inputs))
    try:
        theirs = ReferenceRunner(bundle).run(step.feeds(manifest.inputs))
    except Exception as error:  # its GatherElements, for one, is not ONNX's
        raise RefusedError(f"--check: onnx's NumPy evaluator does not run this graph: {error}") from None
    return float(np.abs(mine - theirs).max())
