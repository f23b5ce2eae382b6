"""One rule of the cursor after the other, as conversations: what is said, what is answered, what is believed then."""

from __future__ import annotations

import dataclasses

import pytest

from enginehouse.core.kv import cursor
from enginehouse.core.kv.cursor import (
    Apply,
    AskReplay,
    Clear,
    Connected,
    Discard,
    Distrusted,
    Drop,
    Event,
    Held,
    Hold,
    Intent,
    Live,
    Lost,
    Overflowed,
    Release,
    Replayed,
    ReplayEnded,
    Undecodable,
    WakeAt,
    Woke,
)
from enginehouse.domain.kv import Trust

SYNCED, PARTIAL, GAP, REPLAYING, NONE = Trust.SYNCED, Trust.PARTIAL, Trust.GAP, Trust.REPLAYING, Trust.NONE


class Talk:
    """One cursor. Batches of one publisher have the publisher's name and their number as mark."""

    def __init__(self, *, can_replay: bool = True) -> None:
        self.state = cursor.CursorState(can_replay=can_replay)
        self.now = 100.0

    def say(self, event: Event, *expected: Intent, trust: Trust) -> None:
        self.state, intents = cursor.step(self.state, event, self.now)
        self.state.check()
        assert intents == expected
        assert self.state.trust is trust, self.state.reason

    def live(self, seq: int, *expected: Intent, trust: Trust, of: str = "A") -> None:
        self.say(Live(seq, mark(seq, of)), *expected, trust=trust)

    def held(self, seq: int, *expected: Intent, trust: Trust, of: str = "A") -> None:
        self.say(Held(seq, mark(seq, of)), *expected, trust=trust)

    def replayed(self, seq: int, *expected: Intent, trust: Trust, of: str = "A", ask: int | None = None) -> None:
        ask = self.state.asks if ask is None else ask
        self.say(Replayed(ask, seq, mark(seq, of)), *expected, trust=trust)

    def ended(self, *expected: Intent, trust: Trust, complete: bool = True, ask: int | None = None) -> None:
        self.say(ReplayEnded(self.state.asks if ask is None else ask, complete), *expected, trust=trust)


def mark(seq: int, of: str = "A") -> bytes:
    return f"{of}{seq}".encode()


def replaying() -> Talk:
    """A talk whose history is being fetched, of which nothing has come yet."""
    talk = Talk()
    talk.say(Connected(), AskReplay(1, 0), trust=REPLAYING)
    return talk


def synced(last: int, *, live: bool = True) -> Talk:
    """A talk that has come to batch `last` and is believed. live: the last one came live."""
    talk = replaying()
    for seq in range(last + (not live)):
        talk.replayed(seq, Apply(), trust=REPLAYING)
    talk.ended(Release(), trust=SYNCED)
    if live:
        talk.live(last, Apply(), trust=SYNCED)
    return talk


def following(last: int) -> Talk:
    """A talk without replay that has seen everything up to `last`."""
    talk = Talk(can_replay=False)
    talk.say(Connected(), trust=NONE)
    for seq in range(last + 1):
        talk.live(seq, Apply(), trust=SYNCED)
    return talk


# The start.


def test_history_is_replayed_and_what_came_live_meanwhile_follows_it() -> None:
    talk = replaying()
    talk.live(2, Hold(), trust=REPLAYING)
    talk.live(3, Hold(), trust=REPLAYING)
    for seq in range(3):
        talk.replayed(seq, Apply(), trust=REPLAYING)
    talk.ended(Release(), trust=SYNCED)
    talk.held(2, Drop(), trust=SYNCED)
    talk.held(3, Apply(), trust=SYNCED)
    talk.live(4, Apply(), trust=SYNCED)
    assert talk.state.reason == ""


def test_an_engine_that_has_not_worked_yet_is_synced() -> None:
    talk = replaying()
    talk.ended(Release(), trust=SYNCED)
    talk.live(0, Apply(), trust=SYNCED)


