"""A plan and its matrix: what is compared, and everything that is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.arithmetic import plan_batches
from paceline.errors import ConfigError, PacelineError
from paceline.sweep.matrix import Matrix, build_matrix
from paceline.sweep.plan import load_plan, shipped_plans


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


def matrix(tmp_path: Path, text: str, *overrides: str) -> Matrix:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    return build_matrix(load_plan(path, overrides))


GOOD = """
recipe: sasrec
set: {train.global_batch: 64, launch.gpus: []}
axes: {parallel.bucket_mb: [25, 50], data.num_workers: [0, 2]}
"""


def test_the_cases_are_all_combinations_with_complete_configurations(tmp_path: Path) -> None:
    found = matrix(tmp_path, GOOD, "train.clip_norm=2.0")
    names = [case.name for case in found.cases]
    assert names == [f"bucket_mb={a} num_workers={b}" for a in (25, 50) for b in (0, 2)]
    assert found.baseline == names[0]
    last = found.cases[-1].job.config
    assert (last.parallel.bucket_mb, last.data.num_workers) == (50, 2)
    assert (last.train.global_batch, last.train.clip_norm, last.train.epochs) == (64, 2.0, 8)


def test_an_override_replaces_an_axis_or_a_setting(tmp_path: Path) -> None:
    found = matrix(
        tmp_path, GOOD, "axes.data.num_workers=[1]", "train.global_batch=32", "baseline={parallel.bucket_mb: 50}"
    )
    assert [case.name for case in found.cases] == ["bucket_mb=25 num_workers=1", "bucket_mb=50 num_workers=1"]
    assert found.cases[0].job.config.train.global_batch == 32
    assert found.baseline == "bucket_mb=50 num_workers=1"


def test_conditions_leave_cases_out_by_any_key(tmp_path: Path) -> None:
    text = GOOD + 'exclude: ["data.num_workers == 2 and parallel.bucket_mb > 25 and train.global_batch == 64"]\n'
    found = matrix(tmp_path, text)
    assert (len(found.cases), found.num_excluded) == (3, 1)


def test_cases_may_be_given_one_by_one_and_ranks_may_differ(tmp_path: Path) -> None:
    text = "recipe: sasrec\nset: {launch.gpus: []}\ncases: [{train.micro_batch: 8}, {train: {micro_batch: 16}}]\naxes: {launch.nproc: [1, 2]}\n"
    found = matrix(tmp_path, text)
    assert [case.name for case in found.cases][:2] == ["micro_batch=8 nproc=1", "micro_batch=8 nproc=2"]
    assert [case.placement.world_size for case in found.cases] == [1, 2, 1, 2]
    assert found.axes == {"train.micro_batch": [8, 16], "launch.nproc": [1, 2]}


def test_equal_last_words_keep_their_sections(tmp_path: Path) -> None:
    found = matrix(tmp_path, "recipe: sasrec\naxes: {data.seed: [0, 1], run.seed: [0]}\n")
    assert found.cases[1].name == "data.seed=1 run.seed=0"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("axis: {run.seed: [1]}", "there is no key axis in a plan; did you mean axes?"),
        ("axes: {parallel.bucket_mbs: [1]}", "there is no key parallel.bucket_mbs; did you mean parallel.bucket_mb?"),
        ("axes: {parallel.bucket_mb: []}", "the axis parallel.bucket_mb has no values"),
        ("axes: {parallel.bucket_mb: 25}", "write parallel.bucket_mb: [25]"),
        ("axes: {parallel.bucket_mb: [25, fast]}", "parallel.bucket_mb=fast must be a number > 0"),
        ("axes: {parallel.bucket_mb: [25, 25]}", "has the value 25 twice"),
        ("axes: {train.global_batch: [32]}\nset: {train.global_batch: 64}", "train.global_batch is an axis, and set"),
        ("axes: {train.max_steps: [10]}", "`steps` says how long a trial is"),
        ("set: {run.out: here}", "every trial has a directory of its own"),
        ("baseline: {parallel.bucket_mb: 99}\naxes: {parallel.bucket_mb: [1]}", "is not in the matrix"),
        ("baseline: {parallel.bucket: 1}\naxes: {parallel.bucket_mb: [1]}", "which is no axis"),
        (
            "baseline: {parallel.bucket_mb: 1}\naxes: {parallel.bucket_mb: [1], run.seed: [1, 2]}",
            "does not say which of 2 cases",
        ),
        ("steps: 20\nwarmup_steps: 20", "leaves nothing of steps=20"),
        ("repeats: none", "repeats=none must be auto or an integer >= 1"),
        ("exclude: ['run.seed = 1']", "column 10"),
        ("axes: {run.seed: [1]}\nexclude: ['run.sed == 1']", "there is no run.sed here"),
        ("axes: {run.seed: [1]}\nexclude: ['run.seed == 1']", "the plan has no case"),
        ("axes: {run.seed: [1]}\nexclude: ['run.seed']", "neither true nor false"),
        ("cases: [{run.seed: 1}, {run.seed: 1}]", "two cases are the same"),
        ("axes: {parallel.bucket_mb: [25, 25.0]}", "bucket_mb=25 and bucket_mb=25.0 are the same configuration"),
        ("cases: [{run.seed: 1}]\naxes: {run.seed: [1]}", "is an axis, and a case sets it"),
        ("objective: step_ms_p50\naxes: {train.global_batch: [32, 64]}", "the smallest would win"),
        ("command: {argv: [x]}", "the section command has no meaning for recipe=sasrec"),
        ("direction: min", "has no meaning for objective=throughput"),
        ("axes: {params.batch: [1]}", "there is no key command.params.batch"),
        ("set: {launch.env: {NCCL_BOGUS: 1}}", "launch.env knows no variable NCCL_BOGUS"),
        ("slots: 0", "slots=0 must be"),
        ("search: bayes", "search=bayes must be random or tpe or null"),
        ("finalists: 2", "finalists has no meaning without a search"),
        ("recipe: sasrek", "use sasrec"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_starts(tmp_path: Path, change: str, says: str) -> None:
    text = change if change.startswith("recipe") else f"recipe: sasrec\n{change}\n"
    with pytest.raises(PacelineError) as caught:
        matrix(tmp_path, text)
    assert says in caught.value.render()
    assert caught.value.exit_code == 2


def test_everything_wrong_is_said_at_once_and_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        matrix(
            tmp_path, "recipe: sasrec\naxes: {run.seed: [-1, 0], train.clip_norm: [1, -2], parallel.bucked_mb: [1]}\n"
        )
    assert sorted(problem.what.split()[0] for problem in caught.value.problems) == [
        "run.seed=-1",
        "there",
        "train.clip_norm=-2",
    ]
    assert "plan.yaml:2" in caught.value.problems[0].where


SCRIPT = r"""
recipe: command
command:
  argv: [python, train.py, "--batch={params.batch}"]
  samples_per_step: "{params.batch}"
  metrics: {step: 'iter (\d+)'}
