"""The script in a command line: the word that Python, a shell or torchrun will open as a file, where that can be known.

find_script(["torchrun", "--nproc-per-node", "2", "train.py", "--lr=0.1"])   -> "train.py"
find_script(["python", "-m", "pkg.train"]), find_script(["make", "train"])   -> None

A wrapper may create files, and a program may read any word as it likes: only a path that ends in .py or .sh, in the place of the script,
is called one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_TORCHRUN = "torchrun"
_ITS_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_TAKE_A_VALUE = {"python": ("-W", "-X", "--check-hash-based-pycs"), "shell": ("-o", "+o", "-O", "+O", "--rcfile")}
_NO_FILE = {
    "python": ("-m", "-c", "-"),
    "shell": ("-c", "-s"),
    _TORCHRUN: ("-m", "--module", "--no-python", "--no_python"),
}
"""after these the rest is a module, a text or another program"""
_ALONE = ("--standalone", "--run-path", "--run_path", "--virtual-local-rank", "--virtual_local_rank")
"""torchrun's options that take no value; all others take one"""


def find_script(argv: Sequence[str]) -> str | None:
    """The word that names the script; None where there is none, or nobody can tell."""
    program = PurePath(argv[0]).name
    kind = "python" if _PYTHON.fullmatch(program) else "shell" if program in _SHELLS else program
    if kind not in _NO_FILE:
        return None
    words = list(argv[1:])
    if kind == "python" and "-m" in words and words[words.index("-m") + 1 :][:1] in ([name] for name in _ITS_MODULES):
        kind, words = _TORCHRUN, words[words.index("-m") + 2 :]
    word = _first_that_is_no_option(words, kind)
    # A word with a blank in it is a text for a shell to read, whatever it ends in.
    is_path = word is not None and len(word.split()) == 1 and PurePath(word).suffix in (".py", ".sh")
    return word if is_path else None


def _first_that_is_no_option(words: Sequence[str], kind: str) -> str | None:
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif not word.startswith(("-", "+")):
            return word
        elif word in _NO_FILE[kind] or _is_cluster(word, kind):
            return None
        else:
            is_value = word not in _ALONE and "=" not in word if kind == _TORCHRUN else word in _TAKE_A_VALUE[kind]
    return None


def _is_cluster(word: str, kind: str) -> bool:
    """Short options in one word, one of which is followed by no file: bash -lc, python -um, python -mpkg."""
    letters = {"shell": "cs", "python": "mc"}.get(kind, "")
    return not word.startswith("--") and any(letter in word[1:] for letter in letters)
