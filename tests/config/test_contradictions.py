import pytest

from paceline.config.contradictions import Facts, check
from paceline.config.deepspeed import nest
from paceline.config.dump import dump_config
from paceline.config.loading import resolve
from paceline.config.sections import RunConfig
from paceline.config.source import Entry, Layer, read_layer
from paceline.errors import Problem

CPU = Facts(world_size=1, num_gpus=0)


def problems_of(*overrides: str, facts: Facts = CPU) -> list[Problem]:
    resolved = resolve(RunConfig, Layer({"recipe": Entry("x", "a.yaml:1")}), overrides)
    return check(resolved.config, resolved.origins, facts)


def test_defaults_do_not_contradict_themselves():
    assert problems_of() == []
    assert problems_of(facts=Facts(world_size=3, num_gpus=2, num_samples=7)) == []


def test_static_graph_with_accumulation_given():
    (problem,) = problems_of("parallel.static_graph=true", "train.accumulate=2")
    assert problem.what == (
        "parallel.static_graph=true cannot be combined with train.accumulate=2 (DDP loses gradient sync under no_sync)"
    )
    assert problem.where == "override 'parallel.static_graph=true' and override 'train.accumulate=2'"
    assert problem.do == "set parallel.static_graph=false, or train.accumulate=1"


def test_static_graph_with_what_is_compiled():
    (problem,) = problems_of("parallel.static_graph=true", "train.compile.enabled=true")
    assert "train.compile.enabled=true" in problem.what
    assert problem.do == "set parallel.static_graph=false"


def test_the_same_bits_with_kernels_that_are_chosen_by_timing():
    searching = ("train.compile.enabled=true", "train.compile.mode=max-autotune-no-cudagraphs")
    (problem,) = problems_of("run.deterministic=true", *searching)
    assert (
        "run.deterministic=true cannot be combined with train.compile.mode=max-autotune-no-cudagraphs" in problem.what
    )
    assert problem.where == f"override 'run.deterministic=true' and override '{searching[1]}'"
    assert problem.do == "set train.compile.mode=default, or run.deterministic=false"
    assert problems_of(*searching) == []
    assert problems_of("run.deterministic=true", searching[0]) == []
    assert problems_of("run.deterministic=true", searching[1]) == [], "nothing is compiled"


def test_powersgd_with_a_scale_that_changes():
    (problem,) = problems_of("parallel.compression=powersgd", "precision.mode=fp16", facts=Facts(1, 1))
    assert "precision.mode=fp16" in problem.what
    assert problem.where == "override 'parallel.compression=powersgd' and override 'precision.mode=fp16'"


def test_static_graph_with_accumulation_that_follows_from_the_world_size():
    overrides = ("parallel.static_graph=true", "train.global_batch=100", "train.micro_batch=34")
    (problem,) = problems_of(*overrides, facts=Facts(2, 0))
    assert "train.accumulate=2 = ceil(train.global_batch=100 / (2 ranks × train.micro_batch=34))" in problem.what
    assert "override 'train.micro_batch=34'" in problem.where
    assert "train.micro_batch=50" in problem.do
    assert problems_of(*overrides, facts=Facts(3, 0)) == []


def test_batches_must_multiply_when_all_are_given():
    overrides = ("train.global_batch=64", "train.micro_batch=8", "train.accumulate=2")
    (problem,) = problems_of(*overrides, facts=Facts(3, 0))
    assert "3 ranks × train.micro_batch=8 × train.accumulate=2 = 48" in problem.what
    assert "train.global_batch=64" in problem.what
    assert problem.where.count("override") == 3
    assert problems_of(*overrides, facts=Facts(4, 0)) == []
    assert problems_of("train.global_batch=100", "train.accumulate=3", facts=Facts(3, 0)) == []
    (problem,) = problems_of("train.micro_batch=8", "train.accumulate=2")
    assert "train.global_batch (default)" in problem.where


@pytest.mark.parametrize(
    ("overrides", "total"),
    [
        (("train.max_steps=10",), None),
        (("train.max_steps=10",), 10_000),
        ((), 1280),
        (("train.epochs=2", "train.max_steps_per_epoch=5"), 10_000),
        (("train.epochs=1",), 1153),
    ],
)
def test_warm_up_must_be_shorter_than_the_run(overrides, total):
    """Each of these runs has 10 steps of 128 samples."""
    facts = Facts(1, 0, total)
    (problem,) = problems_of("train.schedule.warmup_steps=10", *overrides, facts=facts)
    assert "10 steps" in problem.what
    assert "override 'train.schedule.warmup_steps=10'" in problem.where
    assert problems_of("train.schedule.warmup_steps=9", *overrides, facts=facts) == []


