import pytest

from paceline.bench import collective
from paceline.bench.collective import measure, parse_sizes
from paceline.errors import UsageError


def test_sizes():
    assert parse_sizes("100, 4K,1M,2G") == [100, 4096, 2**20, 2**31]
    for wrong in ("4Q", "", "1M,,2M", "0", "-1", "1.5M"):
        with pytest.raises(UsageError, match="is not a size"):
            parse_sizes(wrong)


def test_rows_have_a_median_a_spread_and_both_rates(monkeypatch):
    asked = {}

    def probe(subject, **wish):
        asked.update(wish, ranks=subject.world_size, backend=subject.config.parallel.backend)
        seconds = {"all_reduce": [0.4, 0.1, 0.2], "all_gather": [0.1]}
        rows = [{"op": op, "bytes": 10**9, "seconds": each, "refused": None} for op, each in seconds.items()]
        rows.append({"op": "reduce_scatter", "bytes": 10**9, "seconds": [], "refused": "unsupported device type"})
        return {"backend": "gloo", "reason": "", "world_size": 4, "torch": "2", "nccl": None, "collectives": rows}

    monkeypatch.setattr(collective, "probe", probe)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    reduced, gathered, scattered = measure(4, [10**9], None)["rows"]
    assert (reduced["us"], reduced["us_lowest"], reduced["us_highest"], reduced["repeats"]) == (2e5, 1e5, 4e5, 3)
    assert (reduced["gb_per_s"], reduced["bus_gb_per_s"]) == (5.0, 7.5)
    assert gathered["bus_gb_per_s"] == 7.5
    assert (scattered["repeats"], scattered["refused"]) == (0, "unsupported device type")
    assert (asked["ranks"], asked["backend"], asked["budget_s"]) == (4, "auto", 0.4)
    measure(1, [4], 7)
    assert (asked["ranks"], asked["backend"], asked["repeats"], asked["budget_s"]) == (1, "gloo", 7, None)
    measure(None, [4], None)
    assert asked["ranks"] == 2
