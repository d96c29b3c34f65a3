"""A LangChain chain of prompt template, served model and parser, called with three questions at a time.

    python examples/langchain_chain.py france italy japan

It works with any model that generates text, such as `hf-transformer demo --task=text_generation`.
"""

import argparse
import json
import urllib.request

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("countries", nargs="*", default=["france", "italy", "japan"])
parser.add_argument("--url", default="http://127.0.0.1:8080")
arguments = parser.parse_args()

with urllib.request.urlopen(f"{arguments.url}/v1/models") as response:
    model = json.load(response)["models"][0]

prompt = ChatPromptTemplate.from_messages([("user", "What is the capital of {country}?")])
chat = ChatOpenAI(base_url=f"{arguments.url}/openai/v1", api_key="none", model=model, temperature=0, max_tokens=20)
chain = prompt | chat | StrOutputParser()

# LangChain sends the questions concurrently, so they share batches at Triton.
inputs = [{"country": country} for country in arguments.countries]
for country, answer in zip(arguments.countries, chain.batch(inputs), strict=True):
    print(f"{country}: {answer}")

print("stream: ", end="")
for piece in chain.stream(inputs[0]):
    print(piece, end="", flush=True)
print()
