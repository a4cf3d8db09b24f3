"""How much of the audio that a rank trains on is padding, counted on the device until somebody asks.

Outside the model: what it counts would be compiled with it, and compiled anew whenever the counting begins.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Padding:
    """A running share."""

    def __init__(self) -> None:
        self._heard: Tensor | None = None
        """samples of speech, and of all that rows are filled up to"""

    def count(self, batch: Mapping[str, Tensor]) -> None:
        samples_B, audio_BS = batch["samples"], batch["audio"]
        heard = torch.stack((samples_B.sum(), torch.full_like(samples_B[0], audio_BS.numel()))).detach()
        self._heard = heard if self._heard is None else self._heard + heard

    def take_share(self) -> float | None:
        """Since it was last asked; None: nothing was counted."""
        heard, self._heard = self._heard, None
        if heard is None:
            return None
        speech, all_samples = heard.tolist()
        return float(1 - speech / all_samples)
