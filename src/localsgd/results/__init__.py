"""The results of runs, for tables, pictures and programs of one's own.

`rows` and `frame` give runs in long form, a row for each run and evaluation; `localsgd export`
writes them to files.
"""

from localsgd.results.frames import frame
from localsgd.results.rows import rows

__all__ = ["frame", "rows"]
