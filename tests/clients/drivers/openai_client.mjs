// npm openai: chat whole and streamed, the stream helper, completions, responses, embeddings, an abort, an error.
import OpenAI from "openai";
import { readFileSync } from "node:fs";

const given = JSON.parse(readFileSync(0, "utf8"));
const client = new OpenAI({ baseURL: `${given.url}/v1`, apiKey: "none", maxRetries: 0 });
const asked = {
  model: given.model,
  messages: [{ role: "user", content: "Name three primary colors." }],
  temperature: 0,
  max_tokens: 24,
};
const whole = await client.chat.completions.create(asked);
const pieces = [];
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
  pieces.push(chunk.choices[0].delta.content ?? "");
}
const helped = await client.chat.completions.stream(asked).finalContent();
const completion = await client.completions.create({
  model: given.model, prompt: "The capital of France is", max_tokens: 8, temperature: 0,
});
const response = await client.responses.create({
  model: given.model, input: "Name three primary colors.", temperature: 0, max_output_tokens: 24,
});
const types = [];
for await (const event of await client.responses.create({
  model: given.model, input: "Name three primary colors.", temperature: 0, max_output_tokens: 24, stream: true,
})) {
  types.push(event.type);
}
const embedded = await client.embeddings.create({ model: given.model, input: ["red", "blue"] });
const aborted = client.chat.completions.stream({ ...asked, max_tokens: 500 });
let chunks = 0;
try {
  for await (const _ of aborted) {
    chunks += 1;
    if (chunks === 3) aborted.abort();
  }
} catch (error) {
  if (!(error instanceof OpenAI.APIUserAbortError)) throw error;
}
let refused = null;
try {
  await client.chat.completions.create({ ...asked, temperature: 9 });
} catch (error) {
  refused = { status: error.status, param: error.param, kind: error.constructor.name };
}
console.log(
  JSON.stringify({
    whole, pieces, helped, completion, response, types, chunks, refused,
    vectors: embedded.data.map((item) => item.embedding.length),
  }),
);
