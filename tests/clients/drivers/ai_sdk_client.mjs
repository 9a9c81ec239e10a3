// Vercel's AI SDK: the OpenAI-compatible provider, and the OpenAI provider with its default, responses.
import { generateText, streamText, Output, tool, embedMany, jsonSchema } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createOpenAI } from "@ai-sdk/openai";
import { readFileSync } from "node:fs";

const given = JSON.parse(readFileSync(0, "utf8"));
const baseURL = `${given.url}/v1`;
const compatible = createOpenAICompatible({
  name: "local", baseURL, apiKey: "none", includeUsage: true, supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL, apiKey: "none" });
const asked = { prompt: "Name three primary colors.", temperature: 0, maxOutputTokens: 24, maxRetries: 0 };
const schema = jsonSchema({
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, age: { type: "integer", minimum: 0, maximum: 150 } },
  required: ["name", "age"],
  additionalProperties: false,
});
const found = {};
for (const [name, model] of [["compatible", compatible(given.model)], ["responses", openai(given.model)]]) {
  const whole = await generateText({ model, ...asked });
  const stream = streamText({ model, ...asked, onError: ({ error }) => { throw error; } });
  const pieces = [];
  for await (const piece of stream.textStream) pieces.push(piece);
  const object = await generateText({
    model, ...asked, prompt: "Ada is 36 years old.", maxOutputTokens: 300, output: Output.object({ schema }),
  });
  const called = await generateText({
    model, ...asked, maxOutputTokens: 300, toolChoice: "required",
    providerOptions: { local: { parallel_tool_calls: false }, openai: { parallelToolCalls: false } },
    prompt: "What is the weather in Paris?",
    tools: {
      weather: tool({
        description: "The weather of a city",
        inputSchema: jsonSchema({
          type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"],
          additionalProperties: false,
        }),
      }),
    },
  });
  found[name] = {
    text: whole.text, finish: whole.finishReason, usage: whole.usage, pieces, streamFinish: await stream.finishReason,
    object: object.output, calls: called.toolCalls.map(({ toolName, input }) => ({ toolName, input })),
    callFinish: called.finishReason,
  };
}
const { embeddings } = await embedMany({
  model: compatible.textEmbeddingModel(given.model), values: ["red", "blue"],
});
found.vectors = embeddings.map((vector) => vector.length);
console.log(JSON.stringify(found));
