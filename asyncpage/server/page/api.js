// Speaks to the server that this page came from: models, answers as they are streamed, pictures of the engine.
// The key lives in this tab's session storage alone, and goes nowhere but into the Authorization header.

const KEY = "asyncpage.key";

/** What the server said when it refused or failed. `retryAfter`: seconds, where it says when to ask again. */
export class ApiError extends Error {
  constructor(status, message, code = null, retryAfter = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

export function setKey(key) {
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Storage may be forbidden; the key then lasts as long as the page.
  }
  keyWithoutStorage = key;
}

let keyWithoutStorage = "";

function storedKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return keyWithoutStorage;
  }
}

/** The names of the models served. */
export async function listModels() {
  const answer = await send("v1/models");
  return (await answer.json()).data.map((model) => model.id);
}

/** What one block of the KV cache holds and who holds it. */
export async function lookAtBlock(block) {
  return (await send(`debug/block/${block}`)).json();
}

/**
 * Yields `{text}`, `{reasoning}` and `{call}` for each piece of the answer, then `{finish}` and `{usage}`.
 * `options`: fields of the request beside the conversation. Throws ApiError, or AbortError once `signal` has fired.
 */
export async function* streamChat({ model, messages, options, signal }) {
  const answer = await send("v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...options, model, messages, stream: true, stream_options: { include_usage: true } }),
  });
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(200, chunk.error.message, chunk.error.code);
    const choice = chunk.choices[0];
    const reasoning = choice?.delta.reasoning_content ?? choice?.delta.reasoning;
    if (reasoning) yield { reasoning };
    if (choice?.delta.content) yield { text: choice.delta.content };
    for (const call of choice?.delta.tool_calls ?? []) {
      yield { call: { index: call.index, id: call.id, name: call.function?.name, arguments: call.function?.arguments } };
    }
    if (choice?.finish_reason) yield { finish: choice.finish_reason };
    if (chunk.usage) yield { usage: chunk.usage };
  }
  throw new ApiError(200, "The connection ended before the answer did.");
}

/** Yields the pictures of the engine, until the server ends the feed. Throws as `streamChat` does. */
export async function* watchEngine(signal) {
  const answer = await send("events/chart", { signal });
  for await (const data of events(answer.body)) {
    const frame = JSON.parse(data);
    if (frame.error) throw new ApiError(200, frame.error.message, frame.error.code);
    yield frame;
  }
}

async function send(path, options = {}) {
  const key = storedKey();
  const headers = key ? { ...options.headers, Authorization: `Bearer ${key}` } : options.headers;
  const answer = await fetch(path, { ...options, headers, credentials: "omit" });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  const error = body?.error;
  const retryAfter = Number(answer.headers.get("Retry-After")) || null;
  throw new ApiError(answer.status, error?.message ?? `The server answered ${answer.status}.`, error?.code, retryAfter);
}

/** The data of each server-sent event of a response body. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data: "));
        if (data.length) yield data.map((line) => line.slice(6)).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