@pytest.mark.parametrize(
    ("facts", "overrides", "refused"),
    [
        (Facts(1, 0), ("parallel.backend=nccl",), "needs a GPU"),
        (Facts(3, 2), ("parallel.backend=nccl", "launch.nproc=3"), "3 ranks, 2 visible"),
        (Facts(2, 0), ("data.loader_timeout_s=600",), "data.loader_timeout_s=600.0 is not shorter"),
        (Facts(2, 0), ("data.loader_timeout_s=599",), None),
        (Facts(2, 0), ("data.loader_timeout_s=null",), None),
        (Facts(1, 0), ("data.loader_timeout_s=900",), None),
        (Facts(2, 0), ("parallel.timeout_s=20",), None),
        (Facts(2, 0), ("telemetry.profile.start_step=3", "telemetry.profile.ranks=[0,2]"), "names rank 2"),
        (Facts(2, 0), ("telemetry.profile.ranks=[0,2]",), None),
        (Facts(1, 0), ("telemetry.profile.start_step=9", "train.max_steps=8"), "lies behind the end"),
        (Facts(1, 0), ("telemetry.profile.start_step=8", "train.max_steps=8"), None),
        (Facts(2, 2), ("parallel.backend=nccl",), None),
        (Facts(3, 2), ("parallel.backend=gloo",), None),
        (Facts(3, 2), (), None),
        (Facts(1, 0), ("precision.mode=fp16",), "precision.mode=fp16 needs a GPU"),
        (Facts(1, 1), ("precision.mode=fp16",), None),
        (Facts(1, 0), ("precision.mode=bf16",), None),
    ],
)
def test_what_the_device_cannot_serve(facts, overrides, refused):
    problems = problems_of(*overrides, facts=facts)
    assert [refused in problem.what for problem in problems] == ([True] if refused else [])


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (
            ("parallel.static_graph=true", "parallel.find_unused=true"),
            ["parallel.static_graph", "parallel.find_unused"],
        ),
        (("train.lr_scaling.rule=linear",), ["train.lr_scaling.rule", "train.lr_scaling.base_batch"]),
        (("train.schedule.kind=step",), ["train.schedule.kind", "train.schedule.decay_every"]),
        (("stop.patience=3", "evaluate.every_epochs=null"), ["stop.patience=3", "none takes place"]),
        (
            ("attention.impl=flash", "attention.exclude=[math,flash]"),
            ["attention.impl=flash", "rules out", "take flash"],
        ),
        (
            ("attention.impl=sdpa", "attention.exclude=[flash,cudnn,efficient,math]"),
            ["attention.impl=sdpa", "no backend"],
        ),
        (("attention.exclude=[flash,cudnn,efficient,math,eager,flex]",), ["attention.impl (default)", "no attention"]),
    ],
)
def test_settings_that_contradict_each_other(overrides, keys):
    (problem,) = problems_of(*overrides)
    for key in keys:
        assert key in f"{problem.what} {problem.where} {problem.do}"
    assert "override" in problem.where
    assert problem.do


@pytest.mark.parametrize(
    "overrides",
    [
        ("train.optimizer.name=sgd", "train.optimizer.momentum=0.9"),
        ("train.optimizer.momentum=0.0",),
        ("train.schedule.kind=step", "train.schedule.decay_every=5", "train.schedule.decay_factor=0.5"),
        ("train.schedule.kind=cosine", "train.schedule.min_ratio=0.1"),
        ("train.lr_scaling.rule=sqrt", "train.lr_scaling.base_batch=64"),
        ("stop.patience=3", "evaluate.every_epochs=null", "evaluate.every_steps=5"),
        ("attention.impl=cudnn", "attention.exclude=[flash,efficient,math,eager,flex]"),
        ("attention.exclude=[flash,cudnn,efficient,eager,flex]",),
    ],
)
def test_what_fits_together_is_accepted(overrides):
    assert problems_of(*overrides) == []


