"""Declared request bodies: what a JSON object may contain, in one place for reading, errors and the JSON Schema.

    class Ranking(Body):
        query: Annotated[str, about("The question.")]
        documents: Annotated[list[Json], about("The texts.", expected="a list of texts")]
        top_n: Annotated[Positive | None, about("Documents of the answer.", also=("top_k",), parameter="top_n")] = None
        user: Annotated[str | None, NO_EFFECT] = None
        priority: Annotated[Json, only(0, because="the service has no priorities")] = None

    RANKING = Form(Ranking)
    body = RANKING.read(payload, ignored)

msgspec decides whether a value fits. Its errors are sentences, so a form finds the value that does not fit by asking
msgspec about the parts of the body, and says what the declaration there expects. A null field counts as absent.

Long lists of clients are declared as ``list[Json]``: the budget counts them before their items are read.

Source: https://jcristharif.com/msgspec/ (structs, constraints, schema evolution)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import orjson
from msgspec import Meta, Struct, ValidationError, convert
from msgspec.json import schema_components
from msgspec.structs import fields as struct_fields

from hf_transformer.errors import EmptyList, FieldError, InvalidInput, Path, TooLarge, describe
from hf_transformer.types.paths import Names
from hf_transformer.types.request import Json

Natural: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Item = TypeVar("Item")
NonEmpty: TypeAlias = Annotated[list[Item], Meta(min_length=1)]
SHOWN_NAMES: Final = 5
"""Maximum number of unknown fields in an error message."""
MAX_NAME: Final = 40
"""Maximum characters of an unknown name in an error message."""
SCHEMA_NAMES: Final = "#/components/schemas/{name}"
"""References to schemas in an OpenAPI document."""


class Body(Struct, kw_only=True, forbid_unknown_fields=True):
    """A body, or a part of one, whose unknown fields are refused."""


class OpenBody(Struct, kw_only=True):
    """A body, or a part of one, whose unknown fields are noted in ``x-ignored-parameters``."""


def about(
    text: str = "",
    *,
    also: Sequence[str] = (),
    parameter: str = "",
    expected: str = "",
    hint: str = "",
    schema: Mapping[str, Json] | None = None,
    instead_of: str = "",
    shown: Sequence[Any] = (),
    is_body: bool = False,
    limits: str = "",
) -> Meta:
    """Declares more about a field than its type.

    Args:
        text: one sentence of help.
        also: further names of the field. A request has one of them.
        parameter: the task's parameter that the field becomes.
        expected: the accepted values, in errors about the field itself; derived from the type by default.
        hint: advice in these errors.
        schema: additions to the JSON Schema.
        instead_of: the field that this one replaces, in another form. A request has one of them, and errors about the
            parameter of that field name this one.
        shown: the types in the JSON Schema, in place of the field's own: those of values that code reads later.
        is_body: whether the shown type is a whole body, in which a null field counts as absent.
        limits: the unit of the field's maximum, such as ``texts per prompt``. A larger value is then TooLarge.
    """
    extra: dict[str, Json] = {"also": tuple(also), "parameter": parameter, "expected": expected, "hint": hint}
    extra |= {"instead_of": instead_of, "shown": tuple(shown), "is_body": is_body, "limits": limits}
    extra = {name: value for name, value in extra.items() if value}
    if schema and "default" in schema:  # of an absent field, whose default in the type is null
        extra |= {"default": schema["default"], "kinds": repr(schema)}
    return Meta(description=text or None, extra=extra, extra_json_schema=dict(schema) if schema else None)


def only(*values: Json, because: str = "") -> Meta:
    """Declares a field without effect that may have some values only, of type ``Json``. ``because`` is the hint of the
    error for another one. Without values, the field is refused."""
    return Meta(
        description="Without effect.",
        extra={"only": values, "hint": because, "kinds": repr(values)},  # typing takes Annotated with 1 and True as one
        extra_json_schema={"enum": [*values, *([] if None in values else [None])]},
    )


NO_EFFECT: Final = Meta(description="Without effect.")
"""Declares a field without effect that may have any value of its type."""
LIMITS: Final = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")
"""Limits in annotations."""
Kind = TypeVar("Kind", bound=Struct)


class Form(Generic[Kind]):
    """Reads bodies of a declared type.

    Attributes:
        names: all names of fields, further ones included, in their order.
        required: the names of fields that each body has.
        parameters: the task's parameters by field.
    """

    def __init__(self, kind: type[Kind]) -> None:
        self.kind = kind
        self._refuses_unknown = kind.__struct_config__.forbid_unknown_fields
        self._also: dict[str, str] = {}
        self._only: dict[str, Meta] = {}
        self._instead: dict[str, str] = {}
        self.required = frozenset(_required(kind))
        self.parameters: dict[str, str] = {}
        names: list[str] = []
        for name, declared in fields_of(kind).items():
            meta = _meta(declared)
            extra = meta.extra or {}
            names += [name, *extra.get("also", ())]
            self._also |= dict.fromkeys(extra.get("also", ()), name)
            if "only" in extra:
                self._only[name] = meta
            if "instead_of" in extra:
                self._instead[name] = extra["instead_of"]
            if "parameter" in extra:
                self.parameters[name] = extra["parameter"]
        self._others = self._also | self._instead
        self._heads: dict[Path, Path] = {("parameters",): ()}
        self._heads |= {("parameters", parameter): (field,) for field, parameter in self.parameters.items()}
        self._names = Names(self._heads)
        self.names = tuple(names)
        self._known = frozenset(names)
        self._special = frozenset((*self._others, *self._only))

    def read(self, payload: Json, ignored: list[str] | None = None, path: Path = ()) -> Kind:
        """Returns a body. ``path`` is the body's field, empty for a whole body. ``ignored`` gets the names of unknown
        fields, if these are not refused.

        Raises:
            InvalidInput: the body is no object, or has a field that is missing, unknown or invalid.
            TooLarge: a field exceeds its maximum, see ``limits`` of ``about``.
        """
        if isinstance(payload, dict) and self._special.isdisjoint(payload) and None not in payload.values():
            # Most bodies. Where msgspec refuses unknown fields, it finds them.
            if self._refuses_unknown or payload.keys() <= self._known:
                try:
                    return convert(payload, self.kind)
                except ValidationError:
                    pass  # the rest finds the fault
        return self._read_any(payload, ignored, path)

    def _read_any(self, payload: Json, ignored: list[str] | None, path: Path) -> Kind:
        if not isinstance(payload, dict):
            raise InvalidInput(path or "body", "an object", describe(payload))
        if None in payload.values():
            payload = {name: value for name, value in payload.items() if value is not None}
        if not payload.keys() <= self._known:
            unknown = [name for name in payload if name not in self._known]
            if self._refuses_unknown:
                raise unknown_fields(unknown, self.names, path)
            if ignored is not None:
                ignored += unknown
        sent = payload
        if not payload.keys().isdisjoint(self._special):
            payload = self._renamed(payload, path)
            for name, value in payload.items():
                if name in self._only:
                    _check_only(self._only[name], value, (*path, name))
            self._check_instead(sent, path)
        try:
            return convert(payload, self.kind)
        except ValidationError:
            raise self._fault(payload, sent, path) from None

    def options(self, body: Kind) -> dict[str, Json]:
        """The task's parameters of a body: the fields that have one, and a value."""
        return {
            parameter: value
            for field, parameter in self.parameters.items()
            if (value := getattr(body, field)) is not None
        }

    def client_names(self, payload: Mapping[str, Json]) -> Names:
        """The client's names of the task's parameters, for errors about their values (``Context.field_names``)."""
        if payload.keys().isdisjoint(self._others) or not (sent := self.aliases(payload)):
            return self._names
        return Names(
            {**self._heads, **{("parameters", self.parameters.get(name, name)): (sent[name],) for name in sent}}
        )

    def aliases(self, payload: Mapping[str, Json]) -> dict[str, str]:
        """The client's names of fields, where these are further ones."""
        return {name: alias for alias, name in self._others.items() if payload.get(alias) is not None}

    def _renamed(self, payload: Mapping[str, Json], path: Path) -> dict[str, Json]:
        renamed: dict[str, Json] = {}
        used: dict[str, str] = {}
        for name, value in payload.items():
            field = self._also.get(name, name)
            if field in renamed:
                raise InvalidInput((*path, name), f"{used[field]} or {name}", "both", "they mean the same")
            renamed[field], used[field] = value, name
        return renamed

    def _check_instead(self, sent: Mapping[str, Json], path: Path) -> None:
        """Raises InvalidInput for a field beside the one that it replaces."""
        for name, replaced in self._instead.items():
            if name in sent:
                for other in sent:
                    if other == replaced or self._also.get(other) == replaced:
                        raise InvalidInput((*path, name), f"{other} or {name}", "both", "they mean the same")

    def _fault(self, payload: Mapping[str, Json], sent: Mapping[str, Json], path: Path) -> FieldError:
        """The error about a body, in the names of the client's fields."""
        error = find_fault(payload, self.kind, path)
        name = error.path[len(path)] if len(error.path) > len(path) else ""
        alias = next((alias for alias, field in self._also.items() if field == name and alias in sent), None)
        return error if alias is None else error.at((*path, alias, *error.path[len(path) + 1 :]))


