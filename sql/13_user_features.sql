-- Purpose: what the last refresh knew of each user, to look at; a request reads user_states.
-- Grain: one row for each user with an event before the refresh.

drop view if exists user_features cascade;

create view user_features as
select
    totals.user_key,
    users.user_id,
    totals.events::real as user_events,
    totals.active_days::real as user_active_days,
    value_mean(totals.valued, totals.value_sum) as user_value_mean,
    value_std(totals.valued, totals.value_sum, totals.value_square_sum) as user_value_std,
    session_gap_days(
        micros(totals.first_at), micros(totals.last_at), totals.active_days
    ) as user_session_gap_days,
    days_between(micros(totals.first_at), micros(refresh_point.as_of)) as user_tenure_days,
    days_between(micros(totals.last_at), micros(refresh_point.as_of)) as user_recency_days
from user_totals as totals
cross join refresh_point
inner join users on totals.user_key = users.user_key;
