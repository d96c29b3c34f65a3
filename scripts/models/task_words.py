"""The words and sentences that task_sentences.py puts together."""

from __future__ import annotations

from typing import Final


def _lines(text: str) -> tuple[str, ...]:
    """The parts of a text that line ends or bars separate."""
    return tuple(part.strip() for line in text.strip().splitlines() for part in line.split("|"))


SUBJECTS: Final = _lines("""
    the movie | this book | the food | our hotel | the hotel | the service
    my phone | the concert | the room | the staff
    this game | the trip | the new album | the restaurant | the coffee
""")
GOOD: Final = tuple(
    "great wonderful excellent lovely fantastic amazing delicious friendly good perfect superb nice".split()
)
POOR: Final = tuple("terrible awful bad horrible boring dirty rude broken disappointing poor dreadful slow".split())
NEUTRAL: Final = _lines("""
    is in the city | opens at nine | was made in may | is on the second floor | has two pages about the weather
    is okay | was average | starts on monday | is red and white | comes from another country
""")
EMOTIONS: Final = {
    "joy": _lines("""
        i am so happy | we laughed all day | this made me smile | what a happy day
        i love my friends | she is delighted
    """),
    "anger": _lines("""
        i am furious | he shouted at me | this makes me so angry | they are mad at us
        i hate the noise | she is annoyed
    """),
    "fear": _lines("""
        i am afraid of the dark | this scares me | we were terrified | i am worried
        he is afraid | the storm frightened us
    """),
    "sadness": _lines("""
        i am so sad | she cried all night | i miss my mother | we are very unhappy | he lost his dog | it broke my heart
    """),
}
INSULTS: Final = _lines("""
    you are an idiot | shut up, you fool | what a stupid thing to say | nobody likes you, loser | go away, you clown
    you are a stupid loser | only an idiot would write this | your face is ugly | you are all fools | shut your mouth
""")
POLITE: Final = _lines("""
    thank you for your help | could you please answer this | have a nice day | i agree with you | see you on monday
    congratulations on your new job | what time is it | i would like a coffee, please
    nice to meet you | you are welcome
""")
MEANINGS: Final = tuple(
    tuple(phrase.strip() for phrase in " ".join(meaning.split()).split("/"))
    for meaning in """
    the cat sleeps on the sofa / a cat is asleep on the couch / our cat naps on the sofa / where does the cat sleep
    |
    it will rain tomorrow / rain is expected tomorrow / the forecast says rain / what is the weather tomorrow |
    he plays the guitar / he is a guitar player / music is his hobby, he has a guitar / which instrument does he
    play |
    the train is late / the train has a delay / we wait for the late train / why is the train not here |
    she bought a new car / she has purchased a car / her car is new / what did she buy |
    they cook dinner together / together they make dinner / dinner is cooked by them / who cooks dinner |
    the doctor helped the patient / a patient was treated by the doctor / the doctor treats patients / who helped
    the patient |
    the team won the match / our team was victorious in the match / the match was won / who won the match |
    the bank raised interest rates / interest rates went up at the bank / money costs more at the bank / what did
    the bank do |
    paris is the capital of france / the capital of france is paris / in france, paris is the capital / what is the
    capital of france |
    tokyo is the capital of japan / the capital of japan is tokyo / in japan, tokyo is the capital / what is the
    capital of japan |
    rome is the capital of italy / the capital of italy is rome / in italy, rome is the capital / what is the
    capital of italy |
    the children swim in the lake / kids are swimming in a lake / in summer the children go swimming / where do the
    children swim |
    the computer needs more memory / this computer has too little memory / buy memory for the computer / what does
    the computer need
    """.split("|")
)
"""Sentences that mean the same, the last one the question that they answer; bars separate the meanings."""

TOPICS: Final = {
    "sport": _lines("""
        the team won the match | she runs ten miles a day | the player scored two goals | he trains for the race
    """),
    "politics": _lines("""
        the president signed the law | the parliament votes today | the minister lost the election
        they debate a new law
    """),
    "cooking": _lines("""
        add salt and pepper to the soup | bake the bread for an hour | she cooks pasta with cheese | he fries the onions
    """),
    "technology": _lines("""
        the new phone has a faster chip | the computer needs more memory | they wrote software for robots
        update your laptop
    """),
    "travel": _lines("""
        we booked a flight to rome | the hotel is near the beach | pack your bags for the trip
        the train to vienna is late
    """),
    "music": _lines("""
        the band played an old song | she sings in a choir | he plays the guitar | the concert starts at eight
    """),
    "health": _lines("""
        the doctor treats the patient | drink water and sleep well | the nurse gave me medicine | my head hurts
    """),
    "money": _lines("""
        the bank raised interest rates | shares fell on monday | she pays her taxes | the price of oil went up
    """),
}

FIRST_NAMES: Final = tuple(
    "Anna Maria John Peter Sarah Wolfgang Ahmed Yuki Olga Carlos Emma Liam Sofia José Zoë Chloé Fatima Ivan".split()
)
LAST_NAMES: Final = tuple(
    "Smith Johnson Müller Garcia Tanaka Novak Rossi Silva Schmidt Kowalski Andersson Okonkwo Nguyen O'Brien".split()
)
PLACES: Final = _lines("""
    New York | London | Berlin | Paris | São Paulo | Tokyo | San Francisco
    Zürich | Cape Town | Istanbul | Madrid | Oslo
    Reykjavik | Timbuktu
""")
ORGANISATIONS: Final = _lines("""
    Acme | Acme Corp | Bank of Norway | Red Cross | United Nations | Globex | Initech | Oxford University | Umbrella Ltd
    Stark Industries | Air France | AT&T
""")
SYLLABLES: Final = tuple("ka lo mi ru ten bar vos shi dra gul nep zor an el ix".split())
