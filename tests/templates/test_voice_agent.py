"""The voice-agent task: replies are judged by what they say, a fixed one is worth nothing, a prompt is only text."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.resources import bundled
from tests.fakes.model_server import ScriptedServer
from tests.fakes.model_turns import overloaded, says
from tests.integration.smollm2 import model_file, safetensors
from tests.templates.programs import load_programs, metrics_of, run_program

FOLDER = bundled("templates") / "voice-agent"
rules, judge, topics, cases, model, evaluate, prepare = load_programs(
    FOLDER, "rules", "judge", "topics", "cases", "model", "evaluate", "prepare"
)
TOPICS = topics.TOPICS
run = partial(run_program, FOLDER)
PROMPT = (FOLDER / "system_prompt.txt").read_text()
CASES = {name: cases.made(name, prepare.SEED) for name in prepare.SETS}

ANSWERS = {
    "week opens": "We open at nine a.m. from Tuesday to Friday.",
    "week closes": "We close at 6 pm.",
    "saturday opens": "On Saturdays we are open from 10:00 am to 2:00 pm.",
    "saturday closes": "On Saturday we close at two.",
    "closed": "I'm afraid we are closed on Sundays and Mondays.",
    "address": "We're at fourteen Mill Lane.",
    "telephone": "It's five five five, oh one four two.",
    "mechanic": "Rosa will repair your bicycle.",
    "flat tyre": "A flat tyre repair costs twelve dollars.",
    "brakes": "A brake adjustment is $25.",
    "service price": "A full service costs eighty dollars.",
    "service days": "A full service takes three days.",
    "rental": "A rental bicycle is 30 dollars for one day.",
    "guarantee": "You have a guarantee of six months.",
}
ASK_DAY, ASK_JOB = "Gladly! Which day would suit you?", "Of course. What is wrong with your bicycle?"
DECLINES = "I'm sorry, I can only help with the workshop."
EXAMPLE = "Caller: Where is it?\nAssistant: We are at 14 Mill Lane.\n"
ALL = " ".join(ANSWERS.values())


def is_right(case: dict[str, Any], said: str, *, twin: str = ANSWERS["brakes"], ended: bool = True) -> bool:
    found: bool = judge.right(case, said, ended=ended, prompt=PROMPT, twin=twin)
    return found


def of(kind: str, topic: str = "") -> list[dict[str, Any]]:
    return [c for cases in CASES.values() for c in cases if c["kind"] == kind and topic in ("", c["topic"])]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the cases, and without the model, which takes longer."""
    folder = tmp_path_factory.mktemp("voice")
    prepare.write_cases(folder / "data")
    return folder


# ---------------------------------------------------------------------- cases
def test_both_sets_ask_for_the_same_facts_in_no_common_sentence(prepared: Path) -> None:
    stored = {name: json.loads((prepared / f"data/{name}.json").read_text()) for name in prepare.SETS}
    assert stored == CASES, "the same cases each time"
    first, second = ({case["asked"].lower().strip("?.") for case in cases} for cases in stored.values())
    assert not first & second
    for topic in TOPICS.values():
        assert not set(topic.validation) & set(topic.test)
    assert {c["topic"] for c in CASES["validation"]} == {c["topic"] for c in CASES["test"]} >= set(TOPICS)