axes: {params.batch: [16, 32]}
"""


def test_a_script_is_swept_by_its_parameters(tmp_path: Path) -> None:
    found = matrix(tmp_path, SCRIPT)
    assert [case.name for case in found.cases] == ["batch=16", "batch=32"]
    assert found.cases[1].job.config.model_dump()["command"]["params"] == {"batch": 32}


def params(found: Matrix) -> list[dict[str, object]]:
    return [case.job.config.model_dump()["command"]["params"] for case in found.cases]


def test_a_parameter_is_fixed_for_all_cases_by_the_name_that_axes_use(tmp_path: Path) -> None:
    text = SCRIPT.replace('"--batch', '"--lr={params.lr}", "--batch')
    assert [case["lr"] for case in params(matrix(tmp_path, text, "params.lr=0.1"))] == [0.1, 0.1]
    in_set = text + "set: {params.lr: 0.2}\n"
    assert [case["lr"] for case in params(matrix(tmp_path, in_set))] == [0.2, 0.2]
    with_usual = in_set.replace("  metrics:", "  params: {lr: 0.3}\n  metrics:")
    assert params(matrix(tmp_path, with_usual))[0]["lr"] == 0.2
    # What is typed comes before the file, whichever of the two names each has.
    for word in ("params.lr=0.4", "command.params.lr=0.4"):
        assert params(matrix(tmp_path, with_usual, word))[0]["lr"] == 0.4


@pytest.mark.parametrize("word", ["params.batch=8", "set.command.params.batch=8"])
def test_a_parameter_cannot_be_an_axis_and_fixed(tmp_path: Path, word: str) -> None:
    with pytest.raises(ConfigError, match=r"params\.batch is an axis, and set besides"):
        matrix(tmp_path, SCRIPT, word)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('{params.batch}"]', '{params.bach}"]', "nothing is called {params.bach}"),
        ("[python", "[no-such-program", "there is no program 'no-such-program'"),
        ("train.py", "trains.py", "there is no script trains.py"),
        (r"iter (\d+)", r"iter (\d+", "is not valid"),
        (r"iter (\d+)", r"iter \d+", "has 0 groups"),
        ("{step:", "{time:", "time is not a name for a metric"),
        ("{step:", "{loss:", "no expression tells the step"),
        ('samples_per_step: "{params.batch}"', "samples_per_step: many", "is no number of samples"),
        (
            "axes: {params.batch",
            "axes: {params.width: [1], params.batch",
            "no word of the script uses the parameter width",
        ),
        ("argv: [", "argvs: [", "there is no key command.argvs"),
        ("axes:", "objective: step_ms_p50\naxes:", "the smallest would win"),
    ],
)
def test_a_script_that_cannot_run_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in SCRIPT
    with pytest.raises(PacelineError) as caught:
        matrix(tmp_path, SCRIPT.replace(old, new))
    assert says in caught.value.render()


def test_the_plans_that_ship_are_found_by_name_and_changed_by_what_is_typed() -> None:
    assert shipped_plans() == ["csa-rank-diagnosis", "csa-sweep"]
    plan = load_plan("csa-sweep", ["repeats=1", "launch.gpus=[]", "launch.nproc=2"])
    axes = {name.rpartition(".")[2]: values for name, values in plan.config.axes.items()}
    assert axes == {
        "zero_stage": [0, 1],
        "micro_batch": [128, 160, 192],
        "num_workers": [4, 6, 8],
        "prefetch": [2, 4],
    }
    assert (plan.config.repeats, plan.config.steps, plan.config.trial_timeout_s) == (1, 1000, 2400)
    assert (plan.config.progress_s, plan.config.tail_lines) == (30, 80)
    assert plan.origins["steps"].startswith("configs/plans/csa-sweep.yaml:")
    assert len(build_matrix(plan).cases) == 36


@pytest.mark.parametrize("world_size", [1, 2])
def test_its_micro_batches_are_three_different_ones(world_size: int) -> None:
    cases = build_matrix(load_plan("csa-sweep", ["launch.gpus=[]", f"launch.nproc={world_size}"])).cases
    found = {}
    for case in cases:
        train = case.job.config.train
        plan = plan_batches(train.global_batch, train.micro_batch, train.accumulate, world_size)
        found[train.micro_batch] = plan.largest_micro_batch
    assert found == ({128: 128, 160: 144, 192: 192} if world_size == 1 else {128: 116, 160: 144, 192: 192})
    stages = {case.job.config.parallel.zero_stage for case in cases}
    assert stages == ({0} if world_size == 1 else {0, 1}), "there is nothing to shard on one rank"


def test_the_ranks_of_a_diagnosis_have_what_was_asked_for() -> None:
    for world_size in (1, 2, 4):
        plan = load_plan("csa-rank-diagnosis", ["launch.gpus=[]", f"launch.nproc={world_size}"])
        config = build_matrix(plan).cases[-1].job.config
        batches = plan_batches(config.train.global_batch, config.train.micro_batch, None, world_size)
        assert batches.largest_micro_batch == 160
        assert (config.data.num_workers, config.data.prefetch) == (6, 4)
        assert (config.telemetry.sync_timing, config.telemetry.timing_ranks) == (True, "all")
        assert (plan.config.rank_table, plan.config.repeats, plan.config.steps) == (True, 1, 1000)
