"""The order of samples: a function of (seed, epoch, position) alone, so that it is the same on any number of ranks and after any resume.

order = SampleOrder(num_samples=1000, global_batch=96, steps_per_epoch=11, seed=0)
order.batch(epoch=2, index=0)   ->   the 96 sample ids of that step, on every rank alike
"""

from __future__ import annotations

import numpy as np


class SampleOrder:
    """A permutation per epoch, cut into global batches; the last one may be smaller."""

    def __init__(self, num_samples: int, global_batch: int, steps_per_epoch: int, seed: int) -> None:
        self._num_samples = num_samples
        self._global_batch = global_batch
        self.steps_per_epoch = steps_per_epoch
        self._seed = seed
        self._epoch = -1
        self._permutation = np.empty(0, dtype=np.int64)

    def batch(self, epoch: int, index: int) -> np.ndarray:
        """Sample ids of step `index` (from 0) of an epoch."""
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self._seed, epoch))))
            self._permutation = generator.permutation(self._num_samples)
            self._epoch = epoch
        return self._permutation[index * self._global_batch : (index + 1) * self._global_batch]
