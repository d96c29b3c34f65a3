// The AI SDK: generateObject, streamObject and a forced tool. Takes and answers JSON as the other programs do.
// The first argument is the folder of its packages.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const require = createRequire(`${process.argv[2]}/`);
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { generateObject, generateText, streamObject, tool } = require("ai");
const { z } = require("zod");

const task = JSON.parse(readFileSync(0, "utf8"));
const provider = createOpenAICompatible({
  name: "service", baseURL: `http://${task.http}/openai/v1`, supportsStructuredOutputs: true,
});
const schema = z.object({
  kind: z.enum(["city", "river"]),
  letters: z.number().int().min(1).max(99),
  days: z.array(z.enum(["monday", "friday"])).min(1).max(2),
});
const options = { model: provider(task.model), prompt: task.message, maxRetries: 0, seed: 5 };
const object = (await generateObject({ ...options, schema })).object;
const choice = (await generateObject({ ...options, output: "enum", enum: ["red", "green"] })).object;
const stream = streamObject({ ...options, schema });
let parts = 0;
for await (const _ of stream.partialObjectStream) parts += 1;
const tools = { visit: tool({ description: "A visit", inputSchema: schema }) };
const forced = await generateText({ ...options, tools, toolChoice: "required" });
const named = await generateText({ ...options, tools, toolChoice: { type: "tool", toolName: "visit" } });
const calls = [forced, named].map((one) => one.toolCalls.map(({ toolName, input }) => ({ toolName, input })));
console.log(JSON.stringify({ object, choice, streamed: await stream.object, parts, calls }));
