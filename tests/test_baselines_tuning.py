import numpy as np

from ranking.evaluation import baselines, tuning
from ranking.evaluation.baselines import ItemToItem, Popularity
from ranking.evaluation.events import TrainingEvents


def training(users, items):
    rows = np.concatenate([np.array(user, dtype=np.int64) for user in users])
    offsets = np.concatenate([[0], np.cumsum([len(user) for user in users])]).astype(np.int64)
    return TrainingEvents(rows, np.arange(len(rows), dtype=np.float64), offsets, items)


def test_tuning_picks_what_predicts_the_last_training_event():
    # After item 2k comes 2k + 1; the long sequences still say so without their last item.
    users = [[2 * k, 2 * k + 1, 12] for k in range(6)] + [[2 * k, 2 * k + 1] for k in range(6)] * 4
    events = training([*users, [8]], items=13)
    model, choice = tuning.tuned(
        [Popularity, lambda e: ItemToItem(e, reach=1)], events, events.without_last()
    )
    assert choice == 1
    assert baselines.rank(model, events, np.array([30]), np.array([0.0]), 1).tolist() == [[9]]


def test_tuning_with_nothing_to_hold_out_takes_the_first():
    events = training([[0], [1]], items=3)
    assert tuning.tuned([Popularity, ItemToItem], events, events.without_last())[1] == 0


def test_every_family_trains_and_ranks_on_little_data():
    events = training([[0, 1, 2], [2, 1], [3]], items=5)
    users = np.arange(3)
    names = []
    for family in tuning.families(events, most_ease=10):
        model, choice = tuning.tuned(list(family.makers.values()), events, events.without_last())
        lists = baselines.rank(model, events, users, np.full(3, 9.0), 4)
        assert 0 <= choice < len(family.makers)
        assert [(row >= 0).sum() for row in lists] == [2, 3, 4]
        names.append(family.name)
    assert names == ["popularity", "popularity_recent", "item_to_item", "ease", "ials"]


def test_ease_is_left_out_when_its_matrix_is_too_large():
    events = training([[0, 1], [2]], items=5)
    assert "ease" not in [family.name for family in tuning.families(events, most_ease=1)]


def test_tuning_draws_users_when_there_are_many():
    users = [[2 * k, 2 * k + 1, 12] for k in range(6)] + [[2 * k, 2 * k + 1] for k in range(6)] * 4
    events = training(users, items=13)
    makers = [Popularity, lambda e: ItemToItem(e, reach=1)]
    assert tuning.tuned(makers, events, events.without_last(), most_users=12)[1] == 1
