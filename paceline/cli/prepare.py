"""`paceline prepare`: offline data preparation, one command per family of data sets."""

from __future__ import annotations

from paceline.cli.arguments import Debug

COMMANDS = {
    "movielens": ("paceline.cli.prepare_movielens", "MovieLens 1M or 100K: ratings with times, and titles."),
    "fineweb": ("paceline.cli.prepare_fineweb", "Text files, or FineWeb-Edu: token shards for a language model."),
    "librispeech": (
        "paceline.cli.prepare_librispeech",
        "LibriSpeech, or speech laid out like it: mono FLAC with a manifest.",
    ),
    "tenrec": ("paceline.cli.prepare_tenrec", "Impressions in the Tenrec schema: columns that all ranks share."),
}
"""as the table in app.py"""


def group(debug: Debug = False) -> None:
    """Fetch a data set and bring it into the form that recipes read. Once it is there, the same command has nothing to do.

    Example: paceline prepare movielens ml-1m
    """
