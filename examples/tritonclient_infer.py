"""Text tensors with NVIDIA's client for Triton, over HTTP and gRPC.

    python examples/tritonclient_infer.py "The capital of france is [MASK]."

It works with any model that takes one text, such as `hf-transformer demo`.
"""

import argparse

import numpy as np
import tritonclient.grpc
import tritonclient.http

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("texts", nargs="*", default=["The capital of france is [MASK].", "The capital of italy is [MASK]."])
parser.add_argument("--http", default="127.0.0.1:8080", metavar="HOST:PORT")
parser.add_argument("--grpc", default="127.0.0.1:8081", metavar="HOST:PORT")
parser.add_argument("--model", default="bert")
arguments = parser.parse_args()

texts = np.array([text.encode() for text in arguments.texts], dtype=np.object_)
for library, address in ((tritonclient.http, arguments.http), (tritonclient.grpc, arguments.grpc)):
    with library.InferenceServerClient(address) as client:
        tensor = library.InferInput("text", list(texts.shape), "BYTES")
        tensor.set_data_from_numpy(texts)
        answers = client.infer(arguments.model, [tensor]).as_numpy("output-0")
    print(f"{library.__name__}: {[one.decode() if isinstance(one, bytes) else one for one in answers.tolist()]}")
