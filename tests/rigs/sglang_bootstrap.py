"""What SGLang's engines say to others: KV events in the shapes of its releases, and the prefill/decode hand-over."""

import asyncio
import json
import time

EVENT_TAGS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}


def kv_events(positional: bool):
    """SGLang's events: maps since 0.5.20, arrays before; a nil medium or name is left out of maps."""

    def shape(stored, removed, extra):
        events = []
        if stored is None:
            events.append({"type": "AllBlocksCleared"})
        if removed:  # room is made first
            events.append({"type": "BlockRemoved", "block_hashes": removed, "medium": "GPU"})
        for block in stored or ():
            last = events[-1] if events else None
            if last and last["type"] == "BlockStored" and last["block_hashes"][-1] == block.parent:
                last["block_hashes"].append(block.hash)
                last["token_ids"].extend(block.tokens)
            else:
                events.append(
                    {
                        "type": "BlockStored",
                        "block_hashes": [block.hash],
                        "parent_block_hash": block.parent,
                        "token_ids": list(block.tokens),
                        "block_size": len(block.tokens),
                        "lora_id": None,
                        "medium": "GPU",
                        **extra,
                    }
                )
        if positional:
            return [[e["type"], *(e[name] for name in EVENT_TAGS[e["type"]])] for e in events]
        return events

    return shape


class Bootstrap:
    """Stand-in for the KV transfer: the decode leg fetches its room from the prefill named in the request.

    A room is found only under the rank the decode side derives (room mod ranks), and room 0 never, as in SGLang.
    """

    def __init__(self, args):
        self.args, self.rooms = args, {}

    async def serve(self) -> None:
        await asyncio.start_server(self._answer, self.args.host, self.args.bootstrap_port)

    async def _answer(self, reader, writer) -> None:
        try:
            wanted = json.loads(await reader.readline())
            room = self.rooms.get(wanted["room"])
            found = room and room["rank"] == wanted["room"] % self.args.dp_size and room["prompt"] == wanted["prompt"]
            writer.write(json.dumps(bool(found)).encode() + b"\n")
            await writer.drain()
            if found:
                room["taken"].set()
        finally:
            writer.close()

    def prefill_gate(self, room: int, rank: int, prompt):
        async def gate():
            entry = self.rooms[room] = {"rank": rank, "prompt": hash(prompt), "taken": asyncio.Event()}
            try:
                await asyncio.wait_for(entry["taken"].wait(), self.args.bootstrap_timeout)
            except TimeoutError:
                raise TimeoutError(f"Prefill bootstrap failed: no decode peer for bootstrap_room={room}") from None
            finally:
                self.rooms.pop(room, None)

        return gate

    def decode_gate(self, host: str, port: int, room: int, prompt):
        async def gate():
            deadline = time.monotonic() + self.args.bootstrap_timeout
            while time.monotonic() < deadline:
                try:
                    reader, writer = await asyncio.open_connection(host.strip("[]"), port)
                    writer.write(json.dumps({"room": room, "prompt": hash(prompt)}).encode() + b"\n")
                    answer = json.loads(await reader.readline() or b"false")
                    writer.close()
                    if answer and room != 0:
                        return
                except (OSError, ValueError):
                    pass
                await asyncio.sleep(0.05)
            raise TimeoutError(f"Decode handshake failed for bootstrap_room={room} at {host}:{port}")

        return gate
