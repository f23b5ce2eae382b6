"""What is known of each rank, and what of it counts for a prompt: trust, policies, sizes, the loop that is closed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from enginehouse.core.kv.accuracy import WINDOW, Verdict
from enginehouse.core.kv.knowledge import MOST_SCHEMES, Knowledge
from enginehouse.core.kv.rank import Rank
from enginehouse.core.kv.sent import EVENTS_DUE, Sent
from enginehouse.core.kv.settings import KvSettings
from enginehouse.core.kv.slices import SLICE, slices, weight
from enginehouse.core.kv.view import Policy, RankView
from enginehouse.core.routing.candidate import Candidate, Load
from enginehouse.domain.kv import Cleared, KvBatch, RankKey, Removed, Trust
from enginehouse.testing.kv import fake_stored

TOKENS = list(range(1000, 1100))
"""Six blocks of 16, and four tokens."""
A, B = RankKey("a", 1, 0), RankKey("b", 2, 0)


def candidate(key: RankKey, rank: int | None = None) -> Candidate:
    return Candidate(key.engine_id, key.incarnation, key.engine_id, rank, Load(), 0)


class World:
    def __init__(self, *keys: RankKey, events: bool = True, trust: Trust = Trust.SYNCED, block_size: int = 16) -> None:
        self.knowledge = Knowledge(KvSettings(kv_index_blocks=10_000))
        self.now = 100.0
        self.wrong: list[str] = []
        for key in keys or (A, B):
            self.knowledge.join(key, block_size=block_size, events=events, wrong=self.wrong.append)
            if events:
                self.knowledge.believe(key, trust, "")

    def held(self, key: RankKey, tokens: list[int] | None = None, *, rank: int | None = None) -> int:
        self.knowledge.check()
        prompt = self.knowledge.prompt(tokens or TOKENS, session=None, now=self.now)
        return prompt.held(candidate(key, rank))

    def send(self, key: RankKey, tokens: list[int] | None = None) -> Sent:
        prompt = self.knowledge.prompt(tokens or TOKENS, session=None, now=self.now)
        sent = self.knowledge.dispatched(prompt, candidate(key))
        assert sent is not None
        return sent

    def compute(self, key: RankKey, tokens: list[int] | None = None) -> None:
        """A request whose answer began, and of which the engine did not say how much was cached."""
        sent = self.send(key, tokens)
        sent.answered(self.now)
        sent.ended(None)

    def ask(self, key: RankKey, cached: int, times: int = 1, tokens: list[int] | None = None) -> None:
        """Requests that find so many tokens, long after whatever was on its way."""
        for _ in range(times):
            self.now += 10_000
            sent = self.send(key, tokens)
            sent.answered(self.now)
            sent.ended(cached)
        self.now += 10_000

    def view(self, key: RankKey) -> RankView:
        return next(rank for rank in self.knowledge.view(self.now).ranks if rank.key == key)


def test_what_events_say_is_held_in_whole_blocks() -> None:
    world = World()
    world.knowledge.apply(A, fake_stored(TOKENS))
    assert (world.held(A), world.held(B)) == (96, 0)
    assert world.held(A, TOKENS[:50]) == 48
    assert world.held(A, [1, *TOKENS]) == 0


def test_the_last_token_is_computed_whatever_the_cache_holds() -> None:
    world = World()
    world.knowledge.apply(A, fake_stored(TOKENS))
    assert world.held(A, TOKENS[:96]) == 80
    assert world.held(A, TOKENS[:97]) == 96
    assert world.held(A, TOKENS[:1]) == 0


@pytest.mark.parametrize(
    ("trust", "credited"),
    [(Trust.SYNCED, 96), (Trust.PARTIAL, 96), (Trust.REPLAYING, 0), (Trust.GAP, 0), (Trust.NONE, 0)],
)
def test_k4_only_what_is_trusted_is_credited(trust: Trust, credited: int) -> None:
    world = World()
    world.knowledge.apply(A, fake_stored(TOKENS))
    world.knowledge.believe(A, trust, "batch 7 is missing")
    assert world.held(A) == credited
    seen = world.view(A)
    assert (seen.policy, seen.policy_reason) == (
        (Policy.EVENTS, "") if credited else (Policy.APPROXIMATE, "batch 7 is missing")
    )


def test_k4_while_events_are_missing_our_own_choices_still_count() -> None:
    world = World()
    world.send(A).answered(world.now)
    world.now += EVENTS_DUE
    assert world.held(A) == 0, "synced: what no event tells is not there"
    world.knowledge.clear(A, sent=False)
    world.knowledge.believe(A, Trust.GAP, "batch 7 is missing")
    assert world.held(A) == 96


def test_k2_a_restarted_engine_holds_nothing() -> None:
    world = World()
    world.knowledge.apply(A, fake_stored(TOKENS))
    sent = world.send(A)
    world.knowledge.clear(A, sent=True)
    assert world.held(A) == 0
    for trust in Trust:
        world.knowledge.believe(A, trust, "")
        assert world.held(A) == 0
    sent.answered(world.now)  # of the old process; says nothing of the new one
    assert world.held(A) == 0


def test_k2_what_leaves_takes_its_knowledge_along_and_comes_back_empty() -> None:
    world = World()
    world.knowledge.apply(A, fake_stored(TOKENS))
    sent = world.send(A)
    world.knowledge.leave(A)
    assert world.held(A) == 0
    again = A._replace(incarnation=3)
    world.knowledge.join(again, block_size=16)
    world.knowledge.believe(again, Trust.SYNCED, "")
    assert world.held(again) == 0
    sent.answered(world.now)
    sent.ended(96)
    assert (world.held(again), world.held(A)) == (0, 0)
    assert [rank.key for rank in world.knowledge.view(world.now).ranks] == [B, again]
    while world.knowledge.sweep(100):
        pass
    assert world.knowledge.view(world.now).blocks == 0


def test_an_engine_that_clears_its_cache() -> None:
    world = World()
    world.knowledge.apply(A, fake_stored(TOKENS))
    world.send(A).answered(world.now)
    world.knowledge.apply(A, Cleared())
    assert world.held(A) == 0
    world.knowledge.believe(A, Trust.NONE, "")
    assert world.held(A) == 0


def test_removed_blocks() -> None:
    world = World()
    world.knowledge.apply(A, fake_stored(TOKENS))
    world.knowledge.apply(A, Removed([6, 5]))
    assert world.held(A) == 64


def test_k5_the_size_in_the_events_is_believed_and_the_conflict_shows() -> None:
    world = World(A, block_size=16)
    world.knowledge.apply(A, fake_stored(TOKENS, block_size=32))
    assert world.held(A) == 96
    assert world.held(A, TOKENS[:80]) == 64
    assert (world.view(A).block_size, world.view(A).block_sizes_disagree) == (32, True)


def test_k5_sizes_side_by_side() -> None:
    world = World(A, B)
    world.knowledge.apply(A, fake_stored(TOKENS, block_size=16))
    world.knowledge.apply(B, fake_stored(TOKENS, block_size=4))
    assert (world.held(A), world.held(B)) == (96, 96)
    assert (world.held(A, TOKENS[:60]), world.held(B, TOKENS[:60])) == (48, 56)
    assert not world.view(A).block_sizes_disagree


def test_k5_an_engine_of_ever_other_sizes_does_not_cost_more_and_more() -> None:
    world = World(A)
    for size in (2, 4, 8, 16, 32):
        world.knowledge.apply(A, fake_stored(TOKENS, block_size=size, base=size * 1000))
    assert world.view(A).blocks == 50 + 25 + 12 + 6
    world.knowledge.leave(A)
    world.knowledge.check()


def test_k5_pages_of_one_token() -> None:
    world = World(A, block_size=1)
    world.knowledge.apply(A, fake_stored(TOKENS, block_size=1))
    assert world.held(A) == 99
    world.knowledge.apply(A, Removed(list(range(100, 29, -1))))
    assert world.held(A) == 29


def test_k6_events_that_cannot_be_had_are_no_silence() -> None:
    world = World(A, trust=Trust.NONE)
    world.knowledge.believe(A, Trust.NONE, "tcp://10.0.0.1:5557 cannot be reached")
    seen = world.view(A)
    assert (seen.policy, seen.policy_reason) == (Policy.APPROXIMATE, "tcp://10.0.0.1:5557 cannot be reached")
    assert (seen.event_age, seen.hits) == (None, 0)
    world.send(A)
    assert world.held(A) == 96


def test_k7_each_rank_has_its_own() -> None:
    first, second = RankKey("a", 1, 8), RankKey("a", 1, 9)
    world = World(first, second)
    world.knowledge.apply(second, fake_stored(TOKENS))
    assert (world.held(first, rank=8), world.held(second, rank=9)) == (0, 96)
    assert world.held(first, rank=0) == 0, "a rank that is not there is no error"


def test_the_only_rank_is_rank_0() -> None:
    world = World(A)
    world.knowledge.apply(A, fake_stored(TOKENS))
    assert world.held(A, rank=None) == 96


def test_a_choice_counts_at_once_and_until_its_events_must_have_come() -> None:
    world = World()
    sent = world.send(A)
    assert (world.held(A), world.held(B)) == (96, 0)
    world.now += 1000  # it may queue as long as it likes
    assert world.held(A) == 96
    sent.answered(world.now)
    world.now += EVENTS_DUE - 0.1
    assert world.held(A) == 96
    world.now += 0.1
    assert world.held(A) == 0
    world.knowledge.apply(A, fake_stored(TOKENS))
    assert world.held(A) == 96


def test_a_choice_that_comes_to_nothing_counts_no_more() -> None:
    world = World()
    sent = world.send(A)
    sent.ended(None)
    assert (world.held(A), world.view(A).expected_blocks) == (0, 0)
    sent.ended(None)
    assert world.view(A).expected_blocks == 0


def test_without_events_what_was_computed_is_held_for_its_time() -> None:
    world = World(events=False)
    world.compute(A)
    assert (world.held(A), world.view(A).approximate_blocks) == (96, 6)
    world.now += KvSettings.kv_approximate_ttl / 2 - 1
    assert world.held(A) == 96
    assert world.view(A).policy_reason == "it publishes no KV events"
    world.now += KvSettings.kv_approximate_ttl
    assert world.view(A).approximate_blocks == 0, "aged though nobody asked"
    assert world.held(A) == 0


def test_without_events_a_choice_counts_at_once_and_no_more_when_it_comes_to_nothing() -> None:
    world = World(events=False)
    world.send(A, [7, *TOKENS]).ended(None)
    assert (world.held(A, [7, *TOKENS]), world.view(A).approximate_blocks) == (0, 0)
    sent = world.send(A)
    world.now += 1000  # it may queue as long as it likes
    assert world.held(A) == 96
    sent.ended(None)
    assert (world.held(A), world.view(A).expected_blocks) == (0, 0)


def test_without_events_what_was_computed_is_no_longer_on_its_way() -> None:
    world = World(events=False)
    sent = world.send(A)
    sent.answered(world.now)
    assert (world.view(A).expected_blocks, world.view(A).approximate_blocks) == (0, 6)
    sent.ended(96)
    assert world.held(A) == 96


def test_without_events_what_is_on_its_way_is_predicted() -> None:
    world = World(events=False)
    world.send(A)
    world.send(A).ended(96)
    assert (world.view(A).predicted_tokens, world.view(A).correction) == (96, 1.0)


def test_without_events_no_more_is_held_than_fits() -> None:
    knowledge = Knowledge(KvSettings(kv_index_blocks=10_000))
    knowledge.join(A, block_size=16, capacity_tokens=64, events=False)
    for first in range(50):
        prompt = knowledge.prompt([first, *TOKENS], session=None, now=0)
        sent = knowledge.dispatched(prompt, candidate(A))
        assert sent is not None
        sent.answered(0)
        assert knowledge.view(0).ranks[0].approximate_blocks <= 4


def test_what_we_sent_to_all_is_bounded_too() -> None:
    keys = [RankKey(f"e{n}", n, 0) for n in range(10)]
    world = World(*keys, events=False)
    for key in keys:
        for first in range(100):
            world.compute(key, [first, *TOKENS])
    assert sum(rank.approximate_blocks for rank in world.knowledge.view(0).ranks) <= 10_000 // 4


def test_rooms_are_shared_once_however_many_join_or_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[int] = []
    share = Rank.share

    def counted(rank: Rank, room: int) -> None:
        shared.append(room)
        share(rank, room)

    monkeypatch.setattr(Rank, "share", counted)
    keys = [RankKey(f"e{n}", n, 0) for n in range(50)]
    world = World(*keys, events=False)
    for _ in range(3):
        world.compute(keys[0])
    assert shared == [10_000 // 4 // 50] * 50
    for key in keys[10:]:
        world.knowledge.leave(key)
    world.compute(keys[0])
    assert shared[50:] == [10_000 // 4 // 10] * 10


def test_what_was_sent_still_has_its_share_after_a_clear() -> None:
    keys = [RankKey(f"e{n}", n, 0) for n in range(50)]
    world = World(*keys, events=False)
    world.compute(keys[0])
    world.knowledge.clear(keys[0], sent=True)
    assert world.view(keys[0]).approximate_blocks == 0
    for first in range(100):
        world.compute(keys[0], [first, *TOKENS])
    assert 0 < world.view(keys[0]).approximate_blocks <= 10_000 // 4 // 50


def test_k5_all_sizes_together_are_bounded_and_those_of_most_ranks_count() -> None:
    keys = [RankKey(f"e{n}", n, 0) for n in range(2 * MOST_SCHEMES)]
    world = World(*keys)
    late = keys[-2:]
    for n, key in enumerate(keys[:-2]):
        world.knowledge.apply(key, fake_stored(TOKENS, block_size=n + 3))
    for key in late:
        world.knowledge.apply(key, fake_stored(TOKENS, block_size=30))
    assert [world.held(key) for key in late] == [90, 90]
    assert sum(world.held(key) > 0 for key in keys) == MOST_SCHEMES + 1
    for key in keys[: MOST_SCHEMES - 1]:
        world.knowledge.leave(key)
    assert all(world.held(key) for key in keys[MOST_SCHEMES - 1 :])


def test_what_an_engine_says_was_cached_is_no_more_than_the_prompt_and_no_less_than_nothing() -> None:
    world = World(A)
    world.knowledge.apply(A, fake_stored(TOKENS))
    for cached in (10**400, -(10**400)):
        world.send(A).ended(cached)
    seen = world.view(A)
    assert (seen.reported_tokens, seen.prompt_tokens, sum(seen.errors)) == (100, 200, 2)


def test_k2_what_was_under_way_to_the_process_of_before_is_not_in_the_cache_of_this_one() -> None:
    world = World(events=False)
    world.compute(A, TOKENS[:64])
    early = [world.send(A) for _ in range(5)]
    assert world.held(A) == 96
    world.knowledge.lost(A)
    assert world.held(A) == 0
    for sent in early:
        sent.answered(world.now)
        sent.ended(0)
    assert (world.held(A), world.view(A).correction) == (0, 1.0), "nor is it judged"
    world.compute(A)
    assert world.held(A) == 96


def test_k2_events_tell_for_themselves_whether_it_is_another_process() -> None:
    world = World(A)
    world.knowledge.apply(A, fake_stored(TOKENS))
    world.knowledge.lost(A)
    assert world.held(A) == 96


@pytest.mark.parametrize("sent_too", [True, False])
def test_what_was_chosen_before_a_clear_says_nothing_of_what_is_known_after_it(sent_too: bool) -> None:
    world = World(A)
    world.knowledge.apply(A, fake_stored(TOKENS))
    early = [world.send(A) for _ in range(WINDOW)]
    world.knowledge.clear(A, sent=sent_too)
    for sent in early:
        sent.answered(world.now)
        sent.ended(0)
    seen = world.view(A)
    assert (seen.verdict, seen.correction, seen.requests) == (Verdict.RIGHT, 1.0, WINDOW)
    world.knowledge.apply(A, fake_stored(TOKENS))
    world.ask(A, cached=0, times=WINDOW)
    assert world.view(A).verdict is Verdict.WRONG


def test_predictions_are_corrected() -> None:
    world = World(A)
    world.knowledge.apply(A, fake_stored(TOKENS))
    world.ask(A, cached=0, times=4)
    assert world.view(A).policy is Policy.EVENTS
    assert world.held(A) == 48, "7/8 to the fourth, in whole blocks"


def test_one_race_takes_nothing_off() -> None:
    world = World(A)
    world.knowledge.apply(A, fake_stored(TOKENS))
    world.ask(A, cached=0)
    assert world.held(A) == 96


def test_persistently_wrong_events_are_not_believed_until_they_are_right_again() -> None:
    world = World(A)
    world.knowledge.apply(A, fake_stored(TOKENS))
    world.ask(A, cached=0, times=WINDOW - 1)
    assert not world.wrong
    world.ask(A, cached=0)
    seen = world.view(A)
    assert (seen.policy, seen.verdict, len(world.wrong)) == (Policy.APPROXIMATE, Verdict.WRONG, 1)
    assert "half of what its events promised" in seen.policy_reason
    assert world.held(A) == 0
    world.ask(A, cached=96, times=WINDOW - 1)
    assert world.view(A).policy is Policy.APPROXIMATE
    world.ask(A, cached=96)
    assert (world.view(A).policy, world.view(A).policy_reason) == (Policy.EVENTS, "")
    assert world.held(A) == 96
    assert len(world.wrong) == 1


def test_events_that_proved_wrong_do_not_count_at_all() -> None:
    world = World(A)
    world.knowledge.apply(A, fake_stored(TOKENS))
    world.ask(A, cached=40, times=WINDOW)
    seen = world.view(A)
    assert (seen.verdict, seen.predicted_tokens) == (Verdict.WRONG, 96 * WINDOW)
    assert world.held(A) == 0
    world.ask(A, cached=40)
    assert world.view(A).predicted_tokens == 96 * WINDOW, "they predict nothing"


def test_what_is_held_against_events_is_forgotten_with_them() -> None:
    world = World(A)
    world.knowledge.apply(A, fake_stored(TOKENS))
    world.ask(A, cached=0, times=WINDOW - 1)
    world.knowledge.clear(A, sent=False)
    world.knowledge.apply(A, fake_stored(TOKENS))
    assert world.held(A) == 96
    world.ask(A, cached=0, times=WINDOW - 1)
    assert world.view(A).verdict is Verdict.RIGHT


def test_k6_hits_that_no_event_foretold_make_it_approximate() -> None:
    world = World(A)
    world.ask(A, cached=96, times=WINDOW)
    seen = world.view(A)
    assert (seen.policy, seen.verdict) == (Policy.APPROXIMATE, Verdict.BLIND)
    assert "told of less than half" in seen.policy_reason
    world.compute(A)
    world.now += EVENTS_DUE
    assert world.held(A) == 96
    world.knowledge.apply(A, fake_stored([7, *TOKENS]))
    assert world.held(A, [7, *TOKENS]) == 96, "what they do tell still counts"


def test_requests_on_their_way_are_no_reason_to_call_events_blind() -> None:
    world = World(A)
    first = world.send(A)
    first.answered(world.now)
    for _ in range(3 * WINDOW):
        sent = world.send(A)
        sent.answered(world.now)
        sent.ended(96)
    assert world.view(A).verdict is Verdict.RIGHT


def test_requests_that_meet_at_the_engine_are_no_reason_to_call_events_wrong() -> None:
    """SGLang caches a prompt when it is done: of several at once none finds it, though all are on their way."""
    world = World(A)
    for _ in range(3 * WINDOW):
        world.send(A).ended(0)
    assert (world.view(A).verdict, world.view(A).correction) == (Verdict.RIGHT, 1.0)


def test_an_engine_that_does_not_say_says_nothing() -> None:
    world = World(A)
    world.knowledge.apply(A, fake_stored(TOKENS))
    for _ in range(3 * WINDOW):
        world.send(A).ended(None)
    assert (world.view(A).requests, world.view(A).verdict, world.held(A)) == (0, Verdict.RIGHT, 96)


def test_untrusted_events_are_not_judged() -> None:
    world = World(A, trust=Trust.GAP)
    world.knowledge.apply(A, fake_stored(TOKENS))
    world.ask(A, cached=0, times=3 * WINDOW)
    world.knowledge.believe(A, Trust.SYNCED, "")
    assert world.held(A) == 96


def test_numbers_for_people() -> None:
    world = World(A)
    world.knowledge.apply(A, fake_stored(TOKENS))
    world.ask(A, cached=96, times=3)
    world.ask(A, cached=0)
    seen = world.view(A)
    assert (seen.requests, seen.hits, seen.prompt_tokens) == (4, 3, 400)
    assert (seen.predicted_tokens, seen.reported_tokens, sum(seen.errors)) == (384, 288, 4)
    assert seen.blocks == 6
    heard = world.knowledge.heard(A)
    heard.applied(5, world.now - 3)
    assert replace(world.view(A), heard=heard).event_age == 3


def test_a_prompt_looks_up_anew_for_another_choice() -> None:
    world = World(A)
    prompt = world.knowledge.prompt(TOKENS, session="s", now=world.now)
    assert prompt.held(candidate(A)) == 0
    world.knowledge.apply(A, fake_stored(TOKENS))
    prompt.again(world.now)
    assert prompt.held(candidate(A)) == 96
    assert (prompt.tokens, prompt.session) == (100, "s")


def test_another_namespace_is_another_cache() -> None:
    world = World(A)
    event = fake_stored(TOKENS)
    event.namespace = "adapter"
    world.knowledge.apply(A, event)
    assert world.held(A) == 0
    prompt = world.knowledge.prompt(TOKENS, namespace="adapter", session=None, now=0)
    assert prompt.held(candidate(A)) == 96


def test_large_events_are_cut_and_mean_the_same() -> None:
    tokens = list(range(SLICE * 16 * 3 + 160))
    batch = KvBatch([fake_stored(tokens), Removed(list(range(2, SLICE * 2 + 2)))])
    cut = list(slices(batch))
    assert [weight(event) - 1 for event in cut] == [SLICE, SLICE, SLICE, 10, SLICE, SLICE]
    world = World(A)
    for event in cut[:4]:
        world.knowledge.apply(A, event)
    assert world.held(A, tokens) == len(tokens) - 16
    for event in cut[4:]:
        world.knowledge.apply(A, event)
    assert world.held(A, tokens) == 16
    assert world.view(A).blocks == SLICE + 10
