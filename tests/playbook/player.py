"""Plays a playbook with the stand-in, in a process of its own: python player.py BOOK OUT [PHASES]"""

from __future__ import annotations

import sys
from pathlib import Path

from paceline.errors import PacelineError
from paceline.playbook.playbook import load_playbook
from paceline.playbook.preview import check_play
from paceline.playbook.runner import Play
from paceline.playbook.selection import select
from paceline.playbook.stage import Stage

book = load_playbook(sys.argv[1])
stage = Stage(book, select(book), Path(sys.argv[2]))
check_play(stage)
try:
    Play(stage, [sys.executable, str(Path(__file__).parent / "standin.py")]).run()
except PacelineError as error:
    print(error.render(), file=sys.stderr)
    sys.exit(error.exit_code)
