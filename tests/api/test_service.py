"""The set of models: names, the choice of a request's model, and readiness."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from hf_transformer.api.service import LOADING, UNLOADED, Model, Models
from hf_transformer.core.limits import Admission, AdmissionTicket
from hf_transformer.core.model import ModelIdentity
from hf_transformer.errors import InvalidInput, NotReady, UnknownModel
from hf_transformer.observability.board import WorkerBoard
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


async def reason_of(models: Models, name: str | None = None) -> str:
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
        assert caught.value.path == ("model",)


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

    assert await reason_of(states()) == "no b; no c" and not states().is_ready
    assert await reason_of(states(ready_when="any")) == "" and states(ready_when="any").is_ready
    assert await reason_of(states(ready_when="any"), "b") == "no b"
    assert await reason_of(Models()) == "the service has no models" and not Models().is_ready
    models = Models()
    models.declare({"a": (), "b": (), "c": ()}, ("c",))
    models.add(model("a"))
    assert await reason_of(models) == f"model 'b' is not ready: {LOADING}" and not models.is_ready
    models.declare({"a": (), "c": ()}, ("c",))
    assert await reason_of(models) == "" and models.is_ready, "an unloaded model is not waited for"


# Changes of a ready set


def ready(model: Model) -> None:
    """Makes a scripted model ready, which reports it as ServedModel does."""
    scripted = cast(ScriptedModel, model)
    scripted.reason, scripted.is_ready = "", True
    model.on_change()


@pytest.mark.parametrize("ready_when", ["all", "any"], ids=["all", "any"])
async def test_an_added_model_counts_once_it_has_been_ready(ready_when: Any) -> None:
    models = Models([model("a")], ready_when)
    models.declare({"a": (), "b": (), "c": ()}, ())
    assert await reason_of(models) == "" and models.is_ready, "b and c are absent"
    added = model("b", reason="no b")
    models.add(added)
    assert await reason_of(models) == "" and models.is_ready
    assert await reason_of(models, "b") == "no b"
    with pytest.raises(NotReady, match=f"model 'c' is not ready: {LOADING}"):
        models.find("c")
    assert models.uncounted == {"b", "c"} and models.since.keys() == {"b", "c"}
    ready(added)
    assert models.uncounted == {"c"} and models.since.keys() == {"c"}
    cast(ScriptedModel, added).reason, cast(ScriptedModel, added).is_ready = "lost", False
    added.on_change()
    assert await reason_of(models) == ("lost" if ready_when == "all" else "")
    assert models.is_ready is (ready_when == "any"), "a model that was ready counts"


async def test_all_declared_models_count_until_the_set_was_ready() -> None:
    models = Models()
    models.declare({"a": (), "b": ()}, ())
    first, second = model("a"), model("b", reason="no b")
    models.add(first)
    models.add(second)
    models.declare({"a": (), "b": (), "c": ()}, ())
    assert await reason_of(models) == f"no b; model 'c' is not ready: {LOADING}"
    models.declare({"a": (), "b": ()}, ())
    ready(second)
    assert await reason_of(models) == "" and models.is_ready


async def test_a_renamed_model_leaves_a_ready_service_ready() -> None:
    models = Models([model("a")])
    models.declare({"a": ()}, ())
    models.declare({"b": ()}, ())
    models.remove("a")
    assert await reason_of(models) == "" and models.is_ready
    with pytest.raises(NotReady):
        models.choose("b", context())
    models.declare({}, ())
    assert await reason_of(models) == "the service has no models" and not models.is_ready
    models.declare({"c": ()}, ())
    assert await reason_of(models) == f"model 'c' is not ready: {LOADING}" and not models.is_ready, (
        "it was not ready before"
    )


async def test_a_model_that_a_client_loads_again_counts_once_it_is_ready() -> None:
    models = Models([model("a"), model("b")])
    models.declare({"a": (), "b": ()}, ())
    models.remove("b", UNLOADED)
    models.declare({"a": (), "b": ()}, ("b",))
    assert await reason_of(models) == "" and models.since == {}, "a client's wish is no failure"
    models.declare({"a": (), "b": ()}, ())
    assert await reason_of(models) == "" and models.uncounted == models.since.keys() == {"b"}
    models.remove("a", UNLOADED)
    models.declare({"a": (), "b": ()}, ("a",))
    assert await reason_of(models) == "", "b is on its way"
    models = Models([model("a")])
    models.declare({"a": ()}, ())
    models.remove("a", UNLOADED)
    models.declare({"a": ()}, ("a",))
    assert await reason_of(models) == "the service has no models"
    models.declare({"a": ()}, ())
    assert await reason_of(models) == f"model 'a' is not ready: {LOADING}", "there is nothing else"


def test_a_moved_alias_stays_with_its_model_until_the_other_has_it() -> None:
    a, b = model("a", aliases=("x",), adapters=("doll",)), model("b")
    models = Models([a, b])
    models.declare({"a": (), "b": ("x", "doll")}, ())
    assert models.find("x") is a and not models.hands_over("b") and models.hands_over("a")
    for _ in range(2):  # a may be replaced again
        after = model("a")
        models.add(after)
        assert models.find("x") is after and "x" in models.names
    with pytest.raises(NotReady, match=f"^model 'b' is not ready as 'doll': {LOADING}$"):
        models.find("doll")  # another model would answer without the adapter
    models.set_error("b", "no such adapter")
    with pytest.raises(NotReady, match="as 'doll': no such adapter"):
        models.find("doll")
    moved = model("b", aliases=("x",), adapters=("doll",))
    models.add(moved)
    assert models.find("x") is moved and models.find("doll") is moved and not models.hands_over("a")
    models.declare({"a": (), "b": ()}, ())
    models.add(model("b"))
    with pytest.raises(UnknownModel):
        models.find("x")


def test_a_removed_model_hands_its_name_over_to_the_model_that_has_it_as_an_alias() -> None:
    models = Models([model("a")])
    models.declare({"b": ("a",)}, ())
    assert models.hands_over("a") and models.find("a").name == "a"
    models.add(model("b", aliases=("a",)))
    assert not models.hands_over("a") and models.find("a").name == "b"
    models.remove("a")
    assert models.find("a").name == "b" and models.names == ["b", "a"]


def test_an_alias_that_nobody_has_any_more_is_unknown() -> None:
    models = Models([model("a", aliases=("x",))])
    models.declare({"a": (), "b": ("x",)}, ())
    models.add(model("a"))
    assert models.find("x").name == "a"
    models.declare({"a": (), "b": ()}, ())
    with pytest.raises(UnknownModel):
        models.find("x")


def test_the_replacement_of_a_worker_knows_the_models_that_do_not_count() -> None:
    board = WorkerBoard(2)
    board.claim()
    models = Models([model("a")], board=board)
    models.declare({"a": (), "b": ()}, ())
    assert board.uncounted == ["b"] and board.unloaded == []
    replacement = Models(board=board)
    replacement.declare({"a": (), "b": ()}, ())
    assert not replacement.is_ready
    replacement.add(model("a"))
    assert replacement.is_ready


def test_since_is_the_first_moment_of_a_failure() -> None:
    models = Models([model("a")])
    models.declare({"a": ()}, ())
    models.set_error("a", "one reason")
    since = models.since["a"]
    models.set_error("a", "another reason")
    models.set_error("/models.yaml", "not YAML")
    assert models.since == {"a": since} and abs(time.time() - since) < 60
    models.set_error("a", "")
    assert models.since == {}


def test_a_name_moves_once_the_new_model_is_ready() -> None:
    models = Models([model("a", aliases=("x",))])
    models.declare({"x": (), "b": ("a",)}, ())
    renamed, successor = model("x", reason="no x"), model("b", aliases=("a",), reason="no b")
    models.add(renamed)
    models.add(successor)
    assert models.find("x").name == models.find("a").name == "a" and models.hands_over("a")
    ready(renamed)
    assert models.find("x") is renamed and models.find("a").name == "a" and models.hands_over("a")
    ready(successor)
    assert models.find("a") is successor and not models.hands_over("a")
