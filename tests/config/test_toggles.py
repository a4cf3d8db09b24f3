import pytest

from paceline.config.describe import describe
from paceline.config.sections import RunConfig
from paceline.config.toggles import check_toggles


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("PACELINE_TRAIN_MAX_STEPS", "train.max_steps=5"),
        ("PACELINE_MAX_STEP", "train.max_steps=5"),
        ("PACELINE_LR", "train.optimizer.lr=5"),
        ("PACELINE_SEED", "run.seed=5"),
    ],
)
def test_a_toggle_names_the_key_to_use_instead(name, key):
    (problem,) = check_toggles({name: "5", "PATH": "/bin"}, describe(RunConfig))
    assert name in problem.what
    assert f"give {key} as an argument" in problem.do


def test_what_is_like_no_key_is_an_error_all_the_same():
    (problem,) = check_toggles({"PACELINE_QQQQQQ": "1"}, describe(RunConfig))
    assert problem.do == "unset PACELINE_QQQQQQ"


def test_other_variables_and_the_tests_own_are_left_alone():
    assert check_toggles({"PACELINE_TEST_DATA": "/data", "NCCL_DEBUG": "INFO", "HOME": "/"}, describe(RunConfig)) == []
