"""vLLM's hand-over with NIXL: a prefill engine keeps a cache for a while, a decode engine fetches it.

Not modelled: heartbeats that renew a lease while the decode request queues, since it fetches at once here.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from enginehouse.mock.handover.legs import Fetch
from enginehouse.mock.handover.lines import Line, hear, say, until_gone
from enginehouse.mock.simulator import Answer

if TYPE_CHECKING:
    from enginehouse.mock.handover.desk import Desk

FAILED = "KV load failure"
_WILD = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(eq=False)
class Lease:
    """Kept for somebody."""

    answer: Answer
    end: asyncio.TimerHandle


class Leases:
    """Both sides of one engine."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._held: dict[str, Lease] = {}
        self._engine_id = str(uuid.uuid4())

    def keep(self, answer: Answer) -> dict[str, Any] | None:
        """Keep the cache of an answer that has ended; returns what the decode engine must be told."""
        desk, settings = self._desk, self._desk.settings
        if desk.faults.handover_keeps_nothing:
            return None
        name = f"{answer.job.rid}-{uuid.uuid4().hex[:8]}"
        seconds = 0.0 if desk.faults.handover_expired else settings.lease
        end = asyncio.get_running_loop().call_later(seconds, self._give_up, name)
        self._held[name] = Lease(answer, end)
        desk.journal.write("lease", rid=answer.job.rid, seconds=seconds)
        prompt = len(answer.job.prompt)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, 1 + -(-prompt // settings.block_size)))],
            "remote_engine_id": self._engine_id,
            "remote_request_id": name,
            "remote_host": _WILD.get(settings.host, settings.host),
            "remote_port": desk.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": prompt,
            "remote_blocks_expiry_time": time.time() + seconds,
            "remote_registration_generation": 1,
            "transfer_mode": "pull",
        }

    def close(self) -> None:
        """Let no timer outlive the engine."""
        for lease in self._held.values():
            lease.end.cancel()
        self._held.clear()

    async def visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A decode engine has come to fetch. What it asked for is given up even if it leaves before it has it."""
        desk = self._desk
        asked = await hear(reader)
        if asked is None:
            return
        while desk.faults.handover_mute:
            await desk.next_change()
        lease = self._asked_for(asked)
        if lease is None:
            say(writer, passed=False)
        else:
            lease.end.cancel()
            say(writer, met=True)
            await desk.met(lease.answer)
            await desk.transfer(lease.answer)
            say(writer, passed=not desk.faults.handover_fails)
            desk.journal.write("lease_released", rid=lease.answer.job.rid)
        await until_gone(reader)

    async def fetch(self, answer: Answer, leg: Fetch) -> None:
        """The decode leg."""
        desk = self._desk
        while desk.faults.handover_mute:
            await desk.next_change()
        if not await self._fetched(answer, leg) or desk.faults.handover_fails:
            desk.fail(answer, FAILED)
            return
        desk.journal.write("passed", rid=answer.job.rid)
        # The last token of a prompt is always computed anew.
        desk.release(answer, cached=len(answer.job.prompt) - 1)

    async def _fetched(self, answer: Answer, leg: Fetch) -> bool:
        params = leg.params
        try:
            where = str(params["remote_host"]), int(params["remote_port"])
            asked = {"request": params["remote_request_id"], "engine": params["remote_engine_id"]}
            if not params["remote_block_ids"]:
                return False
            reader, writer = await asyncio.open_connection(*where)
        except (KeyError, TypeError, ValueError, OSError):
            return False
        try:
            say(writer, **asked, prompt=answer.seed)
            line = await hear(reader)
            if line is not None and "met" in line:
                await self._desk.met(answer)
                line = await hear(reader)
            return line is not None and bool(line["passed"])
        finally:
            writer.close()

    def _asked_for(self, asked: Line) -> Lease | None:
        lease = self._held.get(asked["request"])
        if lease is None or asked["engine"] != self._engine_id or asked["prompt"] != lease.answer.seed:
            return None
        return self._held.pop(asked["request"])

    def _give_up(self, name: str) -> None:
        """Nobody has come: whoever comes stops the clock."""
        self._desk.journal.write("lease_expired", rid=self._held.pop(name).answer.job.rid)
