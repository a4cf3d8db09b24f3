"""What the tests of several hosts share: a host's own words, and a leader and members in threads of one process."""

from __future__ import annotations

import json
from typing import Any

from paceline.launch.hosts.facts import HostFacts
from paceline.launch.hosts.message import Hello

_HOST = HostFacts("a", "10.9.0.1", "eth0", 1, (), "3.12.1", "2.13.0", "none", "none", "0.1.0", "d1", "Linux")
FACTS = json.loads(json.dumps(_HOST.to_record()))


def hello(name: str, **fields: Any) -> Hello:
    given: dict[str, Any] = {
        "host": name,
        "address": f"10.9.0.{ord(name[-1]) - 96}",
        "interface": "eth0",
        "nproc": 1,
        "gpus": 0,
        "fingerprint": "9f2c",
        "identity": {"run.seed": 0},
        "facts": FACTS | {"host": name},
        "collectives": "gloo",
        "root": "/shared/run",
    }
    return Hello(**given | fields)
