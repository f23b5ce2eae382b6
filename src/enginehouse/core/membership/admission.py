"""Decides who of those that answer may join: topology (once), role, and agreement with the fleet's model card.

The card is nobody's property: it is what the members agree on, and it goes with the last of them. When that leaves
others waiting who were refused for their disagreement, they join in the same step.
"""

from __future__ import annotations

from collections.abc import Sequence

from enginehouse.core.handover import no_meeting_point
from enginehouse.core.membership.card import ModelCard, card_of, choose_seed, disagreement, joined
from enginehouse.core.membership.fleet import Entry
from enginehouse.core.membership.roles import RoleRefused, Topology, decide_topology, settle_role
from enginehouse.core.membership.states import Cause, State
from enginehouse.core.membership.turn import Turn
from enginehouse.domain.engine import EngineInfo, Role

_Named = tuple[str, Entry]


def admit(turn: Turn, *, afresh: bool = False) -> None:
    """Let in, keep out or let go back in whoever asks; bring card and topology up to date.

    afresh: make the card anew even though no member left or changed.
    """
    settled, insiders, outsiders, kept = _sort(turn)
    infos, card = _standing(turn, settled, afresh or turn.parted)
    for group in (insiders, outsiders):
        if not group:
            continue
        _decide_topology(turn, group)
        if card is None:
            card = _seed(turn, group)
        for engine_id, entry in group:
            card = _judge(turn, engine_id, entry, card, infos)
    # Engines that are only unready keep the card of an otherwise empty fleet: they are about to return to it.
    turn.card = card if infos or not kept else turn.card


def _standing(turn: Turn, settled: Sequence[_Named], afresh: bool) -> tuple[list[EngineInfo], ModelCard | None]:
    """What the members say, and their card.

    Those in doubt come last, and one that no longer agrees (the card moved on while it was not ready) has no say.
    """
    infos = [_info(entry) for _, entry in settled if entry.state is State.SERVING]
    before = turn.card
    if before is None:
        return infos, None
    if infos and not afresh:
        return infos, before
    card = card_of(before.model, infos, before) if infos else None
    for _, entry in settled:
        info = _info(entry)
        if entry.state is State.SUSPECT and disagreement(card or before, info) is None:
            infos.append(info)
            card = card_of(before.model, infos, before)
    return infos, card


def _sort(turn: Turn) -> tuple[list[_Named], list[_Named], list[_Named], bool]:
    """Members nobody asks about; members to be judged again; others that ask; is any member only unready."""
    settled: list[_Named] = []
    insiders: list[_Named] = []
    outsiders: list[_Named] = []
    kept = False
    for engine_id, slot in turn.slots.items():
        entry = slot.current
        if entry is None:
            continue
        asks = engine_id in turn.applicants
        if entry.state in (State.SERVING, State.SUSPECT):
            (insiders if asks else settled).append((engine_id, entry))
        elif asks or entry.state is State.REFUSED:
            outsiders.append((engine_id, entry))
        elif entry.state is State.UNREADY and entry.role is not None:
            kept = True
    for group in (settled, insiders, outsiders):
        group.sort(key=lambda named: named[1].incarnation)
    return settled, insiders, outsiders, kept


def _judge(
    turn: Turn, engine_id: str, entry: Entry, card: ModelCard | None, infos: list[EngineInfo]
) -> ModelCard | None:
    """Move one that asks to where it belongs; the card with it, if it joins."""
    cause = turn.applicants.pop(engine_id, Cause.CARD_MOVED)
    info = _info(entry)
    role, reason = _role(turn, entry)
    if reason is None:
        if card is None:
            reason = f"serves model {info.model!r}, but this fleet serves {turn.before.model!r}"
        else:
            reason = disagreement(card, info)
    if reason is None:
        assert card is not None
        assert role is not None
        if cause is Cause.PROBED and entry.canary:
            reason = "its predecessor was mute: it has to generate a token first"
            turn.check(engine_id, turn.move(engine_id, entry, cause, State.SUSPECT, reason, role=role))
        else:
            turn.move(engine_id, entry, cause, State.SERVING, role=role, next_at=_next_check(turn, entry))
        infos.append(info)
        return joined(card, info)
    if entry.state is State.REFUSED:
        turn.change(engine_id, entry, reason=reason)
    else:
        turn.move(engine_id, entry, cause, State.REFUSED, reason, role=None, next_at=_next_check(turn, entry))
    return card


def _next_check(turn: Turn, entry: Entry) -> float | None:
    return None if entry.checking else turn.now + turn.settings.check_interval


def _seed(turn: Turn, group: Sequence[_Named]) -> ModelCard | None:
    infos = [_info(entry) for _, entry in group if _role(turn, entry)[1] is None]
    index = choose_seed(turn.before.model, infos)
    if index is None:
        return None
    seed = infos[index]
    before = turn.card
    if before is not None and disagreement(before, seed) is None:
        return card_of(before.model, [seed], before)
    name = turn.before.model or seed.model
    if turn.before.model is None and before is not None and before.model in (seed.model, *seed.aliases):
        name = before.model
    return card_of(name, [seed])


def _decide_topology(turn: Turn, group: Sequence[_Named]) -> None:
    if turn.topology is not Topology.AUTO:
        return
    sound = [entry for _, entry in group if not _contradicts(entry)]
    index = choose_seed(turn.before.model, [_info(entry) for entry in sound])
    if index is None:
        return
    hints = [
        want.target.role for slot in turn.slots.values() for want in slot.wants.values() if want.target is not None
    ]
    first = _info(sound[index]).role or _hint(sound[index])
    turn.topology, turn.topology_reason = decide_topology(first, hints)


def _role(turn: Turn, entry: Entry) -> tuple[Role | None, str | None]:
    """The role, or the reason why there is none for it here."""
    try:
        role = settle_role(_hint(entry), _info(entry).role, turn.topology)
    except RoleRefused as refusal:
        return None, str(refusal)
    if role is Role.PREFILL and entry.target is not None:
        reason = no_meeting_point(entry.target, _info(entry))
        return None if reason else role, reason
    return role, None


def _contradicts(entry: Entry) -> bool:
    hint, reported = _hint(entry), _info(entry).role
    return hint is not None and reported is not None and hint != reported


def _hint(entry: Entry) -> Role | None:
    return entry.target.role if entry.target is not None else None


def _info(entry: Entry) -> EngineInfo:
    assert entry.info is not None
    return entry.info
