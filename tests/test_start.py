"""Runs that begin with the weights of others: what is taken over, kept, refused, and repeated."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from real import plan, torchrun
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from spelling import Spelling
from typer.testing import CliRunner

from regatta import checkpoint, config, folders, recipes, runs, start
from regatta.checkpoint import BadCheckpoint
from regatta.cli import app
from regatta.config import Start
from regatta.data.seeds import mixed_seed
from regatta.events import RankEnded, Started, read
from regatta.fingerprint import run_digest
from regatta.learn.takeover import Head, Weights, take_over
from regatta.metrics import summarise
from regatta.race.course import enter, run_all
from regatta.race.entries import VIRTUAL, Lane, Race, home_of
from regatta.report.files import outcome_of
from regatta.report.forms import as_markdown
from regatta.worlds.launch import WrongUsage

RECIPE = f"{Path(__file__).parent / 'spelling.py'}:first"
UNTRAINED = ("optimiser.lr=0", "optimiser.momentum=0", "stop.epochs=0.5")


def spelling(settings=(), source=None):
    run = recipes.load(RECIPE)
    if source is not None:
        run = replace(run, start=Start(str(source)))
    return config.assign(run, list(settings))


def simulated(folder, settings=(), source=None):
    """A simulated run in this folder."""
    run = spelling(settings, source)
    runs.simulate(run, folders.Plan(RECIPE, run, folder))
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run of symbols a, b, c, d."""
    return simulated(tmp_path_factory.mktemp("source") / "run")


def best(folder):
    return folder / "checkpoints" / "best.safetensors"


def begun(source, settings=(), head="new"):
    """A model as a run would begin with it, and as it was drawn."""
    run = start.pinned(spelling([f"start.head={head}", *settings], source))
    models = []
    for path in (None, start.place(run, None)):
        torch.manual_seed(mixed_seed(0))
        model = run.task.model()
        if path is not None:
            start.begin_with(path, model, run, run.task.open())
        models.append(model.state_dict())
    return models[1], models[0]


# -- what is taken over ------------------------------------------------------------------------


def test_all_but_the_head_is_taken_over(source):
    model, drawn = begun(source, ["task.symbols=xyz"])
    saved = load_file(best(source))
    assert len(saved) == 9
    for name in saved:
        wanted = drawn if name.startswith("head") else saved
        assert torch.equal(model[name], wanted[name]), name
    assert not torch.equal(model["norm.running_mean"], drawn["norm.running_mean"])
    assert model["norm.num_batches_tracked"] == saved["norm.num_batches_tracked"]


def test_a_new_head_is_new_although_it_would_fit(source):
    model, drawn = begun(source)
    assert torch.equal(model["head.weight"], drawn["head.weight"])


def test_rows_of_a_kept_head_follow_their_symbols(source):
    model, drawn = begun(source, ["task.symbols=xdyb"], head="kept")
    saved = load_file(best(source))
    for name in ("head.weight", "head.bias"):
        wanted = [drawn[name][0], saved[name][3], drawn[name][2], saved[name][1]]
        assert torch.equal(model[name], torch.stack(wanted))


def test_a_kept_head_may_have_another_name(source):
    model, _ = begun(source, ["task.symbols=ba", "task.head=last"], head="kept")
    assert torch.equal(model["last.weight"], load_file(best(source))["head.weight"][[1, 0]])
    model, drawn = begun(source, ["task.symbols=ba", "task.head=last"], head="new")
    assert torch.equal(model["last.weight"], drawn["last.weight"])


@given(there=st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True),
       here=st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True))  # fmt: skip
def test_every_symbol_finds_its_row(there, here):
    """Weights that spell their own symbol; fresh ones are 0."""
    rows = torch.tensor([[float(ord(s))] * 2 for s in there])
    source = Weights("a", {"head.w": rows, "body": torch.ones(1)}, Head("head", tuple(there)))
    tensors = {"head.w": torch.zeros(len(here), 2), "body": torch.zeros(1)}
    told = take_over(source, Weights("b", tensors, Head("head", tuple(here))), keeps_head=True)
    wanted = [float(ord(s)) if s in there else 0.0 for s in here]
    assert tensors["head.w"][:, 0].tolist() == tensors["head.w"][:, 1].tolist() == wanted
    assert tensors["body"] == 1
    assert f"{len(set(here) & set(there))} of {len(here)} symbols" in told


def test_a_task_without_a_head_takes_everything_over(source):
    model, _ = begun(source, ["task.tells=false"])
    saved = load_file(best(source))
    assert all(torch.equal(model[name], saved[name]) for name in saved)


