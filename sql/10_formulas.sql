-- Purpose: each formula of the features once, for refreshed, live and as-of values alike.
-- Grain: scalar functions, inlined by the planner.

drop function if exists feature_windows() cascade;

-- What the views and functions count, in days: the setting features.windows_days.
create function feature_windows() returns smallint[]
language sql immutable parallel safe
return array{{ windows }}::smallint[];

drop function if exists micros(timestamptz) cascade;

-- Microseconds since 1970; PostgreSQL stores no finer time. Exact from 1834 to 2106, where the
-- rounding of the two doubles stays below half a microsecond, and faster than numeric.
create function micros(moment timestamptz) returns bigint
language sql stable parallel safe
return (date_part('epoch', moment) * 1000000)::bigint;

drop function if exists unix_seconds(timestamptz) cascade;

create function unix_seconds(moment timestamptz) returns double precision
language sql stable parallel safe
return date_part('epoch', moment);

drop function if exists days_between(bigint, bigint) cascade;

-- Days from one moment to another, both in microseconds; 0 when the first lies after the second.
create function days_between(earlier bigint, later bigint) returns real
language sql immutable parallel safe
return (
    case when later < earlier then 0 else later - earlier end::double precision / 86400000000.0
)::real;

drop function if exists value_mean(bigint, double precision) cascade;

create function value_mean(valued bigint, value_sum double precision) returns real
language sql immutable parallel safe
return (value_sum / nullif(valued, 0))::real;

drop function if exists value_std(bigint, double precision, double precision) cascade;

-- Population standard deviation from sums: sqrt(E[v^2] - E[v]^2), never below 0 by rounding.
create function value_std(
    valued bigint, value_sum double precision, value_square_sum double precision
) returns real
language sql immutable parallel safe
return (
    case
        when valued > 0
            then sqrt(greatest(0, value_square_sum / valued - power(value_sum / valued, 2)))
    end
)::real;

drop function if exists utc_day(bigint) cascade;

-- Number of the UTC day since 1970-01-01 of a moment in microseconds.
create function utc_day(moment bigint) returns integer
language sql immutable parallel safe
return (
    case when moment >= 0 then moment else moment - 86399999999 end / 86400000000
)::integer;

drop function if exists midnight(date) cascade;

-- The beginning of a UTC day; before all time for null.
create function midnight(event_day date) returns timestamptz
language sql immutable parallel safe
return coalesce(event_day::timestamp at time zone 'utc', '-infinity'::timestamptz);

drop function if exists session_gap_days(bigint, bigint, bigint) cascade;

-- Mean days between two active UTC days of a user; null with fewer than two.
create function session_gap_days(first_at bigint, last_at bigint, active_days bigint) returns real
language sql immutable parallel safe
return (
    (utc_day(last_at) - utc_day(first_at))::double precision / nullif(active_days - 1, 0)
)::real;

drop function if exists in_window(integer[], smallint[], integer) cascade;

-- Events of the window of so many days; 0 without any, null when that window was not refreshed.
create function in_window(window_events integer[], window_days smallint[], days integer)
returns integer
language sql immutable parallel safe
return case
    when window_events is null then 0
    else window_events[array_position(window_days, days::smallint)]
end;

drop function if exists trend(bigint, bigint, integer, integer) cascade;

-- Log ratio of the event rate in a window to that in the larger one around it. Each rate is a
-- posterior mean under a Gamma prior with mean l = 0.1 events a day that weighs as much as its
-- window: (n + l*d) / (2*d), so ln(((n + l*d) / (N + l*D)) * D / d). 0: neither rising nor falling.
-- Source: Gelman et al., Bayesian Data Analysis, 3rd edition, section 2.6 (Poisson rate with a
-- Gamma prior).
create function trend(events bigint, larger_events bigint, days integer, larger_days integer)
returns real
language sql immutable parallel safe
return ln(
    (events + 0.1::double precision * days)
    / (larger_events + 0.1::double precision * larger_days)
    * larger_days / days
)::real;

drop function if exists click_rate(bigint, bigint, double precision) cascade;

-- Posterior mean of a click probability under a Beta prior with mean prior_rate that weighs as
-- much as 20 impressions: (clicks + 20 * prior_rate) / (impressions + 20).
-- Source: Gelman et al., Bayesian Data Analysis, 3rd edition, section 2.4 (binomial with a Beta
-- prior).
create function click_rate(clicks bigint, impressions bigint, prior_rate double precision)
returns real
language sql immutable parallel safe
return ((clicks + 20 * prior_rate) / (impressions + 20))::real;
