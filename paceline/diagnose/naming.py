"""Where a run has several hosts, a rank is named with its host: its number alone tells nobody at which machine to look.

name_host(Finding("straggler", "rank 3 makes every step 20 % longer: …", rank=3, …), attempt).what    -> "rank 3 on b makes every step …"
"""

from __future__ import annotations

import re
from dataclasses import replace

from paceline.diagnose.finding import Finding
from paceline.diagnose.standing import name_ranks
from paceline.telemetry.run_file import Attempt


def name_host(finding: Finding, attempt: Attempt) -> Finding:
    """Behind the first mention of the ranks that it is about, unless that is done already, or there is one host."""
    ranks = finding.ranks or ((finding.rank,) if finding.rank is not None else ())
    hosts = {attempt.host_of(rank) for rank in ranks}
    host = finding.host or (hosts.pop() if len(hosts) == 1 else None)
    if host is None or not ranks or not attempt.has_several_hosts:
        return finding
    named = rf"\b{re.escape(name_ranks(ranks))}\b(?! (?:to|and|on|of host) )"
    what = re.sub(named, lambda found: f"{found[0]} on {host}", finding.what, count=1)
    return replace(finding, host=host, what=finding.what if f" on {host}" in finding.what else what)
