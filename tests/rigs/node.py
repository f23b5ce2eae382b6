"""OpenAI's client for Node out of its package, fetched once and kept in ${XDG_CACHE_HOME:-~/.cache}/enginehouse-rigs.

    python node.py                          fetch it
    python node.py run SCRIPT [ARGUMENT…]   run a script with the place of the package as its first argument

It depends on nothing else. Its content is pinned by the digest below, wherever npm gets it from.
"""

import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

from wheels import cache_dir

VERSION = "7.59.0"
SHA512 = "wPYKJkLPFEdNJ2tThSg4jE1Ptsv4X3u8g8LIvu0Qz/UIhsKeCzl73rl48PtQsDVrJL/ku0liXOsbyd2TsRsPJw=="
OLDEST = 20
"""The major release of Node that it runs on."""


def node() -> str:
    """The program."""
    found = shutil.which("node")
    if found is None or shutil.which("npm") is None:
        raise SystemExit("node and npm are needed: apt-get install nodejs npm")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    major = re.match(r"v(\d+)\.", said)
    if major is None or int(major[1]) < OLDEST:
        raise SystemExit(f"node {said.strip()} is too old: {OLDEST} is needed")
    return found


def package() -> pathlib.Path:
    return cache_dir() / f"node-openai-{VERSION}"


def fetch() -> None:
    if package().exists():
        return
    print(f"fetching openai {VERSION} for Node (once)", file=sys.stderr, flush=True)
    package().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=package().parent) as tmp:
        there = pathlib.Path(tmp)
        pack = ["npm", "pack", f"openai@{VERSION}", "--silent", "--pack-destination", tmp]
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
            node()
            fetch()
        case ["run", script, *arguments]:
            os.execv(node(), ["node", script, (package() / "index.mjs").as_uri(), *arguments])
        case _:
            raise SystemExit(__doc__)
