import asyncio
import hashlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tokenizers import Tokenizer

from enginehouse.adapters.tokenizer import ModelTokenizer, TokenizerError, TokenizerSettings, load_tokenizer
from enginehouse.adapters.tokenizer import model as model_module
from enginehouse.adapters.tokenizer.backend import SAMPLES, open_fast, open_library
from enginehouse.adapters.tokenizer.files import find_files
from enginehouse.core.tokenizer_files import digest
from enginehouse.domain.errors import ContextLengthExceeded, InvalidRequest
from tests.unit.adapters.tokenizer import models

ROOT = models.BUNDLED.parents[3]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
ASK = {"add_generation_prompt": True}


def encode(tokenizer: ModelTokenizer, text: str, *, add: bool = False) -> list[int]:
    return list(asyncio.run(tokenizer.encode(text, add_special_tokens=add)))


def encode_chat(tokenizer: ModelTokenizer, messages: Any = CHAT, options: Any = ASK) -> list[int]:
    return list(asyncio.run(tokenizer.encode_chat(messages, options)).token_ids)


def reference(tokenizer: Tokenizer, text: str, *, add: bool = False) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=add).ids)


@pytest.fixture(scope="module")
def bundled() -> ModelTokenizer:
    return load_tokenizer(str(models.BUNDLED))


def test_the_bundled_model_is_complete(bundled: ModelTokenizer) -> None:
    assert bundled.fast
    assert (bundled.vocab_size, bundled.eos_token_ids) == (3072, (2, 0))
    text = bundled.decoder(skip_special_tokens=False)
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert text.push(encode_chat(bundled)) + text.flush() == prompt
    assert sum(path.stat().st_size for path in models.BUNDLED.iterdir()) < 300_000


def test_the_bundled_tokenizer_is_what_its_script_trains(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "train-tokenizer", tmp_path], check=True)
    for path in models.BUNDLED.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize(
    "family",
    [models.byte_level, models.byte_fallback, models.byte_fallback_unstripped, models.word_piece, models.unigram],
)
@pytest.mark.parametrize("add", [False, True])
def test_o12_ids_are_those_of_the_reference_library(family: Any, add: bool) -> None:
    tokenizer = ModelTokenizer(models.files(family()), TokenizerSettings())
    for text in SAMPLES:
        assert encode(tokenizer, text, add=add) == reference(family(), text, add=add)


def test_o12_special_tokens_stand_in_a_chat_once_as_the_template_writes_them() -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    config = {"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    tokenizer = ModelTokenizer(models.files(models.byte_fallback(), tokenizer_config=config), TokenizerSettings())
    ids = encode_chat(tokenizer, [{"role": "user", "content": "dog"}])
    bos, eos = models.byte_fallback().token_to_id("<s>"), models.byte_fallback().token_to_id("</s>")
    assert ids.count(bos) == 1
    assert (ids[0], ids[-1]) == (bos, eos)
    assert encode(tokenizer, "dog", add=True)[0] == bos  # a plain prompt gets it from the tokenizer
    assert bos not in encode(tokenizer, "dog")


def test_settings_of_training_in_the_file_neither_cut_nor_pad_a_prompt() -> None:
    content = json.loads(models.byte_level().to_str())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|end|>",
    }
    data = json.dumps(content).encode()
    for text in ("dog", "one two three four five six"):
        want = reference(models.byte_level(), text)
        tokenizer = ModelTokenizer({"tokenizer.json": data}, TokenizerSettings())
        assert tokenizer.fast
        assert encode(tokenizer, text) == want
        assert open_library(data).encode(text).ids == want


class _Wrong:
    """A fast tokenizer that is wrong on one sample."""

    def __init__(self, right: Tokenizer) -> None:
        self._right = right

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        return self._right.encode(text + ("x" if "🚂" in text else ""), add_special_tokens=add_special_tokens)


def test_a_fast_tokenizer_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    data = models.byte_level().to_str().encode()
    library = open_library(data)
    assert open_fast(data, library, ["<|end|>"], 0) is not None
    monkeypatch.setattr("fastokens.Tokenizer.from_json_str", lambda _: _Wrong(library), raising=False)
    with capture_logs() as logs:
        assert open_fast(data, library, ["<|end|>"], 0) is None
    assert [entry["event"] for entry in logs] == ["fast tokenizer disagrees, using the slower one"]
    tokenizer = ModelTokenizer({"tokenizer.json": data}, TokenizerSettings())
    assert not tokenizer.fast
    assert encode(tokenizer, "the dog") == reference(models.byte_level(), "the dog")


