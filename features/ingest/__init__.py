"""Files of events and items into PostgreSQL: any usual format, fast, exact, resumable."""
