"""The list+watch machine as transcripts: what is said to it, and what it asks for."""

from __future__ import annotations

import pytest

from enginehouse.core import watch
from enginehouse.core.pods import PodRecord
from enginehouse.domain.engine import Target
from enginehouse.domain.feed import FeedApplied, FeedEvent, FeedListed, Wanted

PACE = watch.Pace(resync_interval=30, watch_timeout=300, idle_limit=45, backoff_limit=10)
UNREACHABLE = watch.Failure(watch.FailureKind.UNREACHABLE, "connection refused")
BROKEN = watch.Failure(watch.FailureKind.BROKEN, "connection reset")


def refused(status: int, retry_after: float | None = None) -> watch.Failure:
    return watch.Failure(watch.FailureKind.REFUSED, f"HTTP {status}", status, retry_after)


def record(owner: str, version: str = "1", *, eligible: bool = True) -> PodRecord:
    reason = "" if eligible else "not ready"
    one = Wanted(f"{owner}:1", owner, owner, Target("10.0.0.1", 1), owner, eligible, reason)
    return PodRecord(owner, version, (one,))


class Machine:
    """A machine with a clock of its own; every answer is checked against the invariants."""

    def __init__(self) -> None:
        self.state = watch.WatchState(feed="pods")
        self.now = 100.0
        self.posted: list[FeedEvent] = []

    def say(self, happened: watch.Input, *, roll: float = 0.5) -> list[watch.Intent]:
        self.state, intents = watch.step(self.state, happened, self.now, PACE, roll)
        self.state.check()
        wake = watch.wake_at(self.state)
        assert wake is None or wake > self.now
        self.posted += [intent.event for intent in intents if isinstance(intent, watch.Post)]
        return [intent for intent in intents if not isinstance(intent, watch.Post)]

    def wait(self, seconds: float) -> list[watch.Intent]:
        self.now += seconds
        return self.say(watch.Tick())

    def wake(self) -> tuple[float, list[watch.Intent]]:
        """Go to when it wants to be woken: the seconds until then, and what it asks for."""
        wake = watch.wake_at(self.state)
        assert wake is not None
        seconds = wake - self.now
        return seconds, self.wait(seconds)

    @property
    def listing(self) -> int:
        assert self.state.listing is not None
        return self.state.listing.attempt

    @property
    def watching(self) -> int:
        assert self.state.watch is not None
        return self.state.watch.attempt

    def listed(self, *records: PodRecord, version: str = "10") -> list[watch.Intent]:
        return self.say(watch.PageListed(self.listing, version, records))

    def synced(self, *records: PodRecord, version: str = "10") -> Machine:
        """Past the first listing, with a watch that is open."""
        self.say(watch.Tick())
        self.listed(*records, version=version)
        self.say(watch.WatchOpened(self.watching))
        self.posted.clear()
        return self


def owners(event: FeedEvent) -> set[str]:
    return {one.owner for one in event.wanted}


def test_it_lists_first_and_watches_from_the_version_of_the_list() -> None:
    machine = Machine()
    assert machine.say(watch.Tick()) == [watch.ListPage(1, None)]
    assert watch.status_word(machine.state) == "listing"
    assert machine.listed(record("a", "7"), version="10") == [watch.OpenWatch(2, "10", 450)]
    assert machine.posted == [FeedListed("pods", record("a").wanted)]
    machine.say(watch.WatchOpened(2))
    assert watch.status_word(machine.state) == "watching"
    assert machine.state.confirmed_at == machine.now


def test_pages_are_one_listing() -> None:
    machine = Machine()
    machine.say(watch.Tick())
    assert machine.say(watch.PageListed(1, "10", (record("a"),), "more")) == [watch.ListPage(1, "more")]
    assert machine.posted == []
    assert machine.say(watch.PageListed(1, "10", (record("b"),))) == [watch.OpenWatch(2, "10", 450)]
    assert [owners(event) for event in machine.posted] == [{"a", "b"}]


def test_d2_an_expired_continue_token_starts_the_list_over() -> None:
    machine = Machine()
    machine.say(watch.Tick())
    machine.say(watch.PageListed(1, "10", (record("a"),), "more"))
    machine.say(watch.ListFailed(1, refused(410)))
    _, asked = machine.wake()
    assert asked == [watch.ListPage(2, None)]
    machine.listed(record("b"))
    assert [owners(event) for event in machine.posted] == [{"b"}]


def test_events_are_upserts_and_replays_are_silent() -> None:
    machine = Machine().synced(record("a"))
    machine.say(watch.PodChanged(machine.watching, record("b", "11")))
    machine.say(watch.PodChanged(machine.watching, record("b", "11")))
    machine.say(watch.PodChanged(machine.watching, record("a", "12", eligible=False)))
    machine.say(watch.PodChanged(machine.watching, record("a", "13", eligible=False)))
    assert machine.posted == [
        FeedApplied("pods", "b", record("b").wanted),
        FeedApplied("pods", "a", record("a", eligible=False).wanted),
    ]
    assert machine.state.version == "13"