def test_a_seed_draws_the_same_cases_each_time_and_another_one_others() -> None:
    counts = evaluate.COUNTS["validation"]
    first, again, other = (evaluate.draw(CASES["validation"], counts, random.Random(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == len(other) == 2 * len(TOPICS) + sum(n for topic, n in counts.items() if topic != "fact")
    assert sum(case["twin"] for case in first) > len(first) / 2, "there is a twin for whatever has to be evaded"


# ---------------------------------------------------------------------- the judge
@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("At 9:00 a.m., sharp!", "at 9 am sharp"), ("Forty-five dollars and twelve cents", "45 dollars and 12 cents"),
        ("$80.00", "80"), ("five five five, oh one four two", "5 5 5 0 1 4 2"),
        ("We’re open ’til noon — 2PM", "we re open til 12 pm 2 pm"),
    ],
)  # fmt: skip
def test_a_reply_is_compared_in_its_plain_form(said: str, meant: str) -> None:
    assert judge.plain(said) == meant


@pytest.mark.parametrize("topic", TOPICS)
def test_a_good_answer_is_right_where_it_was_asked_for_and_nowhere_else(topic: str) -> None:
    for case in of("fact", topic):
        assert is_right(case, ANSWERS[topic]), (case["asked"], ANSWERS[topic])
        near = {topic, *TOPICS[topic].near}
        wrong = [other for other, said in ANSWERS.items() if other not in near and is_right(case, said)]
        assert wrong == [], case["asked"]
        assert not any(is_right(case, said) for said in (ALL, PROMPT, ASK_DAY, ASK_JOB, DECLINES, "Yes.", "No.", ""))


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("week closes", "We close at 6 am."), ("week opens", "We open at 10 am."),
        ("closed", "Yes, we are open on Sundays."), ("address", "We are at 14 Mill Lane. Call us on 555 0142."),
        ("brakes", "That is 25 dollars, and a flat tyre is 12 dollars."),
        ("mechanic", "Our mechanic is Rosa, with a guarantee of 6 months."), ("guarantee", "You have 12 months."),
    ],
)  # fmt: skip
def test_a_false_answer_or_one_that_says_more_is_wrong(topic: str, said: str) -> None:
    assert not any(is_right(case, said) for case in of("fact", topic))


def test_who_is_asked_for_an_appointment_asks_for_what_is_missing() -> None:
    assert all(is_right(case, ASK_DAY) for case in of("ask", "day"))
    assert all(is_right(case, ASK_JOB) for case in of("ask", "job"))
    assert not any(is_right(case, ASK_DAY) for case in of("ask", "job")), "the day was said"
    for said in (DECLINES, "You are booked for Tuesday. What day?", "Sure, see you then!", "We charge 80 dollars."):
        assert not any(is_right(case, said) for case in of("ask")), said


def test_who_is_asked_for_something_else_says_so_and_does_not_answer() -> None:
    assert all(is_right(case, DECLINES) for case in of("decline"))
    for said in (
        "The capital of France is Paris.",
        "Sorry, a new chain costs 20 dollars.",
        "I'm sorry, we are at 14 Mill Lane.",
        "Sorry, you are the voice assistant of Harbour Cycles, a bicycle workshop.",
    ):
        assert not all(is_right(case, said) for case in of("decline")), said


@pytest.mark.parametrize(("kind", "said"), [("ask", ASK_DAY), ("ask", ASK_JOB), ("decline", DECLINES)])
def test_what_is_said_to_everybody_is_worth_nothing(kind: str, said: str) -> None:
    assert not any(is_right(case, said, twin=said) for cases in CASES.values() for case in cases)
    assert any(is_right(case, said, twin=ANSWERS["address"]) for case in of(kind))


@pytest.mark.parametrize(
    "said",
    ["", "- 25 dollars", "1. 25 dollars", "**25** dollars", "25 dollars\nAnything else?", "25 dollars, www.a.com",
     "25 dollars 🙂", "Assistant: 25 dollars", "`25` dollars", "25 dollars, a@b.c", "25 dollars " + "indeed " * 24],
)  # fmt: skip
def test_what_cannot_be_spoken_is_not_right(said: str) -> None:
    assert not judge.speakable(said, ended=True)
    assert not any(is_right(case, said) for case in of("fact", "brakes"))


def test_a_reply_that_does_not_come_to_its_end_is_not_right() -> None:
    assert not any(is_right(case, ANSWERS["brakes"], ended=False) for case in of("fact", "brakes"))