def test_a_buffer_that_begins_later_makes_the_view_partial() -> None:
    talk = replaying()
    talk.replayed(7, Apply(), trust=REPLAYING)
    talk.replayed(8, Apply(), trust=REPLAYING)
    talk.ended(Release(), trust=PARTIAL)
    assert "begins with batch 7" in talk.state.reason
    assert talk.state.counts.lost == 0


def test_without_replay_the_view_begins_with_the_first_batch() -> None:
    talk = Talk(can_replay=False)
    talk.say(Connected(), trust=NONE)
    assert "nothing has come yet" in talk.state.reason
    talk.live(12, Apply(), trust=PARTIAL)
    assert talk.state.reason == "what came before batch 12 is not known"
    talk.live(13, Apply(), trust=PARTIAL)


def test_without_replay_a_first_batch_0_is_all_of_history() -> None:
    following(2)


def test_an_end_marker_alone_is_no_history_when_live_batches_show_that_there_was_one() -> None:
    talk = replaying()
    talk.live(5, Hold(), trust=REPLAYING)
    talk.ended(Release(), trust=NONE)
    talk.held(5, Apply(), trust=PARTIAL)


def test_k6_nothing_is_known_of_an_engine_that_cannot_be_reached() -> None:
    talk = Talk()
    assert talk.state.trust is NONE
    talk.say(Lost("tcp://10.0.0.1:5557 cannot be reached"), trust=NONE)
    assert talk.state.reason == "tcp://10.0.0.1:5557 cannot be reached"


# In order and out of it.


def test_what_a_replay_has_overtaken_is_a_duplicate_and_no_restart() -> None:
    talk = replaying()
    talk.live(1, Hold(), trust=REPLAYING)
    for seq in range(5):
        talk.replayed(seq, Apply(), trust=REPLAYING)
    talk.live(2, Drop(), trust=REPLAYING)
    talk.ended(Release(), trust=SYNCED)
    talk.held(1, Drop(), trust=SYNCED)
    talk.live(3, Drop(), trust=SYNCED)
    talk.live(4, Drop(), trust=SYNCED)
    talk.live(5, Apply(), trust=SYNCED)
    assert (talk.state.counts.restarts, talk.state.counts.duplicates) == (0, 4)


def test_the_same_batch_twice_counts_once() -> None:
    talk = synced(3)
    talk.live(3, Drop(), trust=SYNCED)
    assert talk.state.counts.duplicates == 1


def test_a_first_live_batch_with_a_known_number_is_checked() -> None:
    talk = synced(4, live=False)
    talk.live(2, Drop(), AskReplay(2, 4), trust=GAP)
    talk.replayed(4, Drop(), trust=GAP)
    talk.ended(Release(), trust=SYNCED)
    talk.live(3, Drop(), trust=SYNCED)


def test_a_first_live_batch_that_is_the_last_of_the_replay_proves_itself() -> None:
    talk = synced(4, live=False)
    talk.live(4, Drop(), trust=SYNCED)


# Gaps.


def test_a_gap_is_mended_by_a_replay() -> None:
    talk = synced(3)
    talk.live(6, Hold(), AskReplay(2, 4), trust=GAP)
    talk.replayed(4, Apply(), trust=GAP)
    talk.replayed(5, Apply(), trust=GAP)
    talk.replayed(6, Apply(), trust=GAP)
    talk.ended(Release(), trust=SYNCED)
    talk.held(6, Drop(), trust=SYNCED)
    assert (talk.state.counts.gaps, talk.state.counts.lost) == (1, 0)


def test_k4_a_gap_without_replay_credits_nothing() -> None:
    talk = following(3)
    talk.live(6, Clear(), Apply(), trust=GAP)
    assert talk.state.reason == "batches 4 to 5 did not come, and cannot be had again"
    talk.live(7, Apply(), trust=PARTIAL)
    assert talk.state.reason == "batches 4 to 5 did not come"
    assert (talk.state.counts.gaps, talk.state.counts.lost) == (1, 2)


def test_k4_two_gaps_in_a_row_without_replay() -> None:
    talk = following(3)
    talk.live(6, Clear(), Apply(), trust=GAP)
    talk.live(9, Clear(), Apply(), trust=GAP)
    talk.live(10, Apply(), trust=PARTIAL)


