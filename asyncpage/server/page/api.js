// Speaks to the server this page came from: the model list, and a chat answer as it is streamed.

/** What the server said when it refused or failed. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The names of the models served. */
export async function listModels(key) {
  const answer = await send("/v1/models", { headers: headers(key) });
  return (await answer.json()).data.map((model) => model.id);
}

/**
 * Yields `{text}` for each piece of the answer, then `{finish}` and `{usage}`.
 * Throws ApiError, or AbortError once `signal` has fired.
 */
export async function* streamChat({ model, messages, key, signal }) {
  const answer = await send("/v1/chat/completions", {
    method: "POST",
    signal,
    headers: { ...headers(key), "Content-Type": "application/json" },
    body: JSON.stringify({ model, messages, stream: true, stream_options: { include_usage: true } }),
  });
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(200, chunk.error.message);
    const choice = chunk.choices[0];
    if (choice?.delta.content) yield { text: choice.delta.content };
    if (choice?.finish_reason) yield { finish: choice.finish_reason };
    if (chunk.usage) yield { usage: chunk.usage };
  }
  throw new ApiError(200, "The connection ended before the answer did.");
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function send(path, options) {
  const answer = await fetch(path, options);
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  throw new ApiError(answer.status, body?.error?.message ?? `The server answered ${answer.status}.`);
}

/** The data of each server-sent event of a response body. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        if (block.startsWith("data: ")) yield block.slice(6);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
