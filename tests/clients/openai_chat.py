"""Talks to a Pointsman server with the official client, as its users do.

    python openai_chat.py BASE_URL GOLDEN_JSON [chats]

Asserts the golden answers, whole and streamed, the shapes that the client parses, and the errors it
raises. Ends with 0 if all is as it should be. With `chats` only what a server of others behind
Pointsman answers alike.
"""

import json
import sys
from typing import Literal

import openai
import pydantic


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


def golden_texts(client, golden):
    # Others count tokens in their own way, but do not tell two numbers of one answer.
    for case in golden:
        text, usage = whole(client, case["message"])
        assert text == case["greedy_text"], (case["message"], text)
        again, used = streamed(client, case["message"])
        assert again == text, (case["message"], again)
        counts = {(each.prompt_tokens, each.completion_tokens) for each in (usage, used)}
        assert len(counts) == 1, counts


def embeddings(client):
    texts = ["Hello!", "What comes after four?"]
    # The client asks for base64 unless it is told what to ask for.
    asked = client.embeddings.create(model="demo", input=texts)
    plain = client.embeddings.create(model="demo", input=texts, encoding_format="float")
    assert [one.index for one in asked.data] == [0, 1], asked
    for one, other in zip(asked.data, plain.data):
        # Decimals are as many as 32 bits have.
        furthest = max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True))
        assert furthest < 1e-7, "the same numbers in both encodings"
        assert abs(sum(number**2 for number in one.embedding) - 1) < 1e-5
    assert asked.usage == plain.usage and asked.usage.total_tokens == 7, asked.usage


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


def probabilities(client):
    ask = {
        "model": "demo",
        "temperature": 0,
        "messages": [{"role": "user", "content": "What comes after four?"}],
        "logprobs": True,
        "top_logprobs": 3,
    }
    choice = client.chat.completions.create(**ask).choices[0]
    told = choice.logprobs.content
    assert b"".join(bytes(token.bytes) for token in told).decode() == choice.message.content
    for token in told:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3, token
        # The likeliest is taken.
        assert token.top_logprobs[0].token == token.token, token
        assert token.top_logprobs[0].logprob == token.logprob, token
    chunks = client.chat.completions.create(stream=True, **ask)
    chunks = [chunk.choices[0].logprobs for chunk in chunks]
    assert [token for part in chunks if part for token in part.content] == told

    answer = client.completions.create(model="demo", prompt="one two", max_tokens=5, logprobs=2)
    told = answer.choices[0].logprobs
    assert "".join(told.tokens) == answer.choices[0].text, answer
    assert len(told.token_logprobs) == len(told.tokens) > 0, told
    assert all(len(top) == 2 for top in told.top_logprobs), told
    offsets = [len("".join(told.tokens[:place])) for place in range(len(told.tokens))]
    assert told.text_offset == offsets, told


def sampling(client):
    def answer(**more):
        question = [{"role": "user", "content": "What comes after four?"}]
        chat = client.chat.completions.create(
            model="demo", temperature=0, messages=question, max_tokens=40, **more
        )
        return chat.choices[0].message.content

    assert answer() == "Five comes after four."
    assert answer(logit_bias={300: 100}) != answer()
    assert answer(presence_penalty=0.1, frequency_penalty=0.1) == answer()
    hot = {"temperature": 2, "extra_body": {"min_p": 1}}
    question = [{"role": "user", "content": "What comes after four?"}]
    chat = client.chat.completions.create(model="demo", messages=question, **hot)
    assert chat.choices[0].message.content == answer(), chat


def choices(client):
    question = [{"role": "user", "content": "Tell me about an animal."}]
    ask = {"model": "demo", "messages": question, "temperature": 1.5, "seed": 3, "max_tokens": 20}
    answer = client.chat.completions.create(n=3, **ask)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2] and len(set(texts)) > 1, texts
    stream = client.chat.completions.create(n=3, stream=True, **ask)
    streamed = ["", "", ""]
    for choice in (chunk.choices[0] for chunk in stream if chunk.choices):
        streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts, (streamed, texts)
    answer = client.completions.create(model="demo", prompt=["One", "Two"], max_tokens=3, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3], answer


class Animal(pydantic.BaseModel):
    name: Literal["fox", "crow", "owl"]
    legs: Literal[2, 4]


def forms(client):
    question = [{"role": "user", "content": "Tell me about an animal."}]
    for seed in range(3):
        answer = client.chat.completions.parse(
            model="demo",
            messages=question,
            temperature=2,
            seed=seed,
            max_tokens=300,
            response_format=Animal,
        )
        animal = answer.choices[0].message.parsed
        assert isinstance(animal, Animal), answer


def models(client):
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"


def unknown_model(client):
    message = [{"role": "user", "content": "Hello"}]
    try:
        client.chat.completions.create(model="no-such-model", messages=message)
        raise AssertionError("an unknown model was served")
    except openai.NotFoundError as error:
        assert "demo" in error.message, error


def unknown_field(client):
    message = [{"role": "user", "content": "Hello"}]
    try:
        extra = {"echo": True}
        client.chat.completions.create(model="demo", messages=message, extra_body=extra)
        raise AssertionError("echo was served")
    except openai.BadRequestError as error:
        assert error.param == "echo", error


def all_that_is_built(client, golden):
    golden_answers(client, golden)
    embeddings(client)
    completions(client)
    probabilities(client)
    sampling(client)
    choices(client)
    forms(client)
    unknown_field(client)


CHECKS = {"all": all_that_is_built, "chats": golden_texts}


def main(base_url, golden_path, checks="all"):
    client = openai.OpenAI(base_url=base_url, api_key="any", max_retries=0, timeout=60)
    with open(golden_path, encoding="utf-8") as file:
        golden = json.load(file)
    CHECKS[checks](client, golden)
    hints_and_headers(client)
    models(client)
    unknown_model(client)
    print("all as it should be")


main(*sys.argv[1:])
