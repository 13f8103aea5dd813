"""Random histories, refreshed again and again: all that is counted equals a count from raw rows."""

import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from refresh_history import add_answer, add_event, failed
from slow_partials import differences

from features.erasure import erase_user
from features.refresh import refresh

USERS, ITEMS = 3, 4
NAMES = ("x", "y", "z")


def change(connection, draw, moment):
    """Do something that happens in production, or may be done by hand."""
    event = draw.randint(1, 60)
    user, item = draw.randint(1, USERS), draw.randint(1, ITEMS)
    kind = draw.choices(
        ("event", "answer", "value", "time", "move", "delete", "withdraw", "categories"),
        (60, 15, 4, 4, 3, 5, 2, 2),
    )[0]
    if kind == "event":
        add_event(connection, user, item, moment, draw.choice([None, 0.5, 1.0, 2.5]))
    elif kind == "answer":
        shown = draw.sample(range(1, ITEMS + 1), 2)
        add_answer(connection, f"u{draw.randint(1, USERS + 1)}", moment, shown)
    elif kind == "value":
        connection.execute("update interactions set value = 4 where interaction_id = %s", (event,))
    elif kind == "time":
        connection.execute(
            "update interactions set occurred_at = %s where interaction_id = %s", (moment, event)
        )
    elif kind == "move":
        connection.execute(
            "update interactions set user_key = %s, item_key = %s where interaction_id = %s",
            (user, item, event),
        )
    elif kind == "delete":
        connection.execute("delete from interactions where interaction_id = %s", (event,))
    elif kind == "withdraw":
        connection.execute("delete from answers where answer_id = %s", (draw.randint(1, 20),))
    else:
        connection.execute(
            "update items set categories = %s where item_key = %s",
            (draw.sample(NAMES, draw.randint(0, 3)), item),
        )


def moments(draw, refreshed_at):
    """Return times of events: many close together, some at edges, some late, some to come."""
    while True:
        spread = draw.choice([0.02, 0.02, 0.2, 2.0, 200.0])
        centre = draw.choice([0, 0, 1, 7, 30, 90])
        yield refreshed_at - timedelta(days=centre + spread * (draw.random() - 0.5))


@pytest.mark.parametrize("seed", range(25))
def test_a_random_history(people, seed):
    draw = random.Random(seed)
    ages = sorted(draw.choice([0, 0.01, 1, 8, 31, 95]) * draw.random() for _ in range(6))
    for age in reversed(ages):
        now = datetime.now(UTC)
        times = moments(draw, now - timedelta(days=age))
        for _ in range(draw.randint(0, 40)):
            # Beyond now, an event of 100 days ahead is nothing that anyone would store.
            change(people, draw, min(next(times), now + timedelta(days=1)))
            if draw.random() < 0.3:
                people.commit()
        people.commit()
        if draw.random() < 0.3:
            user = f"u{draw.randint(1, USERS)}"
            erase_user(people, user)
            assert differences(people) == []
            for table in ("interaction_corrections", "answer_corrections"):
                assert people.execute(f"select count(*) from {table}").fetchone() == (0,)
            people.execute("insert into users (user_id) values (%s)", (user,))
            people.commit()
        (known,) = people.execute("select as_of from refresh_point").fetchone()
        people.commit()
        full = draw.random() < 0.1
        wanted = now - timedelta(days=age)
        counted = people.execute("select watermark from refresh_point").fetchone() != (0,)
        people.commit()
        refresh(people, full=full, as_of=max(wanted, known) if counted else wanted)
        assert differences(people) == []
    # These two are true here.
    assert set(failed(people)) <= {
        "no event lies in the future",
        "every event has its user and its item",
    }


_REFRESHER = """
import sys
from features.database import connect
from features.refresh import refresh
with connect(sys.argv[1]) as connection:
    while True:
        refresh(connection)
        print("refreshed", flush=True)
"""


def test_a_process_that_is_killed_again_and_again(people, database_url):
    """SIGKILL of the refreshing process, at any moment, while events and corrections come in."""
    draw = random.Random(5)
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", _REFRESHER, database_url], stdout=subprocess.PIPE
        )
        process.stdout.readline()
        ends_at = time.monotonic() + draw.random() * 0.4
        times = moments(draw, datetime.now(UTC))
        while time.monotonic() < ends_at:
            change(people, draw, next(times))
            people.commit()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    for full in (False, True):
        refresh(people, full=full)
        assert differences(people) == []
