from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.sections import Launch
from paceline.launch import environment
from paceline.launch.environment import WorkerEnvironment, check_env, worker_environment
from paceline.launch.variables import KNOWN, LEGACY


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cpu_count", lambda: 8)


def reasons(result: WorkerEnvironment, name: str) -> str:
    return "; ".join(note.reason for note in result.notes if note.name == name)


def test_threads_are_the_cores_divided_among_the_workers() -> None:
    result = worker_environment(Launch(), 3, 0, {})
    assert result.assigned["OMP_NUM_THREADS"] == "2"
    assert reasons(result, "OMP_NUM_THREADS") == "8 cores for 3 workers"
    assert worker_environment(Launch(), 100, 0, {}).assigned["OMP_NUM_THREADS"] == "1"


def test_inherited_threads_are_kept_unless_the_configuration_says_otherwise() -> None:
    inherited = {"OMP_NUM_THREADS": "5"}
    assert worker_environment(Launch(), 2, 0, inherited).apply(inherited)["OMP_NUM_THREADS"] == "5"
    assert worker_environment(Launch(omp_threads=3), 2, 0, inherited).apply(inherited)["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(("old", "new"), sorted(LEGACY.items()))
def test_old_names_become_todays_and_are_recorded(old: str, new: str) -> None:
    assert new in KNOWN
    configured = worker_environment(Launch(env={old: "7"}), 1, 1, {})
    inherited = worker_environment(Launch(), 1, 1, {old: "7"})
    for result, given in ((configured, {}), (inherited, {old: "7"})):
        applied = result.apply(given)
        assert applied[new] == "7"
        assert old not in applied
        assert any(note.is_renamed and note.name == new and old in note.reason for note in result.notes)


def test_launch_env_beats_the_shell_also_under_an_old_name() -> None:
    inherited = {"NCCL_DEBUG": "WARN", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"}
    launch = Launch(env={"NCCL_DEBUG": "INFO", "PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    applied = worker_environment(launch, 1, 1, inherited).apply(inherited)
    assert applied["NCCL_DEBUG"] == "INFO"
    assert applied["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in applied


def test_the_old_allocator_name_wins_where_torch_lets_it_win() -> None:
    inherited = {"PYTORCH_CUDA_ALLOC_CONF": "backend:native", "PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}
    assert worker_environment(Launch(), 1, 1, inherited).apply(inherited)["PYTORCH_ALLOC_CONF"] == "backend:native"


def test_fail_fast_defaults_where_there_are_gpus(tmp_path: Path) -> None:
    result = worker_environment(Launch(), 2, 2, {}, flight_recorder=tmp_path / "rank_")
    assert result.assigned["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert result.assigned["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert int(result.assigned["TORCH_FR_BUFFER_SIZE"]) > 0
    assert result.assigned["TORCH_FR_DUMP_TEMP_FILE"] == str(tmp_path / "rank_")
    on_cpu = worker_environment(Launch(), 2, 0, {}, flight_recorder=tmp_path / "rank_")
    assert not [name for name in on_cpu.assigned if "NCCL" in name]


def test_defaults_give_way_and_a_mode_that_defeats_the_dump_is_said() -> None:
    inherited = {"NCCL_ASYNC_ERROR_HANDLING": "1"}
    result = worker_environment(Launch(), 2, 2, inherited)
    assert result.apply(inherited)["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    warnings = [note for note in result.notes if note.is_warning]
    assert [note.name for note in warnings] == ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
    assert "Flight Recorder" in warnings[0].reason


def test_what_has_no_effect_is_said() -> None:
    result = worker_environment(Launch(env={"NCCL_DEBUG": "INFO"}), 2, 0, {"NCCL_SOKET_IFNAME": "eth0"})
    warnings = {note.name: note.reason for note in result.notes if note.is_warning}
    assert "no GPU" in warnings["NCCL_DEBUG"]
    assert "NCCL_SOCKET_IFNAME" in warnings["NCCL_SOKET_IFNAME"]


def test_gpus_are_selected_as_nvidia_smi_counts_them() -> None:
    result = worker_environment(Launch(gpus=[0, 4]), 2, 2, {}, visible=["0", "4"])
    assert result.assigned["CUDA_VISIBLE_DEVICES"] == "0,4"
    assert result.assigned["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    limited = {"CUDA_VISIBLE_DEVICES": "3,2"}
    result = worker_environment(Launch(gpus=[1]), 1, 1, limited, visible=["2"])
    assert result.assigned["CUDA_VISIBLE_DEVICES"] == "2"
    assert "CUDA_DEVICE_ORDER" not in result.assigned
    assert worker_environment(Launch(gpus=[]), 1, 0, {}, visible=[]).assigned["CUDA_VISIBLE_DEVICES"] == ""


def test_debug_and_launcher_options() -> None:
    result = worker_environment(Launch(debug=True, env={"NCCL_DEBUG": "TRACE"}), 2, 2, {"PET_NNODES": "3"})
    assert result.assigned["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
    assert result.assigned["NCCL_DEBUG"] == "TRACE"
    assert "PET_NNODES" not in result.apply({"PET_NNODES": "3"})


def test_unknown_names_are_refused_with_the_nearest() -> None:
    assert check_env({"NCCL_DEBUG": 1, "NCCL_BLOCKING_WAIT": 1}) == []
    problems = check_env({"NCCL_SOKET_IFNAME": "a", "HOME": "b", "nccl_debug": "c"}, "x.yaml:3")
    assert [p.where for p in problems] == ["x.yaml:3"] * 3
    assert "NCCL_SOCKET_IFNAME" in problems[0].do
    assert "NCCL_DEBUG" in problems[2].do
    both = check_env({"NCCL_BLOCKING_WAIT": 1, "TORCH_NCCL_BLOCKING_WAIT": 0})
    assert len(both) == 1
    assert "has both" in both[0].what
