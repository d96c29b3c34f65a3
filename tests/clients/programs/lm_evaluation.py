"""lm-evaluation-harness with its local-completions, on two tasks that stand in local files.

Given {"http", "model", "tokenizer": folder, "questions": [{"question", "choices", "answer"}], "texts", "options"}, it
answers what the harness read for each request: {"answers": [[arguments, log likelihood, whether greedy]], "texts":
[[text, log likelihood]], "accuracy"}.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

# The libraries read it when they are imported.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

import lm_eval
from lm_eval.tasks import TaskManager
from task import answer

QUESTIONS = """
task: questions
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/questions.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
TEXTS = """
task: texts
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}]
"""


def evaluated(asked: dict[str, Any]) -> dict[str, Any]:
    folder = Path.home() / "tasks"
    folder.mkdir()
    rows = {"questions": asked["questions"], "texts": [{"text": text} for text in asked["texts"]]}
    for name, form in (("questions", QUESTIONS), ("texts", TEXTS)):
        lines = "".join(json.dumps(row) + "\n" for row in rows[name])
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        (folder / f"{name}.yaml").write_text(form.replace("FOLDER", str(folder)), encoding="utf-8")
    evaluation = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": asked["model"],
            "base_url": f"http://{asked['http']}/openai/v1/completions",
            "tokenizer_backend": "huggingface",
            "tokenizer": asked["tokenizer"],
            "max_length": 256,
            "max_retries": 1,
            **asked["options"],
        },
        tasks=list(rows),
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
    )
    answers = [
        [arguments, *response]
        for sample in evaluation["samples"]["questions"]
        for arguments, [response] in zip(sample["arguments"], sample["resps"], strict=True)
    ]
    texts = [[sample["arguments"][0][0], sample["resps"][0][0]] for sample in evaluation["samples"]["texts"]]
    return {"answers": answers, "texts": texts, "accuracy": evaluation["results"]["questions"]["acc,none"]}


if __name__ == "__main__":
    answer(evaluated)