def test_k4_a_gap_that_the_buffer_no_longer_has() -> None:
    talk = synced(3)
    talk.live(9, Hold(), AskReplay(2, 4), trust=GAP)
    talk.replayed(7, Clear(), Apply(), trust=GAP)
    talk.replayed(8, Apply(), trust=GAP)
    talk.ended(Release(), trust=PARTIAL)
    talk.held(9, Apply(), trust=PARTIAL)
    assert talk.state.counts.lost == 3


def test_k4_a_gap_of_which_the_replay_has_nothing() -> None:
    talk = synced(3)
    talk.live(9, Hold(), AskReplay(2, 4), trust=GAP)
    talk.ended(Clear(), Release(), trust=GAP)
    talk.held(9, Apply(), trust=GAP)
    talk.live(10, Apply(), trust=PARTIAL)
    assert talk.state.counts.lost == 5


def test_a_gap_among_live_batches_that_are_held() -> None:
    talk = replaying()
    talk.live(0, Hold(), trust=REPLAYING)
    talk.live(3, Hold(), trust=REPLAYING)
    talk.replayed(0, Apply(), trust=REPLAYING)
    talk.ended(AskReplay(2, 1), trust=REPLAYING)
    talk.replayed(1, Apply(), trust=REPLAYING)
    talk.replayed(2, Apply(), trust=REPLAYING)
    talk.ended(Release(), trust=SYNCED)
    talk.held(0, Drop(), trust=SYNCED)
    talk.held(3, Apply(), trust=SYNCED)


# Replays that fail.


def test_a_hole_in_a_replay_is_asked_for_again() -> None:
    talk = replaying()
    talk.replayed(0, Apply(), trust=REPLAYING)
    talk.replayed(2, Drop(), trust=REPLAYING)
    talk.replayed(3, Drop(), trust=REPLAYING)
    talk.ended(AskReplay(2, 1), trust=REPLAYING)
    for seq in (1, 2, 3):
        talk.replayed(seq, Apply(), trust=REPLAYING)
    talk.ended(Release(), trust=SYNCED)


def test_a_hole_that_stays_cuts_history() -> None:
    talk = replaying()
    talk.replayed(0, Apply(), trust=REPLAYING)
    talk.replayed(2, Drop(), trust=REPLAYING)
    talk.ended(AskReplay(2, 1), trust=REPLAYING)
    talk.replayed(2, Clear(), Apply(), trust=REPLAYING)
    talk.ended(Release(), trust=PARTIAL)
    assert talk.state.counts.lost == 1


def test_a_replay_without_an_end_marker_goes_on_where_it_fell_silent() -> None:
    talk = replaying()
    talk.replayed(0, Apply(), trust=REPLAYING)
    talk.ended(AskReplay(2, 1), trust=REPLAYING, complete=False)
    talk.ended(Release(), trust=SYNCED)


def test_silence_is_no_proof_of_loss() -> None:
    talk = synced(3)
    talk.live(6, Hold(), AskReplay(2, 4), trust=GAP)
    talk.ended(AskReplay(3, 4), trust=GAP, complete=False)
    talk.ended(AskReplay(4, 4), trust=GAP, complete=False)
    talk.ended(Discard(), WakeAt(130.0), trust=GAP, complete=False)
    talk.live(7, Drop(), trust=GAP)
    talk.now = 129.9
    talk.say(Woke(), trust=GAP)
    talk.now = 130.0
    talk.say(Woke(), AskReplay(5, 4), trust=GAP)
    talk.live(8, Hold(), trust=GAP)
    for seq in (4, 5, 6):
        talk.replayed(seq, Apply(), trust=GAP)
    talk.ended(AskReplay(6, 7), trust=GAP)
    talk.replayed(7, Apply(), trust=GAP)
    talk.ended(Release(), trust=SYNCED)
    talk.held(8, Apply(), trust=SYNCED)


def test_a_replay_that_brings_something_may_fall_silent_for_ever() -> None:
    talk = replaying()
    for seq in range(9):
        talk.replayed(seq, Apply(), trust=REPLAYING)
        talk.ended(AskReplay(seq + 2, seq + 1), trust=REPLAYING, complete=False)


