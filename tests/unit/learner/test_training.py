"""A run learns what it is told to, stops when it should, and goes on after a restart as if there had been none."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability, UsageError
from autoresearchd.domain.labels import Label
from autoresearchd.learner.algorithms.learnable import Sample
from autoresearchd.learner.algorithms.train_options import (
    Algo,
    ColdStart,
    Collapse,
    GrpoOptions,
    SdpoOptions,
    TrainOptions,
)
from autoresearchd.learner.data.trajectories import Trajectory
from autoresearchd.learner.training.load_model import trial_step
from autoresearchd.learner.training.train import StepFigures, collapsed, fingerprint, read_checkpoint, write_checkpoint
from tests.fakes.learnable import TinyLearnable
from tests.unit.learner.played import goodness, played, trained

ALL = list(Algo)
QUICK = TrainOptions(steps=30, learning_rate=0.02, batch=32, micro=8, warmup=2, collapse=Collapse(None, None))
"""For a model of a hundred numbers, whose steps may be large."""


def of(algo: Algo, **changed: Any) -> TrainOptions:
    return replace(QUICK, **({"algo": algo, "sdpo": SdpoOptions(top=5)} | changed))


def data_of(model: TinyLearnable, seed: int = 0, **changed: Any) -> list[Trajectory]:
    return played(model, **({"rounds": 16, "group": 8, "seed": seed, "feedback": "abc" * 300} | changed))


def gain(options: TrainOptions, seed: int = 0, **changed: Any) -> float:
    """How much likelier a good answer became."""
    model = TinyLearnable(seed)
    before = goodness(model)
    trained(model, data_of(model, seed, **changed), replace(options, seed=seed))
    return goodness(model) - before


# -- learning
@pytest.mark.parametrize("algo", ALL)
def test_what_was_rewarded_becomes_likelier(algo: Algo) -> None:
    # A teacher knows no rewards: it only finds likelier what its feedback speaks of.
    assert min(gain(of(algo), seed) for seed in range(2)) > (0.04 if algo is Algo.SDPO else 0.1)


@pytest.mark.parametrize("algo", [Algo.GRPO, pytest.param(Algo.PPO, marks=pytest.mark.nightly)])
def test_with_shuffled_rewards_nothing_is_learned_on_average(algo: Algo) -> None:
    controls = [gain(of(algo, steps=15, shuffle_rewards=True), seed) for seed in range(5)]
    real = [gain(of(algo, steps=15), seed) for seed in range(5)]
    assert abs(sum(controls)) < 0.3 * sum(real)
    assert all(control < one for control, one in zip(controls, real, strict=True))


# -- gradients
@pytest.mark.parametrize("algo", ALL)
def test_parts_of_a_batch_add_up_to_the_batch(algo: Algo) -> None:
    states = []
    for micro in (32, 5, 1):
        model = TinyLearnable()
        trained(model, data_of(model), of(algo, steps=4, micro=micro, batch=32))
        states.append(model.adapter_state())
    for other in states[1:]:
        for name, each in states[0].items():
            # The value head speaks float32, as a value head does.
            torch.testing.assert_close(other[name], each, rtol=1e-4 if algo is Algo.PPO else 1e-9, atol=1e-6)


def test_a_step_without_a_usable_gradient_is_skipped_counted_and_the_run_goes_on() -> None:
    model = TinyLearnable(nan_calls=[3])
    states: list[dict[str, torch.Tensor]] = []
    options = of(Algo.SFT, steps=4, batch=1000, micro=1000)
    found = trained(model, data_of(TinyLearnable()), options, on_step=lambda _: states.append(model.adapter_state()))
    assert ["skipped" in each for each in found.history] == [False, False, True, False]
    assert ["loss" in each for each in found.history] == [True, True, False, True]
    assert torch.equal(states[2]["up"], states[1]["up"]) and not torch.equal(states[3]["up"], states[2]["up"])
    assert (found.counts["steps_skipped"], found.stopped) == (1, "")


def test_a_model_that_says_nothing_but_nan_ends_the_run_unchanged() -> None:
    model = TinyLearnable(nan_calls=range(1, 1000))
    before = model.adapter_state()
    found = trained(model, data_of(TinyLearnable()), of(Algo.PPO))
    assert (found.steps, found.stopped) == (5, "the gradients of 5 steps in a row were not finite")
    assert all(torch.equal(each, before[name]) for name, each in model.adapter_state().items())


# -- nothing to learn from, and cold starts
@pytest.mark.parametrize(
    ("algo", "why"), [(Algo.GRPO, "none of 16 groups has rewards that differ"), (Algo.PPO, "all 128 rewards are -2")]
)
def test_equal_rewards_without_a_kept_answer_are_an_error(algo: Algo, why: str) -> None:
    model = TinyLearnable()
    data = [replace(each, label=Label.ERROR) for each in data_of(model, rule=lambda _: -2.0)]
    with pytest.raises(UsageError, match=f"nothing to learn: {why}, and no answer was kept"):
        trained(model, data, of(algo))


def test_where_few_answers_can_be_used_the_policy_is_warmed_up_first() -> None:
    model = TinyLearnable()
    data = [each if each.reward > 0 else replace(each, error="no block was found") for each in data_of(model)]
    share = sum(each.reward > 0 for each in data) / len(data)
    found = trained(model, data, of(Algo.GRPO, steps=8, cold_start=ColdStart(valid_share=share + 0.01, steps=3)))
    assert "answers could be used" in found.cold_start
    assert ["cold_start" in each for each in found.history] == [True] * 3 + [False] * 5
    assert "advantage" not in found.history[2] and "advantage" in found.history[3]
    model = TinyLearnable()
    plain = trained(model, data, of(Algo.GRPO, steps=8, cold_start=ColdStart(valid_share=share - 0.01)))
    assert plain.cold_start == "" and not any("cold_start" in each for each in plain.history)


def test_replay_without_tokens_and_teaching_without_feedback_are_errors() -> None:
    model = TinyLearnable()
    data = data_of(model)
    with pytest.raises(UsageError, match="none of 128 answers can be replayed: without_tokens 128"):
        trained(model, [replace(each, token_ids=None) for each in data], of(Algo.GRPO))
    with pytest.raises(UsageError, match="none of 128 answers has feedback"):
        trained(model, [replace(each, feedback=" ") for each in data], of(Algo.SDPO))


# -- stopping
def test_a_collapse_of_the_entropy_stops_the_run_and_says_so() -> None:
    model = TinyLearnable()
    options = of(Algo.GRPO, collapse=Collapse(entropy=10.0, kl=None, patience=2))
    found = trained(model, data_of(model), options)
    assert found.steps == 2
    assert found.stopped.startswith("the policy collapsed: its entropy fell to 2.")


def test_a_policy_that_has_left_its_base_stops_the_run() -> None:
    model = TinyLearnable()
    options = of(Algo.SFT, learning_rate=0.5, kl_every=2, collapse=Collapse(entropy=None, kl=0.05, patience=2))
    found = trained(model, data_of(model), options)
    assert "divergence from the base rose to" in found.stopped and found.steps < 30


def test_a_version_that_is_far_from_its_base_may_go_on_learning() -> None:
    """Each run begins with the version in use: else learning ends for good once it is a nat away."""
    far = [{"kl_base": 1.1}] * 3
    assert collapsed(far, Collapse()) == ""
    assert "limit 2.1" in collapsed([*far, *[{"kl_base": 2.2}] * 3], Collapse())
    assert "limit 1.5" in collapsed([{"kl_base": 1.6}] * 3, Collapse(began=0.5))


def test_somebody_who_asks_to_stop_waits_for_no_more_than_a_part_of_a_batch() -> None:
    model, cancel = TinyLearnable(), threading.Event()
    found = trained(model, data_of(model), of(Algo.GRPO), cancel=cancel, on_step=lambda _: cancel.set())
    assert (found.steps, found.stopped) == (1, "it was asked to stop")


# -- going on
class StopAfter(threading.Event):
    """Asks to stop at a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def __call__(self, figures: StepFigures) -> None:
        if figures.step >= self._step:
            self.set()


