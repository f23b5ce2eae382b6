"""The prefix cache: what it says is cached is exactly what is held, whatever happened before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from enginehouse.mock.prefix_cache import PrefixCache

_BLOCK = 2
# Few tokens and short prompts, so that prefixes are shared and blocks compete.
_prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=40)


def _store(cache: PrefixCache, prompt: list[int], namespace: str = "") -> int:
    chain = cache.chain(prompt, namespace)
    hit = cache.match(chain, len(prompt))
    cache.store(chain)
    return hit


@given(_prompts, st.integers(0, 12))
def test_a_hit_is_what_a_plain_model_of_lru_holds(prompts: list[list[int]], capacity: int) -> None:
    cache = PrefixCache(_BLOCK, capacity)
    held: list[tuple[int, ...]] = []  # whole prefixes, oldest first

    def touch(prefixes: list[tuple[int, ...]]) -> None:
        for prefix in reversed(prefixes):
            if prefix in held:
                held.remove(prefix)
            held.append(prefix)

    for prompt in prompts:
        blocks = [tuple(prompt[: end * _BLOCK]) for end in range(1, len(prompt) // _BLOCK + 1)]
        expected: list[tuple[int, ...]] = []
        for prefix in blocks[: (len(prompt) - 1) // _BLOCK]:
            if prefix not in held:
                break
            expected.append(prefix)
        touch(expected)
        assert _store(cache, prompt) == len(expected) * _BLOCK
        touch(blocks)
        del held[: max(0, len(held) - capacity)]
        assert len(cache) == len(held) <= capacity
        # No block is held without the one before it.
        assert all(prefix[:-_BLOCK] in held for prefix in held if len(prefix) > _BLOCK)


def test_the_last_prompt_token_is_always_computed() -> None:
    cache = PrefixCache(4, 10)
    prompt = list(range(8))
    assert _store(cache, prompt) == 0
    assert _store(cache, prompt) == 4  # not 8: the second block holds the last token
    assert _store(cache, [*prompt, 8]) == 8


def test_namespaces_share_nothing() -> None:
    cache = PrefixCache(4, 10)
    prompt = list(range(9))
    _store(cache, prompt)
    assert _store(cache, prompt, "adapter") == 0
    assert _store(cache, prompt, "adapter") == 8


def test_clear_forgets() -> None:
    cache = PrefixCache(4, 10)
    _store(cache, list(range(9)))
    cache.clear()
    assert _store(cache, list(range(9))) == 0
