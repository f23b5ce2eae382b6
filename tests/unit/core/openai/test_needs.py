from dataclasses import replace

import pytest

from enginehouse.core.openai.needs import asks_for, needs
from enginehouse.core.openai.requests import ChatRequest, CompletionRequest
from enginehouse.domain.constraint import Grammar, JsonObject, JsonSchema, OneOf, Regex, StructuralTag
from enginehouse.domain.engine import Ability
from enginehouse.domain.request import Sampling

CHAT = ChatRequest(model="m", messages=())
PROMPT = CompletionRequest(model="m", prompt="x")


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (Sampling(temperature=0.5, seed=1, stop_token_ids=(1,), min_tokens=2, ignore_eos=True), None),
        (Sampling(logprobs=0), Ability.LOGPROBS),
        (Sampling(prompt_logprobs=0), Ability.PROMPT_LOGPROBS),
        (Sampling(logit_bias=((1, 2.0),)), Ability.LOGIT_BIAS),
        (Sampling(priority=-1), Ability.PRIORITY),
        (Sampling(constraint=JsonSchema("{}")), Ability.JSON_SCHEMA),
        (Sampling(constraint=JsonObject()), Ability.JSON_OBJECT),
        (Sampling(constraint=Regex("a")), Ability.REGEX),
        (Sampling(constraint=Grammar("a")), Ability.GRAMMAR),
        (Sampling(constraint=OneOf(("a",))), Ability.CHOICE),
        (Sampling(constraint=StructuralTag("{}")), Ability.STRUCTURAL_TAG),
    ],
)
def test_what_a_request_needs(sampling: Sampling, wanted: Ability | None) -> None:
    for request in (CHAT, PROMPT):
        assert needs(replace(request, sampling=sampling)) == {Ability.GENERATE} | ({wanted} if wanted else set())


def test_several_needs_add_up() -> None:
    sampling = Sampling(logprobs=1, prompt_logprobs=1, constraint=JsonObject())
    wanted = {Ability.GENERATE, Ability.LOGPROBS, Ability.PROMPT_LOGPROBS, Ability.JSON_OBJECT}
    assert needs(replace(PROMPT, sampling=sampling)) == wanted


@pytest.mark.parametrize("ability", [ability for ability in Ability if ability is not Ability.EMBED])
def test_each_need_has_the_name_of_a_parameter(ability: Ability) -> None:
    request = replace(CHAT, constraint_param="guided_json")
    names = {Ability.GENERATE: "model", Ability.LOGPROBS: "logprobs", Ability.LOGIT_BIAS: "logit_bias"}
    names |= {Ability.PRIORITY: "priority", Ability.PROMPT_LOGPROBS: "prompt_logprobs"}
    assert asks_for(request, ability) == names.get(ability, "guided_json")
    assert asks_for(replace(PROMPT, echo=True), Ability.PROMPT_LOGPROBS) == "echo"
