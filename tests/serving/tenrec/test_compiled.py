"""The ranker really compiled: the same results within the stated tolerance, for requests of any length."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from paceline.serving.tenrec.ranking import TenrecRanker
from tests.serving.tenrec.small import opened, ranker
from tests.serving.tenrec.test_ranking import requests


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mixer", ["transformer", "fastformer"])
@pytest.mark.filterwarnings("ignore")  # torch's own, of its own compiler
def test_it_gives_what_the_model_gives(mixer: str, precision: str) -> None:
    asked = requests(5, 200, 64)
    served = TenrecRanker(ranker(mixer), opened().table.items.category)
    expected = served.rank(asked)
    proof = served.accelerate(asked[1:], 64, precision, seconds=0.0)
    assert proof.is_equal, proof.why
    assert proof.compile_s > 0
    for one, other in zip(served.rank(asked), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 if precision == "fp32" else 2e-2)