def timeless(history: tuple[dict[str, float], ...]) -> list[dict[str, float]]:
    return [{k: v for k, v in each.items() if k not in ("seconds", "tokens_per_s")} for each in history]


@pytest.mark.parametrize("algo", ALL)
@pytest.mark.parametrize("stop", [1, 6])
def test_a_run_that_goes_on_ends_as_one_that_never_stopped_bit_for_bit(algo: Algo, stop: int, tmp_path: Path) -> None:
    grpo = GrpoOptions(beta=0.1)
    options = of(algo, steps=12, save_every=1, kl_every=2, grpo=grpo, batch=24, micro=5)
    whole = TinyLearnable()
    data = data_of(whole)
    expected = trained(whole, data, options)

    place, first = tmp_path / "run" / "checkpoint", TinyLearnable()
    waiter = StopAfter(stop)
    broken_off = trained(first, data, options, checkpoint=place, cancel=waiter, on_step=waiter)
    assert broken_off.stopped and broken_off.steps < 12
    second = TinyLearnable()
    if place.exists():  # what is saved is put back, whatever stands there
        second.load_adapter_state({name: each + 1.0 for name, each in second.adapter_state().items()})
    steps: list[StepFigures] = []
    found = trained(second, data, options, checkpoint=place, steps=steps)

    assert (found.steps, found.stopped) == (12, "")
    assert all(torch.equal(each, second.adapter_state()[name]) for name, each in whole.adapter_state().items())
    assert timeless(found.history) == timeless(expected.history)
    assert found.counts == expected.counts
    assert steps[-1].step == 12 and (len(steps) < 12 or stop == 1)


