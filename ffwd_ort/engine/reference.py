"""The same graph on onnx's NumPy evaluator: slow, and written by other people. The truth to compare with."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ffwd_ort.bundle import Bundle
from ffwd_ort.engine.sequences import Floats


class ReferenceRunner:
    """Runs a bundle's graph in NumPy (`--provider numpy`)."""

    provider = "numpy"
    execution_providers = ("onnx ReferenceEvaluator",)

    def __init__(self, bundle: Bundle) -> None:
        from onnx.reference import ReferenceEvaluator

        self._evaluator = ReferenceEvaluator(str(bundle.graph))

    def run(self, feeds: Mapping[str, npt.NDArray[np.generic]]) -> Floats:
        """Run one step; returns [rows, slots, dim]."""
        output: Floats = self._evaluator.run(None, dict(feeds))[0]
        return output
