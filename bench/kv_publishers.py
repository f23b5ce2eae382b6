"""Publishers of KV events as engines under load have them, without engines: `python -m bench.kv_publishers`.

Says its ports in one line of JSON; then each line of its standard input is obeyed and answered with how many batches
have been sent: `go` and `stop`. Payloads are made before, so that this process costs the machine little.
"""

from __future__ import annotations

import argparse
import json
import select
import struct
import sys
import time
from collections.abc import Callable

import zmq

from enginehouse.domain.engine import ProtocolName
from enginehouse.mock.kv.encode import encoder
from enginehouse.mock.kv.news import News, Removed, Stored
from enginehouse.mock.settings import MockSettings

RING = 200
"""Batches that are made; then they come again. Each takes out what came half a ring before."""
PROMPT = 16
"""Blocks of a prompt, which come in one event; what is left of a batch are the single blocks of running answers."""
BLOCK = 16


class Ring:
    """The batches of one publisher: prompts, blocks of answers, and one removal for each block that made room."""

    def __init__(self, number: int, blocks: int) -> None:
        encode = encoder(MockSettings(protocol=ProtocolName.VLLM, block_size=BLOCK))
        self._stored: list[list[Stored]] = []
        self._made = 0
        for turn in range(RING):
            self._stored.append(self._batch(number, turn, blocks))
        self.payloads = [encode(0.0, self._news(turn), 0, False) for turn in range(RING)]

    def _batch(self, number: int, turn: int, blocks: int) -> list[Stored]:
        prompts, answers = divmod(blocks, PROMPT)
        stored = [self._run(number, PROMPT, None) for _ in range(prompts)]
        begun = self._stored[-1][-answers:] if answers and turn % 25 else []
        for place in range(answers):
            stored.append(self._run(number, 1, begun[place].keys[-1] if begun else None))
        return stored

    def _run(self, number: int, length: int, parent: bytes | None) -> Stored:
        keys = []
        tokens: list[int] = []
        for _ in range(length):
            self._made += 1
            keys.append(struct.pack(">QQ", number + 1, self._made))
            tokens += [(self._made * 31 + number * 17 + place * 7) % 50_000 for place in range(BLOCK)]
        return Stored(keys, parent, tokens)

    def _news(self, turn: int) -> list[News]:
        gone = [key for run in self._stored[turn - RING // 2] for key in run.keys]
        return [Removed(gone), *self._stored[turn]]


def publish(sockets: list[zmq.Socket[bytes]], rings: list[Ring], rate: float, orders: Callable[[float], str]) -> None:
    """Until there are no more orders: every publisher in its turn, `rate` batches a second each."""
    every = 1 / (rate * len(sockets))
    sent, going, due = 0, False, 0.0
    while True:
        now = time.monotonic()
        if going and now >= due:
            turn, number = divmod(sent, len(sockets))
            sockets[number].send_multipart([b"", struct.pack(">Q", turn), rings[number].payloads[turn % RING]])
            sent += 1
            due += every
            continue
        order = orders(max(0.0, due - now) if going else 3600.0)
        if order == "end":
            return
        if order:
            going, due = order == "go", time.monotonic()
            print(sent, flush=True)


def _orders(wait: float) -> str:
    if not select.select([sys.stdin], [], [], wait)[0]:
        return ""
    return sys.stdin.readline().strip() or "end"


def main() -> None:
    """Parse, bind, publish."""
    parser = argparse.ArgumentParser(prog="python -m bench.kv_publishers", description=__doc__)
    parser.add_argument("--publishers", type=int, default=16)
    parser.add_argument("--rate", type=float, default=25.0, help="batches per second of each")
    parser.add_argument("--blocks", type=int, default=40, help="blocks stored, and as many removed, in one batch")
    options = parser.parse_args()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = []
    for _ in range(options.publishers):
        socket = context.socket(zmq.PUB)
        socket.linger = 0
        sockets.append(socket)
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in sockets]
    rings = [Ring(number, options.blocks) for number in range(options.publishers)]
    print(json.dumps(ports), flush=True)
    publish(sockets, rings, options.rate, _orders)
    context.destroy()


if __name__ == "__main__":
    main()