def test_many_heads_of_a_source_are_left_out():
    """As of a network with a head a language: only what lies below them is taken over."""
    tensors = {"body": torch.ones(2), "heads.fr.w": torch.ones(5), "heads.it.w": torch.ones(7)}
    ours = {"body": torch.zeros(2), "head.w": torch.zeros(3)}
    target = Weights("new", ours, Head("head"))
    assert "1 tensors" in take_over(Weights("old", tensors, Head("heads")), target, False)
    assert ours["body"].sum() == 2
    assert ours["head.w"].sum() == 0
    with pytest.raises(ValueError, match=r"new has no heads\.fr\.w, which old has as 5 \(and 1 mo"):
        take_over(Weights("old", tensors), target, False)


def test_half_precision_is_taken_over_but_no_other_kind():
    ours = {"w": torch.zeros(2)}
    take_over(Weights("a", {"w": torch.ones(2, dtype=torch.float16)}), Weights("b", ours), False)
    assert ours["w"].tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="w is 2 of int64 in a, but 2 in b"):
        take_over(Weights("a", {"w": torch.ones(2).long()}), Weights("b", ours), False)


# -- what does not fit -------------------------------------------------------------------------


def refusal(*arguments, **more):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        begun(*arguments, **more)
    return str(caught.value)


def test_another_shape_is_refused_with_both_and_what_to_set(source):
    text = refusal(source, ["task.hidden=9", "task.symbols=xyz"])
    assert f"hidden.weight is 6 x 4 in {best(source)} (task spelling)" in text
    assert "but 9 x 4 in the model (task spelling) (and 1 more do not fit)" in text
    assert "task.hidden (there 6, here 9)" in text
    assert "--from" in text


def test_missing_names_are_refused(source, tmp_path):
    tensors = load_file(best(source))
    moved = tensors.pop("hidden.bias")
    save_file(tensors, tmp_path / "less.safetensors")
    text = refusal(tmp_path / "less.safetensors")
    assert "less.safetensors has no hidden.bias, which the model (task spelling) has as 6" in text
    assert "name a source of the same model" in text
    save_file(tensors | {"hidden.bias": moved, "more": moved.clone()}, tmp_path / "m.safetensors")
    text = refusal(tmp_path / "m.safetensors")
    assert "the model (task spelling) has no more, which" in text
    assert text.count("m.safetensors has as 6") == 1


def test_a_task_without_a_head_is_told_that_it_might_have_one(source):
    text = refusal(source, ["task.tells=false", "task.symbols=xyz"])
    assert "head.weight is 4 x 6" in text
    assert "let the task's data name its last layer (`head`)" in text


def test_a_file_without_symbols_serves_for_a_new_head_only(source, tmp_path):
    save_file(load_file(best(source)), tmp_path / "old.safetensors")
    model, drawn = begun(tmp_path / "old.safetensors", ["task.symbols=xyz"])
    assert torch.equal(model["head.weight"], drawn["head.weight"])
    text = refusal(tmp_path / "old.safetensors", ["task.symbols=xyz"], head="kept")
    assert "does not say what the rows of its head stand for: use start.head=new" in text


def test_a_head_that_is_not_there_is_refused():
    ours = Weights("m", {"w": torch.ones(1)}, Head("head"))
    with pytest.raises(ValueError, match="the data of m call its last layer 'head', which it lac"):
        take_over(ours, ours, False)


@pytest.mark.parametrize(
    ("theirs", "ours", "told"),
    [
        ({"head.w": torch.ones(2, 3)}, {"head.v": torch.ones(2, 3)}, "a has no head.v, which is"),
        ({"head.w": torch.ones(2, 3)}, {"head.w": torch.ones(2, 4)}, "head.w is 2 x 3 in the hea"),
        ({"head.w": torch.ones(5, 3)}, {"head.w": torch.ones(2, 3)}, "w is 5 x 3 in a, not a row"),
        ({"head.w": torch.ones(2, 3)}, {"head.w": torch.ones(3, 3)}, "w is 3 x 3 in b, not a row"),
    ],
)
def test_a_head_that_cannot_be_kept_is_refused(theirs, ours, told):
    head = Head("head", ("x", "y"))
    with pytest.raises(ValueError, match=told) as caught:
        take_over(Weights("a", theirs, head), Weights("b", ours, head), True)
    assert "use start.head=new" in str(caught.value)


