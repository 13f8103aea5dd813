-- Purpose: items that users come to right after an item.
-- Grain: one row for each item and one of its 50 most frequent followers.

drop function if exists item_covisits_as_of(timestamptz) cascade;

-- From the 90 whole UTC days before the day of a moment, as the last refresh knew them.
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

drop view if exists item_covisits cascade;

create view item_covisits as
select
    covisits.item_key,
    covisits.other_key,
    covisits.pairs,
    covisits.rank
from refresh_point
cross join lateral item_covisits_as_of(refresh_point.as_of) as covisits;