def test_a_replay_that_never_answers_is_given_up_for_live_batches() -> None:
    talk = replaying()
    talk.ended(AskReplay(2, 0), trust=REPLAYING, complete=False)
    talk.ended(AskReplay(3, 0), trust=REPLAYING, complete=False)
    talk.ended(Discard(), WakeAt(130.0), trust=REPLAYING, complete=False)
    talk.now = 131.0
    talk.say(Woke(), AskReplay(4, 0), trust=REPLAYING)
    talk.live(5, Hold(), trust=REPLAYING)
    talk.ended(AskReplay(5, 0), trust=REPLAYING, complete=False)
    talk.ended(AskReplay(6, 0), trust=REPLAYING, complete=False)
    talk.ended(Release(), trust=NONE, complete=False)
    talk.held(5, Apply(), trust=PARTIAL)
    assert talk.state.reason == "the engine's replay does not answer"
    talk.live(7, Clear(), Apply(), trust=GAP)
    talk.live(8, Apply(), trust=PARTIAL)
    talk.say(Lost("gone"), Clear(), trust=GAP)
    talk.say(Connected(), AskReplay(7, 0), trust=REPLAYING)


def test_what_an_older_replay_brings_counts_no_more() -> None:
    talk = replaying()
    talk.replayed(0, Apply(), trust=REPLAYING)
    talk.ended(AskReplay(2, 1), trust=REPLAYING, complete=False)
    talk.replayed(1, Drop(), trust=REPLAYING, ask=1)
    talk.ended(trust=REPLAYING, ask=1)
    talk.replayed(1, Apply(), trust=REPLAYING)


def test_a_replay_that_is_of_another_publisher_is_not_asked_again() -> None:
    talk = replaying()
    talk.live(1, Hold(), trust=REPLAYING)
    talk.replayed(0, Apply(), trust=REPLAYING, of="B")
    talk.replayed(1, Drop(), Clear(), Release(), trust=GAP, of="B")
    talk.held(1, Apply(), trust=GAP)
    talk.live(2, Apply(), trust=PARTIAL)
    talk.live(4, Clear(), Apply(), trust=GAP)


def test_a_replay_of_another_publisher_that_ends_before_the_live_batches() -> None:
    talk = replaying()
    talk.live(1, Hold(), trust=REPLAYING)
    talk.live(2, Hold(), trust=REPLAYING)
    talk.replayed(0, Apply(), trust=REPLAYING, of="B")
    talk.replayed(1, Apply(), trust=REPLAYING, of="B")
    talk.ended(Release(), trust=SYNCED)
    talk.held(1, Clear(), Apply(), trust=GAP)
    talk.held(2, Apply(), trust=PARTIAL)


# Restarts.


def test_k2_a_restart_at_0_clears_what_was_known() -> None:
    talk = synced(3)
    talk.now = 200.0
    talk.live(0, Clear(), AskReplay(2, 0), Drop(), trust=REPLAYING, of="B")
    talk.live(1, Hold(), trust=REPLAYING, of="B")
    talk.replayed(0, Apply(), trust=REPLAYING, of="B")
    talk.ended(Release(), trust=SYNCED)
    talk.held(1, Apply(), trust=SYNCED, of="B")
    talk.live(2, Apply(), trust=SYNCED, of="B")
    assert talk.state.counts.restarts == 1


def test_k2_a_restart_without_replay() -> None:
    talk = following(3)
    talk.live(0, Clear(), Apply(), trust=SYNCED, of="B")
    talk.live(1, Apply(), trust=SYNCED, of="B")


def test_k2_a_restart_of_which_the_first_batches_are_missed() -> None:
    talk = following(3)
    talk.live(2, Clear(), Apply(), trust=GAP, of="B")
    talk.live(3, Apply(), trust=PARTIAL, of="B")


@pytest.mark.parametrize("last", [0, 5])
def test_k2_a_restart_that_begins_with_the_number_heard_last(last: int) -> None:
    talk = synced(last)
    talk.now = 200.0
    talk.live(last, Clear(), AskReplay(2, 0), Drop(), trust=REPLAYING, of="B")


