"""Personal data that regular expressions find better than models: e-mail addresses, IBANs, cards, IP addresses, phones.

Check digits and libraries decide where there are some: mod 97 of IBANs (ISO 13616), Luhn's sum of cards (ISO/IEC
7812-1), ``ipaddress``. The scores are those of Presidio's recognizers.

A text comes from a client, so each search is linear in its length: an expression either consumes what it has read, or
reads a bounded number of characters from each position.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address
from string import ascii_letters, digits
from typing import Final

from hf_transformer.tasks.masking import TextEntity

Finder = Callable[[str], Iterator[tuple[int, int]]]

# RFC 5321 bounds the local part to 64 characters and the domain to 255.
_LOCAL: Final = f"{ascii_letters}{digits}!#$%&'*+/=?^_`{{|}}~.-"
_DOMAIN: Final = re.compile(r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,63}(?![\w-])")
_DIGITS: Final = re.compile(r"(?<![^\W_])[0-9]+(?:[ -][0-9]+)*(?![^\W_])")
_GROUP: Final = re.compile(r"[0-9]+")
_IBAN: Final = re.compile(r"(?<![^\W_])[A-Za-z]{2}[0-9]{2}(?: ?[A-Za-z0-9]){11,30}")
_IPV4: Final = re.compile(r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w]|\.[0-9])")
_IPV6: Final = re.compile(r"[0-9A-Za-z:.]+")
_PHONE: Final = re.compile(
    r"(?<![\w+])(?:"
    r"(?:\+|00)[1-9](?:[ ./()-]{0,2}[0-9]){6,14}"  # E.164 has at most 15 digits
    r"|(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[ .-][0-9]{4}"  # North America
    r")(?![\w-])"
)
CARD_LENGTHS, CARD_GROUP = range(12, 20), 3
"""Digits of a card's number, and of a group at least. Few groups fit a number, so few sums are computed."""
_ONCE: Final = bytes.maketrans(b"0123456789", bytes(range(10)))
_TWICE: Final = bytes.maketrans(b"0123456789", bytes(sum(divmod(2 * digit, 10)) for digit in range(10)))
"""The value of a digit in Luhn's sum: itself, or the sum of the digits of its double."""
MAX_LOCAL, MAX_DOMAIN, MAX_IPV6 = 64, 255, 45
IBAN_LENGTHS: Final[Mapping[str, int]] = {
    **{"AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29},
    **{"BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29},
    **{"ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28},
    **{"HN": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20},
    **{"LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19},
    **{"MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29},
    **{"PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24},
    **{"SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20},
    **{"YE": 30},
}
"""Characters of an IBAN by country. Source: https://www.swift.com/standards/data-standards/iban-international-bank-account-number"""


def find_emails(text: str) -> Iterator[tuple[int, int]]:
    """Looks back and ahead from each @, within the lengths of RFC 5321."""
    end = 0
    at = text.find("@")
    while at >= 0:
        first = max(end, at - MAX_LOCAL)
        before = text[first:at]
        local = before[len(before.rstrip(_LOCAL)) :].lstrip(".'`/{|}")
        domain = _DOMAIN.match(text, at + 1, at + 1 + MAX_DOMAIN) if local else None
        if local and domain:
            end = domain.end()
            yield at - len(local), end
        at = text.find("@", at + 1)


def find_cards(text: str) -> Iterator[tuple[int, int]]:
    """Joins neighbouring groups of digits to numbers of 12 to 19 digits with Luhn's sum."""
    for run in _DIGITS.finditer(text):
        groups = [(found.start(), found.end()) for found in _GROUP.finditer(text, run.start(), run.end())]
        first = 0
        while first < len(groups):
            last = _card_end(text, groups, first)
            if last is None:
                first += 1
            else:
                yield groups[first][0], groups[last][1]
                first = last + 1


def _card_end(text: str, groups: list[tuple[int, int]], first: int) -> int | None:
    """The last group of the longest card that begins with the group ``first``."""
    number, best = "", None
    for index in range(first, len(groups)):
        start, end = groups[index]
        if end - start < CARD_GROUP or len(number) + end - start >= CARD_LENGTHS.stop:
            break
        number += text[start:end]
        if len(number) in CARD_LENGTHS and number.strip("0") and is_luhn(number):
            best = index
    return best


def is_luhn(number: str) -> bool:
    """Whether the digits have Luhn's sum."""
    written = number.encode("ascii")
    return (sum(written[::-2].translate(_ONCE)) + sum(written[-2::-2].translate(_TWICE))) % 10 == 0


def find_ibans(text: str) -> Iterator[tuple[int, int]]:
    """Finds IBANs of the length of their country, with or without single spaces."""
    position = 0
    while found := _IBAN.search(text, position):
        end = _iban_end(found)
        if end is not None:
            yield found.start(), end
        position = found.start() + 2 if end is None else end


def _iban_end(found: re.Match[str]) -> int | None:
    length = IBAN_LENGTHS.get(found[0][:2].upper())
    if length is None:
        return None
    written = list(found[0])
    positions = [index for index, character in enumerate(written) if character != " "]
    if len(positions) < length:
        return None
    end = found.start() + positions[length - 1] + 1
    if found.string[end : end + 1].isalnum():
        return None
    iban = "".join(written[index] for index in positions[:length]).upper()
    return end if int("".join(str(int(letter, 36)) for letter in iban[4:] + iban[:4])) % 97 == 1 else None


def find_ip_addresses(text: str) -> Iterator[tuple[int, int]]:
    """Finds IPv4 addresses, and IPv6 addresses that have a digit."""
    for found in _IPV4.finditer(text):
        if _is_address(IPv4Address, found[0]):
            yield found.span()
    for found in _IPV6.finditer(text):
        address = found[0].rstrip(".")
        address = address if address.endswith("::") else address.rstrip(":")
        short = len(address) <= MAX_IPV6 and address.count(":") > 1
        if short and any(map(str.isdigit, address)) and _is_address(IPv6Address, address):
            yield found.start(), found.start() + len(address)


def _is_address(kind: type[IPv4Address | IPv6Address], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def find_phones(text: str) -> Iterator[tuple[int, int]]:
    """Finds numbers with an international prefix, and North American ones."""
    for found in _PHONE.finditer(text):
        yield found.span()


FINDERS: Final[Mapping[str, tuple[Finder, float]]] = {
    "EMAIL_ADDRESS": (find_emails, 1.0),
    "IBAN_CODE": (find_ibans, 1.0),
    "CREDIT_CARD": (find_cards, 1.0),
    "IP_ADDRESS": (find_ip_addresses, 0.95),
    "PHONE_NUMBER": (find_phones, 0.75),
}
"""The search and the score of each kind, by Presidio's name."""


def find_personal_data(text: str) -> list[TextEntity]:
    """Returns what the finders find, in the order of FINDERS. Kinds may overlap."""
    return [
        TextEntity(start, end, label, score)
        for label, (finder, score) in FINDERS.items()
        for start, end in finder(text)
    ]
