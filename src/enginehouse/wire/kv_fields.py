"""What one KV event means, whatever it holds: decoded already, a map or a positional array, of any release.

Nothing is taken for granted here, so it costs some microseconds; plain events are read in `kv_plain`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import msgspec

from enginehouse.domain.kv import Cleared, KvEvent, Removed, Stored, Tier, namespace

_Fields = Mapping[str, object]

MASK = (1 << 64) - 1
_HASH_BYTES = 8
BLOCK_SIZE_LIMIT = 1 << 20
"""Tokens. Blocks have one to some hundred; a size beyond this was never meant as one."""
EVENTS_LIMIT = 1 << 15
"""In one batch, which is read in one go. vLLM tells each removed block in an event: 4,096 for 64k tokens."""

TIERS: Mapping[str | None, Tier] = {
    None: Tier.DEVICE,
    "GPU": Tier.DEVICE,
    "CPU": Tier.HOST,
    "CPU_PINNED": Tier.HOST,
    "DISK": Tier.DISK,
    "STORAGE": Tier.DISK,
}
"""Not here: EXTERNAL, which engines share, and what others may invent, which is not known to be this rank's own."""

# Names by position, for arrays. Releases differ in where they end; positions never moved.
_STORED = (
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
)
_REMOVED = ("type", "block_hashes", "medium", "group_idx", "locality", "ownership")

WRONG_SHAPE = (KeyError, TypeError, ValueError, OverflowError, RecursionError)
"""What the readers below raise when a field is missing or is not what it should be."""

_encode = msgspec.msgpack.Encoder().encode


def event_of(event: object) -> KvEvent | None:
    """Read it; None: it is not meant for us. Raises one of WRONG_SHAPE for what is malformed."""
    if isinstance(event, dict):
        tag, fields = event["type"], event
    elif isinstance(event, list) and event:
        tag = event[0]
        fields = dict(zip(_STORED if tag == "BlockStored" else _REMOVED, event, strict=False))
    else:
        raise TypeError
    if tag == "BlockStored":
        return _stored(fields)
    if tag == "BlockRemoved":
        return _removed(fields)
    if not isinstance(tag, str):
        raise TypeError
    # Residency agents announce blocks of others, and clear them too.
    return Cleared() if tag == "AllBlocksCleared" and not fields.get("ownership") else None


def _stored(fields: _Fields) -> Stored | None:
    tier = _tier(fields)
    hashes = _hashes(fields["block_hashes"])
    if tier is None or not hashes:
        return None
    parent = fields["parent_block_hash"]
    if parent is not None:
        (parent,) = _hashes([parent])
    if len({parent, *hashes}) != len(hashes) + 1:
        raise ValueError  # a block cannot come before itself
    size = fields["block_size"]
    if type(size) is not int or not 1 <= size <= BLOCK_SIZE_LIMIT:
        raise ValueError
    tokens = fields["token_ids"]
    if not isinstance(tokens, list) or len(tokens) != len(hashes) * size:
        raise ValueError
    pairs = isinstance(tokens[0], list)
    group, kind = fields.get("group_idx"), fields.get("kv_cache_spec_kind")
    if not (group is None or type(group) is int) or not (kind is None or isinstance(kind, str)):
        raise TypeError
    lora, salt = _adapter(fields)
    extra_keys = fields.get("extra_keys")
    extras: list[bytes | None] | None = None
    if extra_keys:
        salt, extras = _extras(extra_keys, len(hashes), lora, salt, at_root=parent is None)
    return Stored(
        hashes=hashes,
        parent=parent,
        # One call checks that all are numbers of 32 bits and makes them what the index packs keys from.
        token_ids=_unpaired(tokens) if pairs else array("I", tokens),
        block_size=size,
        tier=tier,
        pairs=pairs,
        namespace=namespace(lora, salt),
        extras=extras,
        group=group,
        kind=kind,
    )


def _removed(fields: _Fields) -> Removed | None:
    tier = _tier(fields)
    hashes = _hashes(fields["block_hashes"])
    if tier is None or not hashes:
        return None
    group = fields.get("group_idx")
    if not (group is None or type(group) is int):
        raise TypeError
    return Removed(hashes=hashes, tier=tier, group=group)


def _tier(fields: _Fields) -> Tier | None:
    """Where the blocks lie; None: not in this worker, or not its own."""
    if fields.get("ownership") or fields.get("locality") not in (None, "LOCAL"):
        return None
    medium = fields.get("medium")
    if not (medium is None or isinstance(medium, str)):
        raise TypeError
    return TIERS.get(medium)


def _hashes(hashes: object) -> list[int]:
    """Engines sign them or not, or send digests as bytes, of which the end counts."""
    if not isinstance(hashes, list):
        raise TypeError
    try:
        return [one & MASK for one in hashes]
    except TypeError:
        return [_from_bytes(one) if isinstance(one, bytes) else one & MASK for one in hashes]


def _from_bytes(digest: bytes) -> int:
    if not digest:
        raise ValueError
    return int.from_bytes(digest[-_HASH_BYTES:], "big")


def _unpaired(tokens: Sequence[Sequence[int]]) -> array[int]:
    """Each token with the one after it, as EAGLE-type drafting caches them, back to a plain run with one more."""
    firsts = array("I", [first for first, _ in tokens])
    seconds = array("I", [second for _, second in tokens])
    if firsts[1:] != seconds[:-1]:
        raise ValueError
    firsts.append(seconds[-1])
    return firsts


def _adapter(fields: _Fields) -> tuple[str | None, str | None]:
    """LoRA adapter and cache salt, as far as they have keys of their own."""
    lora, number = fields.get("lora_name"), fields.get("lora_id")
    salt = fields.get("cache_salt")
    if isinstance(lora, dict):  # some builds of SGLang: a map of what is new, where vLLM has the name
        salt, lora = lora.get("cache_salt"), lora.get("lora_name")
    if not (lora is None or isinstance(lora, str)) or not (salt is None or isinstance(salt, str)):
        raise TypeError
    if not lora and number:
        # Older vLLM tells only the adapter's number: nobody asks for it by that, but nobody may be credited for it.
        lora = f"lora_id={number}"
    return lora, salt


def _extras(
    extra_keys: object, blocks: int, lora: str | None, salt: str | None, *, at_root: bool
) -> tuple[str | None, list[bytes | None] | None]:
    """Salt, and per block what else decides its content.

    vLLM puts the adapter's name into each block, the salt into the first block of a prompt after what stands for
    images, and there it is the last text. (Old releases write images as text too: as a salt, they match no prompt.)
    """
    if not isinstance(extra_keys, list) or len(extra_keys) != blocks:
        raise TypeError
    if not any(extra_keys):
        return salt, None
    extras: list[bytes | None] = []
    for block, given in enumerate(extra_keys):
        keys = _without(list(given), lora) if given else []
        if block == 0 and at_root:
            said = next((key for key in reversed(keys) if isinstance(key, str)), None)
            if said is not None:
                salt = salt or said
                keys.reverse()
                keys.remove(said)
                keys.reverse()
        extras.append(_encode(keys) if keys else None)
    return salt, extras if any(extras) else None


def _without(keys: list[object], lora: str | None) -> list[object]:
    """Only the first: a salt may be the same text."""
    if lora in keys:
        keys.remove(lora)
    return keys
