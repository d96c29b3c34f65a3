"""A reranker's template, from --rerank_template or the model's files. The start converts Jinja to its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from hf_transformer.config.options import Config
from hf_transformer.errors import ConfigError, InvalidInput, LoadError
from hf_transformer.generation.chat import ChatTemplate, load_chat_template  # imports Jinja
from hf_transformer.tasks.pair_template import DOCUMENT_MARK, PRESETS, QUERY_MARK, PairTemplate, Reranker, template_of
from hf_transformer.tokenizer.model_files import ModelFiles
from hf_transformer.tokenizer.reranker_files import read_reranker
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Json

ROLES = ("query", "document")
"""Roles of both texts in a chat template for pairs, as in sentence-transformers and vLLM."""


def prepare_reranker(config: Config, files: ModelFiles, tokenizer: Tokenizer) -> Reranker:
    """Reads a reranker's settings, and adds its template to ``tokenizer``.

    Raises:
        LoadError: a file or the template is invalid.
        ConfigError: flags contradict the template.
    """
    override = None if config.rerank_template in ("auto", "none", *PRESETS) else config.rerank_template
    reranker = read_reranker(
        files.model_folder,
        files.config,
        partial(pair_template, files.tokenizer_folder, override, tokenizer.special_tokens),
        template=config.rerank_template,
        tokens=config.rerank_tokens or (),
    )
    if config.rerank_tokens and not reranker.tokens:
        raise ConfigError(f"--rerank_tokens={','.join(config.rerank_tokens)}: expected a causal model")
    if reranker.template is not None:
        if config.disable_special_tokens:
            raise ConfigError("--disable_special_tokens: this reranker's template needs its special tokens")
        reranker = replace(reranker, template=tokenizer.frame_pairs(reranker.template))
    return reranker


def pair_template(
    folder: Path, override: str | None, special_tokens: Mapping[str, str], variables: Mapping[str, Json]
) -> PairTemplate | None:
    """Reads a chat template for pairs, from --rerank_template or the folder.

    Returns None if the folder has no such template. A template that copies any role is for chats alone. Raises
    LoadError for an invalid template.
    """
    template = load_chat_template(folder, override, special_tokens)
    if template is None:
        return None
    for in_parts in (False, True):
        try:
            pairs = template_of(partial(_render, template, variables, in_parts))
        except InvalidInput:
            continue
        if pairs is not None and (override is not None or not _copies_roles(template, variables, in_parts)):
            return pairs
    if override is not None:
        raise LoadError("--rerank_template: the template renders no messages with the roles query and document")
    return None


def _copies_roles(template: ChatTemplate, variables: Mapping[str, Json], in_parts: bool) -> bool:
    """Whether a template renders messages of any role, as templates of chats do."""
    try:
        rendered = _render(template, variables, in_parts, QUERY_MARK, DOCUMENT_MARK, None, roles=("first", "second"))
    except InvalidInput:  # it refuses unknown roles
        return False
    return QUERY_MARK in rendered and DOCUMENT_MARK in rendered


def _render(
    template: ChatTemplate,
    variables: Mapping[str, Json],
    in_parts: bool,
    query: str,
    document: str,
    instruction: str | None,
    *,
    roles: tuple[str, str] = ROLES,
) -> str:
    system = [] if instruction is None else [("system", instruction)]
    messages = [
        {"role": role, "content": [{"type": "text", "text": text}] if in_parts else text}
        for role, text in (*system, *zip(roles, (query, document), strict=True))
    ]
    return template.render(messages, **{"add_generation_prompt": False, **variables})
