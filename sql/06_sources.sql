-- Purpose: tables of the user that events are read from again and again.
-- Grain: sources has one row for each such table; the view view_name has the table's rows with
-- the names and types of events. features/ingest/sources.py makes both.

-- increasing: a column that only ever grows. The next pass reads the rows from read_from on (all,
-- if null): whatever lies below was there and stored. pending_from takes its place once the
-- transactions in pending_transactions, which may still add rows below it, have ended.
create table sources (
    source_id integer generated always as identity primary key,
    events_table text not null unique,
    view_name text not null unique,
    items_table text,
    mapping jsonb not null,
    increasing text,
    read_from text,
    pending_from text,
    pending_transactions text[] not null default '{}',
    loaded_at timestamptz
);
