-- Purpose: what is known of each user up to the last refresh, as sums that live events extend.
-- Grain: user_category_features one row a user and category, user_features one row a user with
-- events.
--
-- What a request only carries to Python is packed: fixed-width big-endian numbers one behind the
-- other. An array of a thousand elements takes PostgreSQL ten times as long to send.

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

-- int4 for each item.
seen as (
    select
        user_key,
        string_agg(int4send(item_key), '' order by item_key) as packed
    from (
        select
            user_key,
            item_key
        from refreshed_interactions
        group by user_key, item_key
    ) as pairs
    group by user_key
),

-- float4 events and float4 value_sum for each name.
categories as (
    select
        user_key,
        array_agg(category order by category) as names,
        string_agg(
            float4send(events::real) || float4send(value_sum::real), '' order by category
        ) as packed
    from user_category_features
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
    seen.packed as seen_items,
    categories.names as category_names,
    categories.packed as category_sums
from totals
inner join seen on totals.user_key = seen.user_key
left join categories on totals.user_key = categories.user_key;

create unique index user_features_key on user_features (user_key);