def unknown_fields(names: Sequence[str], known: Sequence[str], path: Path = ()) -> InvalidInput:
    """The error about fields of an object that are not among the ``known`` ones."""
    names, fields = [name[:MAX_NAME] for name in names], ", ".join(known)
    if len(names) == 1:
        return InvalidInput((*path, names[0]), f"one of {fields}", "an unknown name")
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    got = f"the unknown {', '.join(map(repr, names[:SHOWN_NAMES]))}{more}"
    return InvalidInput(path or "body", f"only the fields {fields}", got)


@cache
def fields_of(kind: type[Struct]) -> Mapping[str, Any]:
    """The declarations of a type's fields by the names that clients send, in their order."""
    hints = get_type_hints(kind, include_extras=True)
    return {sent: hints[name] for name, sent in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)}


def json_schemas(kinds: Iterable[Any]) -> tuple[list[dict[str, Json]], dict[str, dict[str, Json]]]:
    """The JSON Schemas of types, and the named schemas to which they refer (SCHEMA_NAMES).

    Further names of a field have the field's schema.
    """
    kinds = list(kinds)
    extras = {
        (struct, name): _meta(declared).extra or {}
        for struct in {struct for kind in kinds for struct in _structs(kind, set())}
        for name, declared in fields_of(struct).items()
    }
    shown = [kind for extra in extras.values() for kind in extra.get("shown", ())]
    bodies = [*kinds, *(kind for extra in extras.values() if "is_body" in extra for kind in extra["shown"])]
    schemas, components = schema_components([*kinds, *shown], ref_template=SCHEMA_NAMES)
    shown_schemas = iter(schemas[len(kinds) :])
    for (struct, name), extra in extras.items():
        properties = components[struct.__name__]["properties"]
        if types := extra.get("shown"):
            kept = {key: properties[name][key] for key in ("description", "default") if key in properties[name]}
            values = [next(shown_schemas) for _ in types]
            if "default" in kept:
                values.append({"type": "null"})
            properties[name] = kept | (values[0] if len(values) == 1 else {"anyOf": values})
        elif struct in bodies and properties[name].get("default") is not None:  # null counts as absent
            properties[name] = _or_null(properties[name])
        if "default" in extra:
            properties[name]["default"] = extra["default"]
        for alias in extra.get("also", ()):
            properties[alias] = {**properties[name], "description": f"Another name of {name}."}
    return list(schemas[: len(kinds)]), components