@pytest.mark.parametrize(
    ("stages", "override", "says"),
    [
        ((1, 2, 3), "train.graph=true", "train.graph=auto, or parallel.zero_stage=0"),
        ((2, 3), "parallel.static_graph=true", "parallel.static_graph=false, or parallel.zero_stage=1"),
        ((2, 3), "parallel.find_unused=true", "parallel.find_unused=false, or parallel.zero_stage=1"),
        ((2, 3), "parallel.bucket_view=false", "parallel.bucket_view=true, or parallel.zero_stage=1"),
        ((2, 3), "parallel.compression=fp16", "parallel.compression=bf16, or none, or parallel.zero_stage=1"),
        ((), "parallel.compression=bf16", ""),
        ((), "parallel.bucket_view=true", ""),
    ],
)
def test_what_a_stage_of_sharding_cannot_do(stages, override, says):
    for stage in (0, 1, 2, 3):
        problems = problems_of(f"parallel.zero_stage={stage}", override, facts=Facts(2, 0))
        assert len(problems) == (1 if stage in stages else 0), (stage, problems)
        for problem in problems:
            assert f"parallel.zero_stage={stage} cannot be combined with {override} (" in problem.what
            assert problem.where == f"override 'parallel.zero_stage={stage}' and override '{override}'"
            assert problem.do == f"set {says}"
        assert problems_of(f"parallel.zero_stage={stage}", override) == [], "one rank shards nothing"


def test_several_contradictions_are_found_at_once():
    overrides = ("parallel.static_graph=true", "train.accumulate=2", "parallel.backend=nccl", "precision.mode=fp16")
    assert len(problems_of(*overrides)) == 3


def test_a_dumped_configuration_gives_every_key_and_contradicts_nothing(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(RunConfig(recipe="x")))
    resolved = resolve(RunConfig, read_layer(path))
    assert check(resolved.config, resolved.origins, CPU) == []


def test_more_micro_steps_than_samples():
    (problem,) = problems_of("train.global_batch=37", "train.accumulate=20", facts=Facts(2, 0))
    assert "a rank's 19 samples" in problem.what
    assert problem.do == "set train.accumulate=19 at most"
    assert problems_of("train.global_batch=37", "train.accumulate=19", facts=Facts(2, 0)) == []


DEEPSPEED = "parallel.engine=deepspeed"


@pytest.mark.parametrize(
    ("override", "because"),
    [
        ("parallel.compression=bf16", "in fp32"),
        ("parallel.compression=powersgd", "in fp32"),
        ("parallel.static_graph=true", "DDP"),
        ("parallel.find_unused=true", "DDP"),
        ("parallel.bucket_view=false", "DDP"),
        ("train.compile.enabled=true", "listens"),
        ("train.graph=true", "during backward"),
        ("train.optimizer.ema=0.9", "at stage 3"),
    ],
)
def test_what_deepspeed_cannot_do(override, because):
    (problem,) = problems_of(DEEPSPEED, "parallel.zero_stage=3", override, facts=Facts(2, 0))
    assert override in problem.what
    assert because in problem.what
    assert problem.where == f"override '{DEEPSPEED}' and override '{override}'"
    assert "parallel.engine=torch" in problem.do
    assert problems_of(DEEPSPEED, "parallel.zero_stage=3", override) == [], "one rank does without it"


def test_an_average_of_the_weights_where_every_rank_has_them():
    assert problems_of(DEEPSPEED, "parallel.zero_stage=2", "train.optimizer.ema=0.9", facts=Facts(2, 0)) == []


@pytest.mark.parametrize(
    ("name", "do"),
    [
        ("zero_optimization.stage", "parallel.zero_stage"),
        ("zero_optimization.offload_optimizer.device", "host's memory"),
        ("train_batch_size", "train.global_batch"),
        ("train_micro_batch_size_per_gpu", "train.micro_batch"),
        ("gradient_accumulation_steps", "train.accumulate"),
        ("gradient_clipping", "train.clip_norm"),
        ("bf16.enabled", "precision.mode"),
        ("fp16.enabled", "precision.mode"),
        ("optimizer.type", "train.optimizer.name"),
        ("zero_optimization.reduce_bucket_sise", "did you mean zero_optimization.reduce_bucket_size?"),
        ("nonsense", "leave it out"),
    ],
)
def test_what_is_not_passed_to_deepspeed(name, do):
    (problem,) = problems_of(DEEPSPEED, f"parallel.deepspeed.{name}=1", facts=Facts(2, 0))
    assert f"cannot set {name}: " in problem.what
    assert problem.where == f"override 'parallel.deepspeed.{name}=1'"
    assert do in problem.do


def test_what_is_passed_to_deepspeed():
    given = "parallel.deepspeed={zero_optimization: {overlap_comm: true, reduce_bucket_size: 1000}}"
    assert problems_of(DEEPSPEED, given, facts=Facts(2, 0)) == []
    assert nest({"zero_optimization.overlap_comm": True, "dump_state": False}) == {
        "zero_optimization": {"overlap_comm": True},
        "dump_state": False,
    }