def test_a_fast_tokenizer_that_fails_is_not_used() -> None:
    data = models.unigram().to_str().encode()
    with capture_logs() as logs:
        tokenizer = ModelTokenizer({"tokenizer.json": data}, TokenizerSettings())
    assert tokenizer.fast or logs[0]["event"].startswith("fast tokenizer")
    assert encode(tokenizer, "the dog") == reference(models.unigram(), "the dog")


def test_f4_long_texts_are_encoded_off_the_loop_and_come_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(str(models.BUNDLED), settings=TokenizerSettings(inline_characters=100))
    used: list[threading.Thread] = []
    plain = tokenizer._encode

    def noting(text: str, add_special_tokens: bool) -> Any:
        used.append(threading.current_thread())
        return plain(text, add_special_tokens)

    monkeypatch.setattr(tokenizer, "_encode", noting)
    long = "The engines come home in the evening. 🚂\n" * 200
    assert encode(tokenizer, long) == list(plain(long, False))
    encode_chat(tokenizer, [{"role": "user", "content": long}])
    encode(tokenizer, "short")
    main = threading.main_thread()
    assert [thread is main for thread in used] == [False, False, True]


def test_g3_a_vast_text_that_cannot_fit_is_refused_without_encoding_all_of_it(
    bundled: ModelTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    plain = bundled._encode

    def noting(text: str, add_special_tokens: bool) -> Any:
        encoded.append(len(text))
        return plain(text, add_special_tokens)

    monkeypatch.setattr(bundled, "_encode", noting)
    text = "engines and lamps, " * 120_000
    right = plain(text, False)
    for at_most in (100, len(right) // 4):
        encoded.clear()
        with pytest.raises(ContextLengthExceeded, match=f"more than {at_most} tokens") as caught:
            asyncio.run(bundled.encode(text, add_special_tokens=False, at_most=at_most))
        assert caught.value.param == "prompt"
        assert max(encoded) <= 256 * 1024
        assert sum(encoded) < 0.75 * len(text)
        with pytest.raises(ContextLengthExceeded) as caught:
            asyncio.run(bundled.encode_chat([{"role": "user", "content": text}], ASK, at_most))
        assert caught.value.param == "messages"
    for fits in (len(right), len(right) - 1, None):  # close calls are decided by exact numbers, elsewhere
        assert asyncio.run(bundled.encode(text, add_special_tokens=False, at_most=fits)) == right


def test_g3_vast_texts_are_encoded_one_at_a_time(bundled: ModelTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    running = most = 0
    lock = threading.Lock()
    plain = bundled._encode

    def counting(text: str, add_special_tokens: bool) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        try:
            return plain(text, add_special_tokens)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(bundled, "_encode", counting)

    async def all_at_once() -> None:
        texts = [f"{turn} " + "lamps " * 200_000 for turn in range(4)]
        found = await asyncio.gather(*[bundled.encode(text, add_special_tokens=False) for text in texts])
        assert [list(ids) for ids in found] == [list(plain(text, False)) for text in texts]

    asyncio.run(all_at_once())
    assert most == 1


@pytest.mark.parametrize("family", [models.byte_level, models.byte_fallback, models.word_piece, models.unigram])
@pytest.mark.parametrize("text", ["the dog is here ", "a", "aéb🚂", "zq", " \n"])
def test_g3_a_text_in_pieces_has_about_as_many_tokens(family: Any, text: str) -> None:
    library, long = family(), text * 4000
    pieces = [long[at : at + 3000] for at in range(0, len(long), 3000)]
    whole = len(reference(library, long))
    assert sum(len(reference(library, piece)) for piece in pieces) <= 1.1 * whole + 4 * len(pieces)


def test_f4_a_chat_that_goes_on_is_encoded_only_where_it_is_new(bundled: ModelTokenizer) -> None:
    turns = [
        {"role": "user" if turn % 2 == 0 else "assistant", "content": f"{turn}: " + "engines and lamps, " * 400}
        for turn in range(20)
    ]
    encode_chat(bundled, turns)
    before = bundled._encoder.segment_cache_stats()
    second = encode_chat(bundled, [*turns, {"role": "user", "content": "And then?"}])
    after = bundled._encoder.segment_cache_stats()
    assert after["miss_bytes"] - before["miss_bytes"] < 200  # of 150,000
    library = Tokenizer.from_file(str(models.BUNDLED / "tokenizer.json"))
    text = bundled.decoder(skip_special_tokens=False).push(second)
    assert second == reference(library, text)


@pytest.mark.parametrize("template", [None, "{% if %}", 7])
def test_d28_without_a_usable_template_only_chat_is_refused(template: Any) -> None:
    files = models.files(models.byte_level(), tokenizer_config={"chat_template": template})
    tokenizer = ModelTokenizer(files, TokenizerSettings())
    assert encode(tokenizer, "the dog") == reference(models.byte_level(), "the dog")
    assert tokenizer.template_problem
    with pytest.raises(InvalidRequest, match=r"chat template.*/v1/completions") as caught:
        encode_chat(tokenizer)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("companions", "wanted"),
    [
        ({}, ()),
        ({"config": {"eos_token_id": 5}}, (5,)),
        ({"config": {"text_config": {"eos_token_id": [5, 6]}}}, (5, 6)),
        ({"config": {"eos_token_id": 5}, "generation_config": {"eos_token_id": [7, 8]}}, (7, 8)),
        ({"generation_config": {"eos_token_id": [7, 0]}, "tokenizer_config": {"eos_token": "<|end|>"}}, (7, 0)),
        ({"generation_config": {"eos_token_id": 7}, "tokenizer_config": {"eos_token": "<|turn|>"}}, (7, 1)),
        ({"tokenizer_config": {"eos_token": "<gone>"}, "config": {"eos_token_id": None}}, ()),
    ],
)
def test_ids_that_end_an_answer(companions: dict[str, Any], wanted: tuple[int, ...]) -> None:
    tokenizer = ModelTokenizer(models.files(models.byte_level(), **companions), TokenizerSettings())
    assert tokenizer.eos_token_ids == wanted


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no files"),
        ({"vocab.json": b"{}"}, "vocab.json"),
        ({"tokenizer.json": b"{"}, "cannot be read"),
        ({"tokenizer.json": b"[]"}, "cannot be read"),
        ({"tokenizer.json": b'{"model": {"vocab": {}}}'}, "cannot be read"),
        ({"tokenizer.json": b'{"model": {"type": "?", "vocab": {"a": 0}}}'}, "not understood"),
    ],
)
def test_files_that_are_no_tokenizer_are_told_in_words(files: dict[str, bytes], words: str) -> None:
    with pytest.raises(TokenizerError, match=words):
        ModelTokenizer(files, TokenizerSettings())


