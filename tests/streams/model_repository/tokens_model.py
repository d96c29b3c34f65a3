"""A token model without weights, in TensorRT-LLM's interface, for Triton's Python backend.

The token after t is (t + 7) % 50. A text ends with end_id, which is among the output, or after request_output_len.
Prompts that begin with one of these ids ask for something else:

    9001    one token, a tenth of a second, and so on: time to go away
    9002    two tokens, and then an error
    9003    the counts so far of requests that were started, finished and cancelled, as three tokens
    9004    an error at once
    9005    the values of the other inputs of one element, in the order of their names, as ids (floats times 1000)

The parameter ``rows`` of the configuration says what a response has: ``new`` tokens, ``all`` so far, or all with the
``prompt``.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils
from worker import Worker

SLOW, FAILS, COUNTS, FAILS_AT_ONCE, SETTINGS = 9001, 9002, 9003, 9004, 9005


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.rows = config["parameters"]["rows"]["string_value"]
        self.inputs = sorted(tensor["name"] for tensor in config["input"])
        self.worker = Worker()

    def execute(self, requests):
        if not self.decoupled:
            return [self.whole(request) for request in requests]
        for request in requests:
            prompt, tokens = self.read(request)
            pause = 0.1 if prompt[0] == SLOW else 0.0
            self.worker.write(request.get_response_sender(), self.responses(prompt, tokens), pause)
        return None

    def finalize(self):
        self.worker.stop()

    def whole(self, request):
        prompt, tokens = self.read(request)
        if prompt[0] == FAILS_AT_ONCE:
            return failure("the model has failed")
        return self.response(prompt, [], list(tokens))

    def responses(self, prompt, tokens):
        if prompt[0] == FAILS_AT_ONCE:
            yield failure("the model has failed")
        sent = []
        for token in tokens:
            if prompt[0] == FAILS and len(sent) == 2:
                yield failure("the model has failed midway")
            yield self.response(prompt, sent, [token])
            sent.append(token)

    def read(self, request):
        ids = self.value(request, "input_ids").reshape(-1)
        prompt = [int(token) for token in ids[: int(self.value(request, "input_lengths"))]]
        return prompt, self.tokens(request, prompt)

    def tokens(self, request, prompt):
        if prompt[0] == COUNTS:
            return iter(list(self.worker.counts.values()))
        if prompt[0] == SETTINGS:
            values = [self.value(request, name) for name in self.inputs if name != "input_ids"]
            return iter([-1 if v is None else int(v * 1000 if v.dtype.kind == "f" else v) for v in values])
        end = self.value(request, "end_id")
        return continued(prompt[-1], int(self.value(request, "request_output_len")), None if end is None else int(end))

    def value(self, request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        array = None if tensor is None else tensor.as_numpy()
        return array.reshape(-1)[0] if array is not None and array.size == 1 else array

    def response(self, prompt, sent, new):
        row = {"new": new, "all": sent + new, "prompt": prompt + sent + new}[self.rows]
        tensors = [
            pb_utils.Tensor("output_ids", np.array([[row]], np.int32)),
            pb_utils.Tensor("sequence_length", np.array([[len(row)]], np.int32)),
        ]
        if "return_log_probs" in self.inputs:
            scores = np.array([[[-token / 10 for token in row]]], np.float32)
            tensors.append(pb_utils.Tensor("output_log_probs", scores))
        return pb_utils.InferenceResponse(output_tensors=tensors)


def continued(token, count, end):
    for _ in range(count):
        token = (token + 7) % 50
        yield token
        if token == end:
            return


def failure(message):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message))
