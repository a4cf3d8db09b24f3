"""The columns of a file in the Tenrec schema, by name. No torch, no numpy.

user_id,item_id,click,follow,like,share,video_category,watching_times,gender,age,hist_1,…,hist_10
"""

from __future__ import annotations

ACTIONS = ("click", "follow", "like", "share")
"""bit 0 … 3 of `Table.actions`"""
HISTORY = 10
HISTORY_COLUMNS = tuple(f"hist_{number}" for number in range(1, HISTORY + 1))
COLUMNS = ("user_id", "item_id", *ACTIONS, "video_category", "watching_times", "gender", "age", *HISTORY_COLUMNS)
MISSING = "\\N"
"""how the source writes that it knows nothing"""
