// The ai-sdk with models of several families, as openai_families.py: its OpenAI provider by both APIs, and its provider
// of compatible servers, which reads reasoning. The first argument is the folder of its packages.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const require = createRequire(`${process.argv[2]}/`);
const { createOpenAI } = require("@ai-sdk/openai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { generateText, jsonSchema, stepCountIs, streamText, tool } = require("ai");

const task = JSON.parse(readFileSync(0, "utf-8"));
const { name, description, parameters } = task.tool.function;
const answers = {};

for (const [family, address] of Object.entries(task.families)) {
  const baseURL = `http://${address}/openai/v1`;
  const provider = createOpenAI({ baseURL, apiKey: "none" });
  const models = {
    responses: provider(task.family_model),
    chat: provider.chat(task.family_model),
    compatible: createOpenAICompatible({ name: "service", baseURL })(task.family_model),
  };
  for (const [way, model] of Object.entries(models)) {
    const tools = { [name]: tool({ description, inputSchema: jsonSchema(parameters), execute: async () => "sunny" }) };
    const request = { model, prompt: task.question, tools, stopWhen: stepCountIs(3), maxRetries: 0 };
    for (const kind of ["whole", "streamed"]) {
      const result = kind === "whole" ? await generateText(request) : streamText({ ...request, onError: ({ error }) => { throw error; } });
      if (kind === "streamed") for await (const part of result.fullStream);
      const [first] = await result.steps;
      const [call] = first.toolCalls;
      const thought = way === "compatible" ? first.reasoningText ?? null : null;
      answers[`${family} ${way} ${kind}`] = [call.toolName, call.input, thought, await result.text];
    }
  }
}
process.stdout.write(JSON.stringify(answers));
