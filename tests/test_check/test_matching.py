from __future__ import annotations

import itertools
import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdeploy_lite.check.matching import Edges, Matching, find_edges


def edges_of(allowed: np.ndarray) -> Edges:
    rows, cols = np.nonzero(allowed)
    return Edges(rows, cols, np.zeros(len(rows)))


def best_by_brute_force(allowed: np.ndarray) -> int:
    rows, cols = allowed.shape
    if rows > cols:
        allowed, rows, cols = allowed.T, cols, rows
    return max(
        sum(bool(allowed[r, c]) for r, c in enumerate(choice)) for choice in itertools.permutations(range(cols), rows)
    )


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**36 - 1))
def test_matching_is_one_to_one_and_as_large_as_possible(num_rows: int, num_cols: int, bits: int) -> None:
    allowed = np.array([bits >> i & 1 for i in range(num_rows * num_cols)], bool).reshape(num_rows, num_cols)
    matching = Matching(num_rows, num_cols)
    matching.grow(edges_of(allowed))
    rows = np.flatnonzero(matching.col_of >= 0)
    assert len(rows) == best_by_brute_force(allowed)
    assert allowed[rows, matching.col_of[rows]].all()
    assert (matching.row_of[matching.col_of[rows]] == rows).all()
    assert (matching.row_of >= 0).sum() == len(rows)


def test_rows_given_first_keep_a_partner() -> None:
    # Both rows can only have the one column: the row that grows first keeps it.
    matching = Matching(2, 1)
    matching.grow(edges_of(np.ones((2, 1), bool)), [1])
    matching.grow(edges_of(np.ones((2, 1), bool)))
    assert matching.col_of.tolist() == [-1, 0]


def test_growing_moves_earlier_pairs() -> None:
    matching = Matching(2, 2)
    matching.grow(edges_of(np.array([[1, 1], [0, 0]], bool)))
    assert matching.col_of.tolist() == [0, -1]
    matching.grow(edges_of(np.array([[1, 1], [1, 0]], bool)))
    assert matching.col_of.tolist() == [1, 0]


def test_a_search_that_fails_leaves_the_rest_free() -> None:
    # Rows 0 and 1 share one column; row 3 needs row 2 to move from column 1 to 2.
    allowed = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 1], [0, 1, 0]], bool)
    matching = Matching(4, 3)
    matching.grow(edges_of(allowed))
    assert matching.col_of.tolist() == [0, -1, 2, 1]


def test_edges_are_exactly_the_pairs_within_tolerance() -> None:
    rng = np.random.default_rng(0)
    sides = []
    for count in (40, 50):
        sides.append(
            (
                rng.integers(0, 2, (count, 4)) * 0.06,
                0.5 + rng.integers(0, 4, count) * 0.6e-4,
                rng.integers(0, 3, count),
            )
        )
    (boxes_a, scores_a, labels_a), (boxes_b, scores_b, labels_b) = sides
    limits = np.array([0.07, 0.05, 0.05, 0.07])
    edges = find_edges(*sides[0], *sides[1], 1e-4, limits)
    expected = (
        (labels_a[:, None] == labels_b)
        & (np.abs(scores_a[:, None] - scores_b) <= 1e-4)
        & (np.abs(boxes_a[:, None] - boxes_b) <= limits).all(-1)
    )
    found = np.zeros_like(expected)
    found[edges.rows, edges.cols] = True
    assert 20 < expected.sum() < expected.size / 2
    assert (found == expected).all() and found.sum() == len(edges.rows)
    assert (np.diff(edges.cost) >= 0).all() and edges.cost.max() <= 1 + 1e-9


def test_crowded_sets_stay_fast() -> None:
    start = time.process_time()
    for allowed in (
        np.ones((300, 300), bool),
        np.ones((300, 150), bool),
        np.tri(300, 300, 1, dtype=bool) & ~np.tri(300, 300, -3, dtype=bool),
    ):
        matching = Matching(*allowed.shape)
        matching.grow(edges_of(allowed))
        assert (matching.col_of >= 0).sum() == min(allowed.shape)
    assert time.process_time() - start < 5
