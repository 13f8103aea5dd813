-- Purpose: item features as of the last refresh.
-- Grain: one row for each item, with or without events; one that came after the refresh too.

drop view if exists item_features cascade;

create view item_features as
with overall as (
    select
        (sum(click_daily.clicks) / nullif(sum(click_daily.impressions), 0))::double precision
            as click_rate
    from click_daily
    inner join refresh_point
        on click_daily.event_day < (refresh_point.as_of at time zone 'utc')::date
),

counted as (
    select
        items.item_key,
        totals.last_at,
        totals.value_sum,
        totals.value_square_sum,
        overall.click_rate as overall_click_rate,
        refresh_point.as_of,
        items.created_at,
        totals.valued,
        coalesce(totals.events, 0) as events,
        {% for days in windows %}
            in_window(totals.window_events, refresh_point.window_days, {{ days }})
                as events_{{ days }}d,
        {% endfor %}
        coalesce(totals.impressions, 0) as impressions,
        coalesce(totals.clicks, 0) as clicks
    from items
    cross join refresh_point
    cross join overall
    left join item_totals as totals on items.item_key = totals.item_key
)

select
    item_key,
    events::real as item_events,
    {% for days in windows %}
        events_{{ days }}d::real as item_events_{{ days }}d,
    {% endfor %}
    {% for days in windows[:-1] %}
        {% set larger = windows[loop.index] %}
        trend(events_{{ days }}d, events_{{ larger }}d, {{ days }}, {{ larger }})
            as item_trend_{{ days }}d,
    {% endfor %}
    value_mean(valued, value_sum) as item_value_mean,
    value_std(valued, value_sum, value_square_sum) as item_value_std,
    days_between(micros(created_at), micros(as_of)) as item_age_days,
    days_between(micros(last_at), micros(as_of)) as item_recency_days,
    click_rate(clicks, impressions, overall_click_rate) as item_click_rate
from counted;
