"""The real vLLM native gRPC server (vllm.Inference, vllm.Control): the vllm-rs binary out of the PyPI wheel, 0.33.0,
with a pretend engine core behind it on ZMQ.

Real: the whole frontend process - gRPC and HTTP, checks, tokenizer, stop strings, text, status codes, health, DP rank
metadata. Pretend: tokens, logprobs, cached counts, KV events, LoRA, pause, NIXL hand-over parameters.

    python makemodel.py --no-weights MODEL        # vllm-rs needs a folder with config.json and tokenizer.json
    python vllm_native_server.py --model MODEL --port 61300 --kv-events 'tcp://*:61310' --kv-replay 'tcp://*:61320'
    python vllm_native_server.py --model MODEL --port 61301 --role prefill --side-channel-port 61330
    python vllm_native_server.py --model MODEL --port 61302 --role decode

Needs pyzmq and msgpack. Linux x86-64 or arm64. See rigkit.py for faults and token values, wheels.py for where the
binary comes from; here healthy=false means the engine core reports death, which is final.
"""

import argparse
import asyncio
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import rigkit
import vllm_core
import wheels
import zmq
import zmq.asyncio


def listener(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen(128)
    sock.set_inheritable(True)
    return sock


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rigkit.common_arguments(parser)
    add = parser.add_argument
    add("--alias", action="append", default=[], help="further served model names")
    add("--http-port", type=int, default=0, help="vllm-rs's OpenAI HTTP server (0: any free port)")
    add("--role", choices=["both", "prefill", "decode"], default="both", help="vLLM does not report it")
    add("--side-channel-port", type=int, default=5600)
    add("--lease-s", type=float, default=30)
    add("--listen-delay-s", type=float, default=0, help="slow start: no listener for so long")
    add("--warmup-s", type=float, default=0, help="slow start: the port accepts TCP, but nothing answers for so long")
    add(
        "--frontend-args",
        type=json.loads,
        default={},
        metavar="JSON",
        help='more vllm-rs options, e.g. {"max_logprobs": 5}',
    )
    args = parser.parse_args()
    if not args.model or not pathlib.Path(args.model, "config.json").exists():
        parser.error(
            "--model needs a folder with config.json and tokenizer.json: python makemodel.py --no-weights FOLDER"
        )
    binary = wheels.vllm_rs()
    await asyncio.sleep(args.listen_delay_s)
    sockets = [
        listener(args.host, args.http_port),
        listener(args.host, args.port),
        listener("127.0.0.1", 0),
        listener("127.0.0.1", 0),
    ]
    http, grpc, inputs, outputs = (s.fileno() for s in sockets)
    ports = [s.getsockname()[1] for s in sockets]
    options = {
        "model_tag": args.model,
        "served_model_name": [args.served_model_name, *args.alias],
        "engine_ready_timeout_secs": 600,
        **args.frontend_args,
    }
    command = [
        binary,
        "frontend",
        "--listen-fd",
        http,
        "--grpc-listen-fd",
        grpc,
        "--input-listener-fd",
        inputs,
        "--output-listener-fd",
        outputs,
        "--engine-start-index",
        0,
        "--engine-count",
        args.dp_size,
        "--data-parallel-size",
        args.dp_size,
        "--args-json",
        json.dumps(options),
    ]
    libc = ctypes.CDLL(None)
    child = subprocess.Popen(
        [str(part) for part in command],
        pass_fds=(http, grpc, inputs, outputs),
        env={**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"},
        preexec_fn=lambda: libc.prctl(1, signal.SIGKILL),
    )  # dies with this process
    for sock in sockets:
        sock.close()
    core = vllm_core.Core(args, zmq.asyncio.Context())
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, stop.set)
    print(f"vllm-rs gRPC on {args.host}:{args.port}, HTTP on {ports[0]}, pid {os.getpid()}", flush=True)
    serving = asyncio.create_task(core.serve(ports[2], ports[3]))
    gone = loop.run_in_executor(None, child.wait)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([gone, stopping], return_when=asyncio.FIRST_COMPLETED)
    if serving.done() and serving.exception():
        print("rig failure:", repr(serving.exception()), file=sys.stderr)
    child.terminate()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
    os._exit(0 if stop.is_set() else child.returncode or 1)


if __name__ == "__main__":
    asyncio.run(main())
