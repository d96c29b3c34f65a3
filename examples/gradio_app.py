"""A Gradio page with a text, and the served model's answer with scores.

    python examples/gradio_app.py --port=7860

It works with models that fill masks or classify texts, such as `hf-transformer demo`.
"""

import argparse
import json
import urllib.error
import urllib.request

import gradio as gr

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--url", default="http://127.0.0.1:8080")
parser.add_argument("--port", type=int, default=7860)
arguments = parser.parse_args()

with urllib.request.urlopen(f"{arguments.url}/v1/models") as response:
    model = json.load(response)["models"][0]


def predict(text: str) -> dict[str, float]:
    """The best labels, or tokens for a mask, with scores. Shows the service's message if it refuses the text."""
    body = {"instances": [text], "parameters": {"output_format": "pipeline", "top_k": 5}}
    request = urllib.request.Request(f"{arguments.url}/v1/models/{model}:predict", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request) as response:
            [answer] = json.load(response)["predictions"]
    except urllib.error.HTTPError as error:
        raise gr.Error(json.load(error)["error"]) from error
    # With several masks, the answer to the first one.
    candidates = answer[0] if isinstance(answer[0], list) else answer
    return {item.get("label") or item["token_str"]: item["score"] for item in candidates}


page = gr.Interface(
    predict,
    gr.Textbox("The capital of france is [MASK].", label="Text"),
    gr.Label(label=model),
    title=f"{model} behind hf_transformer",
    api_name="predict",
    flagging_mode="never",
)

if __name__ == "__main__":
    page.launch(server_name="127.0.0.1", server_port=arguments.port)
