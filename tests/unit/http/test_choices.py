"""What reads the choices of a request."""

from typing import Any

import pytest

from enginehouse.adapters.tokenizer import ModelTokenizer, TokenizerSettings
from enginehouse.core.membership.card import ModelCard
from enginehouse.core.openai.requests import ChatRequest, CompletionRequest, Request
from enginehouse.domain.stream import Delta, Finish
from enginehouse.http.choices import choice_maker
from enginehouse.http.prompts import Prompt
from enginehouse.service.models import ServedModel
from tests.unit.adapters.tokenizer import models

_FILES = models.files(models.byte_fallback())


def chat(**options: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=(), template_options=options)


@pytest.mark.parametrize(
    ("request_", "text", "wanted"),
    [
        (CompletionRequest(model="m", prompt="the"), "the", " dog"),
        (CompletionRequest(model="m", prompt=(5,)), None, " dog"),
        (CompletionRequest(model="m", prompt=""), "", "dog"),
        (chat(continue_final_message=True), None, " dog"),
        (chat(add_generation_prompt=True), None, "dog"),
    ],
)
def test_o2_an_answer_that_goes_on_with_a_text_keeps_the_space_between(
    request_: Request, text: str | None, wanted: str
) -> None:
    """Decoders of the SentencePiece kind drop the space before the first word of what they take for a whole text."""
    tokenizer = ModelTokenizer(_FILES, TokenizerSettings())
    model = ServedModel(ModelCard("m"), tokenizer, created=0)
    letters = [number for letter in "▁dog" if (number := models.byte_fallback().token_to_id(letter)) is not None]
    choice = choice_maker(request_, model, Prompt([5], text), 100)()
    assert choice.push(Delta(letters, Finish.LENGTH)) == wanted
