// The ai-sdk's default OpenAI model, which uses the Responses API. The first argument is the folder of its packages.
// Beside what every program is given it takes "message", "question" and "tool", and answers with what it gets.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const require = createRequire(`${process.argv[2]}/`);
const { createOpenAI } = require("@ai-sdk/openai");
const { defaultSettingsMiddleware, generateText, jsonSchema, stepCountIs, streamText, tool, wrapLanguageModel } = require("ai");

const task = JSON.parse(readFileSync(0, "utf-8"));
const provider = createOpenAI({ baseURL: `http://${task.http}/openai/v1`, apiKey: "none" });
const asked = { model: provider(task.model), temperature: 0, maxRetries: 0 };
const { name, description, parameters } = task.tool;
const execute = async ({ city }) => `sunny in ${city}`;
const tools = { [name]: tool({ description, inputSchema: jsonSchema(parameters), execute }) };
const loop = { ...asked, prompt: task.question, tools, stopWhen: stepCountIs(2) };

async function failure(request) {
  try {
    return await request();
  } catch (error) {
    return [error.statusCode, error.message];
  }
}

async function streamed(request) {
  const result = streamText({ ...request, onError: ({ error }) => { throw error; } });
  let text = "";
  for await (const delta of result.textStream) text += delta;
  return { text, finish: await result.finishReason, usage: await result.usage, steps: (await result.steps).length };
}

function history(first) {
  const question = { role: "user", content: task.message };
  return [question, ...first.response.messages, question];
}

const first = await generateText({ ...asked, system: "You are a helpful assistant.", prompt: task.message });
const looped = await generateText(loop);
const settings = { providerOptions: { openai: { store: false } } };
const model = wrapLanguageModel({ model: asked.model, middleware: defaultSettingsMiddleware({ settings }) });
const answers = {
  text: first.text,
  finish: first.finishReason,
  usage: first.usage,
  warnings: first.warnings ?? [],
  stream: await streamed({ ...asked, prompt: task.message }),
  cut: (await streamed({ ...asked, prompt: task.message, maxOutputTokens: 2 })).finish,
  called: looped.steps[0].toolCalls.map((call) => [call.toolName, call.input]),
  results: looped.steps[0].toolResults.map((result) => result.output),
  steps: looped.steps.length,
  loop: looped.text,
  loop_stream: await streamed(loop),
  again: (await generateText({ ...asked, model, messages: history(first) })).text,
  reference: await failure(() => generateText({ ...asked, messages: history(first) })),
};
process.stdout.write(JSON.stringify(answers));
