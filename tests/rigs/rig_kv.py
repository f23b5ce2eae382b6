"""A truthful prefix cache and the KV events that describe it, in the engines' own frames (ZMQ, msgpack)."""

import dataclasses
import hashlib
import queue
import threading
import time
from collections import OrderedDict, deque


def shifted(endpoint: str | None, rank: int) -> str | None:
    if not endpoint or rank == 0:
        return endpoint
    head, port = endpoint.rsplit(":", 1)
    return f"{head}:{int(port) + rank}"


class KvPublisher:
    """PUB plus replay ROUTER with the engines' frames; one thread owns both sockets."""

    def __init__(self, rank: int, endpoint: str, replay: str | None, topic: str, buffer_steps: int, old_replay: bool):
        import msgpack
        import zmq

        self.pack, self.rank, self.topic = msgpack.packb, rank, topic.encode()
        self.lead = [b""] if old_replay else [b"", self.topic]  # frames before sequence and payload in a replay
        self.buffer: deque = deque(maxlen=buffer_steps)
        self.queue: queue.Queue = queue.Queue()
        context = zmq.Context.instance()
        self.pub = context.socket(zmq.PUB)
        self.pub.set_hwm(100_000)
        self.pub.bind(shifted(endpoint, rank))
        self.router = None
        if replay:
            self.router = context.socket(zmq.ROUTER)
            self.router.setsockopt(zmq.SNDHWM, 0)
            self.router.bind(shifted(replay, rank))
        threading.Thread(target=self._run, daemon=True, name=f"kv-{rank}").start()

    def publish(self, events: list[dict]) -> None:
        if events:
            self.queue.put(events)

    def _run(self) -> None:
        seq = 0
        while True:
            if self.router is not None and self.router.poll(0):
                frames = self.router.recv_multipart()
                if len(frames) == 3:
                    start = int.from_bytes(frames[2], "big")
                    for number, payload in self.buffer:
                        if number >= start:
                            self.router.send_multipart([frames[0], *self.lead, number.to_bytes(8, "big"), payload])
                    self.router.send_multipart([frames[0], *[b"" for _ in self.lead], b"\xff" * 8, b""])
            try:
                events = self.queue.get(timeout=0.1)
            except queue.Empty:
                continue
            payload = self.pack([time.time(), events, self.rank])
            self.pub.send_multipart([self.topic, seq.to_bytes(8, "big"), payload])
            self.buffer.append((seq, payload))
            seq += 1


@dataclasses.dataclass
class Block:
    hash: int
    parent: int | None
    tokens: tuple[int, ...]
    children: int = 0
    copies: int = 1


class PrefixCache:
    """Full pages of one rank, keyed by chained hash, least recently used leaf out first."""

    def __init__(self, page: int, capacity: int, signed: bool):
        self.page, self.capacity, self.signed = page, capacity, signed
        self.blocks: OrderedDict[int, Block] = OrderedDict()

    def _chain(self, tokens, namespace: str):
        digest = hashlib.sha256(namespace.encode()).digest() if namespace else b""
        for start in range(0, len(tokens) - self.page + 1, self.page):
            page = tuple(tokens[start : start + self.page])
            digest = hashlib.sha256(digest + b"".join(t.to_bytes(4, "little") for t in page)).digest()
            part = digest[:8] if self.signed else digest[-8:]
            yield int.from_bytes(part, "big", signed=self.signed), page

    def match(self, prompt, namespace: str) -> int:
        """Cached tokens at the head of the prompt; the last prompt token is always computed anew."""
        hit = 0
        for key, _ in self._chain(prompt[: max(0, len(prompt) - 1)], namespace):
            if key not in self.blocks:
                break
            self.blocks.move_to_end(key)
            hit += self.page
        return hit

    def insert(self, tokens, namespace: str) -> tuple[list[Block], list[int]]:
        """Returns (newly stored blocks in chain order, hashes evicted for them)."""
        new, parent, path = [], None, set()
        for key, page in self._chain(tokens, namespace):
            path.add(key)
            if key in self.blocks:
                self.blocks.move_to_end(key)
            else:
                self.blocks[key] = block = Block(key, parent, page)
                new.append(block)
                if parent is not None:
                    self.blocks[parent].children += 1
            parent = key
        evicted = []
        while len(self.blocks) > self.capacity:
            leaf = next((k for k, b in self.blocks.items() if b.children == 0 and k not in path), None)
            if leaf is None:
                break
            block = self.blocks.pop(leaf)
            if block.parent is not None:
                self.blocks[block.parent].children -= 1
            evicted += [leaf] * block.copies
        return new, evicted

    def again(self, prompt, namespace: str, cached: int) -> list[Block]:
        """vLLM: a prompt of whole blocks, all cached, has its last block computed again and stored as a second copy."""
        if cached and cached + self.page == len(prompt):
            last = self.blocks.get([key for key, _ in self._chain(prompt, namespace)][-1])
            if last:
                last.copies += 1
                return [last]
        return []
