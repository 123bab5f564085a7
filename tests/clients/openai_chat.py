"""Talks to a Pointsman server with the official client, as its users do.

    python openai_chat.py BASE_URL GOLDEN_JSON

Asserts the golden answers, whole and streamed, the shapes that the client parses, and the errors it
raises. Ends with 0 if all is as it should be.
"""

import json
import sys

import openai


def whole(client, message):
    answer = client.chat.completions.create(
        model="demo", temperature=0, messages=[{"role": "user", "content": message}]
    )
    assert answer.object == "chat.completion", answer
    assert answer.choices[0].finish_reason == "stop", answer
    assert answer.choices[0].message.role == "assistant", answer
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    return answer.choices[0].message.content, usage


def streamed(client, message):
    stream = client.chat.completions.create(
        model="demo",
        temperature=0,
        messages=[{"role": "user", "content": message}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    assert chunks[-1].usage is not None and not chunks[-1].choices, chunks[-1]
    assert len({chunk.id for chunk in chunks}) == 1, "one id for all chunks"
    pieces = [chunk for chunk in chunks if chunk.choices]
    assert pieces[-1].choices[0].finish_reason == "stop", pieces[-1]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    return text, chunks[-1].usage


def golden_answers(client, golden):
    for case in golden:
        text, usage = whole(client, case["message"])
        assert text == case["greedy_text"], (case["message"], text)
        assert usage.prompt_tokens == len(case["prompt_ids"]), usage
        assert streamed(client, case["message"]) == (text, usage), case["message"]


def hints_and_headers(client):
    raw = client.chat.completions.with_raw_response.create(
        model="demo",
        max_tokens=3,
        messages=[{"role": "user", "content": "Hello"}],
        extra_headers={"x-pointsman-session": "a-session"},
        extra_body={"pointsman": {"priority": 5, "class": "throughput"}},
    )
    for name in ("executor", "policy", "decision", "reason"):
        assert raw.headers[f"x-pointsman-{name}"], name
    assert raw.parse().choices[0].finish_reason == "length"


def completions(client):
    answer = client.completions.create(model="demo", prompt="Once there was", max_tokens=5, seed=7)
    again = client.completions.create(model="demo", prompt="Once there was", max_tokens=5, seed=7)
    assert answer.usage.completion_tokens <= 5, answer
    assert answer.choices[0].text == again.choices[0].text, "the same seed, the same answer"


def models(client):
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"


def errors(client):
    message = [{"role": "user", "content": "Hello"}]
    try:
        client.chat.completions.create(model="no-such-model", messages=message)
        raise AssertionError("an unknown model was served")
    except openai.NotFoundError as error:
        assert "demo" in error.message, error
    try:
        client.chat.completions.create(model="demo", messages=message, n=2)
        raise AssertionError("n=2 was served")
    except openai.BadRequestError as error:
        assert error.param == "n", error


def main(base_url, golden_path):
    client = openai.OpenAI(base_url=base_url, api_key="any", max_retries=0, timeout=60)
    with open(golden_path, encoding="utf-8") as file:
        golden_answers(client, json.load(file))
    hints_and_headers(client)
    completions(client)
    models(client)
    errors(client)
    print("all as it should be")


main(sys.argv[1], sys.argv[2])