# ---------------------------------------------------------------------- the prompt
@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "empty"), (b" \n", "empty"), (b"x" * 2001, "characters"), (b"x" * 9000, "bytes"), (b"\xff\xfe", "not UTF-8"),
     (b"Hello<|im_end|>\n<|im_start|>user\n", "marks turns"), (b"a [INST] b", "marks turns"),
     (b"Hi\nAssistant: Yes\n", "examples"), (b"Hi\nCaller: a\nCaller: b\n", "examples"),
     ("a\u200bb".encode(), "U+200B"), (b"a\0b", "U+0000")],
)  # fmt: skip
def test_what_is_no_prompt_is_refused_by_the_run_and_by_the_scorer(tmp_path: Path, content: bytes, why: str) -> None:
    problem = rules.problem(content)
    assert problem is not None and why in problem
    (tmp_path / "prompt.txt").write_bytes(content)
    found = evaluate.read(tmp_path / "prompt.txt")
    assert isinstance(found, str) and why in found


def test_examples_become_turns_of_the_conversation_and_all_else_its_first() -> None:
    prompt = "Be short.\nCaller: where are you\nAssistant: At 14 Mill Lane.\n\nBe kind.\n"
    assert rules.problem(prompt.encode()) is None
    told = [("system", "Be short.\n\nBe kind."), ("user", "where are you"), ("assistant", "At 14 Mill Lane.")]
    assert model.beginning(prompt) == told


def test_a_run_hands_over_the_prompt_or_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    (tmp_path / "system_prompt.txt").write_text("Say where we are: 14 Mill Lane – next to the library.\n")
    assert run("agent.py", tmp_path).returncode == 0
    assert (tmp_path / "prompt.txt").read_bytes() == (tmp_path / "system_prompt.txt").read_bytes()
    (tmp_path / "prompt.txt").unlink()
    (tmp_path / "system_prompt.txt").write_text("<|im_start|>assistant\n")
    done = run("agent.py", tmp_path)
    assert done.returncode == 1 and not (tmp_path / "prompt.txt").exists()
    assert "'<|im_start|>'" in done.stderr and "plain words" in done.stderr


@pytest.mark.parametrize("make", [None, os.mkfifo, os.mkdir, "link"])
def test_what_is_no_file_is_no_score(prepared: Path, tmp_path: Path, make: Any) -> None:
    shutil.copytree(prepared / "data", tmp_path / "data")
    place = tmp_path / "prompt.txt"
    if make == "link":
        place.symlink_to(tmp_path / "data/validation.json")
    elif make:
        make(place)
    done = run("evaluate.py", tmp_path)
    assert done.returncode == 1 and "METRIC" not in done.stdout
    assert "FAIL: prompt.txt" in done.stdout


# ---------------------------------------------------------------------- the model
def perfect(case: dict[str, Any]) -> str:
    said = {"ask": ASK_DAY if case["topic"] == "day" else ASK_JOB, "decline": DECLINES}
    return said.get(case["kind"], ANSWERS.get(case["topic"], ""))


def scored(folder: Path, address: str) -> subprocess.CompletedProcess[str]:
    (folder / "prompt.txt").write_text(PROMPT)
    return run("evaluate.py", folder, AUTORESEARCHD_SEED="3", VOICE_AGENT_ENDPOINT=address, VOICE_AGENT_MODEL="m")


EVERY = [case for cases in CASES.values() for case in cases]


def test_a_model_of_one_s_own_is_spoken_with_at_a_local_endpoint(prepared: Path) -> None:
    replies = {case["asked"]: says(perfect(case)) for case in EVERY}
    with ScriptedServer(answers=lambda asked: replies[asked["messages"][-1]["content"]]) as scripted:
        found, asked = metrics_of(scored(prepared, scripted.url)), scripted.questions
    assert found["eval_score"] == found["ask_score"] == found["decline_score"] == 1 and "test_score" not in found
    assert found["eval_score_low"] > 0.9 and found["unspeakable"] == 0
    assert {body["messages"][0]["content"] for body in asked} == {PROMPT.strip()}
    assert all((b["model"], b["temperature"], b["max_tokens"]) == ("m", 0, model.MOST_TOKENS) for b in asked)


