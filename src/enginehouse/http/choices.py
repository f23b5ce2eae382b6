"""What reads the choices of a request: plain text, or all that was asked for besides."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from enginehouse.core.openai.choice import AnyChoice, PlainChoice, RichChoice, Wishes
from enginehouse.core.openai.either import answer_family
from enginehouse.core.openai.requests import ChatRequest, CompletionRequest, Request
from enginehouse.core.openai.stops import StopMatcher
from enginehouse.core.openai.text import AnswerText, EndingText
from enginehouse.core.output.answer import Echo
from enginehouse.core.output.family import Family
from enginehouse.core.output.pieces import ParserInput
from enginehouse.http.prompts import Prompt
from enginehouse.ports import TextDecoder
from enginehouse.service.models import ServedModel


def choice_maker(request: Request, model: ServedModel, prompt: Prompt, max_tokens: int) -> Callable[[], AnyChoice]:
    """For each attempt its own reader: what a failed one held back must not come out of the next."""
    family = _family(request, model)
    stops, keep, min_tokens = request.stop, request.keep_stop, request.sampling.min_tokens
    skip, shown = request.skip_special_tokens, family.shown if family is not None else frozenset[str]()

    continues = _continues(request, prompt)

    def decoder() -> TextDecoder:
        return model.tokenizer.decoder(skip_special_tokens=skip, shown=shown)

    ends = _visible_ends(request, model)

    def text() -> AnswerText:
        matcher = StopMatcher(stops, keep=keep) if stops else None
        ids = model.tokenizer.decoder(skip_special_tokens=skip, shown=shown, continues=continues)
        if ends:
            return EndingText(ids, matcher, min_tokens, max_tokens, ends=ends)
        return AnswerText(ids, matcher, min_tokens, max_tokens)

    echoes = isinstance(request, CompletionRequest) and request.echo
    if family is None and request.sampling.logprobs is None and not request.return_token_ids and not echoes:
        return lambda: PlainChoice(text())
    wishes = _wishes(request, model, prompt, decoder)
    if family is None or not isinstance(request, ChatRequest):
        return lambda: RichChoice(text(), None, wishes, thinks=False)
    separate = request.separate_reasoning
    thinks = separate and (model.formats.thinking is not None or model.formats.whole is not None)
    given = ParserInput(request.tools, prompt.tail, separate, request.begun)
    return lambda: RichChoice(text(), family.parser(given), wishes, thinks=thinks)


def _family(request: Request, model: ServedModel) -> Family | None:
    """What the answers are written in; None: they are plain text as far as anybody asked."""
    if not isinstance(request, ChatRequest):
        return None
    formats = model.formats
    read = formats.whole is not None or formats.thinking is not None or (formats.tools is not None and request.tools)
    return answer_family(request, formats if read else None)


def _continues(request: Request, prompt: Prompt) -> bool:
    """Whether the answer goes on with a text of the client's, so that the two are put together."""
    if isinstance(request, ChatRequest):
        return request.template_options.get("continue_final_message") is True
    return prompt.text != ""


def _visible_ends(request: Request, model: ServedModel) -> frozenset[int]:
    """Ids that end an answer, where it would show them."""
    ends = frozenset(request.sampling.stop_token_ids)
    if request.skip_special_tokens or request.sampling.ignore_eos:
        return ends
    return ends.union(model.card.eos_token_ids, model.tokenizer.eos_token_ids)


def _wishes(request: Request, model: ServedModel, prompt: Prompt, decoder: Callable[[], TextDecoder]) -> Wishes:
    sampling, ids, tools = request.sampling, request.return_token_ids, model.formats.tools
    completion = isinstance(request, CompletionRequest)
    echoes = isinstance(request, CompletionRequest) and request.echo
    echo: Echo | None = None
    if echoes or ids:
        echo = Echo(_text(prompt, decoder()) if echoes else None, None, prompt.token_ids if ids else None)
    return Wishes(
        names=model.tokenizer if sampling.logprobs is not None else None,
        ending=completion,
        token_ids=ids,
        one_call=isinstance(request, ChatRequest) and not request.parallel_tool_calls,
        new_call_id=lambda: _new_call_id(tools.id_length if tools is not None else None),
        echo=echo,
        prompt_decoder=decoder if sampling.prompt_logprobs is not None else None,
        prompt_ids=prompt.token_ids,
    )


def _text(prompt: Prompt, decoder: TextDecoder) -> str:
    return prompt.text if prompt.text is not None else decoder.push(prompt.token_ids) + decoder.flush()


def _new_call_id(length: int | None) -> str:
    """length: of ids that the model's template takes back."""
    made = uuid.uuid4().hex
    return f"call_{made[:24]}" if length is None else made[:length]