def test_heads_without_symbols_are_kept_whole_or_refused():
    ours = {"head.w": torch.zeros(2, 3)}
    source = Weights("a", {"head.w": torch.ones(2, 3)}, Head("head", ("x", "y")))
    assert "the head kept" in take_over(source, Weights("b", ours, Head("head")), True)
    assert ours["head.w"].sum() == 6
    with pytest.raises(ValueError, match="2 x 3 in the head of a, but 4 x 3"):
        take_over(source, Weights("b", {"head.w": torch.zeros(4, 3)}, Head("head")), True)


# -- which file --------------------------------------------------------------------------------


def test_a_run_gives_its_best_model_or_its_newest_checkpoint(source, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(source, folder)
    assert start.pinned(spelling(source=folder)).start.run == str(best(folder))
    best(folder).unlink()
    newest = folder / "checkpoints" / "000004" / "answer.safetensors"
    assert start.pinned(spelling(source=folder)).start.run == str(newest)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(ValueError, match="neither a best model nor a checkpoint"):
        start.pinned(spelling(source=folder))


def test_answers_say_what_their_rows_stand_for(source):
    for path in (best(source), source / "checkpoints" / "000004" / "answer.safetensors"):
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["about"])
        assert about["task"] == config.to_json(Spelling())
        assert (about["head"], about["symbols"]) == ("head", list("abcd"))


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-10])


def emptied(path):
    path.write_bytes(b"")


def scrambled(path):
    path.write_bytes(b"\x80\x04" + path.read_bytes())


@pytest.mark.parametrize("damage", [cut_short, emptied, scrambled])
def test_a_damaged_file_is_refused_by_name(source, tmp_path, damage):
    path = tmp_path / "model.safetensors"
    shutil.copy(best(source), path)
    damage(path)
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors is no whole safetensors file"):
        simulated(tmp_path / "new", source=path)
    assert not (tmp_path / "new").exists()


def test_what_has_no_weights_is_refused(source, tmp_path):
    timing = spelling()
    runs.simulate(timing, folders.Plan(RECIPE, timing, tmp_path / "timing"), timing_only=True)
    (tmp_path / "race").mkdir()
    (tmp_path / "race" / "race.json").write_text("{}")
    home = tmp_path / "race" / "runs" / "single-1w-8m" / "seed-0"
    shutil.copytree(source, home)
    (tmp_path / "model.pt").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    shutil.copy(best(source), tmp_path / "model.bin")
    (tmp_path / "empty").mkdir()
    cases = {
        "timing": "was simulated for its timing only and has no weights: simulate it again",
        "race": f"is a race: name one of its runs, for instance {home}",
        "model.pt": "model.pt is no state dict that can be read",
        "model.bin": "model.bin is no .safetensors, .pt or .pth file",
        "empty": "holds no run",
        "nowhere": "nowhere does not exist: name",
    }
    for name, told in cases.items():
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            start.pinned(spelling(source=tmp_path / name))
        assert told in str(caught.value)


@pytest.mark.parametrize("kind", ["plain", "among others", "wrapped"])
def test_a_state_dict_of_torch_is_as_good_as_one_of_safetensors(source, tmp_path, kind):
    weights = load_file(best(source))
    saved = {
        "plain": weights,
        "among others": {"epoch": 3, "state_dict": weights, "optimizer": {"lr": 0.1}},
        "wrapped": {f"module.{name}": tensor for name, tensor in weights.items()},
    }[kind]
    torch.save(saved, tmp_path / "model.pth")
    folder = simulated(tmp_path / "run", UNTRAINED, tmp_path / "model.pth")
    assert (folder / "start.pth").read_bytes() == (tmp_path / "model.pth").read_bytes()
    (tmp_path / "model.pth").unlink()
    assert runs.replay(folder).identical
    save_file(weights, tmp_path / "kept.safetensors")
    of_tensors = simulated(tmp_path / "other", UNTRAINED, tmp_path / "kept.safetensors")
    ours, theirs = load_file(best(folder)), load_file(best(of_tensors))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_file_of_torch_without_tensors_is_refused(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "model.pt")
    with pytest.raises(BadCheckpoint, match="holds no tensors by name"):
        start.pinned(spelling(source=tmp_path / "model.pt"))


def test_a_head_of_another_word_is_refused():
    with pytest.raises(ValueError, match=r"start\.head must be new or kept, not same"):
        Start(head="same")


# -- a run of its own --------------------------------------------------------------------------


