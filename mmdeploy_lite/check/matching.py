"""One-to-one matching of two sets of detections, with as many pairs as possible."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass
class Edges:
    """Pairs that may be matched, closest first.

    Attributes:
        rows: (E,) int64 index into the first set.
        cols: (E,) int64 index into the second set.
        cost: (E,) float64, ascending; 0 is identical and 1 at the limit of a tolerance.
    """

    rows: np.ndarray
    cols: np.ndarray
    cost: np.ndarray

    def where(self, keep: np.ndarray) -> Edges:
        """The edges for which ``keep`` (E,) bool is true."""
        return Edges(self.rows[keep], self.cols[keep], self.cost[keep])


def find_edges(
    boxes_a: np.ndarray,
    scores_a: np.ndarray,
    labels_a: np.ndarray,
    boxes_b: np.ndarray,
    scores_b: np.ndarray,
    labels_b: np.ndarray,
    score_tol: float,
    box_tol: np.ndarray,
) -> Edges:
    """All pairs with one label whose score and box are within tolerance.

    Args:
        boxes_a: (A, 4) x1 y1 x2 y2 in pixels.
        scores_a: (A,).
        labels_a: (A,) integers.
        boxes_b: (B, 4) in the same pixels.
        scores_b: (B,).
        labels_b: (B,) integers.
        score_tol: Largest score difference.
        box_tol: (4,) largest difference of each coordinate in pixels.
    """
    found_rows, found_cols, found_cost = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    scores_a, scores_b = scores_a.astype(np.float64), scores_b.astype(np.float64)
    for label in np.intersect1d(labels_a, labels_b):
        rows, cols = np.flatnonzero(labels_a == label), np.flatnonzero(labels_b == label)
        # The second set sorted by score, each of the first one's partners are a slice of it: no A x B matrix of boxes.
        cols = cols[np.argsort(scores_b[cols], kind='stable')]
        first = np.searchsorted(scores_b[cols], scores_a[rows] - score_tol, side='left')
        last = np.searchsorted(scores_b[cols], scores_a[rows] + score_tol, side='right')
        counts = last - first
        pair_rows = np.repeat(rows, counts)
        starts = np.repeat(first - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        pair_cols = cols[starts + np.arange(counts.sum())]
        diff = np.abs(boxes_a[pair_rows].astype(np.float64) - boxes_b[pair_cols].astype(np.float64))
        with np.errstate(invalid='ignore'):
            keep = (diff <= box_tol).all(axis=1)
        pair_rows, pair_cols, diff = pair_rows[keep], pair_cols[keep], diff[keep]
        off = np.abs(scores_a[pair_rows] - scores_b[pair_cols])
        tiny = np.finfo(np.float64).tiny
        cost = np.maximum(off / max(score_tol, tiny), (diff / np.maximum(box_tol, tiny)).max(axis=1, initial=0.0))
        found_rows.append(pair_rows)
        found_cols.append(pair_cols)
        found_cost.append(cost)
    edges = Edges(np.concatenate(found_rows), np.concatenate(found_cols), np.concatenate(found_cost))
    order = np.argsort(edges.cost, kind='stable')
    return Edges(edges.rows[order], edges.cols[order], edges.cost[order])


class Matching:
    """A one-to-one matching that grows along augmenting paths, so that a pair once matched stays matched.

    Args:
        num_rows: Size of the first set.
        num_cols: Size of the second set.

    Attributes:
        col_of: (num_rows,) the partner of each row, -1 without.
        row_of: (num_cols,) the partner of each column, -1 without.
    """

    def __init__(self, num_rows: int, num_cols: int) -> None:
        self.col_of = np.full(num_rows, -1, np.int64)
        self.row_of = np.full(num_cols, -1, np.int64)

    def grow(self, edges: Edges, rows: Sequence[int] | np.ndarray | None = None) -> None:
        """Match as many more rows as ``edges`` allow (Berge: a matching is largest when no augmenting path is left).

        Args:
            edges: Pairs allowed from here on, closest first; pairs already matched stay allowed.
            rows: Try only these rows, in this order; None tries all.
        """
        options: dict[int, list[int]] = {}
        wanted = None if rows is None else {int(row) for row in rows}
        for row, col in zip(edges.rows.tolist(), edges.cols.tolist(), strict=True):
            options.setdefault(row, []).append(col)
            # Closest pairs first: when nothing is ambiguous, this is already the answer.
            if self.col_of[row] < 0 and self.row_of[col] < 0 and (wanted is None or row in wanted):
                self._pair(row, col)
        # A search that fails has seen every column reachable from it; no later path can lead through them.
        dead: set[int] = set()
        for row in options if rows is None else [int(row) for row in rows]:
            if self.col_of[row] < 0:
                self._augment(row, options, dead)

    def _pair(self, row: int, col: int) -> None:
        self.col_of[row], self.row_of[col] = col, row

    def _augment(self, start: int, options: dict[int, list[int]], dead: set[int]) -> bool:
        """Breadth-first search for a free column, moving matched rows to other columns on the way."""
        came_from: dict[int, int] = {}
        queue = deque([start])
        while queue:
            row = queue.popleft()
            for col in options.get(row, ()):
                if col in came_from or col in dead:
                    continue
                came_from[col] = row
                if self.row_of[col] >= 0:
                    queue.append(int(self.row_of[col]))
                    continue
                while True:
                    row = came_from[col]
                    previous = int(self.col_of[row])
                    self._pair(row, col)
                    if row == start:
                        return True
                    col = previous
        dead.update(came_from)
        return False
