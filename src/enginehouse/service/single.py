"""What is the same for every attempt on one engine, whatever is asked of it."""

from __future__ import annotations

from enginehouse.ports import LegName, RequestMeter
from enginehouse.service.attempt import Attempt
from enginehouse.service.leg import Leg
from enginehouse.service.request import Choice


class Single:
    """A Work with one leg, but for its `run`."""

    __slots__ = ("_leg", "attempt", "choice")

    def __init__(self, choice: Choice, leg: Leg, attempt: Attempt) -> None:
        self._leg = leg
        self.choice = choice
        self.attempt = attempt

    @property
    def engine(self) -> str:
        return self._leg.member.name

    def hold(self) -> Leg | None:
        return None if self._leg.hold(self.attempt.cut, self.attempt.forsake) else self._leg

    def tell(self, meter: RequestMeter) -> None:
        meter.decided(self._leg.decision.rule, self._leg.decision.predicted)

    def report(self) -> None:
        error = self.attempt.error
        if error is None:
            self._leg.succeeded()
        else:
            self._leg.failed(error)

    def blamed(self) -> tuple[Leg, ...]:
        return (self._leg,)

    @property
    def failed_part(self) -> LegName | None:
        return None
