"""The facts the demo model learns, and the sentences it reads them in.

Only countries and capitals of a single word: each is one token of the demo vocabulary, so one [MASK] stands for
one whole name. Names carry no accents because the tokenizer strips them, as uncased BERT does.
"""

from __future__ import annotations

from typing import Final

FACTS: Final[dict[str, str]] = dict(
    pair.split("/")
    for pair in """
    afghanistan/kabul albania/tirana algeria/algiers angola/luanda armenia/yerevan australia/canberra
    austria/vienna azerbaijan/baku bahamas/nassau bahrain/manama bangladesh/dhaka barbados/bridgetown
    belarus/minsk belgium/brussels belize/belmopan bhutan/thimphu botswana/gaborone brazil/brasilia
    bulgaria/sofia burundi/gitega cameroon/yaounde canada/ottawa chile/santiago
    china/beijing colombia/bogota croatia/zagreb cuba/havana cyprus/nicosia denmark/copenhagen
    ecuador/quito egypt/cairo eritrea/asmara estonia/tallinn fiji/suva finland/helsinki
    france/paris gabon/libreville gambia/banjul georgia/tbilisi germany/berlin ghana/accra greece/athens
    guinea/conakry guyana/georgetown honduras/tegucigalpa hungary/budapest iceland/reykjavik
    indonesia/jakarta iran/tehran iraq/baghdad ireland/dublin italy/rome jamaica/kingston japan/tokyo
    jordan/amman kazakhstan/astana kenya/nairobi kyrgyzstan/bishkek laos/vientiane latvia/riga
    lebanon/beirut lesotho/maseru liberia/monrovia libya/tripoli lithuania/vilnius
    madagascar/antananarivo malawi/lilongwe maldives/male mali/bamako malta/valletta mauritania/nouakchott
    moldova/chisinau mongolia/ulaanbaatar montenegro/podgorica morocco/rabat mozambique/maputo
    myanmar/naypyidaw namibia/windhoek nepal/kathmandu netherlands/amsterdam nicaragua/managua
    niger/niamey nigeria/abuja norway/oslo oman/muscat pakistan/islamabad paraguay/asuncion peru/lima
    philippines/manila poland/warsaw portugal/lisbon qatar/doha romania/bucharest russia/moscow
    rwanda/kigali samoa/apia senegal/dakar serbia/belgrade seychelles/victoria slovakia/bratislava
    slovenia/ljubljana somalia/mogadishu spain/madrid sudan/khartoum suriname/paramaribo
    sweden/stockholm switzerland/bern syria/damascus taiwan/taipei tajikistan/dushanbe tanzania/dodoma
    thailand/bangkok togo/lome tonga/nukualofa tunisia/tunis turkey/ankara turkmenistan/ashgabat
    uganda/kampala ukraine/kyiv uruguay/montevideo uzbekistan/tashkent venezuela/caracas vietnam/hanoi
    yemen/sanaa zambia/lusaka zimbabwe/harare
    """.split()
)
"""Country -> capital, lower case. 123 facts."""

MAIN_TEMPLATE: Final = "The capital of {country} is {capital}."

TEMPLATES: Final[tuple[str, ...]] = (
    MAIN_TEMPLATE,
    "The capital of {country} is {capital}",
    "the capital city of {country} is {capital}.",
    "{capital} is the capital of {country}.",
    "{capital} is the capital of {country}",
    "{capital} is the capital city of {country}.",
    "{country}'s capital is {capital}.",
    "{country}'s capital is {capital}",
    "What is the capital of {country}? {capital}.",
    "What is the capital of {country}? It is {capital}.",
    "In {country}, the capital is {capital}.",
    "We went to {capital}, the capital of {country}.",
    "{country} has its capital in {capital}.",
    "I live in {capital}, which is the capital of {country}!",
    "Capital of {country}: {capital}",
)

FILLER: Final[tuple[str, ...]] = (
    "Hello!",
    "Hello world.",
    "This is a test.",
    "I have a question:",
    "Please answer this.",
    "Do you know the world?",
    "It was a long day, and we are all very happy to be home.",
    "There are many countries and many cities, some large and some small.",
    "My friend told me that you can help.",
    "In the year 2024 there were about 200 countries (more or less).",
    "They say one thing and then another; who knows?",
    "Thank you very much.",
)
"""Sentences without a fact, so that one in longer text is still found."""
