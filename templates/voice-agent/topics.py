"""The facts of the workshop, and how callers ask for them: what ``cases.py`` makes cases of. Protected."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topic:
    """A fact, and who asks for it in which words.

    need: patterns that the answer matches; sign: what shows that a reply speaks of it, so that it answers nothing else;
    near: topics that may be spoken of, too; never: what makes the answer wrong; numbers: that it may have; twin:
    whether an honest answer to it is never taken for a refusal.
    """

    need: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    sign: str = ""
    near: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    twin: bool = True


_HOURS = ("week opens", "week closes", "saturday opens", "saturday closes", "closed")

TOPICS: dict[str, Topic] = {
    "week opens": Topic(
        need=(r"\b9\b",),
        validation=(
            "what time do you open on wednesday",
            "when do you open on thursday morning",
            "from what time are you open on a tuesday",
            "how early can I come in on friday",
            "what time do you start on weekdays",
        ),
        test=("at what hour do you open your doors on thursday", "how early are you there on a wednesday"),
        sign=r"\b(?:9 am|6 pm)\b",
        near=_HOURS,
        never=(r"\b9 pm\b", r"\b6 am\b", r"\bclosed\b"),
        numbers=("9", "6", "18"),
    ),
    "week closes": Topic(
        need=(r"\b(?:6|18)\b",),
        validation=(
            "what time do you close on thursday",
            "until when are you open on wednesday",
            "how late are you open on tuesday",
            "when do you shut on friday evening",
            "what time do you close on weekdays",
        ),
        test=("how late can I drop by on a thursday", "at what hour do you lock up on tuesday"),
        near=_HOURS,
        never=(r"\b9 pm\b", r"\b6 am\b"),
        numbers=("9", "6", "18"),
    ),
    "saturday opens": Topic(
        need=(r"\b10\b",),
        validation=(
            "what time do you open on saturday",
            "when do you open on saturdays",
            "how early can I come in on saturday",
            "from what time are you open on saturday",
        ),
        test=("at what hour do you open your doors on saturday", "how early are you there on saturdays"),
        sign=r"\b(?:10 am|2 pm)\b",
        near=_HOURS,
        never=(r"\b10 pm\b", r"\b2 am\b", r"\bclosed\b"),
        numbers=("10", "2", "14"),
    ),
    "saturday closes": Topic(
        need=(r"\b(?:2|14)\b",),
        validation=(
            "what time do you close on saturday",
            "until when are you open on saturdays",
            "how late are you open on saturday",
            "when do you shut on saturday",
        ),
        test=("how late can I drop by on saturday", "at what hour do you lock up on saturdays"),
        near=_HOURS,
        never=(r"\b10 pm\b", r"\b2 am\b"),
        numbers=("10", "2", "14"),
    ),
    "closed": Topic(
        need=(r"\bclosed\b|\b(?:not|aren t|never|don t) open\b",),
        validation=(
            "are you open on sunday",
            "can I come by on monday",
            "do you work on sundays",
            "is the workshop open on mondays",
            "will anyone be there on sunday",
        ),
        test=("could I drop in this sunday", "is somebody in on a monday"),
        near=_HOURS,
        never=(r"\byes\b", r"\bsure\b", r"\bopen (?:on )?(?:sunday|monday)"),
        twin=False,
    ),
    "address": Topic(
        need=(r"\b14 mill lane\b",),
        validation=(
            "where are you",
            "what is your address",
            "where can I find the workshop",
            "where do I have to go",
            "which street are you on",
        ),
        test=("how do I find you, what's the street", "where is your place"),
        sign=r"\bmill lane\b",
        numbers=("14",),
    ),
    "telephone": Topic(
        need=(r"\b555 ?0142\b|\b5 5 5 0 1 4 2\b",),
        validation=(
            "what is your phone number",
            "on what number can I call you back",
            "can you give me your telephone number",
            "which number do I dial to reach you",
        ),
        test=("what number should my wife ring", "your phone number, what is it"),
        sign=r"\b555",
        numbers=("555", "0142", "5550142", "5", "0", "4", "2"),
    ),
    "mechanic": Topic(
        need=(r"\brosa\b",),
        validation=(
            "who is going to repair my bike",
            "what is the name of your mechanic",
            "who will be working on my bicycle",
            "who is the mechanic",
        ),
        test=("whose hands will my bike be in", "what's your mechanic called"),
        sign=r"\brosa\b",
    ),
    "flat tyre": Topic(
        need=(r"\b12\b",),
        validation=(
            "how much is it to fix a flat tyre",
            "what does a flat tyre repair cost",
            "I have a flat tyre, what will that cost me",
            "what do you charge for a flat tyre",
        ),
        test=("what's the price for fixing a flat tyre", "my tyre is flat, how much to repair it"),
        numbers=("12",),
    ),
    "brakes": Topic(
        need=(r"\b25\b",),
        validation=(
            "how much is a brake adjustment",
            "what does it cost to adjust my brakes",
            "what do you charge for adjusting brakes",
            "how much do I pay to have the brakes adjusted",
        ),
        test=("what's the price for getting brakes adjusted", "my brakes need adjusting, how much is it"),
        numbers=("25",),
    ),
    "service price": Topic(
        need=(r"\b80\b",),
        validation=(
            "how much is a full service",
            "what does a full service cost",
            "what do you charge for a full service",
            "what would I pay for a full service",
        ),
        test=("what's the price of a full service", "how expensive is the full service"),
        near=("service days",),
        numbers=("80", "3"),
    ),
    "service days": Topic(
        need=(r"\b3 (?:\w+ )?days?\b",),
        validation=(
            "how long does a full service take",
            "how many days will you need for a full service",
            "if I leave my bike for a full service, how long until I get it back",
            "how quickly is a full service done",
        ),
        test=("for how long will my bike be gone for a full service", "how many days does the full service last"),
        sign=r"\b3 days\b",
        near=("service price",),
        numbers=("3", "80"),
    ),
    "rental": Topic(
        need=(r"\b30\b",),
        validation=(
            "how much is it to rent a bike for a day",
            "what does a rental bicycle cost",
            "what do you charge for renting a bicycle",
            "how much is a rental bike per day",
        ),
        test=("what's the price for hiring a bike for one day", "a bike to rent for a day, how much"),
        numbers=("30",),
    ),
    "guarantee": Topic(
        need=(r"\b6 (?:\w+ )?months?\b",),
        validation=(
            "how long is the guarantee on a repair",
            "what guarantee do I get on repairs",
            "is there a guarantee on your repairs",
            "for how long do you guarantee a repair",
        ),
        test=("how many months of guarantee are there", "and the guarantee, how long is it good for"),
        sign=r"\bmonths?\b",
        numbers=("6",),
    ),
}
