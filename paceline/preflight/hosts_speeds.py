"""What the links between hosts come to: a line per pair, and the pair or the host that is clearly slower than the others.

The rule: a direction is slow when it carries under half of what the fastest one does, measured twice; its time there and back is long when
it takes over four times the shortest one's and half a millisecond more. Where every link of one host is slow, it is that host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from paceline.preflight.check import Check, fail, ok, warn
from paceline.preflight.hosts_links import Speed

SLOW = 0.5
"""of the fastest direction"""
_LONG, _LONG_S = 4.0, 0.0005
_MOST_ROWS = 28
"""pairs of 8 hosts; of more, only those that stand out get a line"""


@dataclass(frozen=True)
class Link:
    """One direction between two hosts, by their places in the list; without a speed it could not be used, and why."""

    sender: int
    receiver: int
    speed: Speed | None
    reason: str = ""


def find_slow(links: Sequence[Link]) -> list[Link]:
    """The directions that carry clearly less than the fastest."""
    rates = {link: link.speed.bytes_per_s for link in links if link.speed is not None}
    return [link for link, rate in rates.items() if rate < SLOW * max(rates.values())]


def find_long(links: Sequence[Link]) -> list[Link]:
    """The directions whose time there and back is clearly longer than the shortest."""
    times = {link: link.speed.latency_s for link in links if link.speed is not None}
    shortest = min(times.values(), default=0.0)
    return [link for link, time_s in times.items() if time_s > max(_LONG * shortest, shortest + _LONG_S)]


def judge_links(links: Sequence[Link], labels: Sequence[str]) -> list[Check]:
    """A verdict on all of them, and a line for each pair."""
    measured = [link.speed for link in links if link.speed is not None]
    if not measured:
        return _rows(links, labels, [], [])
    slow, long = find_slow(links), find_long(links)
    rates = sorted(speed.bytes_per_s for speed in measured)
    values = {"links": [_record(link, labels) for link in links], "slow_under": SLOW}
    about = f"{describe_rate(rates[0])} to {describe_rate(rates[-1])}" if len(rates) > 1 else describe_rate(rates[0])
    about += f" one way between {len(labels)} hosts, {describe_time(min(each.latency_s for each in measured))} to "
    about += f"{describe_time(max(each.latency_s for each in measured))} there and back"
    if not slow and not long:
        return [ok("links", about, **values), *_rows(links, labels, slow, long)]
    said = [f"{_name(slow, labels)}: under half of the fastest"] if slow else []
    said += [f"{_name(long, labels)}: a long way there and back"] if long else []
    do = "look at its cable, switch port and interface (ethtool, ip -s link), or leave it out: every step waits for it"
    return [warn("links", f"{about}; {'; '.join(said)}", do, **values), *_rows(links, labels, slow, long)]


def _name(odd: Sequence[Link], labels: Sequence[str]) -> str:
    """The host that all of these have in common, where it is all of its links; else the pairs."""
    pairs = {frozenset((link.sender, link.receiver)) for link in odd}
    if len(labels) > 2:
        for index, label in enumerate(labels):
            if pairs == {frozenset((index, other)) for other in range(len(labels)) if other != index}:
                return f"every link of {label}"
    return ", ".join(" – ".join(labels[index] for index in sorted(pair)) for pair in sorted(pairs, key=sorted))


def _rows(links: Sequence[Link], labels: Sequence[str], slow: Sequence[Link], long: Sequence[Link]) -> list[Check]:
    by_pair = {(link.sender, link.receiver): link for link in links}
    rows = []
    is_short = len(labels) * (len(labels) - 1) // 2 <= _MOST_ROWS
    for first, second in combinations(range(len(labels)), 2):
        both = [link for key in ((first, second), (second, first)) if (link := by_pair.get(key)) is not None]
        name = f"{labels[first]} – {labels[second]}"
        broken = [link for link in both if link.speed is None]
        if broken:
            rows.append(_broken(name, broken, labels))
            continue
        speeds = [link.speed for link in both if link.speed is not None]
        is_odd = any(link in slow or link in long for link in both)
        if speeds and (is_short or is_odd):
            about = f"{' there, '.join(describe_rate(each.bytes_per_s) for each in speeds)} back; "
            about += describe_time(min(each.latency_s for each in speeds))
            rows.append(warn(name, about, "see links above") if is_odd else ok(name, about))
    return rows


def _broken(name: str, broken: Sequence[Link], labels: Sequence[str]) -> Check:
    said = [f"{labels[link.sender]} cannot reach {labels[link.receiver]}: {link.reason}" for link in broken]
    closed = " and ".join(dict.fromkeys(labels[link.receiver] for link in broken))
    do = f"open all TCP ports on {closed} to the other hosts: ranks listen at any free one (/proc/sys/net/ipv4/ip_local_port_range)"
    return fail(name, "; ".join(said), do)


def _record(link: Link, labels: Sequence[str]) -> dict[str, object]:
    speed = link.speed
    return {
        "from": labels[link.sender],
        "to": labels[link.receiver],
        "bytes_per_s": round(speed.bytes_per_s) if speed is not None else None,
        "latency_us": round(speed.latency_s * 1e6, 1) if speed is not None else None,
        "reason": link.reason,
    }


def describe_rate(bytes_per_s: float) -> str:
    if bytes_per_s >= 1e8:
        return f"{bytes_per_s / 1e9:.2f} GB/s"
    return f"{bytes_per_s / 1e6:.1f} MB/s" if bytes_per_s >= 1e5 else f"{bytes_per_s / 1e3:.1f} kB/s"


def describe_time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"
