-- Purpose: the access paths of the hot reads and of the refresh.
-- Grain: one index for each path; the query that needs it stands above it.

-- A user's history, latest first, without touching the table.
create index interactions_user_history
on interactions (user_key, occurred_at, interaction_id) include (item_key, value);

-- A user's events that arrived after the last refresh.
create index interactions_user_arrival
on interactions (user_key, interaction_id) include (occurred_at, item_key, value);

-- An item's events in time order: as-of features.
create index interactions_item_history on interactions (item_key, occurred_at) include (value);

-- The days at the edge of a window, and everything after the watermark: refresh.
create index interactions_occurred_at on interactions using brin (occurred_at);

-- What changed in the catalogue since a watermark.
create index items_change_id on items (change_id);

create index impressions_served_at on impressions using brin (served_at);