def test_a_broken_companion_is_named() -> None:
    files = {"tokenizer.json": models.byte_level().to_str().encode(), "generation_config.json": b"{"}
    with pytest.raises(TokenizerError, match=r"generation_config\.json"):
        ModelTokenizer(files, TokenizerSettings())


def hub(folder: Path, revisions: list[str], main: str | None) -> None:
    model = folder / "models--some--model"
    for revision in revisions:
        snapshot = model / "snapshots" / revision
        snapshot.mkdir(parents=True)
        (snapshot / "tokenizer.json").write_text(revision)
    if main is not None:
        (model / "refs").mkdir()
        (model / "refs" / "main").write_text(main + "\n")


@pytest.mark.parametrize(
    ("revisions", "main", "wanted"),
    [(["a", "b"], "b", b"b"), (["a"], None, b"a"), (["a"], "gone", b"a"), (["a", "b"], None, None), ([], None, None)],
)
def test_models_are_found_in_the_local_hub_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revisions: list[str], main: str | None, wanted: bytes | None
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    hub(tmp_path / "hub", revisions, main)
    if wanted is None:
        with pytest.raises(TokenizerError, match="hub cache"):
            find_files("some/model")
    else:
        assert find_files("some/model") == {"tokenizer.json": wanted}


def test_a_folder_or_a_file_in_it_names_a_model(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"x")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert find_files(str(tmp_path)) == find_files(str(tmp_path / "tokenizer.json")) == {"tokenizer.json": b"x"}
    with pytest.raises(TokenizerError, match="no folder here"):
        find_files(str(tmp_path / "missing"))
    (tmp_path / "tokenizer.json").rename(tmp_path / "vocab.json")
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json.*vocab\.json alone"):
        find_files(str(tmp_path))


def test_d17_the_digest_is_of_content_not_of_paths_or_templates(tmp_path: Path) -> None:
    files = models.files(models.byte_level(), tokenizer_config={"chat_template": "A"})
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    here = load_tokenizer(str(tmp_path)).digest
    assert here == load_tokenizer(files=files).digest == digest(files)
    assert here == digest(files | {"tokenizer_config.json": b"{}"})
    assert here != digest(models.files(models.byte_fallback()))
    want = hashlib.sha256(b"tokenizer.json\0%d\0" % len(files["tokenizer.json"]) + files["tokenizer.json"])
    assert here == want.hexdigest()


def test_no_source_at_all_says_what_to_give() -> None:
    with pytest.raises(TokenizerError, match="--tokenizer"):
        load_tokenizer()


def test_memory_is_given_back_after_loading_where_the_platform_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(_: None) -> Any:
        raise OSError

    monkeypatch.setattr(model_module.ctypes, "CDLL", no_library)
    assert ModelTokenizer(models.files(models.byte_level()), TokenizerSettings()).vocab_size