@pytest.mark.parametrize("last", [0, 5])
def test_k2_a_restart_that_comes_to_the_last_number_of_the_replay(last: int) -> None:
    talk = synced(last, live=False)
    talk.now = 200.0
    talk.live(last, Clear(), AskReplay(2, 0), Drop(), trust=REPLAYING, of="B")


def test_k2_a_restart_is_not_believed_before_the_replay_has_what_showed_it() -> None:
    talk = synced(4, live=False)
    talk.live(0, Drop(), AskReplay(2, 4), trust=GAP, of="B")
    talk.ended(Clear(), AskReplay(3, 0), trust=REPLAYING)
    talk.ended(Release(), trust=NONE)
    talk.live(1, Apply(), trust=PARTIAL, of="B")


def test_k2_a_restart_before_anything_came_live() -> None:
    talk = synced(4, live=False)
    talk.live(0, Drop(), AskReplay(2, 4), trust=GAP, of="B")
    talk.ended(Clear(), AskReplay(3, 0), trust=REPLAYING)
    talk.replayed(0, Apply(), trust=REPLAYING, of="B")
    talk.ended(Release(), trust=SYNCED)


def test_k2_restarts_one_after_the_other_do_not_make_the_engine_replay_without_end() -> None:
    talk = synced(3)
    talk.live(0, Clear(), WakeAt(102.0), Drop(), trust=REPLAYING, of="B")
    talk.live(1, Drop(), trust=REPLAYING, of="B")
    talk.live(0, WakeAt(102.0), Drop(), trust=REPLAYING, of="C")
    talk.now = 102.0
    talk.say(Woke(), AskReplay(2, 0), trust=REPLAYING)
    talk.replayed(0, Apply(), trust=REPLAYING, of="C")
    talk.ended(Release(), trust=SYNCED)


# Connections.


def test_a_lost_connection_credits_nothing_and_the_same_batch_again_mends_it() -> None:
    talk = synced(3)
    talk.say(Lost("broken"), trust=GAP)
    talk.say(Connected(), AskReplay(2, 3), trust=GAP)
    talk.live(5, Hold(), trust=GAP)
    talk.replayed(3, Drop(), trust=GAP)
    talk.replayed(4, Apply(), trust=GAP)
    talk.ended(Release(), trust=SYNCED)
    talk.held(5, Apply(), trust=SYNCED)
    assert talk.state.counts.restarts == 0


def test_k2_a_publisher_that_has_reached_the_same_numbers_is_found_out() -> None:
    talk = synced(3)
    talk.say(Lost("broken"), trust=GAP)
    talk.say(Connected(), AskReplay(2, 3), trust=GAP)
    talk.replayed(3, Drop(), Clear(), AskReplay(3, 0), trust=REPLAYING, of="B")
    talk.replayed(4, Drop(), trust=REPLAYING, of="B", ask=2)
    for seq in range(5):
        talk.replayed(seq, Apply(), trust=REPLAYING, of="B")
    talk.ended(Release(), trust=SYNCED)
    assert talk.state.counts.restarts == 1


def test_k2_a_publisher_that_has_not_come_so_far_is_another() -> None:
    talk = synced(3)
    talk.say(Lost("broken"), trust=GAP)
    talk.say(Connected(), AskReplay(2, 3), trust=GAP)
    talk.live(1, Hold(), trust=GAP, of="B")
    talk.ended(Clear(), AskReplay(3, 0), trust=REPLAYING)
    talk.replayed(0, Apply(), trust=REPLAYING, of="B")
    talk.replayed(1, Apply(), trust=REPLAYING, of="B")
    talk.ended(Release(), trust=SYNCED)
    talk.held(1, Drop(), trust=SYNCED, of="B")


def test_k2_where_the_same_publisher_cannot_be_proven_the_view_begins_anew() -> None:
    talk = synced(3)
    talk.say(Lost("broken"), trust=GAP)
    talk.say(Connected(), AskReplay(2, 3), trust=GAP)
    talk.replayed(4, Clear(), Apply(), trust=GAP)
    talk.ended(Release(), trust=PARTIAL)
    assert "connection was lost" in talk.state.reason