def test_d4_bare_deleted_withdraws_at_once() -> None:
    machine = Machine().synced(record("a"), record("b"))
    machine.say(watch.PodGone(machine.watching, "a", "11"))
    assert machine.posted == [FeedApplied("pods", "a", ())]
    assert set(machine.state.known) == {"b"}
    assert machine.state.version == "11"


def test_d9_a_deletion_that_matches_nothing_is_counted() -> None:
    machine = Machine().synced(record("a"))
    machine.say(watch.PodGone(machine.watching, "other", "11"))
    assert machine.state.unmatched_deletions == 1
    assert set(machine.state.known) == {"a"}


def test_a_deletion_of_the_old_pod_after_the_new_one_keeps_the_new_one() -> None:
    machine = Machine().synced(record("old"))
    machine.say(watch.PodChanged(machine.watching, record("new", "12")))
    machine.say(watch.PodGone(machine.watching, "old", "11"))
    assert set(machine.state.known) == {"new"}


def test_bookmarks_move_the_version_and_are_no_pods() -> None:
    machine = Machine().synced(record("a"))
    machine.now += 60
    machine.say(watch.Bookmark(machine.watching, "99"))
    assert machine.state.version == "99"
    assert machine.state.confirmed_at == machine.now
    assert machine.posted == []


def test_unknown_events_are_a_sign_of_life_and_nothing_else() -> None:
    machine = Machine().synced(record("a"), version="10")
    assert machine.say(watch.IgnoredLine(machine.watching)) == []
    assert (machine.state.version, machine.posted) == ("10", [])


def test_a_watch_that_ended_in_good_order_is_resumed_without_listing() -> None:
    machine = Machine().synced(record("a"))
    machine.say(watch.Bookmark(machine.watching, "50"))
    machine.now += 20
    machine.say(watch.WatchEnded(machine.watching))
    seconds, asked = machine.wake()
    assert seconds <= 0.2
    assert asked == [watch.OpenWatch(3, "50", 450)]
    assert watch.error(machine.state) is None


@pytest.mark.parametrize("failure", [BROKEN, UNREACHABLE, watch.Failure(watch.FailureKind.SILENT, "no answer")])
def test_d1_a_watch_that_broke_begins_again_with_a_list(failure: watch.Failure) -> None:
    machine = Machine().synced(record("a"), record("b"))
    machine.now += 10
    machine.say(watch.WatchEnded(machine.watching, failure))
    assert watch.error(machine.state) == failure.text
    seconds, asked = machine.wake()
    assert seconds <= 0.2
    assert asked == [watch.ListPage(3, None)]
    assert machine.listed(record("b"), version="20") == [watch.OpenWatch(4, "20", 450)]
    assert [owners(event) for event in machine.posted] == [{"b"}]


@pytest.mark.parametrize("inside", [True, False], ids=["inside a 200", "as HTTP status"])
def test_d2_expiry_lists_once_per_failure_with_growing_pauses(inside: bool) -> None:
    machine = Machine().synced(record("a"))
    pauses = []
    for _ in range(3):
        attempt = machine.watching
        if inside:
            machine.say(watch.WatchOpened(attempt))
            asked = machine.say(watch.StreamFailed(attempt, refused(410)), roll=0.999)
            assert asked == [watch.StopWatch(attempt)]
            # The stream closes after its ERROR; that is no further failure.
            assert machine.say(watch.WatchEnded(attempt)) == []
        else:
            machine.say(watch.WatchEnded(attempt, refused(410)), roll=0.999)
        assert machine.state.version is None
        pause, asked = machine.wake()
        pauses.append(pause)
        assert asked == [watch.ListPage(attempt + 1, None)]
        machine.listed(record("b"), version="20")
    assert pauses == pytest.approx([0.2, 0.4, 0.8], rel=0.01)
    assert machine.state.listings == 4
    assert set(machine.state.known) == {"b"}


def test_d2_too_large_resource_version_drops_the_version() -> None:
    machine = Machine().synced(record("a"), version="999")
    machine.say(watch.WatchEnded(machine.watching, refused(504)))
    _, asked = machine.wake()
    assert asked == [watch.OpenWatch(3, "999", 450)]
    machine.say(watch.WatchEnded(3, refused(504)))
    _, asked = machine.wake()
    assert asked == [watch.ListPage(4, None)]