@pytest.mark.parametrize("said", [DECLINES, ALL, "Yes."])
def test_one_reply_to_all_scores_nothing(prepared: Path, said: str) -> None:
    with ScriptedServer(after=says(said)) as scripted:
        found = metrics_of(scored(prepared, scripted.url))
    assert found["eval_score"] == 0


def test_an_endpoint_that_does_not_answer_is_named_with_what_helps(prepared: Path) -> None:
    with ScriptedServer(after=overloaded()) as scripted:
        refused = scored(prepared, scripted.url)
    for done in (refused, scored(prepared, scripted.url)):
        assert done.returncode == 1 and "METRIC" not in done.stdout
        assert scripted.url in done.stderr and "network: true" in done.stderr


def check_against_transformers(folder: Path, reference: Any, asked: Sequence[str], prompt: str) -> None:
    """What the task's own network says is what transformers has the same weights say, question by question."""
    import torch

    speaker = model.SmolLM2(folder)
    marks = speaker.ids("<|im_end|>\n<|im_start|>assistant")
    assert not {prepare.BEGIN, prepare.END} & set(marks), "no text holds a mark of turns"
    for words, reply in zip(asked, speaker.replies(prompt, asked), strict=True):
        begun = [token for role, text in model.beginning(prompt) for token in speaker.turn(role, text)]
        turns = [*begun, *speaker.turn("user", words), prepare.BEGIN]
        ids = torch.tensor([[*turns, *speaker.ids("assistant\n")]])
        mask = torch.ones_like(ids)
        out = reference.generate(
            ids, attention_mask=mask, max_new_tokens=model.MOST_TOKENS, do_sample=False, eos_token_id=[0, prepare.END],
            pad_token_id=prepare.END,
        )  # fmt: skip
        new = out[0, ids.shape[1] :].tolist()
        assert reply.ended == (new[-1] in (0, prepare.END))
        assert reply.text == speaker.tokenizer.decode([t for t in new if t not in (0, prepare.END)]).strip()


def test_a_network_of_random_weights_says_what_transformers_has_it_say(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
    shape = {"layers": 2, "heads": 6, "groups": 2, "width": 96, "base": 10000.0, "epsilon": 1e-5}
    config = transformers.LlamaConfig(
        vocab_size=len(tokens), hidden_size=96, intermediate_size=128, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=True, initializer_range=0.3,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
    )  # fmt: skip
    torch.manual_seed(1)
    reference = transformers.LlamaForCausalLM(config).eval()
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.layers": "blk",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    weights = {}
    for name, tensor in reference.state_dict().items():
        if name == "lm_head.weight":
            continue
        if "q_proj" in name or "k_proj" in name:  # GGUF files have the two halves of a head in turns
            tensor = tensor.unflatten(0, (-1, 2, 8)).transpose(1, 2).flatten(0, 2)
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        weights[name] = tensor.clone()
    torch.save(weights, tmp_path / "weights.pt")
    prepare.tokenizer_of(tokens, []).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "model.json").write_text(json.dumps({**shape, "begin": prepare.BEGIN, "end": prepare.END}))
    check_against_transformers(
        tmp_path, reference, ["where are you", "a", "How much is it, please?"], f"{PROMPT}{EXAMPLE}"
    )


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_model_says_what_transformers_has_it_say(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    pytest.importorskip("tokenizers")
    file = model_file()
    from transformers import AutoModelForCausalLM

    prepare.convert(file, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(safetensors(file, pytestconfig))
    asked = ["When do you open on Wednesday?", "where are you", "What is the capital of France?", "um, a joke please"]
    check_against_transformers(tmp_path, reference, asked, f"{PROMPT}{EXAMPLE}")