def test_k2_without_replay_nothing_outlives_the_connection() -> None:
    talk = following(3)
    talk.say(Lost("broken"), Clear(), trust=GAP)
    talk.say(Lost("cannot be reached"), trust=GAP)
    assert talk.state.reason == "cannot be reached"
    talk.say(Connected(), trust=GAP)
    talk.live(4, Apply(), trust=GAP)
    talk.live(5, Apply(), trust=PARTIAL)


def test_a_new_connection_that_was_not_lost_first() -> None:
    talk = synced(3)
    talk.say(Connected(), AskReplay(2, 3), trust=GAP)
    talk = following(3)
    talk.say(Connected(), Clear(), trust=GAP)


def test_a_connection_lost_in_the_middle_of_a_replay() -> None:
    talk = replaying()
    talk.replayed(0, Apply(), trust=REPLAYING)
    talk.live(5, Hold(), trust=REPLAYING)
    talk.say(Lost("broken"), Discard(), trust=GAP)
    talk.replayed(1, Drop(), trust=GAP)
    talk.ended(trust=GAP)
    talk.say(Connected(), AskReplay(2, 0), trust=GAP)
    talk.replayed(0, Drop(), trust=GAP)
    talk.replayed(1, Apply(), trust=GAP)
    talk.ended(Release(), trust=SYNCED)


def test_a_connection_lost_while_the_replay_rests() -> None:
    talk = replaying()
    for ask in (2, 3):
        talk.ended(AskReplay(ask, 0), trust=REPLAYING, complete=False)
    talk.ended(Discard(), WakeAt(130.0), trust=REPLAYING, complete=False)
    talk.say(Lost("broken"), trust=NONE)
    talk.now = 200.0
    talk.say(Woke(), trust=NONE)
    talk.say(Connected(), AskReplay(4, 0), trust=REPLAYING)


def test_what_will_not_come_back_is_forgotten() -> None:
    talk = synced(3)
    talk.say(Lost("the engine offers no events", permanent=True), Clear(), trust=NONE)
    assert talk.state.reason == "the engine offers no events"
    talk.live(4, Drop(), trust=NONE)


# The rest.


def test_no_room_while_a_replay_runs_makes_it_asked_again() -> None:
    talk = replaying()
    talk.live(3, Hold(), trust=REPLAYING)
    talk.say(Overflowed(), trust=REPLAYING)
    talk.replayed(0, Apply(), trust=REPLAYING)
    talk.ended(AskReplay(2, 1), trust=REPLAYING)
    for seq in (1, 2, 3):
        talk.replayed(seq, Apply(), trust=REPLAYING)
    talk.ended(Release(), trust=SYNCED)


def test_no_room_for_batches_that_nobody_has_seen_makes_a_replay_asked_again_too() -> None:
    talk = replaying()
    talk.replayed(0, Apply(), trust=REPLAYING)
    talk.say(Overflowed(), trust=REPLAYING)
    talk.ended(AskReplay(2, 1), trust=REPLAYING)
    talk.replayed(1, Apply(), trust=REPLAYING)
    talk.ended(Release(), trust=SYNCED)


def test_no_room_and_a_replay_that_has_not_what_was_dropped() -> None:
    talk = replaying()
    talk.live(3, Hold(), trust=REPLAYING)
    talk.say(Overflowed(), trust=REPLAYING)
    for seq in range(3):
        talk.replayed(seq, Apply(), trust=REPLAYING)
    talk.ended(AskReplay(2, 3), trust=REPLAYING)
    talk.ended(Clear(), Release(), trust=GAP)
    talk.live(4, Apply(), trust=GAP)


def test_no_room_for_live_batches_is_a_gap_though_no_number_shows_it() -> None:
    talk = synced(3)
    talk.say(Overflowed(), AskReplay(2, 4), trust=GAP)
    talk.replayed(4, Apply(), trust=GAP)
    talk.ended(Release(), trust=SYNCED)
    talk = following(3)
    talk.say(Overflowed(), Clear(), trust=GAP)
    talk.live(4, Apply(), trust=GAP)
    talk.live(5, Apply(), trust=PARTIAL)


