"""Encoding: defaults, transforms, and what categories say of a candidate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from features.encode import encode_cross, encode_items, encode_users
from features.errors import SpecMismatch
from features.spec import group, names


def test_missing_values_take_their_default_before_the_transform():
    raw = np.full((1, len(names("item"))), np.nan, np.float32)
    encoded = dict(zip(names("item"), encode_items(raw)[0], strict=True))
    assert encoded["item_age_days"] == pytest.approx(np.log1p(3650))
    assert encoded["item_events"] == 0
    assert encoded["item_value_mean"] == 0


def test_known_values():
    known = {
        "user_events": (3, np.log(4)),
        "user_value_mean": (4.5, 4.5),
        "user_recency_days": (2, np.log(3)),
    }
    raw = np.array([[known.get(name, (0, 0))[0] for name in names("user")]], np.float32)
    encoded = dict(zip(names("user"), encode_users(raw)[0], strict=True))
    for name, (_, expected) in known.items():
        assert encoded[name] == pytest.approx(expected, rel=1e-6)


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(0, 5), st.just(len(names("item")))),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    )
)
def test_any_raw_value_gives_a_finite_one(raw):
    before = raw.copy()
    encoded = encode_items(raw)
    assert encoded.dtype == np.float32
    assert np.isfinite(encoded).all()
    assert np.array_equal(raw, before, equal_nan=True)


def test_another_number_of_columns_is_refused():
    with pytest.raises(
        SpecMismatch, match=r"shape \(2, 3\), expected \(n, \d+\) in the order user_events"
    ):
        encode_users(np.zeros((2, 3), np.float32))


def test_defaults_are_finite():
    for name in ("user", "item", "cross", "candidate"):
        assert all(np.isfinite(feature.default) for feature in group(name))


CATEGORIES = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0]], np.uint8)


def cross(events, sums, rows):
    encoded = encode_cross(
        np.array(events, np.float32), np.array(sums, np.float32), CATEGORIES, np.array(rows)
    )
    return encoded[..., names("cross").index("cross_category_share")], encoded[
        ..., names("cross").index("cross_category_value")
    ]


def test_cross_by_hand():
    share, value = cross([[6, 2, 0]], [[24, 4, 0]], [[0, 1, 2, 3, -1]])
    np.testing.assert_allclose(share, [[6 / 8, 8 / 16, 0, 0, 0]])
    np.testing.assert_allclose(value, [[4, 28 / 8, 0, 0, 0]])


def test_cross_of_a_user_without_events():
    share, value = cross([[0, 0, 0]], [[0, 0, 0]], [[0, 3]])
    assert not share.any()
    assert not value.any()


def test_cross_without_categories_at_all():
    encoded = encode_cross(
        np.zeros((2, 0), np.float32),
        np.zeros((2, 0), np.float32),
        np.zeros((4, 0), np.uint8),
        np.zeros((2, 3), np.int64),
    )
    assert encoded.shape == (2, 3, len(names("cross")))
    assert not encoded.any()


@given(st.integers(0, 2**32 - 1))
def test_each_request_of_a_batch_stands_alone(seed):
    random = np.random.default_rng(seed)
    events = random.integers(0, 9, (4, 3)).astype(np.float32)
    sums = (events * random.random((4, 3))).astype(np.float32)
    rows = random.integers(-1, 4, (4, 5))
    together = encode_cross(events, sums, CATEGORIES, rows)
    for at in range(4):
        alone = encode_cross(events[at : at + 1], sums[at : at + 1], CATEGORIES, rows[at : at + 1])
        np.testing.assert_array_equal(together[at : at + 1], alone)
