from paceline.config.consequences import plan_consequences
from paceline.config.sections import RunConfig


def texts(world_size: int, num_samples: int | None = None, **train) -> dict[str, str]:
    config = RunConfig(recipe="x", train=train)
    return {item.name: item.text for item in plan_consequences(config, world_size, num_samples)}


def test_the_slices_of_a_batch_add_up():
    assert texts(3, global_batch=100)["global batch"] == "100 = 33 + 33 + 34 samples on 3 ranks"
    assert texts(1, global_batch=100)["global batch"] == "100 samples on 1 rank"
    assert texts(16, global_batch=100)["global batch"] == "100 = 4 × 7 + 12 × 6 samples on 16 ranks"
    assert "1 rank without a sample" in texts(4, global_batch=3)["global batch"]


def test_accumulation_shows_its_arithmetic():
    text = texts(3, global_batch=100, micro_batch=16)["accumulate"]
    assert text == "3 micro-steps of at most 12 samples per rank: ceil(100 / (3 × 16)) = 3"
    assert "as given" in texts(3, accumulate=2)["accumulate"]
    assert texts(2, global_batch=8)["accumulate"].startswith("1 micro-step of at most 4 samples")


def test_lengths():
    text = texts(2, 1003, global_batch=100, epochs=3)
    assert text["steps per epoch"] == "ceil(1003 / 100) = 11; the last one has 3 samples"
    assert text["total steps"] == "3 × 11 = 33"
    assert text["total samples"] == "3009"
    assert "one epoch" in texts(2, 1003)["total steps"]
    assert (
        texts(1, 1000, global_batch=100, epochs=3, max_steps=20)["total steps"] == "min(3 × 10 = 30, max_steps 20) = 20"
    )
    assert texts(1, 1000, global_batch=100, max_steps=25)["total steps"] == "25 = max_steps, 2.5 epochs"
    assert (
        texts(1, 1000, global_batch=100, max_steps_per_epoch=4)["steps per epoch"]
        == "ceil(1000 / 100) = 10, at most 4: 4"
    )
    assert texts(1)["total steps"] == "known when the size of the data is"
    assert texts(1, max_steps=5)["total steps"] == "at most 5"


def test_warm_up_and_peak():
    text = texts(1, max_steps=1000, schedule={"warmup_steps": 100})
    assert text["warm-up"] == "100 of 1000 steps (10 %)"
    assert texts(1)["warm-up"] == "none"
    assert texts(1)["peak lr"] == "0.001"
    scaled = texts(1, global_batch=256, lr_scaling={"rule": "linear", "base_batch": 64})
    assert scaled["peak lr"] == "0.001 × 256 / 64 = 0.004"
    scaled = texts(1, global_batch=256, lr_scaling={"rule": "sqrt", "base_batch": 64})
    assert scaled["peak lr"] == "0.001 × sqrt(256 / 64) = 0.002"
