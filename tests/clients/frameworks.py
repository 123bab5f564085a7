"""Talks to a Pointsman server through LiteLLM and LangChain, as programs built on them do.

    python frameworks.py BASE_URL GOLDEN_JSON

Asserts the golden answers, whole and streamed, with their usage, and the errors that come through.
Ends with 0 if all is as it should be.
"""

import json
import os
import sys

# Prices come with the package; nothing is fetched.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import openai
from langchain_openai import ChatOpenAI


class LiteLLM:
    def __init__(self, base_url):
        self.terms = {"api_base": base_url, "api_key": "any", "temperature": 0, "max_retries": 0}

    def ask(self, message, model="demo", **more):
        message = {"role": "user", "content": message}
        return litellm.completion(
            model=f"openai/{model}", messages=[message], **self.terms, **more
        )

    def whole(self, message):
        answer = self.ask(message)
        return answer.choices[0].message.content, answer.usage.prompt_tokens

    def streamed(self, message):
        chunks = self.ask(message, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    def unknown(self):
        self.ask("Hello", model="no-such-model")


class LangChain:
    def __init__(self, base_url):
        terms = {"base_url": base_url, "api_key": "any", "temperature": 0, "max_retries": 0}
        self.model = ChatOpenAI(model="demo", **terms)
        self.other = ChatOpenAI(model="no-such-model", **terms)

    def whole(self, message):
        answer = self.model.invoke(message)
        return answer.content, answer.usage_metadata["input_tokens"]

    def streamed(self, message):
        return "".join(chunk.content for chunk in self.model.stream(message))

    def unknown(self):
        self.other.invoke("Hello")


def check(framework, golden):
    for case in golden:
        expected = (case["greedy_text"], len(case["prompt_ids"]))
        assert framework.whole(case["message"]) == expected, case["message"]
        assert framework.streamed(case["message"]) == case["greedy_text"], case["message"]
    try:
        framework.unknown()
    except openai.NotFoundError as error:
        assert "demo" in str(error), error
    else:
        raise AssertionError("an unknown model was served")


def main(base_url, golden_path):
    with open(golden_path, encoding="utf-8") as file:
        golden = json.load(file)
    for framework in (LiteLLM, LangChain):
        check(framework(base_url), golden)
    print("all as it should be")


main(sys.argv[1], sys.argv[2])
