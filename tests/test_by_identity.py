"""What is kept of objects by their identity."""

from __future__ import annotations

from hf_transformer.by_identity import ByIdentity


class Alike:
    """Equal to all of its kind, and without a hash."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    __hash__ = None  # type: ignore[assignment]  # so says the language of what has none


def test_objects_that_are_alike_are_kept_apart() -> None:
    kept, one, other = ByIdentity[str](4), Alike(), Alike()
    kept.keep(one, "one")
    assert kept.get(id(one)) == "one"
    assert kept.get(id(other)) is None


def test_no_other_object_gets_the_identity_of_one_that_is_kept() -> None:
    kept = ByIdentity[int](1000)
    for number in range(500):
        kept.keep(Alike(), number)  # nobody else has it
    assert len(kept) == 500
    assert sorted(kept.values()) == list(range(500))


def test_when_there_are_too_many_all_are_forgotten() -> None:
    kept, objects = ByIdentity[int](3), [Alike() for _ in range(4)]
    for number, one in enumerate(objects):
        kept.keep(one, number)
    assert [kept.get(id(one)) for one in objects] == [None, None, None, 3]