def test_a_batch_that_cannot_be_read_may_have_had_removals() -> None:
    talk = synced(3)
    talk.live(4, Apply(), trust=SYNCED)
    talk.say(Undecodable(4), Clear(), trust=GAP)
    talk.live(5, Apply(), trust=PARTIAL)
    assert talk.state.reason == "batch 4 could not be read"
    assert talk.state.counts.lost == 1


def test_a_replayed_batch_that_cannot_be_read_makes_the_view_partial() -> None:
    talk = replaying()
    talk.replayed(0, Apply(), trust=REPLAYING)
    talk.say(Undecodable(0), Clear(), trust=REPLAYING)
    talk.replayed(1, Apply(), trust=REPLAYING)
    talk.ended(Release(), trust=PARTIAL)


def test_a_view_that_has_proven_wrong_is_started_over() -> None:
    talk = synced(3)
    talk.now = 200.0
    talk.say(Distrusted("predicted 512 cached tokens, had 0"), Clear(), AskReplay(2, 0), trust=REPLAYING)
    assert talk.state.reason == "predicted 512 cached tokens, had 0"
    for seq in range(4):
        talk.replayed(seq, Apply(), trust=REPLAYING)
    talk.ended(Release(), trust=SYNCED)
    talk = following(3)
    talk.say(Distrusted("wrong"), Clear(), trust=GAP)
    talk.live(4, Apply(), trust=GAP)
    talk.live(5, Apply(), trust=PARTIAL)


def test_a_mark_is_the_start_of_a_batch() -> None:
    assert cursor.mark(b"x" * 10_000) == b"x" * 64


def test_a_partial_view_that_is_started_over_can_become_whole() -> None:
    talk = replaying()
    talk.replayed(0, Apply(), trust=REPLAYING)
    talk.say(Undecodable(0), Clear(), trust=REPLAYING)
    talk.ended(Release(), trust=PARTIAL)
    talk.now = 200.0
    talk.say(Distrusted("wrong"), Clear(), AskReplay(2, 0), trust=REPLAYING)
    talk.replayed(0, Apply(), trust=REPLAYING)
    talk.ended(Release(), trust=SYNCED)


def test_starting_over_gives_the_replay_all_its_tries_again() -> None:
    talk = replaying()
    for ask in (2, 3):
        talk.ended(AskReplay(ask, 0), trust=REPLAYING, complete=False)
    talk.now = 200.0
    talk.say(Distrusted("wrong"), Discard(), AskReplay(4, 0), trust=REPLAYING)
    for ask in (5, 6):
        talk.ended(AskReplay(ask, 0), trust=REPLAYING, complete=False)
    talk.ended(Discard(), WakeAt(230.0), trust=REPLAYING, complete=False)


def test_starting_over_asks_a_replay_that_was_given_up() -> None:
    talk = replaying()
    talk.live(1, Hold(), trust=REPLAYING)
    talk.replayed(1, Drop(), Release(), trust=NONE, of="B")
    talk.held(1, Apply(), trust=PARTIAL)
    talk.now = 200.0
    talk.live(0, Clear(), AskReplay(2, 0), Drop(), trust=REPLAYING, of="B")


def test_k4_a_gap_before_the_first_batch_stays_a_gap_until_the_next_in_order() -> None:
    talk = replaying()
    talk.ended(Release(), trust=SYNCED)
    talk.live(5, Hold(), AskReplay(2, 0), trust=GAP)
    talk.ended(Release(), trust=GAP)
    talk.held(5, Apply(), trust=GAP)
    talk.live(6, Apply(), trust=PARTIAL)


def test_k2_a_known_number_while_the_replay_runs_is_checked_at_its_end() -> None:
    talk = replaying()
    for seq in range(3):
        talk.replayed(seq, Apply(), trust=REPLAYING)
    talk.live(0, Drop(), trust=REPLAYING, of="B")
    talk.ended(AskReplay(2, 2), trust=REPLAYING)
    talk.ended(Clear(), AskReplay(3, 0), trust=REPLAYING)
    talk.replayed(0, Apply(), trust=REPLAYING, of="B")
    talk.ended(Release(), trust=SYNCED)


