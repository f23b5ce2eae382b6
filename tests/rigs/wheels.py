"""Single files out of PyPI wheels, fetched once and kept in ${XDG_CACHE_HOME:-~/.cache}/enginehouse-rigs.

    python wheels.py sglang [VERSION]      the compiled gRPC server of SGLang, for this Python
    python wheels.py vllm                  the vllm-rs binary (several hundred megabytes to download)

SGLANG_GRPC_SO and VLLM_RS name files already on disk.
"""

import fnmatch
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

SGLANG = "0.5.23"
VLLM = "0.33.0"


def cache_dir() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "enginehouse-rigs"


def wheel_file(name: str, version: str, pattern: str, override: str) -> pathlib.Path:
    """The one file of the wheel that matches pattern: $override if set, else from the cache, else by pip download."""
    if os.environ.get(override):
        return pathlib.Path(os.environ[override])
    folder = cache_dir() / f"{name}-{version}"
    ours = (".abi3.so", sysconfig.get_config_var("EXT_SUFFIX"))
    found = sorted(
        p
        for p in folder.glob("*")
        if fnmatch.fnmatch(p.name, pattern.rsplit("/", 1)[-1]) and (p.suffix != ".so" or p.name.endswith(ours))
    )
    if found:
        return found[0]
    print(f"fetching {name}=={version} from PyPI (once)", file=sys.stderr, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as tmp:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--only-binary=:all:",
                "-d",
                tmp,
                f"{name}=={version}",
            ],
            check=True,
        )
        wheel = zipfile.ZipFile(next(pathlib.Path(tmp).glob("*.whl")))
        member = next((m for m in wheel.namelist() if fnmatch.fnmatch(m, pattern)), None)
        if member is None:
            raise SystemExit(f"{name}=={version} has no {pattern} for this Python")
        part = pathlib.Path(wheel.extract(member, tmp))
        part.chmod(0o755)
        return part.rename(folder / part.name)


def sglang_extension(version: str = SGLANG) -> pathlib.Path:
    """SGLang's compiled server."""
    new = tuple(map(int, version.split("."))) >= (0, 5, 18)
    pattern = "sglang/srt/rust_extensions/_grpc*.so" if new else "sglang/srt/grpc/_core*.so"
    return wheel_file("sglang", version, pattern, "SGLANG_GRPC_SO")


def vllm_rs() -> pathlib.Path:
    """vLLM's native frontend."""
    return wheel_file("vllm", VLLM, "vllm/vllm-rs", "VLLM_RS")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sglang", *version]:
            sglang_extension(*version)
        case ["vllm"]:
            vllm_rs()
        case _:
            raise SystemExit(__doc__)
