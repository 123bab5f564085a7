// Talks to a Pointsman server with the official client for Node, as its users do.
//
//     node openai_chat.mjs BASE_URL GOLDEN_JSON
//
// Asserts the golden answers, whole and streamed, and the errors that the client throws. Ends with 0
// if all is as it should be.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

import OpenAI from "openai";

const [baseURL, golden] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0, timeout: 60_000 });

const asked = (content) => ({
  model: "demo",
  temperature: 0,
  messages: [{ role: "user", content }],
});

async function whole(message) {
  const answer = await client.chat.completions.create(asked(message));
  assert.equal(answer.choices[0].finish_reason, "stop");
  return answer.choices[0].message.content;
}

async function streamed(message) {
  const stream = await client.chat.completions.create({ ...asked(message), stream: true });
  let text = "";
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
  }
  return text;
}

for (const { message, greedy_text: text } of JSON.parse(await readFile(golden, "utf-8"))) {
  assert.equal(await whole(message), text);
  assert.equal(await streamed(message), text);
}

const models = [];
for await (const model of client.models.list()) {
  models.push(model.id);
}
assert.deepEqual(models, ["demo"]);

const unknown = client.chat.completions.create({ ...asked("Hello"), model: "no-such-model" });
await assert.rejects(unknown, OpenAI.NotFoundError);

// A client that stops reading leaves a server that still answers others.
const left = await client.chat.completions.create({ ...asked("Tell me a story."), stream: true });
left.controller.abort();
assert.equal(typeof (await whole("Hello")), "string");

console.log("all as it should be");
