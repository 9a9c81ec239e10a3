// The parts of the chat room that need no page: what is kept, what is sent, what is measured, what is read.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError, events, streamChat } from "../../asyncpage/server/page/api.js";
import { Conversation } from "../../asyncpage/server/page/conversation.js";
import { explain } from "../../asyncpage/server/page/failure_text.js";
import { Meter } from "../../asyncpage/server/page/meter.js";
import { keepSettings, keptSettings, toOptions } from "../../asyncpage/server/page/sampling.js";

class Storage {
  constructor() {
    this.items = new Map();
  }

  getItem(name) {
    return this.items.get(name) ?? null;
  }

  setItem(name, text) {
    this.items.set(name, text);
  }
}

const forbidden = {
  getItem() {
    throw new Error("forbidden");
  },
  setItem() {
    throw new Error("full");
  },
};

test("a conversation comes back as it was", () => {
  const storage = new Storage();
  const first = new Conversation(storage);
  first.add({ role: "user", content: "a" });
  first.add({ role: "assistant", content: "b", note: "1 token" });
  assert.deepEqual(new Conversation(storage).messages, first.messages);
  first.cut(1);
  assert.deepEqual(new Conversation(storage).messages, [{ role: "user", content: "a" }]);
  first.clear();
  assert.deepEqual(new Conversation(storage).messages, []);
});

test("without storage a conversation lasts as long as the page", () => {
  const conversation = new Conversation(forbidden);
  conversation.add({ role: "user", content: "a" });
  assert.equal(conversation.messages.length, 1);
});

test("what was kept by something else is not taken for messages", () => {
  for (const text of ["{", "null", "3", '{"a":1}', '[1,null,{"role":"system","content":"x"},{"role":"user","content":1}]']) {
    const storage = new Storage();
    storage.setItem("asyncpage.conversation", text);
    assert.deepEqual(new Conversation(storage).messages, [], text);
  }
});

test("a conversation that is too long to keep loses its oldest exchanges there", () => {
  const storage = new Storage();
  const conversation = new Conversation(storage);
  for (let index = 0; index < 3; index += 1) {
    conversation.add({ role: "user", content: String(index).repeat(600_000) });
    conversation.add({ role: "assistant", content: "ok" });
  }
  conversation.add({ role: "user", content: "3".repeat(600_000) });
  assert.equal(conversation.messages.length, 7);
  assert.deepEqual(new Conversation(storage).messages.map(({ content }) => content[0]), ["1", "o", "2", "o", "3"]);
});

test("a request has the system prompt and what was said, without what belongs to the page", () => {
  const conversation = new Conversation(new Storage());
  conversation.add({ role: "user", content: "a" });
  conversation.add({ role: "assistant", content: "", calls: [{ name: "f", arguments: "{}" }] });
  conversation.add({ role: "user", content: "b" });
  conversation.add({ role: "assistant", content: "c", reasoning: "d", note: "e" });
  const said = [{ role: "user", content: "a" }, { role: "user", content: "b" }, { role: "assistant", content: "c" }];
  assert.deepEqual(conversation.toSend("  "), said);
  assert.deepEqual(conversation.toSend("s"), [{ role: "system", content: "s" }, ...said]);
  assert.equal(conversation.lastQuestion(), 2);
});

test("only the settings that are given are sent", () => {
  assert.deepEqual(toOptions({}), {});
  assert.deepEqual(
    toOptions({ system: "x", temperature: " 0.5", "top-p": "1", "max-tokens": "9", seed: "-3", stop: "a\n\nb c\n" }),
    { temperature: 0.5, top_p: 1, max_tokens: 9, seed: -3, stop: ["a", "b c"] },
  );
  assert.deepEqual(toOptions({ temperature: "0" }), { temperature: 0 });
});

test("a setting that cannot be is refused by its field", () => {
  for (const [field, text] of [["temperature", "3"], ["temperature", "x"], ["top-p", "0"], ["max-tokens", "1.5"], ["seed", "1e99"], ["stop", "1\n2\n3\n4\n5"]]) {
    assert.throws(() => toOptions({ [field]: text }), (error) => error instanceof RangeError && error.field === field, `${field} ${text}`);
  }
});

test("settings are kept", () => {
  const storage = new Storage();
  keepSettings(storage, { seed: "4" });
  assert.deepEqual(keptSettings(storage), { seed: "4" });
  storage.setItem("asyncpage.settings", '{"seed":4,"stop":"x"}');
  assert.deepEqual(keptSettings(storage), { stop: "x" });
  keepSettings(forbidden, {});
  assert.deepEqual(keptSettings(forbidden), {});
});