def test_a_run_keeps_where_it_began_and_replays_without_the_source(source, tmp_path):
    copy = tmp_path / "source"
    shutil.copytree(source, copy)
    settings = ("task.symbols=cdef", "start.head=kept", "strategy=averaging", "workers=2")
    folder = simulated(tmp_path / "run", settings, copy)
    kept, stored = folders.open_plan(folder)
    assert kept.run.start == Start(str(best(copy)), "kept", stored["run"]["start"]["sha256"])
    assert (folder / start.FILE).read_bytes() == best(source).read_bytes()
    shutil.rmtree(copy)
    assert runs.replay(folder).identical
    events = read(folder / "events.jsonl")
    told = next(e for e in events if isinstance(e, Started)).start
    assert told.startswith(f"{best(copy)} (task spelling), sha256 {kept.run.start.sha256[:12]}: ")
    assert told.endswith("7 tensors, the head's rows of 2 of 4 symbols")
    assert summarise(events).start == told
    assert f"Began with {told}." in as_markdown(outcome_of(folder))


def test_a_damaged_copy_is_refused_by_name(source, tmp_path):
    folder = simulated(tmp_path / "run", source=source)
    contents = bytearray((folder / start.FILE).read_bytes())
    contents[-1] ^= 1
    (folder / start.FILE).write_bytes(contents)
    with pytest.raises(BadCheckpoint, match=r"start\.safetensors is missing or not what this run"):
        runs.replay(folder)
    (folder / start.FILE).unlink()
    with pytest.raises(BadCheckpoint, match=r"start\.safetensors is missing"):
        runs.replay(folder)


def test_nothing_is_written_where_weights_do_not_fit(source, tmp_path):
    with pytest.raises(ValueError, match=r"hidden\.weight is"):
        simulated(tmp_path / "run", ["task.hidden=9"], source)
    assert not (tmp_path / "run").exists()


def test_the_start_changes_what_is_learnt(source, tmp_path):
    cold, warm = (runs.simulate(spelling(UNTRAINED, s))[0][0].digest for s in (None, source))
    assert cold != warm


def test_a_runs_digest_depends_on_contents_not_on_the_path(source, tmp_path):
    shutil.copy(best(source), tmp_path / "same.safetensors")
    tensors = load_file(best(source))
    save_file(tensors | {"hidden.bias": tensors["hidden.bias"] + 1}, tmp_path / "b.safetensors")
    one, same, other = (
        run_digest(start.pinned(spelling(source=path)))
        for path in (source, tmp_path / "same.safetensors", tmp_path / "b.safetensors")
    )
    assert one == same != other
    kept = start.pinned(spelling(["start.head=kept"], source))
    assert run_digest(kept) != one != run_digest(spelling())


def test_a_digest_that_was_given_must_be_the_files(source):
    with pytest.raises(ValueError, match=r"best\.safetensors has changed: its sha256 is"):
        start.pinned(spelling(["start.sha256=0123"], source))


def began_as_wanted(folder, source, settings=(), head="new"):
    """Whether a run that learnt nothing still has the weights that it should have begun with.

    Those of all ranks: its answer is their mean.
    """
    wanted, _ = begun(source, settings, head)
    answer = load_file(checkpoint.newest(folder / "checkpoints") / "answer.safetensors")
    learnt = [name for name, _ in Spelling().model().named_parameters()]
    return all(torch.equal(answer[name], wanted[name]) for name in learnt)


@pytest.mark.parametrize("strategy", ["averaging", "parameter-server", "elastic"])
def test_all_virtual_ranks_begin_alike(source, strategy, tmp_path):
    settings = (*UNTRAINED, f"strategy={strategy}", "workers=2", "task.symbols=xyz")
    folder = simulated(tmp_path / "run", settings, source)
    assert began_as_wanted(folder, source, ["task.symbols=xyz"])
    assert not began_as_wanted(simulated(tmp_path / "cold", settings), source, ["task.symbols=xyz"])


# -- races -------------------------------------------------------------------------------------


def test_a_race_copies_once_and_goes_on_without_the_source(source, tmp_path):
    copy, folder = tmp_path / "source", tmp_path / "race"
    shutil.copytree(source, copy)
    lanes = (Lane("single", 1, 8, VIRTUAL), Lane("all-reduce", 2, 8, VIRTUAL))
    race = Race(RECIPE, lanes, (0, 1), settings=(f"start.run={copy}", "task.symbols=xyz"))
    enter(race, folder, "regatta race")
    shutil.rmtree(copy)
    run_all(race, folder, lambda begun: lambda events: None)
    for lane, seed in race.starts():
        home = home_of(folder, lane, seed)
        assert (home / start.FILE).samefile(folder / start.FILE)
        assert runs.replay(home).identical
    text = as_markdown(outcome_of(folder))
    assert text.count("Began with ") == 1
    assert "7 tensors, the head new" in text


