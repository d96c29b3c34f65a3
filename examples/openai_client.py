"""A chat with the openai package: the whole answer, then the same as a stream.

    python examples/openai_client.py "What is the capital of france?"

It works with any model that generates text, such as `hf-transformer demo --task=text_generation`.
"""

import argparse

from openai import OpenAI

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("question", nargs="?", default="What is the capital of france?")
parser.add_argument("--url", default="http://127.0.0.1:8080")
parser.add_argument("--api_key", default="none", help="needed only for a service with --api_keys_file")
arguments = parser.parse_args()

client = OpenAI(base_url=f"{arguments.url}/openai/v1", api_key=arguments.api_key)
model = client.models.list().data[0].id
messages = [{"role": "user", "content": arguments.question}]

answer = client.chat.completions.create(model=model, messages=messages, max_tokens=20, temperature=0)
print(f"{model}: {answer.choices[0].message.content}")
print(f"tokens: {answer.usage.prompt_tokens} in, {answer.usage.completion_tokens} out")

print("stream: ", end="")
for chunk in client.chat.completions.create(model=model, messages=messages, max_tokens=20, temperature=0, stream=True):
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