def test_k2_a_known_number_while_a_replay_runs_that_brings_nothing() -> None:
    talk = replaying()
    for seq in range(3):
        talk.replayed(seq, Apply(), trust=REPLAYING)
    talk.ended(AskReplay(2, 3), trust=REPLAYING, complete=False)
    talk.live(0, Drop(), trust=REPLAYING, of="B")
    talk.ended(AskReplay(3, 2), trust=REPLAYING)


def test_k2_a_known_number_is_checked_though_history_was_cut_meanwhile() -> None:
    talk = replaying()
    talk.replayed(0, Apply(), trust=REPLAYING)
    talk.replayed(2, Drop(), trust=REPLAYING)
    talk.replayed(3, Drop(), trust=REPLAYING)
    talk.ended(AskReplay(2, 1), trust=REPLAYING)
    talk.replayed(1, Apply(), trust=REPLAYING)
    talk.ended(AskReplay(3, 2), trust=REPLAYING, complete=False)
    talk.live(0, Drop(), trust=REPLAYING, of="B")
    talk.replayed(3, Clear(), Apply(), trust=REPLAYING)
    talk.ended(AskReplay(4, 3), trust=REPLAYING)


def test_the_newest_live_batch_in_a_replay_proves_that_both_are_of_one_publisher() -> None:
    talk = replaying()
    talk.replayed(0, Apply(), trust=REPLAYING)
    talk.replayed(1, Apply(), trust=REPLAYING)
    talk.live(0, Drop(), trust=REPLAYING)
    talk.live(1, Drop(), trust=REPLAYING)
    talk.live(2, Hold(), trust=REPLAYING)
    talk.replayed(2, Apply(), trust=REPLAYING)
    talk.ended(Release(), trust=SYNCED)


def test_a_proof_is_progress_and_what_is_missing_after_it_is_a_hole() -> None:
    talk = synced(3)
    talk.say(Lost("broken"), trust=GAP)
    talk.say(Connected(), AskReplay(2, 3), trust=GAP)
    talk.replayed(3, Drop(), trust=GAP)
    talk.replayed(5, Drop(), trust=GAP)
    talk.ended(AskReplay(3, 4), trust=GAP)
    talk.replayed(4, Apply(), trust=GAP)
    talk.replayed(5, Apply(), trust=GAP)
    talk.ended(Release(), trust=SYNCED)


def test_what_was_held_before_a_rest_is_the_replays_to_bring() -> None:
    talk = synced(3)
    talk.live(5, Hold(), AskReplay(2, 4), trust=GAP)
    for ask in (3, 4):
        talk.ended(AskReplay(ask, 4), trust=GAP, complete=False)
    talk.ended(Discard(), WakeAt(130.0), trust=GAP, complete=False)
    talk.now = 130.0
    talk.say(Woke(), AskReplay(5, 4), trust=GAP)
    talk.replayed(4, Apply(), trust=GAP)
    talk.ended(AskReplay(6, 5), trust=GAP)


def test_only_tries_in_a_row_count() -> None:
    talk = replaying()
    for ask in (2, 3):
        talk.ended(AskReplay(ask, 0), trust=REPLAYING, complete=False)
    talk.replayed(0, Apply(), trust=REPLAYING)
    for ask in (4, 5, 6):
        talk.ended(AskReplay(ask, 1), trust=REPLAYING, complete=False)
    talk.ended(Discard(), WakeAt(130.0), trust=REPLAYING, complete=False)


def test_no_room_while_a_replay_brings_nothing() -> None:
    talk = replaying()
    talk.say(Overflowed(), trust=REPLAYING)
    talk.ended(AskReplay(2, 0), trust=REPLAYING)


def test_a_live_batch_further_is_what_replace_says_and_leaves_the_state_before_it() -> None:
    fields = [field.name for field in dataclasses.fields(cursor.CursorState)]
    odd = cursor.CursorState(**{name: f"odd {name}" for name in fields})  # type: ignore[arg-type]
    before = dataclasses.replace(odd)
    assert odd.passed(7, b"m") == dataclasses.replace(odd, cursor=7, mark=b"m", live=7, live_mark=b"m")
    assert odd == before
