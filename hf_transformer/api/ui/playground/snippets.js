// The request of the form in other programs. An API key is never in them, only where it goes.

import { apiKey } from "./lib.js";

const withKey = (text) => (apiKey.get() ? text : "");
const IMPORT_OS = "import os\n";
const HEADERS = `, headers={"x-api-key": os.environ["API_KEY"]}`;

export function snippets(widget, values, info) {
  const own = widget.request?.(values, info);
  const path = own?.path ?? info.protocols.v1;
  const body = own?.body ?? widget.body(values, info);
  const found = [["curl", curl(path, body)], ["requests", requests(path, body)]];
  const openai = widget.openai?.(values, info);
  if (openai) found.push(["openai", inOpenai(openai, info)]);
  const tensors = widget.tensors?.(values, info);
  if (tensors) found.push(["tritonclient", inTriton(tensors, info)]);
  return found;
}

const address = (path) => new URL(`.${path}`, location.href.split("#")[0]).href;

function curl(path, body) {
  const key = withKey(` -H "x-api-key: $API_KEY"`);
  const stream = body.stream ? " -N" : "";
  return `curl -s${stream} ${address(path)}${key} \\\n  -d '${pretty(body, JSON_WORDS).replaceAll("'", "'\\''")}'`;
}

function requests(path, body) {
  const call = `requests.post("${address(path)}", json=body${withKey(HEADERS)}`;
  const read = body.stream
    ? `with ${call}, stream=True) as answer:\n    for line in answer.iter_lines():\n        print(line.decode())`
    : `answer = ${call})\nprint(answer.json())`;
  return `${withKey(`${IMPORT_OS}\n`)}import requests\n\nbody = ${python(body)}\n${read}\n`;
}

/** `method` of the client with arguments; those that the package does not know go into extra_body. */
function inOpenai({ method, known, extra, print, stream }, info) {
  const base = address(info.protocols.openai[0]).replace(/\/v1\/.*$/, "/v1");
  const key = withKey(`os.environ["API_KEY"]`) || `"none"`;
  const more = Object.keys(extra ?? {}).length ? { ...known, extra_body: extra } : known;
  const call = Object.entries(more).map(([name, value]) => `    ${name}=${python(value, 1)},\n`).join("");
  const read = stream
    ? `for chunk in answer:\n    for choice in chunk.choices:\n        print(${print}, end="", flush=True)\n`
    : `print(${print})\n`;
  return `${withKey(`${IMPORT_OS}\n`)}from openai import OpenAI\n\nclient = OpenAI(base_url="${base}", api_key=${key})\nanswer = client.${method}(\n${call})\n${read}`;
}

/** `inputs` have names and lists of text; `parameters` are those of V1. */
function inTriton({ inputs, parameters }, info) {
  const { host, protocol, pathname } = new URL(address("/"));
  const where = `"${host}${pathname.replace(/\/$/, "")}"${protocol === "https:" ? ", ssl=True" : ""}`;
  const tensors = Object.entries(inputs).map(([name, texts]) => `tensor("${name}", np.array(${python(texts)}, dtype=object))`);
  const imports = `${parameters ? "import json\n" : ""}${withKey(IMPORT_OS)}`;
  const options = parameters ? `, parameters={"parameters": json.dumps(${python(parameters)})}` : "";
  return `${imports && `${imports}\n`}import numpy as np
import tritonclient.http as triton


def tensor(name, data):
    made = triton.InferInput(name, data.shape, "BYTES")
    made.set_data_from_numpy(data)
    return made


client = triton.InferenceServerClient(${where})
inputs = [
    ${tensors.join(",\n    ")},
]
answer = client.infer("${info.name}", inputs${options}${withKey(HEADERS)})
print(answer.as_numpy("output-0"))
`;
}

const JSON_WORDS = { null: "null", true: "true", false: "false", comma: "" };
const PYTHON_WORDS = { null: "None", true: "True", false: "False", comma: "," };
const python = (value, depth) => pretty(value, PYTHON_WORDS, depth);

/** A value in as few lines as fit. */
function pretty(value, words, depth = 0) {
  const indent = "    ".repeat(depth + 1);
  if (value === null || typeof value === "boolean") return words[value];
  if (typeof value === "symbol") return value.description; // a name
  if (typeof value !== "object") return JSON.stringify(value);
  const parts = Array.isArray(value)
    ? value.map((one) => pretty(one, words, depth + 1))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${pretty(one, words, depth + 1)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = open + parts.join(", ") + close;
  if (line.length < 70 && !line.includes("\n")) return line;
  return `${open}\n${indent}${parts.join(`,\n${indent}`)}${words.comma}\n${"    ".repeat(depth)}${close}`;
}
