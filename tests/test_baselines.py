import numpy as np
import pytest

from ranking.evaluation import baselines
from ranking.evaluation.baselines import Ease, ItemToItem, Popularity, RecentPopularity
from ranking.evaluation.events import TrainingEvents

NOW = np.array([100.0])


def training(users, items, times=None):
    rows = np.concatenate([np.array(user, dtype=np.int64) for user in users])
    offsets = np.concatenate([[0], np.cumsum([len(user) for user in users])])
    moments = np.arange(len(rows), dtype=np.float64) if times is None else np.array(times, float)
    return TrainingEvents(rows, moments, offsets.astype(np.int64), items)


def listed(model, events, user, k, as_of=NOW, **more):
    return baselines.rank(model, events, np.array([user]), as_of, k, **more)[0].tolist()


def random_events(users=30, items=12, seed=0):
    rng = np.random.default_rng(seed)
    return training([rng.permutation(items)[: rng.integers(2, 8)] for _ in range(users)], items)


def test_popularity_ranks_by_count_then_row_and_leaves_out_what_was_seen():
    events = training([[3, 1], [3, 1, 2], [3], [0]], items=6)
    model = Popularity(events)
    assert listed(model, events, 3, 5) == [3, 1, 2, 4, 5]
    assert listed(model, events, 1, 3) == [0, 4, 5]


def test_lists_are_padded_when_the_catalogue_is_smaller_than_k():
    events = training([[3, 1], [0]], items=4)
    assert listed(Popularity(events), events, 0, 6) == [0, 2, -1, -1, -1, -1]


def test_items_that_are_not_allowed_are_never_returned():
    events = training([[3], [1], [1]], items=4)
    allowed = np.array([True, False, True, True])
    assert listed(Popularity(events), events, 0, 3, allowed=allowed) == [0, 2, -1]


def test_an_item_is_not_listed_before_it_exists():
    events = training([[3], [1], [1], [0, 0]], items=4)
    created = np.array([np.nan, 50.0, 100.0, np.nan])
    args = {"as_of": np.array([99.0]), "created": created}
    assert listed(Popularity(events), events, 0, 3, **args) == [0, 1, -1]


