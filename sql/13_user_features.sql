-- Purpose: what is known of each user up to the last refresh, as sums that live events extend.
-- Grain: user_features has one row a user with events, user_category_features one row a user
-- and category.

drop materialized view if exists user_features cascade;

create materialized view user_features as
with totals as (
    select
        user_key,
        sum(events)::bigint as events,
        sum(valued)::bigint as valued,
        sum(value_sum) as value_sum,
        sum(value_square_sum) as value_square_sum,
        min(first_at) as first_at,
        max(last_at) as last_at
    from user_daily
    group by user_key
),

seen as (
    select
        user_key,
        array_agg(distinct item_key) as item_keys
    from refreshed_interactions
    group by user_key
)

select
    totals.user_key,
    totals.events,
    totals.valued,
    totals.value_sum,
    totals.value_square_sum,
    totals.first_at,
    totals.last_at,
    seen.item_keys as seen_keys
from totals
inner join seen on totals.user_key = seen.user_key;

create unique index user_features_key on user_features (user_key);

drop materialized view if exists user_category_features cascade;

create materialized view user_category_features as
select
    user_key,
    category,
    sum(events)::bigint as events,
    sum(value_sum) as value_sum
from user_category_daily
group by user_key, category;

-- Includes all columns: a request reads a user's categories from the index alone.
create unique index user_category_features_key
on user_category_features (user_key, category) include (events, value_sum);
