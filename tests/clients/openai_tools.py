"""Has models call tools, with the official client as its users do.

    python openai_tools.py BASE_URL GOLDEN_JSON

Asserts what the client parses: calls whole and streamed, arguments as its helpers read them, and a
conversation that goes on with a result. Ends with 0 if all is as it should be.
"""

import json
import sys
from typing import Literal

import openai
import pydantic


class Roll(pydantic.BaseModel):
    """Rolls dice."""

    dice: Literal[1, 2, 3]


QUESTION = [{"role": "user", "content": "Roll two dice."}]


def ask(client, model, **more):
    tool = openai.pydantic_function_tool(Roll)
    return client.chat.completions.create(
        model=model, messages=QUESTION, tools=[tool], max_tokens=300, **more
    )


def whole(client, model):
    choice = ask(client, model, tool_choice="required", parallel_tool_calls=False).choices[0]
    assert choice.finish_reason == "tool_calls", choice
    assert choice.message.content is None, choice
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.function.name == "Roll", choice
    return call


def streamed(client, model):
    named = {"type": "function", "function": {"name": "Roll"}}
    calls = {}
    for chunk in ask(client, model, tool_choice=named, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            if part.id:
                assert part.index not in calls and part.function.name == "Roll", part
                calls[part.index] = ""
            calls[part.index] += part.function.arguments
        reason = chunk.choices[0].finish_reason
    assert reason == "tool_calls", reason
    return [json.loads(arguments) for arguments in calls.values()]


def parsed(client, model):
    answer = client.chat.completions.parse(
        model=model,
        messages=QUESTION,
        tools=[openai.pydantic_function_tool(Roll)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=300,
    )
    for call in answer.choices[0].message.tool_calls:
        assert isinstance(call.function.parsed_arguments, Roll), answer


def events(client, model):
    with client.chat.completions.stream(
        model=model,
        messages=QUESTION,
        tools=[openai.pydantic_function_tool(Roll)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=300,
    ) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds, kinds
    for call in answer.choices[0].message.tool_calls:
        assert isinstance(call.function.parsed_arguments, Roll), answer


def goes_on(client, model, call):
    messages = QUESTION + [
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "5"},
    ]
    answer = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=[openai.pydantic_function_tool(Roll)],
        tool_choice="none",
        max_tokens=5,
    )
    assert answer.choices[0].finish_reason in ("stop", "length"), answer


def refusals(client):
    try:
        ask(client, "demo")
        raise AssertionError("a model without tools was told of some")
    except openai.BadRequestError as error:
        assert error.param == "tools", error


def main(base_url, _golden):
    client = openai.OpenAI(base_url=base_url, api_key="any", max_retries=0, timeout=60)
    for model in ("tags", "marked", "named", "bare", "special"):
        call = whole(client, model)
        assert json.loads(call.function.arguments)["dice"] in (1, 2, 3), call
        (arguments,) = streamed(client, model)
        assert arguments["dice"] in (1, 2, 3), arguments
        parsed(client, model)
        events(client, model)
        goes_on(client, model, call)
    refusals(client)
    print("all as it should be")


main(sys.argv[1], sys.argv[2])
