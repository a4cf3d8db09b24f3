"""What is made of measurements of ranks; the ranks themselves are in tests/integration/test_probe.py."""

from __future__ import annotations

from typing import Any

from paceline.preflight.ranks import judge_collectives, judge_products


def product(rank: int, flops: float, name: str = "NVIDIA H200", peak: float | None = 989e12) -> dict[str, Any]:
    record = {"rank": rank, "device": f"cuda:{rank}", "name": name, "size": 8192, "type": "bfloat16"}
    return record | {"flops": flops, "peak_flops": peak}


def test_a_slow_gpu_stands_out() -> None:
    even = [product(rank, 650e12 + rank) for rank in range(4)]
    (found,) = judge_products(even)
    assert found.status == "ok"
    assert "650 TFLOP/s" in found.found
    assert "66% of the peak" in found.found
    (found,) = judge_products([*even, product(4, 500e12)])
    assert found.status == "warn"
    assert found.found.startswith("rank 4 (cuda:4, NVIDIA H200) reaches 77% of the fastest")
    assert found.values["slow"] == [4]
    assert "--gpus" in found.remedy


def test_gpus_of_two_kinds_are_compared_with_their_own() -> None:
    (found,) = judge_products([product(0, 600e12), product(1, 40e12, "Tesla T4", 65e12)])
    assert found.status == "ok"


def test_a_single_one_is_compared_with_its_data_sheet() -> None:
    (found,) = judge_products([product(0, 200e12)])
    assert (found.status, "20% of its peak" in found.found) == ("warn", True)
    (found,) = judge_products([product(0, 200e12, "Unknown", None)])
    assert found.status == "ok"


def test_a_cpu_is_given_more_room() -> None:
    def cpu(rank: int, flops: float) -> dict[str, Any]:
        return product(rank, flops, "CPU", None) | {"device": "cpu", "type": "float32"}

    assert judge_products([cpu(0, 50e9), cpu(1, 30e9)])[0].status == "ok"
    (found,) = judge_products([cpu(0, 50e9), cpu(1, 20e9)])
    assert (found.status, found.remedy) == ("warn", "see what else runs (top)")


def test_the_bandwidth_of_an_all_reduce() -> None:
    reduced = [
        {"op": "all_reduce", "bytes": size, "seconds": [s, s, 9.0]} for size, s in ((4096, 5e-4), (1 << 24, 0.01))
    ]
    found = {"backend": "gloo", "reason": "no GPU", "world_size": 4, "nccl": None}
    check = judge_collectives(found | {"collectives": reduced})
    assert "500 µs for 4 KiB, 10.0 ms for 16 MiB (2.52 GB/s per link)" in check.found
    assert check.values["bus_bytes_per_s"] == round(1.5 * (1 << 24) / 0.01)
    assert "no GPU" in judge_collectives(found | {"collectives": []}).found
