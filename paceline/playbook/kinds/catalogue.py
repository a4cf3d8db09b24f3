"""Every kind of phase, by the word that a playbook says."""

from __future__ import annotations

from paceline.playbook.kinds.accept import Accept
from paceline.playbook.kinds.audit import Audit
from paceline.playbook.kinds.check import Check
from paceline.playbook.kinds.compare import Compare
from paceline.playbook.kinds.endure import Endure
from paceline.playbook.kinds.export import Export
from paceline.playbook.kinds.isolate import Isolate
from paceline.playbook.kinds.loader import Loader
from paceline.playbook.kinds.parity import Parity
from paceline.playbook.kinds.pick import Pick
from paceline.playbook.kinds.preflight import Preflight
from paceline.playbook.kinds.ranges import Ranges
from paceline.playbook.kinds.serve import Serve
from paceline.playbook.kinds.sweep import Sweep
from paceline.playbook.kinds.train import Train
from paceline.playbook.phase import Phase

KINDS: dict[str, type[Phase]] = {
    "preflight": Preflight,
    "train": Train,
    "sweep": Sweep,
    "compare": Compare,
    "check": Check,
    "export": Export,
    "serve": Serve,
    "pick": Pick,
    "isolate": Isolate,
    "endure": Endure,
    "loader": Loader,
    "parity": Parity,
    "audit": Audit,
    "ranges": Ranges,
    "accept": Accept,
}
