"""The distance between two distributions of which only the tops are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bc250studio.serve.divergence import as_variant, between, distance, kl
from bc250studio.serve.reference import Variant
from bc250studio.serve.talk import Top

VOCABULARY = 200
LOGITS = hnp.arrays(np.float64, VOCABULARY, elements=st.floats(-12, 12))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def best(logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    logp = log_softmax(logits)
    order = np.argsort(-logp, kind="stable")[:count]
    return order, logp[order]


def variant(*rows: np.ndarray) -> Variant:
    pairs = [best(row, 64) for row in rows]
    return Variant(np.stack([p[0] for p in pairs]).astype(np.int32), np.stack([p[1] for p in pairs]).astype(np.float32))


def top(logits: np.ndarray) -> Top:
    return Top(*best(logits, 20))


@given(LOGITS)
@settings(max_examples=40, deadline=None)
def test_a_distribution_is_no_distance_from_itself(logits: np.ndarray):
    ids, logp = best(logits, 64)
    assert kl(ids, logp.astype(np.float32), top(logits)) < 1e-5


@given(LOGITS, LOGITS)
@settings(max_examples=40, deadline=None)
def test_buckets_never_make_the_distance_larger_than_it_is(one: np.ndarray, other: np.ndarray):
    ids, logp = best(one, 64)
    p, log_p, log_q = np.exp(log_softmax(one)), log_softmax(one), log_softmax(other)
    exact = float((p * (log_p - log_q)).sum())
    assert -1e-9 <= kl(ids, logp, top(other)) <= exact + 1e-5


def test_a_server_that_says_something_else_entirely_is_far_away():
    """Also when none of its tokens is among the reference's 64, where one rest bucket would hide everything."""
    one = np.linspace(0, 60, VOCABULARY)
    ids, logp = best(one, 64)
    assert kl(ids, logp, top(one[::-1].copy())) > 3


def test_against_the_formula_by_hand():
    # p = (0.6, 0.3, rest 0.1), the server says q = (0.5, 0.25, rest 0.25)
    ids, logp = np.array([1, 2]), np.log(np.array([0.6, 0.3], np.float32))
    server = Top(np.array([1, 2]), np.log(np.array([0.5, 0.25])))
    wanted = 0.6 * np.log(0.6 / 0.5) + 0.3 * np.log(0.3 / 0.25) + 0.1 * np.log(0.1 / 0.25)
    assert kl(ids, logp, server) == pytest.approx(wanted, abs=1e-6)


def test_first_choices_count_only_where_the_reference_has_one():
    near = np.full(VOCABULARY, -9.0)
    near[[3, 4]] = [1.0, 0.95]  # a lead of 0.05 nat: no choice to speak of
    sure = np.full(VOCABULARY, -9.0)
    sure[[5, 6]] = [3.0, 1.0]
    flipped = sure.copy()
    flipped[[5, 6]] = [1.0, 3.0]
    found = distance(variant(near, sure, sure), [top(near[::-1].copy()), top(sure), top(flipped)])
    assert (found.decided, found.top1, found.tokens) == (2, 0.5, 3)
    assert found.worst_kl > found.mean_kl > 0


def test_rows_say_which_positions_the_answers_belong_to():
    a, b = np.linspace(0, 9, VOCABULARY), np.linspace(9, 0, VOCABULARY)
    assert distance(variant(a, b), [top(b)], rows=[1]).mean_kl < 1e-5
    assert distance(variant(a, b), [top(b)], rows=[0]).mean_kl > 0.5


def test_how_much_an_adapter_changes_is_measured_the_same_way():
    a, b = np.linspace(0, 9, VOCABULARY), np.linspace(9, 0, VOCABULARY)
    assert between(variant(a), variant(a)) < 1e-5
    # A lower bound of the true divergence (several nats here): ids outside both lists are lumped together.
    assert 0.5 < between(variant(a), variant(b)) < 9
    assert as_variant([top(a), top(b)]).ids.shape == (2, 20)
