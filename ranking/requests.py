"""From queries and user states, with external ids and keys, to the arrays of the pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from features.encode import encode_users
from features.spec import WINDOWS_DAYS, names
from features.states import UserState
from ranking.catalogue import LiveCatalogue
from ranking.retrieval.filters import Filters
from ranking.types import (
    DAY,
    BoolArray,
    DoubleArray,
    FloatArray,
    Histories,
    Items,
    Note,
    Query,
    RowArray,
)


@dataclass(frozen=True, slots=True)
class Requests:
    """B requests as arrays.

    Attributes
    ----------
    histories : Histories
        Latest events, those of the request's context last.
    filters : Filters
        What each request may not get.
    users : (B, Fu) float32
        Encoded user features.
    category_events, category_value_sums : (B, K) float32
        Of each user, in the columns of ``Items.categories``.
    pins : list of list of int
        Rows to place first: distinct, available and not excluded.
    cold : (B,) bool
        Whether a request has no history at all.
    notes : list of list of Note
        What of each request was ignored or fell back, and why.
    """

    histories: Histories
    filters: Filters
    users: FloatArray
    category_events: FloatArray
    category_value_sums: FloatArray
    pins: list[list[int]]
    cold: BoolArray
    notes: list[list[Note]]


class RequestReader:
    """Resolves the ids and keys of requests in one state of the catalogue.

    Parameters
    ----------
    catalogue : LiveCatalogue
    items : Items
        The state that this batch uses; items that are newer count as unknown.
    history_limit : int
        Latest events kept, those of the context included.
    """

    def __init__(self, catalogue: LiveCatalogue, items: Items, history_limit: int) -> None:
        self._catalogue = catalogue
        self._items = items
        self._limit = history_limit

    def read(self, queries: Sequence[Query], states: Sequence[UserState]) -> Requests:
        """Return the arrays of B requests; a history in a query replaces the stored one."""
        notes: list[list[Note]] = [[] for _ in queries]
        states = [
            state if query.history is None else self._own_state(query, some)
            for query, state, some in zip(queries, states, notes, strict=True)
        ]
        context = [
            self._known(query.context_item_ids, "context item", some)
            for query, some in zip(queries, notes, strict=True)
        ]
        histories = self._histories(queries, states, context)
        cold = histories.lengths == 0
        for b in np.flatnonzero(cold).tolist():
            who = "has no history" if states[b].known else "is unknown"
            notes[b].append(Note("cold_start", f"the user {who}: trending items lead"))
        excluded = [
            rows + [row for row in map(self._row, query.exclude_item_ids) if row >= 0]
            for query, rows in zip(queries, context, strict=True)
        ]
        spread = self._catalogue.spread
        return Requests(
            histories=histories,
            filters=Filters(
                excluded=[np.array(rows, np.int64) for rows in excluded],
                seen=self._seen(queries, states),
                categories=[
                    self._columns(query, some) for query, some in zip(queries, notes, strict=True)
                ],
            ),
            users=encode_users(np.stack([state.features for state in states])),
            category_events=np.stack([spread(s.category_names, s.category_events) for s in states]),
            category_value_sums=np.stack(
                [spread(s.category_names, s.category_value_sums) for s in states]
            ),
            pins=[
                self._pins(query, rows, some)
                for query, rows, some in zip(queries, excluded, notes, strict=True)
            ],
            cold=cold,
            notes=notes,
        )

    def _row(self, item_id: str) -> int:
        row = self._catalogue.row(item_id)
        return row if row < len(self._items) else -1

    def _known(self, item_ids: Iterable[str], what: str, notes: list[Note]) -> list[int]:
        rows = []
        for item_id in item_ids:
            row = self._row(item_id)
            if row >= 0:
                rows.append(row)
            else:
                notes.append(Note("unknown_item", f"{what} {item_id[:64]!r} is unknown: ignored"))
        return rows

    def _rows_of(self, keys: Sequence[RowArray]) -> list[RowArray]:
        """Return the known rows of each array of keys, with one lookup for all of them."""
        rows = self._catalogue.rows_of_keys(np.concatenate(keys))
        rows[rows >= len(self._items)] = -1
        complete = bool((rows >= 0).all())
        ends = np.cumsum([len(some) for some in keys]).tolist()
        parts = [rows[end - len(some) : end] for some, end in zip(keys, ends, strict=True)]
        return parts if complete else [part[part >= 0] for part in parts]

    def _seen(self, queries: Sequence[Query], states: Sequence[UserState]) -> list[RowArray]:
        nothing = np.empty(0, np.int64)
        return self._rows_of(
            [
                state.seen_keys if query.exclude_seen else nothing
                for query, state in zip(queries, states, strict=True)
            ]
        )

    def _histories(
        self,
        queries: Sequence[Query],
        states: Sequence[UserState],
        context: Sequence[Sequence[int]],
    ) -> Histories:
        B = len(queries)
        every = self._catalogue.rows_of_keys(np.concatenate([state.item_keys for state in states]))
        every[every >= len(self._items)] = -1
        found = []
        end = 0
        for state, added in zip(states, context, strict=True):
            start, end = end, end + len(state.item_keys)
            known = np.flatnonzero(every[start:end] >= 0)
            known = known[max(len(known) + len(added) - self._limit, 0) :]  # drops the oldest
            found.append((every[start:end][known], state.values[known], state.times[known]))
        context = [added[-self._limit :] for added in context]
        stored = [len(rows) for rows, _, _ in found]
        lengths = [n + len(added) for n, added in zip(stored, context, strict=True)]
        L = max(1, *lengths)
        out = Histories(
            rows=np.full((B, L), -1, np.int64),
            values=np.zeros((B, L), np.float32),
            times=np.zeros((B, L)),
            lengths=np.array(lengths, np.int64),
            now=np.array([query.now for query in queries], np.float64),
        )
        for b, (n, length, added) in enumerate(zip(stored, lengths, context, strict=True)):
            out.rows[b, :n], out.values[b, :n], out.times[b, :n] = found[b]
            out.rows[b, n:length] = added
            out.values[b, n:length] = np.nan
            out.times[b, n:length] = out.now[b]
        return out

    def _columns(self, query: Query, notes: list[Note]) -> RowArray | None:
        if not query.categories:
            return None
        columns = self._catalogue.columns(sorted(query.categories))
        if len(columns) < len(query.categories):
            unknown = sorted(query.categories - set(self._catalogue.category_names))
            notes.append(Note("unknown_category", f"no item has a category of {unknown[:8]}"))
        return columns

    def _pins(self, query: Query, excluded: Sequence[int], notes: list[Note]) -> list[int]:
        pins = []
        for row in dict.fromkeys(self._known(query.pins, "pin", notes)):
            if row in excluded:
                reason = "excluded by the request"
            elif not self._items.available[row] or self._items.created[row] > query.now:
                reason = "unavailable"
            else:
                pins.append(row)
                continue
            notes.append(Note("pin_left_out", f"pin {self._catalogue.id(row)!r} is {reason}"))
        return pins

    def _own_state(self, query: Query, notes: list[Note]) -> UserState:
        """Make the state that the database would have, had the user the query's history."""
        assert query.history is not None
        known = []
        for event in query.history:
            row = self._known([event.item_id], "history item", notes)
            if row:
                time = query.now if event.time is None else event.time
                known.append((row[0], np.nan if event.value is None else event.value, time))
        known.sort(key=lambda event: event[2])
        rows = np.array([row for row, _, _ in known], np.int64)
        values = np.array([value for _, value, _ in known], np.float32)
        times = np.array([time for _, _, time in known], np.float64)
        flags = self._items.categories[rows].astype(np.float32)  # (n, K)
        return UserState(
            user_id=query.user_id,
            known=True,
            item_keys=self._catalogue.keys(rows),
            values=values,
            times=times,
            seen_keys=np.unique(self._catalogue.keys(rows)),
            features=_user_features(values, times, query.now),
            category_names=list(self._catalogue.category_names),
            category_events=flags.sum(axis=0),
            category_value_sums=np.nan_to_num(values) @ flags,
            as_of=query.now,
        )


def _user_features(values: FloatArray, times: DoubleArray, now: float) -> FloatArray:
    """Return raw user features of a history, as ``sql/20_user_states.sql`` defines them."""
    valued = values[~np.isnan(values)].astype(np.float64)
    days = np.unique(times // DAY)
    found = {"user_events": float(len(times)), "user_active_days": float(len(days))}
    for window in WINDOWS_DAYS:
        recent = (times >= now - window * DAY) & (times <= now)
        found[f"user_events_{window}d"] = float(recent.sum())
    if len(days) > 1:
        found["user_session_gap_days"] = (days[-1] - days[0]) / (len(days) - 1)
    if len(valued):
        found |= {"user_value_mean": valued.mean(), "user_value_std": valued.std()}
    if len(times):
        found |= {
            "user_tenure_days": max(now - times.min(), 0.0) / DAY,
            "user_recency_days": max(now - times.max(), 0.0) / DAY,
        }
    return np.array([found.get(name, np.nan) for name in names("user")], np.float32)