def _or_null(schema: dict[str, Json]) -> dict[str, Json]:
    """A schema that also allows null."""
    said = {key: value for key, value in schema.items() if key in ("description", "default")}
    values = {key: value for key, value in schema.items() if key not in said}
    return said | {"anyOf": [*(values["anyOf"] if values.keys() == {"anyOf"} else [values]), {"type": "null"}]}


def _structs(declared: Any, structs: set[type[Struct]]) -> set[type[Struct]]:
    """Adds all structs in a declaration and in its fields."""
    if _is_struct(declared):
        if declared not in structs:
            structs.add(declared)
            for part in fields_of(declared).values():
                for one in (part, *(_meta(part).extra or {}).get("shown", ())):
                    _structs(one, structs)
    else:
        for part in get_args(declared):
            _structs(part, structs)
    return structs


# Faults


def read_value(value: Json, declared: Any, path: Path) -> Any:
    """Returns a value of a declared type. Raises InvalidInput or TooLarge for any other value."""
    try:
        return convert(value, declared)
    except ValidationError:
        raise find_fault(value, declared, path) from None


def find_fault(value: Json, declared: Any, path: Path) -> FieldError:
    """The error about the first value in ``value`` that does not fit the declaration, as msgspec has found."""
    return _fault(value, declared, path, Meta())


