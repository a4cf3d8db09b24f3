"""Where a run has several hosts, a rank is named with its host: its number alone tells nobody at which machine to look.

name_host(Finding("straggler", "rank 3 makes every step 20 % longer: …", rank=3, host="b", …))    -> "rank 3 on b makes every step …"
"""

from __future__ import annotations

import re
from dataclasses import replace

from paceline.diagnose.finding import Finding
from paceline.diagnose.standing import name_ranks


def name_host(finding: Finding) -> Finding:
    """Behind the first mention of the ranks that it is about, unless the host is named already."""
    ranks = finding.ranks or ((finding.rank,) if finding.rank is not None else ())
    if not ranks or not finding.host or re.search(rf"\b{re.escape(finding.host)}\b", finding.what):
        return finding
    named = rf"\b{re.escape(name_ranks(ranks))}\b(?! (?:to|and) \d)"
    return replace(finding, what=re.sub(named, lambda found: f"{found[0]} on {finding.host}", finding.what, count=1))
