"""What vLLM's engines say to others: KV events, and the stand-in for NIXL's prefill/decode hand-over."""

import asyncio
import json
import time
import uuid

import rig_engine


def kv_events(stored, removed, extra):
    """vLLM's events: maps; a removal per block, ahead of the stores it made room for."""
    if stored is None:
        return [{"type": "AllBlocksCleared"}]
    events = []
    for block in stored:
        last = events[-1] if events else None
        if last and last["block_hashes"][-1] == block.parent:
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
                    "lora_id": extra.get("lora_id"),
                    "medium": "GPU",
                    "lora_name": extra.get("lora_name"),
                }
            )
    salt, lora = extra.get("salt"), extra.get("lora_name")
    for event in events:
        first = event["parent_block_hash"] is None  # a salt marks block 0 only, a LoRA name every block
        event["extra_keys"] = [
            [*([lora] if lora else []), *([salt] if salt and first and i == 0 else [])] or None
            for i in range(len(event["block_hashes"]))
        ]
        event |= {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
        if extra.get("session_id"):
            event["session_id"] = extra["session_id"]
    return [
        {"type": "BlockRemoved", "block_hashes": [key], "medium": "GPU", "group_idx": 0} for key in removed
    ] + events


class Leases:
    """Stand-in for NIXL: a prefill holds blocks under its request id until a decode fetches them or 30 s pass."""

    def __init__(self, args):
        self.args, self.held, self.engine_id = args, {}, str(uuid.uuid4())

    async def serve(self) -> None:
        await asyncio.start_server(self._answer, self.args.host, self.args.side_channel_port)

    async def _answer(self, reader, writer) -> None:
        wanted = json.loads(await reader.readline())
        lease = self.held.pop(wanted["request"], None)
        found = (
            lease
            and lease[0] > time.monotonic()
            and lease[1] == wanted["prompt"]
            and wanted["engine"] == self.engine_id
        )
        writer.write(json.dumps(bool(found)).encode() + b"\n")
        await writer.drain()
        writer.close()

    def offer(self, rid: str, prompt) -> dict:
        self.held[rid] = time.monotonic() + self.args.lease_s, hash(prompt)
        blocks = list(range(1, 1 + -(-len(prompt) // self.args.page_size)))
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [blocks],
            "remote_engine_id": self.engine_id,
            "remote_request_id": rid,
            "remote_host": self.args.host,
            "remote_port": self.args.side_channel_port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": len(prompt),
            "remote_blocks_expiry_time": time.time() + self.args.lease_s,
            "remote_registration_generation": 1,
            "transfer_mode": "pull",
        }

    def fetch(self, params: dict, prompt):
        async def gate():
            try:
                reader, writer = await asyncio.open_connection(params["remote_host"], params["remote_port"])
                writer.write(
                    json.dumps(
                        {
                            "request": params["remote_request_id"],
                            "engine": params["remote_engine_id"],
                            "prompt": hash(prompt),
                        }
                    ).encode()
                    + b"\n"
                )
                found = json.loads(await reader.readline() or b"false")
                writer.close()
            except (KeyError, OSError, ValueError):
                found = False
            if not found or not params.get("remote_block_ids"):
                raise rig_engine.Refused("KV load failure")

        return gate
