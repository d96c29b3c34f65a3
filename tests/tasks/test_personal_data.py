"""Personal data that regular expressions find, and their work on hostile texts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hf_transformer.tasks.personal_data import find_personal_data

FOUND = [
    ("EMAIL_ADDRESS", "anna.smith+x@mail.example.co.uk"),
    ("EMAIL_ADDRESS", "o'neil@example.org"),
    ("IBAN_CODE", "DE89 3704 0044 0532 0130 00"),
    ("IBAN_CODE", "GB82WEST12345698765432"),
    ("CREDIT_CARD", "4111 1111 1111 1111"),
    ("CREDIT_CARD", "378282246310005"),
    ("CREDIT_CARD", "3782-822463-10005"),
    ("IP_ADDRESS", "192.168.0.1"),
    ("IP_ADDRESS", "2001:db8::1"),
    ("PHONE_NUMBER", "+49 30 1234567"),
    ("PHONE_NUMBER", "(212) 555-5555"),
    ("PHONE_NUMBER", "212-555-5555"),
]
OTHERS = [
    *("anna@localhost", "@example.org", "DE88 3704 0044 0532 0130 00", "ZZ89370400440532013000", "4111 1111 1111 1112"),
    *("0000 0000 0000 0000", "256.1.1.1", "1.2.3.4.5", "std::vector", "12:30:45", "2001:db8::1::2", "1234567"),
]
HOSTILE = [
    *("a", "@", "a@", "a.", "@a.", "@a-", "a@a.", "a" * 63 + " @", "a@" + "a-" * 30, "1", "1-", "1 ", "001 ", "111-"),
    *("411 ", "1.", "1.1.", "::", "::1 ", "1:", "+1", "+1 (", "(212) ", "DE89 a ", "DE12 ", "DE1200 ", "é", " "),
]
SEARCH = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (100, 100))
from hf_transformer.tasks.personal_data import FINDERS
for unit in sys.argv[2:]:
    print(repr(unit), flush=True)
    text = (unit * (int(sys.argv[1]) // len(unit) + 1))[:int(sys.argv[1])]
    for finder, _ in FINDERS.values():
        for _ in finder(text):
            pass
"""


@pytest.mark.parametrize(("label", "value"), FOUND)
@pytest.mark.parametrize("around", ["{}", "Send {}, please", "<{}>", "({})", "a {}\n", "é {}."])
def test_personal_data_is_found_whole(label: str, value: str, around: str) -> None:
    before = around.index("{")
    text = around.replace("{}", value)
    found = [(one.label, text[one.start : one.end]) for one in find_personal_data(text) if one.label == label]
    assert found == [(label, value)] and text[before:].startswith(value)


@pytest.mark.parametrize("value", OTHERS)
def test_other_texts_are_none(value: str) -> None:
    assert [one.label for one in find_personal_data(f"x {value} y")] in ([], ["PHONE_NUMBER"])


@pytest.mark.slow
def test_hostile_texts_of_the_maximum_length_are_read_within_a_limit_of_cpu() -> None:
    """A quadratic search would take minutes for each text; the limit is one of CPU seconds in a child."""
    length = "250000"  # the default of --max_text_length
    done = subprocess.run([sys.executable, "-c", SEARCH, length, *HOSTILE], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.stderr)
