-- Purpose: the record of what was applied; safe to run any number of times.
-- Grain: schema_versions has one row for each applied file.

create schema if not exists shortlist;

create table if not exists shortlist.schema_versions (
    name text primary key,
    sha256 text not null,
    applied_at timestamptz not null default now()
);