def test_recent_popularity_counts_the_window_before_each_query():
    day = baselines.DAY
    events = training(
        [[0, 0, 0, 1, 2, 2], [3]], items=4, times=np.array([1, 1, 1, 8, 9, 9, 5]) * day
    )
    model = RecentPopularity(events, window_days=3)
    moments = np.array([10.0, 2.0, 9.0, 8.0]) * day
    scores = model.scores(np.ones(4, dtype=np.int64), moments)
    # Whole parts are the counts in [t - 3 d, t); an event at t itself is not known yet.
    assert np.floor(scores).tolist() == [[0, 1, 2, 0], [3, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
    assert scores[0, 0] > scores[0, 3]


def test_item_to_item_by_hand():
    events = training([[0, 1, 2], [0, 1], [1], [3]], items=4)
    users, moments = np.array([2, 3]), np.zeros(2)
    # 0 then 1 twice at distance 1, 1 then 2 once at distance 1; nothing goes with 3.
    plain = ItemToItem(events, reach=2, backward=0.5, damping=0.0, decay=1.0, latest=1)
    scores = plain.scores(users, moments)
    np.testing.assert_allclose(scores[0, [0, 2]], [2.0, 2.0])
    assert (scores[0, [1, 3]] < 1).all()
    assert (scores[1] < 1).all()
    damped = ItemToItem(events, reach=2, backward=0.5, damping=0.5, decay=1.0, latest=1)
    scores = damped.scores(users, moments)
    np.testing.assert_allclose(scores[0, [0, 2]], [1 + 1 / np.sqrt(6), 1 + 1 / np.sqrt(3)])


def test_item_to_item_starts_from_the_latest_item_then_popularity():
    events = training([[0, 1], [0, 1], [2, 3], [4, 0, 2], [5]], items=7)
    model = ItemToItem(events, reach=1, decay=0.1, damping=0.0)
    # The latest item, 2, was followed by 3; the one before it, 0, by 1; then popularity: 5, 6.
    assert listed(model, events, 3, 4) == [3, 1, 5, 6]
    assert listed(model, events, 4, 2) == [0, 1]


def naive_ease(events, regularisation, latest):
    x = events.matrix().toarray().astype(np.float64)
    precision = np.linalg.inv(x.T @ x + regularisation * np.eye(events.items))
    weights = -precision / np.diag(precision)
    np.fill_diagonal(weights, 0)
    recent = np.zeros_like(x)
    for user in range(len(x)):
        rows = events.rows[events.offsets[user] : events.offsets[user + 1]]
        recent[user, rows[-latest:]] = 1
    return recent @ weights


@pytest.mark.parametrize(("users", "items"), [(30, 12), (9, 25)])
def test_ease_is_the_closed_form_solved_either_way(users, items):
    events = random_events(users, items)
    everyone = np.arange(users)
    scores = Ease(events, regularisation=3.0, latest=3).scores(everyone, np.zeros(users))
    np.testing.assert_allclose(scores, naive_ease(events, 3.0, 3), atol=1e-5)


def test_ranking_in_batches_is_ranking_at_once():
    events = random_events()
    users, moments = np.arange(30), np.zeros(30)
    for model in (
        Popularity(events),
        ItemToItem(events),
        Ease(events),
        RecentPopularity(events, 1),
    ):
        whole = baselines.rank(model, events, users, moments, 5)
        np.testing.assert_array_equal(
            baselines.rank(model, events, users, moments, 5, batch=7), whole
        )


def test_top_rows_break_ties_by_row():
    scores = np.array([[1, 2, 2, 0, 2], [0, 0, 0, 0, 1]], dtype=np.float32)
    assert baselines.top_rows(scores, 5)[:, :2].tolist() == [[1, 2], [4, 0]]
    assert baselines.top_rows(scores, 3)[0].tolist() == [1, 2, 4]


def test_without_last_keeps_users_and_single_events():
    held = training([[0, 1], [2], [3, 4, 5]], items=6).without_last()
    assert held.events.rows.tolist() == [0, 2, 3, 4]
    assert held.events.offsets.tolist() == [0, 1, 2, 4]
    assert held.users.tolist() == [0, 2]
    assert held.relevant.tolist() == [[1], [5]]
    assert held.as_of.tolist() == [1.0, 5.0]


def test_without_window_holds_out_the_last_events_of_all():
    times = [1, 8, 9, 2, 3, 7]
    held = training([[0, 1, 2], [3, 4], [5]], items=6, times=times).without_window(0.5)
    assert held.events.rows.tolist() == [0, 3]
    assert held.events.offsets.tolist() == [0, 1, 2, 2]
    assert held.users.tolist() == [0, 1]
    assert held.relevant.tolist() == [[1, 2], [4, -1]]
    assert held.as_of.tolist() == [3.0, 3.0]


def test_restrict_drops_events_and_keeps_users():
    events = training([[0, 1], [2], [3, 1]], items=4)
    kept = events.restrict(events.rows != 1)
    assert kept.rows.tolist() == [0, 2, 3]
    assert kept.offsets.tolist() == [0, 1, 2, 3]


def test_popularity_figure_of_a_known_data_set():
    """A deterministic figure: item n is bought by n users, and everyone's test item is row 9."""
    events = training([[n for n in range(9) if n >= user] or [0] for user in range(10)], items=10)
    lists = baselines.rank(Popularity(events), events, np.arange(10), np.zeros(10), 10)
    places = [row.tolist().index(9) for row in lists]
    # User u has not seen the u items before row u; user 9 saw row 0 alone. Row 9 comes last.
    assert places == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]
