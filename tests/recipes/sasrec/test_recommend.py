import pytest
import torch

from paceline.errors import UsageError
from paceline.recipes.sasrec.config import SasrecConfig
from paceline.recipes.sasrec.workload import SasrecWorkload
from paceline.workload import Setting

EVENTS = {"ann": "tea milk tea bread", "bob": "milk bread jam tea salt", "cid": "jam salt"}


@pytest.fixture
def build(tmp_path):
    path = tmp_path / "shop.inter"
    rows = (f"{user}\t{item}\t{n}\n" for user, items in EVENTS.items() for n, item in enumerate(items.split()))
    path.write_text("user_id:token\titem_id:token\ttimestamp:float\n" + "".join(rows))
    (tmp_path / "shop.item").write_text("item_id:token\ttitle:token_seq\ntea\tDarjeeling\njam\tPlum jam\n")

    def make(**model):
        config = {"recipe": "sasrec", "data": {"path": str(path), "max_length": 3}, "model": model}
        workload = SasrecWorkload(SasrecConfig.model_validate(config))
        torch.manual_seed(0)
        return workload, workload.build_model(Setting(torch.device("cpu"), "sdpa")).eval()

    return make


def ask(built, *, user=None, history=None, top=3, keep_seen=False):
    workload, model = built
    return workload.recommend(model, user=user, history=history, top=top, keep_seen=keep_seen)


@pytest.mark.parametrize("time", [False, True])
def test_a_user_of_the_data(build, time):
    built = build(time=time)
    found = ask(built, user="ann")
    assert found.user == "ann"
    assert [each.item for each in found.history] == ["tea", "milk", "tea", "bread"]
    assert [each.title for each in found.history] == ["Darjeeling", None, "Darjeeling", None]
    assert {each.item for each in found.items} == {"jam", "salt"}, "three were asked for, two are left"
    scores = [each.score for each in found.items]
    assert scores == sorted(scores, reverse=True)
    assert {each.item for each in ask(built, user="ann", top=9, keep_seen=True).items} == {
        "tea",
        "milk",
        "bread",
        "jam",
        "salt",
    }


def test_a_typed_history_is_as_good_as_a_user_with_it(build):
    built = build()
    assert ask(built, history=["tea", "milk", "tea", "bread"]).items == ask(built, user="ann").items
    one = ask(built, history=["jam"], top=1)
    assert (one.user, len(one.items)) == (None, 1)


@pytest.mark.parametrize(
    ("asked", "match", "do"),
    [
        ({"user": "anne"}, "no user 'anne' among the 3", "use ann"),
        ({"user": "9999"}, "no user '9999'", "such as ann, bob, cid"),
        ({"history": ["tea", "mlik"]}, "no item 'mlik' among the 5", "use milk"),
        ({"history": []}, "history is empty", "--history 1,2,3"),
    ],
)
def test_names_that_the_data_does_not_have(build, asked, match, do):
    with pytest.raises(UsageError, match=match) as error:
        ask(build(), **asked)
    assert do in error.value.problems[0].do


def test_a_typed_history_has_no_time(build):
    with pytest.raises(UsageError, match="a typed history has none"):
        ask(build(time=True), history=["tea"])