def _fault(value: Json, declared: Any, path: Path, meta: Meta) -> FieldError:
    """See ``find_fault``. ``meta`` says more about the field than its type."""
    if _is_annotated(declared):
        inner, merged = get_args(declared)[0], _merged([meta, _meta(declared)])
        too_large = _exceeds(value, merged)
        # Lists are counted before their elements are read. If the value fits, only the limits are not met.
        if (too_large and isinstance(value, list)) or _fits(value, inner):
            expected, got = _limit(inner, merged, value)
            if too_large:
                extra = merged.extra or {}
                kind = TooLarge if "limits" in extra else InvalidInput
                return kind(path or "body", expected, got, extra.get("hint", ""))
            return _refused(path, merged, expected, got, EmptyList if value == [] else InvalidInput)
        return _fault(value, inner, path, merged)
    members = _members(declared)
    if len(members) > 1:
        return _fault_of_union(value, members, path, meta)
    kind = members[0]
    if kind is not declared:
        return _fault(value, kind, path, meta)
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if isinstance(value, list) and origin is list and parts:
        index = _first_misfit(value, parts[0])
        return _fault(value[index], parts[0], (*path, index), Meta())
    if isinstance(value, dict) and origin is dict and parts:
        for name, member in value.items():
            if not _fits(name, parts[0]):
                return InvalidInput(path, *_limit(parts[0], _meta(parts[0]), name, "keys of "))
            if not _fits(member, parts[1]):
                return _fault(member, parts[1], (*path, name[:MAX_NAME]), Meta())
    if isinstance(value, dict) and _is_struct(kind):
        return _fault_of_object(value, kind, path)
    return _refused(path, meta, phrase(Annotated[kind, meta]), describe(value, quote=origin is Literal))


def _exceeds(value: Json, meta: Meta) -> bool:
    """Whether a value of the right type exceeds the maximum."""
    if isinstance(value, str | list | dict):
        return meta.max_length is not None and len(value) > meta.max_length
    return meta.le is not None and isinstance(value, int | float) and value > meta.le


def _fault_of_object(value: Mapping[str, Json], kind: type[Struct], path: Path) -> FieldError:
    declared, required, tag = fields_of(kind), _required(kind), kind.__struct_config__.tag_field
    if kind.__struct_config__.forbid_unknown_fields and not value.keys() <= {*declared, tag}:
        unknown = [name for name in value if name not in declared and name != tag]
        return unknown_fields(unknown, [*([tag] if tag else []), *declared], path)
    for name, part in declared.items():
        absent = name in required if name not in value else value[name] is None and not _fits(None, part)
        if absent:
            return _refused((*path, name), _meta(part), phrase(part), "nothing")
        if name in value and not _fits(value[name], part):
            return _fault(value[name], part, (*path, name), Meta())
    return InvalidInput(path or "body", "an object", describe(value))


@cache
def _required(kind: type[Struct]) -> frozenset[str]:
    return frozenset(one.encode_name for one in struct_fields(kind) if one.required)


def _fault_of_union(value: Json, members: Sequence[Any], path: Path, meta: Meta) -> FieldError:
    """The error of the member that has the value's form; of the union, if none or several have it."""
    structs = [member for member in members if _is_struct(member)]
    if isinstance(value, dict) and len(structs) > 1 and (tag := structs[0].__struct_config__.tag_field):
        tags = {member.__struct_config__.tag: member for member in structs}
        name = value.get(tag)
        if isinstance(name, str) and name in tags:
            return _fault_of_object(value, tags[name], path)
        got = "nothing" if name is None else describe(name, quote=True)
        hint = (meta.extra or {}).get("hint", "")
        return InvalidInput((*path, tag), f"one of {', '.join(map(str, tags))}", got, hint)
    alike = [member for member in members if _has_form(value, member)]
    if len(alike) == 1:
        return _fault(value, alike[0], path, meta)
    quote = any(get_origin(_bare(member)) is Literal for member in members)
    return _refused(path, meta, " or ".join(dict.fromkeys(map(phrase, members))), describe(value, quote=quote))


