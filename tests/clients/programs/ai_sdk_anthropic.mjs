// Anthropic's own SDK for TypeScript, and the ai-sdk's model of Anthropic, which has the same API. The first argument is
// the folder of their packages. Beside what every program is given it takes "question" and "tool".
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const require = createRequire(`${process.argv[2]}/`);
const { Anthropic } = require("@anthropic-ai/sdk");
const { createAnthropic } = require("@ai-sdk/anthropic");
const { generateText, jsonSchema, stepCountIs, streamText, tool } = require("ai");

const task = JSON.parse(readFileSync(0, "utf-8"));
const client = new Anthropic({ baseURL: `http://${task.http}`, apiKey: "none", maxRetries: 0 });
const question = { role: "user", content: task.question };
const plain = { model: task.model, max_tokens: 1000, messages: [question] };
const asked = { ...plain, tools: [task.tool] };
const NAMES = { thinking: ["thinking"], text: ["text"], tool_use: ["name", "input"] };

function parts(message) {
  const blocks = message.content.map((block) => [block.type, ...NAMES[block.type].map((name) => block[name])]);
  return { blocks, stop: message.stop_reason, input: message.usage.input_tokens };
}

async function turns(call) {
  const first = await call(asked);
  const { id } = first.content.find((block) => block.type === "tool_use");
  const result = { role: "user", content: [{ type: "tool_result", tool_use_id: id, content: "sunny" }] };
  const messages = [question, { role: "assistant", content: first.content }, result];
  return [parts(first), parts(await call({ ...asked, messages }))];
}

async function failure(request) {
  try {
    return await request();
  } catch (error) {
    return [error.constructor.name, error.status, error.error?.error?.type];
  }
}

globalThis.AI_SDK_LOG_WARNINGS = false; // on the standard output: it does not know the model's limit of new tokens
const provider = createAnthropic({ baseURL: `http://${task.http}/v1`, apiKey: "none" });
const { name, description, input_schema } = task.tool;
const execute = async () => "sunny";
const tools = { [name]: tool({ description, inputSchema: jsonSchema(input_schema), execute }) };
const loop = { model: provider(task.model), prompt: task.question, tools, stopWhen: stepCountIs(2), maxRetries: 0 };
const looped = await generateText(loop);
const streaming = streamText({ ...loop, onError: ({ error }) => { throw error; } });
let text = "";
for await (const delta of streaming.textStream) text += delta;

const { max_tokens, ...counted } = asked;
const answers = {
  text: parts(await client.messages.create(plain)),
  whole: await turns((body) => client.messages.create(body)),
  stream: await turns((body) => client.messages.stream(body).finalMessage()),
  count: (await client.messages.countTokens(counted)).input_tokens,
  errors: [await failure(() => client.messages.create({ ...plain, model: "other" }))],
  ai_sdk: {
    called: looped.steps[0].toolCalls.map((call) => [call.toolName, call.input]),
    reasoning: looped.steps.map((step) => step.reasoningText ?? null),
    texts: [looped.text, text],
    finish: [looped.finishReason, await streaming.finishReason],
  },
};
process.stdout.write(JSON.stringify(answers));
