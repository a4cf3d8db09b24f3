"""What the tests of several hosts share: a host's own words, and a leader and members in threads of one process."""

from __future__ import annotations

from typing import Any

from paceline.launch.hosts.message import Hello

FACTS = {"paceline": "0.1.0", "torch": "2.13.0"}


def hello(name: str, **fields: Any) -> Hello:
    given: dict[str, Any] = {
        "host": name,
        "address": f"10.9.0.{ord(name[-1]) - 96}",
        "interface": "eth0",
        "nproc": 1,
        "gpus": 0,
        "fingerprint": "9f2c",
        "identity": {"run.seed": 0},
        "facts": FACTS,
        "root": "/shared/run",
    }
    return Hello(**given | fields)