def _has_form(value: Json, declared: Any) -> bool:
    """Whether a value is an object, a list, a number, ... as declared, whatever its parts are."""
    kind = _bare(declared)
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    origin = get_origin(kind) or kind
    if isinstance(value, dict):
        return origin is dict or _is_struct(kind)
    if isinstance(value, list):
        return origin is list
    if isinstance(value, str):
        return kind is str or (origin is Literal and all(isinstance(one, str) for one in get_args(kind)))
    return kind in (int, float) and isinstance(value, int | float)


def _members(declared: Any) -> list[Any]:
    """The members of a union without null, or the declaration itself."""
    if get_origin(declared) in (Union, UnionType):
        return [one for one in get_args(declared) if one is not NoneType]
    return [declared]


def _first_misfit(items: list[Json], declared: Any) -> int:
    """The index of the first item that does not fit. msgspec reads a list in one step, so halves are tried."""
    low, high = 0, len(items)
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(items[low:middle], list[declared]):
            low = middle
        else:
            high = middle
    return low


def _fits(value: Json, declared: Any) -> bool:
    try:
        convert(value, declared)
    except ValidationError:
        return False
    return True


def phrase(declared: Any) -> str:
    """A noun phrase for the values of a declaration."""
    meta = _meta(declared)
    if expected := (meta.extra or {}).get("expected"):
        return str(expected)
    members = _members(_bare(declared))
    if len(members) > 1:
        return " or ".join(dict.fromkeys(map(phrase, members)))
    kind = members[0]
    if _is_annotated(kind):
        return phrase(kind)
    if get_origin(kind) is Literal:
        values = [
            one if isinstance(one, str) else orjson.dumps(one).decode() for one in get_args(kind) if one is not None
        ]
        return f"one of {', '.join(values)}" if len(values) > 1 else values[0]
    if kind is float and meta.ge is not None and meta.le is not None:
        return f"a number from {meta.ge:g} to {meta.le:g}"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    return names.get(kind) or ("a list" if (get_origin(kind) or kind) is list else "an object")


def _limit(declared: Any, meta: Meta, value: Json, kind: str = "") -> tuple[str, str]:
    """Noun phrases for the limit that a value of the right type does not meet, and for the value. ``kind`` says more
    about the value."""
    if isinstance(value, str | list | dict):
        if meta.max_length is None or len(value) <= meta.max_length:
            return phrase(declared), "an empty text" if value == "" else "an empty list"
        unit = "characters" if isinstance(value, str) else "keys" if isinstance(value, dict) else "elements"
        unit = (meta.extra or {}).get("limits", unit)
        return f"{kind}at most {meta.max_length} {unit}", str(len(value))
    if _bare(declared) is float and meta.ge is not None and meta.le is not None:
        return f"a number from {meta.ge:g} to {meta.le:g}", f"{value:g}"
    if meta.ge is not None and value < meta.ge:
        return f"{meta.ge} or more", str(value)
    return f"at most {meta.le} {(meta.extra or {}).get('limits', '')}".rstrip(), str(value)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _bare(declared: Any) -> Any:
    """A declaration without its annotations."""
    return _bare(get_args(declared)[0]) if _is_annotated(declared) else declared


def _meta(declared: Any) -> Meta:
    """The annotations of a field, merged."""
    return _merged([one for one in get_args(declared)[1:] if isinstance(one, Meta)] if _is_annotated(declared) else [])


def _merged(metas: Sequence[Meta]) -> Meta:
    said = {name: value for one in metas for name in LIMITS if (value := getattr(one, name)) is not None}
    return Meta(**said, extra={name: value for one in metas for name, value in (one.extra or {}).items()})


def _is_annotated(declared: Any) -> bool:
    return get_origin(declared) is Annotated


def _refused(path: Path, meta: Meta, expected: str, got: str, kind: type[InvalidInput] = InvalidInput) -> InvalidInput:
    extra = meta.extra or {}
    return kind(path or "body", extra.get("expected") or expected, got, extra.get("hint", ""))


def _check_only(meta: Meta, value: Json, path: Path) -> None:
    extra = meta.extra or {}
    if any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in extra["only"]):
        return
    values = [one if isinstance(one, str) and one else orjson.dumps(one).decode() for one in extra["only"]]
    expected, got = " or ".join(values) or "no such field", describe(value, quote=bool(values))
    raise InvalidInput(path, expected, got, extra["hint"])
