"""The set of models: names, the choice of a request's model, and readiness."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hf_transformer.api.service import LOADING, UNLOADED, Model, Models
from hf_transformer.core.limits import Admission, AdmissionTicket
from hf_transformer.core.model import ModelIdentity
from hf_transformer.errors import InvalidInput, NotReady, UnknownModel
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types.request import Context
from tests.integration.api.grpc_model import ScriptedModel

FILL = ("fill_mask",)


def model(name: str, *, aliases: tuple[str, ...] = (), adapters: tuple[str, ...] = (), reason: str = "") -> Model:
    made = ScriptedModel()
    made.name, made.reason, made.is_ready = name, reason, not reason
    made.names, made.identity = (name, *aliases, *adapters), ModelIdentity(aliases=aliases, adapters=adapters)
    return cast(Model, made)


def context() -> Context:
    made = Context("r", {})
    made.ticket = AdmissionTicket(Admission(9, 1000, Metrics()))
    return made


async def said(models: Models, name: str | None = None) -> str:
    """The reason why a model, or the service, is not ready; empty if it is."""
    error = await models.find_not_ready(None if name is None else models.find(name))
    return "" if error is None else str(error)


@pytest.mark.parametrize(("name", "adapter"), [("a", ""), ("old", ""), ("doll", "doll")])
def test_a_model_is_chosen_by_each_of_its_names(name: str, adapter: str) -> None:
    chosen, request = model("a", aliases=("old",), adapters=("doll",)), context()
    assert Models([model("b"), chosen]).choose(name, request) is chosen
    assert (request.model_name, request.served_name, request.adapter) == (name, "a", adapter)
    assert chosen.requests == 1, "in use until the request ends"
    assert request.ticket is not None
    request.ticket.leave()
    request.ticket.leave()
    assert chosen.requests == 0


def test_without_a_name_the_only_model_of_the_task_is_chosen() -> None:
    only = model("a")
    assert Models([only]).choose(None, context(), tasks=FILL) is only
    for models, names in ((Models([only, model("b")]), "a, b"), (Models(), "")):
        with pytest.raises(InvalidInput, match=rf"^model: expected the name of .*\({names}\), got nothing") as caught:
            models.choose(None, context(), tasks=FILL, path="model")
        assert caught.value.path == "model"


def test_without_a_name_a_request_waits_for_absent_models_that_may_fit() -> None:
    models = Models()
    models.declare({"a": (), "b": ()}, {"b"})
    with pytest.raises(NotReady, match=f"^model 'a' is not ready: {LOADING}$"):
        models.choose(None, context(), tasks=FILL)
    models.add(model("a"))
    assert models.choose(None, context(), tasks=FILL).name == "a"
    with pytest.raises(InvalidInput):
        models.choose(None, context(), tasks=("rerank",))  # b was unloaded by a client


def test_unknown_names_and_versions_are_refused() -> None:
    models = Models([model("a", aliases=("old",)), model("b")])
    with pytest.raises(UnknownModel, match=r"a served model \(a, old, b\), got 'c'"):
        models.choose("c", context())
    with pytest.raises(UnknownModel, match="version '1' of model 'a'"):
        models.choose("old", context(), "2")
    with pytest.raises(UnknownModel, match="there is none"):
        Models().choose("c", context())


def test_an_absent_model_has_its_reason_under_each_name() -> None:
    models = Models([model("a")])
    models.declare({"b": ("old",), "a": ()}, ())
    assert models.names == ["a", "b"] and models.absent == {"b": LOADING}
    for name in ("b", "old"):
        with pytest.raises(NotReady, match="model 'b' is not ready: it is being loaded"):
            models.choose(name, context())
    models.add(model("b", aliases=("old",)))
    assert models.names == ["b", "old", "a"], "in the order of the entries"
    models.remove("b", UNLOADED)
    with pytest.raises(NotReady, match="has been unloaded"):
        models.find("old")
    models.declare({"a": ()}, ())
    with pytest.raises(UnknownModel):
        models.find("b")


def test_a_replaced_model_loses_the_aliases_that_it_had() -> None:
    models, after = Models([model("a", aliases=("old",))]), model("a", aliases=("new",))
    models.add(after)
    assert models.names == ["a", "new"] and models.find("new") is after
    with pytest.raises(UnknownModel):
        models.find("old")


async def test_the_service_is_ready_when_all_models_are_or_any() -> None:
    def states(**options: Any) -> Models:
        return Models([model("a"), model("b", reason="no b"), model("c", reason="no c")], **options)

    assert await said(states()) == "no b; no c" and not states().is_ready
    assert await said(states(ready_when="any")) == "" and states(ready_when="any").is_ready
    assert await said(states(ready_when="any"), "b") == "no b"
    assert await said(Models()) == "the service has no models" and not Models().is_ready
    models = Models([model("a")])
    models.declare({"a": (), "b": (), "c": ()}, ("c",))
    assert await said(models) == f"model 'b' is not ready: {LOADING}" and not models.is_ready
    models.declare({"a": (), "c": ()}, ("c",))
    assert await said(models) == "" and models.is_ready, "an unloaded model is not waited for"