test("an answer is measured from its first token", () => {
  let now = 1000;
  const meter = new Meter(() => now);
  for (now of [1250, 1300, 3250]) meter.came();
  const usage = { prompt_tokens: 40, completion_tokens: 101, prompt_tokens_details: { cached_tokens: 32 } };
  assert.equal(meter.note(usage, ""), "101 tokens · 50.0 tokens/s · first after 0.25 s · prompt of 40 tokens, 32 from the cache");
  assert.equal(meter.note(null, "stopped"), "first after 0.25 s · stopped");
  const silent = new Meter(() => 0);
  assert.equal(silent.note({ prompt_tokens: 1, completion_tokens: 1 }, ""), "1 token · prompt of 1 token");
});

test("what went wrong is said plainly, with when to try again", () => {
  assert.equal(explain(new ApiError(429, "the queue is full", "queue_full", 3)), "The server is busy: the queue is full. Try again in 3 s.");
  assert.equal(explain(new ApiError(503, "not ready: the executor is being restarted", "restarting", 2)), "Not ready: the executor is being restarted. Try again in 2 s.");
  assert.equal(explain(new TypeError("fetch failed")), "The server cannot be reached. Is it still running?");
});

test("events are read whatever pieces they come in", async () => {
  const text = ": keep-alive\n\ndata: one\n\nid: 4\ndata: tw\u00f6\n\ndata: a\ndata: b\n\ndata: cut";
  const bytes = new TextEncoder().encode(text);
  for (const size of [1, 3, 1000]) {
    const body = new ReadableStream({
      start(controller) {
        for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
        controller.close();
      },
    });
    const found = [];
    for await (const data of events(body)) found.push(data);
    assert.deepEqual(found, ["one", "tw\u00f6", "a\nb"]);
  }
});

test("an answer is read piece by piece: text, reasoning, calls, finish and usage", async (context) => {
  const delta = (piece, finish = null) => ({ choices: [{ delta: piece, finish_reason: finish }] });
  const call = (piece) => delta({ tool_calls: [piece] });
  const chunks = [
    delta({ role: "assistant", content: "" }),
    delta({ reasoning_content: "hm" }),
    delta({ content: "a" }),
    call({ index: 0, id: "c", type: "function", function: { name: "f", arguments: "" } }),
    call({ index: 0, function: { arguments: "{}" } }),
    delta({}, "tool_calls"),
    { choices: [], usage: { prompt_tokens: 1 } },
  ];
  const sent = [];
  context.mock.method(globalThis, "fetch", async (path, options) => {
    sent.push([path, options.headers.Authorization, JSON.parse(options.body)]);
    return new Response([...chunks.map((chunk) => JSON.stringify(chunk)), "[DONE]"].map((data) => `data: ${data}\n\n`).join(""));
  });
  const found = [];
  for await (const piece of streamChat({ model: "m", messages: [], options: { seed: 1 } })) found.push(piece);
  assert.deepEqual(found, [
    { reasoning: "hm" },
    { text: "a" },
    { call: { index: 0, id: "c", name: "f", arguments: "" } },
    { call: { index: 0, id: undefined, name: undefined, arguments: "{}" } },
    { finish: "tool_calls" },
    { usage: { prompt_tokens: 1 } },
  ]);
  assert.deepEqual(sent, [
    ["v1/chat/completions", undefined, { seed: 1, model: "m", messages: [], stream: true, stream_options: { include_usage: true } }],
  ]);
});

test("a refusal, an error in the stream and a stream that is cut are errors", async (context) => {
  const answers = [
    new Response('{"error":{"message":"full","code":"queue_full"}}', { status: 429, headers: { "Retry-After": "4" } }),
    new Response("<html>", { status: 502 }),
    new Response('data: {"error":{"message":"gone","code":"engine_dead"}}\n\ndata: [DONE]\n\n'),
    new Response('data: {"choices":[]}\n\n'),
  ];
  context.mock.method(globalThis, "fetch", async () => answers.shift());
  const failed = async () => {
    try {
      for await (const piece of streamChat({ model: "m", messages: [], options: {} })) assert.equal(piece, undefined);
    } catch (error) {
      return [error.name, error.status, error.message, error.code, error.retryAfter];
    }
    return null;
  };
  assert.deepEqual(await failed(), ["ApiError", 429, "full", "queue_full", 4]);
  assert.deepEqual(await failed(), ["ApiError", 502, "The server answered 502.", null, null]);
  assert.deepEqual(await failed(), ["ApiError", 200, "gone", "engine_dead", null]);
  assert.deepEqual(await failed(), ["ApiError", 200, "The connection ended before the answer did.", null, null]);
});
