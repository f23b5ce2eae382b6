"""What the two native rigs share: tokens, text, faults, command line and log of a pretend engine.

The pretend engine owns tokens, timing, a truthful prefix cache per rank, KV events and faults. It does not know gRPC:
sglang_native_server.py and vllm_native_server.py translate.
"""

import hashlib
import json
import os
import pathlib
import sys
import time


def output_token(prompt: tuple[int, ...], i: int, vocab: int) -> int:
    """The i-th output token for a prompt: same on every engine, so a client can check what it got."""
    seed = int.from_bytes(hashlib.sha256(",".join(map(str, prompt)).encode()).digest()[:4], "big")
    return 300 + (seed + i * 7919) % (vocab - 300)


def likely(token: int, most: int, vocab: int) -> tuple[float, int, list[tuple[int, float]]]:
    """A token's log probability, its rank (from 1 to 4, by its number) and the most likely tokens at its place, best
    first. All numbers are exact in float32."""
    place = token % 4
    others = ((token + 1 + n) % vocab for n in range(most))
    best = [(token if n == place else next(others), -(n + 1) / 4) for n in range(most)]
    return -(place + 1) / 4, place + 1, best


class Text:
    """Optional tokenizer (file MODEL/tokenizer.json); without it there is no text and no stop string."""

    def __init__(self, model: str | None):
        self.tokenizer = None
        path = pathlib.Path(model or "", "tokenizer.json")
        if model and path.exists():
            try:
                from tokenizers import Tokenizer
            except ImportError:
                print("package tokenizers is missing: no text, no stop strings", file=sys.stderr)
            else:
                self.tokenizer = Tokenizer.from_file(str(path))

    def encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            raise ValueError("text input needs --model with a tokenizer.json")
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True) if self.tokenizer and ids else ""


class Faults:
    """Switches read from a JSON file while running; $RIG_FAULTS gives the starting values.

    healthy, paused: bool          never_answer: take requests, say nothing
    error: text, refuse new ones   error_after_tokens: N, then fail that stream
    abort_status: HTTP code        stall_after_tokens: N, then silence on an open stream
    tok_s: new speed               die_after_tokens: N more over all streams, then exit 137
    """

    def __init__(self, path: str | None):
        self.path, self.stamp, self.died = path, None, 0
        self.values = json.loads(os.environ.get("RIG_FAULTS") or "{}")

    def get(self, name: str, default=None):
        if self.path:  # looked at each time: a test that has written it need not wait
            try:
                found = os.stat(self.path)
                stamp = found.st_mtime_ns, found.st_ino
                if stamp != self.stamp:
                    self.values = json.loads(pathlib.Path(self.path).read_text() or "{}")
                    self.stamp, self.died = stamp, 0
            except (OSError, ValueError):
                pass  # absent, or caught half-written: keep the last values
        return self.values.get(name, default)

    def count_token(self) -> None:
        limit = self.get("die_after_tokens")
        self.died += 1
        if limit is not None and self.died > limit:
            os._exit(137)


def common_arguments(parser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, required=True)
    add("--model", help="folder with tokenizer.json and config.json")
    add("--served-model-name", default="m")
    add("--context-length", type=int, default=4096)
    add("--vocab", type=int, default=8000, help="output tokens lie in 300..VOCAB-1")
    add("--eos-id", type=int, default=2)
    add("--eos-after", type=int, default=0, help="emit EOS as output token N unless ignore_eos (0: never)")
    add("--tok-s", type=float, default=50, help="tokens per second and stream (0: as fast as possible)")
    add("--prefill-tok-s", type=float, default=0, help="uncached prompt tokens per second (0: instant)")
    add("--stream-interval", type=int, default=1, help="tokens per message after the first")
    add("--max-running", type=int, default=256)
    add("--dp-size", type=int, default=1)
    add("--page-size", type=int, default=16)
    add("--kv-pages", type=int, default=10_000, help="capacity per rank, in pages")
    add("--kv-events", metavar="tcp://*:5557", help="publish KV events; rank r uses port + r")
    add("--kv-replay", metavar="tcp://*:5657")
    add("--kv-topic", default="")
    add("--kv-buffer", type=int, default=10_000, help="batches kept for replay")
    add("--control", metavar="FILE", help="JSON file of faults, read while running: see rigkit.Faults")
    add("--log", metavar="FILE", help="one JSON line per request as the engine saw it")


class RequestLog:
    def __init__(self, path: str | None):
        self.file = open(path, "a", buffering=1) if path else None  # noqa: SIM115 (open as long as the rig runs)

    def write(self, **what) -> None:
        if self.file:
            self.file.write(json.dumps({"t": round(time.time(), 4), **what}, default=str) + "\n")
