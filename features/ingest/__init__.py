"""Files of events and items into PostgreSQL: any usual format, fast, exact, resumable."""

from features.ingest.load import LoadReport, load
from features.ingest.mapping import Wish, read_wish
from features.ingest.presets import Format, Preset
from features.ingest.rows import RejectedRow

__all__ = ["Format", "LoadReport", "Preset", "RejectedRow", "Wish", "load", "read_wish"]