# ---------------------------------------------------------------------- checkpoint
def save(steps: int, place: Path) -> None:
    optimiser = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))]).state_dict()
    write_checkpoint(
        "run", {"steps": steps, "adapter": {"up": torch.full((2,), float(steps))}, "optimiser": optimiser}, place
    )


def assert_whole(place: Path, steps: int) -> None:
    """Nothing but the checkpoint is there, and that of a step."""
    state = read_checkpoint(place, "run")
    assert state is not None
    assert state["steps"] == steps
    assert torch.equal(state["adapter"]["up"], torch.full((2,), float(steps)))
    assert [path.name for path in place.parent.iterdir()] == [place.name]


class Killed(BaseException):
    """The process ends here."""


def killed(*_: Any, **__: Any) -> None:
    raise Killed


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_process_that_is_killed_while_it_writes_leaves_the_checkpoint_before(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "deep" / "checkpoint"
    save(3, place)
    with monkeypatch.context() as patch:
        patch.setattr(os if at == "fsync" else Path, at, killed)
        with pytest.raises(Killed):
            save(4, place)
    state = read_checkpoint(place, "run")
    assert state is not None and state["steps"] == 3
    save(5, place)
    assert_whole(place, 5)


def test_a_full_disk_is_told_and_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    place = tmp_path / "checkpoint"
    save(3, place)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(EnvironmentFailure, match=r"cannot be written: .*No space left") as caught:
            save(4, place)
        assert "goes on from the checkpoint before" in caught.value.hint
        with pytest.raises(EnvironmentFailure, match="cannot be written") as caught:
            save(1, tmp_path / "first")
        assert "begins anew" in caught.value.hint, "there is none before"
    assert_whole(place, 3)


@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cut=st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_checkpoint_is_refused(where: float, flip: int, cut: bool, tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    save(3, place)
    data = bytearray(place.read_bytes())
    spot = int(where * len(data))
    data[spot] ^= flip
    place.write_bytes(data[:spot] if cut else data)
    with pytest.raises(UsageError, match="is damaged\n  → delete it"):
        read_checkpoint(place, "run")


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    save(3, tmp_path / "checkpoint")
    with pytest.raises(UsageError, match="belongs to a run with other options"):
        read_checkpoint(tmp_path / "checkpoint", "another")


def test_a_run_is_known_by_its_options_its_data_and_its_model() -> None:
    data = played(TinyLearnable(), rounds=2)
    same = fingerprint(TrainOptions(), data, ("m", "t", "c"))
    assert fingerprint(TrainOptions(steps=99, save_every=3), data, ("m", "t", "c")) == same
    rewarded = played(TinyLearnable(), rounds=2, rule=lambda _: 0.5)
    others = [
        fingerprint(TrainOptions(seed=1), data, ("m", "t", "c")),
        fingerprint(TrainOptions(start="version 3"), data, ("m", "t", "c")),
        *(fingerprint(TrainOptions(), other, ("m", "t", "c")) for other in (data[1:], rewarded)),
        fingerprint(TrainOptions(), data, ("other", "t", "c")),
    ]
    assert len({same, *others}) == 6


# ---------------------------------------------------------------------- memory
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_trial_step_leaves_no_gradient_and_explains_that_the_memory_is_used_up(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, samples = TinyLearnable(), [Sample((1, 2), (3, 4))]
    trial_step(model, samples)
    assert all(each.grad is None for each in model.trainable())

    def used_up(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(model, "statistics", used_up)
    with pytest.raises(MissingCapability, match="a trial step with 1 completions: the memory is used up") as caught:
        trial_step(model, samples)
    assert "--set micro=1" in caught.value.hint
