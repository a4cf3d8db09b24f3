"""Ranks that the kernel holds back for their CPU quota."""

from __future__ import annotations

from paceline.diagnose.finding import Finding
from paceline.diagnose.quota import QuotaWatch
from tests.diagnose.sights import Made


def watch(shares: dict[int, float], *, steps_per_look: int = 5, looks: int = 40, until: int = 1000) -> list[Finding]:
    """Three ranks; `shares` of the time that each is held back, as far as it has a quota, up to the look `until`."""
    run, quota = Made(3), QuotaWatch()
    held = dict.fromkeys(shares, 0.0)
    for look in range(1, looks + 1):
        run.everybody(look * steps_per_look, "forward")
        run.wait()
        for rank, share in shares.items():
            held[rank] += 0.25 * share if look <= until else 0.0
            run.become(rank, "running", group=f"/g{rank}", held_back_s=held[rank])
        found = quota.see(run.sight())
        if found:
            return found
    return []


def test_one_rank_that_is_held_back_is_named_within_fifty_steps() -> None:
    (found,) = watch({0: 0.0, 1: 0.07, 2: 0.01}, looks=10)
    assert (found.kind, found.rank, found.cause, found.severity) == ("throttled", 1, "quota", "warning")
    assert "/g1 was held back 7% of the time" in found.what
    (found,) = watch({2: 0.5}, looks=10)  # the others have no quota at all
    assert found.rank == 2


def test_all_ranks_of_a_container_are_a_note_about_the_host() -> None:
    (found,) = watch({0: 0.3, 1: 0.2, 2: 0.4})
    assert (found.rank, found.ranks, found.severity, found.host) == (None, (0, 1, 2), "note", "a")
    assert found.numbers["held_back"] > 0.19


def share_groups(groups: dict[int, str], looks: int = 20) -> list[Finding]:
    """Three ranks; those of `groups` are held back half of the time."""
    run, quota = Made(3), QuotaWatch()
    found: list[Finding] = []
    for look in range(1, looks + 1):
        run.everybody(look * 5, "forward")
        run.wait()
        for rank, group in groups.items():
            run.become(rank, "running", group=group, held_back_s=look / 8)
        found = quota.see(run.sight())
    return found


def test_ranks_of_one_group_are_one_finding_that_names_it() -> None:
    (found,) = share_groups({0: "/pod", 2: "/pod"})  # rank 1 has none
    assert (found.rank, found.ranks, found.severity) == (None, (0, 2), "warning")
    assert "their group /pod was held back 50% of the time" in found.what
    (found,) = share_groups({0: "/pod", 1: "/pod", 2: "/pod"})
    assert (found.ranks, found.severity) == ((0, 1, 2), "note")
    assert "their group /pod was" in found.what
    assert [each.rank for each in share_groups({0: "/a", 2: "/b"})] == [0, 2]


def test_it_holds_only_while_the_rank_makes_steps() -> None:
    run, quota = Made(2), QuotaWatch()
    for look in range(1, 60):
        is_stepping = look <= 20 or look > 40
        run.everybody(min(look, 20) * 5 + max(0, look - 40) * 5, "forward" if is_stepping else "evaluate")
        run.wait()
        run.become(1, "running", group="/g", held_back_s=look / 8)
        found = quota.see(run.sight())
        if look in (20, 59):
            assert [each.rank for each in found] == [1]
        if 30 <= look <= 40:
            assert found == []


def test_a_quota_that_is_seldom_used_up_is_nothing() -> None:
    assert watch({0: 0.0, 1: 0.03, 2: 0.0}) == []
    assert watch({1: 0.9}, until=2) == []  # once, while it alone was saving
    assert watch({1: 0.9}, steps_per_look=0) == []  # who makes no steps is not judged by this


def test_another_group_is_counted_from_its_own_beginning() -> None:
    run, quota = Made(2), QuotaWatch()
    for look in range(1, 30):
        run.everybody(look * 5, "forward")
        run.wait()
        group = "/old" if look < 15 else "/new"  # it was held back for an hour before this rank came into it
        run.become(1, "running", group=group, held_back_s=0.0 if group == "/old" else 3600.0)
        assert quota.see(run.sight()) == []


def test_several_groups_are_one_finding_and_all_their_ranks_are_in_it() -> None:
    run, quota = Made(6), QuotaWatch()
    found: list[Finding] = []
    for look in range(1, 21):
        # Rank 3 makes its first step late: it is held back as its sibling is.
        run.move(range(6) if look > 10 else (0, 1, 2, 4, 5), look * 5, "forward")
        run.wait()
        for rank, group in enumerate(("/a", "/a", "/b", "/b", "/c", "/d")):
            run.become(rank, "running", group=group, held_back_s=look / 8 if group in ("/a", "/b") else 0.0)
        found = quota.see(run.sight())
        assert all(each.rank is None for each in found), "a group's trouble is not one rank's"
    (told,) = found
    assert told.ranks == (0, 1, 2, 3)
    assert "their groups were held back 50% of the time" in told.what
