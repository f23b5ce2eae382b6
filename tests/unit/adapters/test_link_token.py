from __future__ import annotations

from pathlib import Path

from enginehouse.adapters.link.token import TokenFile


def test_s9_a_token_is_read_again_ten_seconds_after_it_was_read(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    token = TokenFile(str(file))
    assert token.metadata(100.0) == (("authorization", "Bearer one"),)
    file.write_text("two\n")
    assert token.metadata(109.9) == (("authorization", "Bearer one"),)
    assert token.metadata(110.0) == (("authorization", "Bearer two"),)


def test_s9_the_last_good_token_stands_while_its_file_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token = TokenFile(str(file))
    assert token.metadata(0.0) == ()
    file.write_text("one")
    assert token.metadata(10.0) == (("authorization", "Bearer one"),)
    file.unlink()
    assert token.metadata(20.0) == (("authorization", "Bearer one"),)