def test_other_errors_inside_the_stream_resume_once_and_then_list() -> None:
    machine = Machine().synced(record("a"))
    machine.say(watch.PodChanged(machine.watching, record("a", "15")))
    machine.say(watch.StreamFailed(machine.watching, refused(500)))
    assert machine.state.version == "15"
    _, asked = machine.wake()
    assert asked == [watch.OpenWatch(3, "15", 450)]
    machine.say(watch.WatchOpened(3))
    machine.say(watch.StreamFailed(3, refused(500)))
    _, asked = machine.wake()
    assert asked == [watch.ListPage(4, None)]


def test_a_resumed_watch_that_spoke_may_be_resumed_again() -> None:
    machine = Machine().synced(record("a"))
    for version in ("15", "16", "17"):
        machine.say(watch.Bookmark(machine.watching, version))
        machine.say(watch.StreamFailed(machine.watching, refused(500)))
        _, asked = machine.wake()
        assert [type(intent) for intent in asked] == [watch.OpenWatch]


def test_too_short_watches_are_failures_with_pauses() -> None:
    machine = Machine().synced(record("a"))
    pauses = []
    for _ in range(6):
        machine.say(watch.WatchOpened(machine.watching))
        machine.say(watch.WatchEnded(machine.watching), roll=0.999)
        pause, asked = machine.wake()
        pauses.append(pause)
        if isinstance(asked[0], watch.ListPage):
            machine.listed(record("a"))
    assert pauses == sorted(pauses)
    assert pauses[-1] > 5


def test_d3_a_watch_past_its_own_timeout_is_dropped() -> None:
    machine = Machine().synced(record("a"))
    old = machine.watching
    for _ in range(200):  # the listings fail, so that only the watch's own deadline is left
        if machine.state.listing is not None:
            machine.say(watch.ListFailed(machine.listing, BROKEN))
        _, asked = machine.wake()
        if watch.StopWatch(old) in asked:
            break
    assert machine.now - 100 == pytest.approx(450 + 30)
    assert machine.state.watch is None
    assert set(machine.state.known) == {"a"}


def test_d3_a_half_open_watch_is_found_by_the_next_listing() -> None:
    machine = Machine().synced(record("a"))
    old = machine.watching
    seconds, asked = machine.wake()
    assert seconds <= 30
    assert asked == [watch.ListPage(3, None)]
    asked = machine.listed(record("a"), record("added", "18"), version="20")
    assert asked == [watch.StopWatch(old), watch.OpenWatch(4, "20", 450)]
    assert [owners(event) for event in machine.posted] == [{"a", "added"}]
    assert machine.state.missed == 1
    machine.say(watch.PodGone(old, "added", "30"))  # what the dropped watch still says counts for nothing
    assert set(machine.state.known) == {"a", "added"}


def test_d3_a_watch_that_is_silent_for_long_is_replaced_at_a_listing() -> None:
    machine = Machine().synced(record("a"))
    began, old = machine.now, machine.watching
    for _ in range(3):
        machine.wake()
        if asked := machine.listed(record("a"), version="20"):
            break
    assert asked == [watch.StopWatch(old), watch.OpenWatch(machine.watching, "20", 450)]
    assert machine.now - began <= 60


def test_a_listing_that_agrees_leaves_a_talking_watch_alone() -> None:
    machine = Machine().synced(record("a"))
    for _ in range(5):
        machine.wake()
        machine.say(watch.Bookmark(machine.watching, "20"))
        assert machine.listed(record("a"), version="20") == []
    assert machine.watching == 2
    assert machine.state.missed == 0


def test_a_listing_that_the_watch_has_overtaken_moves_nothing_backwards() -> None:
    machine = Machine().synced(record("a"))
    machine.wake()
    machine.say(watch.PodGone(machine.watching, "a", "30"))
    machine.posted.clear()
    assert machine.listed(record("a"), version="20") == []
    assert machine.posted == []
    assert machine.state.known == {}
    assert machine.state.version == "30"


def test_an_overtaken_listing_whose_watch_broke_is_taken_again_at_once() -> None:
    machine = Machine().synced(record("a"))
    machine.wake()
    listing = machine.listing
    machine.say(watch.PodGone(machine.watching, "a", "30"))
    machine.say(watch.WatchEnded(machine.watching, BROKEN))
    assert machine.say(watch.PageListed(listing, "20", (record("a"),))) == [watch.ListPage(listing + 1, None)]
    assert machine.state.known == {}
    machine.listed(version="40")
    assert machine.state.version == "40"


