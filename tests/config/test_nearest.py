from paceline.config.nearest import nearest, nearest_key

KEYS = ["run.seed", "train.epochs", "train.max_steps", "train.optimizer.lr", "train.schedule.warmup_steps"]


def test_the_nearest_name_whatever_its_case():
    assert nearest("trian", ["train", "stop"]) == "train"
    assert nearest("TRAIN", ["train", "stop"]) == "train"
    assert nearest("zzz", ["train", "stop"]) is None


def test_the_right_word_in_the_wrong_section_is_nearer_than_similar_letters():
    assert nearest_key("train.lr", KEYS) == "train.optimizer.lr"
    assert nearest_key("lr", KEYS) == "train.optimizer.lr"
    assert nearest_key("optimizer.lr", KEYS) == "train.optimizer.lr"
    assert nearest_key("warmup_step", KEYS) == "train.schedule.warmup_steps"
    assert nearest_key("train.max_step", KEYS) == "train.max_steps"
    assert nearest_key("zzz", KEYS) is None
