"""A text model without weights, for Triton's Python backend: vllm_backend's interface where it is decoupled, else that
of Triton's tutorial.

It counts on from the number of words in the prompt: "three words here" is continued by " 4 5 6", a word a token, until
max_tokens or 9, after which it ends by itself. Prompts that are one of these words ask for something else:

    slow      a tenth of a second after each token
    fails     two tokens, and then an error
    counts    the counts so far of requests that were started, finished and cancelled
    settings  all inputs but the prompt, as JSON
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils
from worker import Worker

LAST = 9


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.inputs = sorted(tensor["name"] for tensor in config["input"])
        self.worker = Worker()

    def execute(self, requests):
        if not self.decoupled:
            return [self.whole(request) for request in requests]
        for request in requests:
            prompt = self.value(request, "text_input").decode()
            pause = 0.1 if prompt == "slow" else 0.0
            self.worker.write(request.get_response_sender(), self.responses(request, prompt), pause)
        return None

    def finalize(self):
        self.worker.stop()

    def whole(self, request):
        prompt = self.value(request, "text_input").decode()
        text = prompt + "".join(self.words(request, prompt, {}))
        return pb_utils.InferenceResponse([pb_utils.Tensor("text", np.array([text.encode()], np.object_))])

    def responses(self, request, prompt):
        parameters = json.loads(self.value(request, "sampling_parameters") or b"{}")
        words = self.words(request, prompt, parameters)
        if not self.value(request, "stream"):
            whole = "".join(words)
            words = [whole if self.value(request, "exclude_input_in_output") else prompt + whole]
        reason = "length" if len(words) == parameters.get("max_tokens", 16) else "stop"
        for number, word in enumerate(words, 1):
            if prompt == "fails" and number == 3:
                yield pb_utils.InferenceResponse(error=pb_utils.TritonError("Error generating stream: why"))
            yield self.response(request, word, reason if number == len(words) else "None")

    def words(self, request, prompt, parameters):
        if prompt == "counts":
            return [json.dumps(self.worker.counts)]
        if prompt == "settings":
            values = {name: self.value(request, name) for name in self.inputs if name != "text_input"}
            return [json.dumps({name: as_json(value) for name, value in values.items()})]
        first = len(prompt.split()) + 1
        last = 10**6 if prompt in ("slow", "fails") else LAST
        return [f" {number}" for number in range(first, min(first + parameters.get("max_tokens", 16), last + 1))]

    def value(self, request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return None if tensor is None else tensor.as_numpy().reshape(-1)[0]

    def response(self, request, text, reason):
        tensors = [pb_utils.Tensor("text_output", np.array([text.encode()], np.object_))]
        if self.value(request, "return_finish_reason"):
            tensors.append(pb_utils.Tensor("finish_reason", np.array([reason.encode()], np.object_)))
        if self.value(request, "return_num_output_tokens"):
            tensors.append(pb_utils.Tensor("num_output_tokens", np.array([len(text.split())], np.uint32)))
        return pb_utils.InferenceResponse(output_tensors=tensors)


def as_json(value):
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else value.item()