def test_a_race_that_does_not_fit_is_not_entered(source, tmp_path):
    lanes = (Lane("single", 1, 8, VIRTUAL),)
    race = Race(RECIPE, lanes, settings=(f"start.run={source}", "task.hidden=9"))
    with pytest.raises(ValueError, match=r"hidden\.weight is"):
        enter(race, tmp_path / "race", "regatta race")
    assert not (tmp_path / "race").exists()


# -- the command line, and real processes ------------------------------------------------------


def invoke(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def test_a_simulation_from_the_command_line(source, tmp_path, monkeypatch):
    monkeypatch.chdir(source.parent)
    done = invoke("simulate", RECIPE, "--from", source.name, "--set", "task.symbols=xyz",
                  "-o", tmp_path / "run")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert f"began with {best(source)}" in done.output


def test_a_race_from_the_command_line(source, tmp_path):
    folder = tmp_path / "race"
    done = invoke("race", RECIPE, "--simulate", "--strategies", "single averaging", "--seeds", "1",
                  "--from", source, "--set", "task.symbols=xyz", "-o", folder)  # fmt: skip
    assert done.exit_code == 0, done.output
    homes = [path.parent for path in folder.glob("runs/*/*/run.json")]
    assert len(homes) == 2
    assert all((home / start.FILE).samefile(folder / start.FILE) for home in homes)
    assert "start.sha256=" in (folder / "race.json").read_text()
    again = invoke("race", RECIPE, "-o", folder, "--resume", "--from", source)
    assert "a race goes on as it began" in str(again.exception)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--from", "elsewhere"), "leave --from out"),
        (("--set", "start.run=elsewhere"), "leave --set start... out"),
        (("--set", "start.head=kept"), "leave --set start... out"),
    ],
)
def test_a_run_goes_on_with_its_own_weights(source, tmp_path, words, told):
    folder = simulated(tmp_path / "run", source=source)
    file = folder / "run.json"
    stored = json.loads(file.read_text()) | {"world": "processes"}
    del stored["sha256"]
    file.write_text(json.dumps(stored))
    done = invoke("train", RECIPE, "-o", folder, "--resume", *words)
    assert told in str(done.exception)


def trained(folder, source, settings=(), strategy="averaging", workers=2):
    chosen = (f"start.run={source}", "task.symbols=xyzd", "start.head=kept", *settings)
    return plan(folder, strategy, workers, chosen, RECIPE)


def digests(folder):
    return {e.rank: e.digest for e in read(folder / "events.jsonl") if isinstance(e, RankEnded)}


@pytest.mark.real
def test_all_processes_begin_alike_and_as_in_the_virtual_world(source, tmp_path):
    made = trained(tmp_path / "run", source, UNTRAINED)
    real = [e.digest for e in runs.train(made)]
    assert real == [e.digest for e in runs.simulate(made.run)[0]]
    assert began_as_wanted(made.folder, source, ["task.symbols=xyzd"], head="kept")


@pytest.mark.real
def test_a_real_run_resumes_and_replays_without_the_source(source, tmp_path):
    """Broken off after its first checkpoint, with the source gone: the same weights at the end."""
    copy = tmp_path / "source"
    shutil.copytree(source, copy)
    runs.train(trained(tmp_path / "whole", copy))
    short = trained(tmp_path / "broken", copy, ("stop.epochs=1",))
    runs.train(short)
    shutil.rmtree(copy)
    stored, _ = folders.open_plan(tmp_path / "broken")
    longer = replace(stored, run=config.assign(stored.run, ["stop.epochs=2"]))
    runs.train(longer, resume=True)
    assert digests(tmp_path / "broken") == digests(tmp_path / "whole")
    assert runs.replay(tmp_path / "broken").identical


@pytest.mark.real
def test_real_ranks_refuse_weights_that_do_not_fit(source, tmp_path):
    with pytest.raises(WrongUsage, match=r"hidden\.weight is 6 x 4"):
        runs.train(trained(tmp_path / "run", source, ["task.hidden=9"]))
    assert not (tmp_path / "run").exists()


@pytest.mark.real
def test_ranks_of_torchrun_begin_alike(source, tmp_path):
    words = ("train", RECIPE, "-s", "averaging", "-o", tmp_path / "run", "--from", source)
    done = torchrun(2, *words, *(word for s in UNTRAINED for word in ("--set", s)))
    assert done.returncode == 0, done.stderr
    assert len(digests(tmp_path / "run")) == 2
    assert began_as_wanted(tmp_path / "run", source)
    assert (tmp_path / "run" / start.FILE).read_bytes() == best(source).read_bytes()
    assert runs.replay(tmp_path / "run").identical
