"""The spec: names once, the views hold them, and the hash notices every change."""

import subprocess
import sys
from dataclasses import replace

import pytest

from features import spec
from features.spec import FEATURES, WINDOWS_DAYS, group, names, spec_hash


def test_names_are_unique():
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)


def test_groups_keep_the_order():
    assert names("user")[0] == "user_events"
    assert [feature.name for feature in group("item")] == list(names("item"))
    listed = [name for kind in ("user", "item", "cross", "candidate") for name in names(kind)]
    assert sorted(listed) == sorted(feature.name for feature in FEATURES)


@pytest.mark.parametrize(
    "change", [{"default": 1.5}, {"transform": "log1p"}, {"unit": "hours"}, {"name": "other"}]
)
def test_the_hash_changes_with_every_field(monkeypatch, change):
    before = spec_hash()
    edited = list(FEATURES)
    position = names("user").index("user_value_mean")
    edited[position] = replace(edited[position], **change)
    monkeypatch.setattr(spec, "FEATURES", tuple(edited))
    assert spec_hash() != before


def test_the_hash_changes_with_the_order(monkeypatch):
    before = spec_hash()
    monkeypatch.setattr(spec, "FEATURES", FEATURES[::-1])
    assert spec_hash() != before


def test_the_hash_is_the_same_in_every_process():
    command = "from features.spec import spec_hash; print(spec_hash())"
    told = subprocess.check_output([sys.executable, "-c", command], text=True)
    assert told.strip() == spec_hash()


def test_each_window_has_its_features():
    assert list(WINDOWS_DAYS) == sorted(WINDOWS_DAYS)
    for days in WINDOWS_DAYS:
        assert f"item_events_{days}d" in names("item")
        assert f"user_events_{days}d" in names("user")
    trends = [name for name in names("item") if name.startswith("item_trend_")]
    assert trends == [f"item_trend_{days}d" for days in WINDOWS_DAYS[:-1]]


def test_every_sql_source_is_a_view_or_function(connection):
    for feature in FEATURES:
        if "." not in feature.source:
            (found,) = connection.execute(
                "select count(*) from pg_class where relname = %(name)s and relkind = 'v'"
                " or exists (select from pg_proc where proname = %(name)s)",
                {"name": feature.source},
            ).fetchone()
            assert found, feature


def test_item_features_are_columns_of_their_view(connection):
    for feature in group("item"):
        connection.execute(f"select {feature.name} from {feature.source} limit 0")


def test_user_features_are_columns_of_the_state(connection):
    columns = ", ".join(names("user"))
    assert {feature.source for feature in group("user")} == {"user_states"}
    connection.execute(f"select {columns} from user_states('{{}}', 1, now())")
