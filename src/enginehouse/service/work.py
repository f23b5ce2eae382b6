"""What an attempt is to the loop that makes attempts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from enginehouse.core.routing.candidate import Prompt
from enginehouse.ports import LegName, RequestMeter
from enginehouse.service.attempt import Attempt
from enginehouse.service.leg import Leg
from enginehouse.service.request import Choice


class Work(Protocol):
    """One attempt: on one engine, or on two."""

    @property
    def choice(self) -> Choice: ...

    @property
    def attempt(self) -> Attempt: ...

    @property
    def engine(self) -> str:
        """The name of the one that gives the answer."""

    def hold(self) -> Leg | None:
        """Keep its engines from being closed. A leg: that one's was withdrawn since the choice, and none is held."""

    def tell(self, meter: RequestMeter) -> None:
        """What was chosen."""

    async def run(self, prompt: Prompt | None, meter: RequestMeter) -> None:
        """Return at the attempt's end, however it ended, with everything given back. Cancelling it aborts the engines.

        To be called at once after `hold`.
        """

    def report(self) -> None:
        """Tell the fleet which engines did well, and which did not."""

    def blamed(self) -> Collection[Leg]:
        """Legs whose engines this request should not try again."""

    @property
    def failed_part(self) -> LegName | None:
        """Where an attempt on two engines failed."""
