-- Purpose: what the service knows (users, items, interactions) and what it showed (impressions).
-- Grain: stated above each table. Integer keys never leave the database and a release;
-- the world outside uses the text ids.

-- One row for each user that has an event.
create table users (
    user_key bigint generated always as identity primary key,
    user_id text not null unique check (char_length(user_id) between 1 and 256),
    created_at timestamptz not null default now()
);

-- One row for each item ever known; a retired item stays, with available = false.
-- change_id grows with every change, in the order in which the changes become visible.
create table items (
    item_key integer generated always as identity primary key,
    item_id text not null unique check (char_length(item_id) between 1 and 256),
    title text,
    categories text[] not null default '{}',
    attributes jsonb not null default '{}',
    available boolean not null default true,
    created_at timestamptz,
    updated_at timestamptz not null default now(),
    change_id bigint not null default 0
);

-- One row for each thing that a user did with an item.
-- The order of a user's events is always (occurred_at, interaction_id).
create table interactions (
    interaction_id bigint generated always as identity primary key,
    user_key bigint not null references users (user_key),
    occurred_at timestamptz not null check (isfinite(occurred_at)),
    received_at timestamptz not null default now(),
    item_key integer not null references items (item_key),
    value real check (value > '-infinity' and value < 'infinity'),
    event_type text not null check (char_length(event_type) between 1 and 64),
    event_id text unique check (char_length(event_id) between 1 and 256)
);

-- One row for each item shown in one answer.
create table impressions (
    rec_id uuid not null,
    position smallint not null check (position >= 0),
    item_key integer not null references items (item_key),
    served_at timestamptz not null default now(),
    score real,
    user_id text not null,
    release text not null,
    scenario text,
    source text,
    primary key (rec_id, position)
);

-- One row: the feature views hold exactly the events with interaction_id <= watermark and
-- occurred_at < as_of. Every other event is read live.
create table refresh_point (
    only_row boolean primary key default true check (only_row),
    watermark bigint not null,
    as_of timestamptz not null
);

insert into refresh_point (watermark, as_of) values (0, now());

-- One row for each view and refresh.
create table feature_refreshes (
    refresh_id bigint generated always as identity primary key,
    view text not null,
    as_of timestamptz not null,
    watermark bigint not null,
    seconds double precision not null,
    finished_at timestamptz not null default clock_timestamp()
);