def test_d22_an_outage_keeps_the_pods_and_asks_about_every_second() -> None:
    machine = Machine().synced(record("a"))
    machine.say(watch.WatchEnded(machine.watching, BROKEN))
    pauses = []
    for _ in range(300):
        pause, asked = machine.wake()
        pauses.append(pause)
        assert [type(intent) for intent in asked] == [watch.ListPage]
        machine.say(watch.ListFailed(machine.listing, UNREACHABLE), roll=0.999)
        assert watch.status_word(machine.state) == "backing off"
        assert watch.next_try_at(machine.state) is not None
    assert 1.0 <= max(pauses) <= 1.2
    assert set(machine.state.known) == {"a"}
    assert machine.posted == []
    # On its way back it answers with errors first: those begin with short pauses again.
    machine.wake()
    machine.say(watch.ListFailed(machine.listing, refused(403)))
    pause, _ = machine.wake()
    assert pause <= 0.2
    machine.listed(record("b"), version="77")
    assert [owners(event) for event in machine.posted] == [{"b"}]
    assert (machine.state.version, machine.state.list_trouble.last) == ("77", None)


def test_d20_a_refusal_is_kept_with_its_text_and_tried_more_and_more_slowly() -> None:
    machine = Machine()
    machine.say(watch.Tick())
    pauses = []
    for _ in range(10):
        machine.say(watch.ListFailed(machine.listing, refused(403)), roll=0.999)
        assert watch.error(machine.state) == "HTTP 403"
        pauses.append(machine.wake()[0])
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10], rel=0.01)
    machine.listed(record("a"))
    assert set(machine.state.known) == {"a"}
    machine.say(watch.WatchOpened(machine.watching))
    assert watch.error(machine.state) is None


def test_a_listing_that_fails_beside_a_watch_leaves_the_watch_alone() -> None:
    machine = Machine().synced(record("a"))
    machine.wake()
    assert machine.say(watch.ListFailed(machine.listing, refused(403))) == []
    assert watch.status_word(machine.state) == "watching"
    assert watch.error(machine.state) == "HTTP 403"


def test_d21_credentials_are_read_again_once_at_once_and_then_with_pauses() -> None:
    machine = Machine()
    machine.say(watch.Tick())
    asked = machine.say(watch.ListFailed(machine.listing, refused(401)))
    assert asked == [watch.ReloadCredentials(), watch.ListPage(2, None)]
    asked = machine.say(watch.ListFailed(machine.listing, refused(401)))
    assert asked == [watch.ReloadCredentials()]
    pause, asked = machine.wake()
    assert pause > 0
    assert asked == [watch.ListPage(3, None)]


def test_d21_the_watch_reads_credentials_again_too() -> None:
    machine = Machine().synced(record("a"))
    machine.now += 20
    machine.say(watch.WatchEnded(machine.watching))
    machine.wake()
    asked = machine.say(watch.WatchEnded(machine.watching, refused(401)))
    assert asked == [watch.ReloadCredentials(), watch.OpenWatch(4, "10", 450)]


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured(status: int) -> None:
    machine = Machine()
    machine.say(watch.Tick())
    machine.say(watch.ListFailed(machine.listing, refused(status, 17)))
    pause, _ = machine.wake()
    assert 17 <= pause < 18


def test_an_absurd_retry_after_is_bounded() -> None:
    machine = Machine()
    machine.say(watch.Tick())
    machine.say(watch.ListFailed(machine.listing, refused(503, 1e6)))
    assert machine.wake()[0] < 121


def test_the_pauses_reset_after_a_healthy_spell_not_on_connecting() -> None:
    machine = Machine().synced(record("a"))
    for _ in range(5):
        machine.say(watch.WatchOpened(machine.watching))
        machine.say(watch.WatchEnded(machine.watching, BROKEN), roll=0.999)
        pause, _ = machine.wake()
        machine.listed(record("a"))
    assert pause > 3
    machine.say(watch.WatchOpened(machine.watching))
    machine.now += 6
    machine.say(watch.WatchEnded(machine.watching, BROKEN), roll=0.999)
    assert machine.wake()[0] <= 0.2


def test_answers_of_attempts_that_are_over_change_nothing() -> None:
    machine = Machine().synced(record("a"))
    before = machine.state
    for late in (
        watch.PageListed(1, "5", ()),
        watch.ListFailed(1, BROKEN),
        watch.WatchOpened(99),
        watch.PodChanged(99, record("ghost")),
        watch.PodGone(99, "a", "6"),
        watch.Bookmark(99, "7"),
        watch.StreamFailed(99, refused(410)),
        watch.WatchEnded(99, BROKEN),
    ):
        assert machine.say(late) == []
    assert machine.state == before
    assert machine.posted == []


def test_listings_of_many_frontends_spread_out() -> None:
    machines = [Machine().synced() for _ in range(2)]
    for machine, roll in zip(machines, (0.0, 0.999), strict=True):
        machine.wake()
        machine.say(watch.PageListed(machine.listing, "10", ()), roll=roll)
    assert machines[0].state.list_at < machines[1].state.list_at <= machines[1].now + 30
