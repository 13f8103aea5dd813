-- Purpose: items that users come to right after an item.
-- Grain: one row for each item and one of its 50 most frequent followers.
--
-- All of it comes from the 90 whole UTC days before the day of a moment, as the last refresh
-- knew them; ties go to the lower key.

drop function if exists item_covisits_as_of(timestamptz) cascade;

create function item_covisits_as_of(moment timestamptz)
returns table (item_key integer, other_key integer, pairs integer, rank integer)
language sql stable
as $$
    select
        ranked.item_key,
        ranked.other_key,
        ranked.pairs,
        ranked.rank
    from (
        select
            covisit_daily.item_key,
            covisit_daily.other_key,
            sum(covisit_daily.pairs)::integer as pairs,
            row_number() over (
                partition by covisit_daily.item_key
                order by sum(covisit_daily.pairs) desc, covisit_daily.other_key
            )::integer as rank
        from covisit_daily
        where
            covisit_daily.event_day >= (moment at time zone 'utc')::date - 90
            and covisit_daily.event_day < (moment at time zone 'utc')::date
        group by covisit_daily.item_key, covisit_daily.other_key
    ) as ranked
    where ranked.rank <= 50
$$;

drop function if exists item_followers_as_of(integer[], integer[]) cascade;

-- The same for some items, each as of its own day (days since 1970-01-01): training examples.
create function item_followers_as_of(wanted_keys integer[], wanted_days integer[])
returns table (request integer, other_key integer, pairs integer, rank integer)
language sql stable
as $$
    select
        wanted.request::integer,
        followers.other_key,
        followers.pairs,
        followers.rank
    from unnest(wanted_keys, wanted_days) with ordinality
        as wanted (item_key, event_day, request)
    cross join lateral (
        select
            covisit_daily.other_key,
            sum(covisit_daily.pairs)::integer as pairs,
            row_number() over (
                order by sum(covisit_daily.pairs) desc, covisit_daily.other_key
            )::integer as rank
        from covisit_daily
        where
            covisit_daily.item_key = wanted.item_key
            and covisit_daily.event_day >= date '1970-01-01' + wanted.event_day - 90
            and covisit_daily.event_day < date '1970-01-01' + wanted.event_day
        group by covisit_daily.other_key
        order by 3
        limit 50
    ) as followers
$$;

drop view if exists item_covisits cascade;

create view item_covisits as
select
    covisits.item_key,
    covisits.other_key,
    covisits.pairs,
    covisits.rank
from refresh_point
cross join lateral item_covisits_as_of(refresh_point.as_of) as covisits;
